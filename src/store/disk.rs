//! The one place where files are read and scratch is written, so the one place where a test makes a disk fail.
//!
//! Reads go past the page cache (O_DIRECT): through it a cold read costs a third to two thirds of a core and its pages are charged to the
//! job's memory; past it 3 to 8 percent and nothing. Whether a file system really can is asked by reading from it, since wrong
//! alignments and silent refusals are the common way to have it off without knowing. Where it cannot, pages are dropped once read.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};

use super::memory::{Memory, PAGE};
use crate::error::{Error, Kind, Result};

/// Sectors that disks have.
const SECTORS: [usize; 2] = [512, 4096];

/// Files that are read, and one that is written. A test's fake fails as it likes.
pub trait Disk: Send + Sync {
    /// Reads some bytes at `offset` of a file; fewer than asked for at the file's end, and elsewhere if the system likes. Offset, length
    /// and address are multiples of the file's alignment.
    ///
    /// # Errors
    /// The system's.
    fn read_at(&self, file: u32, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// Writes some bytes at `offset` of a file that was opened for it; fewer than given if the system likes. Offset, length and address
    /// are multiples of the file's alignment.
    ///
    /// # Errors
    /// The system's.
    fn write_at(&self, file: u32, offset: u64, bytes: &[u8]) -> io::Result<usize>;

    /// What offsets, lengths and addresses of reads and writes of a file are multiples of: a power of two, at most 4,096.
    fn alignment(&self, file: u32) -> usize;

    /// The number of devices; each is read by itself, so that two are read from at once.
    fn devices(&self) -> usize;

    /// The device that a file lies on.
    fn device(&self, file: u32) -> usize;

    /// A file's path, for messages.
    fn path(&self, file: u32) -> &Path;

    /// Says that bytes were read or written and need not be kept by the system.
    fn done_with(&self, file: u32, offset: u64, bytes: usize);

    /// Says that an aligned read or write was called invalid. True if the next try is another kind of it.
    fn refused(&self, file: u32) -> bool;

    /// The descriptor, if reads of the file may be handed to the kernel without `read_at`.
    fn descriptor(&self, file: u32) -> Option<BorrowedFd<'_>>;

    /// Which files are read past the page cache.
    fn direct(&self) -> DirectIo;
}

/// Whether reads go through the system's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCache {
    /// Past it, where the file system can.
    Bypass,
    /// Through it; pages are dropped once they are read.
    Use,
}

/// Which files are read past the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DirectIo {
    /// All.
    All,
    /// Some: their file systems differ.
    Some,
    /// None.
    None,
}

struct Opened {
    file: File,
    path: PathBuf,
    device: usize,
    alignment: usize,
    direct: AtomicBool,
}

/// Opened files: a checkpoint's, or one of scratch.
pub struct Files {
    files: Vec<Opened>,
    devices: usize,
}

impl Files {
    /// Takes over opened files, `paths` naming them. From here on their descriptors may refuse reads that are not aligned.
    ///
    /// # Errors
    /// Refused: a file cannot be looked at.
    pub fn new(files: Vec<File>, paths: Vec<PathBuf>, cache: PageCache) -> Result<Self> {
        let mut numbers: Vec<u64> = Vec::new();
        let mut opened = Vec::with_capacity(files.len());
        let mut sizes = Vec::with_capacity(files.len());
        for (file, path) in files.into_iter().zip(paths) {
            let about = file.metadata().map_err(|e| Error::io(Kind::Refused, "look at", &path, &e))?;
            let device = numbers.iter().position(|&n| n == about.dev()).unwrap_or_else(|| {
                numbers.push(about.dev());
                numbers.len() - 1
            });
            sizes.push(about.len());
            opened.push(Opened { file, path, device, alignment: 1, direct: AtomicBool::new(false) });
        }
        let mut files = Files { files: opened, devices: numbers.len() };
        if cache == PageCache::Bypass {
            (0..files.devices).for_each(|device| files.bypass(device, &sizes));
        }
        for one in files.files.iter().filter(|one| !one.direct.load(Ordering::Relaxed)) {
            read_exactly_what_is_asked(&one.file);
        }
        Ok(files)
    }

    /// Turns to direct reads on one device if its largest file bears them.
    fn bypass(&mut self, device: usize, sizes: &[u64]) {
        let on = |one: &Opened| one.device == device;
        let Some(largest) = (0..self.files.len()).filter(|&i| on(&self.files[i])).max_by_key(|&i| sizes[i]) else { return };
        let probe = &self.files[largest].file;
        let Some(alignment) = set_direct(probe, true).ok().and_then(|()| sector(probe, sizes[largest])) else {
            // Without the flag a read is what it was before; should even that fail, reads say so.
            let _ = set_direct(probe, false);
            return;
        };
        for one in self.files.iter_mut().filter(|one| on(one)) {
            one.alignment = alignment;
            *one.direct.get_mut() = set_direct(&one.file, true).is_ok();
        }
    }
}

/// The smallest sector by which a file can be read, found by reading.
fn sector(file: &File, size: u64) -> Option<usize> {
    let mut memory = Memory::zeroed(2 * PAGE);
    SECTORS.into_iter().find(|&sector| {
        // An address and, where the file is long enough, an offset that are multiples of this sector and of no larger one.
        let offset = if size >= 2 * sector as u64 { sector as u64 } else { 0 };
        let expected = (size - offset).min(sector as u64) as usize;
        matches!(file.read_at(&mut memory.bytes_mut()[sector..2 * sector], offset), Ok(n) if n >= expected)
    })
}

fn set_direct(file: &File, direct: bool) -> io::Result<()> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, direct);
    Ok(fcntl_setfl(file, flags)?)
}

/// No reading ahead of what was asked for: nobody would drop those pages. Advice, so a refusal changes nothing.
fn read_exactly_what_is_asked(file: &File) {
    let _ = fadvise(file, 0, None, Advice::Random);
}

impl Disk for Files {
    fn read_at(&self, file: u32, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        self.files[file as usize].file.read_at(out, offset)
    }

    fn write_at(&self, file: u32, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        self.files[file as usize].file.write_at(bytes, offset)
    }

    fn alignment(&self, file: u32) -> usize {
        self.files[file as usize].alignment
    }

    fn devices(&self) -> usize {
        self.devices
    }

    fn device(&self, file: u32) -> usize {
        self.files[file as usize].device
    }

    fn path(&self, file: u32) -> &Path {
        &self.files[file as usize].path
    }

    fn done_with(&self, file: u32, offset: u64, bytes: usize) {
        let one = &self.files[file as usize];
        if !one.direct.load(Ordering::Relaxed) {
            let _ = fadvise(&one.file, offset, NonZeroU64::new(bytes as u64), Advice::DontNeed);
        }
    }

    fn refused(&self, file: u32) -> bool {
        let one = &self.files[file as usize];
        let was_direct = one.direct.swap(false, Ordering::Relaxed);
        if was_direct && set_direct(&one.file, false).is_ok() {
            read_exactly_what_is_asked(&one.file);
        }
        was_direct
    }

    fn descriptor(&self, file: u32) -> Option<BorrowedFd<'_>> {
        Some(self.files[file as usize].file.as_fd())
    }

    fn direct(&self) -> DirectIo {
        match self.files.iter().filter(|one| one.direct.load(Ordering::Relaxed)).count() {
            0 => DirectIo::None,
            n if n == self.files.len() => DirectIo::All,
            _ => DirectIo::Some,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of `len` bytes in `folder`, each byte telling where it is.
    fn file(folder: &Path, len: usize) -> (Vec<File>, Vec<PathBuf>) {
        let path = folder.join("file");
        std::fs::write(&path, (0..len).map(|i| (i / 7) as u8).collect::<Vec<_>>()).expect("writes");
        (vec![File::open(&path).expect("opens")], vec![path])
    }

    fn folders() -> Vec<tempfile::TempDir> {
        let mut folders = vec![tempfile::tempdir().expect("a folder")];
        folders.extend(tempfile::tempdir_in("/dev/shm")); // memory, where direct reads are refused by many systems
        folders
    }

    #[test]
    fn direct_and_buffered_reads_give_the_same_bytes() {
        for folder in folders() {
            for len in [1, 511, 512, 5_000, 20_000] {
                let mut seen = Vec::new();
                for cache in [PageCache::Bypass, PageCache::Use] {
                    let (files, paths) = file(folder.path(), len);
                    let files = Files::new(files, paths, cache).expect("opens");
                    assert!(cache == PageCache::Bypass || files.direct() == DirectIo::None);
                    let mut memory = Memory::zeroed(20_480);
                    let n = files.read_at(0, 0, memory.bytes_mut()).expect("reads");
                    assert_eq!(n, len);
                    files.done_with(0, 0, n);
                    seen.push(memory.bytes()[..n].to_vec());
                }
                assert_eq!(seen[0], seen[1]);
            }
        }
    }

    #[test]
    fn the_alignment_found_is_one_that_reads_bear_at_every_place() {
        for folder in folders() {
            let (files, paths) = file(folder.path(), 50_000);
            let files = Files::new(files, paths, PageCache::Bypass).expect("opens");
            let a = files.alignment(0);
            let mut memory = Memory::zeroed(2 * PAGE);
            for offset in (0..49_152).step_by(a) {
                assert_eq!(files.read_at(0, offset as u64, &mut memory.bytes_mut()[a..2 * a]).expect("reads"), a.min(50_000 - offset));
            }
        }
    }

    #[test]
    fn a_file_that_refuses_direct_reads_later_is_read_through_the_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let (files, paths) = file(folder.path(), 5_000);
        let files = Files::new(files, paths, PageCache::Bypass).expect("opens");
        let was = files.direct();
        assert_eq!(files.refused(0), was == DirectIo::All);
        assert!(!files.refused(0));
        assert_eq!(files.direct(), DirectIo::None);
        assert_eq!(files.read_at(0, 1, &mut [0; 3]).expect("an unaligned read"), 3);
    }

    #[test]
    fn files_are_told_apart_by_device() {
        let all = folders();
        let mut files = Vec::new();
        let mut paths = Vec::new();
        for folder in all.iter().chain(&all) {
            let (f, p) = file(folder.path(), 100);
            files.extend(f);
            paths.extend(p);
        }
        let files = Files::new(files, paths, PageCache::Bypass).expect("opens");
        let device = |folder: &tempfile::TempDir| folder.path().metadata().expect("a folder").dev();
        assert_eq!(files.devices(), all.iter().map(device).collect::<std::collections::BTreeSet<_>>().len());
        assert_eq!(files.device(0), files.device(all.len() as u32));
    }
}
