//! Any sequence of sweeps, on disks in a bad mood and on real ones, against states in memory.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

/// A sweep: tokens of each slot, how its states are put, and what ends.
#[derive(Debug, Clone)]
struct Sweep {
    /// By slot; 0: it is not swept.
    tokens: [u32; 3],
    seed: u32,
    /// Writes fail here and there.
    bad: bool,
    /// A slot that is released before the settle, and one that is after it.
    ends: [Option<u32>; 2],
}

fn sweeps() -> impl Strategy<Value = Vec<Sweep>> {
    let end = || prop_oneof![3 => Just(None), 1 => (0u32..3).prop_map(Some)];
    let sweep = ([0u32..4, 0u32..4, 0u32..4], any::<u32>(), prop::bool::weighted(0.2), [end(), end()]);
    prop::collection::vec(sweep.prop_map(|(tokens, seed, bad, ends)| Sweep { tokens, seed, bad, ends }), 1..12)
}

fn specs() -> impl Strategy<Value = Vec<StateSpec>> {
    let log = prop_oneof![Just(0usize), 1usize..2_000];
    let spec = prop_oneof![
        (0usize..5_000, log).prop_map(|(floats, log)| StateSpec::Fixed { floats, log }),
        (1usize..900).prop_map(StateSpec::Appended)
    ];
    prop::collection::vec(spec, 1..5)
}

fn spaces() -> impl Strategy<Value = StateSpace> {
    (1u32..6, 1usize..40, 1usize..40).prop_map(|(whole_every, ring, write)| StateSpace {
        slots: 3,
        positions: 33,
        whole_every,
        ring_bytes: ring * PAGE,
        write_bytes: write * PAGE,
    })
}

/// A state as it should be.
#[derive(Debug, Clone, Default)]
struct Held {
    positions: u32,
    data: Vec<f32>,
    records: Vec<Vec<f32>>,
}

type Model = BTreeMap<(u32, u32), Held>;

/// What a state becomes after `tokens` more, and how that is put.
fn advanced(was: &Held, spec: StateSpec, tokens: u32, room: usize, seed: u32) -> (Held, Option<Vec<f32>>) {
    let positions = was.positions + tokens;
    match spec {
        StateSpec::Appended(width) => {
            let data = [was.data.clone(), floats(tokens as usize * width, seed)].concat();
            (Held { positions, data, records: Vec::new() }, None)
        }
        StateSpec::Fixed { log, .. } if room >= tokens as usize && !seed.is_multiple_of(4) => {
            let log = floats(tokens as usize * log, seed);
            let new = log.chunks(log.len() / tokens as usize).map(<[f32]>::to_vec);
            let records = was.records.iter().cloned().chain(new).collect();
            (Held { positions, data: was.data.clone(), records }, Some(log))
        }
        StateSpec::Fixed { floats: count, .. } => (Held { positions, data: floats(count, seed), records: Vec::new() }, None),
    }
}

/// One sweep of one state: taken if it is there, compared, put.
fn step(
    states: &ScratchFile,
    spec: StateSpec,
    space: &StateSpace,
    at: (u32, u32),
    was: Option<&Held>,
    sweep: &Sweep,
) -> Result<Option<Held>> {
    let (key, tokens) = (key(at.0, at.1), sweep.tokens[at.0 as usize]);
    let logged = matches!(spec, StateSpec::Fixed { log: 1.., .. });
    let room = was.filter(|_| logged).map_or(0, |held| space.whole_every as usize - 1 - held.records.len());
    assert_eq!(states.log_room(key), room);
    let was = was.cloned().unwrap_or_default();
    if was.positions > 0 {
        holds(states, key, &was.data, &was.records.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }
    if tokens == 0 || was.positions + tokens > space.positions {
        return Ok(None);
    }
    let (now, log) = advanced(&was, spec, tokens, room, sweep.seed.wrapping_add(at.0 * 77 + at.1));
    let change = match (spec, &log) {
        (StateSpec::Appended(_), _) => Change::Rows(&now.data),
        (_, Some(log)) => Change::Log(log),
        (_, None) => Change::Whole(&now.data),
    };
    states.put(key, was.positions..now.positions, change)?;
    Ok(Some(now))
}

/// The later of a slot's tables says what the book says; after a settle that failed one of the two does.
fn check_table(states: &ScratchFile, disk: &Fake, slot: u32, settled: bool) {
    let shape = &states.book.shape;
    let file = disk.bytes.lock().expect("held by none that panics");
    let table = |second| table::decode(&file[shape.table_at(slot, second) as usize..][..shape.table as usize]);
    let mut found: Vec<_> = [false, true].into_iter().filter_map(table).collect();
    found.sort_by_key(|(sweep, ..)| std::cmp::Reverse(*sweep));
    let book: Vec<Version> = (0..shape.states() as u32).map(|state| states.book.settled(key(slot, state))).collect();
    let says = |(_, of, versions): &(u64, u32, Vec<Version>)| *of == slot && *versions == book;
    assert!(if settled { found.first().is_some_and(says) } else { found.iter().any(says) }, "slot {slot}: {found:?}, not {book:?}");
}

/// All sweeps. `bad` tells the disk when to fail; without it no sweep may.
fn walk(states: &ScratchFile, specs: &[StateSpec], space: &StateSpace, sweeps: &[Sweep], bad: Option<(&AtomicBool, &Fake)>) {
    let mut model = Model::new();
    for (turn, sweep) in sweeps.iter().enumerate() {
        let fails = bad.filter(|_| sweep.bad);
        fails.inspect(|(bad, _)| bad.store(true, Ordering::SeqCst));
        let all: Vec<(u32, u32)> = (0..specs.len() as u32).flat_map(|state| (0..space.slots).map(move |slot| (slot, state))).collect();
        let keys: Vec<StateKey> = all.iter().map(|&(slot, state)| key(slot, state)).collect();
        states.want(turn as u64, &keys);
        let mut next = model.clone();
        let mut failed = None;
        std::thread::scope(|scope| {
            let threads = [0, 1].map(|half| {
                let (all, model) = (&all, &model);
                scope.spawn(move || {
                    let ours = all.iter().skip(half).step_by(2);
                    ours.map(|&at| Ok((at, step(states, specs[at.1 as usize], space, at, model.get(&at), sweep)?)))
                        .collect::<Result<Vec<_>>>()
                })
            });
            for thread in threads {
                match thread.join().expect("what failed is said above") {
                    Ok(put) => next.extend(put.into_iter().filter_map(|(at, now)| Some((at, now?)))),
                    Err(error) => failed = Some(error),
                }
            }
        });
        let mut release = |slot: Option<u32>, next: &mut Model| {
            let Some(slot) = slot else { return };
            states.release(slot);
            next.retain(|at, _| at.0 != slot);
            model.retain(|at, _| at.0 != slot);
        };
        release(sweep.ends[0], &mut next);
        let settled = states.settle();
        let well = settled.is_ok();
        match (settled, failed) {
            (Ok(()), None) => model = next,
            (Ok(()), Some(error)) => panic!("a put failed and the settle did not: {error}"),
            (Err(error), _) => assert!(fails.is_some() && error.message.contains("os error 5"), "{error}"),
        }
        bad.inspect(|(bad, _)| bad.store(false, Ordering::SeqCst));
        if let Some((_, disk)) = bad {
            let slots: BTreeSet<u32> = model.keys().map(|at| at.0).collect();
            slots.into_iter().for_each(|slot| check_table(states, disk, slot, well));
        }
        let mut release = |slot: Option<u32>| {
            let Some(slot) = slot else { return };
            states.release(slot);
            model.retain(|at, _| at.0 != slot);
        };
        release(sweep.ends[1]);
        for (at, held) in &model {
            holds(states, key(at.0, at.1), &held.data, &held.records.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}

/// Delays, short acts, interruptions, a failure now and then that does not come twice; and, while it is bad, places that cannot be written.
fn moody(shape: &Shape, seed: u32, bad: &Arc<AtomicBool>) -> Arc<Fake> {
    let (failed, bad) = (Mutex::new(BTreeSet::new()), Arc::clone(bad));
    Fake::new(shape, move |act, offset, len, number| {
        let dice = blake3::hash(&[u64::from(seed), number].map(u64::to_le_bytes).concat());
        let dice = dice.as_bytes();
        std::thread::sleep(Duration::from_micros(u64::from(dice[0]) / 8));
        if act == Act::Write && bad.load(Ordering::SeqCst) && (offset / 4_096 + u64::from(seed)).is_multiple_of(5) {
            return Err(io::Error::from_raw_os_error(5));
        }
        if dice[1] < 20 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if dice[1] < 40 && failed.lock().expect("held by none that panics").insert((act == Act::Read, offset)) {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(if dice[2] < 80 { (len * usize::from(dice[3]) / 255).max(ALIGN) } else { len })
    })
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

#[test]
fn any_sweeps_on_a_disk_in_a_bad_mood_leave_what_was_settled() {
    TestRunner::new(config(150))
        .run(&(specs(), spaces(), sweeps(), any::<u32>()), |(specs, space, sweeps, seed)| {
            in_time(move || {
                let (shape, bad) = (Shape::new(&specs, &space), Arc::new(AtomicBool::new(false)));
                let disk = moody(&shape, seed, &bad);
                let states = ScratchFile::over(Arc::clone(&disk) as _, shape, &setup(space.ring_bytes), space.write_bytes).expect("opens");
                walk(&states, &specs, &space, &sweeps, Some((&bad, &disk)));
            });
            Ok(())
        })
        .expect("holds");
}

#[test]
fn any_sweeps_on_every_file_system_by_every_way_of_reading_give_the_same_states() {
    let mut folders = vec![tempfile::tempdir().expect("a folder")];
    folders.extend(tempfile::tempdir_in("/dev/shm"));
    for folder in folders {
        for (cache, method) in [PageCache::Bypass, PageCache::Use].into_iter().flat_map(|c| [(c, Method::Uring), (c, Method::Threads)]) {
            TestRunner::new(config(12))
                .run(&(specs(), spaces(), sweeps()), |(specs, space, sweeps)| {
                    let shape = Shape::new(&specs, &space);
                    let (file, _removed) = space::create(folder.path(), shape.bytes()).expect("there is room");
                    let disk = Files::new(vec![file], vec!["states.scratch".into()], cache).expect("opens");
                    assert!(cache == PageCache::Bypass || disk.direct() == DirectIo::None);
                    let setup = Setup { method: Some(method), ..Setup::new(space.ring_bytes, 0) };
                    match ScratchFile::over(Arc::new(disk), shape, &setup, space.write_bytes) {
                        Ok(states) => walk(&states, &specs, &space, &sweeps, None),
                        Err(e) => assert!(e.message.contains("io_uring is not allowed"), "{e}"),
                    }
                    Ok(())
                })
                .expect("holds");
        }
    }
}
