//! One binary of tests: the command as its users type it, and the order of the house.

mod checkpoints;
mod house;
mod jobs;
mod lines;
mod model;
mod placement;
mod rows;
mod text;
mod tidy;
