//! One file a command: each hands out the job's sections and the facts, and calls rooms in order.

mod account;
pub mod doctor;
mod facts;
pub mod plan;
mod prepare;
mod rehearse;
pub mod run;

/// What a command leaves for `main` to print, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// For standard output.
    pub text: String,
    /// 0 where all rows succeeded, 1 where some are errored.
    pub code: u8,
}
