//! What a log, a terminal and a script are shown.

use std::sync::{Arc, Mutex};

use indicatif::TermLike;

use super::*;

#[derive(Debug, Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("one writer").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self) -> Vec<String> {
        String::from_utf8(self.0.lock().expect("one writer").clone()).expect("text").lines().map(String::from).collect()
    }
}

/// A terminal that keeps what is written; a cleared line is `<clear>`.
impl TermLike for Log {
    fn width(&self) -> u16 {
        120
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.clone().write_all(text.as_bytes())
    }

    fn clear_line(&self) -> io::Result<()> {
        self.write_line("<clear>")
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

fn folder() -> (tempfile::TempDir, JobFolder) {
    let outer = tempfile::tempdir().expect("a folder");
    let job = JobFolder::create(&outer.path().join("out")).expect("a job folder");
    (outer, job)
}

fn record(job: &JobFolder) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(job.state().join(FILE_NAME)).expect("a file")).expect("JSON")
}

const HALF: Snapshot = Snapshot {
    rows_done: 9,
    rows_errored: 1,
    tokens_done: 4_000,
    tokens_spared: 2_000,
    generated: 100,
    bytes_read: 12_300_000_000,
    blocks_loaded: 10,
    block_rows_served: 372,
    sweeps: 3,
};

#[test]
fn a_log_gets_a_line_every_thirty_seconds() {
    let (_outer, job) = folder();
    let log = Log::default();
    let mut progress = Progress::start(Screen::Lines(Box::new(log.clone())), 10, 10_000, &job);
    for second in 0..100 {
        progress.update(Duration::from_secs(second), &HALF);
    }
    progress.finish(Duration::from_secs(100), &HALF);
    let lines = log.lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[1], "9/10 rows (1 errored), 60 s left, 67 tokens/s, 12.3 GB read, 37.2 rows per expert read");
}

#[test]
fn the_end_is_reckoned_in_tokens() {
    let (_outer, job) = folder();
    let mut progress = Progress::start(Screen::Lines(Box::new(Log::default())), 10, 10_000, &job);
    // Nine rows of ten are done, but only four tenths of the tokens, and two tenths are not needed: as much again is left.
    progress.update(Duration::from_secs(60), &HALF);
    assert_eq!(record(&job)["eta_ms"], 60_000);
    progress.file_at = Duration::ZERO;
    progress.update(Duration::from_secs(60), &Snapshot::default());
    assert_eq!(record(&job)["eta_ms"], serde_json::Value::Null);
}

#[test]
fn the_file_is_written_once_a_second_and_at_the_end() {
    let (_outer, job) = folder();
    let mut progress = Progress::start(Screen::Lines(Box::new(Log::default())), 10, 10_000, &job);
    progress.update(Duration::ZERO, &Snapshot::default());
    progress.update(Duration::from_millis(999), &HALF);
    assert_eq!(record(&job)["rows_done"], 0);
    progress.update(Duration::from_millis(1000), &HALF);
    assert_eq!((&record(&job)["rows_done"], &record(&job)["finished"]), (&9.into(), &false.into()));
    progress.finish(Duration::from_millis(1001), &Snapshot { rows_done: 10, ..HALF });
    assert_eq!((&record(&job)["rows_done"], &record(&job)["finished"]), (&10.into(), &true.into()));
    let names: Vec<_> = std::fs::read_dir(job.state()).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names, [FILE_NAME]);
}

#[test]
fn a_file_that_cannot_be_written_is_said_once() {
    let (_outer, job) = folder();
    std::fs::create_dir(job.state().join(FILE_NAME)).expect("a folder in the way");
    let log = Log::default();
    let mut progress = Progress::start(Screen::Lines(Box::new(log.clone())), 10, 10_000, &job);
    for second in 0..5 {
        progress.update(Duration::from_secs(second), &HALF);
    }
    assert_eq!(log.lines().len(), 1);
}

#[test]
fn a_terminal_gets_a_bar() {
    let (_outer, job) = folder();
    let terminal = Log::default();
    let mut progress = Progress::start(Screen::Bar(ProgressDrawTarget::term_like(Box::new(terminal.clone()))), 10, 10_000, &job);
    progress.update(Duration::from_secs(60), &HALF);
    let shown = terminal.lines();
    assert!(shown.iter().any(|line| line.contains("9/10 rows (1 errored), 60 s left, 67 tokens/s")), "{shown:?}");
    progress.finish(Duration::from_secs(61), &HALF);
    assert!(terminal.lines().last().is_some_and(|line| line.ends_with("<clear>")), "nothing is left of it");
}

#[test]
fn durations_are_short() {
    let shown = [45, 99, 720, 11_100, 187_200].map(|seconds| show_duration(Duration::from_secs(seconds)));
    assert_eq!(shown, ["45 s", "99 s", "12 min", "3 h 05 min", "2 d 4 h"]);
}
