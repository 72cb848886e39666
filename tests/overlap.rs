//! Who decodes together: what a run says of other orders is what they would have loaded, and what is remembered never harms.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use crate::house::{House, data_hash, documents, summary};

/// Waves of eight of the shipped documents, all weights in memory: loads are counted all the same.
const WAVES: &[&str] = &["input.template={{ text }}", "sampling.max_tokens=10", "sampling.ignore_eos=true", "engine.wave=8"];

fn number(from: &Value, key: &str) -> f64 {
    from[key].as_f64().unwrap_or_else(|| panic!("{key} in {from}"))
}

#[test]
fn what_a_run_says_of_random_waves_is_what_random_waves_load() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(83));
    let mut hashes = Vec::new();
    let [random, in_order, overlap] = ["random", "input", "overlap"].map(|grouping| {
        let out = house.fresh("out");
        house.run(&input, &out, &[WAVES, &[&format!("plan.grouping={grouping}")]].concat()).says(0, &[]);
        hashes.push(data_hash(&out));
        let summary = summary(&out);
        assert_eq!(summary["grouping"], grouping);
        assert_eq!(summary["predictor"].is_string(), grouping == "overlap", "{summary}");
        summary["expert_loads"].clone()
    });
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    for loads in [&random, &in_order, &overlap] {
        assert_eq!(number(loads, "tokens"), 83.0 * 9.0, "all but the last of each answer");
        assert_eq!(loads["replayed_rows"], loads["tokens"]);
        let (said, ran) = (number(loads, "random"), number(&random, "ran"));
        assert!((said / ran - 1.0).abs() < 0.03, "{said} said of random waves, {ran} loaded by them");
        assert!(number(loads, "random_sd") > 0.0 && number(loads, "random_sd") < said / 20.0, "{loads}");
        assert!(number(loads, "lower_bound") <= number(loads, "perfect"), "{loads}");
    }
    assert!(number(&overlap, "perfect") < number(&overlap, "random") * 0.96, "knowing all saves: {overlap}");
    assert!(number(&overlap, "perfect") <= number(&overlap, "ran"), "nobody knows more than all: {overlap}");
    assert!(number(&overlap, "ran") <= number(&overlap, "random") + number(&overlap, "random_sd"), "grouping does no harm: {overlap}");
}

/// The folder in which a house's jobs remember the demo model.
fn remembered(house: &House) -> PathBuf {
    let mut folders = fs::read_dir(house.path("cache/nightshift")).expect("a cache").map(|e| e.expect("an entry").path());
    folders.find(|path| path.join("routing-table").is_file()).expect("a job has filled its table")
}

#[test]
fn what_is_remembered_is_used_and_what_is_damaged_is_not() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(24));
    let sets = [WAVES, &["sampling.max_tokens=4", "plan.grouping=overlap"]].concat();
    let run = || {
        let out = house.fresh("out");
        house.run(&input, &out, &sets).says(0, &[]);
        (data_hash(&out), summary(&out))
    };
    let predictor = |summary: &Value| summary["predictor"].as_str().expect("overlap has one").to_string();
    let (expected, first) = run();
    let folder = remembered(&house);
    let [table, savings] = ["routing-table", "overlap.json"].map(|name| folder.join(name));
    let learned = fs::read(&table).expect("a table");
    assert!(serde_json::from_slice::<Value>(&fs::read(&savings).expect("savings")).is_ok_and(|v| v[0]["runs"] == 1));
    let (hash, second) = run();
    assert_eq!((hash, predictor(&first).is_empty()), (expected, false));
    assert!(number(&second["expert_loads"], "ran") > 0.0);
    assert!(serde_json::from_slice::<Value>(&fs::read(&savings).expect("savings")).is_ok_and(|v| v[0]["runs"] == 2));
    let again = fs::read(&table).expect("a table");
    assert_ne!(again, learned, "each job adds what it has seen");
    for damage in [&b"garbage \xff\x00 of forty bytes, and no more of it"[..], b"", &again[..again.len() / 2]] {
        for file in [&table, &savings] {
            fs::write(file, damage).expect("damaged");
        }
        let (hash, summary) = run();
        assert_eq!(hash, expected, "{} bytes", damage.len());
        assert_eq!(predictor(&summary), predictor(&first), "as if nothing were remembered");
        assert_eq!(fs::read(&table).expect("a table"), learned, "{} bytes: what is damaged is learned again", damage.len());
        let runs = serde_json::from_slice::<Value>(&fs::read(&savings).expect("savings")).expect("mended");
        assert_eq!(runs[0]["runs"], 1);
    }
}

#[test]
fn grouping_that_saved_nothing_is_left_out_and_the_plan_says_so() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(40));
    let sets = [WAVES, &["engine.resident=0"]].concat();
    let grouping = || {
        let done = house.job("plan", &input, &house.path("planned"), &sets);
        done.says(0, &[]);
        done.out.lines().find(|line| line.starts_with("grouping ")).expect("a line").to_string()
    };
    let unknown = grouping();
    assert!(unknown.contains("overlap as `") && unknown.contains("not yet measured"), "{unknown}");
    house.run(&input, &house.path("out"), &[WAVES, &["sampling.max_tokens=2"]].concat()).says(0, &[]);
    let savings = remembered(&house).join("overlap.json");
    for (saved, said) in [(0.01, "input: earlier runs"), (0.2, "expected to save 20 %")] {
        fs::write(&savings, format!("[{{\"wave\":8,\"saved\":{saved},\"sd\":0.02,\"runs\":3}}]")).expect("written");
        let line = grouping();
        assert!(line.contains(said), "{saved}: {line}");
    }
}

#[test]
fn rows_wait_on_disk_where_choosing_among_them_pays_and_writing_is_allowed() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(83));
    house.run(&input, &house.path("out"), &[WAVES, &["plan.grouping=overlap", "sampling.max_tokens=2"]].concat()).says(0, &[]);
    // Such a saving is worth more than the prompt rows that memory could have instead.
    fs::write(remembered(&house).join("overlap.json"), r#"[{"wave":8,"saved":0.9,"sd":0.01,"runs":5}]"#).expect("written");
    let tight = ["sampling.max_tokens=32", "engine.resident=0", "engine.memory=116MiB"];
    let planned = |limit: &[&str]| {
        let arguments = crate::house::args("plan", &input, &house.path("planned"), &[WAVES, &tight, limit].concat());
        let done = house.command(&arguments.iter().map(AsRef::as_ref).chain(["--json".as_ref()]).collect::<Vec<_>>());
        done.says(0, &[]);
        serde_json::from_str::<Value>(&done.out).expect("JSON")
    };
    for (limit, states) in [(None, "parked"), (Some("1GB"), "parked"), (Some("1MB"), "memory"), (Some("0"), "memory")] {
        let limit = limit.map(|limit| format!("engine.scratch_write_limit={limit}"));
        let plan = planned(&limit.as_deref().into_iter().collect::<Vec<_>>());
        assert_eq!(plan["states"], states, "{limit:?}: {plan}");
        assert_eq!(number(&plan, "bytes_state_written") > 1e6, states == "parked", "{limit:?}: {plan}");
        assert_eq!(number(&plan, "scratch_bytes") > 0.0, states == "parked", "{limit:?}: {plan}");
    }
}

#[test]
fn the_record_of_routing_stays_only_where_it_is_asked_for() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(8));
    for (states, keep) in [("memory", "true"), ("passing", "true"), ("passing", "false")] {
        let out = house.fresh("out");
        let sets = [format!("engine.states={states}"), format!("plan.keep_routing={keep}")];
        house.run(&input, &out, &[WAVES, &["engine.wave=2", "sampling.max_tokens=3"], &[&sets[0], &sets[1]]].concat()).says(0, &[]);
        assert_eq!(out.join("state/routes").exists(), keep == "true", "{states} {keep}");
        assert_eq!(summary(&out)["expert_loads"]["replayed_rows"], 16, "two of each answer's three");
    }
}
