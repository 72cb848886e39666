//! What a checkpoint is before any of it is read: its pieces by place, its size, its identity.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::extras::Extras;
use super::index::{Index, Place};
use super::reader::Catalogue;
use super::{Checksums, Element, Keep, PageCache, Piece, Pieces, Setup, Weights};
use crate::error::{Error, Result};
use crate::model::manifest::{Manifest, WeightId};

/// Bytes of a shard that go into the fingerprint, at each of so many places.
const SAMPLE_BYTES: usize = 4096;
const SAMPLES: u64 = 16;
/// What a weight takes in manifest and index: its name and shape, its place.
const WEIGHT_BYTES: usize = 160;
/// What a piece here is not.
const NO_STATES: &str = "a checkpoint has weights alone";

/// Bytes that the index of a model's checkpoint takes.
pub fn index_bytes(manifest: &Manifest) -> u64 {
    let places: usize = manifest.blocks().map(|(_, blocks)| blocks.count * blocks.tensors().len()).sum();
    (places * size_of::<Place>() + manifest.weights.len() * WEIGHT_BYTES) as u64
}

/// An opened checkpoint.
pub struct Checkpoint {
    places: Arc<Places>,
    files: Vec<File>,
}

/// Where each piece lies.
pub struct Places {
    index: Index,
    pub manifest: Manifest,
    /// Rank of each weight's first panel, and behind the last one the number of panels.
    panel_base: Vec<u64>,
    /// Rank of each layer's first block, and behind the last one the number of blocks.
    block_base: Vec<u64>,
}

impl Checkpoint {
    /// Indexes the checkpoint in `folder`; nothing but headers is read.
    ///
    /// # Errors
    /// Refused: a shard or tensor is missing, damaged, of another shape or type; it is named.
    pub fn open(folder: &Path, manifest: &Manifest) -> Result<Self> {
        let (index, files) = Index::build(folder, manifest)?;
        let bases = |counts: &mut dyn Iterator<Item = u64>| {
            let mut base = vec![0];
            counts.for_each(|n| base.push(base.last().expect("begins with 0") + n));
            base
        };
        let places = Places {
            panel_base: bases(&mut manifest.weights.iter().map(|w| w.panels() as u64)),
            block_base: bases(&mut manifest.layers.iter().map(|l| l.blocks.as_ref().map_or(0, |b| b.count as u64))),
            index,
            manifest: manifest.clone(),
        };
        Ok(Checkpoint { places: Arc::new(places), files })
    }

    /// All that has a sum of its own: panels, blocks and rows of the embedding, in this order.
    pub fn pieces(&self) -> Pieces {
        let manifest = &self.places.manifest;
        let mut order = blake3::Hasher::new();
        for weight in &manifest.weights {
            order.update(format!("{} {:?} {}\n", weight.name, weight.shape, weight.panel_rows).as_bytes());
        }
        for (_, blocks) in manifest.blocks() {
            order.update(format!("{} {} {:?}\n", blocks.prefix, blocks.count, blocks.tensors()).as_bytes());
        }
        order.update(format!("{} {}\n", manifest.embedding.0, manifest.vocab).as_bytes());
        Pieces { count: self.places.row_number(manifest.vocab), order: order.finalize() }
    }

    /// Bytes of each weight, in the manifest's order.
    pub fn weight_bytes(&self) -> impl Iterator<Item = u64> {
        let Places { index, manifest, .. } = &*self.places;
        let elements = index.weights.iter().map(|w| w.1.bytes() as u64);
        manifest.weights.iter().zip(elements).map(|(w, bytes)| (w.rows() * w.cols()) as u64 * bytes)
    }

    /// Identity of the weights: all headers, and samples of every shard.
    ///
    /// # Errors
    /// Storage: a shard cannot be read.
    pub fn fingerprint(&self) -> Result<blake3::Hash> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.places.index.headers.as_bytes());
        for (file, path) in self.files.iter().zip(&self.places.index.paths) {
            let fault = |e: std::io::Error| Error::storage(format!("{}: {e}", path.display()));
            let size = file.metadata().map_err(fault)?.len();
            let mut sample = [0u8; SAMPLE_BYTES];
            let last = size.saturating_sub(SAMPLE_BYTES as u64);
            for i in 0..SAMPLES {
                let n = SAMPLE_BYTES.min(size as usize);
                file.read_exact_at(&mut sample[..n], last / (SAMPLES - 1) * i).map_err(fault)?;
                hasher.update(&sample[..n]);
            }
            hasher.update(&size.to_le_bytes());
        }
        Ok(hasher.finalize())
    }

    /// What was learned by indexing, and the opened shards.
    pub(super) fn into_places(self) -> (Arc<Places>, Vec<File>) {
        (self.places, self.files)
    }

    /// Ready to be read; some pieces stay in memory once they have been, and each is compared with its sum.
    ///
    /// # Errors
    /// Refused: the system gives no threads, or a file cannot be looked at.
    pub fn read(self, keep: Keep, setup: &Setup, cache: PageCache, checksums: Checksums) -> Result<Weights> {
        Weights::open(self, keep, setup, cache, checksums)
    }
}

impl Places {
    /// A panel's number among all panels, a block's among all blocks.
    pub fn rank(&self, piece: Piece) -> u64 {
        match piece {
            Piece::Panel { weight, panel } => self.panel_base[weight.0 as usize] + u64::from(panel),
            Piece::Block { layer, expert } => self.block_base[layer as usize] + u64::from(expert),
            Piece::State { .. } => unreachable!("{NO_STATES}"),
        }
    }

    /// All pieces: panels in the manifest's order, then blocks layer by layer.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let panels = (0..)
            .zip(&self.manifest.weights)
            .flat_map(|(id, weight)| (0..weight.panels() as u32).map(move |panel| Piece::Panel { weight: WeightId(id), panel }));
        let blocks = self.manifest.blocks();
        panels.chain(blocks.flat_map(|(layer, b)| (0..b.count as u32).map(move |expert| Piece::Block { layer: layer as u32, expert })))
    }

    /// A piece's number among all of them, in that order.
    pub fn number(&self, piece: Piece) -> u64 {
        match piece {
            Piece::Panel { .. } | Piece::State { .. } => self.rank(piece),
            Piece::Block { .. } => self.panel_base.last().expect("begins with 0") + self.rank(piece),
        }
    }

    /// A piece for a person: its tensors and its files.
    pub fn words(&self, piece: Piece) -> String {
        let extents = self.extents(piece);
        let mut paths: Vec<String> = extents.iter().map(|e| self.path(e.0.file).display().to_string()).collect();
        paths.dedup();
        let which = match piece {
            Piece::Panel { weight, panel } => {
                let rows = self.manifest.weight(weight).panel(panel as usize);
                format!("rows {} to {}", rows.start, rows.end - 1)
            }
            Piece::Block { .. } => format!("or one of the {} others of its block", extents.len() - 1),
            Piece::State { .. } => unreachable!("{NO_STATES}"),
        };
        format!("tensor `{}`, {which}, in {}", self.name(piece, 0), paths.join(", "))
    }

    /// The number of a row of the embedding, behind those of all pieces.
    pub fn row_number(&self, row: usize) -> u64 {
        [&self.panel_base, &self.block_base].iter().filter_map(|base| base.last()).sum::<u64>() + row as u64
    }

    /// What lies in the shards beside the model.
    pub fn extras(&self) -> &Extras {
        &self.index.extras
    }

    /// How a weight is stored.
    pub fn element(&self, weight: WeightId) -> Element {
        self.index.weights[weight.0 as usize].1
    }

    /// Where one row of a weight lies.
    pub fn row(&self, weight: WeightId, row: usize) -> Place {
        let (place, element) = self.index.weights[weight.0 as usize];
        let row_bytes = self.manifest.weight(weight).cols() * element.bytes();
        Place { offset: place.offset + (row * row_bytes) as u64, ..place }
    }

    /// A shard's path.
    pub fn path(&self, file: u32) -> &Path {
        &self.index.paths[file as usize]
    }

    /// The shards' paths.
    pub fn paths(&self) -> &[std::path::PathBuf] {
        &self.index.paths
    }
}

impl Catalogue for Places {
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        match piece {
            Piece::Panel { weight, panel } => {
                let w = self.manifest.weight(weight);
                let rows = w.panel(panel as usize);
                vec![(self.row(weight, rows.start), rows.len() * w.cols() * self.element(weight).bytes())]
            }
            Piece::Block { layer, expert } => {
                let blocks = &self.index.blocks[layer as usize];
                let n = blocks.tensors.len();
                let places = &blocks.places[expert as usize * n..(expert as usize + 1) * n];
                places.iter().zip(&blocks.tensors).map(|(p, t)| (*p, t.shape[0] * t.shape[1])).collect()
            }
            Piece::State { .. } => unreachable!("{NO_STATES}"),
        }
    }

    fn name(&self, piece: Piece, i: usize) -> String {
        match piece {
            Piece::Panel { weight, .. } => self.manifest.weight(weight).name.clone(),
            Piece::Block { layer, expert } => {
                let prefix = self.manifest.layers[layer as usize].blocks.as_ref().map_or("", |b| &b.prefix);
                format!("{prefix}{expert}.{}", self.index.blocks[layer as usize].tensors[i].suffix)
            }
            Piece::State { .. } => unreachable!("{NO_STATES}"),
        }
    }
}

#[cfg(test)]
mod tests;
