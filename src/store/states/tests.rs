//! A disk in memory that cuts short, fails and rots, and states that must not mind or must say so.

mod faults;
mod walk;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

use super::super::Method;
use super::*;
use crate::error::Kind;

const ALIGN: usize = 512;

/// What a disk is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Read,
    Write,
}

/// What the disk does of it, given its place, its length, and how many there were before: so many bytes.
type Mood = dyn Fn(Act, u64, usize, u64) -> io::Result<usize> + Send + Sync;

/// One file in memory.
struct Fake {
    bytes: Mutex<Vec<u8>>,
    mood: Box<Mood>,
    acts: AtomicU64,
}

impl Fake {
    fn new(shape: &Shape, mood: impl Fn(Act, u64, usize, u64) -> io::Result<usize> + Send + Sync + 'static) -> Arc<Self> {
        // Not zeroed: what was never written is anything.
        Arc::new(Fake { bytes: Mutex::new(vec![0xa5; shape.bytes() as usize]), mood: Box::new(mood), acts: AtomicU64::new(0) })
    }

    fn well(shape: &Shape) -> Arc<Self> {
        Fake::new(shape, |_, _, len, _| Ok(len))
    }

    /// Checks what is asked for; how much of it is done.
    fn act(&self, act: Act, offset: u64, address: *const u8, len: usize) -> io::Result<usize> {
        assert!(offset.is_multiple_of(ALIGN as u64) && len.is_multiple_of(ALIGN) && (address as usize).is_multiple_of(ALIGN) && len > 0);
        (self.mood)(act, offset, len, self.acts.fetch_add(1, Ordering::SeqCst)).map(|n| n.min(len))
    }

    fn flip(&self, at: u64) {
        self.bytes.lock().expect("held by none that panics")[at as usize] ^= 1;
    }
}

impl Disk for Fake {
    fn read_at(&self, _: u32, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let n = self.act(Act::Read, offset, out.as_ptr(), out.len())?;
        out[..n].copy_from_slice(&self.bytes.lock().expect("held by none that panics")[offset as usize..][..n]);
        Ok(n)
    }

    fn write_at(&self, _: u32, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let n = self.act(Act::Write, offset, bytes.as_ptr(), bytes.len())?;
        self.bytes.lock().expect("held by none that panics")[offset as usize..][..n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn alignment(&self, _: u32) -> usize {
        ALIGN
    }

    fn devices(&self) -> usize {
        1
    }

    fn device(&self, _: u32) -> usize {
        0
    }

    fn path(&self, _: u32) -> &Path {
        Path::new("folder/states.scratch")
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

const SPECS: [StateSpec; 3] =
    [StateSpec::Fixed { floats: 3_000, log: 100 }, StateSpec::Appended(500), StateSpec::Fixed { floats: 9, log: 0 }];

fn space() -> StateSpace {
    StateSpace { slots: 2, positions: 20, whole_every: 4, ring_bytes: 1 << 20, write_bytes: 1 << 16 }
}

fn shape() -> Shape {
    Shape::new(&SPECS, &space())
}

fn setup(ring_bytes: usize) -> Setup {
    Setup { method: Some(Method::Threads), chunk_bytes: 8_192, ..Setup::new(ring_bytes, 0) }
}

fn over(disk: &Arc<Fake>) -> ScratchFile {
    ScratchFile::over(Arc::clone(disk) as _, shape(), &setup(1 << 20), space().write_bytes).expect("opens")
}

fn key(slot: u32, state: u32) -> StateKey {
    StateKey { slot, state: StateId(state) }
}

fn floats(count: usize, seed: u32) -> Vec<f32> {
    // Any bits, those of no number too.
    (0..count as u32).map(|i| f32::from_bits((i ^ seed << 16).wrapping_mul(2_654_435_761))).collect()
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// Takes a state and compares its bytes.
#[track_caller]
fn holds(states: &ScratchFile, key: StateKey, data: &[f32], records: &[&[f32]]) {
    let lease = states.take(key).expect("reads");
    assert!(lease.data() == bytes(data), "{key:?}");
    assert_eq!(lease.records().len(), records.len(), "{key:?}");
    assert!(lease.records().zip(records).all(|(found, record)| found == bytes(record)), "{key:?}");
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
fn a_log_and_rows_cost_what_is_new_and_not_what_there_was() {
    let states = over(&Fake::well(&shape()));
    let (whole, rows, records) = (floats(3_000, 1), floats(12 * 500, 2), floats(200, 3));
    let mut before = 0;
    let mut written = |states: &ScratchFile| {
        let now = states.counters().written_bytes;
        now - std::mem::replace(&mut before, now)
    };
    let table = shape().table;
    states.put(key(1, 0), 0..9, Change::Whole(&whole)).expect("writes");
    states.put(key(1, 1), 0..9, Change::Rows(&rows[..9 * 500])).expect("writes");
    states.settle().expect("writes");
    assert_eq!(written(&states), 12_288 + 20_480 + table);
    assert_eq!((states.log_room(key(1, 0)), states.log_room(key(1, 1)), states.log_room(key(0, 0))), (3, 0, 0));
    states.put(key(1, 0), 9..11, Change::Log(&records)).expect("writes");
    states.put(key(1, 1), 9..10, Change::Rows(&rows[..10 * 500])).expect("writes");
    assert_eq!(states.log_room(key(1, 0)), 3, "nothing counts before it is settled");
    states.settle().expect("writes");
    assert_eq!(written(&states), 2 * 4_096 + 4_096 + table);
    assert_eq!(states.log_room(key(1, 0)), 1);
    holds(&states, key(1, 0), &whole, &[&records[..100], &records[100..]]);
    holds(&states, key(1, 1), &rows[..10 * 500], &[]);
    assert_eq!(states.counters().read_bytes, 12_288 + 4_096 + 512 + 20_480);
    states.settle().expect("nothing to write");
    assert_eq!(written(&states), 0);
}

#[test]
fn who_puts_waits_for_a_buffer_and_there_are_no_more_of_them_than_memory_was_given() {
    in_time(|| {
        let gate = Arc::new(Mutex::new(()));
        let waits = Arc::clone(&gate);
        let disk = Fake::new(&shape(), move |act, _, len, _| {
            if act == Act::Write {
                drop(waits.lock());
            }
            Ok(len)
        });
        let states = ScratchFile::over(Arc::clone(&disk) as _, shape(), &setup(1 << 20), 2 * PAGE).expect("opens");
        let held = gate.lock().expect("free");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                states.put(key(0, 0), 0..1, Change::Whole(&floats(3_000, 5))).expect("writes");
                ended.store(true, Ordering::SeqCst);
            });
            std::thread::sleep(Duration::from_millis(50));
            assert!(!ended.load(Ordering::SeqCst), "three pages are put, and there are two");
            drop(held);
        });
        states.settle().expect("writes");
        holds(&states, key(0, 0), &floats(3_000, 5), &[]);
        assert!(states.counters().waited_us >= 30_000);
    });
}

#[test]
#[should_panic = "was put before in this sweep"]
fn a_state_is_put_once_a_sweep() {
    let states = over(&Fake::well(&shape()));
    (0..2).for_each(|_| states.put(key(0, 2), 0..1, Change::Whole(&floats(9, 1))).expect("writes"));
}

#[test]
#[should_panic = "the log of"]
fn a_log_takes_no_more_records_than_it_has_places() {
    let states = over(&Fake::well(&shape()));
    states.put(key(0, 0), 0..1, Change::Whole(&floats(3_000, 1))).expect("writes");
    states.settle().expect("writes");
    let _ = states.put(key(0, 0), 1..5, Change::Log(&floats(400, 1)));
}

#[test]
#[should_panic = "goes on at position 0"]
fn a_slot_that_was_released_begins_anew() {
    let states = over(&Fake::well(&shape()));
    states.put(key(0, 2), 0..1, Change::Whole(&floats(9, 1))).expect("writes");
    states.settle().expect("writes");
    states.release(0);
    let _ = states.put(key(0, 2), 1..2, Change::Whole(&floats(9, 1)));
}

#[test]
fn a_disk_without_the_space_is_refused_before_work_and_an_open_file_is_as_large_as_was_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let huge = StateSpace { slots: u32::MAX, positions: u32::MAX, ..space() };
    let error = ScratchFile::open(folder.path(), &SPECS, &huge, PageCache::Bypass).map(|_| ()).expect_err("no disk is so large");
    assert_eq!(error.kind, Kind::Refused);
    assert!(error.message.contains(&ScratchFile::bytes(&SPECS, &huge).to_string()), "{error}");
    let states = ScratchFile::open(folder.path(), &SPECS, &space(), PageCache::Bypass).expect("opens");
    let path = folder.path().join("states.scratch");
    assert_eq!(path.metadata().expect("there").len(), ScratchFile::bytes(&SPECS, &space()));
    drop(states);
    assert!(!path.exists());
}

#[test]
fn eight_hundred_thousand_states_are_a_small_book_that_is_quickly_settled() {
    let space = StateSpace { slots: 1_000, ..space() };
    let shape = Shape::new(&[StateSpec::Fixed { floats: 1, log: 0 }; 800], &space);
    assert!(Book::bytes(&shape) < 26_000_000);
    let book = Book::new(shape, "states.scratch".into());
    let keys = || (0..1_000).flat_map(|slot| (0..800).map(move |state| key(slot, state)));
    let (started, mut table) = (Instant::now(), Vec::new());
    for sweep in 0..2 {
        for key in keys() {
            let was = book.begin(key);
            book.put(key, Version { positions: was.positions + 1, ..was });
        }
        for slot in book.settling() {
            book.table(slot, &mut table);
        }
        book.settle(true);
        assert!(keys().all(|key| book.settled(key).positions == sweep + 1));
    }
    // A second on a free machine; what is quadratic takes hours.
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}
