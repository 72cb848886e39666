//! States of sequences on disk: the same bytes as in memory, room that is asked for before work, and nothing left behind.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::house::{House, data_hash, documents, rows, skip, summary};

/// Bits of everything that a row can show.
const SHOWN: &[&str] = &[
    "input.template={{ text }}",
    "sampling.max_tokens=5",
    "sampling.ignore_eos=true",
    "sampling.logprobs=true",
    "sampling.prompt_logprobs=true",
    "output.rows_per_part=16",
];
/// Answers of a few tokens, so that states are worth keeping.
const SHORT: &[&str] = &["input.template={{ text }}", "sampling.max_tokens=4", "sampling.ignore_eos=true"];

fn number(from: &Value, key: &str) -> u64 {
    from[key].as_u64().unwrap_or_else(|| panic!("{key} in {from}"))
}

/// What `nightshift plan --json` says.
#[track_caller]
fn plan(house: &House, input: &Path, sets: &[&str]) -> Value {
    let arguments = crate::house::args("plan", input, &house.path("planned"), sets);
    let done = house.command(&arguments.iter().map(AsRef::as_ref).chain(["--json".as_ref()]).collect::<Vec<_>>());
    done.says(0, &[]);
    serde_json::from_str(&done.out).expect("JSON")
}

/// No file in `folder` bears the name of the states' file, at any depth.
fn no_states_in(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path());
    entries.into_iter().all(|path| if path.is_dir() { no_states_in(&path) } else { path.file_name() != Some("states.scratch".as_ref()) })
}

#[test]
fn states_on_disk_and_any_order_give_the_same_bytes() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(40));
    let run = |sets: &[&str]| {
        let out = house.fresh("out");
        house.run(&input, &out, &[SHOWN, sets].concat()).says(0, &[]);
        assert!(no_states_in(&out), "{sets:?}");
        let order: Vec<i64> = rows(&out).iter().map(|row| row.index).collect();
        assert_eq!(order, (0..40).collect::<Vec<_>>(), "{sets:?}");
        (data_hash(&out), summary(&out))
    };
    let (expected, kept) = run(&["plan.grouping=input"]);
    assert_eq!((number(&kept, "bytes_state_read"), number(&kept, "bytes_state_written")), (0, 0), "its states fit memory");
    // Where a prompt is read when a place is free, it need not wait on the disk: `any`.
    let settings: &[(&[&str], &str)] = &[
        (&["engine.states=passing", "engine.wave=16", "plan.grouping=overlap", "engine.predict=prefill", "engine.threads=2"], "passing"),
        (&["engine.states=passing", "engine.wave=3", "plan.grouping=random", "engine.threads=1"], "passing"),
        (&["engine.states=passing", "engine.wave=1", "plan.grouping=length", "engine.prefill_rows=90"], "passing"),
        (&["engine.states=parked", "engine.wave=3", "plan.grouping=overlap", "engine.predict=learned", "engine.threads=1"], "parked"),
        (&["engine.states=parked", "engine.wave=16", "plan.grouping=random", "engine.prefill_rows=200"], "any"),
        (&["engine.states=parked", "engine.wave=16", "plan.grouping=overlap", "engine.predict=table"], "any"),
        (&["engine.states=memory", "engine.wave=16", "plan.grouping=overlap", "engine.predict=probe", "engine.threads=2"], "memory"),
        (&["engine.states=memory", "engine.wave=16", "plan.grouping=overlap", "engine.resident=0"], "memory"),
    ];
    for (sets, states) in settings {
        let (hash, ran) = run(sets);
        let moved = (number(&ran, "bytes_state_read") > 0, number(&ran, "bytes_state_written") > 0);
        let expects = (*states != "memory", *states != "memory");
        assert!(*states == "any" || moved == expects, "{sets:?}: {ran}");
        assert_eq!(hash, expected, "{sets:?}");
    }
}

#[test]
fn a_folder_of_its_own_takes_the_states_and_is_empty_afterwards() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(12));
    let (scratch, out) = (house.path("far/scratch"), house.path("out"));
    let set = format!("engine.scratch={}", scratch.display());
    house.run(&input, &out, &[SHORT, &["engine.wave=4", &set]].concat()).says(0, &[]);
    assert!(!scratch.exists(), "states that fit memory need no folder");
    let out = house.path("passing");
    house.run(&input, &out, &[SHORT, &["engine.states=passing", "engine.wave=4", &set]].concat()).says(0, &[]);
    assert_eq!(fs::read_dir(&scratch).expect("made").count(), 0, "nothing is left");
    let ran = summary(&out);
    assert!(number(&ran, "bytes_state_written") > 0 && number(&ran, "bytes_state_read") > 0, "{ran}");
    house.run(&input, &house.path("none"), &[SHORT, &["engine.states=passing", "engine.scratch=in.jsonl"]].concat()).says(3, &["in.jsonl"]);
    assert!(!house.path("none").exists(), "a refusal leaves nothing in the way");
}

#[test]
fn a_disk_without_room_for_states_is_refused_before_work() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(12));
    let mount = house.path("small");
    fs::create_dir(&mount).expect("made");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(&mount).output();
    if !mounted.is_ok_and(|done| done.status.success()) {
        skip("no tmpfs can be mounted here, so no disk is too small for states");
        return;
    }
    let (set, out) = (format!("engine.scratch={}", mount.display()), house.path("out"));
    let run = |sets: &[&str]| house.run(&input, &out, &[SHORT, &[&set], sets].concat());
    let done = [run(&["engine.states=passing"]), run(&["engine.states=parked", "engine.wave=2"])];
    let left = (out.exists(), fs::read_dir(&mount).expect("a folder").count());
    // Where nothing says that states must lie there, the job does without.
    let auto = run(&["engine.wave=2"]);
    let _ = Command::new("umount").arg(&mount).output();
    for done in done {
        done.says(3, &["engine.states", "engine.scratch", mount.to_str().expect("text"), "MB", "take", "has"]);
    }
    assert_eq!(left, (false, 0));
    auto.says(0, &[]);
}

#[test]
fn what_may_be_written_is_a_limit() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(12));
    let out = house.path("out");
    let refused = |states, limit, code, said: &[&str]| {
        house.run(&input, &out, &[SHORT, &[states, "engine.wave=4", limit]].concat()).says(code, said);
        assert!(!out.exists(), "{states} {limit}");
    };
    for states in ["engine.states=passing", "engine.states=parked"] {
        refused(states, "engine.scratch_write_limit=0", 2, &["engine.states", "engine.scratch_write_limit is 0"]);
    }
    refused("engine.states=passing", "engine.scratch_write_limit=100kB", 3, &["engine.scratch_write_limit", "100 kB", "engine.states"]);
    let enough = ["engine.states=passing", "engine.wave=4", "engine.scratch_write_limit=1GB"];
    house.run(&input, &out, &[SHORT, &enough].concat()).says(0, &[]);
    let planned = plan(&house, &input, &[SHORT, &enough].concat());
    // What is written comes in whole sectors, which a plan does not count.
    let (foretold, wrote) = (number(&planned, "bytes_state_written"), number(&summary(&out), "bytes_state_written"));
    assert!(wrote > 0 && foretold * 2 > wrote && foretold < wrote * 2, "{foretold} foretold, {wrote} written");
}

#[test]
fn a_plan_says_where_states_lie_and_who_decodes_together() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(40));
    let words = |sets: &[&str]| {
        let done = house.job("plan", &input, &house.path("planned"), &[SHORT, sets].concat());
        done.says(0, &[]);
        let line = |name: &str| done.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{}", done.out)).to_string();
        [line("states "), line("grouping ")]
    };
    let [states, grouping] = words(&[]);
    assert!(states.ends_with("in memory"), "{states}");
    assert!(grouping.contains("input: all experts stay in memory"), "{grouping}");
    let [states, grouping] = words(&["engine.states=parked", "engine.wave=4", "plan.grouping=random", "engine.scratch_write_limit=1GB"]);
    for part in ["on disk while a row waits", "of disk", "read", "written", "the limit is 1.00 GB"] {
        assert!(states.contains(part), "{part}: {states}");
    }
    assert!(grouping.contains("random: as the job says"), "{grouping}");

    let kept = plan(&house, &input, SHORT);
    assert_eq!((&kept["states"], &kept["scratch_bytes"], &kept["grouping"]), (&json!("memory"), &json!(0), &json!("input")));
    assert!(kept["why"].as_str().is_some_and(|why| why.contains("all experts stay in memory")), "{kept}");
    let passing = plan(&house, &input, &[SHORT, &["engine.states=passing", "engine.wave=4", "plan.grouping=overlap"]].concat());
    assert_eq!((&passing["states"], &passing["grouping"]), (&json!("passing"), &json!("overlap")));
    assert!(passing["predictor"].is_string(), "{passing}");
    assert!(number(&passing, "scratch_bytes") > 0 && number(&passing, "bytes_state_written") > 0, "{passing}");
}

#[test]
fn where_no_state_need_lie_on_disk_a_plan_is_as_good_as_without() {
    let house = House::new();
    // One token a row keeps no state; a row that is alone waits for nobody.
    for (count, tokens, states) in [(12, "1", "passing"), (12, "1", "parked"), (1, "6", "parked")] {
        let input = house.lines("in.jsonl", &documents(count));
        let sets = [format!("sampling.max_tokens={tokens}"), format!("engine.states={states}")];
        let planned = plan(&house, &input, &[SHORT, &[&sets[0], &sets[1]]].concat());
        assert_eq!(planned["states"], "memory", "{states}: {planned}");
        assert!(number(&planned, "sweeps") < 20, "{states}: {planned}");
    }
    let input = house.lines("in.jsonl", &documents(40));
    let done = house.run(&input, &house.path("out"), &[SHORT, &["engine.states=passing", "engine.memory=52MiB"]].concat());
    done.says(3, &["engine.memory is 52MiB", "at least"]);
    let smallest = done.err.split("at least ").nth(1).and_then(|rest| rest.split("MiB").next()).expect("a budget");
    let enough = format!("engine.memory={smallest}MiB");
    let planned = plan(&house, &input, &[SHORT, &["engine.states=passing", &enough]].concat());
    assert_eq!(planned["states"], "passing", "{planned}");
}
