//! A checkpoint's pieces while a job runs: read ahead of their use, some of them kept.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checkpoint::{Checkpoint, Places};
use super::checksums::Checksums;
use super::disk::{Disk, Files};
use super::reader::{Catalogue, Reader};
use super::{Counters, DirectIo, Element, Keep, Lease, Method, PageCache, Piece, Setup, Store};
use crate::error::{Error, Result};
use crate::model::manifest::WeightId;

/// The weights of an opened checkpoint.
pub struct Weights {
    places: Arc<Places>,
    disk: Arc<dyn Disk>,
    reader: Reader,
    /// One a panel; `None` streams.
    panels: Vec<Option<Slot>>,
    /// The first blocks, those that stay.
    blocks: Vec<Slot>,
    checksums: Checksums,
}

/// A piece that stays in memory once it has been read; locked while it is taken, so that nobody reads it twice.
type Slot = Mutex<Kept>;

#[derive(Default)]
enum Kept {
    #[default]
    Unread,
    Wanted,
    Here(Lease),
}

fn locked(slot: &Slot) -> MutexGuard<'_, Kept> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Weights {
    /// Takes the opened shards over.
    pub(super) fn open(checkpoint: Checkpoint, keep: Keep, setup: &Setup, cache: PageCache, checksums: Checksums) -> Result<Self> {
        let (places, files) = checkpoint.into_places();
        let disk: Arc<dyn Disk> = Arc::new(Files::new(files, places.paths().to_vec(), cache)?);
        let reader = Reader::open(Arc::clone(&disk), Arc::clone(&places) as Arc<dyn Catalogue>, setup)?;
        let weights = &places.manifest.weights;
        let stays = weights.iter().flat_map(|weight| std::iter::repeat_n(weight.whole, weight.panels())).zip(0..);
        let panels = stays.map(|(whole, rank)| (whole || rank < keep.panels).then(Slot::default)).collect();
        let blocks = std::iter::repeat_with(Slot::default).take(keep.blocks as usize).collect();
        Ok(Weights { places, disk, reader, panels, blocks, checksums })
    }

    /// Which files are read past the page cache.
    pub fn direct(&self) -> DirectIo {
        self.disk.direct()
    }

    /// How reads reach the kernel.
    pub fn method(&self) -> Method {
        self.reader.method()
    }

    /// The sums of all pieces read so far.
    pub fn checksums(&self) -> &Checksums {
        &self.checksums
    }

    /// A piece that was just read, if its bytes are those of earlier times.
    fn fetch(&self, piece: Piece) -> Result<Lease> {
        let lease = self.reader.take(piece)?;
        let parts: Vec<&[u8]> = (0..lease.parts.len()).map(|i| lease.part(i)).collect();
        self.checksums
            .check(self.places.number(piece), &parts)
            .map_err(|mismatch| Error::storage(format!("{}: {mismatch}; {}", self.places.words(piece), self.checksums.advice())))?;
        Ok(lease)
    }

    fn slot(&self, piece: Piece) -> Option<&Slot> {
        let rank = self.places.rank(piece) as usize;
        match piece {
            Piece::Panel { .. } => self.panels[rank].as_ref(),
            Piece::Block { .. } => self.blocks.get(rank),
            Piece::State { .. } => None,
        }
    }
}

impl Store for Weights {
    fn want(&self, turn: u64, pieces: &[Piece]) {
        // Who holds the lock is reading the piece.
        let unread = |piece: &Piece| match self.slot(*piece).map(Mutex::try_lock) {
            None => true,
            Some(Ok(mut kept)) if matches!(*kept, Kept::Unread) => {
                *kept = Kept::Wanted;
                true
            }
            Some(_) => false,
        };
        let wanted: Vec<Piece> = pieces.iter().copied().filter(unread).collect();
        self.reader.want(turn, &wanted);
    }

    fn ready(&self, piece: Piece) -> bool {
        let here = self.slot(piece).map(Mutex::try_lock);
        matches!(here, Some(Ok(kept)) if matches!(*kept, Kept::Here(_))) || self.reader.ready(piece)
    }

    fn take(&self, piece: Piece) -> Result<Lease> {
        let Some(slot) = self.slot(piece) else { return self.fetch(piece) };
        let mut kept = locked(slot);
        if let Kept::Here(lease) = &*kept {
            return Ok(lease.clone());
        }
        let lease = self.fetch(piece)?.owned();
        *kept = Kept::Here(lease.clone());
        Ok(lease)
    }

    fn forget(&self, pieces: &[Piece]) {
        for &piece in pieces {
            if let Some(mut kept) = self.slot(piece).map(locked)
                && matches!(*kept, Kept::Wanted)
            {
                *kept = Kept::Unread;
            }
        }
        self.reader.forget(pieces);
    }

    fn row(&self, weight: WeightId, row: usize, out: &mut [u8]) -> Result<()> {
        let w = self.places.manifest.weight(weight);
        let piece = Piece::Panel { weight, panel: (row / w.panel_rows) as u32 };
        if self.panels[self.places.rank(piece) as usize].is_some() {
            let lease = self.take(piece)?;
            let at = row % w.panel_rows * out.len();
            out.copy_from_slice(&lease.part(0)[at..at + out.len()]);
            return Ok(());
        }
        let place = self.places.row(weight, row);
        let path = || self.places.path(place.file).display();
        self.reader
            .copy(place, out)
            .map_err(|e| Error::storage(format!("cannot read `{}` from {} at byte {}: {e}", w.name, path(), place.offset)))?;
        if weight != self.places.manifest.embedding {
            return Ok(()); // what is not gathered by rows has sums of whole panels alone
        }
        // A panel's sum needs the whole panel, so a row has its own.
        self.checksums.check(self.places.row_number(row), &[out]).map_err(|mismatch| {
            Error::storage(format!("tensor `{}`, row {row}, in {}: {mismatch}; {}", w.name, path(), self.checksums.advice()))
        })
    }

    fn element(&self, weight: WeightId) -> Element {
        self.places.element(weight)
    }

    fn name(&self, piece: Piece, i: usize) -> String {
        self.places.name(piece, i)
    }

    fn counters(&self) -> Counters {
        let read = self.reader.counters();
        Counters {
            trunk_bytes: read.panel_bytes,
            expert_bytes: read.block_bytes,
            blocks_used: read.blocks_used,
            blocks_wasted: read.blocks_wasted,
            blocks_on_demand: read.blocks_on_demand,
            read_us: read.busy.as_micros() as u64,
            waited_us: read.waited.as_micros() as u64,
        }
    }
}
