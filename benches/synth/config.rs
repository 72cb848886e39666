//! A config.json with fewer layers and experts.

use std::path::Path;

use nightshift::error::{Error, Result};
use nightshift::model::{self, manifest::PANEL_BYTES};
use serde_json::{Map, Value, json};

/// Names that configs have for the number of a layer's experts.
const EXPERTS: [&str; 3] = ["num_experts", "num_local_experts", "n_routed_experts"];

/// `config` with only its first `layers` layers and `experts` experts a layer; lists that number layers are cut to fit. What each row chooses
/// stays as it is.
pub fn reduced(config: &str, layers: Option<usize>, experts: Option<usize>) -> Result<String> {
    let mut config: Value = serde_json::from_str(config).map_err(|e| Error::refused(format!("the shape is not JSON: {e}")))?;
    let nested = config.get("text_config").is_some();
    let text = if nested { &mut config["text_config"] } else { &mut config };
    let text = text.as_object_mut().ok_or_else(|| Error::refused("the shape is no JSON object"))?;
    if let Some(layers) = layers {
        set(text, "num_hidden_layers", layers)?;
        cut_lists(text, layers);
    }
    if let Some(experts) = experts {
        let name = EXPERTS.into_iter().find(|name| text.contains_key(*name)).unwrap_or(EXPERTS[0]);
        set(text, name, experts)?;
    }
    let text = serde_json::to_string_pretty(&config).map_err(|e| Error::refused(format!("the shape cannot be written: {e}")))? + "\n";
    check(&text, layers, experts)?;
    Ok(text)
}

/// Makes the count `name` smaller.
fn set(text: &mut Map<String, Value>, name: &str, count: usize) -> Result<()> {
    let held = text.get(name).and_then(Value::as_u64).unwrap_or(0);
    if !(1..=held).contains(&(count as u64)) {
        return Err(Error::usage(format!("the shape's `{name}` is {held}; choose 1 to {held}, not {count}")));
    }
    text.insert(name.into(), json!(count));
    Ok(())
}

/// Cuts every list `*_layers` of one-based numbers, here or one object deeper.
fn cut_lists(object: &mut Map<String, Value>, layers: usize) {
    for (name, value) in object.iter_mut() {
        match value {
            Value::Array(list) if name.ends_with("_layers") => list.retain(|n| n.as_u64().is_some_and(|n| n <= layers as u64)),
            Value::Object(deeper) => cut_lists(deeper, layers),
            _ => {}
        }
    }
}

/// The model says whether the smaller config is one, and whether it means what was asked for.
fn check(config: &str, layers: Option<usize>, experts: Option<usize>) -> Result<()> {
    let model = model::of_config(config.as_bytes(), Path::new("the smaller config.json"), PANEL_BYTES)?;
    let manifest = model.manifest();
    let same = layers.is_none_or(|n| n == manifest.layers.len()) && manifest.blocks().all(|(_, b)| experts.is_none_or(|n| n == b.count));
    if same { Ok(()) } else { Err(Error::refused("this architecture's layers or experts cannot be cut by their number alone")) }
}
