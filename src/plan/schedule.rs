//! The sequence of sweeps: prompts go through in bulk, wait, and decode in waves.
//!
//! A prompt needs nearly every expert, so that one prompt read into a decoding wave costs a whole sweep's bytes: prompts are read when many
//! can be, in the grouping's order, and the answers at hand ride along. A sequence whose prompt is through waits until the wave has a place
//! for it; where its states wait is said in each span ([`super::Home`]).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use super::overlap::{Foresight, Overlap};
use super::{Allotment, Home, Outcome, Span, StateBytes, States, Sweep};
use crate::request::RowFacts;

/// In which order requests are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// As the rows come.
    Input,
    /// Longest first: a wave's sequences end together, and no long row is left for the end.
    Length,
    /// Shuffled by a fixed seed.
    Random,
    /// As the rows come, until prompts have been read; then those together that are expected to use the same experts.
    Overlap,
}

impl Grouping {
    /// The word by which a job names it.
    pub fn name(self) -> &'static str {
        match self {
            Grouping::Input => "input",
            Grouping::Length => "length",
            Grouping::Random => "random",
            Grouping::Overlap => "overlap",
        }
    }
}

/// Those that wait are put in order again when one of so many is new...
const NEW_PART: usize = 4;
/// ...and one so often that nobody waits for ever.
const ORDERED_MOST: u8 = 3;

/// A sequence in flight.
#[derive(Debug, Clone)]
struct Active {
    slot: usize,
    row: u32,
    /// Its place in the order in which those that wait decode.
    rank: u64,
    /// How often it has been put in order while it waited.
    ordered: u8,
    /// Positions that have been through the model.
    done: u32,
    /// What its states take in memory, wherever they lie.
    state_bytes: u64,
    home: Home,
}

/// Hands out sweeps until every request has ended.
#[derive(Debug, Clone)]
pub struct Schedule {
    rows: Vec<RowFacts>,
    grouping: Grouping,
    order: Vec<u32>,
    next: usize,
    /// Whose prompts are being read, in order of admission.
    reading: Vec<Active>,
    /// Whose prompts are through, by rank: those that can decode as they are, and those whose states are to come into memory first.
    waiting: BTreeMap<u64, Active>,
    parked: BTreeMap<u64, Active>,
    next_rank: u64,
    /// Who decodes, in order of admission.
    wave: Vec<Active>,
    /// Prompts are read until no more can be admitted.
    in_bulk: bool,
    /// As many have been read as there is room for, since those that wait were put in order; and how many those are.
    was_read: bool,
    unordered: usize,
    slots: Slots,
    /// Who shares experts with whom, where that decides.
    overlap: Option<Overlap>,
    allotment: Allotment,
    state: StateBytes,
    /// Of states in memory: bytes, sequences.
    state_used: u64,
    in_memory: usize,
}

/// Places of sequences: below the pool's size for those that may wait, behind it for those that end with their prompt.
#[derive(Debug, Clone)]
struct Slots {
    pool: BinaryHeap<Reverse<usize>>,
    beyond: BinaryHeap<Reverse<usize>>,
    made: usize,
    most: usize,
}

impl Slots {
    fn new(most: usize) -> Self {
        Slots { pool: (0..most).map(Reverse).collect(), beyond: BinaryHeap::new(), made: most, most }
    }

    fn beyond(&mut self) -> usize {
        self.beyond.pop().map(|slot| slot.0).unwrap_or_else(|| {
            self.made += 1;
            self.made - 1
        })
    }

    fn free(&mut self, slot: usize) {
        if slot < self.most { self.pool.push(Reverse(slot)) } else { self.beyond.push(Reverse(slot)) }
    }
}

impl Schedule {
    /// A schedule of all rows that need computing; `state` is what a sequence of the model leaves behind.
    pub fn new(rows: Vec<RowFacts>, grouping: Grouping, allotment: Allotment, state: StateBytes) -> Self {
        let mut order: Vec<u32> = (0..rows.len() as u32).filter(|&i| !rows[i as usize].is_idle()).collect();
        match grouping {
            Grouping::Input | Grouping::Overlap => {}
            Grouping::Length => order.sort_by_key(|&i| std::cmp::Reverse(rows[i as usize].positions_max())),
            Grouping::Random => order.sort_by_cached_key(|&i| mix(u64::from(i))),
        }
        Schedule {
            rows,
            grouping,
            order,
            next: 0,
            reading: Vec::new(),
            waiting: BTreeMap::new(),
            parked: BTreeMap::new(),
            next_rank: 0,
            wave: Vec::new(),
            in_bulk: false,
            was_read: false,
            unordered: 0,
            slots: Slots::new(allotment.pool),
            overlap: None,
            allotment,
            state,
            state_used: 0,
            in_memory: 0,
        }
    }

    /// Lets those decode together that are expected to share experts.
    #[must_use]
    pub fn by_overlap(mut self, foresight: Foresight) -> Self {
        self.overlap = Some(Overlap::new(foresight, self.allotment.wave));
        self
    }

    /// Who shares experts with whom, where that decides.
    pub fn overlap(&self) -> Option<&Overlap> {
        self.overlap.as_ref()
    }

    /// The first `requests` of its requests from the start again, admitted in its own order or in one that `seed` draws.
    pub fn afresh(&self, requests: usize, seed: Option<u64>) -> Schedule {
        let mut fresh = Schedule::new(self.rows[..requests].to_vec(), self.grouping, self.allotment.clone(), self.state);
        if let Some(seed) = seed {
            fresh.grouping = Grouping::Random;
            fresh.order.sort_by_cached_key(|&i| mix(u64::from(i) ^ mix(seed)));
        }
        fresh
    }

    /// How memory is shared out.
    pub fn allotment(&self) -> &Allotment {
        &self.allotment
    }

    /// In which order requests are admitted.
    pub fn grouping(&self) -> Grouping {
        self.grouping
    }

    /// What a sequence leaves behind.
    pub fn state(&self) -> StateBytes {
        self.state
    }

    /// The facts of all rows.
    pub fn rows(&self) -> &[RowFacts] {
        &self.rows
    }

    #[cfg(test)]
    pub(super) fn rows_mut(&mut self) -> &mut [RowFacts] {
        &mut self.rows
    }

    #[cfg(test)]
    pub(super) fn keep(&mut self, panels: u64, blocks: u64) {
        (self.allotment.kept_panels, self.allotment.kept_blocks) = (panels, blocks);
    }

    /// The next sweep, given what became of the last one; `None` when every request has ended.
    pub fn next(&mut self, last: &Outcome) -> Option<Sweep> {
        self.hear(last);
        self.release(&last.ended);
        self.sort_out_read();
        self.reorder();
        let mut spans = Vec::with_capacity(self.wave.len());
        spans.extend(self.wave.iter_mut().map(|active| advance(active, 1)));
        self.refill(&mut spans);
        self.read(&mut spans);
        spans.sort_unstable_by_key(|span| span.slot);
        (!spans.is_empty()).then_some(Sweep { spans })
    }

    /// Passes over the sweeps that would be like the last one, a token of every answer, until one of them may end; returns how many.
    pub(super) fn skip_alike(&mut self) -> u64 {
        let rows = &self.rows;
        let answering = |a: &Active| a.done > rows[a.row as usize].prompt_tokens;
        if !self.reading.is_empty() || self.begins_to_read() || !self.wave.iter().all(answering) {
            return 0;
        }
        let left = self.wave.iter().map(|a| rows[a.row as usize].positions_max().saturating_sub(u64::from(a.done))).min();
        let left = left.unwrap_or(0);
        for active in &mut self.wave {
            active.done += left as u32;
        }
        left
    }

    /// Passes on what the sweep has shown.
    fn hear(&mut self, last: &Outcome) {
        let Some(overlap) = &mut self.overlap else { return };
        let (rows, reading, wave) = (&self.rows, &self.reading, &self.wave);
        let of: HashMap<usize, (u32, u32)> = if last.read.is_empty() && last.answered.is_empty() {
            HashMap::new()
        } else {
            let tokens = |active: &Active| active.done.saturating_sub(rows[active.row as usize].prompt_tokens);
            reading.iter().chain(wave).map(|active| (active.slot, (active.row, tokens(active)))).collect()
        };
        overlap.hear(last, |slot| of.get(&slot).copied());
        for active in wave.iter().filter(|active| last.ended.binary_search(&active.slot).is_ok()) {
            overlap.leaves(active.row);
        }
    }

    /// Puts those that wait in order when all prompts that there is room for have been read, and when more has been learned.
    fn reorder(&mut self) {
        let Some(overlap) = &mut self.overlap else { return };
        let waiting = self.waiting.len() + self.parked.len();
        let was_read = self.was_read && self.unordered >= self.allotment.wave.max(waiting / NEW_PART);
        if waiting <= 1 || !(was_read || overlap.is_stale()) {
            return;
        }
        (self.was_read, self.unordered) = (false, 0);
        let all: Vec<Active> =
            std::mem::take(&mut self.waiting).into_values().chain(std::mem::take(&mut self.parked).into_values()).collect();
        // Who has been put in order often enough keeps its place before all others.
        let (old, new): (Vec<&Active>, Vec<&Active>) = all.iter().partition(|active| active.ordered >= ORDERED_MOST);
        let rows: Vec<u32> = new.iter().map(|active| active.row).collect();
        let tokens: Vec<u32> = rows.iter().map(|&row| self.rows[row as usize].max_tokens).collect();
        let order: Vec<u32> = old.iter().map(|active| active.row).chain(overlap.order(&rows, &tokens, self.allotment.wave)).collect();
        let mut by_row: HashMap<u32, Active> = all.into_iter().map(|active| (active.row, active)).collect();
        let first = self.next_rank;
        self.next_rank += order.len() as u64;
        for (rank, row) in (first..).zip(order) {
            let active = by_row.remove(&row).expect("an order holds each row once");
            self.wait(Active { rank, ordered: active.ordered.saturating_add(1), ..active });
        }
    }

    fn wait(&mut self, active: Active) {
        let comes_in = active.home == Home::Scratch && self.allotment.states == States::Parked;
        let waiting = if comes_in { &mut self.parked } else { &mut self.waiting };
        waiting.insert(active.rank, active);
    }

    fn release(&mut self, ended: &[usize]) {
        if ended.is_empty() {
            return;
        }
        let (mut bytes, mut sequences, slots) = (0, 0, &mut self.slots);
        let mut stays = |active: &Active| {
            let stays = ended.binary_search(&active.slot).is_err();
            if !stays {
                slots.free(active.slot);
                if active.home == Home::Memory {
                    bytes += active.state_bytes;
                    sequences += 1;
                }
            }
            stays
        };
        self.wave.retain(&mut stays);
        self.reading.retain(&mut stays);
        self.state_used -= bytes;
        self.in_memory -= sequences;
    }

    /// Sequences whose prompts are through wait for their turn.
    fn sort_out_read(&mut self) {
        let rows = &self.rows;
        let through = |active: &mut Active| active.done >= rows[active.row as usize].prompt_tokens;
        let through: Vec<Active> = self.reading.extract_if(.., through).collect();
        self.unordered += through.len();
        through.into_iter().for_each(|active| self.wait(active));
    }

    /// Admits who waits to the wave.
    fn refill(&mut self, spans: &mut Vec<Span>) {
        let free = self.allotment.wave.saturating_sub(self.wave.len());
        if free < self.allotment.cohort.min(self.allotment.wave) {
            return;
        }
        while self.wave.len() < self.allotment.wave {
            let Some(rank) = self.next_to_decode() else { return };
            let parked = self.parked.remove(&rank);
            let comes_in = parked.is_some();
            let mut active = parked.or_else(|| self.waiting.remove(&rank)).expect("it waits");
            let from = active.home;
            if let Some(overlap) = &mut self.overlap {
                overlap.joins(active.row);
            }
            if comes_in {
                self.take_memory(active.state_bytes);
                active.home = Home::Memory;
            }
            spans.push(Span { from, ..advance(&mut active, 1) });
            self.wave.push(active);
        }
    }

    /// Who of those that wait decodes next, by rank; nobody if those that wait have no memory to come into.
    fn next_to_decode(&mut self) -> Option<u64> {
        let room = if self.in_memory < self.allotment.wave { self.allotment.state_bytes - self.state_used } else { 0 };
        let here = self.waiting.values();
        match &mut self.overlap {
            None => {
                let parked = self.parked.values().take(1).filter(|active| active.state_bytes <= room);
                here.take(1).chain(parked).map(|active| active.rank).min()
            }
            Some(overlap) => {
                let parked = self.parked.values().filter(|active| active.state_bytes <= room);
                overlap.pick(here.chain(parked).map(|active| (active.rank, active.row)))
            }
        }
    }

    /// Reads prompts.
    fn read(&mut self, spans: &mut Vec<Span>) {
        let mut room = self.allotment.prefill_rows as u32;
        for active in &mut self.reading {
            let count = (self.rows[active.row as usize].prompt_tokens - active.done).min(room);
            if count > 0 {
                room -= count;
                spans.push(advance(active, count));
            }
        }
        self.in_bulk = self.in_bulk || self.begins_to_read();
        while self.in_bulk && room > 0 {
            let Some(mut active) = self.admit(room) else { return };
            let count = self.rows[active.row as usize].prompt_tokens.min(room);
            room -= count;
            spans.push(Span { from: Home::Nowhere, ..advance(&mut active, count) });
            self.reading.push(active);
        }
    }

    /// Whether the time has come to read prompts: there is room for many, or nothing else to do.
    fn begins_to_read(&self) -> bool {
        let left = self.order.len() - self.next;
        let many = self.allotment.refill.min(left);
        left > 0 && (self.in_bulk || (self.wave.is_empty() && self.waiting.is_empty() && self.parked.is_empty()) || self.admissible(many))
    }

    /// Whether so many of the next requests could be admitted.
    fn admissible(&self, count: usize) -> bool {
        let next = &self.order[self.next..self.next + count];
        let (mut slots, mut in_memory, mut used) = (self.slots.pool.len(), self.in_memory, self.state_used);
        next.iter().all(|&row| {
            if self.ends_with_its_prompt(row) {
                return true;
            }
            let bytes = self.state_bytes(row);
            let home = self.home_of(bytes, in_memory, used);
            if home == Some(Home::Memory) {
                in_memory += 1;
                used += bytes;
            }
            slots = slots.wrapping_sub(1);
            slots != usize::MAX && home.is_some()
        })
    }

    /// Where the next sequence's states would lie, beside so many in memory; none if there is no room.
    fn home_of(&self, bytes: u64, in_memory: usize, used: u64) -> Option<Home> {
        let fits = used + bytes <= self.allotment.state_bytes;
        match self.allotment.states {
            States::Memory => fits.then_some(Home::Memory),
            States::Parked if fits && in_memory < self.allotment.wave => Some(Home::Memory),
            States::Parked | States::Passing => Some(Home::Scratch),
        }
    }

    fn take_memory(&mut self, bytes: u64) {
        self.state_used += bytes;
        self.in_memory += 1;
    }

    fn state_bytes(&self, row: u32) -> u64 {
        self.state.of(self.rows[row as usize].positions_max())
    }

    /// Whether nothing follows a row's prompt, so that it leaves no states behind: it goes through in one sweep.
    fn ends_with_its_prompt(&self, row: u32) -> bool {
        let facts = &self.rows[row as usize];
        facts.max_tokens <= 1 && facts.prompt_tokens as usize <= self.allotment.prefill_rows
    }

    fn end_bulk(&mut self) {
        self.was_read |= self.in_bulk;
        self.in_bulk = false;
    }

    /// The next request in order, if there is room for it beside `room` rows.
    fn admit(&mut self, room: u32) -> Option<Active> {
        let Some(&row) = self.order.get(self.next) else {
            self.end_bulk();
            return None;
        };
        let (slot, home, state_bytes) = if self.ends_with_its_prompt(row) {
            if self.rows[row as usize].prompt_tokens > room {
                return None; // in the next sweep
            }
            (self.slots.beyond(), Home::Nowhere, 0)
        } else {
            let bytes = self.state_bytes(row);
            let home = self.home_of(bytes, self.in_memory, self.state_used).filter(|_| !self.slots.pool.is_empty());
            let Some(home) = home else {
                self.end_bulk();
                return None;
            };
            if home == Home::Memory {
                self.take_memory(bytes);
            }
            (self.slots.pool.pop().expect("looked at just now").0, home, bytes)
        };
        let rank = self.next_rank;
        self.next_rank += 1;
        self.next += 1;
        Some(Active { slot, row, rank, ordered: 0, done: 0, state_bytes, home })
    }
}

fn advance(active: &mut Active, count: u32) -> Span {
    let positions = active.done..active.done + count;
    active.done += count;
    Span { slot: active.slot, row: u64::from(active.row), positions, from: active.home, home: active.home }
}

/// A fixed permutation-like hash (the finaliser of SplitMix64, Steele et al. 2014).
pub(super) fn mix(i: u64) -> u64 {
    let mut z = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests;
