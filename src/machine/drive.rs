//! How fast does the disk give pieces, and was it really the disk?
//!
//! A benchmark that reads what was just written measures memory, ten times as fast as the disk, and every time derived from it is wrong by
//! as much. So a rate comes with its proof: before each pass the pages are dropped and some of them are asked for in a way that succeeds
//! only if they lie in the page cache. Where that cannot be shown there is no rate. Reads are those of a job: the same reader, whole
//! blocks, in an order that no disk can guess.

use std::fs::File;
use std::io::IoSliceMut;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise, fstatfs};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};
use crate::store::{Catalogue, DirectIo, Disk, Files, Lease, Method, PageCache, Piece, Place, Reader, Setup};

/// Pages that are asked for before a pass.
const SAMPLES: u64 = 256;
/// As many of them may lie in the page cache: one in fifty changes a rate by less than its spread.
const SAMPLES_CACHED_MAX: u64 = SAMPLES / 50;
/// Pieces that are wanted ahead.
const WANTED: usize = 1024;
/// Memory for pieces that are being read: so many bytes, but some pieces at least and not too many.
const RING_BYTES: u64 = 64 << 20;
const RING_PIECES: (u64, u64) = (6, 64);
/// The kernel's numbers of file systems that are memory: tmpfs, ramfs.
const MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

/// Pieces of one kind that lie back to back in a file.
pub struct Grid {
    /// Where the first one begins.
    pub start: u64,
    /// Bytes of a piece's tensors.
    pub tensors: Vec<usize>,
    /// Pieces.
    pub count: u32,
}

impl Grid {
    /// Bytes of a piece.
    pub fn piece_bytes(&self) -> u64 {
        self.tensors.iter().map(|&n| n as u64).sum()
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.piece_bytes() * u64::from(self.count)
    }
}

impl Catalogue for Grid {
    fn extents(&self, piece: Piece) -> Vec<(Place, usize)> {
        let Piece::Block { expert, .. } = piece else { return Vec::new() };
        let mut offset = self.start + u64::from(expert) * self.piece_bytes();
        let extent = |&len: &usize| {
            let place = Place { file: 0, offset };
            offset += len as u64;
            (place, len)
        };
        self.tensors.iter().map(extent).collect()
    }

    fn name(&self, piece: Piece, i: usize) -> String {
        let Piece::Block { expert, .. } = piece else { return String::new() };
        format!("piece {expert}, tensor {i}")
    }
}

/// What was read in how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pass {
    /// Bytes of pieces.
    pub bytes: u64,
    /// Microseconds, at least 1.
    pub us: u64,
}

impl Pass {
    /// Bytes a second.
    pub fn rate(self) -> u64 {
        (u128::from(self.bytes) * 1_000_000 / u128::from(self.us)) as u64
    }
}

/// A disk's rate and its proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRate {
    /// The middle of the passes; None where it was not shown that the disk was measured.
    pub bytes_per_s: Option<u64>,
    /// Why there is no rate.
    pub doubt: Option<String>,
    /// The passes; none where there is no rate.
    pub passes: Vec<Pass>,
    /// Bytes of a piece.
    pub piece_bytes: u64,
    /// Bytes of the file's pieces.
    pub file_bytes: u64,
    /// Whether all reads went past the page cache.
    pub direct: bool,
    /// Whether reads went by io_uring.
    pub uring: bool,
    /// Of [`DiskRate::pages_sampled`] pages, most that lay in the page cache before a pass; None where the system does not say.
    pub pages_cached: Option<u64>,
    /// Pages asked for before each pass.
    pub pages_sampled: u64,
}

/// A file that is read piece by piece.
pub struct Drive {
    /// The same file, opened once more: asked about, not read.
    asked: File,
    disk: Arc<Files>,
    reader: Reader,
    grid: Arc<Grid>,
    in_memory: bool,
}

impl Drive {
    /// Opens a file twice: `asked` through the page cache, `read` by `cache`.
    ///
    /// # Errors
    /// Refused: it cannot be looked at, or there are no threads.
    pub fn open(asked: File, read: File, path: &Path, grid: Grid, cache: PageCache) -> Result<Self> {
        let disk = Arc::new(Files::new(vec![read], vec![path.to_path_buf()], cache)?);
        let room = Setup::room_bytes(grid.piece_bytes(), grid.tensors.len() as u64);
        let pieces = (RING_BYTES / room.max(1)).clamp(RING_PIECES.0, RING_PIECES.1);
        let grid = Arc::new(grid);
        let reader = Reader::open(Arc::clone(&disk) as _, Arc::clone(&grid) as _, &Setup::new(1, (pieces * room) as usize))?;
        let about = fstatfs(&asked).map_err(|e| Error::io(Kind::Refused, "look at", path, &e.into()))?;
        let in_memory = MEMORY.contains(&(about.f_type as u64));
        let _ = fadvise(&asked, 0, None, Advice::Random); // a page that is asked for must not bring its neighbours
        Ok(Drive { asked, disk, reader, grid, in_memory })
    }

    /// The pieces.
    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    /// Reads pieces in the order of `pass`'s shuffle until all are read or `most` is over. `check` sees each and may refuse it.
    ///
    /// # Errors
    /// Storage: a piece cannot be read, or `check` refuses it.
    pub fn pass(&self, pass: u64, most: Duration, check: &(dyn Fn(u32, &Lease) -> Result<()> + Sync)) -> Result<Pass> {
        let mut order: Vec<u32> = (0..self.grid.count).collect();
        order.sort_by_cached_key(|&i| super::synthetic::mix(pass << 32 | u64::from(i)));
        let pieces: Vec<Piece> = order.iter().map(|&expert| Piece::Block { layer: 0, expert }).collect();
        let started = Instant::now();
        let mut bytes = 0;
        let chunks: Vec<&[Piece]> = pieces.chunks(WANTED).collect();
        for (turn, chunk) in chunks.iter().enumerate() {
            let ahead = if turn == 0 { &chunks[..chunks.len().min(2)] } else { chunks.get(turn + 1..turn + 2).unwrap_or_default() };
            ahead.iter().for_each(|pieces| self.reader.want(0, pieces));
            for &piece in *chunk {
                if started.elapsed() > most {
                    self.reader.forget_all();
                    return Ok(Pass { bytes, us: micros(started) });
                }
                let lease = self.reader.take(piece)?;
                if let Piece::Block { expert, .. } = piece {
                    check(expert, &lease)?;
                }
                bytes += self.grid.piece_bytes();
            }
        }
        Ok(Pass { bytes, us: micros(started) })
    }

    /// Asks the system to drop the file's pages.
    pub fn drop_pages(&self) {
        let _ = fadvise(&self.asked, 0, None, Advice::DontNeed); // advice: what stays is found by `cached`
    }

    /// Of some hundred random pages, how many lie in the page cache; None where the system does not say.
    ///
    /// # Errors
    /// Storage: the file cannot be read.
    pub fn cached(&self, pass: u64) -> Result<Option<u64>> {
        let mut cached = 0;
        for i in 0..SAMPLES {
            let at = self.grid.start + super::synthetic::mix(pass << 32 | i) % self.grid.bytes().max(1);
            match preadv2(&self.asked, &mut [IoSliceMut::new(&mut [0])], at, ReadWriteFlags::NOWAIT) {
                Ok(n) => cached += n as u64,
                Err(Errno::AGAIN) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => return Ok(None),
                Err(e) => return Err(Error::io(Kind::Storage, "read", self.disk.path(0), &e.into())),
            }
        }
        Ok(Some(cached))
    }

    /// The rate over `passes` passes of at most `most` each.
    ///
    /// # Errors
    /// As [`Drive::pass`].
    pub fn rate(&self, passes: u64, most: Duration, check: &(dyn Fn(u32, &Lease) -> Result<()> + Sync)) -> Result<DiskRate> {
        let mut all = Vec::new();
        let mut cached = Some(0);
        // Memory that is read into is touched for the first time, which no pass shall pay for.
        self.pass(u64::MAX >> 32, Duration::from_millis(200).min(most), check)?;
        for pass in 0..passes {
            self.drop_pages();
            cached = self.cached(pass)?.and_then(|now| Some(now.max(cached?)));
            all.push(self.pass(pass, most, check)?);
        }
        let direct = self.disk.direct() == DirectIo::All;
        let doubt = doubt(self.in_memory, direct, cached);
        all.sort_by_key(|pass| pass.rate());
        let middle = all.get(all.len() / 2).map(|pass| pass.rate());
        Ok(DiskRate {
            bytes_per_s: middle.filter(|_| doubt.is_none()),
            passes: if doubt.is_none() { all } else { Vec::new() },
            doubt,
            piece_bytes: self.grid.piece_bytes(),
            file_bytes: self.grid.bytes(),
            direct,
            uring: self.reader.method() == Method::Uring,
            pages_cached: cached,
            pages_sampled: SAMPLES,
        })
    }
}

fn micros(since: Instant) -> u64 {
    (since.elapsed().as_micros() as u64).max(1)
}

/// Why a rate may be memory's and not the disk's.
fn doubt(in_memory: bool, direct: bool, cached: Option<u64>) -> Option<String> {
    match (in_memory, direct, cached) {
        (true, ..) => {
            Some("this file system is memory, so there is no disk to measure; name a folder on the disk that will hold the model".into())
        }
        (_, _, Some(n)) if n > SAMPLES_CACHED_MAX => {
            Some(format!("{n} of {SAMPLES} pages lay in memory before they were read, and the system did not drop them"))
        }
        (_, false, None) => Some("reads go through the page cache here, and the system does not say what lies in it".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(folder: &Path, cache: PageCache) -> Drive {
        let path = folder.join("pieces");
        let bytes: Vec<u8> = (0..64 * 9_000 + 1_000).map(|i| (i / 9_000) as u8).collect();
        std::fs::write(&path, bytes).expect("written");
        let open = || File::open(&path).expect("opens");
        open().sync_all().expect("synced");
        Drive::open(open(), open(), &path, Grid { start: 1_000, tensors: vec![8_000, 1_000], count: 64 }, cache).expect("opens")
    }

    /// A piece's last byte, which is in its tensor 1, tells which it is.
    fn check(piece: u32, lease: &Lease) -> Result<()> {
        let last = *lease.part(1).last().expect("a tensor");
        if u32::from(last) == (999 + (piece + 1) * 9_000) / 9_000 { Ok(()) } else { Err(Error::storage(format!("{piece}: {last}"))) }
    }

    #[test]
    fn every_piece_is_read_once_in_another_order_each_pass() {
        let folder = tempfile::tempdir().expect("a folder");
        let drive = drive(folder.path(), PageCache::Bypass);
        let mut seen = Vec::new();
        for pass in 0..2 {
            let order = std::sync::Mutex::new(Vec::new());
            let read = drive.pass(pass, Duration::MAX, &|piece, lease| {
                order.lock().expect("alone").push(piece);
                check(piece, lease)
            });
            assert_eq!(read.expect("reads").bytes, 64 * 9_000);
            seen.push(order.into_inner().expect("alone"));
        }
        assert_ne!(seen[0], seen[1]);
        seen.iter_mut().for_each(|order| order.sort_unstable());
        assert!(seen.iter().all(|order| order.iter().copied().eq(0..64)));
    }

    #[test]
    fn a_pass_ends_when_its_time_is_over_and_the_next_one_is_whole() {
        let folder = tempfile::tempdir().expect("a folder");
        let drive = drive(folder.path(), PageCache::Bypass);
        assert!(drive.pass(0, Duration::ZERO, &check).expect("reads").bytes < 64 * 9_000);
        assert_eq!(drive.pass(1, Duration::MAX, &check).expect("reads").bytes, 64 * 9_000);
    }

    #[test]
    fn what_lies_in_memory_has_no_rate() {
        let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
        let rate = drive(folder.path(), PageCache::Bypass).rate(2, Duration::MAX, &check).expect("reads");
        assert!(rate.bytes_per_s.is_none() && rate.passes.is_empty() && rate.doubt.is_some(), "{rate:?}");
    }

    #[test]
    fn a_rate_needs_proof() {
        assert_eq!(doubt(false, true, Some(0)), None);
        assert_eq!(doubt(false, true, None), None);
        assert_eq!(doubt(false, false, Some(SAMPLES_CACHED_MAX)), None);
        for (in_memory, direct, cached) in
            [(true, true, Some(0)), (false, true, Some(200)), (false, false, Some(200)), (false, false, None)]
        {
            assert!(doubt(in_memory, direct, cached).is_some());
        }
        assert_eq!(Pass { bytes: 3_000_000, us: 2_000_000 }.rate(), 1_500_000);
    }
}
