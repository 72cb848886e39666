use super::*;
use crate::model::manifest::PANEL_BYTES;
use crate::model::{self, Model};

fn released() -> Box<dyn Model> {
    let config = model::shape(model::SHAPES[0].0).expect("a shape").to_string();
    model::of_config(config.as_bytes(), std::path::Path::new("config.json"), PANEL_BYTES).expect("a model")
}

#[test]
fn small_weights_stay_whole_and_matrices_stream() {
    let model = released();
    let manifest = model.manifest();
    let whole: u64 = manifest.weights.iter().filter(|w| w.whole).map(|w| 4 * (w.rows() * w.cols()) as u64).sum();
    assert!(whole > 1 << 20 && whole < 80 << 20, "{whole} bytes of small weights");
    for weight in &manifest.weights {
        let panels: u64 = panel_bytes(weight, 2 * (weight.rows() * weight.cols()) as u64).sum();
        assert_eq!(panels, if weight.whole { 0 } else { product_flop(weight) }, "{}", weight.name);
    }
    assert!(!manifest.weight(manifest.head).whole && !manifest.weight(manifest.embedding).whole);
}

#[test]
fn the_released_model_takes_about_208_gflop_a_row() {
    let flop = row_flop(released().manifest());
    assert!((195_000_000_000..215_000_000_000).contains(&flop), "{flop}");
}

#[test]
fn a_ledger_above_what_the_machine_has_is_said() {
    assert_eq!(shortage(2_000_000_001, 2_000_000_000).as_deref(), Some("the machine has only 2.00 GB left"));
    assert_eq!((shortage(2_000_000_000, 2_000_000_000), shortage(9, 0)), (None, None));
}
