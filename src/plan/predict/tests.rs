use proptest::prelude::*;

use super::mix::mixed;
use super::*;

const SIZE: Size = Size { blocks: 64, most: 20 };

/// A request whose prompt and answer go by its topic; of what an answer uses, a prompt shows a part.
fn request(i: u32) -> (PromptUse, Footprint) {
    let topic = i % 4;
    let all = Footprint::of([(topic, 0.9), (60, 1.0), (20 + i % 13, 0.4)], 64);
    (PromptUse { last: all.clone(), all, next: None }, Footprint::of([(topic, 0.5), (10 + topic, 0.8), (61, 1.0), (40 + i % 3, 0.2)], 64))
}

fn taught(kind: Kind, rows: u32) -> Predictor {
    let mut predictor = Predictor::new(kind, SIZE);
    for i in 0..rows {
        let (prompt, answer) = request(i);
        predictor.learn(&Known { prompt: Some(&prompt), table: None }, &answer, 5);
    }
    predictor
}

#[test]
fn auto_takes_the_prompt_until_rows_show_what_is_better() {
    let cold = taught(Kind::Auto, 0);
    let (prompt, answer) = request(2);
    let known = Known { prompt: Some(&prompt), table: None };
    assert_eq!(cold.name(), "prefill");
    assert_eq!(cold.predict(&known), taught(Kind::Prefill, 0).predict(&known));
    assert!(cold.confidence() < 0.25);
    let warm = taught(Kind::Auto, 200);
    assert_eq!(warm.name(), "learned");
    assert!(warm.confidence() > 0.5, "{warm:?}");
    let told: Vec<usize> = warm.predict(&known).iter().filter(|b| b.1 > 0.2).map(|b| b.0).collect();
    assert!(answer.iter().filter(|b| b.1 > 0.5).all(|(block, _)| told.contains(&block)), "{told:?}");
}

#[test]
fn a_predictor_that_has_nothing_to_go_by_hands_on() {
    let table = Footprint::of([(5, 0.5)], 9);
    let known = Known { prompt: None, table: Some(&table) };
    assert_eq!(taught(Kind::Auto, 0).predict(&known), table);
    for kind in [Kind::Prefill, Kind::Learned, Kind::Table, Kind::Probe { blocks: 20 }, Kind::Auto] {
        assert!(taught(kind, 0).predict(&Known::default()).is_empty(), "{kind:?}");
        let popular = taught(kind, 30).predict(&Known::default());
        assert_eq!(popular.iter().find(|b| b.0 == 61).map(|b| b.1), Some(1.0), "{kind:?}");
    }
}

#[test]
fn a_probe_looks_at_its_layers_alone() {
    let probe = taught(Kind::Probe { blocks: 4 }, 100);
    let (prompt, _) = request(1);
    let elsewhere = mixed(&[(1.0, &prompt.all), (1.0, &Footprint::of([(33, 1.0)], 1))], 64);
    let other = PromptUse { all: elsewhere.clone(), last: elsewhere, next: None };
    let predicted = |prompt| probe.predict(&Known { prompt: Some(prompt), table: None });
    assert_eq!(predicted(&prompt), predicted(&other));
    assert!(predicted(&prompt).iter().any(|(block, share)| block == 11 && share > 0.5));
    assert_eq!(probe.name(), "probe");
}

#[test]
fn a_copy_learns_by_itself() {
    let first = taught(Kind::Auto, 40);
    let mut copy = first.clone();
    let (prompt, _) = request(1);
    let known = Known { prompt: Some(&prompt), table: None };
    let before = first.predict(&known);
    assert_eq!(copy.predict(&known), before);
    for _ in 0..40 {
        copy.learn(&known, &Footprint::of([(50, 1.0)], 9), 5);
    }
    assert_eq!(first.predict(&known), before);
    assert_ne!(copy.predict(&known), before);
}

#[test]
fn sums_of_footprints_are_cut() {
    let (a, b) = (Footprint::of([(1, 0.5), (3, 0.2)], 9), Footprint::of([(1, 0.3), (2, 0.4)], 9));
    let sum: Vec<(usize, f32)> = mixed(&[(1.0, &a), (0.5, &b)], 2).iter().collect();
    assert_eq!(sum.iter().map(|b| b.0).collect::<Vec<_>>(), [1, 2]);
    assert!((sum[0].1 - 0.65).abs() < 0.01 && (sum[1].1 - 0.2).abs() < 0.01, "{sum:?}");
}

fn footprint() -> impl Strategy<Value = Footprint> {
    prop::collection::btree_map(0u32..80, 0.0f32..1.0, 0..40).prop_map(|uses| Footprint::of(uses, 80))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn any_routing_gives_shares_within_bounds_and_the_same_again(
        rows in prop::collection::vec((footprint(), footprint(), footprint(), 0u32..9), 1..60), looked in 0u32..100
    ) {
        for kind in [Kind::Auto, Kind::Probe { blocks: looked }] {
            let (mut predictor, mut again) = (Predictor::new(kind, SIZE), Predictor::new(kind, SIZE));
            for (all, last, answer, tokens) in &rows {
                let prompt = PromptUse { all: all.clone(), last: last.clone(), next: None };
                let known = Known { prompt: Some(&prompt), table: Some(last) };
                let told = predictor.predict(&known);
                prop_assert!(told.len() <= SIZE.most && (0.0..=1.0).contains(&predictor.confidence()));
                prop_assert_eq!(&told, &again.predict(&known));
                predictor.learn(&known, answer, *tokens);
                again.learn(&known, answer, *tokens);
            }
        }
    }
}
