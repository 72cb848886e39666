//! Checkpoints of random weights: in the released layout to the last tensor, the same however they are cut, and half a million tensors long.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nightshift::error::Kind;
use serde_json::{Value, json};

use crate::house::{House, args, root};
use crate::maker::{Wanted, config::reduced, room, write};
use crate::model::shard;

fn tiny() -> String {
    fs::read_to_string(root().join("fixtures/goldens/tiny/checkpoint/config.json")).expect("the fixture")
}

fn wanted(config: &str, shards: usize) -> Wanted {
    Wanted { config: config.into(), shards: Some(shards), seed: 7, headers_only: false }
}

/// Where each expert's tensors begin and end in the shards in `folder`, and how many bytes they have.
fn experts(folder: &Path) -> Vec<(u64, u64, u64)> {
    let mut found = BTreeMap::new();
    for path in fs::read_dir(folder).expect("a checkpoint").map(|entry| entry.expect("an entry").path()) {
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        for (name, entry) in shard(&fs::read(&path).expect("a shard")).0.as_object().expect("a header") {
            let Some((prefix, rest)) = name.split_once(".experts.") else { continue };
            let at = [0, 1].map(|i| entry["data_offsets"][i].as_u64().expect("an offset"));
            let expert = (path.clone(), prefix.to_string(), rest.split('.').next().expect("a number").to_string());
            let (from, to, bytes) = found.entry(expert).or_insert((u64::MAX, 0, 0));
            (*from, *to, *bytes) = (at[0].min(*from), at[1].max(*to), *bytes + at[1] - at[0]);
        }
    }
    found.into_values().collect()
}

/// Type, shape and bytes of every tensor that the shards in `folder` hold, by name.
fn tensors(folder: &Path) -> BTreeMap<String, (Value, Value, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a checkpoint") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|e| e != "safetensors") {
            continue;
        }
        let (header, data) = shard(&fs::read(&path).expect("a shard"));
        for (name, entry) in header.as_object().expect("a header").iter().filter(|(name, _)| *name != "__metadata__") {
            let at = |i: usize| entry["data_offsets"][i].as_u64().expect("an offset") as usize;
            let twin = found.insert(name.clone(), (entry["dtype"].clone(), entry["shape"].clone(), data[at(0)..at(1)].to_vec()));
            assert!(twin.is_none(), "{name} lies twice");
        }
    }
    found
}

#[test]
fn a_synthetic_checkpoint_has_the_released_layout() {
    let house = House::new();
    let out = house.path("synth");
    let made = write(&wanted(&tiny(), 2), &out).expect("written");
    let (ours, theirs) = (tensors(&out), tensors(&root().join("fixtures/goldens/tiny/checkpoint")));
    assert_eq!(made.tensors as usize, ours.len());
    let layout =
        |t: &BTreeMap<String, (Value, Value, Vec<u8>)>| t.iter().map(|(n, t)| (n.clone(), t.0.clone(), t.1.clone())).collect::<Vec<_>>();
    assert_eq!(layout(&ours), layout(&theirs));
    let scales = ours.iter().filter(|(name, _)| name.ends_with("_scale")).flat_map(|(_, t)| &t.2);
    assert!(scales.clone().count() > 10_000 && scales.clone().all(|s| (100..127).contains(s)), "scales near 2^-7");
    let map: Value = serde_json::from_slice(&fs::read(out.join("model.safetensors.index.json")).expect("an index")).expect("JSON");
    let index: BTreeSet<&String> = map["weight_map"].as_object().expect("a map").keys().collect();
    assert!(index.into_iter().eq(ours.keys()), "the index names each tensor");
    let (experts, theirs) = (experts(&out), experts(&root().join("fixtures/goldens/tiny/checkpoint")));
    assert!(
        experts.len() == theirs.len() && experts.iter().all(|(from, to, bytes)| to - from == *bytes),
        "an expert's tensors lie together"
    );
}

#[test]
fn a_synthetic_checkpoint_is_the_same_however_it_is_cut_and_runs() {
    let house = House::new();
    let config = reduced(&tiny(), Some(4), Some(12)).expect("a smaller shape");
    let [one, many] = [1, 5].map(|n| {
        let out = house.fresh("synth");
        assert_eq!(write(&wanted(&config, n), &out).expect("written").files, n as u64);
        out
    });
    let weights = tensors(&one);
    assert!(weights == tensors(&many), "values depend on seed and name alone");
    let other = house.fresh("synth");
    write(&Wanted { seed: 8, ..wanted(&config, 1) }, &other).expect("written");
    assert!(weights != tensors(&other), "another seed gives other weights");

    let lines: Vec<Value> = (0..6).map(|i| json!({ "prompt_token_ids": (0..20).map(|j| i * 31 + j * 7).collect::<Vec<_>>() })).collect();
    let set = format!("model.path={}", many.display());
    let rows = house.answers(&lines, &[&set, "sampling.max_tokens=4", "sampling.logprobs=true", "sampling.ignore_eos=true"], 0);
    for row in &rows {
        let logprobs = row.logprobs.as_ref().expect("asked for");
        assert!(logprobs.iter().all(|bits| (-20.0..0.0).contains(&f32::from_bits(*bits))), "{row:?}");
    }
    assert!(rows.iter().any(|row| row.tokens() != rows[0].tokens()), "answers depend on prompts");
}

#[test]
fn what_cannot_be_made_is_refused() {
    let house = House::new();
    let out = house.path("synth");
    house.write("synth/notes.txt", "mine");
    let used = write(&wanted(&tiny(), 1), &out).expect_err("not empty");
    assert!(used.kind == Kind::OtherJob && used.message.contains("not empty"), "{used}");
    assert!(room(&out, 0).is_ok());
    let full = room(&out, u64::MAX).expect_err("no disk is as large");
    assert!(full.kind == Kind::Storage && full.message.contains("--layers"), "{full}");
    for (layers, experts, said) in
        [(Some(14), None, "num_hidden_layers"), (Some(0), None, "num_hidden_layers"), (None, Some(2), "num_experts")]
    {
        let fault = reduced(&tiny(), layers, experts).expect_err("refused");
        assert!(fault.message.contains(said), "{fault}");
    }
}

#[test]
fn half_a_million_tensors_are_indexed_in_little_memory() {
    let house = House::new();
    let out = house.path("released");
    let config = nightshift::model::shape("kimi-k3").expect("a shape").to_string();
    let made = write(&Wanted { config, shards: None, seed: 0, headers_only: true }, &out).expect("written");
    assert_eq!((made.tensors, made.files), (497_052, 96));
    let input = house.lines("rows.jsonl", &[json!({ "id": "a", "prompt_token_ids": [1, 2, 3] })]);
    let set = format!("model.path={}", out.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_nightshift"));
    command.args(args("plan", &input, &house.path("out"), &[&set, "engine.memory=3GiB"])).arg("--json");
    let mut child = command.stdout(Stdio::piped()).spawn().expect("the command starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kb = 0;
    while child.try_wait().expect("a child").is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let peak = text.lines().find_map(|l| l.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
        peak_kb = peak.unwrap_or(0).max(peak_kb);
        std::thread::sleep(Duration::from_millis(2));
    }
    let done = child.wait_with_output().expect("its output");
    assert!(done.status.success(), "{done:?}");
    let plan: Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let lines = plan["ledger"]["lines"].as_array().expect("the ledger");
    let index = lines.iter().find(|l| l["name"] == "index").and_then(|l| l["bytes"].as_u64()).expect("a line of it");
    assert!((494_592 * 16..10_000_000).contains(&index), "{index} bytes kept");
    assert!(peak_kb > 0 && peak_kb < 120_000, "{peak_kb} kB at most while the index is built");
}
