//! The ledger's arithmetic: what must fit, what can shrink, and what is done with the rest.
//!
//! Order of claims (a token's bytes fall most by the first): one sequence and a few rows so that the job can run at all, then
//! sequence state up to the widest useful wave, then rows, then trunk kept in memory, then experts kept in memory.

use std::ops::Range;

use crate::memory::Ledger;
use crate::request::RowFacts;
use crate::units::{show_bytes, show_count};

/// Numbers of a model, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Every panel in the manifest's order, embedding and head included.
    pub panels: Vec<u64>,
    /// Of these panels, the embedding's: read row by row, unless they are kept.
    pub embedding: Range<usize>,
    /// A row of the embedding.
    pub embedding_row_bytes: u64,
    /// A layer with routed experts each: experts, experts a row, bytes of a block.
    pub blocks: Vec<(u64, u64, u64)>,
    /// A sequence's states.
    pub state: StateBytes,
    /// A row between layers.
    pub stream_row_bytes: u64,
    /// A row inside a layer, at most, experts left out.
    pub layer_row_bytes: u64,
    /// A row that an expert computes.
    pub expert_row_bytes: u64,
    /// A row at the head, at most.
    pub head_row_bytes: u64,
    /// One row of logits.
    pub logits_bytes: u64,
    /// The checkpoint's index.
    pub index_bytes: u64,
    /// The tokenizer.
    pub tokenizer_bytes: u64,
}

impl ModelFacts {
    /// Bytes of the first `count` blocks, layer by layer.
    pub(super) fn block_bytes(&self, mut count: u64) -> u64 {
        let mut bytes = 0;
        for &(n, _, size) in &self.blocks {
            let here = n.min(count);
            bytes += here * size;
            count -= here;
        }
        bytes
    }
}

/// What a sequence's states take, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StateBytes {
    /// Whatever its length.
    pub fixed: u64,
    /// And for each of its tokens.
    pub a_token: u64,
}

impl StateBytes {
    /// Those of a sequence of so many positions. A row may ask for four thousand million tokens: what exceeds 64 bits is as good as their
    /// largest number, and is refused.
    pub fn of(self, positions: u64) -> u64 {
        positions.saturating_mul(self.a_token).saturating_add(self.fixed)
    }
}

/// What the job and the machine allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// The ledger's ceiling.
    pub budget_bytes: u64,
    /// Most sequences that decode together.
    pub wave: Option<usize>,
    /// Most prompt rows in a sweep.
    pub prefill_rows: Option<usize>,
    /// Most bytes of weights kept.
    pub resident_bytes: Option<u64>,
    /// Blocks that are computed side by side.
    pub blocks_in_flight: u64,
    /// Threads of arithmetic.
    pub threads: usize,
    /// Most that the reading of one row took.
    pub reading_bytes: u64,
    /// Answers under construction.
    pub output_bytes: u64,
}

/// The budget is too small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The smallest budget that works.
    pub smallest_bytes: u64,
    /// The line that asks for most.
    pub blame: &'static str,
    /// All lines at their least.
    pub ledger: Ledger,
}

/// How memory is shared out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allotment {
    /// All lines; their sum is at most the budget.
    pub ledger: Ledger,
    /// Most sequences in flight.
    pub wave: usize,
    /// Most prompt rows in a sweep.
    pub prefill_rows: usize,
    /// Ceiling of all sequences' states.
    pub state_bytes: u64,
    /// Panels kept, in the manifest's order.
    pub kept_panels: u64,
    /// Blocks kept, layer by layer.
    pub kept_blocks: u64,
    /// Who walks the layers.
    pub walkers: Walkers,
}

/// How many threads walk a sweep through the layers, each with rows of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walkers {
    /// At most so many.
    pub most: usize,
    /// Each with at least so many rows.
    pub rows: usize,
}

/// The process itself: code, stacks, the allocator's slack, Parquet's dictionaries.
const PROCESS_BYTES: u64 = 48 << 20;
/// Of these, what the reading of a row may take.
const PROCESS_READING_BYTES: u64 = 26 << 20;
/// Of what the reading of a row took, the part that its answer may take again: its id, its message, its kept columns.
const ANSWERED_PART: u64 = 3;
/// What a job may hold for each of its rows: facts, order, the journal's offset.
const ROW_BYTES: u64 = 32;
/// The widest wave by default: beyond it a sweep's overhead is spread thin enough.
const WAVE_MAX: u64 = 4096;
/// Prompt rows of a walker by default: where all weights stay in memory, rows that fit a core's cache are computed fastest.
const PREFILL_ROWS_RESIDENT: u64 = 1024;
/// Prompt rows of a sweep by default where weights stream.
const PREFILL_ROWS_STREAMED: u64 = 16_384;
/// Rows of experts that are computed side by side at least: few rows would leave threads without work.
const EXPERT_ROWS: u64 = 4096;
/// Parts in a hundred that buffers of changing sizes leave unused.
const SLACK_PERCENT: u64 = 10;

/// Rows of a walker at least: each decodes every weight for itself, a trifle from here on.
const WALKER_ROWS: u64 = 256;

/// Most (row, expert) pairs that are computed side by side by a walker of so many rows.
pub fn expert_rows(rows: u64, chosen: u64) -> u64 {
    rows.max(EXPERT_ROWS.min(rows.saturating_mul(chosen)))
}

/// Whether so many rows, of which each chooses `chosen` of `experts` at random, leave out less than half an expert on average.
pub fn need_all(rows: u64, chosen: u64, experts: u64) -> bool {
    let left_out = 1.0 - chosen as f64 / experts.max(1) as f64;
    experts as f64 * left_out.powf(rows as f64) < 0.5
}

/// The same of all walkers of a sweep.
fn expert_rows_of(walkers: u64, rows: u64, chosen: u64) -> u64 {
    match walkers.min(rows / WALKER_ROWS) {
        0 | 1 => expert_rows(rows, chosen),
        walkers => rows.saturating_mul(chosen).min(rows + walkers * EXPERT_ROWS),
    }
}

/// The job's rows in a few numbers.
struct Needs {
    rows: u64,
    runnable: u64,
    prompt_tokens: u64,
    longest: u64,
    longest_answer: u64,
    drawn: bool,
    state_all: u64,
}

impl Needs {
    fn of(rows: &[RowFacts], m: &ModelFacts) -> Self {
        let running = || rows.iter().filter(|r| !r.is_idle());
        let longest = running().map(RowFacts::positions_max).max().unwrap_or(0);
        Needs {
            rows: rows.len() as u64,
            runnable: running().count() as u64,
            prompt_tokens: running().map(|r| u64::from(r.prompt_tokens)).sum(),
            longest,
            longest_answer: running().map(|r| u64::from(r.max_tokens)).max().unwrap_or(0),
            drawn: running().any(|r| r.drawn),
            // Many rows of absurd lengths are refused below, not a fault of the program.
            state_all: running().map(|r| m.state.of(r.positions_max())).fold(0, u64::saturating_add),
        }
    }
}

/// What a budget leaves for the reading of a row: all that is not in use by then.
pub fn reading_room(budget_bytes: u64, m: &ModelFacts) -> u64 {
    PROCESS_READING_BYTES + budget_bytes.saturating_sub(PROCESS_BYTES + m.index_bytes + m.tokenizer_bytes)
}

/// Shares memory out, or says what the least would be.
///
/// # Errors
/// The least that the job can run in exceeds the budget.
pub fn allot(rows: &[RowFacts], m: &ModelFacts, limits: &Limits) -> Result<Allotment, Box<Refusal>> {
    let needs = Needs::of(rows, m);
    let least = Sizes { wave: 1, prefill_rows: 1, state_bytes: m.state.of(needs.longest), kept: (0, 0), walkers: 1 };
    let least = build(m, limits, &needs, least);
    if least.ledger.total() > limits.budget_bytes {
        let blame = least.ledger.lines.iter().max_by_key(|l| l.bytes).map_or("", |l| l.name);
        return Err(Box::new(Refusal { smallest_bytes: least.ledger.total(), blame, ledger: least.ledger }));
    }
    let fits = |a: &Allotment| a.ledger.total() <= limits.budget_bytes;
    let all = m.panels.iter().sum::<u64>() + m.blocks.iter().map(|(n, _, bytes)| n * bytes).sum::<u64>();
    let resident = all <= limits.resident_bytes.unwrap_or(u64::MAX).min(limits.budget_bytes / 2);
    let walkers = if resident { limits.threads } else { 1 };
    let row_cap = if resident { PREFILL_ROWS_RESIDENT * walkers as u64 } else { PREFILL_ROWS_STREAMED };
    let rows_max = limits.prefill_rows.map_or(row_cap, |n| n as u64).clamp(1, needs.prompt_tokens.max(1));
    let wave_max = limits.wave.map_or(WAVE_MAX, |n| n as u64).clamp(1, needs.runnable.max(1));
    let state = |wave: u64| wave.saturating_mul(m.state.of(needs.longest)).min(needs.state_all).max(m.state.of(needs.longest));
    let with = |wave: u64, prefill_rows: u64, kept| {
        build(m, limits, &needs, Sizes { wave, prefill_rows, state_bytes: state(wave), kept, walkers })
    };

    let few_rows = rows_max.min(256);
    let rows_first = largest(few_rows, |n| fits(&with(1, n, (0, 0))));
    let wave = largest(wave_max, |n| fits(&with(n, rows_first, (0, 0))));
    let rows = largest(rows_max, |n| fits(&with(wave, n.max(rows_first), (0, 0)))).max(rows_first);
    let spare = limits.budget_bytes - with(wave, rows, (0, 0)).ledger.total();
    let mut allotment = with(wave, rows, kept(m, spare.min(limits.resident_bytes.unwrap_or(u64::MAX))));
    if allotment.kept_blocks < m.blocks.iter().map(|b| b.0).sum() || allotment.kept_panels < m.panels.len() as u64 {
        allotment.walkers.most = 1; // what streams is read once for all rows
    }
    Ok(allotment)
}

/// The largest n in 1..=max for which `fits` holds; 1 is known to fit.
fn largest(max: u64, fits: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (1, max);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

/// Panels and then blocks that `spare` bytes hold.
fn kept(m: &ModelFacts, mut spare: u64) -> (u64, u64) {
    let mut panels = 0;
    for &bytes in &m.panels {
        if bytes > spare {
            return (panels, 0);
        }
        spare -= bytes;
        panels += 1;
    }
    let mut blocks = 0;
    for &(count, _, bytes) in &m.blocks {
        let n = count.min(spare / bytes.max(1));
        spare -= n * bytes;
        blocks += n;
        if n < count {
            break;
        }
    }
    (panels, blocks)
}

/// What a ledger follows from.
struct Sizes {
    wave: u64,
    prefill_rows: u64,
    state_bytes: u64,
    /// Panels, blocks.
    kept: (u64, u64),
    walkers: usize,
}

fn build(m: &ModelFacts, limits: &Limits, needs: &Needs, sizes: Sizes) -> Allotment {
    let Sizes { wave, prefill_rows, state_bytes, kept, walkers } = sizes;
    let mut ledger = Ledger::default();
    let rows = prefill_rows + if needs.longest_answer > 1 { wave } else { 0 };
    let panel = m.panels.iter().max().copied().unwrap_or(0);
    let block = m.blocks.iter().map(|b| b.2).max().unwrap_or(0);
    let a_row = m.stream_row_bytes + m.layer_row_bytes.max(m.head_row_bytes);
    let drawn = if needs.drawn { m.logits_bytes * (wave + 1) } else { 0 };
    ledger.reserve("process", PROCESS_BYTES, "code, stacks, the allocator's slack");
    ledger.reserve("index", m.index_bytes, "where every tensor lies");
    ledger.reserve("tokenizer", m.tokenizer_bytes, "text to ids and back");
    ledger.reserve("rows", needs.rows * ROW_BYTES, format!("{ROW_BYTES} bytes for each of {} rows", show_count(needs.rows)));
    let reading = limits.reading_bytes.saturating_sub(PROCESS_READING_BYTES);
    let output = limits.output_bytes.saturating_add(reading / ANSWERED_PART);
    let read = ledger.total().saturating_add(reading);
    ledger.reserve("output", output, "answers of a row group under construction");
    ledger.reserve("panels in flight", 2 * panel, format!("trunk streams in panels of at most {}", show_bytes(panel)));
    ledger.reserve("blocks in flight", limits.blocks_in_flight * block, format!("experts of {} stream", show_bytes(block)));
    let (sequences, tokens) = (show_count(wave), show_count(needs.longest));
    ledger.reserve("sequence state", state_bytes, format!("up to {sequences} sequences in flight, each up to {tokens} tokens"));
    let chosen = m.blocks.iter().map(|b| b.1).max().unwrap_or(0);
    let activations = rows * a_row + expert_rows_of(walkers as u64, rows, chosen) * m.expert_row_bytes;
    ledger.reserve("activations", activations + activations * SLACK_PERCENT / 100, format!("{} rows in a sweep", show_count(rows)));
    ledger.reserve("logits", drawn, "whole rows of logits, for rows that draw their tokens");
    let trunk: u64 = m.panels[..kept.0 as usize].iter().sum();
    ledger.reserve(
        "resident trunk",
        trunk,
        format!("{} of {} panels need no reading", show_count(kept.0), show_count(m.panels.len() as u64)),
    );
    let total_blocks: u64 = m.blocks.iter().map(|b| b.0).sum();
    ledger.reserve(
        "resident experts",
        m.block_bytes(kept.1),
        format!("{} of {} experts need no reading", show_count(kept.1), show_count(total_blocks)),
    );
    let more = read.saturating_sub(ledger.total());
    ledger.reserve("long rows", more, "reading the longest row, before other memory is taken");
    Allotment {
        ledger,
        wave: wave as usize,
        prefill_rows: prefill_rows as usize,
        state_bytes,
        kept_panels: kept.0,
        kept_blocks: kept.1,
        walkers: Walkers { most: walkers, rows: WALKER_ROWS as usize },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub fn facts() -> ModelFacts {
        ModelFacts {
            panels: vec![1 << 20; 40],
            embedding: 39..40,
            embedding_row_bytes: 512,
            blocks: vec![(64, 4, 100_000); 8],
            state: StateBytes { fixed: 400_000, a_token: 1000 },
            stream_row_bytes: 4096,
            layer_row_bytes: 20_000,
            expert_row_bytes: 3000,
            head_row_bytes: 10_000,
            logits_bytes: 16_384,
            index_bytes: 100_000,
            tokenizer_bytes: 1_000_000,
        }
    }

    fn limits(budget_bytes: u64) -> Limits {
        Limits {
            budget_bytes,
            wave: None,
            prefill_rows: None,
            resident_bytes: None,
            blocks_in_flight: 4,
            threads: 2,
            reading_bytes: 0,
            output_bytes: 1 << 20,
        }
    }

    fn row(prompt_tokens: u32, max_tokens: u32, drawn: bool) -> RowFacts {
        RowFacts { prompt_tokens, max_tokens, faulty: false, drawn, prompt_logprobs: false }
    }

    #[test]
    fn a_refusal_names_the_smallest_budget_and_that_budget_works() {
        let rows = vec![row(100, 10, false); 20];
        let refusal = allot(&rows, &facts(), &limits(1 << 20)).expect_err("one MiB is too little");
        assert_eq!(refusal.blame, "process");
        let smallest = allot(&rows, &facts(), &limits(refusal.smallest_bytes)).expect("the smallest budget works");
        assert_eq!(smallest.ledger.total(), refusal.smallest_bytes);
        assert!(allot(&rows, &facts(), &limits(refusal.smallest_bytes - 1)).is_err());
    }

    #[test]
    fn many_rows_need_all_experts() {
        assert!(!need_all(1, 4, 64) && !need_all(74, 4, 64) && need_all(76, 4, 64));
        assert!(!need_all(380, 16, 896) && need_all(430, 16, 896));
        assert!(need_all(1, 8, 8) && need_all(0, 0, 0));
    }

    #[test]
    fn a_large_budget_keeps_every_weight() {
        let all = allot(&vec![row(100, 10, false); 20], &facts(), &limits(8 << 30)).expect("fits");
        assert_eq!((all.kept_panels, all.kept_blocks, all.wave), (40, 512, 20));
    }

    #[test]
    fn every_line_is_what_it_says() {
        let (m, rows) = (facts(), [row(100, 11, true), row(50, 5, false), row(70, 1, false)]);
        let a = allot(&rows, &m, &Limits { wave: Some(2), prefill_rows: Some(64), resident_bytes: Some(5 << 20), ..limits(1 << 30) });
        let a = a.expect("fits");
        let expected = [
            ("process", 48 << 20),
            ("index", m.index_bytes),
            ("tokenizer", m.tokenizer_bytes),
            ("rows", 3 * 32),
            ("output", 1 << 20),
            ("panels in flight", 2 << 20),
            ("blocks in flight", 4 * 100_000),
            ("sequence state", 2 * (400_000 + 110 * 1000)),
            ("activations", (66 * (4096 + 20_000) + 66 * 4 * 3000) * 11 / 10),
            ("logits", 16_384 * 3),
            ("resident trunk", 5 << 20),
            ("resident experts", 0),
            ("long rows", 0),
        ];
        assert_eq!(a.ledger.lines.iter().map(|l| (l.name, l.bytes)).collect::<Vec<_>>(), expected);
        let all = allot(&rows, &m, &limits(8 << 30)).expect("fits");
        assert_eq!(all.ledger.lines.iter().find(|l| l.name == "resident experts").map(|l| l.bytes), Some(64 * 8 * 100_000));
        let long = allot(&rows, &m, &Limits { reading_bytes: 900 << 20, ..limits(8 << 30) }).expect("fits").ledger;
        assert!(long.total() > 900 << 20);
    }

    #[test]
    fn a_row_of_any_length_is_refused_and_not_a_panic() {
        for a_token in [1000, u64::MAX / 8] {
            let rows = vec![row(u32::MAX, u32::MAX, true); 10_000];
            let m = ModelFacts { state: StateBytes { a_token, ..facts().state }, ..facts() };
            let refusal = allot(&rows, &m, &Limits { wave: Some(1_000_000), ..limits(1 << 30) }).expect_err("too long");
            assert!(refusal.smallest_bytes > u64::from(u32::MAX) * 1000, "{refusal:?}");
        }
    }

    proptest! {
        #[test]
        fn the_ledger_never_exceeds_the_budget(
            budget in 60u64 << 20..2 << 30,
            lengths in prop::collection::vec((1u32..3000, 0u32..300, any::<bool>()), 1..50),
            wave in prop::option::of(1usize..100),
            resident in prop::option::of(0u64..100 << 20),
        ) {
            let rows: Vec<_> = lengths.iter().map(|&(p, n, d)| row(p, n, d)).collect();
            let limits = Limits { wave, resident_bytes: resident, ..limits(budget) };
            match allot(&rows, &facts(), &limits) {
                Ok(a) => {
                    prop_assert!(a.ledger.total() <= budget);
                    prop_assert!(a.wave >= 1 && a.prefill_rows >= 1 && a.wave <= wave.unwrap_or(usize::MAX));
                    let kept = a.ledger.lines.iter().filter(|l| l.name.starts_with("resident")).map(|l| l.bytes).sum::<u64>();
                    prop_assert!(kept <= resident.unwrap_or(u64::MAX));
                    let longest = rows.iter().filter(|r| !r.is_idle()).map(RowFacts::positions_max).max().unwrap_or(0);
                    prop_assert!(a.state_bytes >= facts().state.of(longest) || rows.iter().all(RowFacts::is_idle));
                }
                Err(refusal) => prop_assert!(refusal.smallest_bytes > budget),
            }
        }
    }
}
