//! Weights that stream: through which reads, in how much memory, and what becomes of a disk that fails.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::house::{House, args, batches, data_hash, demo_model, documents, finish, is_root, parts, skip, summary};
use crate::maker;

/// Weights stream, all of them, again and again.
const STREAMED: &[&str] =
    &["engine.resident=0", "engine.wave=2", "input.template={{ text }}", "sampling.max_tokens=3", "sampling.ignore_eos=true"];

/// A copy of the demo model, whose shards may be damaged.
fn copied_model(house: &House) -> PathBuf {
    let to = house.path("model");
    fs::create_dir(&to).expect("made");
    for entry in fs::read_dir(demo_model()).expect("the demo model") {
        let from = entry.expect("an entry").path();
        fs::copy(&from, to.join(from.file_name().expect("a name"))).expect("copied");
    }
    to
}

fn shard(model: &Path) -> PathBuf {
    let shards = fs::read_dir(model).expect("a folder").map(|e| e.expect("an entry").path());
    let mut shards: Vec<PathBuf> = shards.filter(|p| p.extension() == Some(OsStr::new("safetensors"))).collect();
    shards.sort();
    shards.remove(0)
}

#[test]
fn past_the_page_cache_or_through_it_the_answers_are_the_same_bytes() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(6));
    let hash = |sets: &[&str]| {
        let out = house.fresh("out");
        house.run(&input, &out, &[STREAMED, sets].concat()).says(0, &[]);
        (data_hash(&out), summary(&out)["direct_io"].as_bool().expect("a flag"))
    };
    let (past, direct) = hash(&[]);
    let (through, buffered) = hash(&["engine.direct_io=false"]);
    assert!(!buffered, "it was told to go through the page cache");
    if !direct {
        skip("the file system of the repository has no direct reads: both runs were buffered");
    }
    assert_eq!(past, through);
}

/// Bytes that the disk was asked for by commands run in a shell, of which `command` was the last one (`read_bytes` of /proc/PID/io).
fn read_by_the_system(command: &[String]) -> Option<u64> {
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" >/dev/null 2>&1; cat /proc/$$/io", "sh", env!("CARGO_BIN_EXE_nightshift")]).args(command);
    let done = finish(&mut shell);
    done.out.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

#[test]
fn bytes_read_are_those_that_the_system_counts() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(40));
    let out = house.path("out");
    // The binary, the tokenizer and the input come through the page cache: a first run leaves them there.
    house.run(&input, &house.path("first"), STREAMED).says(0, &[]);
    let Some(counted) = read_by_the_system(&args("run", &input, &out, STREAMED)) else {
        return skip("/proc/PID/io cannot be read here: bytes are not compared with the system's");
    };
    let summary = summary(&out);
    if summary["direct_io"] != true {
        return skip("no direct reads here: the system counts what its page cache read");
    }
    let said = summary["bytes_read"].as_u64().expect("a number");
    assert!(said > 50 << 20, "too little to compare: {said}");
    assert!(counted.abs_diff(said) * 100 <= said, "nightshift says {said}, the system {counted}");
}

/// A memory control group with a limit, removed at the end.
struct Capped(PathBuf);

impl Capped {
    fn new(bytes: u64) -> Option<Self> {
        let folder = PathBuf::from(format!("/sys/fs/cgroup/memory/nightshift-test-{}-{bytes}", std::process::id()));
        if !is_root() || !Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
            return None;
        }
        fs::create_dir(&folder).ok()?;
        let capped = Capped(folder);
        fs::write(capped.0.join("memory.limit_in_bytes"), bytes.to_string()).ok()?;
        Some(capped)
    }

    fn number(&self, name: &str) -> u64 {
        fs::read_to_string(self.0.join(name)).expect("a file of the group").trim().parse().expect("a number")
    }
}

impl Drop for Capped {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// A checkpoint with weights worth streaming: 640 experts of 0.6 MB.
fn larger_model(house: &House) -> PathBuf {
    let config = fs::read_to_string(demo_model().join("config.json")).expect("a config");
    let mut config: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    let text = config["text_config"].as_object_mut().expect("an object");
    for (name, value) in [("routed_expert_hidden_size", 512), ("moe_intermediate_size", 768), ("num_experts", 80)] {
        text.insert(name.into(), value.into());
    }
    let out = house.path("larger");
    let wanted = maker::Wanted { config: config.to_string(), shards: None, seed: 1, headers_only: false };
    maker::write(&wanted, &out).expect("written");
    out
}

#[test]
fn the_ledger_is_a_ceiling_that_a_control_group_holds() {
    let house = House::new();
    let model = larger_model(&house);
    let bytes: u64 = fs::read_dir(&model).expect("a folder").map(|e| e.expect("an entry").metadata().expect("there").len()).sum();
    let rows = (0..12u32).map(|i| serde_json::json!({ "prompt_token_ids": (0..80).map(|p| (p * 31 + i * 7) % 4000).collect::<Vec<_>>() }));
    let input = house.lines("in.jsonl", &rows.collect::<Vec<_>>());
    let model_set = format!("model.path={}", model.display());
    for mib in [128, 200] {
        let budget: u64 = mib << 20;
        assert!(bytes > budget + (64 << 20), "{bytes} bytes would fit");
        let Some(group) = Capped::new(budget) else {
            return skip("no memory control group can be made here: the ceiling is not tested");
        };
        let (out, memory) = (house.fresh("out"), format!("engine.memory={mib}MiB"));
        let command = args("run", &input, &out, &[&model_set, &memory, "sampling.max_tokens=3", "sampling.ignore_eos=true"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo $$ > \"$0\"/cgroup.procs && exec \"$@\""]).arg(&group.0).arg(env!("CARGO_BIN_EXE_nightshift"));
        finish(shell.args(command)).says(0, &[]);
        assert_eq!(group.number("memory.failcnt"), 0, "at {mib} MiB the ceiling was touched");
        let (peak, summary) = (group.number("memory.max_usage_in_bytes"), summary(&out));
        assert!(peak <= budget && peak > 40 << 20, "{peak} bytes at most, {budget} allowed: {summary}");
        assert!(summary["bytes_read"].as_u64() > Some(2 * (bytes - budget)), "weights streamed: {summary}");
    }
}

/// Waits until `done` or a minute has passed.
fn wait(child: &mut Child, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < Duration::from_secs(60), "it never came");
        assert!(child.try_wait().expect("asked").is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_shard_that_shrinks_at_night_stops_the_job_and_keeps_whole_parts() {
    let house = House::new();
    let model = copied_model(&house);
    let input = house.lines("in.jsonl", &documents(80));
    let (out, set) = (house.path("out"), format!("model.path={}", model.display()));
    let sets = [STREAMED, &[&set, "engine.wave=1", "output.rows_per_part=2"]].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_nightshift"));
    command.args(args("run", &input, &out, &sets)).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let first = out.join("data/part-000000.parquet");
    wait(&mut child, || first.exists());
    let file = OpenOptions::new().write(true).open(shard(&model)).expect("there");
    file.set_len(file.metadata().expect("there").len() / 8).expect("cut");
    let done = child.wait_with_output().expect("ended");
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(5), "{said}");
    assert!(said.contains("shrunk") && said.contains(".safetensors") && said.contains("language_model."), "{said}");
    assert!(!out.join("data/_SUCCESS").exists());
    assert!(!parts(&out, "data").is_empty() && batches(&out, "data").iter().all(|part| part.num_rows() > 0), "whole parts are left");
}
