//! What tests of the whole command need: a folder that goes away, a model that may be damaged, the command itself, and its Parquet as rows.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int32Type, Int64Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

use crate::model::Model;

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The shipped model.
pub fn demo_model() -> PathBuf {
    root().join("fixtures/demo-model")
}

/// Says aloud, past the test runner's capture, that a machine lacks what a test needs.
pub fn skip(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// Whether this process may mount and change users.
pub fn is_root() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|text| text.lines().any(|line| line.starts_with("Uid:\t0\t")))
}

/// What the command left.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Done {
    /// The command ended with `code` and said all of `parts`, without a panic.
    #[track_caller]
    pub fn says(&self, code: i32, parts: &[&str]) -> &Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert!(!self.err.contains("panicked"), "{self:?}");
        for part in parts {
            assert!(self.err.contains(part), "{part:?} is not said: {self:?}");
        }
        self
    }
}

/// A folder for one test, with a command line in it.
pub struct House {
    folder: tempfile::TempDir,
    jobs: AtomicUsize,
}

impl House {
    pub fn new() -> Self {
        House { folder: tempfile::tempdir().expect("a temporary folder"), jobs: AtomicUsize::new(0) }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, bytes).expect("written");
        path
    }

    /// A JSON object a line.
    pub fn lines(&self, name: &str, rows: &[Value]) -> PathBuf {
        let text: String = rows.iter().map(|row| format!("{row}\n")).collect();
        self.write(name, text)
    }

    /// A name that no earlier call has given.
    pub fn fresh(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}-{}", self.jobs.fetch_add(1, Ordering::Relaxed)))
    }

    /// Runs the command in this folder.
    pub fn command(&self, args: &[&OsStr]) -> Done {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nightshift"));
        finish(command.args(args).current_dir(self.folder.path()).env("XDG_CACHE_HOME", self.path("cache")))
    }

    /// `nightshift run` of `input` with the demo model unless `sets` names another; greedy.
    pub fn run(&self, input: &Path, out: &Path, sets: &[&str]) -> Done {
        self.job("run", input, out, sets)
    }

    /// `nightshift run` or `plan` of a job made of flags alone; each of `sets` is KEY=VALUE.
    pub fn job(&self, command: &str, input: &Path, out: &Path, sets: &[&str]) -> Done {
        self.command(&args(command, input, out, sets).iter().map(OsStr::new).collect::<Vec<_>>())
    }

    /// The rows of a job that ends with `code`.
    #[track_caller]
    pub fn rows_of(&self, input: &Path, sets: &[&str], code: i32) -> Vec<Row> {
        let out = self.fresh("out");
        self.run(input, &out, sets).says(code, &[]);
        assert!(out.join("data/_SUCCESS").exists(), "all rows were answered");
        rows(&out)
    }

    /// The answers to `lines`, each of which gets an id `r0`, `r1` and so on where it has none.
    #[track_caller]
    pub fn answers(&self, lines: &[Value], sets: &[&str], code: i32) -> Vec<Row> {
        let named = lines.iter().enumerate().map(|(i, line)| {
            let mut line = line.clone();
            if line.get("custom_id").is_none() {
                line["custom_id"] = json!(format!("r{i}"));
            }
            line
        });
        let path = self.fresh("in").with_extension("jsonl");
        let input = self.lines(path.file_name().and_then(OsStr::to_str).expect("a name"), &named.collect::<Vec<_>>());
        self.rows_of(&input, sets, code)
    }

    /// A copy of `model` made of links, so that single files of it may be damaged.
    pub fn model_of(&self, model: &Path) -> Model {
        let folder = self.fresh("model");
        fs::create_dir_all(&folder).expect("made");
        for entry in fs::read_dir(model).expect("a model") {
            let path = entry.expect("an entry").path();
            symlink(&path, folder.join(path.file_name().expect("a name"))).expect("linked");
        }
        Model { folder }
    }

    pub fn model(&self) -> Model {
        self.model_of(&demo_model())
    }
}

/// The arguments of a job without a file.
pub fn args(command: &str, input: &Path, out: &Path, sets: &[&str]) -> Vec<String> {
    let text = |path: &Path| path.to_str().expect("a path of text").to_string();
    let mut args = vec![command.into(), "--input".into(), text(input), "--output".into(), text(out)];
    let defaults = [format!("model.path={}", text(&demo_model())), "sampling.temperature=0".into()];
    for set in defaults.iter().map(String::as_str).chain(sets.iter().copied()) {
        args.extend(["--set".into(), set.to_string()]);
    }
    args
}

/// Runs to the end.
pub fn finish(command: &mut Command) -> Done {
    let output = command.output().expect("the command starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
    Done { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// One row of `data/`; floats by their bits.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub id: String,
    pub index: i64,
    pub status: String,
    pub text: Option<String>,
    pub reasoning: Option<String>,
    pub finish: Option<String>,
    pub stop: Option<String>,
    pub code: Option<String>,
    pub message: Option<String>,
    pub prompt_tokens: i32,
    pub completion_tokens: i32,
    pub truncated_tokens: i32,
    pub tokens: Option<Vec<i32>>,
    pub logprobs: Option<Vec<u32>>,
    pub prompt_logprobs: Option<Vec<Option<u32>>>,
    pub seed: i64,
    pub sha: Option<String>,
}

impl Row {
    pub fn text(&self) -> &str {
        self.text.as_deref().unwrap_or_else(|| panic!("no text: {self:?}"))
    }

    pub fn tokens(&self) -> &[i32] {
        self.tokens.as_deref().unwrap_or_else(|| panic!("no tokens: {self:?}"))
    }

    pub fn code(&self) -> &str {
        self.code.as_deref().unwrap_or("")
    }

    /// The row as it would be in any other job.
    pub fn alone(&self) -> Row {
        Row { index: 0, ..self.clone() }
    }
}

/// The batches of every `OUT/FOLDER/part-*.parquet`, in order of name.
pub fn batches(out: &Path, folder: &str) -> Vec<RecordBatch> {
    parts(out, folder)
        .iter()
        .flat_map(|path| {
            let file = File::open(path).expect("a part");
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).and_then(|r| r.build()).expect("Parquet");
            reader.collect::<Result<Vec<_>, _>>().expect("whole batches")
        })
        .collect()
}

/// The files of `OUT/FOLDER` that bear a part's name, sorted.
pub fn parts(out: &Path, folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(out.join(folder)).expect("a folder of parts");
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "parquet"));
    paths.sort();
    paths
}

/// One hash over the bytes of all parts of `data/`.
pub fn data_hash(out: &Path) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for path in parts(out, "data") {
        hasher.update(path.file_name().expect("a name").as_encoded_bytes());
        hasher.update(&fs::read(path).expect("a part"));
    }
    hasher.finalize()
}

/// All rows of a job's output.
pub fn rows(out: &Path) -> Vec<Row> {
    batches(out, "data").iter().flat_map(|batch| (0..batch.num_rows()).map(|at| row(batch, at)).collect::<Vec<_>>()).collect()
}

fn row(batch: &RecordBatch, at: usize) -> Row {
    let column = |name: &str| batch.column_by_name(name).unwrap_or_else(|| panic!("no column {name}"));
    let text = |name: &str| column(name).is_valid(at).then(|| column(name).as_string::<i32>().value(at).to_string());
    let int = |name: &str| column(name).as_primitive::<Int32Type>().value(at);
    let long = |name: &str| column(name).as_primitive::<Int64Type>().value(at);
    let list = |name: &str| column(name).is_valid(at).then(|| column(name).as_list::<i32>().value(at));
    let bits = |list: &dyn Array| list.as_primitive::<Float32Type>().iter().map(|x| x.map(f32::to_bits)).collect::<Vec<_>>();
    for unbuilt in ["label", "label_scores", "parsed"] {
        assert!(column(unbuilt).is_null(at), "{unbuilt} is not built");
    }
    Row {
        id: text("custom_id").expect("an id"),
        index: long("row_index"),
        status: text("status").expect("a status"),
        text: text("text"),
        reasoning: text("reasoning"),
        finish: text("finish_reason"),
        stop: text("stop_reason"),
        code: text("error_code"),
        message: text("error_message"),
        prompt_tokens: int("prompt_tokens"),
        completion_tokens: int("completion_tokens"),
        truncated_tokens: int("truncated_tokens"),
        tokens: list("token_ids").map(|ids| ids.as_primitive::<Int32Type>().values().to_vec()),
        logprobs: list("logprobs").map(|list| bits(&list).into_iter().map(|x| x.expect("a number")).collect()),
        prompt_logprobs: list("prompt_logprobs").map(|list| bits(&list)),
        seed: long("seed"),
        sha: text("prompt_sha256"),
    }
}

/// `OUT/state/summary.json`.
pub fn summary(out: &Path) -> Value {
    serde_json::from_slice(&fs::read(out.join("state/summary.json")).expect("a summary")).expect("strict JSON")
}

/// The first `count` shipped documents.
pub fn documents(count: usize) -> Vec<Value> {
    let text = fs::read_to_string(root().join("fixtures/documents.jsonl")).expect("the documents");
    text.lines().take(count).map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// One user message.
pub fn says(content: &str) -> Value {
    json!([{ "role": "user", "content": content }])
}

/// The demo model's vocabulary, read from its files without the program's help.
pub struct Vocabulary {
    bytes: Vec<Vec<u8>>,
    /// Control tokens: id and name.
    pub control: Vec<(i32, String)>,
}

impl Vocabulary {
    pub fn demo() -> Self {
        use base64::Engine;
        let text = fs::read_to_string(demo_model().join("tiktoken.model")).expect("ranks");
        let token =
            |line: &str| base64::engine::general_purpose::STANDARD.decode(line.split(' ').next().expect("a token")).expect("base64");
        let config: Value = serde_json::from_slice(&fs::read(demo_model().join("tokenizer_config.json")).expect("a config")).expect("JSON");
        let added = config["added_tokens_decoder"].as_object().expect("an object");
        let control = added.iter().map(|(id, t)| (id.parse().expect("an id"), t["content"].as_str().expect("a name").to_string()));
        Vocabulary { bytes: text.lines().map(token).collect(), control: control.collect() }
    }

    /// The bytes of an ordinary token; none of a control token.
    pub fn bytes(&self, id: i32) -> Option<&[u8]> {
        self.bytes.get(id as usize).map(Vec::as_slice)
    }

    /// The text of `ids` without control tokens.
    pub fn text(&self, ids: &[i32]) -> String {
        String::from_utf8_lossy(&ids.iter().filter_map(|id| self.bytes(*id)).flatten().copied().collect::<Vec<u8>>()).into_owned()
    }
}
