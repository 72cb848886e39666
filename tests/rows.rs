//! Rows as people's tools write them: null and floats for integers, bodies that are no bodies, one prompt with many samplings.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression};
use parquet::file::properties::WriterProperties;
use serde_json::{Value, json};

use crate::house::{House, Row, documents, root, rows, says};

/// Writes `columns` as one Parquet file.
fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, compression: Compression) {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).expect("a table");
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut writer = ArrowWriter::try_new(File::create(path).expect("a file"), batch.schema(), Some(properties)).expect("a writer");
    writer.write(&batch).expect("written");
    writer.close().expect("closed");
}

fn texts(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

#[test]
fn values_of_another_json_type() {
    let house = House::new();
    let body = |id: &str, extra: Value| {
        let mut body = json!({ "model": "m", "messages": says("Hello") });
        body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
        json!({ "custom_id": id, "method": "POST", "url": "/v1/chat/completions", "body": body })
    };
    let lines = [
        body("n1", json!({ "max_tokens": null })),
        body("n2", json!({ "seed": null, "stop": null, "temperature": null })),
        body("n3", json!({ "max_tokens": 4.0 })),
        json!({ "custom_id": "b1", "body": "text" }),
        json!({ "custom_id": "b2", "body": null }),
        body("b3", json!({ "messages": { "role": "user", "content": "x" } })),
        body("b4", json!({ "messages": [null] })),
        body("b5", json!({ "messages": [{ "role": "user", "content": null }] })),
        body("b6", json!({ "max_tokens": 4.5 })),
        body("b7", json!({ "max_tokens": 1e30 })),
        body("b8", json!({ "n": 2 })),
        body("b9", json!({ "messages": [] })),
        body("c1", json!({ "messages": [{ "role": "tool", "content": "x" }] })),
        json!({ "custom_id": "c2", "url": "/v1/embeddings", "body": { "messages": says("x") } }),
        json!({ "custom_id": "c3", "params": { "prompt": "x", "max_tokens": 2 } }),
    ];
    let rows = house.answers(&lines, &["sampling.max_tokens=6", "sampling.seed=5", "sampling.ignore_eos=true"], 1);
    let codes: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.code())).collect();
    let expected = [
        ("n1", ""),
        ("n2", ""),
        ("n3", ""),
        ("b1", "bad_body"),
        ("b2", "bad_body"),
        ("b3", "bad_messages"),
        ("b4", "bad_messages"),
        ("b5", "bad_messages"),
        ("b6", "bad_max_tokens"),
        ("b7", "bad_max_tokens"),
        ("b8", "not_supported"),
        ("b9", "bad_messages"),
        ("c1", "bad_messages"),
        ("c2", "not_supported"),
        ("c3", ""),
    ];
    assert_eq!(codes, expected);
    assert_eq!(rows[..3].iter().map(|row| (row.completion_tokens, row.seed)).collect::<Vec<_>>(), [(6, 5), (6, 5), (4, 5)]);
    assert_eq!(rows[14].completion_tokens, 2);
}

#[test]
fn a_parquet_struct_of_params_takes_doubles_and_nulls() {
    let house = House::new();
    let path = house.path("params.parquet");
    let max_tokens: ArrayRef = Arc::new(Float64Array::from(vec![Some(4.0), None, Some(4.5)]));
    let params = StructArray::from(vec![(Arc::new(Field::new("max_tokens", DataType::Float64, true)), max_tokens)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("custom_id", texts(&[Some("n"), Some("null"), Some("bad")])),
        ("prompt", texts(&[Some("Hello"); 3])),
        ("params", Arc::new(params)),
    ];
    write(&path, columns, Compression::SNAPPY);
    let rows = house.rows_of(&path, &["sampling.max_tokens=3", "sampling.ignore_eos=true"], 1);
    let seen: Vec<_> = rows.iter().map(|row| (row.code(), row.completion_tokens)).collect();
    assert_eq!(seen, [("", 4), ("", 3), ("bad_max_tokens", 0)]);
}

#[test]
fn every_writers_parquet_gives_the_same_answers() {
    let house = House::new();
    let folder = root().join("fixtures/parquet");
    let sets = ["input.template={{ text }}", "sampling.max_tokens=1", "input.max_prompt_tokens=48", "input.truncate=right"];
    let plain = house.rows_of(&folder.join("none.parquet"), &sets, 0);
    assert_eq!(plain.len(), 50);
    let names = ["snappy", "gzip", "brotli", "lz4", "zstd", "page-v2", "delta-byte-array", "delta-length-byte-array", "groups-of-7"];
    for name in names {
        assert_eq!(house.rows_of(&folder.join(format!("{name}.parquet")), &sets, 0), plain, "{name}");
    }
    // Two files, the rarer codec last.
    let (first, second) = (house.path("first.parquet"), house.path("second.parquet"));
    write(&first, vec![("id", texts(&[Some("a")])), ("text", texts(&[Some("one")]))], Compression::SNAPPY);
    write(&second, vec![("id", texts(&[Some("b")])), ("text", texts(&[Some("two")]))], Compression::BROTLI(BrotliLevel::default()));
    let out = house.path("two");
    let list = format!("input.path=['{}', '{}']", first.display(), second.display());
    let both = [&sets[..], &[&list]].concat();
    house.job("run", Path::new("unused"), &out, &[]).says(3, &["unused"]);
    let args = ["run", "--output", "two", "--set", &format!("model.path={}", crate::house::demo_model().display())];
    let args: Vec<String> =
        args.iter().map(|a| (*a).to_string()).chain(both.iter().flat_map(|s| ["--set".into(), (*s).to_string()])).collect();
    house.command(&args.iter().map(AsRef::as_ref).collect::<Vec<_>>()).says(0, &[]);
    assert_eq!(rows(&out).iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_template_never_renders_nothing_and_never_runs_a_document() {
    let house = House::new();
    let odd = "  {{ 7*7 }} {% if x %} {# c #} {{text}} & <b> 'q' \n";
    let table = house.path("t.parquet");
    let column = [Some("one"), Some("two"), None, Some("{{ broken"), Some(odd), Some("six")];
    let ids = texts(&["1", "2", "3", "4", "5", "6"].map(Some));
    write(&table, vec![("id", ids), ("text", texts(&column))], Compression::SNAPPY);
    let few = ["sampling.max_tokens=3", "sampling.logprobs=true"];

    let out = house.path("misspelt");
    house.run(&table, &out, &["input.template=Which section?\n\n{{ txt }}"]).says(2, &["`txt`", "`text`"]);
    let jsonl = house.lines("t.jsonl", &[json!({ "text": "x" })]);
    house.run(&jsonl, &out, &["input.template={{ txt }}"]).says(2, &["`txt`", "`text`"]);
    assert!(!out.exists());

    let rows = house.rows_of(&table, &[&few[..], &["input.template=Which section?\n\n{{ text }}"]].concat(), 1);
    let failed: Vec<_> = rows.iter().filter(|row| row.status == "errored").map(|row| (row.id.as_str(), row.code())).collect();
    assert_eq!(failed, [("3", "missing_column")]);
    let twin = &house.answers(&[json!({ "messages": says(&format!("Which section?\n\n{odd}")) })], &few, 0)[0];
    assert_eq!((&rows[4].sha, &rows[4].tokens, &rows[4].logprobs), (&twin.sha, &twin.tokens, &twin.logprobs));
}

#[test]
fn stray_files_and_odd_names() {
    let house = House::new();
    let magic = [0, 5, 22, 7, 0, 2, 0, 0].repeat(512);
    let row = |i: usize| json!({ "id": format!("d{i}"), "prompt": "x" });
    house.lines("docs/a.jsonl", &(0..5).map(row).collect::<Vec<_>>());
    house.lines("docs/.old.jsonl", &[row(8), row(9)]);
    house.write("docs/._a.jsonl", &magic);
    let few = ["sampling.max_tokens=1"];
    assert_eq!(house.rows_of(&house.path("docs/*.jsonl"), &few, 0).len(), 5);
    let bracketed = house.lines("docs/b[1].jsonl", &[row(7)]);
    assert_eq!(house.rows_of(&bracketed, &few, 0)[0].id, "d7");
    let stray = house.path("docs/._a.jsonl");
    house.run(&stray, &house.path("out"), &few).says(3, &["docs/._a.jsonl"]);
    house.run(&house.path("docs/*.csv"), &house.path("out"), &few).says(3, &["docs/*.csv", "no file"]);
    house.run(&house.write("empty.jsonl", ""), &house.path("out"), &few).says(3, &["empty.jsonl", "empty"]);
    house.run(&house.write("blank.jsonl", "\n \n"), &house.path("out"), &few).says(3, &["blank.jsonl", "no rows"]);
    let cut = std::fs::read(root().join("fixtures/parquet/none.parquet")).expect("a file");
    let cut = house.write("cut.parquet", &cut[..cut.len() - 100]);
    house.run(&cut, &house.path("out"), &few).says(3, &["cut.parquet"]);
}

#[test]
fn ids_that_stand_twice_are_refused_with_both_lines() {
    let house = House::new();
    let one = house.lines("one.jsonl", &[json!({ "id": "a", "prompt": "x" }), json!({ "id": "b", "prompt": "x" })]);
    house.lines("two.jsonl", &[json!({ "id": "c", "prompt": "x" }), json!({ "id": "b", "prompt": "x" })]);
    let both = house.path("*.jsonl");
    house.run(&both, &house.path("out"), &[]).says(3, &["`b`", "one.jsonl line 2", "two.jsonl line 2"]);
    let mixed = house.lines("mixed.json.ndjson", &[json!({ "id": "a", "prompt": "x" }), json!({ "prompt": "x" })]);
    house.run(&mixed, &house.path("out"), &[]).says(3, &["line 2"]);
    assert_eq!(house.rows_of(&one, &["sampling.max_tokens=1"], 0).len(), 2);
}

#[test]
fn one_prompt_that_is_too_long_is_one_errored_row() {
    let house = House::new();
    let mut lines: Vec<Value> = documents(3).iter().map(|d| json!({ "messages": says(d["text"].as_str().expect("text")) })).collect();
    lines[1] = json!({ "messages": says(&"long ".repeat(5_000)) });
    let rows = house.answers(&lines, &["sampling.max_tokens=2", "input.max_prompt_tokens=200"], 1);
    let codes: Vec<_> = rows.iter().map(Row::code).collect();
    assert_eq!(codes, ["", "prompt_too_long", ""]);
}

/// The rows of field case 7: one prompt, a sampling each.
fn samplings(second: &str) -> Vec<Value> {
    let messages = says("Which Debian section does this package belong to?\n\nA small library for reading and writing JSON.");
    let row = |id: &str, params: Value| json!({ "custom_id": id, "messages": messages, "params": params });
    vec![
        row("one", json!({ "max_tokens": 1 })),
        row("six", json!({ "max_tokens": 6 })),
        row("none", json!({ "max_tokens": 0 })),
        row("stop", json!({ "max_tokens": 6, "stop": [second], "ignore_eos": true })),
        row("logprobs", json!({ "max_tokens": 6, "logprobs": true })),
        row("on", json!({ "max_tokens": 6, "ignore_eos": true })),
        row("prompt", json!({ "max_tokens": 2, "prompt_logprobs": true })),
        row("warm 1", json!({ "max_tokens": 6, "temperature": 1, "seed": 1, "logprobs": 1 })),
        row("warm 2", json!({ "max_tokens": 6, "temperature": 1, "seed": 2, "logprobs": 1 })),
        row("choice", json!({ "structured_outputs": { "choice": ["a", "b"] } })),
        row("twin", json!({ "max_tokens": 6 })),
        json!({ "custom_id": "text", "prompt": messages[0]["content"], "params": { "max_tokens": 6, "logprobs": true } }),
    ]
}

#[test]
fn equal_prompts_with_other_sampling_are_as_if_alone() {
    let house = House::new();
    let free = house.answers(&[samplings("x")[5].clone()], &[], 0);
    let second = crate::house::Vocabulary::demo().text(&free[0].tokens()[1..2]);
    let lines = samplings(if second.is_empty() { "a" } else { &second });
    let wide = ["engine.wave=64"];
    let together = house.answers(&lines, &wide, 1);
    let mut reversed = house.answers(&lines.iter().rev().cloned().collect::<Vec<_>>(), &wide, 1);
    reversed.reverse();
    assert_eq!(together.len(), 12);
    for (i, line) in lines.iter().enumerate() {
        let solo = &house.answers(std::slice::from_ref(line), &[], i32::from(i == 9))[0];
        assert_eq!(together[i].alone(), *solo, "{line}");
        assert_eq!(reversed[i].alone(), *solo, "{line}");
    }
    assert_eq!(together[9].code(), "not_supported");
    assert!(together[1].tokens().starts_with(together[0].tokens()));
    assert_eq!(together[10].tokens, together[1].tokens);
    assert_eq!(together[4].tokens, together[1].tokens, "log-probabilities change no token");
    assert_ne!(together[7].tokens, together[8].tokens, "another seed draws another answer");
}
