//! Which experts does a token use?
//!
//! Much of a token's routing is the token's own, so what earlier jobs saw foretells a prompt's before it is run. In full that is
//! 163,840 tokens times 82,432 blocks at the largest size; it must fit 64 MiB, 409 bytes a token. So a table keeps a few layers, evenly
//! spread, rows of tokens that were seen, and for a token and layer only the experts used most (16 in each of 5 layers there). A prompt's
//! rare tokens tell it from others: weighing tokens by 1/(seen + 20) groups better than their plain mean (61 percent of what perfect
//! knowledge saves against 53).

mod bytes;

use std::collections::BTreeMap;

use super::footprint::Footprint;

/// Most bytes of a table, in memory and in a file.
const BYTES_MAX: usize = 64 << 20;
/// Bytes of a row beside its counters: its token, how often it was seen, and its place in the map.
const ROW_BYTES: usize = 56;
/// Layers that are kept before a token and layer gets more than one counter a chosen expert.
const LAYERS_MIN: usize = 6;
/// Counters a chosen expert at most; more tell nothing.
const SLOTS_A_CHOICE: usize = 8;
/// How often the mean of all tokens is taken to have been seen at each token.
const PRIOR: f32 = 2.0;
/// A token seen so often weighs half of one never seen.
const RARE: f32 = 20.0;

/// What a table is made for; tables of one shape can be merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    /// Tokens of the vocabulary.
    pub vocab: u32,
    /// Layers that have experts.
    pub layers: u32,
    /// Experts of a layer.
    pub experts: u16,
    /// Experts that a token uses in a layer.
    pub chosen: u16,
}

/// What was counted, of which all else follows. Counters are one `u32` each, expert and count, so that a row is one piece of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    shape: TableShape,
    plan: Layout,
    /// Tokens counted, repeated ones too.
    seen: u64,
    /// [kept layers, experts]: how often all tokens used each.
    uses: Vec<u64>,
    rows: BTreeMap<u32, Row>,
}

/// What a shape leaves room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    layers: usize,
    slots: usize,
    rows: usize,
}

/// What one token used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    seen: u16,
    /// [kept layers, slots].
    slots: Box<[Slot]>,
}

/// An expert and how often it was used; a count of 0 is a free slot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Slot {
    expert: u16,
    count: u16,
}

impl Layout {
    fn of(shape: &TableShape) -> Self {
        let (layers, experts, chosen) =
            (shape.layers as usize, usize::from(shape.experts), usize::from(shape.chosen).min(shape.experts.into()));
        if layers == 0 || chosen == 0 || shape.vocab == 0 {
            return Layout { layers: 0, slots: 0, rows: 0 };
        }
        let room = (BYTES_MAX / shape.vocab as usize).saturating_sub(ROW_BYTES) / size_of::<Slot>();
        let slots = (room / LAYERS_MIN).clamp(chosen, experts.min(SLOTS_A_CHOICE * chosen).max(chosen));
        let kept = (room / slots).clamp(1, layers);
        let head = bytes::FRAME_BYTES + kept * experts * size_of::<u64>();
        let rows = BYTES_MAX.saturating_sub(head) / (ROW_BYTES + kept * slots * size_of::<Slot>());
        Layout { layers: kept, slots, rows: rows.min(shape.vocab as usize) }
    }
}

impl TableShape {
    /// Most bytes of a table that has seen so many tokens.
    pub fn table_bytes(self, tokens: u64) -> u64 {
        let plan = Layout::of(&self);
        let row = ROW_BYTES + plan.layers * plan.slots * size_of::<Slot>();
        let head = plan.layers * usize::from(self.experts) * size_of::<u64>();
        head as u64 + tokens.min(plan.rows as u64) * row as u64
    }
}

impl Table {
    /// A table that has seen nothing.
    pub fn new(shape: TableShape) -> Self {
        let plan = Layout::of(&shape);
        Table { shape, plan, seen: 0, uses: vec![0; plan.layers * usize::from(shape.experts)], rows: BTreeMap::new() }
    }

    /// What it is made for.
    pub fn shape(&self) -> TableShape {
        self.shape
    }

    /// Whether nothing was seen.
    pub fn is_empty(&self) -> bool {
        self.seen == 0
    }

    /// The layers, counted over those that have experts, of which something is kept: routing of others need not be told.
    pub fn layers(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        (0..self.plan.layers).map(|kept| self.layer(kept))
    }

    /// The token `id` used `experts` in `layer`, counted over the layers that have experts. Layers of which nothing is kept, and what is out of
    /// range, are passed over. A token's layers are told all or none: it is counted at the first.
    pub fn learn(&mut self, id: u32, layer: u32, experts: &[u16]) {
        let Some(kept) = (0..self.plan.layers).find(|&kept| self.layer(kept) == layer) else { return };
        let known = experts.iter().copied().filter(|&expert| expert < self.shape.experts);
        self.seen = self.seen.saturating_add(u64::from(kept == 0));
        for expert in known.clone() {
            let uses = &mut self.uses[kept * usize::from(self.shape.experts) + usize::from(expert)];
            *uses = uses.saturating_add(1);
        }
        if id >= self.shape.vocab || (self.rows.len() >= self.plan.rows && !self.rows.contains_key(&id)) {
            return;
        }
        let cells = self.plan.layers * self.plan.slots;
        let row = self.rows.entry(id).or_insert_with(|| Row { seen: 0, slots: vec![Slot::default(); cells].into() });
        if kept == 0 {
            if row.seen == u16::MAX {
                row.halve();
            }
            row.seen += 1;
        }
        let cell = &mut row.slots[kept * self.plan.slots..(kept + 1) * self.plan.slots];
        known.for_each(|expert| count(cell, expert));
    }

    /// Expected shares of a prompt's tokens, in the kept layers' blocks, cut to the `most` largest; empty where none of its tokens was ever seen.
    pub fn predict(&self, ids: &[u32], most: usize) -> Footprint {
        let experts = usize::from(self.shape.experts);
        let mut shares = vec![0.0f32; self.uses.len()];
        let (mut weights, mut common) = (0.0f32, 0.0f32);
        for row in ids.iter().filter_map(|id| self.rows.get(id)).filter(|row| row.seen > 0) {
            let seen = f32::from(row.seen);
            let weight = 1.0 / (seen + RARE);
            weights += weight;
            common += weight * PRIOR / (seen + PRIOR);
            for (at, slot) in row.slots.iter().enumerate() {
                // A free slot adds nothing to whichever expert it names.
                shares[at / self.plan.slots * experts + usize::from(slot.expert)] +=
                    weight * f32::from(slot.count.min(row.seen)) / (seen + PRIOR);
            }
        }
        if weights == 0.0 {
            return Footprint::default();
        }
        let block = |at: usize| (self.layer(at / experts) as usize * experts + at % experts) as u32;
        let mean = |at: usize| self.uses[at] as f32 / self.seen.max(1) as f32;
        Footprint::of(shares.iter().enumerate().map(|(at, share)| (block(at), (share + common * mean(at)) / weights)), most)
    }

    /// Adds what another table of the same shape has seen.
    ///
    /// # Panics
    /// When the shapes differ, which [`Table::from_bytes`] rules out.
    pub fn merge(&mut self, other: &Table) {
        assert_eq!(self.shape, other.shape, "tables of two models");
        self.seen = self.seen.saturating_add(other.seen);
        for (mine, theirs) in self.uses.iter_mut().zip(&other.uses) {
            *mine = mine.saturating_add(*theirs);
        }
        for (&id, theirs) in &other.rows {
            if let Some(mine) = self.rows.get_mut(&id) {
                mine.merge(theirs, self.plan.slots);
            } else if self.rows.len() < self.plan.rows {
                self.rows.insert(id, theirs.clone());
            }
        }
    }

    /// What the table is: part of a plan's facts.
    pub fn hash(&self) -> blake3::Hash {
        blake3::hash(&self.to_bytes())
    }

    fn layer(&self, kept: usize) -> u32 {
        (kept * self.shape.layers as usize / self.plan.layers) as u32
    }
}

impl Row {
    fn halve(&mut self) {
        self.seen /= 2;
        self.slots.iter_mut().for_each(|slot| slot.count /= 2);
    }

    fn merge(&mut self, other: &Row, slots: usize) {
        let whole = |n: u32| u32::from(n > u16::MAX.into());
        // Both are halved where the sum is too large, as one row would have been.
        let seen = u32::from(self.seen) + u32::from(other.seen);
        let shift = whole(seen);
        self.seen = (seen >> shift) as u16;
        for (mine, theirs) in self.slots.chunks_mut(slots).zip(other.slots.chunks(slots)) {
            let mut counts: BTreeMap<u16, u32> = BTreeMap::new();
            for slot in mine.iter().chain(theirs).filter(|slot| slot.count > 0) {
                *counts.entry(slot.expert).or_default() += u32::from(slot.count);
            }
            let mut counts: Vec<_> = counts.into_iter().map(|(expert, count)| (count >> shift, expert)).collect();
            counts.sort_by_key(|&(count, expert)| (std::cmp::Reverse(count), expert));
            counts.resize(slots, (0, 0));
            for (slot, (count, expert)) in mine.iter_mut().zip(counts) {
                *slot = Slot { expert, count: count.min(u16::MAX.into()) as u16 };
            }
        }
    }
}

/// Counts a use of `expert`. Where all slots are taken, the smallest count is worn down by one, and its place is the newcomer's when it is
/// gone: so what is used often stays, and what was used once does not.
fn count(cell: &mut [Slot], expert: u16) {
    if let Some(slot) = cell.iter_mut().find(|slot| slot.count > 0 && slot.expert == expert) {
        slot.count = slot.count.saturating_add(1);
    } else if let Some(slot) = cell.iter_mut().min_by_key(|slot| slot.count) {
        match slot.count {
            0 | 1 => *slot = Slot { expert, count: 1 },
            _ => slot.count -= 1,
        }
    }
}

#[cfg(test)]
mod tests;
