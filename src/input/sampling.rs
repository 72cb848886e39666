//! What do a row's sampling keys say? vLLM's names and meanings; null is as good as absent.
//!
//! A key that would change the answer and is not built must fail the row by name: ignored, it would change the answer in silence. So every key is
//! in one of four lists: built, changing nothing, accepted at the value that changes nothing, or unknown.

use serde_json::{Map, Value};

use super::columns::nearest;
use super::jsonl::kind;
use crate::request::{Fault, Sampling};

type Outcome<T> = std::result::Result<T, Fault>;

/// Keys of [`Sampling`], and OpenAI's newer name of one.
const BUILT: [&str; 12] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "max_tokens",
    "max_completion_tokens",
    "stop",
    "stop_token_ids",
    "logprobs",
    "prompt_logprobs",
    "ignore_eos",
];

/// Keys that cannot change an answer.
const IGNORED: [&str; 12] = [
    "model",
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "stream_options",
    "parallel_tool_calls",
    "priority",
    "request_id",
    "spaces_between_special_tokens",
];

/// Keys of what is not built, with the values (as JSON) that ask for nothing.
const NEUTRAL: [(&str, &[&str]); 36] = [
    ("n", &["1"]),
    ("best_of", &["1"]),
    ("stream", &["false"]),
    ("presence_penalty", &["0"]),
    ("frequency_penalty", &["0"]),
    ("repetition_penalty", &["1"]),
    ("length_penalty", &["1"]),
    ("logit_bias", &["{}"]),
    ("top_logprobs", &["0"]),
    ("min_tokens", &["0"]),
    ("tools", &["[]"]),
    ("tool_choice", &["\"none\"", "\"auto\""]),
    ("functions", &["[]"]),
    ("function_call", &["\"none\"", "\"auto\""]),
    ("response_format", &["{\"type\":\"text\"}"]),
    ("structured_outputs", &[]),
    ("guided_json", &[]),
    ("guided_regex", &[]),
    ("guided_choice", &[]),
    ("guided_grammar", &[]),
    ("modalities", &["[\"text\"]"]),
    ("audio", &[]),
    ("web_search_options", &[]),
    ("reasoning_effort", &[]),
    ("chat_template", &[]),
    ("chat_template_kwargs", &["{}"]),
    ("echo", &["false"]),
    ("suffix", &["\"\""]),
    ("use_beam_search", &["false"]),
    ("bad_words", &["[]"]),
    ("allowed_token_ids", &[]),
    ("truncate_prompt_tokens", &[]),
    ("include_stop_str_in_output", &["false"]),
    ("skip_special_tokens", &["true"]),
    ("add_generation_prompt", &["true"]),
    ("continue_final_message", &["false"]),
];

/// Longest echo of a wrong value in a message, in characters.
const ECHO: usize = 60;

/// The job's values with those of `keys` over them; keys in `content` belong to others. `vocab` bounds token ids.
pub(super) fn resolve(job: &Sampling, keys: &Map<String, Value>, content: &[&str], vocab: usize) -> Outcome<Sampling> {
    let mut sampling = job.clone();
    for (key, value) in keys.iter().filter(|(key, value)| !value.is_null() && !content.contains(&key.as_str())) {
        set(&mut sampling, key, value, vocab)?;
    }
    // where both names stand, the newer wins, as in vLLM
    if let Some(value) = keys.get("max_completion_tokens").filter(|value| !value.is_null()) {
        sampling.max_tokens = tokens("max_completion_tokens", value)?;
    }
    Ok(sampling)
}

fn set(sampling: &mut Sampling, key: &str, value: &Value, vocab: usize) -> Outcome<()> {
    match key {
        "temperature" => sampling.temperature = number(key, value, "a number from 0 on", |t| t >= 0.0)?,
        "top_p" => sampling.top_p = number(key, value, "a number above 0 and up to 1", |p| p > 0.0 && p <= 1.0)?,
        "min_p" => sampling.min_p = number(key, value, "a number from 0 to 1", |p| (0.0..=1.0).contains(&p))?,
        "top_k" => {
            let k = integer(key, value, "a whole number from -1 on", -1..=i64::from(u32::MAX))?;
            sampling.top_k = u32::try_from(k).unwrap_or(0);
        }
        "seed" => sampling.seed = integer(key, value, "a whole number of 64 bits", i64::MIN..=i64::MAX)?,
        "max_tokens" | "max_completion_tokens" => sampling.max_tokens = tokens(key, value)?,
        "stop" => sampling.stop = stops(value)?,
        "stop_token_ids" => sampling.stop_token_ids = ids(key, value, vocab)?,
        "logprobs" => sampling.logprobs = scores(key, value)?,
        "prompt_logprobs" => sampling.prompt_logprobs = scores(key, value)?,
        "ignore_eos" => sampling.ignore_eos = value.as_bool().ok_or_else(|| wrong(key, "true or false", value))?,
        _ => return other(key, value),
    }
    Ok(())
}

/// A key of no effect here: fine, not built, or unknown.
fn other(key: &str, value: &Value) -> Outcome<()> {
    if IGNORED.contains(&key) {
        return Ok(());
    }
    if let Some((_, neutral)) = NEUTRAL.iter().find(|(name, _)| *name == key) {
        return match neutral.iter().any(|text| same(value, text)) {
            true => Ok(()),
            false => Err(Fault::new("not_supported", format!("`{key}` = {} is not supported; leave it out", echo(value)))),
        };
    }
    let known = BUILT.into_iter().chain(IGNORED).chain(NEUTRAL.map(|(name, _)| name));
    let hint = nearest(key, known).map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
    Err(Fault::new("unknown_key", format!("`{key}` is no sampling key{hint}")))
}

fn same(value: &Value, text: &str) -> bool {
    match (value.as_f64(), text.parse::<f64>()) {
        (Some(one), Ok(other)) => one == other,
        _ => serde_json::from_str(text).is_ok_and(|other: Value| without_nulls(value) == other),
    }
}

/// Structs of a Parquet file have every field, absent ones as null.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => map.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect(),
        other => other.clone(),
    }
}

/// The whole number that a JSON number is: 4 and 4.0, not 4.5 and not 1e30.
pub(super) fn whole(value: &Value) -> Option<i64> {
    let float = || value.as_f64().filter(|f| f.fract() == 0.0 && (-9.2e18..9.2e18).contains(f)).map(|f| f as i64);
    value.as_i64().or_else(|| if value.is_u64() { None } else { float() })
}

/// Token ids, each below `vocab`.
pub(super) fn ids(key: &str, value: &Value, vocab: usize) -> Outcome<Vec<u32>> {
    let items = value.as_array().ok_or_else(|| wrong(key, "a list of token ids", value))?;
    let id = |(at, item): (usize, &Value)| match whole(item).and_then(|id| u32::try_from(id).ok()).filter(|&id| (id as usize) < vocab) {
        Some(id) => Ok(id),
        None => {
            let most = vocab.saturating_sub(1);
            Err(Fault::new(format!("bad_{key}"), format!("item {at} of `{key}` must be a token id from 0 to {most}, not {}", echo(item))))
        }
    };
    items.iter().enumerate().map(id).collect()
}

fn stops(value: &Value) -> Outcome<Vec<String>> {
    let want = "a string or a list of strings, none of them empty";
    let text = |item: &Value| match item.as_str() {
        Some(text) if !text.is_empty() => Ok(text.to_string()),
        _ => Err(wrong("stop", want, value)),
    };
    match value {
        Value::Array(items) => items.iter().map(text).collect(),
        single => Ok(vec![text(single)?]),
    }
}

/// Log-probabilities of the chosen token; those of others are not kept.
fn scores(key: &str, value: &Value) -> Outcome<bool> {
    match value {
        Value::Bool(wanted) => Ok(*wanted),
        _ if whole(value) == Some(1) => Ok(true),
        _ if whole(value).is_some_and(|n| n > 1) => Err(Fault::new(
            "not_supported",
            format!("`{key}` = {} is not supported: those of the chosen token alone are kept, by true or 1", echo(value)),
        )),
        _ => Err(wrong(key, "true, false or 1", value)),
    }
}

fn tokens(key: &str, value: &Value) -> Outcome<u32> {
    let count = integer(key, value, "a whole number from 0 to 2147483647", 0..=i64::from(i32::MAX))?;
    u32::try_from(count).map_err(|_| wrong(key, "a whole number", value))
}

fn integer(key: &str, value: &Value, want: &str, range: std::ops::RangeInclusive<i64>) -> Outcome<i64> {
    whole(value).filter(|n| range.contains(n)).ok_or_else(|| wrong(key, want, value))
}

fn number(key: &str, value: &Value, want: &str, fits: impl Fn(f32) -> bool) -> Outcome<f32> {
    value.as_f64().map(|n| n as f32).filter(|&n| n.is_finite() && fits(n)).ok_or_else(|| wrong(key, want, value))
}

/// A field of the wrong type or out of range.
pub(super) fn wrong(key: &str, want: &str, value: &Value) -> Fault {
    Fault::new(format!("bad_{key}"), format!("`{key}` must be {want}, not {}", echo(value)))
}

fn echo(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => kind(value).to_string(),
        short => {
            let text = short.to_string();
            match text.char_indices().nth(ECHO) {
                Some((end, _)) => format!("{}...", &text[..end]),
                None => text,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(json: &str) -> std::result::Result<Sampling, String> {
        let job = Sampling { max_tokens: 7, seed: 5, ..Sampling::default() };
        let keys: Map<String, Value> = serde_json::from_str(json).expect("an object");
        resolve(&job, &keys, &["messages"], 100).map_err(|fault| fault.code)
    }

    #[test]
    fn values_take_the_types_that_people_write() {
        assert_eq!(resolved(r#"{"max_tokens":null,"seed":null,"stop":null}"#).map(|s| (s.max_tokens, s.seed)), Ok((7, 5)));
        assert_eq!(resolved(r#"{"max_tokens":4.0}"#).map(|s| s.max_tokens), Ok(4));
        assert_eq!(resolved(r#"{"max_completion_tokens":3,"max_tokens":9}"#).map(|s| s.max_tokens), Ok(3));
        assert_eq!(resolved(r#"{"max_tokens":0,"top_k":-1}"#).map(|s| (s.max_tokens, s.top_k)), Ok((0, 0)));
        assert_eq!(resolved(r#"{"stop":"x"}"#).map(|s| s.stop), Ok(vec!["x".to_string()]));
        assert_eq!(resolved(r#"{"stop":[]}"#).map(|s| s.stop), Ok(vec![]));
        assert_eq!(resolved(r#"{"logprobs":1,"prompt_logprobs":true}"#).map(|s| (s.logprobs, s.prompt_logprobs)), Ok((true, true)));
        assert_eq!(resolved(r#"{"stop_token_ids":[0,99.0]}"#).map(|s| s.stop_token_ids), Ok(vec![0, 99]));
        assert_eq!(resolved(r#"{"seed":-9223372036854775808}"#).map(|s| s.seed), Ok(i64::MIN));
        let neutral = r#"{"n":1,"presence_penalty":0.0,"stream":false,"tools":[],"response_format":{"type":"text"},"logit_bias":{},
            "user":"u","metadata":{"a":1},"store":true,"model":"m","tool_choice":"auto","repetition_penalty":1,"messages":3}"#;
        assert!(resolved(neutral).is_ok(), "{:?}", resolved(neutral));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (r#"{"max_tokens":4.5}"#, "bad_max_tokens"),
            (r#"{"max_tokens":1e30}"#, "bad_max_tokens"),
            (r#"{"max_tokens":-1}"#, "bad_max_tokens"),
            (r#"{"max_tokens":"4"}"#, "bad_max_tokens"),
            (r#"{"max_tokens":true}"#, "bad_max_tokens"),
            (r#"{"seed":18446744073709551615}"#, "bad_seed"),
            (r#"{"temperature":-0.1}"#, "bad_temperature"),
            (r#"{"temperature":1e300}"#, "bad_temperature"),
            (r#"{"top_p":0}"#, "bad_top_p"),
            (r#"{"top_k":-2}"#, "bad_top_k"),
            (r#"{"min_p":1.5}"#, "bad_min_p"),
            (r#"{"stop":""}"#, "bad_stop"),
            (r#"{"stop":[""]}"#, "bad_stop"),
            (r#"{"stop":["a",null]}"#, "bad_stop"),
            (r#"{"stop_token_ids":[100]}"#, "bad_stop_token_ids"),
            (r#"{"stop_token_ids":[-1]}"#, "bad_stop_token_ids"),
            (r#"{"logprobs":5}"#, "not_supported"),
            (r#"{"logprobs":"yes"}"#, "bad_logprobs"),
            (r#"{"ignore_eos":1}"#, "bad_ignore_eos"),
            (r#"{"n":2}"#, "not_supported"),
            (r#"{"stream":true}"#, "not_supported"),
            (r#"{"tools":[{}]}"#, "not_supported"),
            (r#"{"response_format":{"type":"json_object"}}"#, "not_supported"),
            (r#"{"structured_outputs":{"choice":["a"]}}"#, "not_supported"),
            (r#"{"temprature":0}"#, "unknown_key"),
        ];
        for (json, code) in cases {
            assert_eq!(resolved(json), Err(code.to_string()), "{json}");
        }
        let keys = serde_json::json!({ "temprature": 0 });
        let fault = resolve(&Sampling::default(), keys.as_object().expect("an object"), &[], 10).expect_err("unknown");
        assert!(fault.message.contains("temprature") && fault.message.contains("`temperature`"), "{}", fault.message);
    }
}
