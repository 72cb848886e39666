//! A disk that delays, cuts short, interrupts and fails, and readers that must not mind.

mod files;
mod walk;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;

use super::super::disk::DirectIo;
use super::super::memory::PAGE;
use super::*;
use crate::error::Kind;
use crate::model::manifest::WeightId;

const FILE_BYTES: u64 = 300_000;

/// Byte `at` of a file.
fn byte(file: u32, at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 13) as u8 ^ file as u8
}

fn panel(panel: u32) -> Piece {
    Piece::Panel { weight: WeightId(0), panel }
}

fn block(expert: u32) -> Piece {
    Piece::Block { layer: 0, expert }
}

#[derive(Debug)]
struct Places(HashMap<Piece, Vec<(Place, usize)>>);

impl Places {
    /// Pieces of one tensor each, `bytes` long, in file 0, one behind the other with gaps.
    fn row(pieces: &[Piece], bytes: usize) -> Self {
        let place = |i: usize| Place { file: 0, offset: (i * (bytes + 5_000).next_multiple_of(PAGE)) as u64 + 100 };
        Places(pieces.iter().enumerate().map(|(i, &piece)| (piece, vec![(place(i), bytes)])).collect())
    }

    /// Panics unless the lease holds the piece's bytes.
    fn check(&self, piece: Piece, lease: &Lease) {
        for (i, &(place, len)) in self.0[&piece].iter().enumerate() {
            let expected: Vec<u8> = (0..len as u64).map(|at| byte(place.file, place.offset + at)).collect();
            assert!(lease.part(i) == expected, "{piece:?}, tensor {i}");
        }
    }
}

impl Catalogue for Places {
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        self.0[&piece].clone()
    }

    fn name(&self, piece: Piece, i: usize) -> String {
        format!("{piece:?}.{i}")
    }
}

/// What a fake disk does to a read, given how many there were.
type Mood = dyn Fn(u64, u32, u64, usize) -> io::Result<usize> + Send + Sync;

/// Three files on two devices.
struct Fake {
    mood: Box<Mood>,
    align: usize,
    reads: AtomicU64,
    returned: AtomicU64,
    now: [AtomicUsize; 2],
    most: [AtomicUsize; 2],
    log: Mutex<Vec<(u32, u64)>>,
}

impl Fake {
    /// `mood` gets the number of the read, its file, its offset and its length, and says how much of it comes.
    fn new(mood: impl Fn(u64, u32, u64, usize) -> io::Result<usize> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Fake {
            mood: Box::new(mood),
            align: 512,
            reads: AtomicU64::new(0),
            returned: AtomicU64::new(0),
            now: Default::default(),
            most: Default::default(),
            log: Mutex::default(),
        })
    }

    fn well() -> Arc<Self> {
        Fake::new(|_, _, _, len| Ok(len))
    }
}

impl Disk for Fake {
    fn read_at(&self, file: u32, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let a = self.align;
        assert!(offset.is_multiple_of(a as u64) && out.len().is_multiple_of(a) && (out.as_ptr() as usize).is_multiple_of(a));
        self.log.lock().expect("no test panics while it holds it").push((file, offset));
        let device = self.device(file);
        self.most[device].fetch_max(self.now[device].fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        let there = FILE_BYTES.saturating_sub(offset).min(out.len() as u64) as usize;
        let n = (self.mood)(self.reads.fetch_add(1, Ordering::SeqCst), file, offset, out.len()).map(|n| n.min(there));
        self.now[device].fetch_sub(1, Ordering::SeqCst);
        let n = n?;
        out[..n].iter_mut().zip(offset..).for_each(|(out, at)| *out = byte(file, at));
        self.returned.fetch_add(n as u64, Ordering::SeqCst);
        Ok(n)
    }

    fn write_at(&self, _: u32, _: u64, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn alignment(&self, _: u32) -> usize {
        self.align
    }

    fn devices(&self) -> usize {
        2
    }

    fn device(&self, file: u32) -> usize {
        file as usize % 2
    }

    fn path(&self, file: u32) -> &Path {
        Path::new(["zero", "one", "two"][file as usize])
    }

    fn done_with(&self, _: u32, _: u64, _: usize) {}

    fn refused(&self, _: u32) -> bool {
        false
    }

    fn descriptor(&self, _: u32) -> Option<std::os::fd::BorrowedFd<'_>> {
        None
    }

    fn direct(&self) -> DirectIo {
        DirectIo::None
    }
}

fn reader(disk: &Arc<Fake>, places: &Arc<Places>, rings: [usize; 2], depth: usize) -> Reader {
    let setup = Setup { method: Some(Method::Threads), depth, chunk_bytes: 8_192, ..Setup::new(rings[0], rings[1]) };
    Reader::open(Arc::clone(disk) as _, Arc::clone(places) as _, &setup).expect("opens")
}

/// Waits until something holds; panics if it never does.
#[track_caller]
fn soon(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(20), "{what}: not after 20 s");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Fails, instead of hanging, what takes longer than it can.
fn in_time(work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
        _ => thread.join().expect("what failed is said above"),
    }
}

#[test]
fn smaller_turns_are_read_first_and_what_is_asked_for_before_all() {
    let pieces: Vec<Piece> = (0..6).map(block).collect();
    let places = Arc::new(Places::row(&pieces, 3_000));
    let gate = Arc::new(Mutex::new(()));
    let waits = Arc::clone(&gate);
    let disk = Fake::new(move |_, _, _, len| {
        drop(waits.lock());
        Ok(len)
    });
    let reader = reader(&disk, &places, [0, 1 << 20], 1);
    let held = gate.lock().expect("free");
    reader.want(0, &[block(0)]);
    soon("a read is in flight, behind the gate", || disk.reads.load(Ordering::SeqCst) == 1);
    reader.want(9, &[block(1), block(2)]);
    reader.want(3, &[block(3)]);
    std::thread::scope(|scope| {
        scope.spawn(|| places.check(block(5), &reader.take(block(5)).expect("reads")));
        soon("the taker waits", || reader.shared.lock().has_reads_asked_for());
        drop(held);
    });
    for i in [0, 3, 1, 2] {
        soon("it is here", || reader.ready(block(i)));
        places.check(block(i), &reader.take(block(i)).expect("reads"));
    }
    let order: Vec<u64> = disk.log.lock().expect("free").iter().map(|&(_, offset)| offset / 8_192).collect();
    assert_eq!(order, [0, 5, 3, 1, 2]);
    let seen = reader.counters();
    assert_eq!((seen.blocks_used, seen.blocks_on_demand, seen.blocks_wasted), (4, 1, 0));
}

#[test]
fn full_rings_stop_neither_each_other_nor_who_asks() {
    in_time(|| {
        let pieces: Vec<Piece> = (0..8).map(block).chain((0..8).map(panel)).collect();
        let places = Arc::new(Places::row(&pieces, 8_000));
        let disk = Fake::well();
        let reader = reader(&disk, &places, [2 * 8_192, 2 * 8_192], 2);
        reader.want(1, &(0..6).map(block).collect::<Vec<_>>());
        soon("two blocks fill their ring", || reader.ready(block(0)) && reader.ready(block(1)));
        assert!(!reader.ready(block(2)));
        reader.want(2, &(0..6).map(panel).collect::<Vec<_>>());
        soon("panels come all the same", || reader.ready(panel(0)) && reader.ready(panel(1)));
        let late = [block(5), block(7), panel(5), panel(7)].map(|piece| (piece, reader.take(piece).expect("reads")));
        late.iter().for_each(|(piece, lease)| places.check(*piece, lease));
        assert_eq!(reader.counters().own_bytes_max, 4 * 8_192);
        let rest: Vec<_> = (0..5).map(|i| (block(i), reader.take(block(i)).expect("reads"))).collect();
        rest.iter().for_each(|(piece, lease)| places.check(*piece, lease));
        let seen = reader.counters();
        assert_eq!((seen.blocks_used, seen.blocks_on_demand), (2, 5));
        assert_eq!(seen.ring_bytes_max, [16_384, 16_384]);
    });
}

#[test]
fn a_piece_wanted_twice_is_taken_twice_and_one_larger_than_its_ring_when_asked_for() {
    in_time(|| {
        let places = Arc::new(Places::row(&[block(0), block(1), block(2)], 20_000));
        let disk = Fake::well();
        let reader = reader(&disk, &places, [0, 2 * 24_576], 2);
        reader.want(1, &[block(0), block(0)]);
        let both = [reader.take(block(0)).expect("reads"), reader.take(block(0)).expect("reads")];
        both.iter().for_each(|lease| places.check(block(0), lease));
        let seen = reader.counters();
        assert_eq!(seen.blocks_used + seen.blocks_on_demand, 2);
        let small = self::reader(&disk, &places, [0, 8_192], 2);
        small.want(1, &[block(1), block(2)]);
        places.check(block(2), &small.take(block(2)).expect("reads"));
        places.check(block(1), &small.take(block(1)).expect("reads"));
    });
}

#[test]
fn what_was_read_for_nobody_is_counted_and_its_memory_comes_back() {
    let places = Arc::new(Places::row(&(0..4).map(block).collect::<Vec<_>>(), 8_000));
    let disk = Fake::well();
    let reader = reader(&disk, &places, [0, 2 * 8_192], 1);
    reader.want(1, &(0..4).map(block).collect::<Vec<_>>());
    soon("two are whole", || reader.ready(block(0)) && reader.ready(block(1)));
    reader.forget(&[block(3)]); // never begun
    assert_eq!(reader.counters().blocks_wasted, 0);
    reader.forget(&[block(0)]);
    soon("its memory takes another", || reader.ready(block(2)));
    reader.forget_all();
    assert_eq!(reader.counters().blocks_wasted, 3);
    assert!(reader.shared.lock().is_empty());
    places.check(block(3), &reader.take(block(3)).expect("reads"));
}

#[test]
fn two_devices_are_read_from_at_once() {
    let far = |file| vec![(Place { file, offset: 0 }, 40_000)];
    let places = Arc::new(Places([(block(0), far(0)), (block(1), far(1))].into()));
    let disk = Fake::new(|_, file, _, len| {
        std::thread::sleep(Duration::from_millis(if file == 0 { 200 } else { 20 }));
        Ok(len)
    });
    let reader = reader(&disk, &places, [0, 1 << 20], 3);
    reader.want(0, &[block(0), block(1)]);
    places.check(block(1), &reader.take(block(1)).expect("reads"));
    assert!(!reader.ready(block(0)), "the slow device still reads");
    places.check(block(0), &reader.take(block(0)).expect("reads"));
    assert_eq!([0, 1].map(|device: usize| disk.most[device].load(Ordering::SeqCst)), [3, 3]);
}

#[test]
fn one_failure_is_read_over_and_a_second_names_file_byte_and_tensor() {
    let extents = vec![(Place { file: 0, offset: 1_000 }, 9_000), (Place { file: 2, offset: 20_000 }, 30_000)];
    for (failures, fails) in [(1, false), (2, true)] {
        let places = Arc::new(Places([(block(7), extents.clone()), (block(8), vec![(Place { file: 1, offset: 0 }, 9_000)])].into()));
        let left = Mutex::new(BTreeMap::<u64, i32>::new());
        let disk = Fake::new(move |_, file, offset, len| {
            let mut left = left.lock().expect("held by none that panics");
            let times = left.entry(offset).or_insert(failures);
            *times -= 1;
            if file == 2 && offset > 30_000 && *times >= 0 { Err(io::Error::from_raw_os_error(5)) } else { Ok(len) }
        });
        let reader = reader(&disk, &places, [0, 1 << 20], 2);
        reader.want(0, &[block(7), block(8)]);
        soon("it comes or fails", || reader.ready(block(7)));
        match reader.take(block(7)) {
            Ok(lease) => places.check(block(7), &lease),
            Err(error) => {
                assert_eq!(error.kind, Kind::Storage);
                for part in ["two", "Block { layer: 0, expert: 7 }.1", "at byte 3", "os error 5"] {
                    assert!(error.message.contains(part), "{part}: {error}");
                }
                assert!(fails);
            }
        }
        assert_eq!(reader.counters().blocks_used, u64::from(!fails));
        places.check(block(8), &reader.take(block(8)).expect("another piece"));
        soon("the failed piece's memory is back", || reader.shared.lock().is_empty());
    }
}

#[test]
fn a_fault_of_the_program_in_a_thread_lets_nobody_wait_for_ever() {
    in_time(|| {
        let places = Arc::new(Places::row(&[block(0)], 100));
        let disk = Fake::new(|_, _, _, _| panic!("on purpose"));
        let reader = reader(&disk, &places, [0, 1 << 20], 1);
        assert!(reader.take(block(0)).is_err_and(|e| e.message.contains("please report")));
    });
}

#[test]
fn a_lease_outlives_its_reader_and_a_reader_ends_while_reads_are_in_flight() {
    in_time(|| {
        let places = Arc::new(Places::row(&(0..20).map(block).collect::<Vec<_>>(), 8_000));
        let reader = reader(&walk::moody(1), &places, [0, 1 << 20], 2);
        reader.want(0, &(0..20).map(block).collect::<Vec<_>>());
        let lease = reader.take(block(0)).expect("reads");
        drop(reader);
        places.check(block(0), &lease);
    });
}
