//! Where do sequences' states lie, and what does it cost to have them there?
//!
//! The largest model's states take 481 MB a sequence, so that 8 GB hold fifteen; on a disk there is room for hundreds. A state on disk is
//! read and written once a sweep, while its layer is swept: 0.5 GB a row, where a sweep of fifteen rows reads 30 GB of weights for each.
//! And a prompt's states may wait there until it is its answer's turn, so that prompts go through in sweeps of thousands of rows.

use super::facts::Needs;

/// Where states lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum States {
    /// In memory from the first position to the last.
    Memory,
    /// On disk while a sequence waits, in memory while it decodes.
    Parked,
    /// On disk; they pass through memory layer by layer, in each sweep.
    Passing,
}

/// What a sequence's states take, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Whatever its length.
    pub fixed: u64,
    /// And for each of its tokens.
    pub a_token: u64,
    /// Log records of one token, from which the fixed states follow; 0 where there are none.
    pub log: u64,
    /// The largest fixed state that is read and written as one, and the log record of a token that goes with it.
    pub piece: u64,
    /// See `piece`.
    pub piece_log: u64,
    /// Most that the states of one layer take for each of a sequence's tokens.
    pub layer_token: u64,
}

/// Most log records behind a state: a replay passes over the state once for each.
const RECORDS_MAX: u64 = 31;
/// A byte written beside a byte read: it costs the same time, and wears the disk.
const WRITTEN: u64 = 2;

impl StateBytes {
    /// Those of a sequence of so many positions. A row may ask for four thousand million tokens: what exceeds 64 bits is as good as their
    /// largest number, and is refused.
    pub fn of(self, positions: u64) -> u64 {
        positions.saturating_mul(self.a_token).saturating_add(self.fixed)
    }

    /// A fixed state is written whole every so many tokens, and between them a record a token. Of n tokens one whole and n - 1 records are
    /// written, and (n - 1) / 2 records are read with each: the n at which that is least.
    pub fn whole_every(self) -> u64 {
        if self.log == 0 {
            return 1;
        }
        let cost = |n: &u64| WRITTEN as f64 * self.changed(*n as f64) + (*n - 1) as f64 / 2.0 * self.log as f64;
        let least = (2.0 * WRITTEN as f64 * (self.fixed as f64 / self.log as f64 - 1.0).max(0.0)).sqrt() as u64;
        let n = least.clamp(1, RECORDS_MAX);
        [n, n + 1].into_iter().min_by(|a, b| cost(a).total_cmp(&cost(b))).expect("two")
    }

    /// Bytes of fixed states written for a token, one of n whole.
    fn changed(self, n: f64) -> f64 {
        (self.fixed as f64 + (n - 1.0) * self.log as f64) / n
    }

    /// Bytes read for a span that begins at `first`, its states being on disk.
    pub(super) fn read(self, first: f64) -> f64 {
        self.fixed as f64 + (self.whole_every() - 1) as f64 / 2.0 * self.log as f64 + first * self.a_token as f64
    }

    /// Bytes that a job writes at most, about: every prompt once, and where they pass every token of an answer.
    pub(super) fn written_in_all(self, states: States, needs: &Needs) -> f64 {
        let prompts = needs.kept.sequences as f64 * self.fixed as f64 + needs.prompt_tokens as f64 * self.a_token as f64;
        let answers = (needs.positions - needs.prompt_tokens) as f64;
        match states {
            States::Memory => 0.0,
            States::Parked => prompts,
            States::Passing => prompts + answers * self.written(1),
        }
    }

    /// Bytes written after a span of so many positions.
    pub(super) fn written(self, positions: u64) -> f64 {
        let changed = if positions == 1 { self.changed(self.whole_every() as f64) } else { self.fixed as f64 };
        changed + positions as f64 * self.a_token as f64
    }
}

/// The disk that states may wait on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scratch {
    /// What the longest sequence takes there.
    pub slot_bytes: u64,
    /// What the book of where its states lie takes in memory.
    pub slot_memory_bytes: u64,
    /// What is free there for it.
    pub free_bytes: u64,
    /// Most that may be written.
    pub write_limit_bytes: Option<u64>,
}

impl Scratch {
    /// Whether so much may be written.
    pub(super) fn allows(&self, bytes: f64) -> bool {
        self.write_limit_bytes.is_none_or(|most| bytes <= most as f64)
    }

    /// Sequences that there is room for.
    pub fn slots(&self) -> u64 {
        if self.write_limit_bytes == Some(0) { 0 } else { self.free_bytes.checked_div(self.slot_bytes).unwrap_or(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wholes_are_written_as_seldom_as_costs_least() {
        let cost =
            |s: StateBytes, n: u64| 2.0 * (s.fixed as f64 + (n - 1) as f64 * s.log as f64) / n as f64 + (n - 1) as f64 / 2.0 * s.log as f64;
        for (fixed, log) in [(464_000_000, 20_000_000), (464_000_000, 1_000_000), (1000, 900), (1000, 5000), (0, 5)] {
            let s = StateBytes { fixed, log, ..StateBytes::default() };
            let n = s.whole_every();
            assert!((1..=32).all(|other| cost(s, n) <= cost(s, other)), "{fixed} {log}: {n}");
        }
        assert_eq!(StateBytes { fixed: 7, ..StateBytes::default() }.whole_every(), 1);
    }

    #[test]
    fn a_disk_holds_what_it_has_room_for_and_may_write() {
        let scratch = Scratch { slot_bytes: 10, slot_memory_bytes: 1, free_bytes: 35, write_limit_bytes: None };
        assert_eq!(scratch.slots(), 3);
        assert_eq!(Scratch { write_limit_bytes: Some(0), ..scratch }.slots(), 0);
        assert_eq!(Scratch::default().slots(), 0);
    }
}
