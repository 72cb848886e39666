//! `nightshift verify`: what it says of whole models and of every kind of damage, and that it remembers.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::house::{Done, House, demo_model, finish, is_root, root, skip};
use crate::model::{Model, shard, unshard};

const INDEX: &str = "model.safetensors.index.json";
const FIRST: &str = "model-00001-of-00004.safetensors";
const SECOND: &str = "model-00002-of-00004.safetensors";
const THIRD: &str = "model-00003-of-00004.safetensors";
const EMBEDDING: &str = "language_model.model.embed_tokens.weight";
const NORM: &str = "language_model.model.norm.weight";
const EXPERT: &str = "language_model.model.layers.1.block_sparse_moe.experts.7.w3.";

fn verify(house: &House, model: &Model, more: &[&str]) -> Done {
    let args = [&["verify", model.folder.to_str().expect("a path of text")], more].concat();
    house.command(&args.iter().map(OsStr::new).collect::<Vec<_>>())
}

/// The report of a verification that ends with `code`.
#[track_caller]
fn report(house: &House, model: &Model, code: i32) -> Value {
    let done = verify(house, model, &["--json"]);
    done.says(code, &[]);
    let report: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!(report["ok"], json!(code == 0), "{report}");
    let told = report["faults"].as_array().expect("faults").len() as u64;
    assert_eq!(report["faults_total"].as_u64().expect("a count").min(20), told);
    report
}

#[track_caller]
fn faults(house: &House, model: &Model, expected: &[&[&str]]) {
    let report = report(house, model, if expected.is_empty() { 0 } else { 3 });
    let faults = report["faults"].as_array().expect("faults");
    assert_eq!(faults.len(), expected.len(), "{report:#}");
    for (fault, parts) in faults.iter().zip(expected) {
        let fault = fault.as_str().expect("text");
        parts.iter().for_each(|part| assert!(fault.contains(part), "{part:?} is not in {fault:?}"));
    }
}

#[test]
fn whole_models_are_whole_and_known_the_second_time() {
    let house = House::new();
    let mut folders = vec![demo_model()];
    let goldens = fs::read_dir(root().join("fixtures/goldens")).expect("goldens");
    folders.extend(goldens.map(|entry| entry.expect("an entry").path().join("checkpoint")));
    for folder in folders {
        let model = house.model_of(&folder);
        let listed = || {
            let mut names: Vec<_> = fs::read_dir(&model.folder).expect("a folder").map(|e| e.expect("an entry").file_name()).collect();
            names.sort();
            names
        };
        let before = listed();
        let first = report(&house, &model, 0);
        let shards = before.iter().filter(|name| name.to_string_lossy().ends_with(".safetensors"));
        let data = |name: &std::ffi::OsString| shard(&model.read(&name.to_string_lossy())).1.len() as u64;
        assert_eq!(first["weight_bytes"], json!(shards.map(data).sum::<u64>()), "{folder:?}");
        assert!(first["bytes_read"].as_u64() >= first["weight_bytes"].as_u64());
        let counts = |recorded: &Value, same: &Value| {
            let folder = house.path("cache/nightshift").join(first["fingerprint"].as_str().expect("a fingerprint"));
            json!({ "recorded": recorded, "same": same, "changed": 0, "folder": folder.display().to_string() })
        };
        let pieces = first["pieces"].clone();
        assert_eq!(first["checksums"], counts(&pieces, &json!(0)), "{folder:?}");
        assert_eq!(report(&house, &model, 0)["checksums"], counts(&json!(0), &pieces));
        assert_eq!(first["notes"], json!([]));
        assert_eq!(listed(), before, "nothing is written into the model's folder");
    }
}

#[test]
fn a_byte_that_flips_after_the_first_time_is_named() {
    let house = House::new();
    let model = house.model();
    let packed = format!("{EXPERT}weight_packed");
    // Copies in the places of links, so that later only bytes of tensors change; and those lie where the fingerprint takes no sample.
    model.tensor(SECOND, &packed, |_| {});
    model.tensor(FIRST, EMBEDDING, |_| {});
    let first = report(&house, &model, 0);
    model.tensor(SECOND, &packed, |bytes| bytes[1_000] ^= 4);
    model.tensor(FIRST, EMBEDDING, |bytes| bytes[512 * 2_001] ^= 1);
    let panel = [EMBEDDING, "rows 0 to 4095", FIRST, "not those recorded", "recorded", "download it again", "delete", "cache/nightshift/"];
    let block = ["experts.7.w1.weight_packed", "5 others of its block", SECOND, "not those recorded", "recorded", "download it again"];
    faults(&house, &model, &[&panel, &block]);
    let text = verify(&house, &model, &[]);
    assert!(text.out.contains("2 changed") && text.out.contains("verdict     2 faults"), "{text:?}");
    model.tensor(SECOND, &packed, |bytes| bytes[1_000] ^= 4);
    model.tensor(FIRST, EMBEDDING, |bytes| bytes[512 * 2_001] ^= 1);
    assert_eq!(report(&house, &model, 0)["checksums"]["same"], first["pieces"]);
}

#[test]
fn what_is_no_number_is_named_and_all_is_told_at_once() {
    let house = House::new();
    let model = house.model();
    let scale = format!("{EXPERT}weight_scale");
    model.tensor(SECOND, &scale, |bytes| bytes[100] = 255);
    model.tensor(FIRST, EMBEDDING, |bytes| bytes[512 * 77..][..4].copy_from_slice(&[0x80, 0x7f, 0xc0, 0xff]));
    model.edit("tiktoken.model", |bytes| bytes.truncate(bytes.len() - 3));
    let embedding = [EMBEDDING, FIRST, "2 values that are NaN or infinite", "row 77;"];
    faults(&house, &model, &[&embedding, &[&scale, SECOND, "scale of 255"], &["tiktoken.model"]]);
}

#[test]
fn damaged_shards_are_told_all_at_once() {
    let house = House::new();
    let model = house.model();
    model.edit(SECOND, |bytes| bytes.truncate(bytes.len() - 1_000));
    model.edit(THIRD, |bytes| bytes.truncate(5_000));
    faults(&house, &model, &[&[SECOND, "1000 bytes are missing"], &[THIRD, "cut short"]]);
    let text = verify(&house, &model, &[]);
    text.says(3, &[]);
    assert!(text.out.contains("no weight was read") && text.out.matches("fault ").count() == 2, "{text:?}");
    model.remove(SECOND);
    faults(&house, &model, &[&[SECOND, "not in the folder"]]);
    assert!(!house.path("cache").exists());
    verify(&house, &Model { folder: house.path("nowhere") }, &[]).says(3, &["nowhere/config.json", "MODEL"]);
}

#[test]
fn what_is_not_read_is_named() {
    let house = House::new();
    let model = house.model();
    let (header, data) = shard(&model.read(FIRST));
    let range = |i: usize| header[NORM]["data_offsets"][i].as_u64().expect("an offset") as usize;
    let norm = &data[range(0)..range(1)];
    let mut entries = json!({ NORM: { "dtype": "BF16", "shape": [256], "data_offsets": [0, norm.len()] } });
    for i in 0..5 {
        let at = norm.len() + i;
        entries[format!("vision_tower.{i}")] = json!({ "dtype": "U8", "shape": [1], "data_offsets": [at, at + 1] });
    }
    model.put("extra.safetensors", unshard(&entries, &[norm, &[0; 5]].concat()));
    model.put(&format!("._{FIRST}"), [0, 5, 22, 7]);
    model.put("model-00005-of-00005.safetensors.incomplete", "half");
    let strays = json!([format!("._{FIRST}"), "extra.safetensors", "model-00005-of-00005.safetensors.incomplete"]);
    assert_eq!(report(&house, &model, 0)["stray_files"], strays);

    let mut index: Value = serde_json::from_slice(&model.read(INDEX)).expect("JSON");
    index["weight_map"]["vision_tower.0"] = json!("extra.safetensors");
    model.put(INDEX, index.to_string());
    let copies = |file: &str| json!({ "count": 1, "first": [format!("`{NORM}` in {file}")] });
    let told = report(&house, &model, 0);
    assert_eq!(told["ignored_copies"], copies("extra.safetensors"));
    assert_eq!(told["unused_tensors"]["count"], json!(5));
    assert_eq!(told["stray_files"].as_array().map(Vec::len), Some(2));
    let text = verify(&house, &model, &[]).out;
    assert!(text.contains("not used    5: vision_tower.0, vision_tower.1, vision_tower.2 and 2 more\n"), "{text}");
    index["weight_map"][NORM] = json!("extra.safetensors");
    model.put(INDEX, index.to_string());
    assert_eq!(report(&house, &model, 0)["ignored_copies"], copies(FIRST));
}

#[test]
fn a_row_of_a_streamed_embedding_that_flips_stops_a_job() {
    let house = House::new();
    let model = house.model();
    model.tensor(FIRST, EMBEDDING, |_| {});
    let input = house.lines("in.jsonl", &[json!({ "prompt_token_ids": [5, 2_001, 7] })]);
    let set = model.set();
    let sets = [&*set, "engine.resident=0", "sampling.max_tokens=1"];
    house.run(&input, &house.path("first"), &sets).says(0, &[]);
    house.run(&input, &house.path("again"), &sets).says(0, &[]);
    model.tensor(FIRST, EMBEDDING, |bytes| bytes[512 * 2_001] ^= 1);
    house.run(&input, &house.path("after"), &sets).says(5, &[EMBEDDING, "row 2001", FIRST, "not those recorded"]);
}

#[test]
fn a_cache_that_cannot_be_used_is_a_line_and_no_fault() {
    let house = House::new();
    let model = house.model();
    let file = house.write("file", "mine");
    verify(&house, &model, &["--cache", "file"]).says(2, &["file", "--cache"]);
    let below = verify(&house, &model, &["--cache", "file/below"]);
    below.says(0, &[]);
    assert!(below.out.contains("note        nothing is remembered") && below.out.contains("no fault found"), "{below:?}");
    assert_eq!(fs::read(&file).expect("there"), b"mine");

    let named = verify(&house, &model, &["--cache", "named", "--json"]);
    let fingerprint: Value = serde_json::from_str(&named.out).expect("JSON");
    let folder = house.path("named").join(fingerprint["fingerprint"].as_str().expect("a fingerprint"));
    let files = fs::read_dir(&folder).expect("made").map(|entry| entry.expect("an entry").path());
    let named = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("checksums-"));
    let sums = files.into_iter().find(named).expect("recorded");
    let good = fs::read(&sums).expect("recorded");
    fs::write(&sums, &good[..good.len() / 2]).expect("written");
    let damaged = verify(&house, &model, &["--cache", "named"]);
    damaged.says(0, &[]);
    assert!(damaged.out.contains("is damaged or of another form"), "{damaged:?}");
    assert_eq!(fs::read(&sums).expect("taken anew"), good);
    assert!(!house.path("cache").exists(), "--cache moves it");
}

#[test]
fn without_a_home_nothing_is_written() {
    let house = House::new();
    let work = house.path("work");
    let binary = house.path("nightshift");
    fs::create_dir(&work).expect("made");
    fs::copy(env!("CARGO_BIN_EXE_nightshift"), &binary).expect("copied");
    let model = house.path("model");
    fs::create_dir(&model).expect("made");
    for entry in fs::read_dir(root().join("fixtures/goldens/tiny/checkpoint")).expect("a model") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, model.join(path.file_name().expect("a name"))).expect("copied");
    }
    for folder in [work.parent().expect("a folder"), &work, &model] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).expect("permissions");
    }
    if !is_root() {
        skip("only root may become another user: the home is merely unset");
    }
    for home in [&[][..], &[("HOME", "/")], &[("HOME", "/nonexistent"), ("XDG_CACHE_HOME", "relative/dir")]] {
        let mut command = Command::new(&binary);
        command.arg("verify").arg(&model).env_clear().envs(home.iter().copied()).current_dir(&work);
        if is_root() {
            command.uid(65_534).gid(65_534);
        } else if home.len() == 1 {
            continue;
        }
        let done = finish(&mut command);
        done.says(0, &[]);
        assert!(done.out.contains("nothing is remembered"), "{home:?}: {done:?}");
        assert_eq!(fs::read_dir(&work).expect("a folder").count(), 0, "nothing is written into the current folder");
    }
}
