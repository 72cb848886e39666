//! What is the next token, and is this the end? One sequence at a time; a batch is nowhere to be seen.
//!
//! The hard part is that an answer must not depend on who shared its sweep, nor on the machine: [`draw`] uses integers
//! where a sum's order could show and random numbers that are a function of (seed, id, position), and what [`Ending`]
//! sees token by token is exactly what [`words`] later makes of the whole answer (a property test holds both together).

mod channels;
mod draw;
mod ending;
mod needle;
mod utf8;
mod words;

pub use channels::Vocabulary;
pub use draw::{Scratch, draw};
pub use ending::Ending;
pub use words::{Words, words};
