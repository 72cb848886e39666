//! A checkpoint's pieces by positioned reads, some of them kept.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::bytes::Pool;
use super::index::{Index, Place};
use super::reader::layout::lay_out;
use super::{Counters, Element, Keep, Lease, Piece, Store};
use crate::error::{Error, Result};
use crate::model::manifest::{Manifest, WeightId};

/// Bytes of a shard that go into the fingerprint, at each of so many places.
const SAMPLE_BYTES: usize = 4096;
const SAMPLES: u64 = 16;
/// What a weight takes in manifest and index: its name and shape, its place.
const WEIGHT_BYTES: usize = 160;

/// An opened checkpoint.
pub struct Checkpoint {
    index: Index,
    manifest: Manifest,
    pool: Arc<Pool>,
    /// Rank of each weight's first panel, and behind the last one the number of panels.
    panel_base: Vec<u64>,
    /// Rank of each layer's first block, and behind the last one the number of blocks.
    block_base: Vec<u64>,
    /// Locked while a piece is read, so that two threads never read one twice.
    kept_panels: Vec<Mutex<Option<Lease>>>,
    kept_blocks: Vec<Mutex<Option<Lease>>>,
    trunk_bytes: AtomicU64,
    expert_bytes: AtomicU64,
    blocks_read: AtomicU64,
    read_us: AtomicU64,
}

impl Checkpoint {
    /// Indexes the checkpoint in `folder`; nothing but headers is read.
    ///
    /// # Errors
    /// Refused: a shard or tensor is missing, damaged, of another shape or type; it is named.
    pub fn open(folder: &Path, manifest: &Manifest) -> Result<Self> {
        let index = Index::build(folder, manifest)?;
        let bases = |counts: &mut dyn Iterator<Item = u64>| {
            let mut base = vec![0];
            counts.for_each(|n| base.push(base.last().expect("begins with 0") + n));
            base
        };
        Ok(Checkpoint {
            panel_base: bases(&mut manifest.weights.iter().map(|w| w.panels() as u64)),
            block_base: bases(&mut manifest.layers.iter().map(|l| l.blocks.as_ref().map_or(0, |b| b.count as u64))),
            index,
            manifest: manifest.clone(),
            pool: Arc::default(),
            kept_panels: Vec::new(),
            kept_blocks: Vec::new(),
            trunk_bytes: AtomicU64::new(0),
            expert_bytes: AtomicU64::new(0),
            blocks_read: AtomicU64::new(0),
            read_us: AtomicU64::new(0),
        })
    }

    /// Decides which pieces stay in memory once they have been read.
    pub fn keep(&mut self, keep: Keep) {
        self.kept_panels.resize_with(keep.panels as usize, Mutex::default);
        self.kept_blocks.resize_with(keep.blocks as usize, Mutex::default);
    }

    /// Number of panels and blocks.
    pub fn pieces(&self) -> u64 {
        [&self.panel_base, &self.block_base].iter().filter_map(|base| base.last()).sum()
    }

    /// Bytes of each weight, in the manifest's order.
    pub fn weight_bytes(&self) -> impl Iterator<Item = u64> {
        let elements = self.index.weights.iter().map(|w| w.1.bytes() as u64);
        self.manifest.weights.iter().zip(elements).map(|(w, bytes)| (w.rows() * w.cols()) as u64 * bytes)
    }

    /// Bytes that the index itself takes.
    pub fn index_bytes(&self) -> u64 {
        let places: usize = self.index.blocks.iter().map(|b| b.places.len()).sum();
        (places * size_of::<Place>() + self.manifest.weights.len() * WEIGHT_BYTES) as u64
    }

    /// Identity of the weights: all headers, and samples of every shard.
    ///
    /// # Errors
    /// Storage: a shard cannot be read.
    pub fn fingerprint(&self) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.index.headers.as_bytes());
        for (file, path) in self.index.files.iter().zip(&self.index.paths) {
            let size = file.metadata().map_err(|e| Error::storage(format!("{}: {e}", path.display())))?.len();
            let mut sample = [0u8; SAMPLE_BYTES];
            let last = size.saturating_sub(SAMPLE_BYTES as u64);
            for i in 0..SAMPLES {
                let n = SAMPLE_BYTES.min(size as usize);
                file.read_exact_at(&mut sample[..n], last / (SAMPLES - 1) * i)
                    .map_err(|e| Error::storage(format!("{}: {e}", path.display())))?;
                hasher.update(&sample[..n]);
            }
            hasher.update(&size.to_le_bytes());
        }
        Ok(hasher.finalize())
    }

    /// What was learned by indexing, for a reader of its own.
    pub(super) fn into_index(self) -> (Index, Manifest) {
        (self.index, self.manifest)
    }

    fn rank(&self, piece: Piece) -> u64 {
        match piece {
            Piece::Panel { weight, panel } => self.panel_base[weight.0 as usize] + u64::from(panel),
            Piece::Block { layer, expert } => self.block_base[layer as usize] + u64::from(expert),
        }
    }

    fn kept(&self, piece: Piece) -> Option<&Mutex<Option<Lease>>> {
        let list = match piece {
            Piece::Panel { .. } => &self.kept_panels,
            Piece::Block { .. } => &self.kept_blocks,
        };
        list.get(self.rank(piece) as usize)
    }

    /// The stored tensors of a piece: place and length.
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        match piece {
            Piece::Panel { weight, panel } => {
                let w = self.manifest.weight(weight);
                let (place, element) = self.index.weights[weight.0 as usize];
                let (rows, row_bytes) = (w.panel(panel as usize), w.cols() * element.bytes());
                vec![(Place { offset: place.offset + (rows.start * row_bytes) as u64, ..place }, rows.len() * row_bytes)]
            }
            Piece::Block { layer, expert } => {
                let blocks = &self.index.blocks[layer as usize];
                let n = blocks.tensors.len();
                let places = &blocks.places[expert as usize * n..(expert as usize + 1) * n];
                places.iter().zip(&blocks.tensors).map(|(p, t)| (*p, t.shape[0] * t.shape[1])).collect()
            }
        }
    }

    fn read(&self, piece: Piece, bytes: &mut [u8], extents: &[(Place, usize)]) -> Result<Vec<Range<usize>>> {
        let layout = lay_out(extents, |_| 1);
        for run in &layout.runs {
            let (file, place) = (&self.index.files[run.file as usize], Place { file: run.file, offset: run.offset });
            file.read_exact_at(&mut bytes[run.at..run.at + run.len], run.offset).map_err(|e| self.fault(piece, place, &e))?;
        }
        Ok(layout.parts)
    }

    fn fault(&self, piece: Piece, place: Place, error: &std::io::Error) -> Error {
        let path = self.index.paths[place.file as usize].display();
        Error::storage(format!("cannot read `{}` from {path} at byte {}: {error}", self.name(piece, 0), place.offset))
    }

    fn load(&self, piece: Piece, stays: bool) -> Result<Lease> {
        let extents = self.extents(piece);
        let len = extents.iter().map(|e| e.1).sum();
        let started = Instant::now();
        let lease = if stays {
            let mut bytes = vec![0; len];
            let parts = self.read(piece, &mut bytes, &extents)?;
            Lease::of(bytes, parts)
        } else {
            let mut bytes = self.pool.take(len);
            let parts = self.read(piece, bytes.whole(), &extents)?;
            Lease { bytes: Arc::new(bytes), parts: parts.into() }
        };
        self.read_us.fetch_add(started.elapsed().as_micros() as u64, Ordering::Relaxed);
        let counter = match piece {
            Piece::Panel { .. } => &self.trunk_bytes,
            Piece::Block { .. } => {
                self.blocks_read.fetch_add(1, Ordering::Relaxed);
                &self.expert_bytes
            }
        };
        counter.fetch_add(len as u64, Ordering::Relaxed);
        Ok(lease)
    }
}

impl Store for Checkpoint {
    fn take(&self, piece: Piece) -> Result<Lease> {
        let Some(slot) = self.kept(piece) else { return self.load(piece, false) };
        let mut held = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = &*held {
            return Ok(lease.clone());
        }
        let lease = self.load(piece, true)?;
        *held = Some(lease.clone());
        Ok(lease)
    }

    fn row(&self, weight: WeightId, row: usize, out: &mut [u8]) -> Result<()> {
        let w = self.manifest.weight(weight);
        let (place, element) = self.index.weights[weight.0 as usize];
        let row_bytes = w.cols() * element.bytes();
        let piece = Piece::Panel { weight, panel: (row / w.panel_rows) as u32 };
        if self.kept(piece).is_some() {
            let lease = self.take(piece)?;
            let at = row % w.panel_rows * row_bytes;
            out.copy_from_slice(&lease.part(0)[at..at + row_bytes]);
            return Ok(());
        }
        let place = Place { offset: place.offset + (row * row_bytes) as u64, ..place };
        self.index.files[place.file as usize].read_exact_at(out, place.offset).map_err(|e| self.fault(piece, place, &e))?;
        self.trunk_bytes.fetch_add(row_bytes as u64, Ordering::Relaxed);
        Ok(())
    }

    fn element(&self, weight: WeightId) -> Element {
        self.index.weights[weight.0 as usize].1
    }

    fn name(&self, piece: Piece, i: usize) -> String {
        match piece {
            Piece::Panel { weight, .. } => self.manifest.weight(weight).name.clone(),
            Piece::Block { layer, expert } => {
                let prefix = self.manifest.layers[layer as usize].blocks.as_ref().map_or("", |b| &b.prefix);
                format!("{prefix}{expert}.{}", self.index.blocks[layer as usize].tensors[i].suffix)
            }
        }
    }

    fn counters(&self) -> Counters {
        Counters {
            trunk_bytes: self.trunk_bytes.load(Ordering::Relaxed),
            expert_bytes: self.expert_bytes.load(Ordering::Relaxed),
            blocks_read: self.blocks_read.load(Ordering::Relaxed),
            read_us: self.read_us.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests;
