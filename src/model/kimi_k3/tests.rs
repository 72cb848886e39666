//! The released model's size from its config.

use std::path::Path;

use crate::model::manifest::{Manifest, PANEL_BYTES, StateSpec, Weight};
use crate::model::{Model, of_config, shape};

fn released() -> Box<dyn Model> {
    let config = shape("kimi-k3").expect("a published shape");
    of_config(config.as_bytes(), Path::new("config.json"), PANEL_BYTES).expect("the released config is valid")
}

#[test]
fn the_released_model_has_its_published_size() {
    let model = released();
    let m = model.manifest();
    let bytes = |w: &Weight| (w.rows() * w.cols() * 2) as f64;
    let ends = bytes(m.weight(m.embedding)) + bytes(m.weight(m.head));
    let trunk = m.weights.iter().map(bytes).sum::<f64>() - ends;
    assert!((trunk / 108.8e9 - 1.0).abs() < 0.005, "{trunk} bytes of trunk");
    assert!((ends / 2.0 / 2.35e9 - 1.0).abs() < 0.005, "{ends} bytes of embedding and head");
    let blocks: Vec<_> = m.blocks().map(|(_, b)| b).collect();
    assert_eq!((blocks.len(), blocks[0].bytes(), blocks[0].count * blocks.len()), (92, 17_547_264, 82_432));
    assert_eq!(m.token_floats() * 4, 24 * 576 * 4);
    assert_eq!(m.fixed_floats() * 4, 69 * 4 * (96 * 128 * 128 + 3 * 3 * 96 * 128));
    assert_eq!(m.stream_width, 9 * 7168);
    // A row in flight: the stream and what a layer needs beside it.
    let row_bytes = 4 * (m.stream_width + m.row_scratch);
    assert!(row_bytes < 600_000, "{row_bytes} bytes a row");
    let widest = m.weights.iter().filter(|w| w.rows() > 1).map(|w| w.panel_rows.min(w.rows()) * w.cols() * 2).max();
    assert!(widest <= Some(32 << 20), "a panel of {widest:?} bytes");
}

/// Stored tensors outside the experts, and those of the experts.
fn tensors(m: &Manifest) -> (usize, usize) {
    (m.weights.len(), m.blocks().map(|(_, b)| b.count * b.tensors().len()).sum())
}

#[test]
fn every_released_tensor_is_counted() {
    let model = released();
    let m = model.manifest();
    let (weights, of_blocks) = tensors(m);
    assert_eq!(of_blocks, 82_432 * 6);
    assert_eq!(weights, 23 + 68 * 28 + 24 * 22 + 5, "the dense layer, layers of delta and of latent attention, both ends");
    // What is left of the released 497,220: nothing but `vision_tower.*` and `mm_projector.*` may be ignored.
    assert_eq!(497_220 - weights - of_blocks, 168);
    // Nine heads' projections fill a panel: ten groups of nine and one of six, each with a state and records of its own.
    let of_heads = |heads: usize| StateSpec::Fixed { floats: heads * 128 * (9 + 128), log: 6 * heads * 128 };
    let count = |heads| m.states.iter().filter(|s| **s == of_heads(heads)).count();
    assert_eq!((count(9), count(6), m.states.len()), (69 * 10, 69, 69 * 11 + 24));
    let block: Vec<_> = m.blocks().take(1).flat_map(|(_, b)| b.tensors()).map(|t| t.shape).collect();
    assert_eq!(block, [[3072, 1792], [3072, 112], [3072, 1792], [3072, 112], [3584, 1536], [3584, 96]]);
}

#[test]
fn a_shape_has_a_name() {
    assert!(shape("kimi-k3").is_some() && shape("kimi").is_none() && shape("").is_none());
}
