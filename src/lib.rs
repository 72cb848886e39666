//! nightshift: overnight batch jobs over mixture-of-experts models far larger than memory, on one CPU machine.
//!
//! ARCHITECTURE.md walks through the rooms; each module opens with the question it answers.

pub mod cli;
pub mod commands;
pub mod error;
pub mod event;
pub mod execute;
pub mod input;
pub mod job;
pub mod kernels;
pub mod learned;
pub mod machine;
pub mod memory;
pub mod model;
pub mod output;
pub mod plan;
pub mod report;
pub mod request;
pub mod routes;
pub mod sample;
pub mod scratch;
pub mod spool;
pub mod store;
pub mod tokenizer;
pub mod units;
