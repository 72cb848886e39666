//! The engine against the reference: logits, routed sets, greedy continuations.

use super::*;

/// Logits may differ by so much of the largest logit's size.
const LOGITS_TOLERANCE: f32 = 1e-4;
/// A greedy choice is held to the golden's where the two best logits are further apart.
const CLEAR_MARGIN: f32 = 1e-3;

#[test]
fn every_golden_is_met() {
    let folders = goldens();
    assert!(folders.len() >= 6, "goldens are missing: {folders:?}");
    folders.iter().for_each(|folder| hold_to_golden(folder));
}

/// Logits, routed sets and greedy continuations of one golden folder.
fn hold_to_golden(folder: &Path) {
    let golden = Golden::open(folder);
    let prompts: Vec<Vec<u32>> = (0..golden.prompts()).map(|i| golden.ids(&format!("prompt.{i}"))).collect();
    assert!(prompts.len() >= 4, "a golden has four prompts");
    let greedy: Vec<Vec<u32>> = (0..prompts.len()).map(|i| golden.ids(&format!("greedy.{i}"))).collect();
    let requests: Vec<_> = prompts.iter().enumerate().map(|(i, p)| request(i, p.clone(), greedy[i].len() as u32)).collect();
    let bench = Bench::new(&folder.join("checkpoint"), &requests);
    let routed: Vec<usize> = bench.model.manifest().blocks().map(|(layer, _)| layer).collect();
    for (i, prompt) in prompts.iter().enumerate() {
        let (logits, routings) = logits_of(&bench, prompt);
        let expected = golden.floats(&format!("logits.{i}"));
        let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
        let worst = logits.iter().zip(&expected).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= LOGITS_TOLERANCE * size, "{}: prompt {i}: {worst} of {size}", folder.display());
        assert_eq!(routings.len(), routed.len());
        for (routing, layer) in routings.iter().zip(&routed) {
            let expected = golden.ids(&format!("experts.{i}.{layer}"));
            for (ours, theirs) in routing.ids.chunks(routing.chosen).zip(expected.chunks(routing.chosen)) {
                let sorted = |ids: &[u32]| {
                    let mut ids = ids.to_vec();
                    ids.sort_unstable();
                    ids
                };
                assert_eq!(sorted(ours), sorted(theirs), "{}: prompt {i}, layer {layer}", folder.display());
            }
        }
    }
    let (events, _) = bench.run(Kernels::detect(), 2, Grouping::Input, 8, 64);
    for (event, expected) in events.iter().zip(&greedy) {
        let all = [&prompts[event.index as usize][..], &event.tokens].concat();
        let (logits, _) = logits_of(&bench, &all);
        hold_greedy(event, expected, &logits, bench.model.manifest().vocab);
    }
}

/// The continuation is the golden's as long as its choices are clear.
fn hold_greedy(event: &Event, expected: &[u32], logits: &[f32], vocab: usize) {
    let prompt = logits.len() / vocab - event.tokens.len();
    for (n, (ours, theirs)) in event.tokens.iter().zip(expected).enumerate() {
        let row = &logits[(prompt + n - 1) * vocab..][..vocab];
        let best = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let second = row.iter().copied().filter(|&x| x < best).fold(f32::NEG_INFINITY, f32::max);
        if best - second < CLEAR_MARGIN {
            return;
        }
        assert_eq!(ours, theirs, "row {}, token {n}", event.index);
    }
    assert_eq!(event.tokens.len(), expected.len());
}
