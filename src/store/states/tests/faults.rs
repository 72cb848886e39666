//! What is told when a disk fails or rots, and what stays.

use super::*;

#[test]
fn a_byte_that_flips_is_named() {
    let disk = Fake::well(&shape());
    let states = over(&disk);
    states.put(key(1, 0), 0..3, Change::Whole(&floats(3_000, 1))).expect("writes");
    states.put(key(1, 1), 0..3, Change::Rows(&floats(1_500, 1))).expect("writes");
    states.settle().expect("writes");
    states.put(key(1, 0), 3..4, Change::Log(&floats(100, 2))).expect("writes");
    states.settle().expect("writes");
    let place = |state| shape().extent_at(key(1, state), 0);
    for (state, at, shown) in
        [(0, place(0), true), (0, place(0) + 11_999, true), (0, place(0) + 12_288 + 399, true), (1, place(1) + 5_999, true)]
            .into_iter()
            .chain([(0, place(0) + 12_000, false), (0, place(0) + 12_288 + 400, false), (1, place(1) + 6_000, false)])
    {
        disk.flip(at);
        let taken = states.take(key(1, state)).map(|_| ());
        disk.flip(at);
        assert_eq!(taken.is_err(), shown, "byte {at}");
        if let Err(error) = taken {
            assert_eq!(error.kind, Kind::Storage);
            for part in
                ["folder/states.scratch", &format!("state {state} of slot 1"), "position", "CRC32", "disk is failing", "engine.scratch"]
            {
                assert!(error.message.contains(part), "{part}: {error}");
            }
        }
        assert!(states.take(key(1, state)).is_ok());
    }
}

#[test]
fn a_write_that_fails_twice_is_told_and_the_state_before_the_sweep_stays() {
    in_time(|| {
        let bad = Arc::new(AtomicBool::new(false));
        let looks = Arc::clone(&bad);
        let disk = Fake::new(&shape(), move |act, _, len, _| {
            if act == Act::Write && looks.load(Ordering::SeqCst) { Err(io::Error::from_raw_os_error(28)) } else { Ok(len) }
        });
        let states = over(&disk);
        let (old, rows) = ([floats(3_000, 1), floats(9, 1)], floats(2_000, 1));
        states.put(key(0, 0), 0..3, Change::Whole(&old[0])).expect("writes");
        states.put(key(0, 1), 0..3, Change::Rows(&rows[..1_500])).expect("writes");
        states.put(key(0, 2), 0..3, Change::Whole(&old[1])).expect("writes");
        states.settle().expect("writes");
        bad.store(true, Ordering::SeqCst);
        let new = floats(3_000, 7);
        // Some of it may be written, and fail, while the rest is put.
        let put = states.put(key(0, 0), 3..4, Change::Whole(&new));
        let settled = states.settle().expect_err("the disk is full");
        assert!(put.is_ok() || put == Err(settled.clone()));
        assert_eq!(settled.kind, Kind::Storage);
        for part in ["folder/states.scratch", "at byte ", "os error 28", "free some space", "engine.scratch"] {
            assert!(settled.message.contains(part), "{part}: {settled}");
        }
        let again = |end: u32| {
            holds(&states, key(0, 0), &old[0], &[]);
            holds(&states, key(0, 1), &rows[..1_500], &[]);
            holds(&states, key(0, 2), &old[1], &[]);
            let put = states.put(key(0, 0), 3..end, Change::Whole(&new));
            states.settle().and(put)
        };
        again(4).expect_err("the disk is full still, and that is told anew");
        bad.store(false, Ordering::SeqCst);
        again(5).expect("somebody has freed some space");
        holds(&states, key(0, 0), &new, &[]);
    });
}

#[test]
fn a_table_that_cannot_be_written_settles_nothing() {
    let bad = Arc::new(AtomicBool::new(false));
    let looks = Arc::clone(&bad);
    let disk = Fake::new(&shape(), move |act, offset, len, _| {
        let table = offset < 2 * shape().table;
        if act == Act::Write && table && looks.load(Ordering::SeqCst) { Ok(0) } else { Ok(len) }
    });
    let states = over(&disk);
    states.put(key(0, 2), 0..1, Change::Whole(&floats(9, 1))).expect("writes");
    states.settle().expect("writes");
    bad.store(true, Ordering::SeqCst);
    states.put(key(0, 2), 1..2, Change::Whole(&floats(9, 2))).expect("writes");
    let error = states.settle().expect_err("no bytes are taken");
    assert!(error.message.contains("takes no bytes"), "{error}");
    holds(&states, key(0, 2), &floats(9, 1), &[]);
}

#[test]
fn a_fault_of_the_program_in_a_thread_lets_nobody_wait_for_ever() {
    in_time(|| {
        let disk = Fake::new(&shape(), |_, _, _, _| panic!("on purpose"));
        let states = over(&disk);
        states.put(key(0, 2), 0..1, Change::Whole(&floats(9, 1))).expect("a free buffer takes it");
        assert!(states.settle().is_err_and(|e| e.message.contains("please report")));
    });
}

#[test]
fn a_read_that_fails_names_file_byte_and_state() {
    let disk = Fake::new(&shape(), |act, _, len, _| if act == Act::Read { Err(io::Error::from_raw_os_error(5)) } else { Ok(len) });
    let states = over(&disk);
    states.put(key(1, 2), 0..1, Change::Whole(&floats(9, 1))).expect("writes");
    states.settle().expect("writes");
    states.want(1, &[key(1, 2), key(0, 0)]);
    let error = states.take(key(1, 2)).map(|_| ()).expect_err("no read is well");
    for part in ["folder/states.scratch", "state 2 of slot 1", "at byte ", "os error 5"] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
}
