//! Records who chose whom while a job runs.
//!
//! The record proves what an order of work saves, and no answer depends on it: a disk that is full costs the record and not the job.

use std::fs;
use std::path::PathBuf;

use crate::error::Result;
use crate::execute::{Recorder, routing_widths};
use crate::model::manifest::Manifest;
use crate::plan::{self, Compared, Schedule};
use crate::routes::{Routes, RoutesWriter};

/// What is replayed at most: 45,000 answer rows of the largest model, a few seconds.
const REPLAYED_BYTES_MAX: u64 = 128 << 20;

/// A job's record in the making.
pub struct Recording {
    state: PathBuf,
    /// None where no layer routes, and once the record is lost.
    writer: Option<RoutesWriter>,
    /// Prompts are recorded too, and the file stays.
    keep: bool,
    lost: Option<String>,
}

impl Recording {
    /// Starts a record in the folder `state`.
    pub fn start(state: PathBuf, manifest: &Manifest, keep: bool) -> Self {
        let widths = routing_widths(manifest);
        let mut recording = Recording { state, writer: None, keep, lost: None };
        if widths.row() > 0 {
            recording.writer = recording.unless_lost(RoutesWriter::create(&recording.state, widths));
        }
        recording
    }

    /// Closes the record.
    pub fn finish(&mut self) {
        if let Some(writer) = self.writer.take() {
            self.unless_lost(writer.finish());
        }
    }

    /// What a person should know: that the record is lost, and why.
    pub fn note(&self) -> Option<String> {
        self.lost.as_ref().map(|why| format!("routing     the answers are whole, but who chose whom is not recorded: {why}\n"))
    }

    /// The job's order of work beside others, replayed as far as `memory_bytes` hold the record.
    pub fn compare(&mut self, schedule: &Schedule, memory_bytes: u64) -> Option<Compared> {
        if self.lost.is_some() || !self.state.join(RoutesWriter::NAME).exists() {
            return None;
        }
        let routes = Routes::load(&self.state, schedule.rows().len(), memory_bytes.min(REPLAYED_BYTES_MAX));
        routes.inspect_err(|why| self.lost = Some(why.to_string())).ok().map(|routes| plan::compare(schedule, &routes))
    }

    fn remove(&self) {
        let _ = fs::remove_file(self.state.join(RoutesWriter::NAME)); // it may never have been made
    }

    /// A file that is lost takes no more space: the answers need it.
    fn unless_lost<T>(&mut self, done: Result<T>) -> Option<T> {
        done.inspect_err(|why| {
            self.lost = Some(why.to_string());
            self.keep = false;
            self.remove();
        })
        .ok()
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.keep {
            self.remove();
        }
    }
}

impl Recorder for Recording {
    fn wants_prompts(&self) -> bool {
        self.keep
    }

    fn routed(&mut self, row: u64, first_position: u32, of_answer: bool, ids: &[u16]) {
        if let Some(mut writer) = self.writer.take() {
            let pushed = writer.push(row, first_position, of_answer, ids);
            self.writer = self.unless_lost(pushed).map(|()| writer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::Widths;
    use std::path::Path;

    const WIDTHS: Widths = Widths { layers: 2, experts: 8, chosen: 2 };

    fn recording(folder: &Path, keep: bool) -> Recording {
        let writer = RoutesWriter::create(folder, WIDTHS).expect("a file");
        Recording { state: folder.to_path_buf(), writer: Some(writer), keep, lost: None }
    }

    #[test]
    fn the_record_stays_only_where_it_is_asked_for() {
        let folder = tempfile::tempdir().expect("a folder");
        for keep in [true, false] {
            let mut recording = recording(folder.path(), keep);
            recording.routed(0, 3, true, &[1, 2, 3, 4]);
            recording.finish();
            assert_eq!(recording.note(), None);
            assert_eq!(Routes::load(folder.path(), 1, 1000).expect("read").answer(0), [1, 2, 3, 4]);
            drop(recording);
            assert_eq!(folder.path().join(RoutesWriter::NAME).exists(), keep);
        }
    }

    #[test]
    fn a_record_that_is_lost_is_a_note() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut recording = recording(folder.path(), true);
        // A row's number that the file cannot name stands for a write that the disk refuses.
        recording.routed(u64::MAX, 3, true, &[1, 2, 3, 4]);
        assert!(!folder.path().join(RoutesWriter::NAME).exists(), "it takes no more space");
        recording.routed(0, 3, true, &[1, 2, 3, 4]);
        recording.finish();
        let note = recording.note().expect("it is said");
        assert!(note.contains("routes"), "{note}");
        drop(recording);
        assert!(!folder.path().join(RoutesWriter::NAME).exists(), "it takes no more space");
    }
}
