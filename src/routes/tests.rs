use super::*;
use proptest::prelude::*;

const WIDTHS: Widths = Widths { layers: 3, experts: 9, chosen: 2 };

/// Ids of some positions, all different from those of others.
fn ids(row: u64, positions: std::ops::Range<u32>) -> Vec<u16> {
    positions.flat_map(|p| (0..6).map(move |i| if i == 5 { NO_EXPERT } else { (row as u32 * 5 + p * 7 + i) as u16 % 9 })).collect()
}

/// Two requests in turns, of which the first has a prompt on record, and a third that ended at once.
fn written(folder: &Path) {
    let mut writer = RoutesWriter::create(folder, WIDTHS).expect("a file");
    for (row, positions, of_answer) in
        [(0, 0..3, false), (2, 5..6, true), (0, 3..4, false), (0, 4..5, true), (2, 6..7, true), (0, 5..6, true)]
    {
        writer.push(row, positions.start, 7, of_answer, &ids(row, positions)).expect("written");
    }
    writer.finish().expect("closed");
}

#[test]
fn choices_come_back_by_request_and_position() {
    let folder = tempfile::tempdir().expect("a folder");
    written(folder.path());
    let routes = Routes::load(folder.path(), 4, u64::MAX).expect("read");
    assert_eq!((routes.widths(), routes.requests()), (WIDTHS, 4));
    assert_eq!((routes.prompt(0), routes.answer(0)), (&ids(0, 0..4)[..], &ids(0, 4..6)[..]));
    assert_eq!((routes.prompt(2), routes.answer(2)), (&[][..], &ids(2, 5..7)[..]));
    assert!(routes.answer(1).is_empty() && routes.answer(3).is_empty() && routes.answer(u64::MAX).is_empty());
}

#[test]
fn whole_requests_are_held_as_far_as_memory_goes() {
    let folder = tempfile::tempdir().expect("a folder");
    written(folder.path());
    // Rows of 12 bytes: six of request 0, none of 1, two of 2.
    for (bytes, requests) in [(0, 0), (71, 0), (72, 2), (95, 2), (96, 4)] {
        let routes = Routes::load(folder.path(), 4, bytes).expect("read");
        assert_eq!((routes.requests(), routes.ids.len() as u64 * 2 <= bytes), (requests, true), "{bytes}");
        assert_eq!(routes.answer(0).len(), if requests > 0 { 12 } else { 0 });
    }
}

#[test]
fn a_torn_end_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    written(folder.path());
    let path = folder.path().join(RoutesWriter::NAME);
    let whole = std::fs::read(&path).expect("a file");
    for cut in HEADER_BYTES..whole.len() {
        std::fs::write(&path, &whole[..cut]).expect("written");
        let routes = Routes::load(folder.path(), 3, u64::MAX).expect("read");
        assert_eq!(routes.answer(0).len(), if cut < HEADER_BYTES + 4 * RECORD_BYTES + 6 * 12 { 0 } else { 6 }, "{cut} bytes");
    }
    std::fs::write(&path, &whole[..HEADER_BYTES - 1]).expect("written");
    let error = Routes::load(folder.path(), 3, u64::MAX).expect_err("no header").to_string();
    assert!(error.contains(&path.display().to_string()), "{error}");
}

proptest! {
    #[test]
    fn a_file_with_any_byte_changed_never_panics(at in 0usize..200, byte in any::<u8>()) {
        let folder = tempfile::tempdir().expect("a folder");
        written(folder.path());
        let path = folder.path().join(RoutesWriter::NAME);
        let mut bytes = std::fs::read(&path).expect("a file");
        let at = at % bytes.len();
        bytes[at] = byte;
        std::fs::write(&path, bytes).expect("written");
        if let Ok(routes) = Routes::load(folder.path(), 3, 1 << 20) {
            prop_assert!(routes.ids.iter().all(|id| *id == NO_EXPERT || u32::from(*id) < routes.widths().experts));
        }
    }
}
