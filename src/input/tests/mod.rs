//! Cases from the field, as data: what goes in, and what must come of it.

mod columns;
mod lines;
mod parquet;
mod prompts;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use tempfile::TempDir;

use super::{Ingested, ModelFacts, Room, read};
use crate::error::{Error, Kind};
use crate::job::{InputSection, OnBadLine};
use crate::request::{Request, Sampling};
use crate::tokenizer::{Message, Role, Tokenizer};

const VOCAB: usize = 4096;

static DEMO: LazyLock<Tokenizer> =
    LazyLock::new(|| Tokenizer::open(&fixtures().join("demo-model"), VOCAB).expect("opens").expect("a tokenizer"));

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

/// A job's input in a folder of its own.
struct Bench {
    folder: TempDir,
    section: InputSection,
    sampling: Sampling,
    tokenizer: Option<&'static Tokenizer>,
}

impl Bench {
    fn new() -> Self {
        let section = InputSection {
            paths: Vec::new(),
            id: None,
            template: None,
            system: None,
            thinking: false,
            on_bad_line: OnBadLine::Refuse,
            max_prompt_tokens: None,
            truncate: None,
            keep: Vec::new(),
        };
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("state")).expect("a folder");
        Bench { folder, section, sampling: Sampling { max_tokens: 7, ..Sampling::default() }, tokenizer: Some(&DEMO) }
    }

    /// A bench with one file `a.jsonl`.
    fn of(bytes: impl AsRef<[u8]>) -> Self {
        let mut bench = Bench::new();
        bench.add("a.jsonl", bytes);
        bench
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Writes a file without naming it as input.
    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, bytes).expect("written");
        path
    }

    fn add(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.put(name, bytes);
        self.section.paths.push(path);
    }

    fn template(mut self, text: &str) -> Self {
        self.section.template = Some(text.into());
        self
    }

    fn read(&self) -> Result<Ingested, Error> {
        read(&self.section, &self.sampling, self.tokenizer, &ModelFacts { vocab: VOCAB, room: Room::AMPLE }, &self.state(), &mut |_| {})
    }

    fn requests(&self) -> Vec<Request> {
        let ingested = self.read().expect("an input");
        assert_eq!(ingested.facts.len() as u64, ingested.spool.rows());
        (0..ingested.spool.rows()).map(|index| ingested.spool.get(index).expect("a request")).collect()
    }

    /// Each row's fault code, "" where it has none.
    fn codes(&self) -> Vec<String> {
        self.requests().into_iter().map(|request| request.fault.map_or(String::new(), |fault| fault.code)).collect()
    }

    /// The refusal's message, which has all of `parts`.
    fn refused(&self, kind: Kind, parts: &[&str]) -> String {
        let error = self.read().err().expect("a refusal");
        assert_eq!(error.kind, kind, "{error}");
        for part in parts {
            assert!(error.message.contains(part), "`{error}` lacks `{part}`");
        }
        error.message
    }
}

fn user(text: &str) -> Vec<u32> {
    DEMO.chat(&[Message { role: Role::User, content: text.into() }], false)
}
