//! The ledger: what every byte of memory is for, settled before work.

use serde::Serialize;

/// One purpose of memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Short name: "sequence state".
    pub name: &'static str,
    /// Bytes reserved.
    pub bytes: u64,
    /// What these bytes buy, for a person.
    pub buys: String,
}

/// All lines of a job's memory; their sum is a ceiling.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Ledger {
    /// The lines, in the order in which a person reads them.
    pub lines: Vec<Line>,
}

impl Ledger {
    /// Adds a line.
    pub fn reserve(&mut self, name: &'static str, bytes: u64, buys: impl Into<String>) {
        self.lines.push(Line { name, bytes, buys: buys.into() });
    }

    /// The sum of all lines, in bytes; what exceeds 64 bits is their largest number.
    pub fn total(&self) -> u64 {
        self.lines.iter().map(|line| line.bytes).fold(0, u64::saturating_add)
    }
}
