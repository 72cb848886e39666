//! Sweeps of a schedule, driven without a model.

use super::super::{Footprint, PromptUse};
use super::*;
use proptest::prelude::*;

fn allotment(wave: usize, prefill_rows: usize, state_bytes: u64) -> Allotment {
    Allotment { state_bytes, ..Allotment::bare(wave, wave, prefill_rows) }
}

const ONE: StateBytes = StateBytes { fixed: 1, a_token: 1, log: 0, piece: 1, piece_log: 0, layer_token: 1 };

fn row(prompt_tokens: u32, max_tokens: u32) -> RowFacts {
    RowFacts { prompt_tokens, max_tokens, faulty: false, drawn: false, prompt_logprobs: true }
}

/// Runs a schedule to its end; every row ends after `max_tokens` tokens.
fn drive(mut schedule: Schedule) -> Vec<Sweep> {
    let (mut outcome, mut sweeps) = (Outcome::default(), Vec::new());
    while let Some(sweep) = schedule.next(&outcome) {
        outcome.ended = (sweep.spans.iter())
            .filter(|s| u64::from(s.positions.end) == schedule.rows()[s.row as usize].positions_max())
            .map(|s| s.slot)
            .collect();
        let prompt = |row: u64| schedule.rows()[row as usize].prompt_tokens;
        let through = |s: &&Span| s.positions.start < prompt(s.row) && s.positions.end >= prompt(s.row) && !outcome.ended.contains(&s.slot);
        outcome.read = sweep.spans.iter().filter(through).map(|s| (s.slot, PromptUse::default())).collect();
        sweeps.push(sweep);
    }
    sweeps
}

proptest! {
    #[test]
    fn every_position_is_computed_once_and_in_order(
        lengths in prop::collection::vec((1u32..40, 0u32..12), 1..40),
        (wave, more, refill) in (1usize..9, 0usize..30, 1usize..9),
        prefill_rows in 1usize..50,
        states in prop::sample::select(vec![States::Memory, States::Parked, States::Passing]),
        cohort in 1usize..9,
        grouping in prop::sample::select(vec![Grouping::Input, Grouping::Length, Grouping::Random, Grouping::Overlap]),
    ) {
        let rows: Vec<_> = lengths.iter().map(|&(p, n)| row(p, n)).collect();
        let given = Allotment { pool: wave + more, refill, cohort, states, ..allotment(wave, prefill_rows, 60) };
        let mut schedule = Schedule::new(rows.clone(), grouping, given, ONE);
        if grouping == Grouping::Overlap {
            let known = (0..rows.len() as u32).map(|i| Footprint::of([(i % 5, 1.0), (5 + i % 3, 0.5)], 9)).collect();
            schedule = schedule.by_overlap(Foresight::Known(known));
        }
        let sweeps = drive(schedule);
        let mut done = vec![0; rows.len()];
        let mut homes = vec![Home::Nowhere; rows.len()];
        for sweep in &sweeps {
            prop_assert!(sweep.spans.is_sorted_by(|a, b| a.slot < b.slot));
            let (mut prompt_rows, mut answers) = (0, 0);
            for span in &sweep.spans {
                let at = span.row as usize;
                prop_assert_eq!(span.positions.start, done[at]);
                prop_assert_eq!(span.from, homes[at]);
                done[at] = span.positions.end;
                let of_prompt = span.positions.clone().filter(|&p| p < rows[at].prompt_tokens).count();
                prompt_rows += of_prompt;
                answers += usize::from(of_prompt == 0);
                let ends = u64::from(span.positions.end) == rows[at].positions_max();
                prop_assert!(span.home != Home::Nowhere || ends, "nothing is thrown away that is needed");
                prop_assert!(span.home != Home::Scratch || states != States::Memory);
                homes[at] = span.home;
            }
            prop_assert!(prompt_rows <= prefill_rows && answers <= wave);
            let begun: Vec<usize> = (0..rows.len()).filter(|&r| homes[r] != Home::Nowhere && u64::from(done[r]) < rows[r].positions_max()).collect();
            let in_memory = begun.iter().filter(|&&r| homes[r] == Home::Memory);
            let bytes: u64 = in_memory.map(|&r| ONE.of(rows[r].positions_max())).sum();
            prop_assert!(bytes <= 60, "{} bytes in memory", bytes);
            prop_assert!(begun.len() <= wave + more);
        }
        for (row, done) in rows.iter().zip(done) {
            prop_assert_eq!(u64::from(done), row.positions_max());
        }
    }
}

/// Rows of prompts and of answers in each sweep.
fn rhythm(rows: &[RowFacts], given: Allotment) -> Vec<(u32, u32)> {
    let of = |sweep: &Sweep| {
        let count = |of_prompt: bool| {
            let spans = sweep.spans.iter().filter(|s| (s.positions.end <= rows[s.row as usize].prompt_tokens) == of_prompt);
            spans.map(|s| s.positions.end - s.positions.start).sum()
        };
        (count(true), count(false))
    };
    drive(Schedule::new(rows.to_vec(), Grouping::Input, given, ONE)).iter().map(of).collect()
}

#[test]
fn prompts_are_read_in_bulk_and_answers_ride_along() {
    let rows = vec![row(10, 3); 6];
    let given = |pool, refill, states| Allotment { pool, refill, states, ..allotment(2, 20, 26) };
    // All prompts, two at a time; then the answers of two at a time: the first two have ridden along.
    let all = [(20, 0), (20, 2), (20, 2), (0, 2), (0, 2), (0, 2), (0, 2)];
    assert_eq!(rhythm(&rows, given(6, 1, States::Parked)), all);
    assert_eq!(rhythm(&rows, given(6, 1, States::Passing)), all);
    // Memory for two: as many prompts are read as have ended.
    assert_eq!(rhythm(&rows, given(2, 1, States::Memory)), [(20, 0), (0, 2), (0, 2)].repeat(3));
    // Of unequal answers one ends first. Its successor is read at once, or both when both can be.
    let rows = [row(10, 2), row(10, 4), row(10, 2), row(10, 2)];
    assert_eq!(rhythm(&rows, given(2, 1, States::Memory)), [(20, 0), (0, 2), (10, 1), (0, 2), (10, 0), (0, 1)]);
    assert_eq!(rhythm(&rows, given(2, 2, States::Memory)), [(20, 0), (0, 2), (0, 1), (0, 1), (20, 0), (0, 2)]);
}

#[test]
fn rows_that_end_with_their_prompt_leave_no_state_and_are_not_cut() {
    let rows = vec![row(10, 1); 5];
    let sweeps = drive(Schedule::new(rows, Grouping::Input, allotment(1, 25, 0), ONE));
    let spans = sweeps.iter().map(|s| s.spans.len()).collect::<Vec<_>>();
    assert_eq!(spans, [2, 2, 1]);
    assert!(sweeps.iter().flat_map(|s| &s.spans).all(|s| (s.from, s.home) == (Home::Nowhere, Home::Nowhere)));
}

#[test]
fn a_sequence_comes_in_when_it_decodes_and_stays_on_disk_where_waves_pass() {
    let rows = vec![row(10, 3); 3];
    let homes = |states| -> Vec<Vec<(Home, Home)>> {
        let given = Allotment { pool: 3, states, ..allotment(1, 30, 13) };
        let sweeps = drive(Schedule::new(rows.clone(), Grouping::Input, given, ONE));
        (0..3).map(|row| sweeps.iter().flat_map(|s| &s.spans).filter(|s| s.row == row).map(|s| (s.from, s.home)).collect()).collect()
    };
    use Home::{Memory as M, Nowhere as N, Scratch as S};
    assert_eq!(homes(States::Parked), [[(N, M), (M, M), (M, M)], [(N, S), (S, M), (M, M)], [(N, S), (S, M), (M, M)]]);
    assert_eq!(homes(States::Passing), vec![[(N, S), (S, S), (S, S)]; 3]);
}

#[test]
fn groupings_order_admission() {
    let rows = vec![row(3, 2), row(9, 2), row(5, 2), row(1, 2)];
    let first = |grouping| -> Vec<u64> {
        let sweeps = drive(Schedule::new(rows.clone(), grouping, allotment(1, 100, 100), ONE));
        sweeps.iter().flat_map(|s| &s.spans).filter(|s| s.positions.start == 0).map(|s| s.row).collect()
    };
    assert_eq!(first(Grouping::Input), [0, 1, 2, 3]);
    assert_eq!(first(Grouping::Length), [1, 2, 0, 3]);
    assert_eq!(first(Grouping::Random), first(Grouping::Random));
}
