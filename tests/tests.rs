//! One binary of tests: the command as its users type it, and the order of the house.

mod checkpoints;
mod doctor;
mod house;
mod jobs;
mod lines;
#[path = "../benches/synth/mod.rs"]
mod maker;
mod model;
mod overlap;
mod placement;
mod plan_explain;
mod rows;
mod states;
mod streaming;
mod synth;
mod text;
mod tidy;
mod verify;
