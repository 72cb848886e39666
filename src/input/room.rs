//! How much memory may the reading of one row take? What asks for more refuses the job before the row is looked into.
//!
//! A text is there as a line, as a value, as a message and as ids, and the merging of one long word takes most: 19 times the text's bytes,
//! measured. A JSON value of no text takes 70 bytes and more, so that a list of a million ids is not two million bytes but eighty.

use std::fmt::Display;

use crate::error::{Error, Result};

/// Bytes of memory for a byte of text.
const TEXT_COPIES: u64 = 24;
/// Bytes of memory for a JSON value, beside its text.
const VALUE_BYTES: u64 = 160;

/// What `engine.memory` leaves for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// `engine.memory`.
    pub budget_bytes: u64,
    /// Of these, those that one row may take while it is read.
    pub row_bytes: u64,
}

impl Room {
    /// As good as unlimited.
    pub const AMPLE: Room = Room { budget_bytes: u64::MAX, row_bytes: u64::MAX };

    /// The longest text, in bytes, that one row may have.
    pub(super) fn text_bytes_max(&self) -> u64 {
        self.row_bytes / TEXT_COPIES
    }

    /// `bytes` of memory are there for the row at `place`.
    ///
    /// # Errors
    /// Refused, with the smallest budget that would do.
    pub(super) fn check(&self, place: &dyn Display, bytes: u64) -> Result<u64> {
        if bytes <= self.row_bytes {
            return Ok(bytes);
        }
        let least = self.budget_bytes.saturating_add(bytes - self.row_bytes).div_ceil(1 << 20);
        Err(Error::refused(format!(
            "{place} is so long that reading it may take {} MiB of memory: engine.memory must be at least {least}MiB, or the row shorter",
            bytes.div_ceil(1 << 20)
        )))
    }
}

/// Memory that a line of JSON may take; one that has no commas and brackets is text.
pub(super) fn line_bytes(line: &[u8]) -> u64 {
    let values = line.iter().filter(|byte| matches!(byte, b',' | b':' | b'[' | b'{')).count();
    text_bytes(line.len() as u64) + values as u64 * VALUE_BYTES
}

/// Memory that a text of so many bytes may take.
pub(super) fn text_bytes(bytes: u64) -> u64 {
    bytes.saturating_mul(TEXT_COPIES)
}

/// Memory that a row of values may take.
pub(super) fn row_bytes<'v>(values: impl Iterator<Item = &'v serde_json::Value>) -> u64 {
    use serde_json::Value;
    let of = |value: &Value| match value {
        Value::String(text) => VALUE_BYTES + text_bytes(text.len() as u64),
        Value::Array(items) => VALUE_BYTES + row_bytes(items.iter()),
        Value::Object(map) => VALUE_BYTES + row_bytes(map.values()),
        _ => VALUE_BYTES,
    };
    values.map(of).sum()
}
