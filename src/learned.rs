//! What is learned of a model, kept from job to job: a folder a model, in the user's cache.
//!
//! A model is never written to, and what it takes hours to learn (the sums of 1.56 TB, which experts go together) is worth a few hundred
//! kilobytes. None of it changes an answer, so a folder that cannot be used costs one line and no job. Files are replaced by rename under
//! a lock, so that two jobs at once lose nothing of each other's; their readers check what they read, since a power cut may leave anything.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::{Error, Result};

/// The program's folder in a user's cache.
const PROGRAM: &str = "nightshift";
const LOCK: &str = "lock";
/// How often a lock that another process holds is tried, and how long between.
const TRIES: u32 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// One model's folder, or none.
#[derive(Debug, Clone)]
pub struct Learned {
    folder: Option<PathBuf>,
    note: Option<String>,
}

impl Learned {
    /// The folder of the model that `fingerprint` identifies, in `given`, which a person named, else below `usual`, the user's
    /// cache folder.
    /// Made if it is not there; where it cannot be, nothing is remembered, which [`Learned::note`] says.
    ///
    /// # Errors
    /// Usage: `given` is a file.
    pub fn open(given: Option<&Path>, usual: Option<&Path>, fingerprint: &str) -> Result<Self> {
        let root = match (given, usual) {
            (Some(given), _) if given.exists() && !given.is_dir() => {
                return Err(Error::usage(format!("{} is a file: engine.cache and --cache name a folder", given.display())));
            }
            (Some(given), _) => given.to_path_buf(),
            (None, Some(usual)) => usual.join(PROGRAM),
            (None, None) => return Ok(Learned::nowhere("this user has no cache folder (neither XDG_CACHE_HOME nor HOME names one)")),
        };
        let folder = root.join(fingerprint);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder).and_then(|()| lock_file(&folder));
        Ok(match made {
            Ok(_) => Learned { folder: Some(folder), note: None },
            Err(e) => Learned::nowhere(&format!("cannot write to {}: {e}", folder.display())),
        })
    }

    /// A folder that remembers nothing, and why.
    pub fn nowhere(why: &str) -> Self {
        Learned {
            folder: None,
            note: Some(format!("nothing is remembered of this model: {why}; engine.cache or --cache may name another folder")),
        }
    }

    /// The folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// One line that says why nothing is remembered, if so.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// The first bytes of the file `name`, at most `bytes_max` of them, if it is there. They are to be checked.
    pub fn read(&self, name: &str, bytes_max: u64) -> Option<Vec<u8>> {
        let path = self.folder.as_ref()?.join(name);
        // Opening a pipe would wait for somebody to write.
        let file = fs::metadata(&path).ok()?.is_file().then(|| File::open(&path))?.ok()?;
        let mut bytes = Vec::new();
        file.take(bytes_max).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Replaces the file `name` by what `change` makes of its content (`None` where [`Learned::read`] gives none), while no other process can.
    /// Without a folder nothing happens.
    ///
    /// # Errors
    /// One line: the disk refuses, or another process holds the lock for longer than a second.
    pub fn update(&self, name: &str, bytes_max: u64, change: &dyn Fn(Option<&[u8]>) -> Vec<u8>) -> std::result::Result<(), String> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let fault = |e: io::Error| format!("cannot write {}: {e}", folder.join(name).display());
        let _lock = lock(folder).map_err(fault)?;
        let new = change(self.read(name, bytes_max).as_deref());
        // Not synced: a power cut loses what can be learned again, and readers check.
        let partial = folder.join(format!("{name}.partial"));
        let written = fs::write(&partial, new).and_then(|()| fs::rename(&partial, folder.join(name)));
        written.map_err(|e| {
            let _ = fs::remove_file(&partial); // a full disk wants it back; if it stays, the next update writes over it
            fault(e)
        })
    }
}

fn lock_file(folder: &Path) -> io::Result<File> {
    if fs::metadata(folder.join(LOCK)).is_ok_and(|about| !about.is_file()) {
        return Err(io::Error::other("its lock is no regular file"));
    }
    OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(LOCK))
}

/// Held until it is dropped; the system gives it back if the process dies.
fn lock(folder: &Path) -> io::Result<File> {
    let file = lock_file(folder)?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
            Err(TryLockError::Error(e)) => return Err(e),
        }
    }
    Err(io::Error::new(ErrorKind::WouldBlock, "another process holds its lock"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    const MOST: u64 = 100;

    fn open(root: &Path) -> Learned {
        Learned::open(Some(root), None, "f00d").expect("no file")
    }

    #[test]
    fn what_is_written_is_read_but_no_more_than_was_asked_for() {
        let root = tempfile::tempdir().expect("a folder");
        let learned = open(&root.path().join("deep/er"));
        assert_eq!(learned.folder(), Some(&*root.path().join("deep/er/f00d")));
        assert_eq!((learned.note(), learned.read("sums", MOST)), (None, None));
        learned.update("sums", MOST, &|old| [old.unwrap_or(b"-"), b"1"].concat()).expect("written");
        learned.update("sums", MOST, &|old| [old.unwrap_or(b"-"), b"2"].concat()).expect("written");
        assert_eq!(open(&root.path().join("deep/er")).read("sums", MOST).as_deref(), Some(&b"-12"[..]));
        assert_eq!(learned.read("sums", 2).as_deref(), Some(&b"-1"[..]));
        let names: Vec<_> = fs::read_dir(learned.folder().expect("made")).expect("there").map(|e| e.expect("read").file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
        let other = Learned::open(Some(&root.path().join("deep/er")), None, "cafe").expect("no file");
        assert_eq!(other.read("sums", MOST), None, "another model");
    }

    #[test]
    fn nobody_waits_for_a_pipe_in_a_files_place() {
        let root = tempfile::tempdir().expect("a folder");
        let learned = open(root.path());
        let pipe = |name: &str| {
            let at = learned.folder().expect("made").join(name);
            let _ = fs::remove_file(&at);
            rustix::fs::mknodat(rustix::fs::CWD, &at, rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600), 0).expect("a pipe");
        };
        pipe("sums");
        assert_eq!(learned.read("sums", MOST), None);
        pipe(LOCK);
        assert!(learned.update("sums", MOST, &|_| b"1".to_vec()).expect_err("no lock").contains("no regular file"));
        assert!(open(root.path()).note().is_some());
    }

    #[test]
    fn no_update_is_lost_between_two() {
        let root = tempfile::tempdir().expect("a folder");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let learned = open(root.path());
                    for _ in 0..25 {
                        learned.update("sums", MOST, &|old| [old.unwrap_or(b""), b"x"].concat()).expect("written");
                    }
                });
            }
        });
        assert_eq!(open(root.path()).read("sums", MOST), Some(vec![b'x'; 100]));
    }

    #[test]
    fn a_lock_that_is_held_is_waited_for_briefly() {
        let root = tempfile::tempdir().expect("a folder");
        let learned = open(root.path());
        let held = lock(learned.folder().expect("made")).expect("free");
        let fault = learned.update("sums", MOST, &|_| vec![1]).expect_err("held");
        assert!(fault.contains("another process") && fault.contains("sums"), "{fault}");
        drop(held);
        learned.update("sums", MOST, &|_| vec![1]).expect("free");
    }

    #[test]
    fn where_nothing_can_be_written_nothing_is_remembered() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("file");
        fs::write(&file, "mine").expect("written");
        let refused = Learned::open(Some(&file), None, "f00d").expect_err("a file");
        assert_eq!(refused.kind, Kind::Usage);
        assert!(refused.message.contains("engine.cache"), "{refused}");
        for learned in [
            Learned::open(None, None, "f00d"),
            Learned::open(None, Some(&file), "f00d"),
            Learned::open(Some(&file.join("below")), None, "f00d"),
        ] {
            let learned = learned.expect("goes on without");
            assert!(learned.note().is_some_and(|note| note.contains("nothing is remembered") && !note.contains('\n')));
            assert_eq!(learned.folder(), None);
            learned.update("sums", MOST, &|_| panic!("there is no file to make")).expect("nothing to do");
            assert_eq!(learned.read("sums", MOST), None);
        }
        assert_eq!(fs::read(&file).expect("there"), b"mine");
    }
}
