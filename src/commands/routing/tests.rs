//! What is kept of a record, and what is not.

use super::*;
use crate::plan::TableShape;
use crate::routes::Widths;
use crate::spool::SpoolWriter;
use std::path::Path;

const WIDTHS: Widths = Widths { layers: 2, experts: 8, chosen: 2 };

fn recording<'a>(folder: &Path, spool: &'a Spool, keep: bool) -> Recording<'a> {
    let writer = RoutesWriter::create(folder, WIDTHS).expect("a file");
    let table = Table::new(TableShape { vocab: 4, layers: 2, experts: 8, chosen: 2 });
    Recording { state: folder.to_path_buf(), spool, table, writer: Some(writer), keep, lost: None }
}

#[test]
fn the_record_stays_only_where_it_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let spool = SpoolWriter::create(folder.path()).and_then(SpoolWriter::finish).expect("a spool");
    for keep in [true, false] {
        let mut recording = recording(folder.path(), &spool, keep);
        recording.routed(0, 3, 7, true, &[1, 2, 3, 4]);
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
    let spool = SpoolWriter::create(folder.path()).and_then(SpoolWriter::finish).expect("a spool");
    let mut recording = recording(folder.path(), &spool, true);
    // A row's number that the file cannot name stands for a write that the disk refuses.
    recording.routed(u64::MAX, 3, 7, true, &[1, 2, 3, 4]);
    assert!(!folder.path().join(RoutesWriter::NAME).exists(), "it takes no more space");
    recording.routed(0, 3, 7, true, &[1, 2, 3, 4]);
    recording.finish();
    let note = recording.note().expect("it is said");
    assert!(note.contains("routes"), "{note}");
    drop(recording);
    assert!(!folder.path().join(RoutesWriter::NAME).exists(), "it takes no more space");
}
