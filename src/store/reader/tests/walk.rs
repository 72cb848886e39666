//! Any sequence of wants, takes and forgets, on a disk in a bad mood.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;

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
pub fn moody(seed: u64) -> Arc<Fake> {
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
