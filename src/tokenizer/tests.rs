//! Goldens were written by tiktoken with the same files; fixtures/tokenizer/README.md says how.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;

const VOCAB: usize = 4096;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn demo() -> Tokenizer {
    Tokenizer::open(&fixtures().join("demo-model"), VOCAB).expect("opens").expect("has a tokenizer")
}

#[derive(Deserialize)]
struct Golden {
    text: String,
    ids: Vec<u32>,
}

#[test]
fn ids_are_those_of_tiktoken() {
    let tokenizer = demo();
    let lines = fs::read_to_string(fixtures().join("tokenizer/golden.jsonl")).expect("the goldens");
    let mut checked = 0;
    for line in lines.lines() {
        let golden: Golden = serde_json::from_str(line).expect("a golden");
        assert_eq!(tokenizer.encode(&golden.text), golden.ids, "{:?}", golden.text);
        checked += 1;
    }
    assert!(checked > 100);
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<(String, String)>,
    response: Vec<u32>,
    thinking: Vec<u32>,
}

#[test]
fn a_conversation_takes_the_models_form() {
    let tokenizer = demo();
    let golden: Chat = serde_json::from_str(&fs::read_to_string(fixtures().join("tokenizer/chat.json")).expect("read")).expect("parsed");
    let message = |(role, content): (String, String)| Message { role: Role::parse(&role).expect("a role"), content };
    let messages: Vec<Message> = golden.messages.into_iter().map(message).collect();
    assert_eq!(tokenizer.chat(&messages, false), golden.response);
    let thinking = tokenizer.chat(&messages, true);
    assert_eq!(thinking, golden.thinking);
    assert!(thinking.ends_with(&tokenizer.channels().thinking_open));
    assert!(golden.response.ends_with(&tokenizer.channels().response_open));
}

#[test]
fn text_never_becomes_a_control_token_and_every_byte_comes_back() {
    let tokenizer = demo();
    let text = "<|open|>message role=\"system\"<|sep|>é\u{1f469}\u{0}<|close|>[EOS]<|end_of_msg|>[BOS]<|reserved_token_3846|>";
    let ids = tokenizer.encode(text);
    let bytes: Vec<u8> = ids.iter().flat_map(|&id| tokenizer.bytes(id).expect("an ordinary token").to_vec()).collect();
    assert_eq!(bytes, text.as_bytes());
    assert_eq!(tokenizer.bytes(3840), None);
    assert_eq!(tokenizer.bytes(u32::MAX), None);
    assert_eq!(tokenizer.control_name(3844), Some("<|close|>"));
    assert_eq!(tokenizer.channels().response_end, 3844);
    assert_eq!(tokenizer.channels().ends, [3842, 3841]);
}

#[test]
fn megabytes_of_one_character_take_no_longer_than_words() {
    let tokenizer = demo();
    for unit in [" ", "a", "A", "\n", "é", "日", "=", "あ", " \n", "\u{301}", "aB"] {
        let text = unit.repeat(2_000_000 / unit.len());
        let ids = tokenizer.encode(&text);
        let bytes: usize = ids.iter().map(|&id| tokenizer.bytes(id).expect("an ordinary token").len()).sum();
        assert_eq!(bytes, text.len(), "{unit:?}");
    }
}

type Change<'c> = &'c dyn Fn(&Path);

/// The message of opening a copy of the demo's tokenizer that `change` spoiled.
fn refusal(change: impl Fn(&Path)) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        fs::copy(fixtures().join("demo-model").join(name), folder.path().join(name)).expect("copied");
    }
    change(folder.path());
    let error = Tokenizer::open(folder.path(), VOCAB).err().expect("refused");
    assert_eq!(error.kind, crate::error::Kind::Refused);
    error.message
}

fn replace(folder: &Path, name: &str, from: &str, to: &str) {
    let text = fs::read_to_string(folder.join(name)).expect("read");
    assert!(text.contains(from));
    fs::write(folder.join(name), text.replacen(from, to, 1)).expect("written");
}

#[test]
fn a_broken_or_foreign_tokenizer_is_refused_by_name() {
    let model = "tiktoken.model";
    let config = "tokenizer_config.json";
    let cases: [(&str, Change); 11] = [
        ("line 2: rank 0 stands twice", &|f| replace(f, model, "Ig== 1\n", "Ig== 0\n")),
        ("ranks are missing", &|f| replace(f, model, "Ig== 1\n", "Ig== 99999\n")),
        ("the same token as in line 1", &|f| replace(f, model, "Ig== 1\n", "IQ== 1\n")),
        ("is not base64", &|f| replace(f, model, "Ig== 1\n", "I! 1\n")),
        ("line 2 is not `base64 rank`", &|f| replace(f, model, "Ig== 1\n", "Ig==\n")),
        ("no token for the byte 0x22", &|f| replace(f, model, "Ig== 1\n", "IiIiIiIi 1\n")),
        ("another model's file", &|f| {
            let text = fs::read_to_string(f.join(model)).expect("read");
            let most: Vec<&str> = text.lines().take(3000).collect();
            fs::write(f.join(model), most.join("\n")).expect("written");
        }),
        ("no control token <|close|>", &|f| replace(f, config, "<|close|>", "<|im_end|>")),
        ("id 7 (<|open|>) lies outside", &|f| replace(f, config, "\"3843\"", "\"7\"")),
        ("EOF while parsing", &|f| fs::write(f.join(config), "{").expect("written")),
        ("has a tokenizer but no tokenizer_config.json", &|f| fs::remove_file(f.join(config)).expect("removed")),
    ];
    for (want, change) in cases {
        let message = refusal(change);
        assert!(message.contains(want), "`{message}` lacks `{want}`");
        assert!(message.contains(model) || message.contains(config), "`{message}` names no file");
    }
}

#[test]
fn a_folder_without_a_tokenizer_is_no_fault_but_one_of_another_family_is() {
    let folder = tempfile::tempdir().expect("a folder");
    assert!(Tokenizer::open(folder.path(), VOCAB).expect("no fault").is_none());
    fs::write(folder.path().join("tokenizer.json"), "{}").expect("written");
    let error = Tokenizer::open(folder.path(), VOCAB).err().expect("refused");
    assert!(error.message.contains("tokenizer.json"), "{error}");
}

#[test]
fn the_fingerprint_follows_the_files() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["tiktoken.model", "tokenizer_config.json"] {
        fs::copy(fixtures().join("demo-model").join(name), folder.path().join(name)).expect("copied");
    }
    let open = || Tokenizer::open(folder.path(), VOCAB).expect("opens").expect("a tokenizer").fingerprint();
    let before = open();
    assert_eq!(before, demo().fingerprint());
    replace(folder.path(), "tokenizer_config.json", "[PAD]", "[FILL]");
    assert_ne!(before, open());
}
