//! One read on its way: what is left of it after less came than was asked for, and what to say when nothing comes.
//!
//! A system may return less than was asked for, be interrupted, or fail once and not again; a shard may have been cut short since its
//! header was read. Reading on is the answer to the first three, once for an error; the last one is told with file, byte and tensor.

use std::collections::BTreeMap;
use std::io;

use super::super::Piece;
use super::super::disk::Disk;
use super::super::memory::Target;
use super::Catalogue;
use super::layout::Run;
use crate::error::Error;

/// When a piece was wanted for: its turn, and a number that no other want has.
pub type Key = (u64, u64);

/// A read's place in a device's queue: 0 where the piece has been asked for, else 1; its piece; which of the piece's reads.
pub type Spot = (u8, Key, u32);

/// Tries of a read before the piece fails.
const TRIES: u8 = 2;

/// One read to be made.
pub struct Read {
    pub spot: Spot,
    /// `at` counts from the piece's beginning.
    pub run: Run,
    pub target: Target,
    pub tries: u8,
}

/// The reads of one piece, out of the queue.
pub fn take_out(reads: &mut BTreeMap<Spot, Read>, key: Key) -> Vec<(Spot, Read)> {
    let mut out = Vec::new();
    for class in [0, 1] {
        let spots: Vec<Spot> = reads.range((class, key, 0)..=(class, key, u32::MAX)).map(|(&spot, _)| spot).collect();
        out.extend(spots.into_iter().filter_map(|spot| reads.remove_entry(&spot)));
    }
    out
}

impl Read {
    /// A read that stands in no queue.
    pub fn alone(run: Run, memory: &mut [u8]) -> Self {
        Read { spot: (0, (0, 0), 0), run, target: Target::of(memory), tries: 0 }
    }

    /// What is left to be read after less came than is needed; an error if this was the last try.
    pub fn goes_on(&mut self, result: io::Result<usize>, disk: &dyn Disk) -> io::Result<()> {
        let cause = match result {
            Ok(n) => {
                // A direct read goes on at a multiple of the alignment, even if a file ends elsewhere.
                let came = n - n % self.run.align;
                if came > 0 {
                    let run = &mut self.run;
                    (run.offset, run.at) = (run.offset + came as u64, run.at + came);
                    (run.need, run.len) = (run.need - came, run.len - came);
                    self.target = self.target.after(came);
                    self.tries = 0;
                    return Ok(());
                }
                let end = self.run.offset + n as u64;
                io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    format!("the file ends at or before byte {end}, so it has shrunk since the job began"),
                )
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::InvalidInput && disk.refused(self.run.file) => return Ok(()),
            Err(e) => e,
        };
        self.tries += 1;
        if self.tries < TRIES { Ok(()) } else { Err(cause) }
    }
}

/// The error that names the tensor whose bytes could not be read.
pub fn fault(disk: &dyn Disk, catalogue: &dyn Catalogue, piece: Piece, run: &Run, cause: &io::Error) -> Error {
    let extents = catalogue.extents(piece);
    let behind = |&i: &usize| extents[i].0.file == run.file && extents[i].0.offset + extents[i].1 as u64 > run.offset;
    let tensor = (0..extents.len()).filter(behind).min_by_key(|&i| extents[i].0.offset).unwrap_or(0);
    let (name, path) = (catalogue.name(piece, tensor), disk.path(run.file).display());
    Error::storage(format!("cannot read `{name}` from {path} at byte {}: {cause}", run.offset.max(extents[tensor].0.offset)))
}
