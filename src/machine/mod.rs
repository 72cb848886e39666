//! What is this machine? Its processor, the memory that a job may still take, its disks, how fast they are, and what a model's pieces would
//! do here before anybody has the model. No job is known here.

mod cache;
mod drive;
mod estimate;
mod memory;
mod place;
mod processor;
mod products;
mod rates;
mod rehearsal;
mod synthetic;

pub use cache::{cache_folder, cache_home};
pub use drive::{DiskRate, Drive, Grid, Pass};
pub use estimate::{Bound, Estimate, Work};
pub use memory::{Group, Memory, available_bytes, peak_bytes};
pub use place::{Largest, Place, uring};
pub use processor::Processor;
pub use products::ProductRate;
pub use rates::{Rates, Together};
pub use rehearsal::{Cost, Means, Shape, rehearse};

/// Threads that can run at once, limits of affinity and control groups included; 1 where the system does not say.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_machine_has_a_thread() {
        assert!(super::threads() >= 1);
    }
}
