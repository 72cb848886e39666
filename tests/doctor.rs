//! The machine looked at, and a model rehearsed that is not there.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::house::{Done, House, demo_model, finish, skip};

/// The doctor with a cache folder of its own.
fn doctor(house: &House, args: &[&OsStr]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nightshift"));
    finish(command.arg("doctor").args(args).env("XDG_CACHE_HOME", house.path("cache")).current_dir(house.path("")))
}

/// `--shape` of the demo model's config with little to write.
fn rehearse(house: &House, scratch: &Path, more: &[&str]) -> Done {
    let config = demo_model().join("config.json");
    let mut args = vec![OsStr::new("--shape"), config.as_os_str(), OsStr::new("--scratch"), scratch.as_os_str()];
    args.extend(["--scratch-bytes", "20MB", "--memory", "400MiB"].iter().chain(more).map(OsStr::new));
    doctor(house, &args)
}

fn empty(folder: &Path) -> bool {
    fs::read_dir(folder).expect("a folder").next().is_none()
}

#[test]
fn the_machine_is_told_and_nothing_is_left() {
    let house = House::new();
    let done = doctor(&house, &[]);
    done.says(0, &[]);
    for said in ["kernel", "engine.kernel", "memory", "for a job", "threads", "io_uring", "O_DIRECT", "free"] {
        assert!(done.out.contains(said), "{said}: {done:?}");
    }
    assert!(empty(&house.path("")));
    let model = demo_model();
    let done = doctor(&house, &[model.as_os_str()]);
    done.says(0, &[]);
    assert!(done.out.contains("not measured: the largest shard has only"), "{done:?}");
    let done = doctor(&house, &[model.as_os_str(), OsStr::new("--json")]);
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    assert!(["scalar", "avx2", "avx512"].contains(&json["kernel"].as_str().expect("a kernel")));
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    assert!(bytes(&json["job_memory_bytes"]) < bytes(&json["memory"]["host_available_bytes"]));
    assert!(bytes(&json["memory"]["host_available_bytes"]) < bytes(&json["memory"]["host_bytes"]));
    assert_eq!(json["model"]["folder"].as_str().map(Path::new), Some(model.canonicalize().expect("a model").as_path()));
    doctor(&house, &[OsStr::new("absent")]).says(3, &["absent"]);
}

#[test]
fn a_shape_is_rehearsed_and_its_scratch_is_gone() {
    let house = House::new();
    fs::create_dir(house.path("scratch")).expect("made");
    let done = rehearse(&house, &house.path("scratch"), &["--json", "--rows", "50", "--prompt-tokens", "20", "--new-tokens", "5"]);
    done.says(0, &["writing", "both at once"]);
    assert!(empty(&house.path("scratch")));
    let json: Value = serde_json::from_str(&done.out).expect("JSON");
    let (measured, computed) = (&json["measured"], &json["computed"]);
    let rows: Vec<u64> = measured["experts"].as_array().expect("rates").iter().filter_map(|r| r["rows"].as_u64()).collect();
    assert!([1, 16, 64, 256, 1024].starts_with(&rows) && rows.len() > 1, "{rows:?}");
    assert!(measured["trunk"].as_array().expect("rates").iter().all(|r| r["flops_per_s"].as_u64().is_some_and(|n| n > 0)));
    let lines = computed["ledger"]["lines"].as_array().expect("a ledger");
    let total: u64 = lines.iter().filter_map(|l| l["bytes"].as_u64()).sum();
    assert!(total <= 400 << 20 && Some(total) == computed["ledger_total"].as_u64(), "{computed}");
    if measured["disk"]["bytes_per_s"].is_u64() {
        assert_eq!(measured["disk"]["passes"].as_array().map(Vec::len), Some(3));
        assert_eq!((computed["prompts"]["tokens"].as_u64(), computed["answers"]["tokens"].as_u64()), (Some(1000), Some(200)));
        assert!(computed["documents_a_night"].as_f64().is_some_and(|n| n > 0.0), "{computed}");
    } else {
        assert!(measured["disk"]["doubt"].is_string() && computed["documents_a_night"].is_null(), "{json}");
        skip("the temporary folder lies in memory, so no disk was rehearsed");
    }
    let saved: Value = serde_json::from_slice(&fs::read(house.path("cache/nightshift/machine.json")).expect("rates")).expect("JSON");
    assert_eq!(&saved, measured);
    assert!(doctor(&house, &[]).out.contains("rehearsed"), "an earlier rehearsal is told");
}

#[test]
fn memory_is_never_taken_for_a_disk() {
    let house = House::new();
    let Ok(shm) = tempfile::tempdir_in("/dev/shm") else { return skip("there is no /dev/shm") };
    let done = rehearse(&house, shm.path(), &[]);
    done.says(0, &[]);
    assert!(done.out.contains("no figure") && done.out.contains("time") && !done.out.contains("in a night"), "{done:?}");
    assert!(empty(shm.path()));
}

#[test]
fn what_cannot_be_rehearsed_is_refused_before_anything_is_written() {
    let house = House::new();
    let here = house.path("");
    let args = |name, more: &[&'static str]| {
        let fixed = ["--shape", name, "--scratch", "."];
        fixed.iter().chain(more).map(|arg| OsStr::new(*arg).to_owned()).collect::<Vec<_>>()
    };
    let run = |name, more: &[&'static str]| doctor(&house, &args(name, more).iter().map(AsRef::as_ref).collect::<Vec<&OsStr>>());
    run("kimi-k3", &["--scratch-bytes", "1000TB"]).says(3, &["free", "--scratch"]);
    run("kimi-k3", &["--memory", "200MiB"]).says(3, &["at least", "MiB"]);
    run("kimi-k4", &[]).says(2, &["--shape", "did you mean `kimi-k3`"]);
    run("kimi-k3", &["--memory", "much"]).says(2, &["--memory"]);
    run("kimi-k3", &["--rows", "0"]).says(2, &["--rows"]);
    let odd = house.write("odd.json", "{\"model_type\": \"other\"}");
    run(Box::leak(odd.to_string_lossy().into_owned().into_boxed_str()), &[]).says(3, &["other"]);
    assert!(!house.path("cache").exists() && fs::read_dir(&here).expect("a folder").count() == 1);
    doctor(&house, &[OsStr::new("--shape"), OsStr::new("kimi-k3"), OsStr::new("--scratch"), OsStr::new("absent")]).says(3, &["absent"]);
}
