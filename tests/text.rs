//! From tokens to text: channels, stop strings, and where both end.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use serde_json::{Value, json};

use crate::house::{House, Row, Vocabulary, batches, documents, rows, says};

/// Reasoning and text by markup: control tokens between \u{1} are no characters of any document.
fn split(vocabulary: &Vocabulary, row: &Row, prompt_tail: &str) -> (String, String) {
    let ended = row.finish.as_deref() == Some("stop");
    let ids = &row.tokens()[..row.tokens().len() - usize::from(ended)];
    let mut marked = prompt_tail.as_bytes().to_vec();
    for id in ids {
        match vocabulary.control.iter().find(|(control, _)| control == id) {
            Some((_, name)) => marked.extend(format!("\u{1}{name}\u{1}").bytes()),
            None => marked.extend(vocabulary.bytes(*id).unwrap_or(b"")),
        }
    }
    let marked = String::from_utf8_lossy(&marked).into_owned();
    let plain = |text: &str| text.split('\u{1}').step_by(2).collect::<String>();
    let (thought, rest) = marked.split_once("\u{1}<|close|>\u{1}think\u{1}<|sep|>\u{1}").unwrap_or((&marked, ""));
    let text = rest.split_once("\u{1}<|open|>\u{1}response\u{1}<|sep|>\u{1}").map_or("", |(_, text)| text);
    (plain(thought), plain(text))
}

#[test]
fn unfinished_thinking_is_never_the_answer() {
    let (house, vocabulary) = (House::new(), Vocabulary::demo());
    let prompt = says("Which Debian section does this package belong to?\n\nA small library for reading and writing JSON.");
    let row = |params: Value| json!({ "messages": prompt, "params": params });
    let mut lines = Vec::new();
    for ignore in [true, false] {
        lines.extend((1..=12).chain([60]).map(|n| row(json!({ "max_tokens": n, "ignore_eos": ignore }))));
    }
    let open = ["input.thinking=true"];
    let first = house.answers(&lines, &open, 0);
    let thought = first[12].reasoning.clone().expect("a thought");
    let word = thought.split_whitespace().max_by_key(|word| word.len()).expect("a word");
    lines.push(row(json!({ "max_tokens": 60, "ignore_eos": true, "stop": [word] })));

    let input = house.lines("in.jsonl", &lines);
    let out = house.path("out");
    let done = house.run(&input, &out, &open);
    done.says(0, &[]);
    let all = rows(&out);
    let mut cut = 0;
    for row in &all {
        let (reasoning, text) = split(&vocabulary, row, "");
        assert_eq!((row.reasoning.as_deref(), row.text()), (Some(&*reasoning), &*text), "{row:?}");
        cut += usize::from(row.finish.as_deref() == Some("length"));
    }
    assert!(cut >= 13, "rows that ignore the end are cut by length: {cut}");
    assert!(done.out.contains(&format!("{cut} cut by max_tokens")), "{done:?}");
    let stopped = all.last().expect("the row with a stop");
    if split(&vocabulary, stopped, "").1.is_empty() {
        assert_eq!(stopped.tokens, all[12].tokens, "a word inside thinking stops nothing");
    }
    let closed = house.answers(&[json!({ "messages": prompt, "params": { "max_tokens": 3 } })], &[], 0);
    assert_eq!(closed[0].reasoning, None, "the channel was not opened");
}

/// The pieces of field case 8's free run.
struct Free {
    row: Row,
    text: String,
    /// Bytes of text before each token, and behind the last.
    borders: Vec<usize>,
}

fn free_run(house: &House, vocabulary: &Vocabulary, prompt: &Value) -> Free {
    let line = json!({ "messages": prompt, "params": { "max_tokens": 24, "ignore_eos": true, "logprobs": true } });
    let row = house.answers(&[line], &[], 0).remove(0);
    let mut borders = vec![0];
    for id in row.tokens() {
        borders.push(borders.last().expect("begun") + vocabulary.bytes(*id).map_or(0, <[u8]>::len));
    }
    let text = row.text().to_string();
    assert!(text.is_ascii(), "the case's own arithmetic is of bytes: {text:?}");
    Free { row, text, borders }
}

impl Free {
    /// Substrings that begin and end inside a token, spread over the run.
    fn inner(&self, most: usize) -> Vec<String> {
        let inside = |at: &usize| !self.borders.contains(at);
        let starts: Vec<usize> = (1..self.text.len()).filter(inside).collect();
        let mut found = Vec::new();
        for length in [9, 4, 2, 14] {
            let fits = starts.iter().filter(|start| **start + length < self.text.len() && inside(&(*start + length)));
            found.extend(fits.step_by(3).map(|start| self.text[*start..start + length].to_string()));
        }
        found.dedup();
        found.truncate(most);
        found
    }

    /// How many tokens it takes until the text contains `stop`.
    fn tokens_until(&self, stop: &str) -> usize {
        let end = self.text.find(stop).expect("a part of the text") + stop.len();
        self.borders.iter().position(|border| *border >= end).expect("inside the run")
    }

    fn is_cut_by(&self, row: &Row, stop: &str) {
        assert_eq!(row.text(), &self.text[..self.text.find(stop).expect("a part of the text")], "{row:?}");
        assert_eq!((row.finish.as_deref(), row.stop.as_deref()), (Some("stop"), Some(stop)));
        let n = self.tokens_until(stop);
        assert_eq!(row.tokens(), &self.row.tokens()[..n], "{stop:?}");
        assert_eq!(row.logprobs.as_deref(), self.row.logprobs.as_ref().map(|all| &all[..n]));
    }
}

#[test]
fn a_stop_string_cuts_text_and_keeps_every_token_that_made_it() {
    let (house, vocabulary) = (House::new(), Vocabulary::demo());
    let document = documents(2)[1]["text"].as_str().expect("text").to_string();
    let ask = format!("Summarize this package description in one line.\n\n{document} Zymurgy quux.");
    let prompt = says(&ask);
    let free = free_run(&house, &vocabulary, &prompt);
    let stops = free.inner(20);
    assert!(stops.len() >= 15, "too few places inside tokens: {:?}", free.text);
    let row =
        |stop: Value| json!({ "messages": prompt, "params": { "max_tokens": 24, "ignore_eos": true, "logprobs": true, "stop": stop } });
    let mut lines: Vec<Value> = stops.iter().map(|stop| row(json!([stop]))).collect();
    let long: Vec<&String> = stops.iter().filter(|stop| stop.len() > 4).take(3).collect();
    lines.extend(long.iter().map(|stop| row(json!([stop, stop[..stop.len() - 2]]))));
    let none = lines.len();
    lines.extend([json!(["Zymurgy quux"]), json!([]), json!(null)].map(row));
    let wrong = lines.len();
    lines.extend([json!(""), json!([""])].map(row));
    lines.push(json!({ "messages": prompt, "params": { "max_tokens": 0, "stop": ["x"], "logprobs": true } }));

    let out = house.path("out");
    house.run(&house.lines("in.jsonl", &lines), &out, &["engine.wave=7"]).says(1, &[]);
    let all = rows(&out);
    for (row, stop) in all.iter().zip(&stops) {
        free.is_cut_by(row, stop);
    }
    for (row, stop) in all[stops.len()..none].iter().zip(&long) {
        let shorter = &stop[..stop.len() - 2];
        let first = if free.tokens_until(shorter) == free.tokens_until(stop) { stop } else { shorter };
        assert_eq!(row.stop.as_deref(), Some(first), "{stop:?}");
        assert_eq!(row.tokens().len(), free.tokens_until(first));
        assert_eq!(row.text(), &free.text[..free.text.find(shorter).expect("a part")]);
    }
    for row in &all[none..wrong] {
        assert_eq!((row.text(), &row.tokens, row.finish.as_deref()), (&*free.text, &free.row.tokens, Some("length")));
    }
    assert!(all[wrong..wrong + 2].iter().all(|row| row.code() == "bad_stop"), "{:?}", &all[wrong..]);
    let nothing = &all[wrong + 2];
    assert_eq!((nothing.text(), nothing.tokens(), nothing.finish.as_deref()), ("", &[][..], Some("length")));
    lengths_agree(&all, &out);
}

/// Ids, log-probabilities, counts and timings of a row tell one length.
fn lengths_agree(all: &[Row], out: &std::path::Path) {
    let timings = batches(out, "timings");
    let times = timings.iter().flat_map(|batch| {
        let lists = batch.column_by_name("token_us").expect("times").as_list::<i32>();
        (0..batch.num_rows()).map(|at| lists.value(at).as_primitive::<Int64Type>().values().to_vec()).collect::<Vec<_>>()
    });
    let times: Vec<Vec<i64>> = times.collect();
    assert_eq!(times.len(), all.len());
    for (row, times) in all.iter().zip(times).filter(|(row, _)| row.status == "succeeded") {
        let n = row.tokens().len();
        assert_eq!((row.logprobs.as_ref().map(Vec::len), row.completion_tokens as usize, times.len()), (Some(n), n, n), "{row:?}");
        assert!(times.is_sorted());
    }
}
