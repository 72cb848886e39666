//! A checkpoint of a few hundred bytes, laid out in every way that a real one may be.

use std::path::PathBuf;

use super::*;
use crate::error::Kind;
use crate::learned::Learned;
use crate::model::manifest::{Blocks, Layer, Part, PartFormat, Weight};
use crate::store::Store;

const A: WeightId = WeightId(0);
const EMBEDDING: WeightId = WeightId(1);

/// A weight [6, 4] in panels of 4 rows, an embedding [5, 3] in panels of 2, and three blocks of one matrix [2, 32].
fn manifest() -> Manifest {
    let weight = |name: &str, shape: [usize; 2], panel_rows| Weight { name: name.into(), shape: shape.to_vec(), panel_rows, whole: false };
    let parts = vec![Part { name: "w", rows: 2, cols: 32, format: PartFormat::Mxfp4 }];
    let blocks = Blocks { prefix: "m.experts.".into(), count: 3, chosen: 1, width: 32, inner: 2, parts };
    Manifest {
        hidden: 3,
        vocab: 5,
        stream_width: 3,
        row_scratch: 0,
        weights: vec![weight("m.a", [6, 4], 4), weight("m.embedding", [5, 3], 2)],
        embedding: EMBEDDING,
        head: A,
        ignored: vec!["vision."],
        states: Vec::new(),
        layers: vec![Layer { weights: 0..1, states: 0..0, blocks: Some(blocks) }],
    }
}

/// A tensor of a shard: its bytes tell tensors apart.
#[derive(Clone)]
struct Stored {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    data: Vec<u8>,
}

fn stored(name: &str, dtype: &'static str, shape: &[usize], first: u8) -> Stored {
    let width = match dtype {
        "F32" => 4,
        "BF16" | "F16" => 2,
        _ => 1,
    };
    let len = shape.iter().product::<usize>() * width;
    Stored { name: name.into(), dtype, shape: shape.to_vec(), data: (0..len).map(|i| first.wrapping_add(i as u8)).collect() }
}

fn packed(expert: usize) -> Stored {
    stored(&format!("m.experts.{expert}.w.weight_packed"), "U8", &[2, 16], 10 * expert as u8)
}

fn scales(expert: usize) -> Stored {
    stored(&format!("m.experts.{expert}.w.weight_scale"), "U8", &[2, 1], 200 + 10 * expert as u8)
}

/// All that the manifest asks for.
fn whole() -> Vec<Stored> {
    let trunk = [stored("m.a", "BF16", &[6, 4], 0), stored("m.embedding", "F32", &[5, 3], 100)];
    trunk.into_iter().chain((0..3).flat_map(|e| [packed(e), scales(e)])).collect()
}

/// The bytes of a shard with these tensors in this order.
fn shard(tensors: &[Stored]) -> Vec<u8> {
    let (mut entries, mut data) = (serde_json::Map::new(), Vec::new());
    for t in tensors {
        let from = data.len();
        data.extend_from_slice(&t.data);
        entries.insert(t.name.clone(), serde_json::json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [from, data.len()]}));
    }
    let header = serde_json::to_vec(&entries).expect("JSON");
    [&(header.len() as u64).to_le_bytes(), &header[..], &data].concat()
}

fn folder(shards: &[(&str, &[Stored])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, tensors) in shards {
        std::fs::write(folder.path().join(name), shard(tensors)).expect("written");
    }
    folder
}

fn index(folder: &tempfile::TempDir, map: &[(&str, &str)]) -> PathBuf {
    let path = folder.path().join("model.safetensors.index.json");
    let map: serde_json::Map<_, _> = map.iter().map(|(name, file)| ((*name).into(), (*file).into())).collect();
    std::fs::write(&path, serde_json::json!({"metadata": {}, "weight_map": map}).to_string()).expect("written");
    path
}

fn open(folder: &tempfile::TempDir) -> Weights {
    keeping(folder, Keep::default())
}

fn keeping(folder: &tempfile::TempDir, keep: Keep) -> Weights {
    let checkpoint = Checkpoint::open(folder.path(), &manifest()).expect("whole");
    let checksums = Checksums::open(&Learned::nowhere("a test"), &checkpoint.pieces());
    checkpoint.read(keep, &Setup::new(1 << 14, 1 << 14), PageCache::Use, checksums).expect("can be read")
}

/// What a folder that must not open is refused with.
fn refusal(folder: &tempfile::TempDir) -> String {
    let error = Checkpoint::open(folder.path(), &manifest()).err().expect("refused");
    assert_eq!(error.kind, Kind::Refused);
    error.to_string()
}

fn block(expert: u32) -> Piece {
    Piece::Block { layer: 0, expert }
}

/// Every piece has the bytes of its tensors, whether it is read, being kept, or was kept.
fn hold_to(checkpoint: &Weights, tensors: &[Stored]) {
    let data = |name: &str| &tensors.iter().find(|t| t.name == name).expect("stored").data[..];
    for _ in 0..2 {
        for expert in 0..3 {
            let lease = checkpoint.take(block(expert)).expect("read");
            assert_eq!(lease.part(0), data(&format!("m.experts.{expert}.w.weight_packed")));
            assert_eq!(lease.part(1), data(&format!("m.experts.{expert}.w.weight_scale")));
        }
        for (weight, name, row_bytes, panel_rows) in [(A, "m.a", 8, 4), (EMBEDDING, "m.embedding", 12, 2)] {
            for (panel, bytes) in data(name).chunks(row_bytes * panel_rows).enumerate() {
                let lease = checkpoint.take(Piece::Panel { weight, panel: panel as u32 }).expect("read");
                assert_eq!(lease.part(0), bytes, "{name}, panel {panel}");
            }
            for (row, bytes) in data(name).chunks(row_bytes).enumerate() {
                let mut out = vec![0; row_bytes];
                checkpoint.row(weight, row, &mut out).expect("read");
                assert_eq!(out, bytes, "{name}, row {row}");
            }
        }
    }
}

#[test]
fn a_piece_is_the_same_wherever_its_tensors_lie() {
    let tensors = whole();
    hold_to(&open(&folder(&[("model.safetensors", &tensors)])), &tensors);
    let backwards: Vec<_> = tensors.iter().rev().cloned().collect();
    hold_to(&open(&folder(&[("model.safetensors", &backwards)])), &tensors);
    // A block over two shards, in either order, and strangers between its tensors.
    let (even, odd): (Vec<_>, Vec<_>) = tensors.iter().cloned().enumerate().partition(|(i, _)| i % 2 == 0);
    let (even, odd): (Vec<_>, Vec<_>) = (even.into_iter().map(|t| t.1).collect(), odd.into_iter().map(|t| t.1).collect());
    hold_to(&open(&folder(&[("a.safetensors", &even), ("b.safetensors", &odd)])), &tensors);
    hold_to(&open(&folder(&[("b.safetensors", &even), ("a.safetensors", &odd)])), &tensors);
    let apart = [&[stored("vision.x", "U8", &[3], 9)], &tensors[..3], &[stored("vision.y", "F16", &[1], 9)], &tensors[3..]].concat();
    hold_to(&open(&folder(&[("model.safetensors", &apart)])), &tensors);
}

#[test]
fn kept_pieces_are_read_once_and_are_the_same_bytes() {
    let tensors = whole();
    let folder = folder(&[("model.safetensors", &tensors)]);
    let (trunk, a_block) = (6 * 8 + 5 * 12, 34);
    for panels in 0..=5 {
        for blocks in 0..=3 {
            let checkpoint = keeping(&folder, Keep { panels, blocks });
            hold_to(&checkpoint, &tensors);
            let read = checkpoint.counters();
            assert_eq!(read.blocks_read(), 6 - blocks);
            assert_eq!(read.expert_bytes, a_block * (6 - blocks));
            // Twice each panel, and twice each row: all four times if it is not kept, else once.
            let kept: u64 = [32, 16, 24, 24, 12][..panels as usize].iter().sum();
            assert_eq!(read.trunk_bytes, 4 * (trunk - kept) + kept, "{panels} panels kept");
        }
    }
}

#[test]
fn a_shard_may_be_a_link() {
    let tensors = whole();
    let (blobs, folder) = (folder(&[("blob", &tensors)]), tempfile::tempdir().expect("a folder"));
    std::os::unix::fs::symlink(blobs.path().join("blob"), folder.path().join("model.safetensors")).expect("linked");
    hold_to(&open(&folder), &tensors);
}

#[test]
fn a_shard_that_shrinks_is_a_fault_that_names_file_and_tensor() {
    let tensors = whole();
    let folder = folder(&[("model.safetensors", &tensors)]);
    let checkpoint = open(&folder);
    let path = folder.path().join("model.safetensors");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("there");
    file.set_len(file.metadata().expect("there").len() - 1).expect("cut");
    checkpoint.take(block(1)).expect("what lies before the cut can be read");
    let error = checkpoint.take(block(2)).err().expect("a fault");
    assert_eq!(error.kind, Kind::Storage);
    let said = error.to_string();
    assert!(said.contains("m.experts.2.w.weight_") && said.contains("model.safetensors"), "{said}");
    let said = refusal(&folder);
    assert!(said.contains("cut short: 1 bytes are missing"), "{said}");
}

#[test]
fn what_is_missing_foreign_or_of_another_form_is_refused_by_name() {
    let without: Vec<_> = whole().into_iter().filter(|t| !t.name.starts_with("m.experts.1.")).collect();
    let said = refusal(&folder(&[("model.safetensors", &without)]));
    assert!(said.contains("`m.experts.1.w.weight_packed` and 1 more"), "{said}");
    let cases = [
        (stored("m.experts.3.w.weight_scale", "U8", &[2, 1], 0), "no part of the model"),
        (stored("m.experts.01.w.weight_scale", "U8", &[2, 1], 0), "no part of the model"),
        (stored("m.b", "F32", &[1], 0), "no part of the model"),
        (stored("m.a", "F16", &[6, 4], 0), "stored as F16; supported: BF16, F32"),
        (stored("m.a", "BF16", &[4, 6], 0), "has shape [4, 6], config.json makes it [6, 4]"),
        (stored("m.experts.0.w.weight_packed", "U8", &[16, 2], 0), "must be U8 [2, 16]"),
        (stored("m.experts.0.w.weight_packed", "I8", &[2, 16], 0), "is I8"),
    ];
    for (wrong, wanted) in cases {
        let mut tensors: Vec<_> = whole().into_iter().filter(|t| t.name != wrong.name).collect();
        tensors.push(wrong.clone());
        let said = refusal(&folder(&[("model.safetensors", &tensors)]));
        assert!(said.contains(wanted) && said.contains(&wrong.name) && said.contains("model.safetensors"), "{said}");
    }
}

#[test]
fn of_two_tensors_of_one_name_the_index_file_chooses() {
    let tensors = whole();
    let other = [stored("m.a", "F32", &[6, 4], 7), Stored { data: vec![1; 32], ..packed(0) }];
    let twins = folder(&[("a.safetensors", &tensors), ("b.safetensors", &other)]);
    assert!(refusal(&twins).contains("`m.a` lies twice"));
    let map = |file| [("m.a", file), ("m.experts.0.w.weight_packed", file), ("m.b", "a.safetensors"), ("m.c", "b.safetensors")];
    index(&twins, &map("a.safetensors"));
    let first = open(&twins);
    assert_eq!(first.element(A), Element::Bf16);
    hold_to(&first, &tensors);
    index(&twins, &map("b.safetensors"));
    let second = open(&twins);
    assert_eq!(second.element(A), Element::F32);
    assert_eq!(second.take(Piece::Panel { weight: A, panel: 0 }).expect("read").part(0), &other[0].data[..64]);
    assert_eq!(second.take(block(0)).expect("read").part(0), [1; 32]);
    std::fs::write(twins.path().join("c.safetensors"), shard(&[stored("vision.x", "U8", &[1], 0)])).expect("written");
    index(&twins, &[("m.a", "c.safetensors"), ("m.b", "a.safetensors"), ("m.c", "b.safetensors")]);
    assert!(refusal(&twins).contains("`m.a` lies in two files"));
}

#[test]
fn an_index_file_names_plain_files_that_are_there() {
    let whole = folder(&[("a.safetensors", &whole())]);
    for (file, wanted) in [("../a.safetensors", "no plain file name"), (".a", "no plain file name"), ("b.safetensors", "not in the folder")]
    {
        index(&whole, &[("m.a", file)]);
        let said = refusal(&whole);
        assert!(said.contains(wanted) && said.contains(file), "{said}");
    }
    index(&whole, &[]);
    assert!(refusal(&whole).contains("names no file"));
}

#[test]
fn a_name_of_megabytes_takes_no_time() {
    let mut tensors = whole();
    tensors.push(stored(&format!("vision{}", ".1".repeat(2_000_000)), "U8", &[1], 0));
    hold_to(&open(&folder(&[("model.safetensors", &tensors)])), &whole());
}

#[test]
fn the_fingerprint_follows_headers_and_samples() {
    let tensors = whole();
    let print = |tensors: &[Stored]| {
        Checkpoint::open(folder(&[("model.safetensors", tensors)]).path(), &manifest()).expect("whole").fingerprint().expect("readable")
    };
    let mut changed = tensors.clone();
    changed[0].data[3] ^= 1;
    let backwards: Vec<_> = tensors.iter().rev().cloned().collect();
    assert_eq!(print(&tensors), print(&tensors));
    assert_ne!(print(&tensors), print(&changed));
    assert_ne!(print(&tensors), print(&backwards));
}
