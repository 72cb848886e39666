//! Jobs as nights go: too little memory, folders in use, full disks, kills.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::json;

use crate::house::{House, args, data_hash, demo_model, documents, finish, is_root, parts, rows, skip, summary};

const TEXT: &str = "input.template={{ text }}";

#[test]
fn a_budget_that_is_too_small_names_the_smallest_and_that_one_works() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(6));
    let out = house.path("out");
    let sets = [TEXT, "sampling.max_tokens=2"];
    let done = house.run(&input, &out, &[&sets[..], &["engine.memory=20MiB"]].concat());
    done.says(3, &["engine.memory", "MiB", "the longest row"]);
    assert!(!out.exists());
    let smallest = done.err.split_whitespace().find(|word| word.ends_with("MiB;")).expect("a budget").trim_end_matches(';');
    let n: u64 = smallest.trim_end_matches("MiB").parse().expect("a number");
    let less = format!("engine.memory={}MiB", n - 1);
    house.run(&input, &out, &[&sets[..], &[&less]].concat()).says(3, &[smallest]);
    let enough = format!("engine.memory={smallest}");
    house.run(&input, &out, &[&sets[..], &[&enough]].concat()).says(0, &[]);
    let tight = summary(&out);
    let wide_out = house.path("wide");
    house.run(&input, &wide_out, &sets).says(0, &[]);
    assert_eq!(data_hash(&out), data_hash(&wide_out), "a budget changes no answer");
    for summary in [tight, summary(&wide_out)] {
        let bytes = |key: &str| summary[key].as_u64().expect("bytes");
        let (peak, ledger, budget) = (bytes("peak_memory"), bytes("ledger_total"), bytes("memory_budget"));
        assert!(peak <= ledger && ledger <= budget && peak > 1 << 20, "peak {peak}, ledger {ledger}, budget {budget}");
    }
}

#[test]
fn a_folder_in_use_is_left_unharmed() {
    let house = House::new();
    let input = house.lines("in.jsonl", &[json!({ "prompt": "x" })]);
    let out = house.path("out");
    let few = ["sampling.max_tokens=1"];
    house.run(&input, &out, &few).says(0, &[]);
    let before = data_hash(&out);
    for again in ["out", "out/", "./out/.", "in/../out"] {
        house.write("in/x", "");
        house.run(&input, Path::new(again), &few).says(4, &["out", "output.path"]);
    }
    assert_eq!(data_hash(&out), before);
    house.write("mine/letter.txt", "dear");
    house.run(&input, &house.path("mine"), &few).says(4, &["letter.txt"]);
    assert_eq!(fs::read_dir(house.path("mine")).expect("a folder").count(), 1);
}

#[test]
fn slashes_and_dots_name_one_folder() {
    let house = House::new();
    let input = house.lines("in.jsonl", &[json!({ "prompt": "x" })]);
    for (i, name) in ["a", "b/", "./c/."].into_iter().enumerate() {
        house.run(&input, Path::new(name), &["sampling.max_tokens=1"]).says(0, &[]);
        let out = house.path(["a", "b", "c"][i]);
        assert!(out.join("data/_SUCCESS").exists());
        assert_eq!(data_hash(&out), data_hash(&house.path("a")));
    }
    let inside = house.path("d");
    fs::create_dir(&inside).expect("made");
    let arguments = args("run", &input, Path::new("."), &["sampling.max_tokens=1"]);
    finish(Command::new(env!("CARGO_BIN_EXE_nightshift")).args(arguments).current_dir(&inside)).says(0, &[]);
    assert_eq!(data_hash(&inside), data_hash(&house.path("a")));
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_work() {
    let house = House::new();
    let input = house.lines("in.jsonl", &[json!({ "prompt": "x" })]);
    house.run(&input, &input, &[]).says(3, &["in.jsonl", "is a file"]);
    house.run(&input, &input.join("out"), &[]).says(3, &["in.jsonl/out"]);
    house.run(&input, Path::new("/proc/nightshift/out"), &[]).says(3, &["/proc/nightshift"]);
}

#[test]
fn a_slip_in_the_job_file_is_named_with_its_line_and_the_nearest_key() {
    let house = House::new();
    let base = format!("[model]\npath = '{}'\n[input]\npath = 'in.jsonl'\n[output]\npath = 'out'\n", demo_model().display());
    house.lines("jobs/in.jsonl", &[json!({ "prompt": "x" })]);
    let cases = [
        ("[engine]\nmemroy = '1GiB'\n", ["line 8", "engine.memroy", "engine.memory"]),
        ("[sampling]\nmax_token = 4\n", ["line 8", "sampling.max_token", "sampling.max_tokens"]),
        ("[enginee]\nmemory = 1\n", ["line 7", "[enginee]", "[engine]"]),
        ("[engine]\nmemory = 'much'\n", ["line 8", "engine.memory", "8GiB"]),
        ("[engine]\nkernel = 'sse2'\n", ["line 8", "engine.kernel", "avx2"]),
        ("[engine]\nkernel = 'amx'\n", ["line 8", "engine.kernel", "not built"]),
        ("[engine]\nstates = 'x'\n", ["line 8", "engine.states", "passing"]),
        ("[plan]\ngrouping = 'lenght'\n", ["line 8", "plan.grouping", "length"]),
        ("[sampling]\nstop_token_ids = [4096]\n", ["sampling.stop_token_ids", "4096", ""]),
        ("[sampling]\nstop_token_ids = \n", ["line 8", "job.toml", ""]),
    ];
    for (text, parts) in cases {
        house.write("jobs/job.toml", format!("{base}{text}"));
        house.command(&["run".as_ref(), "jobs/job.toml".as_ref()]).says(2, &parts);
    }
    assert!(!house.path("jobs/out").exists());
    house.write("jobs/job.toml", format!("\u{feff}{}[sampling]\r\nmax_tokens = 1\r\n", base.replace('\n', "\r\n")));
    for (set, said) in
        [("input.template=", "not empty"), ("input.template={{ text", "input.template line 1"), ("engine=8GiB", "engine.memory")]
    {
        house.command(&["run".as_ref(), "jobs/job.toml".as_ref(), "--set".as_ref(), set.as_ref()]).says(2, &[said]);
    }
    house.command(&["run".as_ref(), "jobs/job.toml".as_ref()]).says(0, &[]);
    assert!(house.path("jobs/out/data/_SUCCESS").exists(), "paths start from the job file's folder");
    house.command(&["run".as_ref(), "jobs".as_ref()]).says(2, &["jobs"]);
    house.command(&["run".as_ref(), "jobs/in.jsonl".as_ref()]).says(2, &["jobs/in.jsonl", "--input"]);
    house.command(&["run".as_ref(), "jobs/none.toml".as_ref()]).says(2, &["none.toml"]);
    house.command(&["run".as_ref()]).says(2, &["model.path", "--model"]);
}

#[test]
fn a_kernel_that_the_machine_lacks_is_refused_by_name() {
    let house = House::new();
    let input = house.lines("in.jsonl", &[json!({ "prompt": "x" })]);
    let has = |name: &str| match name {
        "avx2" => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
        _ => is_x86_feature_detected!("avx512f"),
    };
    for name in ["avx2", "avx512"] {
        let set = format!("engine.kernel={name}");
        let done = house.run(&input, &house.path(name), &[&set, "sampling.max_tokens=1"]);
        if has(name) {
            done.says(0, &[]);
            assert_eq!(summary(&house.path(name))["kernel"], *name);
        } else {
            done.says(3, &["engine.kernel", name]);
        }
    }
    if has("avx512") && has("avx2") {
        skip("this machine has every kernel, so none is refused");
    }
}

/// Whole parts, or none, whatever happened; how many.
fn whole_parts(out: &Path, rows_per_part: i64) -> usize {
    let names: Vec<String> =
        fs::read_dir(out.join("data")).expect("data/").map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    assert!(names.iter().all(|name| name.starts_with("part-") && name.ends_with(".parquet")), "{names:?}");
    for path in parts(out, "data") {
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(&path).expect("a part")).expect("whole Parquet");
        assert_eq!(reader.metadata().file_metadata().num_rows(), rows_per_part, "{}", path.display());
    }
    names.len()
}

#[test]
fn a_killed_job_leaves_whole_parts_and_no_success() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(80));
    let sets =
        [TEXT, "sampling.max_tokens=8", "sampling.ignore_eos=true", "engine.wave=4", "output.rows_per_part=2", "engine.prefill_rows=64"];
    for wanted in [0, 1, 3] {
        let out = house.fresh("out");
        let mut command = Command::new(env!("CARGO_BIN_EXE_nightshift"));
        let mut child = command.args(args("run", &input, &out, &sets)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("starts");
        let started = Instant::now();
        while !out.join("data").exists() || parts(&out, "data").len() < wanted {
            assert!(started.elapsed() < Duration::from_secs(60) && child.try_wait().expect("a child").is_none(), "no part came");
            sleep(Duration::from_millis(2));
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        let parts = whole_parts(&out, 2);
        assert!(parts >= wanted && parts < 40, "{parts} parts");
        house.run(&input, &out, &sets).says(4, &["output.path"]);
    }
}

#[test]
fn a_full_disk_is_never_a_success() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(40));
    let sets =
        [TEXT, "sampling.max_tokens=1", "output.rows_per_part=5", "output.keep=['text', 'summary']", "sampling.prompt_logprobs=true"];
    let mut met = Vec::new();
    for kib in [16, 64, 128, 192, 256, 4096] {
        let mount = house.path(&format!("disk-{kib}"));
        fs::create_dir(&mount).expect("made");
        let size = format!("size={kib}k");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&mount).output();
        if !mounted.is_ok_and(|done| done.status.success()) {
            skip("no tmpfs can be mounted here, so no disk gets full");
            return;
        }
        let out = mount.join("out");
        let done = house.run(&input, &out, &sets);
        let success = out.join("data/_SUCCESS").exists();
        if out.join("data").exists() {
            fs::remove_file(out.join("data/_SUCCESS")).ok();
            whole_parts(&out, 5);
        }
        let _ = Command::new("umount").arg(&mount).output();
        assert_eq!(done.code == Some(0), success, "{kib} KiB: {done:?}");
        assert!(matches!(done.code, Some(0 | 5)) && !done.err.contains("panicked"), "{kib} KiB: {done:?}");
        assert!(success || done.err.contains(mount.to_str().expect("text")), "{kib} KiB: the message names no file: {done:?}");
        met.push(done.code);
    }
    assert_eq!((met[0], met.last().copied().flatten()), (Some(5), Some(0)), "{met:?}");
}

#[test]
fn the_output_may_be_a_mount_of_its_own() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(3));
    let sets = [TEXT, "sampling.max_tokens=1"];
    let mount = house.path("out");
    fs::create_dir(&mount).expect("made");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "none"]).arg(&mount).output();
    if !mounted.is_ok_and(|done| done.status.success()) {
        skip("no tmpfs can be mounted here, so the output is no mount");
        return;
    }
    let done = house.run(&input, &mount, &sets);
    let found = (mount.join("data/_SUCCESS").exists(), fs::read_dir(mount.join("data")).map(Iterator::count).ok());
    let _ = Command::new("umount").arg(&mount).output();
    done.says(0, &[]);
    assert_eq!(found, (true, Some(2)));
}

#[test]
fn no_home_is_needed_and_nothing_is_left_about() {
    let house = House::new();
    let rows_wanted: Vec<_> = documents(5);
    let input = house.lines("in.jsonl", &rows_wanted);
    let model = house.path("model");
    fs::create_dir(&model).expect("made");
    for entry in fs::read_dir(demo_model()).expect("a model") {
        let path = entry.expect("an entry").path();
        fs::copy(&path, model.join(path.file_name().expect("a name"))).expect("copied");
    }
    fs::set_permissions(&model, fs::Permissions::from_mode(0o555)).expect("read only");
    let binary = house.path("nightshift");
    fs::copy(env!("CARGO_BIN_EXE_nightshift"), &binary).expect("copied");
    let open = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("permissions");
    let work = house.path("work");
    fs::create_dir(&work).expect("made");
    open(binary.parent().expect("a folder"), 0o755);
    open(&work, 0o755);
    if !is_root() {
        skip("only root may become another user: the home is merely unset");
    }
    let set = format!("model.path={}", model.display());
    let mut hashes = Vec::new();
    let homes = [&[][..], &[("HOME", "/")], &[("HOME", "/nonexistent"), ("XDG_CACHE_HOME", "relative/dir")]];
    for (i, home) in homes.into_iter().enumerate() {
        let outer = house.path(&format!("outer-{i}"));
        fs::create_dir(&outer).expect("made");
        open(&outer, 0o777);
        let mut command = Command::new(&binary);
        command.args(args("run", &input, &outer.join("out"), &[TEXT, "sampling.max_tokens=2", &set]));
        command.env_clear().envs(home.iter().copied()).current_dir(&work);
        if is_root() {
            command.uid(65_534).gid(65_534);
        }
        finish(&mut command).says(0, &[]);
        assert_eq!(rows(&outer.join("out")).len(), rows_wanted.len());
        hashes.push(data_hash(&outer.join("out")));
        assert_eq!(fs::read_dir(&work).expect("a folder").count(), 0, "nothing is written into the current folder");
    }
    assert!(hashes.iter().all(|hash| *hash == hashes[0]));
    let left: Vec<_> = fs::read_dir(&model).expect("a model").map(|e| e.expect("an entry").file_name()).collect();
    assert_eq!(left.len(), fs::read_dir(demo_model()).expect("a model").count(), "{left:?}");
    open(&model, 0o755);
}

#[test]
fn a_row_that_asks_for_more_than_memory_holds_is_named_before_work() {
    let house = House::new();
    let long = json!({ "id": "greedy", "prompt": "x", "params": { "max_tokens": 2_147_483_647 } });
    let input = house.lines("in.jsonl", &[json!({ "id": "a", "prompt": "x" }), long]);
    house.run(&input, &house.path("out"), &["engine.memory=1GiB"]).says(3, &["`greedy`", "2,147,483,647 tokens", "sequence state"]);
    assert!(!house.path("out").exists());
}

#[test]
fn long_kept_columns_stay_under_the_ledger() {
    let house = House::new();
    let row = |i: usize| json!({ "id": format!("r{i}"), "prompt_token_ids": [5], "long": format!("word {i} ").repeat(50_000) });
    let input = house.lines("in.jsonl", &(0..250).map(row).collect::<Vec<_>>());
    let out = house.path("out");
    house.run(&input, &out, &["sampling.max_tokens=0", "output.keep=['long']"]).says(0, &[]);
    let summary = summary(&out);
    let bytes = |key: &str| summary[key].as_u64().expect("bytes");
    assert!(bytes("peak_memory") <= bytes("ledger_total"), "{summary}");
    assert_eq!(rows(&out).len(), 250);
}

#[test]
fn a_plan_that_cannot_be_written_is_no_success() {
    let house = House::new();
    let input = house.lines("in.jsonl", &[json!({ "prompt": "x" })]);
    let full = fs::OpenOptions::new().write(true).open("/dev/full").expect("a device that is always full");
    let arguments = args("plan", &input, &house.path("out"), &[]);
    let done = Command::new(env!("CARGO_BIN_EXE_nightshift")).args(arguments).stdout(full).output().expect("the command starts");
    assert_eq!(done.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&done.stderr).contains("standard output"));
}
