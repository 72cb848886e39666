//! Forms of a row, prompts, their length.

use super::*;
use crate::job::Side;

#[test]
fn every_form_of_a_row_gives_the_same_prompt() {
    let lines = [
        r#"{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[{"role":"user","content":"hi <|close|>"}],"max_tokens":3}}"#,
        r#"{"custom_id":"b","body":{"messages":[{"role":"user","content":[{"type":"text","text":"hi "},{"type":"text","text":"<|close|>"}]}],"max_tokens":3.0}}"#,
        r#"{"custom_id":"c","params":{"messages":[{"role":"user","content":"hi <|close|>"}],"max_completion_tokens":3}}"#,
        r#"{"id":"d","messages":[{"role":"user","content":"hi <|close|>"}],"params":{"max_tokens":3},"temperature":"data"}"#,
    ];
    let requests = Bench::of(lines.join("\n")).requests();
    for request in &requests {
        assert_eq!((request.fault.as_ref(), request.sampling.max_tokens), (None, 3), "{}", request.id);
        assert_eq!(request.prompt, user("hi <|close|>"), "{}", request.id);
    }
    let raw = [
        r#"{"prompt":"hi <|close|>"}"#.to_string(),
        format!(r#"{{"prompt_token_ids":{:?}}}"#, DEMO.encode("hi <|close|>")),
        r#"{"body":{"prompt":"hi <|close|>"},"url":"/v1/completions"}"#.to_string(),
        format!(r#"{{"body":{{"prompt":{:?}}}}}"#, DEMO.encode("hi <|close|>")),
    ];
    for request in Bench::of(raw.join("\n")).requests() {
        assert_eq!((request.prompt, request.sampling.max_tokens), (DEMO.encode("hi <|close|>"), 7), "{}", request.id);
    }
}

#[test]
fn values_of_another_type_are_errored_rows_that_name_the_field() {
    let good = r#""messages":[{"role":"user","content":"hi"}]"#;
    let cases = [
        (format!(r#"{{"body":{{{good},"max_tokens":null}}}}"#), ""),
        (format!(r#"{{"body":{{{good},"seed":null,"stop":null,"temperature":null}}}}"#), ""),
        (format!(r#"{{"body":{{{good},"max_tokens":4.0}}}}"#), ""),
        (format!(r#"{{"body":{{{good},"prompt":null,"stop":[]}}}}"#), ""),
        (r#"{"body":"text"}"#.into(), "bad_body"),
        (r#"{"body":null}"#.into(), "bad_body"),
        (r#"{"body":{"messages":{"role":"user"}}}"#.into(), "bad_messages"),
        (r#"{"body":{"messages":[null]}}"#.into(), "bad_messages"),
        (r#"{"body":{"messages":[]}}"#.into(), "bad_messages"),
        (r#"{"body":{"messages":[{"role":"user","content":null}]}}"#.into(), "bad_messages"),
        (r#"{"body":{"messages":[{"role":"tool","content":"x"}]}}"#.into(), "bad_messages"),
        (r#"{"body":{"messages":[{"content":"x"}]}}"#.into(), "bad_messages"),
        (r#"{"body":{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]}}"#.into(), "not_supported"),
        (format!(r#"{{"body":{{{good},"max_tokens":4.5}}}}"#), "bad_max_tokens"),
        (format!(r#"{{"body":{{{good},"max_tokens":1e30}}}}"#), "bad_max_tokens"),
        (format!(r#"{{"body":{{{good},"stop":""}}}}"#), "bad_stop"),
        (format!(r#"{{"body":{{{good},"n":2}}}}"#), "not_supported"),
        (format!(r#"{{"body":{{{good},"stop":["x"],"max_tokens":0}}}}"#), ""),
        (format!(r#"{{"body":{{{good}}},"url":"/v1/embeddings"}}"#), "not_supported"),
        (format!(r#"{{"body":{{{good}}},"method":"GET"}}"#), "not_supported"),
        (format!(r#"{{"body":{{{good},"prompt":"x"}}}}"#), "ambiguous_prompt"),
        (r#"{"body":{}}"#.into(), "no_prompt"),
        (r#"{"text":"x"}"#.into(), "no_prompt"),
        (r#"{"prompt":"x","params":3}"#.into(), "bad_params"),
        (r#"{"prompt":5}"#.into(), "bad_prompt"),
        (r#"{"prompt":""}"#.into(), "empty_prompt"),
        (r#"{"prompt":"   "}"#.into(), ""),
        (r#"{"prompt_token_ids":[]}"#.into(), "empty_prompt"),
        (r#"{"prompt_token_ids":[4096]}"#.into(), "bad_prompt_token_ids"),
        (r#"{"prompt_token_ids":[1,null]}"#.into(), "bad_prompt_token_ids"),
        (r#"{"prompt_token_ids":[-1]}"#.into(), "bad_prompt_token_ids"),
        (r#"{"prompt_token_ids":"1 2"}"#.into(), "bad_prompt_token_ids"),
        (r#"{"prompt_token_ids":[4095, 17.0]}"#.into(), ""),
    ];
    let lines: Vec<&str> = cases.iter().map(|case| case.0.as_str()).collect();
    let codes = Bench::of(lines.join("\n")).codes();
    for ((line, code), got) in cases.iter().zip(&codes) {
        assert_eq!(got, code, "{line}");
    }
}

#[test]
fn equal_prompts_keep_their_own_sampling() {
    let row = |params: &str| format!(r#"{{"messages":[{{"role":"user","content":"hi"}}],"params":{{{params}}}}}"#);
    let lines = [row(r#""max_tokens":1"#), row(r#""temperature":0,"prompt_logprobs":true"#), row(r#""seed":2,"ignore_eos":true"#), row("")];
    let bench = Bench::of(lines.join("\n"));
    let requests = bench.requests();
    assert_eq!(requests.iter().map(|r| r.sampling.max_tokens).collect::<Vec<_>>(), [1, 7, 7, 7]);
    assert_eq!(
        requests.iter().map(|r| (r.sampling.seed, r.sampling.ignore_eos)).collect::<Vec<_>>(),
        [(0, false), (0, false), (2, true), (0, false)]
    );
    let flags: Vec<(bool, bool)> = bench.read().expect("read").facts.iter().map(|facts| (facts.drawn, facts.prompt_logprobs)).collect();
    assert_eq!(flags, [(true, false), (false, true), (true, false), (true, false)]);
    let mut bench = Bench::of(&lines[0]);
    bench.sampling.stop_token_ids = vec![4096];
    bench.refused(Kind::Usage, &["sampling.stop_token_ids", "4096"]);
}

#[test]
fn a_model_without_tokenizer_runs_token_ids() {
    let lines = ["{\"prompt_token_ids\":[1]}", "{\"prompt\":\"x\"}", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"];
    let mut bench = Bench::of(lines.join("\n"));
    bench.tokenizer = None;
    assert_eq!(bench.codes(), ["", "no_tokenizer", "no_tokenizer"]);
    let mut bench = Bench::of("{\"prompt_token_ids\":[1],\"params\":{\"stop\":\"x\"}}\n{\"text\":\"x\"}").template("{{ text }}");
    bench.tokenizer = None;
    assert_eq!(bench.codes(), ["no_tokenizer", "no_tokenizer"]);
}

#[test]
fn system_and_thinking_shape_the_prompt() {
    let mut bench = Bench::of("{\"text\":\"x\"}").template("Q {{ text }}");
    bench.section.system = Some("Be brief.".into());
    bench.section.thinking = true;
    let message = |role, content: &str| Message { role, content: content.into() };
    let want = DEMO.chat(&[message(Role::System, "Be brief."), message(Role::User, "Q x")], true);
    assert_eq!(bench.requests()[0].prompt, want);
    assert!(want.ends_with(&DEMO.channels().thinking_open));
}

/// A prompt cut to `most` tokens: the same markup and instruction around a beginning or an end of the document.
#[test]
fn only_the_document_shrinks() {
    let document = "naïve 日本語 text \u{1f469}\u{200d}\u{1f469} ".repeat(40);
    let json = serde_json::json!({ "text": document, "short": "note" }).to_string();
    for side in [Side::Left, Side::Right] {
        for most in [60, 61, 62, 63, 200] {
            let mut bench = Bench::of(&json).template("Name it: {{ text }} {{ short }}!");
            bench.section.max_prompt_tokens = Some(most);
            assert_eq!(bench.codes(), ["prompt_too_long"]);
            bench.section.truncate = Some(side);
            let request = &bench.requests()[0];
            let whole = user(&format!("Name it: {document} note!"));
            assert!(request.prompt.len() <= most as usize && request.prompt.len() + 8 > most as usize, "{}", request.prompt.len());
            assert_eq!(request.prompt.len() + request.truncated_tokens as usize, whole.len());
            let kept = document.char_indices().map(|(at, _)| if side == Side::Left { &document[at..] } else { &document[..at] });
            let prompts = kept.map(|rest| user(&format!("Name it: {rest} note!")));
            assert!(prompts.into_iter().any(|prompt| prompt == request.prompt), "cut at a character border");
        }
        let mut bench = Bench::of(&json).template("Name it: {{ text }} {{ short }}!");
        bench.section.truncate = Some(side);
        bench.section.max_prompt_tokens = Some(10);
        assert_eq!(bench.codes(), ["prompt_too_long"], "the instruction alone is too long");
    }
}

#[test]
fn other_forms_shrink_where_they_can() {
    let ids = format!("{{\"prompt_token_ids\":{:?}}}", (1..=200).collect::<Vec<u32>>());
    let lines = [
        r#"{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"one two three four five six seven eight"},{"role":"assistant","content":"ok"}]}"#,
        r#"{"prompt":"one two three four five six seven eight nine ten"}"#,
        ids.as_str(),
        r#"{"messages":[{"role":"system","content":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen one two three four"}]}"#,
    ];
    let mut bench = Bench::of(lines.join("\n"));
    let whole = bench.requests();
    bench.section.truncate = Some(Side::Right);
    bench.section.max_prompt_tokens = Some(whole[0].prompt.len() as u32 - 4);
    let cut = bench.requests();
    let turn = |role, content: &str| Message { role, content: content.into() };
    let shorter = |text: &str| DEMO.chat(&[turn(Role::System, "Be brief."), turn(Role::User, text), turn(Role::Assistant, "ok")], false);
    let words = "one two three four five six seven eight";
    assert!((1..words.len()).any(|end| shorter(&words[..end]) == cut[0].prompt));
    assert_eq!(cut[0].prompt.len() + cut[0].truncated_tokens as usize, whole[0].prompt.len());
    assert_eq!(cut[2].prompt, whole[2].prompt[..cut[2].prompt.len()]);
    assert_eq!(cut[2].prompt.len(), whole[0].prompt.len() - 4);
    assert_eq!(cut[3].fault.as_ref().map(|fault| fault.code.as_str()), Some("prompt_too_long"), "no user message can shrink");
    bench.section.max_prompt_tokens = Some(4);
    bench.section.truncate = Some(Side::Left);
    let cut = bench.requests();
    assert!(DEMO.encode("one two three four five six seven eight nine ten").ends_with(&cut[1].prompt[1..]));
    assert_eq!(cut[2].prompt, [197, 198, 199, 200]);
}
