//! Is every byte of a checkpoint there, and is it what it was?
//!
//! A bad download or a rotten disk shows after hours, as answers that are nonsense. Reading all of 1.56 TB once at 1.5 GB/s takes 17 minutes, so
//! it is worth it only at the disk's speed: the same reader as a job's, each shard from its beginning to its end, all devices at once, and
//! sums taken on some threads beside it. Memory is two rings of 64 MiB, whatever the model (more only if two of its pieces need it).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::checkpoint::Places;
use super::checksums::Checksums;
use super::disk::{DirectIo, Disk, Files, PageCache};
use super::extras::Extras;
use super::index;
use super::reader::{Catalogue, Method, Reader, Setup};
use super::{Checkpoint, Element, Lease, Piece};
use crate::error::{Error, Kind, Result};
use crate::model::manifest::{Manifest, PartFormat};

/// Bytes of a ring, of which there is one for panels and one for blocks.
const RING_BYTES: u64 = 64 << 20;
/// Pieces that are wanted ahead: the rings hold less, unless pieces are small.
const AHEAD: usize = 64;
/// Faults that are told; more are counted.
const FAULTS_TOLD: usize = 20;
/// A name with one of these in it is, or was to be, weights.
const WEIGHTS: [&str; 6] = [".safetensors", ".gguf", ".bin", ".pt", ".pth", ".incomplete"];

/// What a checkpoint was found to be.
#[derive(Debug, Clone)]
pub struct Verified {
    /// Shards.
    pub files: u64,
    /// Panels and blocks.
    pub pieces: u64,
    /// Bytes of the model's tensors.
    pub weight_bytes: u64,
    /// Bytes read, as the system returned them.
    pub bytes_read: u64,
    /// Time that it took.
    pub time: Duration,
    /// Which files were read past the page cache.
    pub direct: DirectIo,
    /// How reads reached the kernel.
    pub method: Method,
    /// The first faults, in the model's order: file, tensor, what is wrong and what to do.
    pub faults: Vec<String>,
    /// How many faults there are.
    pub faults_total: u64,
    /// Of these, how many are pieces that could not be read.
    pub unreadable: u64,
    /// What lies in the shards beside the model.
    pub extras: Extras,
    /// Files beside the shards that look like weights, sorted.
    pub strays: Vec<String>,
}

/// All that is wrong with a checkpoint that [`Checkpoint::open`] refuses.
pub fn faults(folder: &Path, manifest: &Manifest) -> Vec<String> {
    index::faults(folder, manifest).into_iter().map(|fault| fault.message).collect()
}

/// Reads every tensor of the model once, on so many threads, and goes on after a fault. `watch` gets bytes of tensors read so far.
///
/// # Errors
/// Refused: the system gives no threads or no look at the files.
pub fn verify(checkpoint: Checkpoint, checksums: &Checksums, threads: usize, watch: &(dyn Fn(u64) + Sync)) -> Result<Verified> {
    let started = Instant::now();
    let (contents, files) = checkpoint.into_places();
    let disk = Arc::new(Files::new(files, contents.paths().to_vec(), PageCache::Bypass)?);
    let reader = Reader::open(Arc::clone(&disk) as Arc<dyn Disk>, Arc::clone(&contents) as Arc<dyn Catalogue>, &setup(&contents))?;
    let order = order(&contents, &*disk);
    let strays = stray_files(contents.paths())?;
    let walk = Walk {
        order: &order,
        place: Mutex::default(),
        reader: &reader,
        contents: &contents,
        checksums,
        found: Mutex::default(),
        done_bytes: AtomicU64::new(0),
        watch,
    };
    std::thread::scope(|scope| (0..threads.max(1)).for_each(|_| drop(scope.spawn(|| walk.work()))));
    let found = walk.found.into_inner().unwrap_or_else(PoisonError::into_inner);
    let counters = reader.counters();
    Ok(Verified {
        files: contents.paths().len() as u64,
        pieces: order.len() as u64,
        weight_bytes: weight_bytes(&contents),
        bytes_read: counters.panel_bytes + counters.block_bytes,
        time: started.elapsed(),
        direct: disk.direct(),
        method: reader.method(),
        faults: found.told.into_values().collect(),
        faults_total: found.total,
        unreadable: found.unreadable,
        extras: contents.extras().clone(),
        strays,
    })
}

/// Files beside the shards that look like weights: downloads cut off, other systems' strays, files that no index names.
fn stray_files(shards: &[PathBuf]) -> Result<Vec<String>> {
    let Some(folder) = shards.first().and_then(|path| path.parent()) else { return Ok(Vec::new()) };
    let fault = |e: std::io::Error| Error::io(Kind::Refused, "read", folder, &e);
    let shards: BTreeSet<&OsStr> = shards.iter().filter_map(|path| path.file_name()).collect();
    let mut strays = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(fault)? {
        let name = entry.map_err(fault)?.file_name();
        let shown = name.to_string_lossy();
        if !shards.contains(&*name) && shown != index::INDEX_FILE && WEIGHTS.iter().any(|part| shown.contains(part)) {
            strays.push(shown.into_owned());
        }
    }
    strays.sort();
    Ok(strays)
}

/// Bytes of all tensors.
fn weight_bytes(contents: &Places) -> u64 {
    contents.pieces().map(|piece| bytes(contents, piece)).sum()
}

fn bytes(contents: &Places, piece: Piece) -> u64 {
    contents.extents(piece).iter().map(|extent| extent.1 as u64).sum()
}

/// Rings that hold two of the largest pieces, and no more than all of them.
fn setup(contents: &Places) -> Setup {
    let (mut largest, mut all) = ([0; 2], [0; 2]);
    for piece in contents.pieces() {
        let ring = usize::from(matches!(piece, Piece::Block { .. }));
        let room = Setup::room_bytes(bytes(contents, piece), contents.extents(piece).len() as u64);
        largest[ring] = room.max(largest[ring]);
        all[ring] += room;
    }
    let [panels, blocks] = [0, 1].map(|ring: usize| RING_BYTES.min(all[ring]).max(2 * largest[ring]) as usize);
    Setup::new(panels, blocks)
}

/// A piece, and its rank.
type Ranked = (Piece, u64);

/// Each device's pieces as they lie on it, and all devices in step.
fn order(contents: &Places, disk: &dyn Disk) -> Vec<Ranked> {
    let mut devices = vec![Vec::new(); disk.devices()];
    for (piece, rank) in contents.pieces().zip(0..) {
        let Some((first, _)) = contents.extents(piece).into_iter().min_by_key(|(place, _)| (place.file, place.offset)) else { continue };
        devices[disk.device(first.file)].push(((first.file, first.offset), (piece, rank)));
    }
    let mut order = Vec::new();
    for device in &mut devices {
        device.sort_unstable_by_key(|(at, _)| *at);
        let count = device.len() as u128;
        order.extend((0..).zip(&*device).map(|(i, (_, ranked))| ((i << 64) / count, *ranked)));
    }
    order.sort_by_key(|(step, _)| *step);
    order.into_iter().map(|(_, ranked)| ranked).collect()
}

/// What threads share.
struct Walk<'a> {
    order: &'a [Ranked],
    place: Mutex<Position>,
    reader: &'a Reader,
    contents: &'a Places,
    checksums: &'a Checksums,
    found: Mutex<Found>,
    done_bytes: AtomicU64,
    watch: &'a (dyn Fn(u64) + Sync),
}

/// Pieces given out, and wanted, from the beginning of the order.
#[derive(Default)]
struct Position {
    next: usize,
    wanted: usize,
}

#[derive(Default)]
struct Found {
    /// By rank and number within the piece.
    told: BTreeMap<(u64, usize), String>,
    total: u64,
    unreadable: u64,
}

impl Walk<'_> {
    fn work(&self) {
        while let Some((piece, rank)) = self.next() {
            match self.reader.take(piece) {
                Ok(lease) => self.note(rank, self.look(piece, rank, &lease), false),
                Err(fault) => self.note(rank, vec![fault.message], true),
            }
            let bytes = bytes(self.contents, piece);
            (self.watch)(self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes);
        }
    }

    fn next(&self) -> Option<Ranked> {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        let ranked = *self.order.get(place.next)?;
        if place.wanted < self.order.len() && place.wanted <= place.next + AHEAD / 2 {
            let until = (place.next + AHEAD).min(self.order.len());
            let wanted: Vec<Piece> = self.order[place.wanted..until].iter().map(|ranked| ranked.0).collect();
            self.reader.want(0, &wanted);
            place.wanted = until;
        }
        place.next += 1;
        Some(ranked)
    }

    fn note(&self, rank: u64, faults: Vec<String>, unreadable: bool) {
        if faults.is_empty() {
            return;
        }
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.total += faults.len() as u64;
        found.unreadable += u64::from(unreadable);
        found.told.extend(faults.into_iter().enumerate().map(|(i, fault)| ((rank, i), fault)));
        while found.told.len() > FAULTS_TOLD {
            found.told.pop_last();
        }
    }

    /// All that is wrong with the bytes of a piece.
    fn look(&self, piece: Piece, rank: u64, lease: &Lease) -> Vec<String> {
        let extents = self.contents.extents(piece);
        let mut faults: Vec<String> = wrong_values(self.contents, piece, lease)
            .into_iter()
            .map(|(i, wrong)| {
                let path = self.contents.path(extents[i].0.file).display();
                format!("tensor `{}` in {path} {wrong}; download it again", self.contents.name(piece, i))
            })
            .collect();
        let parts: Vec<&[u8]> = (0..extents.len()).map(|i| lease.part(i)).collect();
        // A sum of bytes that cannot be right would be held against the right ones later.
        let same = if faults.is_empty() { self.checksums.check(rank, &parts) } else { self.checksums.compare(rank, &parts) };
        if let Err(mismatch) = same {
            faults.push(format!("{}: {mismatch}; {}", self.contents.words(piece), self.checksums.advice()));
        }
        faults
    }
}

/// Tensors of a piece that hold what is no number, and what that is.
fn wrong_values(contents: &Places, piece: Piece, lease: &Lease) -> Vec<(usize, String)> {
    match piece {
        Piece::Panel { weight, panel } => {
            let (w, element) = (contents.manifest.weight(weight), contents.element(weight));
            let bytes = lease.part(0);
            let count = not_finite(bytes, element);
            if count == 0 {
                return Vec::new();
            }
            let row_bytes = w.cols() * element.bytes();
            let row = bytes.chunks(row_bytes).position(|row| not_finite(row, element) > 0).unwrap_or(0) + w.panel(panel as usize).start;
            vec![(0, format!("holds {count} values that are NaN or infinite, the first of them in row {row}"))]
        }
        Piece::Block { layer, .. } => {
            let parts = contents.manifest.layers[layer as usize].blocks.iter().flat_map(|b| &b.parts);
            let scales = parts.enumerate().map(|(i, part)| match part.format {
                PartFormat::Mxfp4 => 2 * i + 1,
            });
            scales.filter(|&i| lease.part(i).contains(&255)).map(|i| (i, "holds a scale of 255 (not a number)".to_string())).collect()
        }
        Piece::State { .. } => Vec::new(),
    }
}

/// How many elements are NaN or infinite: all bits of the exponent are set.
fn not_finite(bytes: &[u8], element: Element) -> usize {
    // Counts of a chunk fit 16 bits and cannot overflow, which lets the compiler take many elements at once.
    const CHUNK_BYTES: usize = 8192;
    const _: () = assert!(CHUNK_BYTES <= u16::MAX as usize);
    let count = |chunk: &[u8]| match element {
        Element::F32 => chunk.as_chunks::<4>().0.iter().fold(0u16, |n, x| n.wrapping_add(all_set(u32::from_le_bytes(*x), 0x7f80_0000))),
        Element::Bf16 => chunk.as_chunks::<2>().0.iter().fold(0u16, |n, x| n.wrapping_add(all_set(u16::from_le_bytes(*x), 0x7f80))),
    };
    bytes.chunks(CHUNK_BYTES).map(|chunk| usize::from(count(chunk))).sum()
}

/// 1 where all bits of `mask` are set.
fn all_set<T: Copy + PartialEq + std::ops::BitAnd<Output = T>>(x: T, mask: T) -> u16 {
    u16::from(x & mask == mask)
}

#[cfg(test)]
mod tests;
