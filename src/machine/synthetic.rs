//! Blocks of a model that nobody has downloaded: random bytes of the real sizes, in a file that cannot stay behind.
//!
//! A few GB are enough to know what 1.56 TB would do, if nothing on the way can cheat: each byte is random, so no file system can store
//! two blocks as one or pack them, and each block's first word tells which it is, so that a read that brings something else is seen. The file has no
//! name from the beginning, so whatever ends this process gives its room back.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rayon::prelude::*;

use super::drive::{Drive, Grid};
use super::place::Place;
use crate::error::{Error, Kind, Result};
use crate::store::{Lease, PageCache};
use crate::units::show_bytes;

/// Where the first block begins: no multiple of a sector, as behind a real header.
const START: u64 = 100_008;
/// Bytes that are made before they are written.
const PIECE_BYTES: u64 = 64 << 20;
/// Room that stays free on the disk.
const SPARE_BYTES: u64 = 256 << 20;
/// Scales of MXFP4 from 2^-15 to 2^0: valid, and none that is slow.
const SCALES: (u8, u8) = (112, 15);

/// What a stored tensor of a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// Any byte is valid.
    Codes,
    /// Biased exponents.
    Scales,
}

/// One block's tensors: bytes, and what is in them.
pub type Tensors = [(usize, Fill)];

/// Sixty-four random bits for each counter: the finaliser of SplitMix64.
#[inline]
pub fn mix(counter: u64) -> u64 {
    let x = counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The word that block `number` begins with.
fn stamp(number: u32) -> u64 {
    mix(u64::from(number) << 32)
}

/// Fills block `number`: `out` is all its tensors, back to back.
pub fn fill(number: u32, tensors: &Tensors, out: &mut [u8]) {
    let mut rest = out;
    let mut counter = u64::from(number) << 32;
    for &(bytes, kind) in tensors {
        let (tensor, behind) = rest.split_at_mut(bytes);
        for word in tensor.chunks_mut(8) {
            let mut random = mix(counter).to_le_bytes();
            if kind == Fill::Scales {
                random = random.map(|byte| SCALES.0 + byte % (SCALES.1 + 1));
            }
            word.copy_from_slice(&random[..word.len()]);
            counter += 1;
        }
        rest = behind;
    }
}

/// Whether a lease begins as block `number` does.
///
/// # Errors
/// Storage: it is another block, or none.
pub fn check(number: u32, lease: &Lease) -> Result<()> {
    let first = lease.part(0);
    let expected = stamp(number).to_le_bytes();
    let n = first.len().min(expected.len());
    if first[..n] == expected[..n] {
        return Ok(());
    }
    Err(Error::storage(format!(
        "block {number} of the scratch file came back changed: this disk, or the way to it, does not keep what is written"
    )))
}

/// Writes about `bytes` bytes of blocks into `folder` and opens them for reading. Their first tensor must hold codes.
///
/// # Errors
/// Refused: the folder is none, or has too little room. Storage: writing fails.
pub fn write(folder: &Path, tensors: &Tensors, bytes: u64) -> Result<Drive> {
    let place = Place::work(folder)?;
    let piece_bytes: u64 = tensors.iter().map(|t| t.0 as u64).sum();
    let count = u32::try_from(bytes.div_ceil(piece_bytes.max(1)).max(8)).map_err(|_| Error::refused("so many blocks have no numbers"))?;
    let grid = Grid { start: START, tensors: tensors.iter().map(|t| t.0).collect(), count };
    let needed = grid.bytes().saturating_add(START + SPARE_BYTES);
    if needed > place.free_bytes {
        return Err(Error::refused(format!(
            "{} has {} free, and {} are needed for a while; free some, or name another folder by --scratch",
            place.folder.display(),
            show_bytes(place.free_bytes),
            show_bytes(needed)
        )));
    }
    let fault = |e: std::io::Error| Error::io(Kind::Storage, "write a scratch file in", folder, &e);
    let mut file = tempfile::tempfile_in(folder).map_err(fault)?;
    file.write_all(&vec![0; START as usize]).map_err(fault)?;
    let step = (PIECE_BYTES / piece_bytes.max(1)).clamp(1, u64::from(count)) as usize;
    let mut memory = vec![0; step * piece_bytes as usize];
    for first in (0..count).step_by(step) {
        let here = step.min((count - first) as usize) * piece_bytes as usize;
        memory[..here].par_chunks_mut(piece_bytes as usize).enumerate().for_each(|(i, out)| fill(first + i as u32, tensors, out));
        file.write_all(&memory[..here]).map_err(fault)?;
    }
    file.sync_all().map_err(fault)?;
    let path = folder.join("(scratch file without a name)");
    Drive::open(again(&file)?, again(&file)?, &path, grid, PageCache::Bypass)
}

/// Opens a file without a name once more, with flags of its own.
fn again(file: &File) -> Result<File> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    File::open(&path).map_err(|e| Error::io(Kind::Refused, "open the scratch file again by", &path, &e))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const TENSORS: [(usize, Fill); 2] = [(40_000, Fill::Codes), (2_500, Fill::Scales)];

    #[test]
    fn blocks_come_back_as_written_and_nothing_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let drive = write(folder.path(), &TENSORS, 1_000_000).expect("written");
        assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "it has no name even now");
        let whole = |number: u32, lease: &Lease| {
            let mut expected = vec![0; 42_500];
            fill(number, &TENSORS, &mut expected);
            assert!(lease.part(0) == &expected[..40_000] && lease.part(1) == &expected[40_000..]);
            assert!(lease.part(1).iter().all(|scale| (112..128).contains(scale)));
            check(number, lease)
        };
        assert_eq!(drive.pass(0, Duration::MAX, &whole).expect("reads").bytes, 24 * 42_500);
        let other = |number: u32, lease: &Lease| check(number + 1, lease);
        assert!(drive.pass(0, Duration::MAX, &other).expect_err("another block").message.contains("changed"));
    }

    #[test]
    fn too_little_room_is_refused_before_anything_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let Err(fault) = write(folder.path(), &TENSORS, 1 << 46) else { panic!("no disk has as much") };
        assert!(fault.kind == Kind::Refused && fault.message.contains("--scratch") && fault.message.contains("free"), "{fault}");
    }
}
