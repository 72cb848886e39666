//! What would a person rather look at? Progress while a job runs, the words at its end, and what a machine can do.

mod checkup;
mod closing;
mod explained;
mod progress;
mod reading;
mod rehearsal;

pub use checkup::Checkup;
pub use closing::closing_words;
pub use explained::{Explained, Least, Measured, Tabled, TabledWave};
pub use progress::{Progress, Screen, Snapshot, show_duration};
pub use reading::Reading;
pub use rehearsal::{Computed, Rehearsal};
