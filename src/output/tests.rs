//! The room as a whole: rows in, folders out.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int32Type, Int64Type, TimestampMicrosecondType};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::*;
use crate::error::Kind;
use crate::event::{Event, Sink, Stamp};
use crate::request::{Fault, Sampling};
use crate::spool::{Spool, SpoolWriter};

const ROWS: u64 = 25;
const ROWS_PER_PART: u64 = 10;

/// Text by token ids; a row with a long id says a lot.
struct Numbers;

impl Wording for Numbers {
    fn words(&self, request: &Request, tokens: &[u32], _end: &End) -> Option<Words> {
        let text = if request.id.starts_with("long") { "x".repeat(3 << 19) } else { format!("{tokens:?}") };
        (request.id != "wordless").then(|| Words { text, reasoning: request.index.is_multiple_of(5).then(|| "hm".into()) })
    }
}

/// One kept column: the row's number, squared.
struct Squares;

impl Kept for Squares {
    fn schema(&self) -> Vec<Field> {
        vec![Field::new("square", DataType::Int64, true)]
    }

    fn rows(&mut self, range: Range<u64>) -> Result<Vec<ArrayRef>> {
        Ok(vec![Arc::new(arrow::array::Int64Array::from_iter_values(range.map(|row| (row * row) as i64)))])
    }
}

fn request(index: u64) -> Request {
    let fault = (index == 7).then(|| Fault::new("bad_max_tokens", "max_tokens is 4.5, not a whole number"));
    Request {
        index,
        id: format!("row \"{index}\" é"),
        prompt: if fault.is_some() { Vec::new() } else { (0..index as u32 % 7 + 1).collect() },
        truncated_tokens: 0,
        sampling: Sampling { logprobs: index.is_multiple_of(2), prompt_logprobs: index.is_multiple_of(3), ..Sampling::default() },
        fault,
    }
}

fn event(request: &Request) -> Event {
    let tokens: Vec<u32> = if request.fault.is_some() { Vec::new() } else { (0..request.index as u32 % 5).collect() };
    let asked = request.fault.is_none() && request.sampling.prompt_logprobs;
    Event {
        index: request.index,
        logprobs: tokens.iter().map(|&t| -0.1 * t as f32).collect(),
        tokens,
        prompt_logprobs: if asked { vec![-1.0; request.prompt.len() - 1] } else { Vec::new() },
        end: match (&request.fault, request.index % 4) {
            (Some(fault), _) => End::Failed(fault.clone()),
            (None, 0) => End::Length,
            (None, 1) => End::StopString("stop".into()),
            (None, 2) => End::StopToken(9),
            (None, _) => End::Model,
        },
    }
}

struct Job {
    _outer: tempfile::TempDir,
    folder: JobFolder,
    spool: Spool,
}

impl Job {
    fn of(requests: &[Request]) -> Job {
        let outer = tempfile::tempdir().expect("a folder");
        let folder = JobFolder::create(&outer.path().join("out")).expect("made");
        let mut writer = SpoolWriter::create(&folder.state()).expect("a spool");
        for request in requests {
            writer.push(request).expect("written");
        }
        Job { spool: writer.finish().expect("closed"), folder, _outer: outer }
    }

    fn answers(&self, run_id: &str) -> Answers<'_> {
        let spec = OutputSpec {
            spool: &self.spool,
            wording: Box::new(Numbers),
            kept: Some(Box::new(Squares)),
            model: "demo-model".into(),
            system_fingerprint: "fp_1".into(),
            rows_per_part: ROWS_PER_PART,
            run_id: run_id.into(),
        };
        Answers::create(&self.folder, spec).expect("an output")
    }

    /// Names in a folder, sorted.
    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(path).expect("a folder").map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect();
        names.sort();
        names
    }

    fn rows(path: PathBuf) -> RecordBatch {
        let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path).expect("a part")).expect("Parquet").build();
        let batches: Vec<_> = reader.expect("a reader").map(|batch| batch.expect("rows")).collect();
        concat_batches(&batches[0].schema(), &batches).expect("one schema")
    }
}

fn job() -> Job {
    Job::of(&(0..ROWS).map(request).collect::<Vec<_>>())
}

/// Runs all rows in the order `place` gives them, and returns the bytes of `data/` by name.
fn run(order: impl Fn(u64) -> u64, started_us: i64) -> Vec<(String, Vec<u8>)> {
    let job = job();
    let mut answers = job.answers(&started_us.to_string());
    for row in (0..ROWS).map(order) {
        let stamp = Stamp { started_us, finished_us: 7 * row as i64, ..Stamp::default() };
        answers.push(event(&request(row)), stamp).expect("kept");
        for name in Job::names(&job.folder.data()) {
            assert!(name.ends_with(".parquet"), "{name} stands in data/");
            Job::rows(job.folder.data().join(name));
        }
    }
    answers.finish().expect("finished");
    let data = job.folder.data();
    Job::names(&data).into_iter().map(|name| (name.clone(), fs::read(data.join(name)).expect("bytes"))).collect()
}

#[test]
fn parts_do_not_depend_on_the_order_in_which_rows_end() {
    let forward = run(|row| row, 1);
    let names: Vec<_> = forward.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["_SUCCESS", "part-000000.parquet", "part-000001.parquet", "part-000002.parquet"]);
    assert_eq!(forward, run(|row| ROWS - 1 - row, 1_790_000_000_000_000), "backwards");
    assert_eq!(forward, run(|row| row * 7 % ROWS, 5), "shuffled");
}

#[test]
fn rows_are_counted_and_stand_in_input_order() {
    let job = job();
    let mut answers = job.answers("a");
    for row in (0..ROWS).rev() {
        answers.push(event(&request(row)), Stamp::default()).expect("kept");
    }
    let totals = answers.finish().expect("finished");
    assert_eq!((totals.rows_succeeded, totals.rows_errored), (24, 1));
    let cut = (0..ROWS).filter(|row| row.is_multiple_of(4)).count() as u64;
    assert_eq!(totals.rows_cut_by_length, cut);
    let mut next = 0;
    for (part, rows) in [10, 10, 5].into_iter().enumerate() {
        let data = Job::rows(job.folder.data().join(format!("part-{part:06}.parquet")));
        let timings = Job::rows(job.folder.timings().join(format!("part-{part:06}.parquet")));
        assert_eq!((data.num_rows(), timings.num_rows()), (rows, rows));
        for row in 0..rows {
            assert_eq!(data["row_index"].as_primitive::<Int64Type>().value(row), next);
            assert_eq!(data["square"].as_primitive::<Int64Type>().value(row), next * next);
            assert_eq!(data["custom_id"].as_string::<i32>().value(row), request(next as u64).id);
            assert_eq!(timings["custom_id"].as_string::<i32>().value(row), request(next as u64).id);
            next += 1;
        }
    }
    assert!(Job::names(&job.folder.state()).iter().all(|name| !name.contains("partial")), "nothing unfinished is left");
}

#[test]
fn columns_are_null_by_their_rules() {
    let job = job();
    let mut answers = job.answers("a");
    for row in 0..ROWS_PER_PART {
        answers.push(event(&request(row)), Stamp::default()).expect("kept");
    }
    let data = Job::rows(job.folder.data().join("part-000000.parquet"));
    let nulls = |name: &str| (0..10).filter(|&row| data[name].is_null(row)).collect::<Vec<_>>();
    for name in ["text", "finish_reason", "token_ids", "prompt_sha256"] {
        assert_eq!(nulls(name), [7], "{name}");
    }
    for name in ["error_code", "error_message"] {
        assert_eq!(nulls(name), [0, 1, 2, 3, 4, 5, 6, 8, 9], "{name}");
    }
    for name in ["label", "label_scores", "parsed"] {
        assert_eq!(nulls(name).len(), 10, "{name}");
    }
    assert_eq!(nulls("logprobs"), [1, 3, 5, 7, 9]);
    assert_eq!(nulls("prompt_logprobs"), [1, 2, 4, 5, 7, 8]);
    assert_eq!(nulls("reasoning"), [1, 2, 3, 4, 6, 7, 8, 9]);
    assert_eq!(nulls("stop_reason"), [0, 3, 4, 7, 8]);
    assert_eq!(data["status"].as_string::<i32>().value(7), "errored");
    assert_eq!(data["error_code"].as_string::<i32>().value(7), "bad_max_tokens");
    assert_eq!(data["stop_reason"].as_string::<i32>().value(6), "9");
    assert_eq!(data["token_ids"].as_list::<i32>().value(8).as_primitive::<Int32Type>().values(), &[0, 1, 2]);
    let prompt = data["prompt_logprobs"].as_list::<i32>().value(6);
    assert!(prompt.is_null(0) && prompt.null_count() == 1 && prompt.len() == 7);
    assert_eq!(prompt.as_primitive::<Float32Type>().value(1), -1.0);
}

#[test]
fn timings_are_measured_or_null() {
    let job = job();
    let mut answers = job.answers("run-1");
    for row in 0..ROWS_PER_PART {
        let stamp = Stamp {
            started_us: 1_000_000,
            queue_us: 500_000,
            first_token_us: 250_000,
            finished_us: 1_250_000,
            token_us: vec![250_000, 1_250_000],
            bytes_read: 77,
            ..Stamp::default()
        };
        answers.push(event(&request(row)), if row == 7 { Stamp::default() } else { stamp }).expect("kept");
    }
    let timings = Job::rows(job.folder.timings().join("part-000000.parquet"));
    let number = |name: &str| timings[name].as_primitive::<Float64Type>().value(0);
    let measured = ["queue_ms", "prefill_ms", "decode_ms", "ttft_ms", "tokens_per_second"].map(number);
    assert_eq!(measured, [500.0, 250.0, 1000.0, 750.0, 1.6]);
    let moment = |name: &str| timings[name].as_primitive::<TimestampMicrosecondType>().value(0);
    assert_eq!(["started_at", "first_token_at", "finished_at"].map(moment), [1_000_000, 1_250_000, 2_250_000]);
    for name in ["group_id", "started_at", "first_token_at", "finished_at", "queue_ms", "ttft_ms", "tokens_per_second"] {
        assert!(timings[name].is_null(7) && timings[name].null_count() == 1, "{name}: row 7 never ran");
    }
    assert_eq!(timings["bytes_read"].as_primitive::<Int64Type>().value(0), 77);
    assert_eq!(timings["run_id"].as_string::<i32>().value(0), "run-1");
}

#[test]
fn a_long_answer_does_not_swell_a_row_group() {
    let requests: Vec<_> = (0..ROWS_PER_PART).map(|row| Request { id: format!("long {row}"), ..request(row % 7) }).collect();
    let requests: Vec<_> = requests.into_iter().enumerate().map(|(row, r)| Request { index: row as u64, ..r }).collect();
    let job = Job::of(&requests);
    let mut answers = job.answers("a");
    for request in &requests {
        answers.push(event(request), Stamp::default()).expect("kept");
    }
    let file = fs::File::open(job.folder.data().join("part-000000.parquet")).expect("a part");
    let part = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let groups: Vec<_> = part.metadata().row_groups().iter().map(|group| group.num_rows()).collect();
    assert_eq!(groups, [3, 3, 3, 1], "three texts of 1.5 MiB pass 4 MiB");
    let data = Job::rows(job.folder.data().join("part-000000.parquet"));
    assert_eq!(data["square"].as_primitive::<Int64Type>().value(9), 81, "kept columns follow the row groups");
}

#[test]
fn a_failed_write_is_never_a_success() {
    type Damage = fn(&JobFolder);
    let damages: [(&str, Damage); 4] = [
        ("data/ became a file", |folder| {
            fs::remove_dir(folder.data()).expect("empty");
            fs::write(folder.data(), "x").expect("written");
        }),
        ("timings/ is gone", |folder| fs::remove_dir(folder.timings()).expect("empty")),
        ("the disk is full", |folder| {
            std::os::unix::fs::symlink("/dev/full", folder.state().join("part-000001.partial")).expect("linked");
        }),
        ("a name is taken", |folder| fs::create_dir(folder.state().join("part-000001.timings.partial")).expect("made")),
    ];
    for (what, damage) in damages {
        let job = job();
        let mut answers = job.answers("a");
        damage(&job.folder);
        let results: Vec<_> = (0..ROWS).map(|row| answers.push(event(&request(row)), Stamp::default())).collect();
        let errors: Vec<_> = results.into_iter().filter_map(std::result::Result::err).collect();
        assert!(!errors.is_empty(), "{what}");
        for error in errors {
            assert_eq!(error.kind, Kind::Storage, "{what}: {error}");
            assert!(error.message.contains("part-00000"), "{what}: {error}");
        }
        let error = answers.finish().expect_err("rows are missing");
        assert_eq!(error.kind, Kind::Storage, "{what}: {error}");
        assert!(!job.folder.data().join("_SUCCESS").exists(), "{what}");
        let named = |path: PathBuf| if path.is_dir() { Job::names(&path) } else { Vec::new() };
        for name in named(job.folder.data()) {
            Job::rows(job.folder.data().join(name));
        }
    }
}

#[test]
fn a_missing_row_is_never_a_success() {
    let job = job();
    let mut answers = job.answers("a");
    for row in 0..ROWS - 1 {
        answers.push(event(&request(row)), Stamp::default()).expect("kept");
    }
    let error = answers.finish().expect_err("a row is missing");
    assert!(error.message.contains("5 of 25 rows are not in"), "{error}");
    assert!(!job.folder.data().join("_SUCCESS").exists());
    assert_eq!(Job::names(&job.folder.data()), ["part-000000.parquet", "part-000001.parquet"]);
}

#[test]
fn a_part_taken_away_is_never_a_success() {
    let job = job();
    let mut answers = job.answers("a");
    for row in 0..ROWS {
        answers.push(event(&request(row)), Stamp::default()).expect("kept");
    }
    fs::remove_file(job.folder.data().join("part-000001.parquet")).expect("removed");
    assert!(answers.finish().expect_err("a part is missing").message.contains("part-000001.parquet"));
}

#[test]
fn an_output_that_began_stays() {
    let job = job();
    let data = job.folder.data();
    drop(job.answers("a"));
    let Job { _outer, folder, .. } = job;
    drop(folder);
    assert!(data.is_dir());
}

#[test]
#[should_panic(expected = "row 3 ends once")]
fn a_row_that_ends_twice_is_a_fault_of_the_program() {
    let job = job();
    let mut answers = job.answers("a");
    for row in [3, 3] {
        answers.push(event(&request(row)), Stamp::default()).expect("kept");
    }
}

#[test]
fn a_part_carries_no_note_that_changes_or_that_one_reader_alone_knows() {
    let job = job();
    let mut answers = job.answers("a");
    for row in 0..ROWS_PER_PART {
        answers.push(event(&request(row)), Stamp::default()).expect("kept");
    }
    let file = fs::File::open(job.folder.data().join("part-000000.parquet")).expect("a part");
    let part = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
    let notes = part.metadata().file_metadata();
    assert_eq!((notes.key_value_metadata(), notes.created_by()), (None, Some("nightshift")));
}
