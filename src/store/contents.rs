//! A checkpoint's pieces as a reader wants them: which there are, where their tensors lie, what those are called.

use std::path::PathBuf;

use super::extras::Extras;
use super::index::{BlockPlaces, Index, Place};
use super::reader::Catalogue;
use super::{Element, Piece};
use crate::model::manifest::{Manifest, WeightId};

/// Index and manifest without the files themselves.
pub struct Contents {
    pub manifest: Manifest,
    /// By weight.
    pub weights: Vec<(Place, Element)>,
    /// By layer.
    pub blocks: Vec<BlockPlaces>,
    /// By file.
    pub paths: Vec<PathBuf>,
    pub extras: Extras,
}

impl Contents {
    /// Takes an index apart; its opened files come back.
    pub fn of(index: Index, manifest: Manifest) -> (Self, Vec<std::fs::File>) {
        let Index { paths, files, weights, blocks, extras, .. } = index;
        (Contents { manifest, weights, blocks, paths, extras }, files)
    }

    /// All pieces by rank: panels in the manifest's order, then blocks layer by layer.
    pub fn pieces(&self) -> impl Iterator<Item = Piece> {
        let panels = (0..)
            .zip(&self.manifest.weights)
            .flat_map(|(id, weight)| (0..weight.panels() as u32).map(move |panel| Piece::Panel { weight: WeightId(id), panel }));
        let blocks = self.manifest.blocks();
        panels.chain(blocks.flat_map(|(layer, b)| (0..b.count as u32).map(move |expert| Piece::Block { layer: layer as u32, expert })))
    }
}

impl Catalogue for Contents {
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        match piece {
            Piece::Panel { weight, panel } => {
                let w = self.manifest.weight(weight);
                let (place, element) = self.weights[weight.0 as usize];
                let (rows, row_bytes) = (w.panel(panel as usize), w.cols() * element.bytes());
                vec![(Place { offset: place.offset + (rows.start * row_bytes) as u64, ..place }, rows.len() * row_bytes)]
            }
            Piece::Block { layer, expert } => {
                let blocks = &self.blocks[layer as usize];
                let n = blocks.tensors.len();
                let places = &blocks.places[expert as usize * n..(expert as usize + 1) * n];
                places.iter().zip(&blocks.tensors).map(|(place, tensor)| (*place, tensor.shape[0] * tensor.shape[1])).collect()
            }
        }
    }

    fn name(&self, piece: Piece, i: usize) -> String {
        match piece {
            Piece::Panel { weight, .. } => self.manifest.weight(weight).name.clone(),
            Piece::Block { layer, expert } => {
                let prefix = self.manifest.layers[layer as usize].blocks.as_ref().map_or("", |b| &b.prefix);
                format!("{prefix}{expert}.{}", self.blocks[layer as usize].tensors[i].suffix)
            }
        }
    }
}
