//! nightshift: overnight batch jobs over mixture-of-experts models far larger than memory, on one CPU machine.
//!
//! ARCHITECTURE.md walks through the rooms; each module opens with the question it answers.

pub mod error;
pub mod event;
pub mod job;
pub mod kernels;
pub mod memory;
pub mod request;
pub mod spool;
pub mod units;
