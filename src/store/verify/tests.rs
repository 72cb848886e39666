//! A small model on one device and on two, with shards that shrink under the reader and more faults than are told.

use std::os::unix::fs::symlink;

use super::*;
use crate::learned::Learned;
use crate::model::{self, Model};

/// A copy of the smallest model; files whose number is odd lie in `other`, if given.
struct Copy {
    folder: tempfile::TempDir,
    model: Box<dyn Model>,
}

impl Copy {
    fn new(other: Option<&Path>) -> Self {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/goldens/tiny/checkpoint");
        let folder = tempfile::tempdir().expect("a folder");
        let mut names: Vec<_> = std::fs::read_dir(&from).expect("a model").map(|e| e.expect("an entry").file_name()).collect();
        names.sort();
        for (i, name) in names.iter().enumerate() {
            match other.filter(|_| i % 2 == 1) {
                Some(other) => {
                    std::fs::copy(from.join(name), other.join(name)).expect("copied");
                    symlink(other.join(name), folder.path().join(name)).expect("linked");
                }
                None => drop(std::fs::copy(from.join(name), folder.path().join(name)).expect("copied")),
            }
        }
        let config = std::fs::read(folder.path().join("config.json")).expect("a config");
        let model = model::of_config(&config, Path::new("config.json"), 10_000).expect("a model");
        Copy { folder, model }
    }

    fn open(&self) -> Checkpoint {
        Checkpoint::open(self.folder.path(), self.model.manifest()).expect("whole")
    }

    fn shard(&self, number: u32) -> PathBuf {
        self.folder.path().join(format!("model-0000{number}-of-00006.safetensors"))
    }

    /// Sets every byte of the tensors whose names end like this.
    fn fill(&self, number: u32, ending: &str, value: u8) -> usize {
        let path = self.shard(number);
        let mut bytes = std::fs::read(&path).expect("a shard");
        let mut ranges = Vec::new();
        let file = std::fs::File::open(&path).expect("a shard");
        super::super::header::read(&file, &mut |t| {
            if t.name.ends_with(ending) {
                ranges.push(t.offset as usize..(t.offset + t.bytes) as usize);
            }
            Ok(())
        })
        .expect("a header");
        ranges.iter().for_each(|range| bytes[range.clone()].fill(value));
        std::fs::write(path, bytes).expect("written");
        ranges.len()
    }
}

fn sums(checkpoint: &Checkpoint) -> Checksums {
    Checksums::open(&Learned::nowhere("a test"), &checkpoint.pieces())
}

fn verified(checkpoint: Checkpoint, sums: &Checksums, threads: usize) -> Verified {
    verify(checkpoint, sums, threads, &|_| {}).expect("threads")
}

#[test]
fn every_piece_is_read_once_from_all_devices_at_once() {
    let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    for other in [None, Some(memory.path())] {
        let copy = Copy::new(other);
        let checkpoint = copy.open();
        let sums = sums(&checkpoint);
        let manifest = copy.model.manifest();
        let blocks: u64 = manifest.blocks().map(|(_, b)| (b.count * b.bytes()) as u64).sum();
        let all = checkpoint.weight_bytes().sum::<u64>() + blocks;
        for (round, threads) in [(1, 1), (2, 3)] {
            let seen = Mutex::new(Vec::new());
            let watch = |bytes| seen.lock().expect("no test panics while it holds it").push(bytes);
            let v = verify(copy.open(), &sums, threads, &watch).expect("threads");
            assert_eq!((v.faults.as_slice(), v.faults_total, v.weight_bytes), (&[][..], 0, all));
            let alignment = v.pieces * 7 * 2 * 4096;
            assert!(v.bytes_read >= all && v.bytes_read <= all + alignment, "{} of {all}", v.bytes_read);
            let seen = seen.into_inner().expect("as above");
            assert_eq!((seen.len() as u64, seen.iter().max()), (v.pieces, Some(&all)));
            let counted = sums.counted();
            assert_eq!((counted.recorded, counted.same, counted.changed), (v.pieces, v.pieces * (round - 1), 0));
        }
    }
}

#[test]
fn a_shard_that_shrinks_leaves_the_rest_to_be_checked() {
    let copy = Copy::new(None);
    let whole = sums(&copy.open());
    verified(copy.open(), &whole, 2);
    let checkpoint = copy.open();
    let file = std::fs::OpenOptions::new().write(true).open(copy.shard(3)).expect("a shard");
    file.set_len(300_000).expect("cut");
    let v = verified(checkpoint, &whole, 2);
    assert!(v.unreadable > 10 && v.unreadable == v.faults_total, "{} of {}", v.unreadable, v.faults_total);
    assert!(v.faults.iter().all(|f| f.contains("00003-of") && f.contains("language_model.") && f.contains("shrunk")), "{:#?}", v.faults);
    let counted = whole.counted();
    assert_eq!((counted.same, counted.changed), (v.pieces - v.unreadable, 0));
}

#[test]
fn the_first_twenty_faults_are_told_in_order_and_the_rest_counted() {
    let copy = Copy::new(None);
    let wrong = copy.fill(3, ".weight_scale", 255) as u64;
    assert!(wrong > 20);
    let [one, many] = [1, 4].map(|threads| {
        let v = verified(copy.open(), &sums(&copy.open()), threads);
        assert_eq!((v.faults_total, v.unreadable, v.faults.len()), (wrong, 0, 20));
        v.faults
    });
    assert_eq!(one, many);
    assert!(one[0].contains(".experts.0.w1.weight_scale") && one[19].contains("255"), "{one:#?}");
}

#[test]
fn bytes_that_cannot_be_right_are_not_recorded() {
    let copy = Copy::new(None);
    let good = std::fs::read(copy.shard(3)).expect("a shard");
    let sums = sums(&copy.open());
    let wrong = copy.fill(3, "experts.5.w2.weight_scale", 255) as u64;
    assert_eq!(verified(copy.open(), &sums, 2).faults_total, wrong);
    std::fs::write(copy.shard(3), good).expect("written");
    assert_eq!(verified(copy.open(), &sums, 2).faults, Vec::<String>::new());
    copy.fill(3, "experts.5.w2.weight_scale", 255);
    let v = verified(copy.open(), &sums, 2);
    assert_eq!(v.faults_total, 2 * wrong, "scales of 255, and bytes that have changed: {:#?}", v.faults);
}

#[test]
fn what_is_not_finite_is_counted() {
    let bf16 = [0x7f7f_u16, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffff, 0, 0x8000].map(u16::to_le_bytes).concat();
    assert_eq!(not_finite(&bf16, Element::Bf16), 4);
    let f32s = [f32::MAX, f32::MIN, f32::NAN, f32::INFINITY, -f32::INFINITY, 0.0, -f32::MIN_POSITIVE].map(f32::to_le_bytes).concat();
    assert_eq!(not_finite(&f32s, Element::F32), 3);
}
