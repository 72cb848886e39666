//! A disk that delays, cuts short, interrupts and fails, and readers that must not mind.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::super::disk::{DirectIo, Files, PageCache};
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
        _ => thread.join().unwrap_or_else(|e| std::panic::resume_unwind(e)),
    }
}

#[derive(Debug, Clone)]
enum Step {
    Want(u64, Vec<usize>),
    Take(usize),
    TakeIfReady(usize),
    Forget(usize),
    ForgetAll,
    Drop(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let piece = 0usize..8;
    prop::collection::vec(
        prop_oneof![
            4 => (0u64..5, prop::collection::vec(piece.clone(), 1..6)).prop_map(|(turn, pieces)| Step::Want(turn, pieces)),
            6 => piece.clone().prop_map(Step::Take),
            2 => piece.clone().prop_map(Step::TakeIfReady),
            1 => piece.prop_map(Step::Forget),
            1 => Just(Step::ForgetAll),
            6 => any::<prop::sample::Index>().prop_map(Step::Drop),
        ],
        1..60,
    )
}

/// Four panels and four blocks of up to four tensors.
fn places() -> impl Strategy<Value = Places> {
    let extent = (0u32..3, 0..FILE_BYTES - 12_000, 0usize..12_000).prop_map(|(file, offset, len)| (Place { file, offset }, len));
    prop::collection::vec(prop::collection::vec(extent, 0..4), 8).prop_map(|pieces| {
        let piece = |i: usize| if i.is_multiple_of(2) { panel(i as u32) } else { block(i as u32) };
        Places(pieces.into_iter().enumerate().map(|(i, extents)| (piece(i), extents)).collect())
    })
}

/// Delays, short reads, interruptions; and the first read of one place in seven fails.
fn moody(seed: u64) -> Arc<Fake> {
    let failed = Mutex::new(BTreeSet::new());
    Fake::new(move |number, file, offset, len| {
        let dice = blake3::hash(&[seed, number].map(u64::to_le_bytes).concat());
        let dice = dice.as_bytes();
        std::thread::sleep(Duration::from_micros(u64::from(dice[0]) / 2));
        if dice[1] < 20 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if (u64::from(file) + offset / 512 + seed).is_multiple_of(7)
            && failed.lock().expect("held by none that panics").insert((file, offset))
        {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(if dice[2] < 80 { (len * usize::from(dice[3]) / 255).max(512) } else { len })
    })
}

fn walk(places: Places, steps: Vec<Step>, seed: u64, rings: [usize; 2]) {
    let (disk, places) = (moody(seed), Arc::new(places));
    let reader = reader(&disk, &places, rings, 3);
    let piece = |i: usize| if i.is_multiple_of(2) { panel(i as u32) } else { block(i as u32) };
    let (mut leases, mut wanted, mut taken, mut taken_empty) = (Vec::new(), 0, 0, 0);
    let mut take = |i: usize, leases: &mut Vec<(Piece, Lease)>| {
        let lease = reader.take(piece(i)).expect("no read fails twice in a row");
        places.check(piece(i), &lease);
        leases.push((piece(i), lease));
        taken += usize::from(!i.is_multiple_of(2));
        taken_empty += usize::from(places.0[&piece(i)].iter().all(|e| e.1 == 0));
    };
    for step in steps {
        match step {
            Step::Want(turn, pieces) => {
                wanted += pieces.iter().filter(|&&i| !i.is_multiple_of(2)).count();
                reader.want(turn, &pieces.into_iter().map(piece).collect::<Vec<_>>());
            }
            Step::Take(i) => take(i, &mut leases),
            Step::TakeIfReady(i) if reader.ready(piece(i)) => take(i, &mut leases),
            Step::TakeIfReady(_) => {}
            Step::Forget(i) => reader.forget(&[piece(i)]),
            Step::ForgetAll => reader.forget_all(),
            Step::Drop(which) if !leases.is_empty() => {
                let (piece, lease) = leases.remove(which.index(leases.len()));
                places.check(piece, &lease); // nothing was read over it meanwhile
            }
            Step::Drop(_) => {}
        }
    }
    leases.iter().for_each(|(piece, lease)| places.check(*piece, lease));
    reader.forget_all();
    drop(leases);
    soon("all memory is back", || reader.shared.lock().is_empty());
    let seen = reader.counters();
    assert_eq!((seen.blocks_used + seen.blocks_on_demand) as usize, taken);
    assert!(seen.blocks_used + seen.blocks_wasted <= wanted as u64);
    assert_eq!(seen.panel_bytes + seen.block_bytes, disk.returned.load(Ordering::SeqCst));
    assert!(seen.ring_bytes_max[0] <= rings[0] as u64 && seen.ring_bytes_max[1] <= rings[1] as u64);
}

#[test]
fn any_wants_takes_and_forgets_give_the_right_bytes_in_the_memory_given() {
    let ring = || (1usize..40).prop_map(|pages| pages * PAGE);
    let config = ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&(places(), steps(), any::<u64>(), [ring(), ring()]), |(places, steps, seed, rings)| {
            in_time(move || walk(places, steps, seed, rings));
            Ok(())
        })
        .expect("holds");
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
        assert_eq!(reader.counters().blocks_used, 2);
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
        let reader = reader(&moody(1), &places, [0, 1 << 20], 2);
        reader.want(0, &(0..20).map(block).collect::<Vec<_>>());
        let lease = reader.take(block(0)).expect("reads");
        drop(reader);
        places.check(block(0), &lease);
    });
}

/// Files as they lie on disk: three shards, the last one's end being aligned to nothing.
fn written(folder: &Path) -> Vec<PathBuf> {
    let write = |file: u32| {
        let path = folder.join(format!("shard-{file}"));
        std::fs::write(&path, (0..FILE_BYTES + 77).map(|at| byte(file, at)).collect::<Vec<_>>()).expect("writes");
        path
    };
    (0..3).map(write).collect()
}

fn on_files(paths: &[PathBuf], cache: PageCache, method: Method, places: &Arc<Places>) -> Option<(Reader, DirectIo)> {
    let files = paths.iter().map(|path| std::fs::File::open(path).expect("opens")).collect();
    let files = Files::new(files, paths.to_vec(), cache).expect("opens");
    let direct = files.direct();
    let setup = Setup { method: Some(method), chunk_bytes: 50_000, ..Setup::new(1 << 20, 1 << 20) };
    match Reader::open(Arc::new(files), Arc::clone(places) as _, &setup) {
        Ok(reader) => Some((reader, direct)),
        Err(e) => {
            assert!(e.message.contains("io_uring is not allowed"), "{e}");
            None
        }
    }
}

fn folders() -> Vec<tempfile::TempDir> {
    let mut folders = vec![tempfile::tempdir().expect("a folder")];
    folders.extend(tempfile::tempdir_in("/dev/shm"));
    folders
}

fn every_way() -> Vec<(PageCache, Method)> {
    let caches = [PageCache::Bypass, PageCache::Use];
    caches.into_iter().flat_map(|cache| [(cache, Method::Uring), (cache, Method::Threads)]).collect()
}

#[test]
fn every_way_of_reading_gives_the_files_bytes_on_every_file_system() {
    let end = FILE_BYTES + 77;
    let at = |file, offset, len: usize| (Place { file, offset }, len);
    let extents = [vec![at(0, 5, 200_000)], vec![at(1, end - 1, 1), at(2, end - 70_000, 70_000)], vec![at(0, 513, 1), at(1, 0, 513)]];
    let places = Arc::new(Places([block(0), block(1), panel(2)].into_iter().zip(extents).collect()));
    for folder in folders() {
        let paths = written(folder.path());
        for (cache, method) in every_way() {
            let Some((reader, direct)) = on_files(&paths, cache, method, &places) else { continue };
            assert!(cache == PageCache::Bypass || direct == DirectIo::None);
            assert_eq!(reader.method(), method);
            for turn in 0..3 {
                reader.want(turn, &[block(0), panel(2)]);
                for piece in [block(0), block(1), panel(2)] {
                    places.check(piece, &reader.take(piece).expect("reads"));
                }
            }
            let mut row = [0; 1_000];
            reader.copy(Place { file: 1, offset: end - 1_000 }, &mut row).expect("reads");
            assert!(row.iter().zip(end - 1_000..).all(|(&b, at)| b == byte(1, at)));
            let seen = reader.counters();
            assert!(seen.panel_bytes >= 3 * 514 + 1_000 && seen.block_bytes >= 3 * 270_001, "{seen:?}");
            assert!(seen.busy > Duration::ZERO && seen.waited > Duration::ZERO);
        }
    }
}

#[test]
fn a_shard_cut_short_after_it_was_indexed_is_told() {
    let places = Arc::new(Places([(block(0), vec![(Place { file: 1, offset: 200_000 }, 90_000)])].into()));
    for folder in folders() {
        for (cache, method) in every_way() {
            let paths = written(folder.path());
            let Some((reader, _)) = on_files(&paths, cache, method, &places) else { continue };
            let shard = std::fs::File::options().write(true).open(&paths[1]).expect("opens");
            shard.set_len(250_123).expect("cuts");
            let error = reader.take(block(0)).map(|_| ()).expect_err("the end is missing");
            assert_eq!(error.kind, Kind::Storage);
            for part in ["shard-1", "expert: 0", "ends at byte 250123", "shrunk"] {
                assert!(error.message.contains(part), "{part}: {error}");
            }
            let copied = reader.copy(Place { file: 1, offset: 250_000 }, &mut [0; 200]).expect_err("the end is missing");
            assert_eq!(copied.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
