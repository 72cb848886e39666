//! The job's folder: made once, before work, or refused.
//!
//! Somebody's finished night must never be overwritten, so a folder that holds anything is left alone. It may be a mount of its own, where a rename
//! from elsewhere fails at the very end: so all that is temporary lies in `state/`, on the same file system as `data/`.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Kind, Result};

/// `OUT` with its `data/`, `timings/` and `state/`.
///
/// Until an [`super::Answers`] is made in it, dropping it takes the folders away again: a job that is refused before work leaves no
/// folder that would stand in the way of the mended one.
#[derive(Debug)]
pub struct JobFolder {
    root: PathBuf,
    made_root: bool,
    kept: AtomicBool,
}

impl JobFolder {
    /// Makes the job's folder; `out`, `out/` and `.` inside it are the same.
    ///
    /// # Errors
    /// OtherJob: the folder exists and holds something. Refused: it cannot be made or written to.
    pub fn create(path: &Path) -> Result<Self> {
        if path.as_os_str().is_empty() {
            return Err(Error::usage("output.path is empty: name a folder for the answers"));
        }
        let made_root = !path.exists();
        let refused = |what: &str, path: &Path, e: &std::io::Error| {
            let advice = "choose an output.path where a folder can be made";
            Error::refused(format!("{}; {advice}", Error::io(Kind::Refused, what, path, e)))
        };
        if !made_root && !path.is_dir() {
            return Err(Error::refused(format!("output.path {} is a file: name a folder for the answers", path.display())));
        }
        fs::create_dir_all(path).map_err(|e| refused("create", path, &e))?;
        let root = path.canonicalize().map_err(|e| refused("open", path, &e))?;
        refuse_foreign(&root, path)?;
        let folder = JobFolder { root, made_root, kept: AtomicBool::new(false) };
        for inner in [folder.state(), folder.data(), folder.timings()] {
            fs::create_dir(&inner).map_err(|e| match e.kind() {
                // Another process was faster: the folders are its own now.
                ErrorKind::AlreadyExists => {
                    folder.keep();
                    in_use(path, &inner)
                }
                _ => refused("create", &inner, &e),
            })?;
        }
        sync_folder(&folder.root).map_err(|e| refused("sync", &folder.root, &e))?;
        Ok(folder)
    }

    /// `OUT` itself, absolute.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Finished answers, and nothing else.
    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// Finished timings.
    pub fn timings(&self) -> PathBuf {
        self.root.join("timings")
    }

    /// The journal, the spool and everything unfinished.
    pub fn state(&self) -> PathBuf {
        self.root.join("state")
    }

    /// From here on the folder holds results and stays.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Relaxed);
    }
}

impl Drop for JobFolder {
    fn drop(&mut self) {
        if self.kept.load(Ordering::Relaxed) {
            return;
        }
        // Best effort: what cannot be removed is refused by name at the next start. `data` and `timings` go only while empty.
        let _ = fs::remove_dir_all(self.state());
        let _ = fs::remove_dir(self.data());
        let _ = fs::remove_dir(self.timings());
        if self.made_root {
            let _ = fs::remove_dir(&self.root);
        }
    }
}

/// A folder that holds anything but a fresh file system's `lost+found` is somebody's.
fn refuse_foreign(root: &Path, shown: &Path) -> Result<()> {
    let fault = |e: std::io::Error| Error::io(Kind::Refused, "read", shown, &e);
    for entry in fs::read_dir(root).map_err(fault)? {
        let entry = entry.map_err(fault)?;
        let fresh_mount = entry.file_name() == "lost+found" && entry.file_type().is_ok_and(|kind| kind.is_dir());
        if !fresh_mount {
            return Err(in_use(shown, &entry.path()));
        }
    }
    Ok(())
}

fn in_use(shown: &Path, found: &Path) -> Error {
    let name = found.file_name().unwrap_or(found.as_os_str()).to_string_lossy();
    Error::other_job(format!(
        "the output folder {} is not empty (it holds `{name}`): choose another output.path, or move this folder away",
        shown.display()
    ))
}

/// Makes renames and new names in `folder` outlast a power cut.
pub(super) fn sync_folder(folder: &Path) -> std::io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Writes a small file of `folder` by a temporary name and a rename, so that a reader sees the old bytes or the new.
///
/// # Errors
/// Storage: the disk refuses.
pub(crate) fn write_atomically(folder: &Path, name: &str, bytes: &[u8], durable: bool) -> Result<()> {
    let partial = folder.join(format!("{name}.partial"));
    let fault = |e: std::io::Error| Error::io(Kind::Storage, "write", &partial, &e);
    let mut file = File::create(&partial).map_err(fault)?;
    file.write_all(bytes).map_err(fault)?;
    if durable {
        file.sync_all().map_err(fault)?;
    }
    commit(&partial, &folder.join(name), durable)
}

/// Gives a finished file its name.
///
/// # Errors
/// Storage: the disk refuses.
pub(super) fn commit(partial: &Path, finished: &Path, durable: bool) -> Result<()> {
    let fault = |e: std::io::Error| Error::io(Kind::Storage, "finish", finished, &e);
    fs::rename(partial, finished).map_err(fault)?;
    if durable {
        sync_folder(finished.parent().expect("a file of a job lies in its folder")).map_err(fault)?;
    }
    Ok(())
}
