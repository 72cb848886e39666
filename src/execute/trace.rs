//! Who chose whom, row by row: what the plan groups requests by, and the proof of what that saved.
//!
//! A row of the largest model makes 1,472 choices, and a prompt of 300 tokens chooses nearly all of 82,432 blocks. So a sweep's choices are held
//! as long as the sweep, in two bytes each, and of a sequence there stay sorted counts of the blocks that it uses most.

use std::mem::take;

use crate::model::Routing;
use crate::model::manifest::Manifest;
use crate::plan::{FOOTPRINT_ENTRIES, Footprint, LAST_TOKENS, PromptUse};
use crate::routes::{NO_EXPERT, Widths};

/// Blocks that are counted of a sequence at most; beyond that those that it used least are forgotten.
const COUNTED_MAX: usize = 4 * FOOTPRINT_ENTRIES;

/// Takes what rows chose, sweep by sweep; to `()` nobody listens.
pub trait Recorder {
    /// Whether prompts are recorded too.
    fn wants_prompts(&self) -> bool;

    /// Consecutive positions of a request, from `first_position` on, all of its prompt or all of its answer: the experts that they chose, ids
    /// [positions, layers that route, chosen], [`NO_EXPERT`] where unknown; `token` is that at `first_position`. A recorder that fails says so itself: the job goes on.
    fn routed(&mut self, row: u64, first_position: u32, token: u32, of_answer: bool, ids: &[u16]);
}

impl Recorder for () {
    fn wants_prompts(&self) -> bool {
        false
    }

    fn routed(&mut self, _: u64, _: u32, _: u32, _: bool, _: &[u16]) {}
}

/// The experts that the rows of a sweep chose.
#[derive(Clone, Default)]
pub struct Trace {
    /// Ids of a row: layers that route times `chosen`.
    width: usize,
    /// Experts that a row chooses in a layer, at most.
    chosen: usize,
    /// A layer each: layers before it that route.
    place: Vec<usize>,
    /// The rows that are left, ascending; None as long as all are.
    left: Option<Vec<usize>>,
    /// A share of the sweep each: [rows, layers that route, chosen].
    shares: Vec<Vec<u16>>,
}

impl Trace {
    /// Of so many rows, whose choices are still unknown.
    pub fn new(manifest: &Manifest, rows: usize) -> Self {
        let routes = manifest.layers.iter().map(|layer| usize::from(layer.blocks.is_some()));
        let chosen = chosen_max(manifest);
        let width = routes.clone().sum::<usize>() * chosen;
        let place = routes.scan(0, |sum, n| Some(std::mem::replace(sum, *sum + n))).collect();
        Trace { width, chosen, place, left: None, shares: vec![vec![NO_EXPERT; rows * width]] }
    }

    /// From here on only the rows `left` are routed.
    pub fn narrow(&mut self, left: Vec<usize>) {
        self.left = Some(left);
    }

    /// Notes whom the rows chose in a layer.
    pub fn note(&mut self, layer: usize, routing: &Routing) {
        let at = self.place[layer] * self.chosen;
        for (i, ids) in routing.ids.chunks_exact(routing.chosen).enumerate() {
            let row = self.left.as_ref().map_or(i, |left| left[i]);
            for (to, &id) in self.shares[0][row * self.width + at..].iter_mut().zip(ids) {
                *to = id as u16; // a config has at most NO_EXPERT of them
            }
        }
    }

    /// Puts another share's rows behind these.
    pub fn append(&mut self, mut behind: Trace) {
        self.shares.append(&mut behind.shares);
    }

    /// The ids of each span, spans having so many rows each; none lies in two shares.
    pub fn spans(&self, lengths: impl Iterator<Item = usize>) -> impl Iterator<Item = &[u16]> {
        let mut shares = self.shares.iter();
        let mut rest: &[u16] = &[];
        lengths.map(move |rows| {
            if rest.is_empty() {
                rest = shares.next().map_or(&[], |share| share);
            }
            let (span, behind) = rest.split_at(rows * self.width);
            rest = behind;
            span
        })
    }
}

/// What a sequence's rows have chosen so far.
#[derive(Default)]
pub struct Uses {
    prompt: Counts,
    last: Counts,
    answer: Counts,
}

/// How many rows chose which block.
#[derive(Default)]
struct Counts {
    /// A layer that routes each: rows whose choice in it is known.
    rows: Vec<u32>,
    /// Blocks, ascending, and the rows that chose each.
    blocks: Box<[(u32, u32)]>,
}

/// Counts choices, in memory that serves all sequences.
pub struct Counter {
    /// A layer that routes each: the number of its first block, and its experts.
    layers: Vec<(u32, usize)>,
    chosen: usize,
    /// An expert of the layer at hand each.
    of_layer: Vec<u32>,
    blocks: Vec<(u32, u32)>,
}

impl Counter {
    /// For rows of this model.
    pub fn new(manifest: &Manifest) -> Self {
        let layers = manifest.blocks().scan(0, |sum, (_, blocks)| Some((std::mem::replace(sum, *sum + blocks.count as u32), blocks.count)));
        let layers: Vec<(u32, usize)> = layers.collect();
        let experts = layers.iter().map(|layer| layer.1).max().unwrap_or(0);
        Counter { layers, chosen: chosen_max(manifest), of_layer: vec![0; experts], blocks: Vec::new() }
    }

    /// Ids of a row.
    fn width(&self) -> usize {
        self.layers.len() * self.chosen
    }

    /// Adds the rows of a span that begins at position `first`, of a sequence whose prompt has `prompt_len` tokens.
    pub fn add(&mut self, uses: &mut Uses, prompt_len: usize, first: usize, ids: &[u16]) {
        let end = first + ids.len() / self.width().max(1);
        let at = |position: usize| (position.clamp(first, end) - first) * self.width();
        let (prompt, last) = (at(prompt_len), at(prompt_len.saturating_sub(LAST_TOKENS)));
        self.count(&mut uses.prompt, &ids[..prompt]);
        self.count(&mut uses.last, &ids[last..prompt]);
        self.count(&mut uses.answer, &ids[prompt..]);
    }

    /// Hands the rows of a span to a recorder.
    pub fn record(
        &self,
        recorder: &mut dyn Recorder,
        row: u64,
        prompt_len: usize,
        first: usize,
        ids: &[u16],
        token: impl Fn(usize) -> u32,
    ) {
        let of_prompt = (prompt_len.saturating_sub(first) * self.width()).min(ids.len());
        let (prompt, answer) = ids.split_at(of_prompt);
        if !prompt.is_empty() && recorder.wants_prompts() {
            recorder.routed(row, first as u32, token(first), false, prompt);
        }
        if !answer.is_empty() {
            let first = first.max(prompt_len);
            recorder.routed(row, first as u32, token(first), true, answer);
        }
    }

    /// What a prompt used, once all of it has been added and the next token is known.
    pub fn prompt(&self, uses: &mut Uses, next: Option<u32>) -> PromptUse {
        PromptUse { all: self.footprint(&take(&mut uses.prompt)), last: self.footprint(&take(&mut uses.last)), next }
    }

    /// What an answer used, if a row of it was ever added.
    pub fn answer(&self, uses: &mut Uses) -> Option<Footprint> {
        let answer = take(&mut uses.answer);
        (!answer.blocks.is_empty()).then(|| self.footprint(&answer))
    }

    fn count(&mut self, counts: &mut Counts, ids: &[u16]) {
        if ids.is_empty() {
            return;
        }
        counts.rows.resize(self.layers.len(), 0);
        let mut before = counts.blocks.iter().copied().peekable();
        self.blocks.clear();
        for (at, &(first, experts)) in self.layers.iter().enumerate() {
            let of_layer = &mut self.of_layer[..experts];
            of_layer.fill(0);
            while let Some((block, rows)) = before.next_if(|(block, _)| *block < first + experts as u32) {
                of_layer[(block - first) as usize] = rows;
            }
            for row in ids.chunks_exact(self.layers.len() * self.chosen) {
                let chosen = &row[at * self.chosen..][..self.chosen];
                counts.rows[at] += u32::from(chosen[0] != NO_EXPERT);
                chosen.iter().filter(|id| **id != NO_EXPERT).for_each(|id| of_layer[usize::from(*id)] += 1);
            }
            self.blocks.extend((first..).zip(of_layer.iter().copied()).filter(|(_, rows)| *rows > 0));
        }
        if self.blocks.len() > COUNTED_MAX {
            // To less than that, so that it is not done again for every row.
            self.blocks.select_nth_unstable_by_key(COUNTED_MAX / 2, |&(block, rows)| (std::cmp::Reverse(rows), block));
            self.blocks.truncate(COUNTED_MAX / 2);
            self.blocks.sort_unstable();
        }
        counts.blocks = self.blocks.as_slice().into();
    }

    /// Shares of the rows whose choice is known.
    fn footprint(&self, counts: &Counts) -> Footprint {
        let share = |&(block, rows): &(u32, u32)| {
            let layer = self.layers.partition_point(|&(first, _)| first <= block) - 1;
            (block, rows as f32 / counts.rows[layer] as f32)
        };
        Footprint::of(counts.blocks.iter().map(share), FOOTPRINT_ENTRIES)
    }
}

/// The widths of what a model's rows choose.
pub fn routing_widths(manifest: &Manifest) -> Widths {
    let experts = manifest.blocks().map(|(_, blocks)| blocks.count as u32).max().unwrap_or(0);
    Widths { layers: manifest.blocks().count() as u32, experts, chosen: chosen_max(manifest) as u32 }
}

/// Bytes in which a row's choices are noted.
pub fn row_trace_bytes(manifest: &Manifest) -> u64 {
    (routing_widths(manifest).row() * size_of::<u16>()) as u64
}

/// Most bytes that is known of a sequence's choices: the counts of its prompt and of the prompt's end, and the footprints made of them.
pub fn uses_bytes(manifest: &Manifest) -> u64 {
    let blocks: usize = manifest.blocks().map(|(_, blocks)| blocks.count).sum();
    let (counts, footprint) = (blocks.min(COUNTED_MAX) * size_of::<(u32, u32)>(), blocks.min(FOOTPRINT_ENTRIES) * size_of::<u32>());
    2 * (counts + footprint) as u64
}

/// Experts that a row chooses in a layer, at most.
fn chosen_max(manifest: &Manifest) -> usize {
    manifest.blocks().map(|(_, blocks)| blocks.chosen).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_blocks_those_used_least_are_forgotten() {
        let experts = 60_000;
        let mut counter = Counter { layers: vec![(0, experts)], chosen: 4, of_layer: vec![0; experts], blocks: Vec::new() };
        let mut uses = Uses::default();
        // Expert 0 is chosen by every row, the others by one.
        for row in 0..15_000u16 {
            counter.add(&mut uses, 0, usize::from(row), &[3 * row + 1, 0, 3 * row + 2, 3 * row + 3]);
            assert!(uses.answer.blocks.len() <= COUNTED_MAX);
        }
        let answer = counter.answer(&mut uses).expect("it has rows");
        assert_eq!(answer.iter().collect::<Vec<_>>(), [(0, 1.0)], "one row of so many rounds to nothing");
        assert!(counter.answer(&mut uses).is_none(), "it is told once");
    }
}
