//! What is this machine? How much memory a job may still take, how many threads, and what this process has used. No job is known here.

mod cache;
mod memory;

pub use cache::cache_home;
pub use memory::{available_bytes, peak_bytes};

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
