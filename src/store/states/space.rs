//! A file on a disk that has room for it, or a refusal before any work is done.
//!
//! A disk that fills up in the tenth hour costs ten hours. So all space is taken at the beginning (fallocate), and where a file system
//! cannot do that, what it has free is at least looked at.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, FlockOperation, OFlags, fallocate, flock, statvfs};
use rustix::io::{Errno, retry_on_intr};

use super::table;
use crate::error::{Error, Kind, Result};

/// The file's name in its folder.
const NAME: &str = "states.scratch";

/// Takes the file away when it is dropped.
pub struct Removed(pub PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // Who cannot remove it now will write over it the next time.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Bytes that this user may still write to the disk of `folder`.
///
/// # Errors
/// Refused: there is no such folder.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let about = statvfs(folder).map_err(|e| Error::io(Kind::Refused, "ask for the free space of", folder, &e.into()))?;
    Ok(about.f_bavail.saturating_mul(about.f_frsize))
}

/// Whether a file is one that a process has left that was killed: empty, without a table yet, or with one.
fn is_ours(file: &File) -> std::io::Result<bool> {
    let mut first = [0; table::MAGIC.len()];
    let n = file.read_at(&mut first, 0)?;
    Ok(first[..n].iter().all(|&byte| byte == 0) || first == table::MAGIC)
}

fn foreign(path: &Path) -> Error {
    let advice = "move it away, or choose another folder with engine.scratch";
    Error::refused(format!("{} is there and is no file of states: {advice}", path.display()))
}

/// A new file of `bytes` bytes in `folder`, its space taken. An older one of that name, which a process that was killed has left, goes.
///
/// # Errors
/// Refused: the disk has too little space, the folder cannot be written, or another process has such a file there.
pub fn create(folder: &Path, bytes: u64) -> Result<(File, Removed)> {
    let path = folder.join(NAME);
    let refused = |what: &str, e: &std::io::Error| Error::io(Kind::Refused, what, &path, e);
    if fs::symlink_metadata(&path).is_ok_and(|about| !about.is_file()) {
        return Err(foreign(&path));
    }
    // Never through a link: it may lead to anybody's file.
    let nofollow = OFlags::NOFOLLOW.bits() as i32;
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
    let file = options.open(&path).map_err(|e| refused("create", &e))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let advice = "let it end, or choose another folder with engine.scratch";
        return Err(Error::refused(format!("{} is in use by another process: {advice}", path.display())));
    }
    if !is_ours(&file).map_err(|e| refused("read", &e))? {
        return Err(foreign(&path));
    }
    let removed = Removed(path.clone());
    file.set_len(0).map_err(|e| refused("empty", &e))?;
    let free = free_bytes(folder)?;
    if bytes > free {
        return Err(too_little(folder, bytes, free));
    }
    match retry_on_intr(|| fallocate(&file, FallocateFlags::empty(), 0, bytes.max(1))) {
        Ok(()) => Ok((file, removed)),
        Err(Errno::NOSPC | Errno::DQUOT) => Err(too_little(folder, bytes, free)),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            file.set_len(bytes).map_err(|e| refused("make room for", &e))?;
            Ok((file, removed))
        }
        Err(e) => Err(refused("take space for", &e.into())),
    }
}

fn too_little(folder: &Path, bytes: u64, free: u64) -> Error {
    Error::refused(format!(
        "states of the sequences take {bytes} bytes in {}, where {free} bytes are free: run fewer sequences at a time, choose another \
         folder with engine.scratch, or keep all states in memory with engine.scratch_write_limit = 0",
        folder.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn what_is_somebodys_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, victim) = (folder.path().join(NAME), folder.path().join("victim"));
        fs::write(&victim, "precious").expect("written");
        std::os::unix::fs::symlink(&victim, &path).expect("a link");
        let told = |error: Error| error.message.contains(NAME) && error.message.contains("engine.scratch");
        assert!(create(folder.path(), 4096).map(|_| ()).is_err_and(told));
        fs::remove_file(&path).expect("the link stays");
        fs::write(&path, "precious").expect("written");
        assert!(create(folder.path(), 4096).map(|_| ()).is_err_and(told));
        assert_eq!((fs::read(&path).expect("there"), fs::read(&victim).expect("there")), (b"precious".to_vec(), b"precious".to_vec()));
        fs::write(&path, [0; 9000]).expect("written");
        assert!(create(folder.path(), 4096).is_ok(), "space that was taken and never used");
    }

    #[test]
    fn space_is_taken_before_work_and_the_file_goes_in_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(NAME);
        std::fs::write(&path, b"nsstat 1, left by one that was killed").expect("writes");
        let (file, removed) = create(folder.path(), 1 << 20).expect("there is a megabyte");
        let about = file.metadata().expect("a file");
        assert_eq!((about.len(), about.blocks() * 512 >= 1 << 20), (1 << 20, true));
        let other = create(folder.path(), 1 << 20).map(|_| ()).expect_err("it is in use");
        assert_eq!(other.kind, Kind::Refused);
        assert!(other.message.contains("in use"), "{other}");
        assert!(path.exists(), "one that is refused leaves it");
        drop((file, removed));
        assert!(!path.exists());
    }

    #[test]
    fn a_file_of_its_own_is_nobody_elses_to_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, _removed) = create(folder.path(), 1).expect("there is a byte");
        assert_eq!(file.metadata().expect("a file").permissions().mode() & 0o077, 0);
    }

    #[test]
    fn too_little_space_is_refused_with_both_numbers_and_leaves_nothing() {
        let mut folders = vec![tempfile::tempdir().expect("a folder")];
        folders.extend(tempfile::tempdir_in("/dev/shm"));
        for folder in folders {
            let free = free_bytes(folder.path()).expect("a folder");
            for bytes in [free + (1 << 40), u64::MAX] {
                let error = create(folder.path(), bytes).map(|_| ()).expect_err("no disk has that much");
                assert_eq!(error.kind, Kind::Refused);
                let parts = [&format!("take {bytes} bytes"), &folder.path().display().to_string(), "bytes are free:", "engine.scratch"];
                for part in parts {
                    assert!(error.message.contains(part), "{part}: {error}");
                }
                assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
            }
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = create(Path::new("/nonexistent/folder"), 1).map(|_| ()).expect_err("there is none");
        assert!(error.message.contains("/nonexistent/folder/states.scratch"), "{error}");
        assert!(free_bytes(Path::new("/nonexistent")).is_err());
    }
}
