//! Where weights lie and who runs together decides speed alone: one answer, bit for bit, whatever the settings.

use serde_json::{Value, json};

use crate::house::{House, Row, data_hash, demo_model, documents, root, rows, skip, summary};

/// Bits of everything that a row can show.
const SHOWN: &[&str] = &[
    "input.template={{ summary }}",
    "sampling.max_tokens=4",
    "sampling.ignore_eos=true",
    "sampling.logprobs=true",
    "sampling.prompt_logprobs=true",
    "output.rows_per_part=10",
];

#[test]
fn placement_threads_grouping_and_waves_do_not_change_a_byte() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(24));
    let run = |sets: &[&str]| {
        let out = house.fresh("out");
        house.run(&input, &out, &[SHOWN, sets].concat()).says(0, &[]);
        (data_hash(&out), summary(&out))
    };
    let (expected, kept) = run(&[]);
    assert!(kept["blocks"]["resident"].as_u64() > Some(0), "by default weights are kept: {kept}");
    let (streamed_hash, streamed) = run(&["engine.resident=0"]);
    assert_eq!(streamed["blocks"]["resident"], 0, "{streamed}");
    assert!(streamed["bytes_read"].as_u64() > kept["bytes_read"].as_u64());
    assert_eq!(streamed_hash, expected, "streamed");
    let settings: &[&[&str]] = &[
        &["engine.resident=5MB", "engine.threads=1"],
        &["engine.memory=80MiB", "engine.threads=2", "plan.grouping=random"],
        &["engine.memory=96MiB", "plan.grouping=length", "engine.wave=3"],
        &["engine.resident=0", "engine.wave=1", "engine.prefill_rows=512"],
        &["engine.wave=64", "engine.prefill_rows=512", "engine.threads=2", "plan.grouping=random"],
        &["engine.prefill_rows=7", "engine.wave=3", "plan.grouping=length"],
        &["engine.prefill_rows=1", "engine.wave=64"],
    ];
    for sets in settings {
        assert_eq!(run(sets).0, expected, "{sets:?}");
    }
}

#[test]
fn every_kernel_gives_the_same_file() {
    let house = House::new();
    // The scalar definition takes twenty milliseconds a token: two short rows are enough.
    let input = house.lines("in.jsonl", &documents(2));
    let mut hashes = Vec::new();
    for kernel in ["scalar", "avx2", "avx512", "auto"] {
        let (out, set) = (house.path(kernel), format!("engine.kernel={kernel}"));
        let done = house.run(&input, &out, &[SHOWN, &[&set]].concat());
        if done.code == Some(3) {
            skip(&format!("{}: its bits are not compared", done.err.trim()));
            continue;
        }
        done.says(0, &[]);
        hashes.push(data_hash(&out));
    }
    assert!(hashes.len() >= 2 && hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
}

#[test]
fn the_plan_foretells_the_run() {
    let house = House::new();
    let mut lines = documents(24);
    lines[7]["text"] = Value::Null;
    let input = house.lines("in.jsonl", &lines);
    let out = house.path("out");
    for (i, sets) in
        [&[][..], &["engine.resident=0", "engine.wave=5"], &["engine.memory=90MiB", "engine.prefill_rows=64"]].iter().enumerate()
    {
        let sets = [&["input.template={{ text }}", "sampling.max_tokens=3"], *sets].concat();
        let done = house.command(
            &crate::house::args("plan", &input, &out, &sets).iter().chain([&"--json".to_string()]).map(AsRef::as_ref).collect::<Vec<_>>(),
        );
        done.says(0, &[]);
        assert!(!out.exists(), "a plan makes nothing");
        let plan: Value = serde_json::from_str(&done.out).expect("JSON");
        let ran = house.path(&format!("ran-{i}"));
        house.run(&input, &ran, &sets).says(1, &[]);
        let ran = summary(&ran);
        let n = |from: &Value, key: &str| from[key].as_u64().unwrap_or_else(|| panic!("{key} in {from}"));
        assert_eq!((n(&plan, "rows"), n(&plan, "rows_faulty")), (n(&ran, "rows_total"), n(&ran, "rows_errored")));
        assert_eq!(n(&plan, "prompt_tokens"), n(&ran, "prompt_tokens"));
        assert_eq!(n(&plan, "ledger_total"), n(&ran, "ledger_total"), "{sets:?}");
        for (forecast, read) in [
            ("bytes_trunk", "bytes_read_trunk"),
            ("bytes_experts", "bytes_read_experts"),
            ("sweeps", "sweeps"),
            ("completion_tokens_max", "completion_tokens"),
        ] {
            // Reads begin and end at sectors of the disk, which a plan does not count: a trifle where pieces are large.
            let ran_at_least = n(&ran, read) - if forecast.starts_with("bytes") { n(&ran, read) / 50 } else { 0 };
            assert!(n(&plan, forecast) >= ran_at_least, "{sets:?}: {forecast} {} under {read} {}", n(&plan, forecast), n(&ran, read));
        }
    }
    house.job("plan", &input, &out, &["input.template={{ text }}"]).says(0, &[]);
}

/// Field case 13, first half, on one model: what an answer's tokens scored when they were made is what they score when they are given.
fn answers_score_as_prompts(model: &std::path::Path, vocab: u64, settings: &[&str]) {
    let house = House::new();
    let set = format!("model.path={}", model.display());
    let id = |i: u64| (i * 7_919 + i * i * 31 + 3) % vocab;
    let prompts = [18, 19, 20, 38, 39].map(|n| (0..n).map(|i| id(i + n)).collect::<Vec<u64>>());
    let lines = prompts.each_ref().map(|ids| json!({ "prompt_token_ids": ids }));
    let free = [&set, "sampling.max_tokens=30", "sampling.ignore_eos=true", "sampling.logprobs=true"];
    let made = house.answers(&lines, &free, 0);
    let whole = prompts.iter().zip(&made).map(|(ids, row)| {
        let ids: Vec<i64> = ids.iter().map(|id| *id as i64).chain(row.tokens().iter().map(|id| i64::from(*id))).collect();
        json!({ "prompt_token_ids": ids })
    });
    let whole: Vec<Value> = whole.collect();
    for setting in settings {
        let prefill = format!("engine.prefill_rows={setting}");
        let scored = house.answers(&whole, &[&set, "sampling.max_tokens=0", "sampling.prompt_logprobs=true", &prefill], 0);
        let rows: Vec<(&Row, &Row)> = made.iter().zip(&scored).collect();
        for (made, scored) in rows {
            let scores = scored.prompt_logprobs.as_deref().expect("asked for");
            assert_eq!(scores[0], None);
            let given: Vec<u32> = scores[made.prompt_tokens as usize..].iter().map(|x| x.expect("a number")).collect();
            assert_eq!(Some(&given), made.logprobs.as_ref(), "{} rows a sweep, a prompt of {}", setting, made.prompt_tokens);
        }
        assert_eq!(house.answers(&lines, &[&free[..], &[&prefill]].concat(), 0), made, "{setting}");
    }
}

#[test]
fn an_answer_scores_as_it_did_when_it_was_made() {
    answers_score_as_prompts(&demo_model(), 3_840, &["7", "512"]);
    for golden in ["tiny", "odd"] {
        answers_score_as_prompts(&root().join(format!("fixtures/goldens/{golden}/checkpoint")), 384, &["1", "7", "512"]);
    }
}

/// The shipped jobs as they are typed, against what the reference answered for the shipped documents.
#[test]
fn the_shipped_jobs_give_the_references_answers() {
    let house = House::new();
    let text = std::fs::read_to_string(root().join("fixtures/answers.jsonl")).expect("the reference's answers");
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for (task, job) in [("classify", "pipelines/classify.toml"), ("summarize", "pipelines/summarize.toml")] {
        let out = house.fresh(task);
        let args = ["run", root().join(job).to_str().expect("text"), "--output", out.to_str().expect("text")].map(String::from);
        house.command(&args.iter().map(std::ffi::OsStr::new).collect::<Vec<_>>()).says(0, &[]);
        let expected: Vec<&Value> = answers.iter().filter(|a| a["task"] == task).collect();
        let rows = rows(&out);
        assert_eq!(rows.len(), expected.len());
        for (row, answer) in rows.iter().zip(expected) {
            assert_eq!(Some(row.id.as_str()), answer["id"].as_str());
            // A closer call may rightly go the other way in other arithmetic.
            if answer["margin"].as_f64() > Some(0.01) {
                let ids: Vec<i64> = row.tokens().iter().map(|id| i64::from(*id)).collect();
                assert_eq!(json!(ids), answer["answer_ids"], "{task} {}", row.id);
                assert_eq!(row.text.as_deref(), answer["text"].as_str(), "{task} {}", row.id);
            }
        }
    }
}

#[test]
fn who_chose_whom_is_kept_where_it_is_asked_for() {
    let house = House::new();
    let input = house.lines("in.jsonl", &documents(8));
    let sets = ["input.template={{ text }}", "sampling.max_tokens=4"];
    for (keep, sets) in [(false, sets.to_vec()), (true, [&sets[..], &["plan.keep_routing=true"]].concat())] {
        let out = house.fresh("out");
        house.run(&input, &out, &sets).says(0, &[]);
        let loads = &summary(&out)["expert_loads"];
        assert!(loads["random"].as_u64() > Some(0) && loads["lower_bound"].as_u64() > Some(0), "{loads}");
        assert_eq!(loads["replayed_rows"], loads["tokens"]);
        let routes = std::fs::read(out.join("state/routes"));
        assert_eq!(routes.is_ok(), keep);
        // All tokens but the last of each answer, and whom they chose in two bytes each.
        let rows: i32 = rows(&out).iter().map(|row| row.prompt_tokens + row.completion_tokens - 1).sum();
        let widths = |bytes: &[u8]| [8, 16].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")) as usize);
        assert!(routes.is_err() || routes.is_ok_and(|bytes| bytes.len() > rows as usize * widths(&bytes).iter().product::<usize>() * 2));
    }
}
