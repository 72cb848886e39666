use super::*;

const SIZE: Size = Size { blocks: 40, most: 40 };

/// A prompt of topic 0 or 1, with a block of its own; its answer uses its topic's other block.
fn row(i: u32) -> (PromptUse, Footprint) {
    let topic = i % 2;
    let prompt = Footprint::of([(topic, 0.8), (4 + i * 7 % 30, 0.3)], 40);
    (PromptUse { all: prompt, last: Footprint::of([(topic, 1.0)], 40), next: None }, Footprint::of([(2 + topic, 0.9), (39, 0.5)], 40))
}

fn taught(rows: u32) -> Regression {
    let mut regression = Regression::new(SIZE, SIZE.blocks);
    for i in 0..rows {
        let (prompt, answer) = row(i);
        regression.learn(&Known { prompt: Some(&prompt), table: None }, &answer);
    }
    regression
}

#[test]
fn answers_to_like_prompts_are_foretold() {
    assert_eq!(taught(ROWS_MIN as u32 - 1).predict(&row(0).0), None, "too few rows");
    let shares = taught(60).predict(&row(1001).0).expect("a fit");
    assert!(shares[3] > 0.7 && shares[2] < 0.2, "{shares:?}");
    assert!((shares[39] - 0.5).abs() < 0.01, "what all answers use: {}", shares[39]);
}

#[test]
fn the_newest_rows_are_kept_and_fits_are_few() {
    let mut regression = Regression::new(SIZE, SIZE.blocks);
    let mut fits = 0;
    for i in 0..ROWS_MAX as u32 + 300 {
        let (prompt, answer) = row(i);
        regression.learn(&Known { prompt: Some(&prompt), table: None }, &answer);
        fits += usize::from(regression.unfitted == 0);
    }
    assert_eq!(regression.rows.len(), ROWS_MAX);
    assert_eq!(regression.distances.len(), ROWS_MAX * ROWS_MAX);
    assert!((15..25).contains(&fits), "{fits}");
    // Distances of a place taken over are those of the new row.
    let (i, j) = (300, 299);
    let direct = regression.rows[i].distances(&regression.rows, SIZE.blocks)[j];
    assert_eq!(regression.distances[i * ROWS_MAX + j], direct);
    assert_eq!(regression.rows[299].answer, row(ROWS_MAX as u32 + 299).1);
}

#[test]
fn prompts_that_are_all_the_same_give_the_mean() {
    let mut regression = Regression::new(SIZE, SIZE.blocks);
    let prompt = PromptUse::default();
    for i in 0..40u32 {
        let answer = Footprint::of([(i % 2, 1.0)], 9);
        regression.learn(&Known { prompt: Some(&prompt), table: None }, &answer);
    }
    let shares = regression.predict(&prompt).expect("a fit");
    assert!((shares[0] - 0.5).abs() < 0.01 && (shares[1] - 0.5).abs() < 0.01, "{:?}", &shares[..2]);
}

#[test]
fn blocks_beyond_the_model_or_the_first_layers_are_not_looked_at() {
    let wild = Footprint::of([(39, 1.0), (40, 1.0), (1 << 20, 1.0)], 9);
    let prompt = PromptUse { all: wild.clone(), last: wild.clone(), next: None };
    let mut regression = Regression::new(SIZE, 10);
    for _ in 0..20 {
        regression.learn(&Known { prompt: Some(&prompt), table: None }, &wild);
    }
    assert!(regression.rows[0].prompt[0].is_empty());
    assert_eq!(regression.predict(&prompt).expect("a fit").len(), 40);
}

#[test]
fn a_factor_solves() {
    let n = 19;
    // Positive definite: likenesses of points on a line.
    let like = |i: usize, j: usize| (-((i as f64 - j as f64) / 3.0).powi(2)).exp() + if i == j { NOISE } else { 0.0 };
    let matrix = (0..n * n).map(|at| like(at / n, at % n)).collect();
    let b: Vec<f64> = (0..n).map(|i| (i * i % 7) as f64).collect();
    let x = Factor::of(matrix, n).solve(b.clone());
    for (i, told) in b.iter().enumerate() {
        let found: f64 = (0..n).map(|j| like(i, j) * x[j]).sum();
        assert!((found - told).abs() < 1e-9, "{found} {told}");
    }
}
