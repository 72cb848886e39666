//! The released model's size from its config.

use std::path::Path;

use serde_json::{Value, json};

use super::*;
use crate::model::manifest::{PANEL_BYTES, Weight};

fn demo() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo-model/config.json");
    serde_json::from_str(&std::fs::read_to_string(path).expect("the demo model's config")).expect("JSON")
}

/// The demo model's config with the released widths.
fn released() -> Value {
    let mut config = demo();
    let text = config["text_config"].as_object_mut().expect("an object");
    for (name, value) in [
        ("hidden_size", 7168),
        ("num_hidden_layers", 93),
        ("vocab_size", 163_840),
        ("num_attention_heads", 96),
        ("num_key_value_heads", 96),
        ("q_lora_rank", 1536),
        ("kv_lora_rank", 512),
        ("qk_nope_head_dim", 128),
        ("qk_rope_head_dim", 64),
        ("v_head_dim", 128),
        ("num_experts", 896),
        ("num_experts_per_token", 16),
        ("routed_expert_hidden_size", 3584),
        ("moe_intermediate_size", 3072),
        ("intermediate_size", 33_792),
        ("attn_res_block_size", 12),
    ] {
        text.insert(name.into(), json!(value));
    }
    let mla: Vec<usize> = (1..=93).filter(|l| l % 4 == 0 || *l == 93).collect();
    let kda: Vec<usize> = (1..=93).filter(|l| !mla.contains(l)).collect();
    let linear = text["linear_attn_config"].as_object_mut().expect("an object");
    linear.insert("num_heads".into(), json!(96));
    linear.insert("head_dim".into(), json!(128));
    linear.insert("full_attn_layers".into(), json!(mla));
    linear.insert("kda_layers".into(), json!(kda));
    config
}

#[test]
fn the_released_model_has_its_published_size() {
    let model = KimiK3::from_config(&released(), PANEL_BYTES).expect("the released config is valid");
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
