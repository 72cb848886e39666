//! What would another order of the same requests have loaded? Recorded routing tells, without the model.
//!
//! A wave of 16 answers of the largest model needs some 15,000 blocks a token, and by luck alone two orders differ by a part of a hundred. So the
//! order that ran is held against the mean of twenty random ones under the same rule of admission, with their standard deviation. A
//! hundred thousand answer rows are 147 million choices, a tenth of a second for each order.

use std::cmp::Reverse;

use rayon::prelude::*;

use super::{FOOTPRINT_ENTRIES, Footprint, Foresight, LAST_TOKENS, Outcome, PromptUse, Schedule};
use crate::routes::{NO_EXPERT, Routes, Widths};

/// Random orders that are tried.
const DRAWS: u64 = 20;

/// Whom the rows of answers chose.
pub trait Routed: Sync {
    /// Widths of a row's choices.
    fn widths(&self) -> Widths;

    /// Requests that are known, from the first on.
    fn requests(&self) -> usize;

    /// The rows of a request's answer, by position: ids [rows, layers, chosen].
    fn answer(&self, request: u64) -> &[u16];

    /// The rows of its prompt likewise; empty where they were not recorded.
    fn prompt(&self, request: u64) -> &[u16];

    /// The first token of its answer, if that is known.
    fn next(&self, request: u64) -> Option<u32>;
}

impl Routed for Routes {
    fn widths(&self) -> Widths {
        self.widths()
    }

    fn requests(&self) -> usize {
        self.requests()
    }

    fn answer(&self, request: u64) -> &[u16] {
        self.answer(request)
    }

    fn prompt(&self, request: u64) -> &[u16] {
        self.prompt(request)
    }

    fn next(&self, request: u64) -> Option<u32> {
        self.next(request)
    }
}

/// What answers loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Loads {
    /// Distinct (layer, expert) of a sweep's answer rows, summed over sweeps.
    pub loads: u64,
    /// Answer rows.
    pub rows: u64,
}

/// What other orders of the same requests would have loaded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Compared {
    /// Answer rows of each.
    pub rows: u64,
    /// Loads in random orders, in the mean.
    pub random: f64,
    /// Their standard deviation.
    pub random_sd: f64,
    /// Loads if those had been grouped that shared experts, by what their answers used in the end.
    pub perfect: u64,
    /// Loads if all requests began their answers at once and went on together.
    pub lower_bound: u64,
}

/// Replays a schedule's requests, as many as are known, in random orders and in the best that grouping by overlap could have found.
pub fn compare(schedule: &Schedule, routed: &dyn Routed) -> Compared {
    let requests = routed.requests();
    let drawn = |seed| loads(schedule.afresh(requests, Some(seed)), routed).loads as f64;
    let drawn: Vec<f64> = (1..=DRAWS).into_par_iter().map(drawn).collect();
    let random = drawn.iter().sum::<f64>() / DRAWS as f64;
    let variance = drawn.iter().map(|loads| (loads - random).powi(2)).sum::<f64>() / (DRAWS - 1) as f64;
    let known = (0..requests as u64).map(|request| footprint(routed.widths(), routed.answer(request)));
    let perfect = loads(schedule.afresh(requests, None).by_overlap(Foresight::Known(known.collect())), routed).loads;
    let bound = lower_bound(routed);
    Compared { rows: bound.rows, random, random_sd: variance.sqrt(), perfect, lower_bound: bound.loads }
}

/// Of each layer the share of rows that chose an expert, of those whose choice is known: ids [rows, layers, chosen].
pub fn footprint(widths: Widths, ids: &[u16]) -> Footprint {
    let chosen = widths.chosen.max(1) as usize;
    let mut known = vec![0u32; widths.layers as usize];
    let mut blocks = Vec::new();
    for (of_row, layer) in ids.chunks_exact(chosen).zip((0..widths.layers).cycle()) {
        if of_row[0] != NO_EXPERT {
            known[layer as usize] += 1;
            blocks.extend(of_row.iter().filter(|id| **id != NO_EXPERT).map(|id| layer * widths.experts + u32::from(*id)));
        }
    }
    blocks.sort_unstable();
    let share = |of_block: &[u32]| (of_block[0], of_block.len() as f32 / known[(of_block[0] / widths.experts.max(1)) as usize] as f32);
    Footprint::of(blocks.chunk_by(|a, b| a == b).map(share), FOOTPRINT_ENTRIES)
}

/// What a prompt's rows used, ids [rows, layers, chosen], and which token comes next.
pub fn prompt_use(widths: Widths, ids: &[u16], next: Option<u32>) -> PromptUse {
    let last = ids.len().saturating_sub(LAST_TOKENS * widths.row());
    PromptUse { all: footprint(widths, ids), last: footprint(widths, &ids[last..]), next }
}

/// Drives a schedule that has not begun to its end, every answer as long as it was.
pub fn loads(mut schedule: Schedule, routed: &dyn Routed) -> Loads {
    let (mut union, mut found, mut outcome) = (Union::new(routed.widths()), Loads::default(), Outcome::default());
    while let Some(sweep) = schedule.next(&outcome) {
        union.begin();
        outcome = Outcome::default();
        let predicts = schedule.overlap().is_some();
        for span in &sweep.spans {
            let prompt = schedule.rows()[span.row as usize].prompt_tokens;
            let answer = routed.answer(span.row);
            if let Some(first) = span.positions.start.checked_sub(prompt) {
                for row in answer.chunks_exact(union.width).skip(first as usize).take(span.positions.len()) {
                    found.loads += union.add(row);
                    found.rows += 1;
                }
            }
            if span.positions.end as usize >= prompt as usize + answer.len() / union.width {
                outcome.ended.push(span.slot);
                if predicts && !answer.is_empty() {
                    outcome.answered.push((span.slot, footprint(routed.widths(), answer)));
                }
            } else if span.positions.start < prompt && span.positions.end >= prompt {
                let prompt = if predicts {
                    prompt_use(routed.widths(), routed.prompt(span.row), routed.next(span.row))
                } else {
                    PromptUse::default()
                };
                outcome.read.push((span.slot, prompt));
            }
        }
    }
    found
}

/// Loads if every known answer began in the same sweep.
pub fn lower_bound(routed: &dyn Routed) -> Loads {
    let (mut union, mut found) = (Union::new(routed.widths()), Loads::default());
    let mut answers: Vec<&[u16]> = (0..routed.requests() as u64).map(|request| routed.answer(request)).collect();
    answers.sort_by_key(|answer| Reverse(answer.len()));
    for at in 0.. {
        answers.truncate(answers.partition_point(|answer| answer.len() > at * union.width));
        if answers.is_empty() {
            break;
        }
        union.begin();
        for answer in &answers {
            found.loads += union.add(&answer[at * union.width..][..union.width]);
            found.rows += 1;
        }
    }
    found
}

/// The blocks of one sweep.
struct Union {
    experts: usize,
    chosen: usize,
    /// Ids of a row, at least one.
    width: usize,
    /// A (layer, expert) each: the last sweep that needed it.
    needed_in: Vec<u32>,
    sweep: u32,
}

impl Union {
    fn new(widths: Widths) -> Self {
        let (layers, experts, chosen) = (widths.layers as usize, widths.experts as usize, widths.chosen.max(1) as usize);
        Union { experts, chosen, width: (layers * chosen).max(1), needed_in: vec![0; layers * experts], sweep: 0 }
    }

    fn begin(&mut self) {
        self.sweep += 1;
    }

    /// How many blocks of a row the sweep had not needed before.
    fn add(&mut self, row: &[u16]) -> u64 {
        let mut new = 0;
        for (layer, ids) in row.chunks_exact(self.chosen).enumerate() {
            for &id in ids.iter().filter(|id| **id != NO_EXPERT) {
                let needed_in = &mut self.needed_in[layer * self.experts + usize::from(id)];
                new += u64::from(*needed_in != self.sweep);
                *needed_in = self.sweep;
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Allotment, Grouping, StateBytes};
    use super::*;
    use crate::request::RowFacts;

    /// Answers of one layer, of eight experts of which a row chooses two.
    struct Answers(Vec<Vec<u16>>);

    impl Routed for Answers {
        fn widths(&self) -> Widths {
            Widths { layers: 1, experts: 8, chosen: 2 }
        }
        fn requests(&self) -> usize {
            self.0.len()
        }
        fn answer(&self, request: u64) -> &[u16] {
            &self.0[request as usize]
        }
        fn prompt(&self, _: u64) -> &[u16] {
            &[]
        }
        fn next(&self, _: u64) -> Option<u32> {
            None
        }
    }

    fn schedule(requests: usize, wave: usize, grouping: Grouping) -> Schedule {
        let allotment = Allotment::bare(wave, wave, 100);
        let row = RowFacts { prompt_tokens: 5, max_tokens: 9, faulty: false, drawn: false, prompt_logprobs: false };
        Schedule::new(vec![row; requests], grouping, allotment, StateBytes::default())
    }

    #[test]
    fn a_sweep_loads_each_of_its_experts_once() {
        let answers = Answers(vec![vec![0, 1, 2, 3], vec![0, 1], vec![], vec![1, 0, 2, 4, 5, 6]]);
        let of = |wave| loads(schedule(4, wave, Grouping::Input), &answers);
        // One by one: 4, 2, 0 and 6. All at once: {0, 1}, {2, 3, 4}, {5, 6}.
        assert_eq!(of(1), Loads { loads: 12, rows: 6 });
        assert_eq!(of(4), Loads { loads: 7, rows: 6 });
        assert_eq!(lower_bound(&answers), Loads { loads: 7, rows: 6 });
        // Two at a time: 0 with 1, {0, 1}; the slot of 1 takes 2 and then 3, beside 0's {2, 3}; 3 goes on alone.
        assert_eq!(of(2), Loads { loads: 2 + 2 + 2 + 2 + 2, rows: 6 });
    }

    #[test]
    fn likes_together_load_less_than_random_waves_of_the_same_size() {
        // Requests of two kinds, whose experts are all different, sorted by kind.
        let answers = Answers((0..64).map(|i| [[0, 1], [6, 7]][i / 32].repeat(4)).collect());
        let compared = compare(&schedule(64, 8, Grouping::Input), &answers);
        assert_eq!(compared.rows, 256);
        assert!(compared.random > 100.0 && compared.random <= 128.0 && compared.random_sd > 0.0, "{compared:?}");
        assert_eq!(compared.lower_bound, 4 * 4);
        assert_eq!(compared, compare(&schedule(64, 8, Grouping::Input), &answers), "draws are seeded");
        let alone = compare(&schedule(64, 1, Grouping::Input), &answers);
        assert_eq!((alone.random, alone.random_sd), (512.0, 0.0), "who runs alone shares with nobody");
    }

    #[test]
    fn requests_that_are_not_known_are_left_out() {
        let answers = Answers(vec![vec![0, 1]; 3]);
        let compared = compare(&schedule(10, 2, Grouping::Random), &answers);
        assert_eq!((compared.rows, compared.lower_bound), (3, 2));
    }
}
