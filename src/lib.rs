//! nightshift: overnight batch jobs over mixture-of-experts models far larger than memory, on one CPU machine.
//!
//! ARCHITECTURE.md walks through the rooms; each module opens with the question it answers.

pub mod cli;
pub mod error;
pub mod event;
pub mod job;
pub mod machine;
pub mod memory;
pub mod request;
pub mod sample;
pub mod spool;
pub mod units;
