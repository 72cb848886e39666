//! What is remembered of a model's routing: what its tokens use, and what grouping has saved.

use serde::{Deserialize, Serialize};

use crate::learned::Learned;
use crate::model::manifest::Manifest;
use crate::plan::{Table, TableShape};

/// The table's file, and the savings'.
const TABLE: &str = "routing-table";
const SAVINGS: &str = "overlap.json";
/// No file of these is longer.
const BYTES_MAX: u64 = 80 << 20;
const SAVINGS_BYTES_MAX: u64 = 64 << 10;
/// A run of fewer answer tokens shows nothing.
const TOKENS_MIN: u64 = 50;
/// A saving counts if it is so many standard deviations of a random order.
const DEVIATIONS: f64 = 2.0;
/// What is expected to be saved where nothing was measured: half of what was published for a predictor that was trained.
const UNKNOWN: f64 = 0.08;
/// Runs that a saving is the mean of, at most: a model's documents change.
const RUNS_MAX: u32 = 8;

/// A model's profile.
pub struct Profile {
    /// Which experts tokens use, by jobs that have finished.
    pub table: Table,
    savings: Vec<Saving>,
}

/// What grouping has saved in waves of about one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Saving {
    /// Sequences, rounded up to a power of two.
    pub wave: u64,
    /// Part of the expert loads of random waves, and its standard deviation by chance alone.
    pub saved: f64,
    pub sd: f64,
    /// How many runs that is the mean of.
    pub runs: u32,
}

/// What a run has shown of grouping: its expert loads beside those of random waves.
#[derive(Debug, Clone, Copy)]
pub struct Shown {
    pub wave: usize,
    pub tokens: u64,
    pub ran: u64,
    pub random: f64,
    pub random_sd: f64,
}

impl Profile {
    /// What is remembered, if anything.
    pub fn load(learned: &Learned, manifest: &Manifest) -> Self {
        let shape = shape(manifest);
        let table = learned
            .read(TABLE, BYTES_MAX.min(2 * shape.table_bytes(u64::MAX) + 4096))
            .and_then(|bytes| Table::from_bytes(&bytes, shape).ok());
        let savings = learned.read(SAVINGS, SAVINGS_BYTES_MAX).map_or_else(Vec::new, |bytes| savings(&bytes));
        Profile { table: table.unwrap_or_else(|| Table::new(shape)), savings }
    }

    /// What runs with waves of about this size have saved.
    pub fn measured(&self, wave: usize) -> Option<Saving> {
        self.savings.iter().find(|saving| saving.wave == bucket(wave)).copied()
    }

    /// The part of loads that grouping waves of this size is expected to save, 0 where it was shown to be noise; and whether that was measured.
    pub fn expected_saving(&self, wave: usize) -> (f64, bool) {
        match self.measured(wave) {
            None => (UNKNOWN, false),
            Some(saving) if saving.saved < DEVIATIONS * saving.sd => (0.0, true),
            Some(saving) => (saving.saved, true),
        }
    }

    /// Remembers what a run has shown, beside what other runs have; a line if it cannot.
    pub fn save(learned: &Learned, manifest: &Manifest, seen: &Table, shown: Option<Shown>) -> Option<String> {
        let merged = |old: Option<&[u8]>| {
            let old = old.and_then(|bytes| Table::from_bytes(bytes, shape(manifest)).ok());
            let mut table = old.unwrap_or_else(|| Table::new(shape(manifest)));
            table.merge(seen);
            table.to_bytes()
        };
        let added = |old: Option<&[u8]>| {
            let mut savings = old.map_or_else(Vec::new, savings);
            if let Some(shown) = shown.filter(|shown| shown.tokens >= TOKENS_MIN) {
                add(&mut savings, shown);
            }
            serde_json::to_vec(&savings).unwrap_or_default()
        };
        let table = if seen.is_empty() { Ok(()) } else { learned.update(TABLE, BYTES_MAX, &merged) };
        table.and_then(|()| learned.update(SAVINGS, SAVINGS_BYTES_MAX, &added)).err()
    }
}

/// Those of a file that make sense; anybody may have written it.
fn savings(bytes: &[u8]) -> Vec<Saving> {
    let savings: Vec<Saving> = serde_json::from_slice(bytes).unwrap_or_default();
    let makes_sense = |s: &Saving| (-1.0..1.0).contains(&s.saved) && s.sd.is_finite() && s.sd >= 0.0 && (1..=RUNS_MAX).contains(&s.runs);
    savings.into_iter().filter(makes_sense).collect()
}

fn bucket(wave: usize) -> u64 {
    (wave as u64).next_power_of_two()
}

fn add(savings: &mut Vec<Saving>, shown: Shown) {
    let (saved, sd) = (1.0 - shown.ran as f64 / shown.random, shown.random_sd / shown.random);
    let wave = bucket(shown.wave);
    let at = savings.iter().position(|saving| saving.wave == wave).unwrap_or_else(|| {
        savings.push(Saving { wave, saved: 0.0, sd: 0.0, runs: 0 });
        savings.len() - 1
    });
    let saving = &mut savings[at];
    saving.runs = saving.runs.saturating_add(1).min(RUNS_MAX);
    let part = 1.0 / f64::from(saving.runs);
    saving.saved += (saved - saving.saved) * part;
    saving.sd += (sd - saving.sd) * part;
}

/// What a model's table is made for.
pub fn shape(manifest: &Manifest) -> TableShape {
    TableShape {
        vocab: manifest.vocab as u32,
        layers: manifest.blocks().count() as u32,
        experts: manifest.blocks().map(|(_, blocks)| blocks.count).max().unwrap_or(0) as u16,
        chosen: manifest.blocks().map(|(_, blocks)| blocks.chosen).max().unwrap_or(0) as u16,
    }
}

#[cfg(test)]
mod tests;
