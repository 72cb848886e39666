//! The nightshift command.

fn main() {}
