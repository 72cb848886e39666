//! `plan --explain`: who would run together, before any run and after one.

use serde_json::{Value, json};

use crate::house::{House, args, documents};

const GROUPED: &[&str] = &[
    "input.template={{ summary }}",
    "sampling.max_tokens=4",
    "sampling.ignore_eos=true",
    "engine.resident=0",
    "engine.wave=4",
    "plan.grouping=overlap",
];

/// `plan --explain` of `lines`, in words and as JSON.
fn explained(house: &House, lines: &[Value]) -> (String, Value) {
    let (input, out) = (house.lines("in.jsonl", lines), house.path("out"));
    let told = |more: &[&str]| {
        let args = args("plan", &input, &out, GROUPED);
        let done = house.command(&args.iter().map(String::as_str).chain(more.iter().copied()).map(AsRef::as_ref).collect::<Vec<_>>());
        done.says(0, &[]);
        done.out
    };
    let object: Value = serde_json::from_str(&told(&["--explain", "--json"])).expect("JSON");
    assert!(!told(&[]).contains("explained"), "only where it is asked for");
    (told(&["--explain"]), object["explain"].clone())
}

#[test]
fn waves_are_told_once_a_job_has_left_a_table() {
    let house = House::new();
    let mut lines = documents(24);
    lines[3]["summary"] = Value::Null;
    for (i, line) in lines.iter_mut().enumerate() {
        line["custom_id"] = json!(format!("\u{1b}[31m{i} {}", "q".repeat(100)));
    }
    let (words, before) = explained(&house, &lines);
    assert!(words.contains("there is none of this model yet") && words.contains("8.0 %") && words.contains("1 errored"), "{words}");
    assert!(before["table"].is_null() && before["saving_measured"].is_null(), "{before}");
    assert_eq!((&before["rows_errored"], &before["rows_answered"]), (&json!(1), &json!(23)));

    house.run(&house.lines("in.jsonl", &lines), &house.path("ran"), GROUPED).says(1, &[]);
    let (words, after) = explained(&house, &lines);
    assert!(words.contains("distinct experts") && words.contains("the mean of 1 run") || words.contains("nothing: 1 run"), "{words}");
    assert!(!words.contains('\u{1b}') && words.lines().all(|line| line.chars().count() < 500), "{words}");
    let table = &after["table"];
    let n = |key: &str| table[key].as_f64().unwrap_or_else(|| panic!("{key} in {table}"));
    assert!(n("grouped_blocks") < n("random_blocks") && n("layers") <= n("layers_all") && n("waves_all") == 6.0, "{table}");
    assert_eq!(table["waves"][0]["requests"], 4);
    assert_eq!((table["least"].as_array().map(Vec::len), &after["saving_measured"]["runs"]), (Some(5), &json!(1)));
}

#[test]
fn rows_that_fit_nowhere_are_named_where_others_fit() {
    let house = House::new();
    let long = |id: &str| json!({ "id": id, "prompt": "x", "params": { "max_tokens": 2_147_483_647 } });
    let input = house.lines("in.jsonl", &[json!({ "id": "small", "prompt": "x" }), long("vast\u{1b}"), long("huge")]);
    let done = house.job("plan", &input, &house.path("out"), &["engine.memory=1GiB"]);
    done.says(3, &["fit nowhere", "`huge`", "`vast\u{fffd}`"]);
    assert!(!done.err.contains("`small`"), "{done:?}");
}
