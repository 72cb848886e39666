//! One file a command: each hands out the job's sections and the facts, and calls rooms in order.

mod account;
pub mod doctor;
mod explain;
mod facts;
mod findings;
mod misfits;
mod overlap;
pub mod plan;
mod prepare;
mod profile;
mod rehearse;
mod routing;
pub mod run;
mod scratch;
pub mod verify;

/// What a command leaves for `main` to print, and its exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// For standard output.
    pub text: String,
    /// 0 where all is well, 1 where rows are errored, 3 and 5 where a model is faulty and cannot be read.
    pub code: u8,
}
