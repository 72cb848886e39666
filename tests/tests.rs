//! One binary of tests: the command as its users type it, and the order of the house.

mod tidy;
