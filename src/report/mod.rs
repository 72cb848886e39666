//! What would a person rather look at? Progress while a job runs, and the words at its end.

mod closing;
mod progress;
mod reading;

pub use closing::closing_words;
pub use progress::{Progress, Screen, Snapshot};
pub use reading::Reading;
