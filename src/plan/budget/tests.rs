use proptest::prelude::*;

use super::super::forecast::{drive, forecast};
use super::super::ledger::need_all;
use super::super::schedule::Schedule;
use super::super::states::{Scratch, StateBytes};
use super::super::weigh::Weights;
use super::*;

pub fn facts() -> ModelFacts {
    ModelFacts {
        panels: vec![1 << 20; 40],
        whole_bytes: 300_000,
        embedding: 39..40,
        embedding_row_bytes: 512,
        panel_room_bytes: (1 << 20) + 8192,
        blocks: vec![(64, 4, 100_000); 8],
        block_room_bytes: 150_000,
        state: StateBytes { fixed: 400_000, a_token: 1000, log: 0, piece: 50_000, piece_log: 0, layer_token: 500 },
        uses_bytes: 7000,
        stream_row_bytes: 4096,
        layer_row_bytes: 20_000,
        expert_row_bytes: 3000,
        head_row_bytes: 10_000,
        logits_bytes: 16_384,
        index_bytes: 100_000,
        tokenizer_bytes: 1_000_000,
        row_flop: 1_000_000,
        head_flop: 50_000,
        pair_flop: 100,
    }
}

pub fn limits(budget_bytes: u64) -> Limits {
    Limits {
        budget_bytes,
        wave: None,
        prefill_rows: None,
        resident_bytes: None,
        blocks_in_flight: 4,
        threads: 2,
        reading_bytes: 0,
        output_bytes: 1 << 20,
        scratch: Scratch::default(),
        states: None,
        rates: None,
        saving: None,
        profile_bytes: 1000,
    }
}

fn row(prompt_tokens: u32, max_tokens: u32, drawn: bool) -> RowFacts {
    RowFacts { prompt_tokens, max_tokens, faulty: false, drawn, prompt_logprobs: false }
}

fn in_order(rows: &[RowFacts], m: &ModelFacts, limits: &Limits) -> Result<Allotment, Box<Refusal>> {
    allot(rows, Grouping::Input, m, limits)
}

fn line(a: &Allotment, name: &str) -> u64 {
    a.ledger.lines.iter().find(|l| l.name == name).map(|l| l.bytes).expect("a line of the ledger")
}

#[test]
fn many_rows_need_all_experts() {
    assert!(!need_all(1, 4, 64) && !need_all(74, 4, 64) && need_all(76, 4, 64));
    assert!(!need_all(380, 16, 896) && need_all(430, 16, 896));
    assert!(need_all(1, 8, 8) && need_all(0, 0, 0));
}

#[test]
fn a_refusal_names_the_smallest_budget_and_the_line_to_blame() {
    let rows = vec![row(100, 10, false); 20];
    assert_eq!(in_order(&rows, &facts(), &limits(1 << 20)).expect_err("one MiB is too little").blame, "process");
    let long = in_order(&[row(1_000_000, 2, false)], &facts(), &limits(1 << 20)).expect_err("a GB of state");
    assert_eq!(long.blame, "sequence state");
}

#[test]
fn rows_that_fit_nowhere_are_those_without_which_the_others_fit() {
    let (m, limits) = (facts(), limits(100 << 20));
    let faulty = RowFacts { faulty: true, ..row(4_000_000, 2, false) };
    let rows =
        [row(100, 10, false), row(1_000_000, 2, false), faulty, row(50, 1, false), row(2_000_000, 3, false), row(3_000_000, 1, false)];
    assert!(in_order(&rows, &m, &limits).is_err());
    let found = misfits(&rows, &m, |_| limits.clone());
    let fits = |found: &[u32]| {
        let rest: Vec<_> = (0..6).filter(|i| !found.contains(i)).map(|i| rows[i as usize]).collect();
        in_order(&rest, &m, &limits).is_ok()
    };
    assert_eq!(found, [5, 4, 1]);
    assert!(fits(&found) && !fits(&found[..found.len() - 1]) && !fits(&found[1..]), "{found:?}");
}

#[test]
fn a_large_budget_keeps_every_weight() {
    let all = in_order(&vec![row(100, 10, false); 20], &facts(), &limits(8 << 30)).expect("fits");
    assert_eq!((all.kept_panels, all.kept_blocks, all.wave, all.walkers.most), (40, 512, 20, 2));
    // Half of what there is would not be left: what streams, or might, is walked once for all rows.
    let less = in_order(&vec![row(100, 10, false); 20], &facts(), &limits(160 << 20)).expect("fits");
    assert_eq!(less.walkers.most, 1);
}

#[test]
fn every_line_is_what_it_says() {
    let (m, rows) = (facts(), [row(100, 11, true), row(50, 5, false), row(70, 1, false)]);
    let a = in_order(&rows, &m, &Limits { wave: Some(2), prefill_rows: Some(64), resident_bytes: Some(5 << 20), ..limits(1 << 30) });
    let a = a.expect("fits");
    assert_eq!((a.wave, a.prefill_rows, a.blocks_in_flight), (2, 64, 4));
    let activations = 66 * (4096 + 20_000) + 66 * 4 * 3000;
    let expected = [
        ("process", 48 << 20),
        ("index", m.index_bytes),
        ("tokenizer", m.tokenizer_bytes),
        ("rows", 3 * 32),
        ("output", 1 << 20),
        ("small weights", 300_000),
        ("panel ring", 4 * m.panel_room_bytes),
        ("block ring", 8 * m.block_room_bytes),
        ("sequence state", 2 * (400_000 + 110 * 1000)),
        ("states in transit", 64 * 50_000 + 64 * 500),
        ("sequences", 3 * 1024 + (110 + 54 + 70) * 40),
        ("footprints", 4 * 7000),
        ("profile", 1000),
        ("activations", activations + activations / 100 * 10),
        ("logits", 16_384 * 4),
        ("resident trunk", 5 << 20),
        ("resident experts", 0),
        ("long rows", 0),
    ];
    assert_eq!(a.ledger.lines.iter().map(|l| (l.name, l.bytes)).collect::<Vec<_>>(), expected);
    assert_eq!((a.panel_ring_bytes, a.block_ring_bytes), (line(&a, "panel ring"), line(&a, "block ring")));
    let all = in_order(&rows, &m, &limits(8 << 30)).expect("fits");
    assert_eq!(line(&all, "resident experts"), 64 * 8 * 100_000);
    let long = in_order(&rows, &m, &Limits { reading_bytes: 900 << 20, ..limits(8 << 30) }).expect("fits").ledger;
    assert!(long.total() > 900 << 20);
}

#[test]
fn rows_at_the_head_count_where_their_logits_are_wanted() {
    let m = ModelFacts { head_row_bytes: 50_000, ..facts() };
    let limits = Limits { wave: Some(2), prefill_rows: Some(64), resident_bytes: Some(0), ..limits(1 << 30) };
    let few = in_order(&[row(100, 1, false), row(100, 1, false)], &m, &limits).expect("fits");
    let layer = 64 * (4096 + 20_000) + 64 * 4 * 3000;
    assert_eq!(line(&few, "activations"), layer + layer / 100 * 10);
    let scored = RowFacts { prompt_logprobs: true, ..row(100, 1, false) };
    let all = in_order(&[scored, row(100, 1, false)], &m, &limits).expect("fits");
    let head = 64 * (4096 + 50_000);
    assert_eq!(line(&all, "activations"), head + head / 100 * 10);
}

#[test]
fn a_row_of_any_length_is_refused_and_not_a_panic() {
    for a_token in [1000, u64::MAX / 8] {
        let rows = vec![row(u32::MAX, u32::MAX, true); 10_000];
        let m = ModelFacts { state: StateBytes { a_token, ..facts().state }, ..facts() };
        let most = Some(usize::MAX);
        let refusal = in_order(&rows, &m, &Limits { wave: most, prefill_rows: most, ..limits(1 << 30) }).expect_err("too long");
        assert!(refusal.smallest_bytes > u64::from(u32::MAX) * 1000, "{refusal:?}");
    }
}

#[test]
fn what_memory_leaves_goes_to_rings_before_weights() {
    let (m, rows) = (facts(), vec![row(100, 10, false)]);
    let limits = |budget| Limits { wave: Some(1), prefill_rows: Some(10), ..limits(budget) };
    let least = in_order(&rows, &m, &limits(0)).expect_err("nothing").smallest_bytes;
    let mut seen = Vec::new();
    for budget in (least..least + (12 << 20)).step_by(100_000) {
        let a = in_order(&rows, &m, &Limits { wave: Some(1), prefill_rows: Some(1), ..limits(budget) }).expect("fits");
        seen.push((a.blocks_in_flight, a.panel_ring_bytes / m.panel_room_bytes, a.block_ring_bytes / m.block_room_bytes, a.kept_panels));
    }
    seen.dedup();
    let stages = [
        (1, 2, 2, 0),
        (2, 2, 3, 0),
        (3, 2, 4, 0),
        (4, 2, 5, 0),
        (4, 3, 5, 0),
        (4, 4, 5, 0),
        (4, 4, 6, 0),
        (4, 4, 7, 0),
        (4, 4, 8, 0),
        (4, 4, 8, 1),
    ];
    assert!(seen.starts_with(&stages), "{seen:?}");
}

/// Numbers of the model that this program is for: 2.78 T parameters, 1.56 TB.
fn largest_model() -> ModelFacts {
    ModelFacts {
        panels: vec![16 << 20; 6800],
        whole_bytes: 100 << 20,
        embedding: 6660..6800,
        embedding_row_bytes: 14_336,
        panel_room_bytes: (16 << 20) + 8192,
        blocks: vec![(896, 16, 17_547_264); 92],
        block_room_bytes: 17_547_264 + 6 * 8192,
        state: StateBytes { fixed: 464_000_000, a_token: 55_000, log: 20_000_000, piece: 631_000, piece_log: 28_000, layer_token: 2304 },
        uses_bytes: 300_000,
        stream_row_bytes: 258_048,
        layer_row_bytes: 270_000,
        expert_row_bytes: 53_248,
        head_row_bytes: 350_000,
        logits_bytes: 655_360,
        index_bytes: 8 << 20,
        tokenizer_bytes: 0,
        row_flop: 208_000_000_000,
        head_flop: 2_000_000_000,
        pair_flop: 5_000_000,
    }
}

/// Bytes of weights, and hours.
fn cost(rows: &[RowFacts], m: &ModelFacts, limits: &Limits) -> (f64, f64) {
    let a = in_order(rows, m, limits).expect("fits");
    let f = forecast(Schedule::new(rows.to_vec(), Grouping::Input, a, m.state), m, Some(limits.weighed_by()));
    ((f.bytes_trunk + f.bytes_experts) as f64, f.wall_ms.expect("rates are given") as f64 / 3.6e6)
}

#[test]
fn prompts_of_a_wave_go_through_together_where_memory_is_short() {
    let (m, rows) = (largest_model(), vec![row(200, 8, false); 64]);
    let costs: Vec<(f64, f64)> = [3u64, 4, 5, 6, 8, 12].iter().map(|gib| cost(&rows, &m, &limits(gib << 30))).collect();
    assert!(costs.is_sorted_by(|a, b| a.1 > b.1), "{costs:?}");
    assert!(costs[0].0 < 50e12 && costs[4].0 < 28e12, "{costs:?}");
}

#[test]
fn a_disk_for_states_spares_weights_where_memory_holds_few() {
    let (m, rows) = (largest_model(), vec![row(200, 8, false); 64]);
    let with = |slots: u64| Limits {
        scratch: Scratch { slot_bytes: 1 << 30, slot_memory_bytes: 30_000, free_bytes: slots << 30, write_limit_bytes: None },
        ..limits(3 << 30)
    };
    let (none, all) = (cost(&rows, &m, &with(0)), cost(&rows, &m, &with(64)));
    assert!(all.0 < none.0 / 2.0 && all.1 < none.1 / 1.5, "{none:?} {all:?}");
    let a = in_order(&rows, &m, &with(64)).expect("fits");
    assert_eq!((a.states, a.pool), (States::Passing, 64));
    let forbidden = Limits { scratch: Scratch { write_limit_bytes: Some(1 << 30), ..with(64).scratch }, ..with(64) };
    assert_eq!(in_order(&rows, &m, &forbidden).expect("fits").states, States::Memory);
    assert_eq!(in_order(&rows, &m, &with(4)).expect("fits").states, States::Memory, "room for fewer than fit in memory");
}

prop_compose! {
    fn models()(
        panels in prop::collection::vec(1u64..300_000, 2..40),
        blocks in prop::collection::vec((1u64..40, 1u64..5, 1000u64..50_000), 0..6),
        fixed in 0u64..2_000_000,
        a_token in 0u64..4000,
        layer_row_bytes in 100u64..60_000,
    ) -> ModelFacts {
        let last = panels.len();
        ModelFacts {
            panel_room_bytes: panels.iter().max().expect("panels") + 8192,
            embedding: last - 1..last,
            panels,
            block_room_bytes: blocks.iter().map(|b| b.2 + 8192).max().unwrap_or(0),
            blocks: blocks.into_iter().map(|(count, chosen, bytes)| (count, chosen.min(count), bytes)).collect(),
            state: StateBytes { fixed, a_token, log: fixed / 20, piece: fixed / 8, piece_log: fixed / 160, layer_token: a_token / 3 },
            layer_row_bytes,
            ..facts()
        }
    }
}

proptest! {
    #[test]
    fn the_ledger_never_exceeds_the_budget(
        m in models(),
        budget in 50u64 << 20..300 << 20,
        lengths in prop::collection::vec((1u32..3000, 0u32..300, any::<bool>()), 1..50),
        wave in prop::option::of(1usize..100),
        resident in prop::option::of(0u64..100 << 20),
    ) {
        let rows: Vec<_> = lengths.iter().map(|&(p, n, d)| row(p, n, d)).collect();
        let limits = Limits { wave, resident_bytes: resident, ..limits(budget) };
        match in_order(&rows, &m, &limits) {
            Ok(a) => {
                prop_assert!(a.ledger.total() <= budget);
                prop_assert!(a.wave >= 1 && a.prefill_rows >= 1 && a.wave <= wave.unwrap_or(usize::MAX));
                prop_assert!(line(&a, "resident trunk") + line(&a, "resident experts") <= resident.unwrap_or(u64::MAX));
                let longest = rows.iter().filter(|r| !r.is_idle()).map(RowFacts::positions_max).max().unwrap_or(0);
                prop_assert!(a.state_bytes >= m.state.of(longest) || rows.iter().all(RowFacts::is_idle));
                prop_assert!((2..=4).contains(&(a.panel_ring_bytes / m.panel_room_bytes)));
                prop_assert!((1..=4).contains(&a.blocks_in_flight) && a.block_ring_bytes >= (a.blocks_in_flight + 1) * m.block_room_bytes);
            }
            Err(refusal) => {
                prop_assert!(refusal.smallest_bytes > budget);
                let enough = Limits { budget_bytes: refusal.smallest_bytes, ..limits.clone() };
                prop_assert_eq!(in_order(&rows, &m, &enough).map(|a| a.ledger.total()), Ok(refusal.smallest_bytes));
                let short = Limits { budget_bytes: refusal.smallest_bytes - 1, ..limits };
                prop_assert!(in_order(&rows, &m, &short).is_err());
            }
        }
    }

    /// A plan may read more than one with less memory where it spares the cores or the rings what that is worth: see `choose`. An
    /// embedding that stays is read whole.
    #[test]
    fn more_memory_never_means_a_worse_forecast(
        m in models(),
        lengths in prop::collection::vec((1u32..400, 0u32..40, any::<bool>()), 1..60),
        mut budgets in prop::collection::vec(0u64..200 << 20, 2..6),
        grouping in prop::sample::select(vec![Grouping::Input, Grouping::Length, Grouping::Random]),
    ) {
        let rows: Vec<_> = lengths.iter().map(|&(p, n, d)| row(p, n, d)).collect();
        let least = in_order(&rows, &m, &limits(0)).expect_err("nothing is too little").smallest_bytes;
        budgets.sort_unstable();
        let embedding = *m.panels.last().expect("an embedding") as f64;
        let mut allowed = f64::INFINITY;
        for budget in budgets {
            let a = allot(&rows, grouping, &m, &limits(least + budget)).expect("fits");
            let schedule = Schedule::new(rows.clone(), grouping, a, m.state);
            let f = forecast(schedule.clone(), &m, None);
            let bytes = (f.bytes_trunk + f.bytes_experts) as f64;
            prop_assert!(bytes <= allowed, "{} over {} with {} beside the least", bytes, allowed, budget);
            let (nothing, mut used) = (Weights::new(&m, 0, 0), 0.0);
            drive(schedule, |alike| {
                used += alike.sweeps as f64 * ((nothing.streamed + nothing.kept) as f64 + nothing.union(alike.rows as f64)[0]);
            });
            allowed = allowed.min((bytes + used / 16.0) * 1.05 + embedding + 2.0);
        }
    }
}
