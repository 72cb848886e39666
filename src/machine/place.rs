//! What can the disk under a folder do?
//!
//! A file system that silently reads through the page cache costs a third of a core and memory that nobody counted, so direct reads are tried,
//! not looked up.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::statvfs;
use serde::Serialize;

use super::drive::{DiskRate, Drive, Grid};
use crate::error::{Error, Kind, Result};
use crate::store::{Catalogue, DirectIo, Disk, Files, Method, PageCache, Piece, Reader, Setup};

/// Below this a shard is read before a rate has settled.
const RATE_BYTES_MIN: u64 = 256 << 20;
/// Bytes of a piece that is read for a rate.
const RATE_PIECE: usize = 16 << 20;

/// A folder, and what it lies on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The folder.
    pub folder: PathBuf,
    /// Name of its file system; "unknown" where the system does not say.
    pub file_system: String,
    /// Bytes that this user may still write.
    pub free_bytes: u64,
    /// Whether reads can go past the page cache, found by reading; None where no file could be read or made.
    pub direct: Option<bool>,
}

/// The file that rates of a checkpoint are measured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Largest {
    /// Its path.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
}

impl Place {
    /// Looks at a folder in which a temporary file may be made.
    ///
    /// # Errors
    /// Refused: it is no folder.
    pub fn work(folder: &Path) -> Result<Place> {
        let probe = tempfile::tempfile_in(folder).and_then(|mut file| file.write_all(&[1; 16_384]).map(|()| file));
        Self::of(folder, probe.ok().and_then(|file| is_direct(file, folder)))
    }

    /// Looks at a checkpoint's folder, in which nothing is written: its largest shard is read from.
    ///
    /// # Errors
    /// Refused: it is no folder.
    pub fn model(folder: &Path) -> Result<(Place, Option<Largest>)> {
        let entries = fs::read_dir(folder).map_err(|e| Error::io(Kind::Refused, "read", folder, &e))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let shards = paths.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
        let sized = shards.filter_map(|path| fs::metadata(&path).ok().map(|about| Largest { bytes: about.len(), path }));
        let largest = sized.max_by_key(|shard| shard.bytes);
        let direct = largest.as_ref().and_then(|shard| is_direct(File::open(&shard.path).ok()?, &shard.path));
        Ok((Self::of(folder, direct)?, largest))
    }

    /// The rate at which a shard of this place is read past the page cache, over two seconds and a half; None where it is too small to say.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn rate(&self, shard: &Largest) -> Result<Option<DiskRate>> {
        if shard.bytes < RATE_BYTES_MIN {
            return Ok(None);
        }
        let open = || File::open(&shard.path).map_err(|e| Error::io(Kind::Refused, "open", &shard.path, &e));
        let count = u32::try_from(shard.bytes / RATE_PIECE as u64).unwrap_or(u32::MAX);
        let grid = Grid { start: 0, tensors: vec![RATE_PIECE], count };
        let drive = Drive::open(open()?, open()?, &shard.path, grid, PageCache::Bypass)?;
        let mut rate = drive.rate(2, Duration::from_millis(1_250), &|_, _| Ok(()))?;
        if !rate.direct && rate.doubt.is_none() {
            // So short a pass through the cache tells little.
            rate = DiskRate { bytes_per_s: None, passes: Vec::new(), doubt: Some("reads go through the page cache here".into()), ..rate };
        }
        Ok(Some(rate))
    }

    fn of(folder: &Path, direct: Option<bool>) -> Result<Place> {
        let fault = |e: std::io::Error| Error::io(Kind::Refused, "look at", folder, &e);
        let whole = folder.canonicalize().map_err(fault)?;
        let room = statvfs(&whole).map_err(|e| fault(e.into()))?;
        Ok(Place {
            file_system: file_system(&whole, &fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()),
            folder: whole,
            free_bytes: room.f_bavail.saturating_mul(room.f_frsize),
            direct,
        })
    }
}

/// Whether reads of `file` go past the page cache.
fn is_direct(file: File, path: &Path) -> Option<bool> {
    let files = Files::new(vec![file], vec![path.to_path_buf()], PageCache::Bypass).ok()?;
    Some(files.direct() == DirectIo::All)
}

/// The name of the file system that the whole path lies on: that of the deepest mount above it, of equal ones the last.
pub fn file_system(whole: &Path, mountinfo: &str) -> String {
    let mut best = (0, "unknown");
    for line in mountinfo.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let (Some(point), Some(kind)) = (before.split(' ').nth(4), after.split(' ').next()) else { continue };
        let point = super::memory::unescape(point);
        let depth = Path::new(&point).components().count();
        if whole.starts_with(&point) && depth >= best.0 {
            best = (depth, kind);
        }
    }
    best.1.to_owned()
}

/// Whether the kernel lets this process use io_uring; if not, why.
///
/// # Errors
/// Why not, in words.
pub fn uring() -> std::result::Result<(), String> {
    struct Nothing;
    impl Catalogue for Nothing {
        fn extents(&self, _: Piece) -> Vec<(crate::store::Place, usize)> {
            Vec::new()
        }
        fn name(&self, _: Piece, _: usize) -> String {
            String::new()
        }
    }
    let path = PathBuf::from("/proc/self/exe");
    let file = File::open(&path).map_err(|e| e.to_string())?;
    let files = Files::new(vec![file], vec![path], PageCache::Use).map_err(|e| e.message)?;
    let setup = Setup { method: Some(Method::Uring), ..Setup::new(1, 1) };
    Reader::open(Arc::new(files), Arc::new(Nothing), &setup).map(drop).map_err(|e| e.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_mount_names_the_file_system() {
        let mounts = "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 0:5 / /mnt/big\\040disk rw shared:1 - xfs /dev/b rw\n3 1 0:6 / /mnt rw - tmpfs t rw\ntorn";
        for (path, name) in [("/home", "ext4"), ("/mnt/big disk/x", "xfs"), ("/mnt/bigger", "tmpfs"), ("/mnt", "tmpfs")] {
            assert_eq!(file_system(Path::new(path), mounts), name, "{path}");
        }
        assert_eq!(file_system(Path::new("/"), ""), "unknown");
    }

    #[test]
    fn a_folder_is_looked_at_and_left_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = Place::work(folder.path()).expect("a folder");
        assert!(place.free_bytes > 0 && place.direct.is_some() && place.file_system != "unknown", "{place:?}");
        let (model, largest) = Place::model(folder.path()).expect("a folder");
        assert_eq!((model.direct, largest), (None, None));
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
        assert!(Place::work(&folder.path().join("absent")).is_err());
    }
}
