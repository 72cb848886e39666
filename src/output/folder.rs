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
        // `out/` and `out/.` name a folder that does not exist yet, too.
        let path = &path.components().collect::<PathBuf>();
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

/// Writes a small file of `folder` by a temporary name and a rename: a reader sees the old bytes or the new, and a power cut may lose the new.
///
/// # Errors
/// Storage: the disk refuses.
pub(crate) fn replace(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let partial = partial_of(folder, name);
    fs::write(&partial, bytes).map_err(|e| Error::io(Kind::Storage, "write", &partial, &e))?;
    rename(&partial, &folder.join(name))
}

/// As [`replace`], and a power cut loses nothing.
///
/// # Errors
/// Storage: the disk refuses.
pub(super) fn replace_durably(folder: &Path, name: &str, bytes: &[u8]) -> Result<()> {
    let partial = partial_of(folder, name);
    let fault = |e: std::io::Error| Error::io(Kind::Storage, "write", &partial, &e);
    let mut file = File::create(&partial).map_err(fault)?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(fault)?;
    commit(&partial, &folder.join(name))
}

/// Gives a finished and synced file its name, for good.
///
/// # Errors
/// Storage: the disk refuses.
pub(super) fn commit(partial: &Path, finished: &Path) -> Result<()> {
    rename(partial, finished)?;
    let folder = finished.parent().expect("a file of a job lies in its folder");
    sync_folder(folder).map_err(|e| Error::io(Kind::Storage, "sync", folder, &e))
}

fn partial_of(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.partial"))
}

fn rename(partial: &Path, finished: &Path) -> Result<()> {
    fs::rename(partial, finished).map_err(|e| Error::io(Kind::Storage, "finish", finished, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outer() -> tempfile::TempDir {
        tempfile::tempdir().expect("a folder")
    }

    #[test]
    fn a_path_and_its_slash_are_one_folder() {
        let outer = outer();
        let made = |path: &str| JobFolder::create(Path::new(path)).map(|folder| folder.root().to_path_buf());
        let plain = outer.path().join("out").display().to_string();
        let expected = outer.path().canonicalize().expect("it exists").join("out");
        for path in [plain.clone(), format!("{plain}/"), format!("{plain}/.")] {
            assert_eq!(made(&path).expect("made"), expected, "{path}");
        }
    }

    #[test]
    fn a_folder_in_use_is_left_alone() {
        let outer = outer();
        fs::write(outer.path().join("mine.txt"), "x").expect("written");
        let error = JobFolder::create(outer.path()).expect_err("in use");
        assert_eq!(error.kind, Kind::OtherJob);
        assert!(error.message.contains("mine.txt") && error.message.contains("another output.path"), "{error}");
        assert_eq!(fs::read_dir(outer.path()).expect("read").count(), 1);
    }

    #[test]
    fn a_second_job_finds_the_first() {
        let outer = outer();
        let first = JobFolder::create(outer.path()).expect("made");
        assert_eq!(JobFolder::create(outer.path()).expect_err("in use").kind, Kind::OtherJob);
        assert!(first.state().is_dir(), "the second took nothing away");
    }

    #[test]
    fn a_fresh_mount_is_empty() {
        let outer = outer();
        fs::create_dir(outer.path().join("lost+found")).expect("made");
        let folder = JobFolder::create(outer.path()).expect("as good as empty");
        drop(folder);
        let left: Vec<_> = fs::read_dir(outer.path()).expect("read").map(|entry| entry.expect("an entry").file_name()).collect();
        assert_eq!(left, ["lost+found"]);
        fs::remove_dir(outer.path().join("lost+found")).expect("empty");
        fs::write(outer.path().join("lost+found"), "a file of somebody's").expect("written");
        assert_eq!(JobFolder::create(outer.path()).expect_err("in use").kind, Kind::OtherJob);
    }

    #[test]
    fn what_cannot_be_a_folder_is_refused() {
        let outer = outer();
        let file = outer.path().join("file");
        fs::write(&file, "x").expect("written");
        for path in [file.clone(), file.join("out")] {
            let error = JobFolder::create(&path).expect_err("no folder");
            assert_eq!(error.kind, Kind::Refused, "{error}");
            assert!(error.message.contains(&path.display().to_string()), "{error}");
        }
        assert_eq!(JobFolder::create(Path::new("")).expect_err("no path").kind, Kind::Usage);
        // Where even the superuser may not make a folder.
        let error = JobFolder::create(Path::new("/proc/out")).expect_err("no folder there");
        assert_eq!(error.kind, Kind::Refused, "{error}");
    }

    #[test]
    fn a_refused_job_leaves_nothing_in_the_way() {
        let outer = outer();
        let path = outer.path().join("deep/out");
        let folder = JobFolder::create(&path).expect("made");
        fs::write(folder.state().join("requests.spool"), "half").expect("written");
        drop(folder);
        assert!(!path.exists());
        let again = JobFolder::create(&path).expect("nothing in the way");
        again.keep();
        drop(again);
        assert!(path.join("data").is_dir(), "a job that began keeps its folder");
    }

    #[test]
    fn a_small_file_is_old_or_new() {
        let outer = outer();
        replace_durably(outer.path(), "a.json", b"one").expect("written");
        replace(outer.path(), "a.json", b"two").expect("written");
        assert_eq!(fs::read(outer.path().join("a.json")).expect("read"), b"two");
        assert_eq!(fs::read_dir(outer.path()).expect("read").count(), 1);
        fs::create_dir(outer.path().join("b.json")).expect("in the way");
        assert_eq!(replace_durably(outer.path(), "b.json", b"x").expect_err("in the way").kind, Kind::Storage);
    }
}
