//! Files, lines and ids.

use super::*;

#[test]
fn only_a_line_feed_ends_a_line() {
    let mut bytes = b"\xef\xbb\xbf".to_vec();
    bytes.extend("{\"custom_id\":\"a\",\"prompt\":\"x\u{2028}y\u{2029}z\u{85}w\"}\r\n\n  \r\n".bytes());
    bytes.extend(br#"{"custom_id":"b","prompt":"x\u2028y\u2029z\u0085w"}"#);
    bytes.extend(b"\n{\"custom_id\":\"c\",\"prompt\":\"plain\"}");
    let requests = Bench::of(bytes).requests();
    assert_eq!(requests.iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(requests[0].prompt, requests[1].prompt);
    assert_eq!(requests[0].prompt, DEMO.encode("x\u{2028}y\u{2029}z\u{85}w"));
}

#[test]
fn a_torn_line_refuses_the_input_with_its_number() {
    let torn =
        "{\"custom_id\":\"a\",\"prompt\":\"x\u{2028}y\u{85}\"}\n{\"custom_id\":\"b\",\"prompt\":\"x\"}\n{\"custom_id\":\"k\",\"prompt\":";
    let mut bench = Bench::of(torn);
    let message = bench.refused(Kind::Refused, &["a.jsonl line 3", "on_bad_line"]);
    assert!(!message.contains("line 1"), "{message}");
    for odd in ["[1,2]", "null", "7", "\"text\"", "{\"custom_id\":\"k\"} x", "{\"custom_id\":\"\u{1}\"}", "not json"] {
        let good = "{\"custom_id\":\"a\",\"prompt\":\"x\"}";
        Bench::of(format!("{good}\n{odd}\n{{\"custom_id\":\"b\",\"prompt\":\"x\"}}\n")).refused(Kind::Refused, &["line 2"]);
    }
    bench.section.on_bad_line = OnBadLine::Row;
    let requests = bench.requests();
    assert_eq!(requests.len(), 3);
    assert_eq!((requests[2].id.as_str(), requests[2].fault.as_ref().map(|f| f.code.as_str())), ("row-2", Some("bad_line")));
    assert!(bench.read().expect("read").facts[2].faulty);
}

#[test]
fn nul_and_half_surrogates_do_not_stop_a_job() {
    let line = r#"{"custom_id":"a","prompt":"x\u0000\ud800y"}"#;
    assert_eq!(Bench::of(line).requests()[0].prompt, DEMO.encode("x\0\u{fffd}y"));
    let long = format!("{{\"custom_id\":\"a\",\"prompt\":\"{}\"}}", " ".repeat(5 << 20));
    assert!(!Bench::of(long).requests()[0].prompt.is_empty());
}

#[test]
fn a_star_does_not_match_a_leading_dot_and_a_literal_name_wins() {
    let row = |id: &str| format!("{{\"id\":\"{id}\",\"prompt\":\"x\"}}\n");
    let mut bench = Bench::new();
    bench.put("a.jsonl", row("a"));
    bench.put("c.JSONL", row("upper"));
    bench.put("b[1].jsonl", row("bracket"));
    bench.put("b1.jsonl", row("b1"));
    bench.put(".old.jsonl", row("old"));
    let sidecar = bench.put("._a.jsonl", b"\x00\x05\x16\x07\x00\x02\x00\x00rest");
    let ids = |bench: &Bench| bench.requests().into_iter().map(|r| r.id).collect::<Vec<_>>();
    bench.section.paths = vec![bench.folder.path().join("*.jsonl")];
    assert_eq!(ids(&bench), ["a", "b1", "bracket"]);
    bench.section.paths = vec![bench.folder.path().join("b[1].jsonl")];
    assert_eq!(ids(&bench), ["bracket"]);
    bench.section.paths = vec![sidecar];
    bench.refused(Kind::Refused, &["._a.jsonl"]);
}

#[test]
fn what_cannot_be_read_is_refused_by_name() {
    let mut bench = Bench::new();
    let folder = bench.folder.path().to_path_buf();
    let cases: [(&str, &[u8], &[&str]); 7] = [
        ("empty.jsonl", b"", &["empty.jsonl", "empty"]),
        ("blank.jsonl", b"\n \n\r\n", &["blank.jsonl", "no rows"]),
        ("x.csv", b"a,b\n", &["x.csv", ".csv", ".jsonl", ".parquet"]),
        ("plain", b"{}\n", &["plain", ".jsonl"]),
        ("wide.jsonl", b"\xff\xfe{\0}\0", &["wide.jsonl", "UTF-8"]),
        ("no.parquet", b"PAR2 and some more bytes PAR2", &["no.parquet"]),
        ("cut.parquet", b"PAR1 and some more bytes that end without", &["cut.parquet"]),
    ];
    for (name, bytes, parts) in cases {
        bench.section.paths = vec![bench.put(name, bytes)];
        bench.refused(Kind::Refused, parts);
    }
    for (path, part) in [("absent.jsonl", "does not exist"), ("absent*.jsonl", "matches no file"), ("state", "is a folder")] {
        bench.section.paths = vec![folder.join(path)];
        bench.refused(Kind::Refused, &[path, part]);
    }
    let good = bench.put("good.jsonl", "{\"prompt\":\"x\"}");
    bench.section.paths = vec![good.clone(), folder.join("goo*.jsonl")];
    bench.refused(Kind::Refused, &["good.jsonl", "twice"]);
    bench.section.paths = vec![good, folder.join("empty.jsonl")];
    bench.refused(Kind::Refused, &["empty.jsonl"]);
}

#[test]
fn ids_are_unique_over_all_files() {
    let mut bench = Bench::of("{\"id\":1,\"prompt\":\"x\"}\n\n{\"id\":\"2\",\"prompt\":\"x\"}\n");
    bench.add("b.jsonl", "{\"id\":3.0,\"prompt\":\"x\"}\n{\"custom_id\":\"2\",\"id\":9,\"prompt\":\"x\"}\n");
    bench.refused(Kind::Refused, &["`2`", "a.jsonl line 3", "b.jsonl line 2"]);
    bench.section.paths.pop();
    bench.add("c.jsonl", "{\"id\":3.0,\"prompt\":\"x\"}\n{\"custom_id\":null,\"id\":-4,\"prompt\":\"x\"}\n");
    assert_eq!(bench.requests().iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["1", "2", "3", "-4"]);
}

#[test]
fn all_rows_have_ids_or_none() {
    let mut bench = Bench::of("{\"prompt\":\"x\"}\n{\"prompt\":\"y\"}\n");
    bench.add("b.jsonl", "{\"prompt\":\"z\",\"id\":null}\n");
    assert_eq!(bench.requests().iter().map(|r| r.id.as_str()).collect::<Vec<_>>(), ["row-0", "row-1", "row-2"]);
    bench.add("c.jsonl", "{\"prompt\":\"z\",\"id\":\"c\"}\n");
    bench.refused(Kind::Refused, &["a.jsonl line 1 has no"]);
    Bench::of("{\"id\":1,\"prompt\":\"x\"}\n{\"prompt\":\"y\"}\n").refused(Kind::Refused, &["a.jsonl line 2 has no"]);
    Bench::of("{\"id\":[1],\"prompt\":\"x\"}\n").refused(Kind::Refused, &["a.jsonl line 1", "`id`"]);
}

#[test]
fn the_fingerprint_follows_the_bytes_and_their_order_not_the_names() {
    let print = |files: &[(&str, &str)]| {
        let mut bench = Bench::new();
        files.iter().for_each(|(name, bytes)| bench.add(name, bytes));
        let mut told = 0;
        let ingested = read(
            &bench.section,
            &bench.sampling,
            bench.tokenizer,
            &ModelFacts { vocab: VOCAB, room: Room::AMPLE },
            &bench.state(),
            &mut |rows| told = rows,
        )
        .expect("an input");
        assert_eq!(told, 2, "the watch knows the number of rows");
        let own = *blake3::hash(files[0].1.as_bytes()).as_bytes();
        assert_eq!((ingested.files[0].blake3, ingested.files[0].rows), (own, 1));
        ingested.fingerprint
    };
    let (one, two) = ("{\"prompt\":\"x\"}\n", "{\"prompt\":\"y\"}");
    assert_eq!(print(&[("a.jsonl", one), ("b.jsonl", two)]), print(&[("c.jsonl", one), ("d.jsonl", two)]));
    assert_ne!(print(&[("a.jsonl", one), ("b.jsonl", two)]), print(&[("a.jsonl", two), ("b.jsonl", one)]));
}
