//! Does a piece still have the bytes that it had when it was first read?
//!
//! A disk that rots a bit of 1.56 TB makes answers wrong in silence; a CRC32 a piece (82,432 blocks, 330 kB of sums) finds it, at several
//! times the disk's speed. A sum is recorded when a piece is first read and compared later: so it finds rot, not an earlier bad download.
//! It is taken over the piece's tensors in the manifest's order, so it depends neither on where they lie nor on how they are read.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::learned::Learned;

/// What the file's name begins with; the order of the pieces follows.
const FILE: &str = "checksums";
/// What the file begins with; the number is the form's.
const MAGIC: [u8; 8] = *b"nscrc  1";
/// Magic, number of pieces; and the file's own sum at its end.
const FRAME_BYTES: usize = 8 + 8 + 4;
const SAVE_EVERY: Duration = Duration::from_secs(60);

/// A piece has other bytes than when its sum was recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mismatch {
    /// The sum that was recorded.
    pub recorded: u32,
    /// The sum of the bytes that were read now.
    pub found: u32,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "its bytes are not those recorded when this model, here or in a copy, was first read: CRC32 {:08x} now, {:08x} then",
            self.found, self.recorded
        )
    }
}

/// How many pieces were looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Seen for the first time.
    pub recorded: u64,
    /// Had the bytes that they had before.
    pub same: u64,
    /// Had others.
    pub changed: u64,
}

/// Which pieces a model has. A sum is known by a rank, so it is worth something in one order alone.
#[derive(Debug, Clone, Copy)]
pub struct Pieces {
    /// How many there are.
    pub count: u64,
    /// What there is at each rank.
    pub order: blake3::Hash,
}

/// The sums of a model's pieces, known by rank.
pub struct Checksums {
    learned: Learned,
    file: String,
    note: Option<String>,
    state: Mutex<State>,
}

struct State {
    sums: Sums,
    counted: Counted,
    unsaved: bool,
    saved_at: Instant,
}

impl Checksums {
    /// The sums of a model's `pieces`, as far as `learned` has them.
    pub fn open(learned: &Learned, pieces: &Pieces) -> Self {
        let (file, pieces) = (format!("{FILE}-{:.16}", pieces.order.to_hex()), pieces.count);
        let empty = Sums::new(pieces as usize);
        let (sums, note) = match learned.read(&file, empty.read_bytes()) {
            Some(bytes) => match Sums::decode(&bytes, pieces as usize) {
                Some(sums) => (sums, None),
                None => (
                    empty,
                    learned
                        .folder()
                        .map(|folder| format!("{} is damaged or of another form; sums are taken anew", folder.join(&file).display())),
                ),
            },
            None => (empty, None),
        };
        let state = State { sums, counted: Counted::default(), unsaved: false, saved_at: Instant::now() };
        Checksums { learned: learned.clone(), file, note, state: Mutex::new(state) }
    }

    /// One line to be said: the sums that were there are of no use.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }

    /// Compares the bytes of the piece of this rank, `parts` being its tensors in the manifest's order; the first time it records them.
    /// Once a minute what was recorded is saved.
    ///
    /// # Errors
    /// They have changed. [`Checksums::advice`] says what to do.
    pub fn check(&self, rank: u64, parts: &[&[u8]]) -> Result<(), Mismatch> {
        let found = sum(parts);
        let mut state = self.lock();
        match state.sums.get(rank as usize) {
            Some(recorded) if recorded == found => state.counted.same += 1,
            Some(recorded) => {
                state.counted.changed += 1;
                return Err(Mismatch { recorded, found });
            }
            None => {
                state.sums.set(rank as usize, found);
                (state.counted.recorded, state.unsaved) = (state.counted.recorded + 1, true);
            }
        }
        let due = state.unsaved && state.saved_at.elapsed() >= SAVE_EVERY;
        drop(state);
        if due {
            // Tried again in a minute; who ends the work is told if that fails too.
            let _ = self.save();
        }
        Ok(())
    }

    /// Compares like [`Checksums::check`], but records nothing: for bytes that are wrong in themselves.
    ///
    /// # Errors
    /// They have changed.
    pub fn compare(&self, rank: u64, parts: &[&[u8]]) -> Result<(), Mismatch> {
        let mut state = self.lock();
        let Some(recorded) = state.sums.get(rank as usize) else { return Ok(()) };
        drop(state);
        let found = sum(parts);
        state = self.lock();
        if found == recorded {
            state.counted.same += 1;
            return Ok(());
        }
        state.counted.changed += 1;
        Err(Mismatch { recorded, found })
    }

    /// Saves what was recorded since the last time, beside what other processes have.
    ///
    /// # Errors
    /// One line: it cannot be written. The work need not end for that.
    pub fn save(&self) -> Result<(), String> {
        let mut state = self.lock();
        state.saved_at = Instant::now(); // also if it fails: not before another minute
        if !std::mem::take(&mut state.unsaved) {
            return Ok(());
        }
        let ours = state.sums.clone();
        drop(state);
        let saved = self.learned.update(&self.file, ours.read_bytes(), &|old| {
            let theirs = old.and_then(|bytes| Sums::decode(bytes, ours.sums.len()));
            theirs.map_or_else(|| ours.encode(), |theirs| theirs.joined(&ours).encode())
        });
        if saved.is_err() {
            self.lock().unsaved = true;
        }
        saved
    }

    /// How many pieces were looked at.
    pub fn counted(&self) -> Counted {
        self.lock().counted
    }

    /// What a person may do about a [`Mismatch`].
    pub fn advice(&self) -> String {
        let replaced = match self.learned.folder() {
            Some(folder) => format!("if these bytes are the right ones, delete {}", folder.display()),
            None => "if these bytes are the right ones, run again".to_string(),
        };
        format!("the file rotted or was changed: download it again; {replaced}")
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that one thread sums: who waits for a piece waits for its sum too, so all threads take part.
const SUMMED_BYTES: usize = 1 << 20;

fn sum(parts: &[&[u8]]) -> u32 {
    if let [part] = parts
        && part.len() <= SUMMED_BYTES
    {
        return crc32fast::hash(part);
    }
    let chunks: Vec<&[u8]> = parts.iter().flat_map(|part| part.chunks(SUMMED_BYTES)).collect();
    let of = |chunk: &&[u8]| {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(chunk);
        hasher
    };
    let sums: Vec<crc32fast::Hasher> = if chunks.len() > 1 { chunks.par_iter().map(of).collect() } else { chunks.iter().map(of).collect() };
    let mut whole = crc32fast::Hasher::new();
    sums.iter().for_each(|sum| whole.combine(sum));
    whole.finalize()
}

/// Sums by rank; a bit says which are known, since every value may be one.
#[derive(Clone)]
struct Sums {
    sums: Vec<u32>,
    /// [sums / 8], the lowest bit first.
    known: Vec<u8>,
}

impl Sums {
    fn new(pieces: usize) -> Self {
        Sums { sums: vec![0; pieces], known: vec![0; pieces.div_ceil(8)] }
    }

    fn get(&self, rank: usize) -> Option<u32> {
        (self.known[rank / 8] >> (rank % 8) & 1 == 1).then(|| self.sums[rank])
    }

    fn set(&mut self, rank: usize, sum: u32) {
        self.sums[rank] = sum;
        self.known[rank / 8] |= 1 << (rank % 8);
    }

    /// These sums, and those of `other` where these know none: what was recorded first stays.
    fn joined(mut self, other: &Sums) -> Self {
        for rank in 0..self.sums.len() {
            if let (None, Some(sum)) = (self.get(rank), other.get(rank)) {
                self.set(rank, sum);
            }
        }
        self
    }

    fn file_bytes(&self) -> usize {
        FRAME_BYTES + self.known.len() + 4 * self.sums.len()
    }

    /// Bytes to read of a file: one more, by which a longer one shows.
    fn read_bytes(&self) -> u64 {
        self.file_bytes() as u64 + 1
    }

    /// Magic, number of pieces u64, known bits, sums u32, CRC32 of all that; little-endian.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.file_bytes());
        bytes.extend(MAGIC);
        bytes.extend((self.sums.len() as u64).to_le_bytes());
        bytes.extend(&self.known);
        bytes.extend(self.sums.iter().flat_map(|sum| sum.to_le_bytes()));
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// The sums of `pieces` pieces; `None` if the bytes are anything else.
    fn decode(bytes: &[u8], pieces: usize) -> Option<Self> {
        let mut sums = Sums::new(pieces);
        if bytes.len() != sums.file_bytes() {
            return None;
        }
        let (body, own) = bytes.split_last_chunk::<4>()?;
        let (magic, rest) = body.split_at(MAGIC.len());
        let (count, rest) = rest.split_first_chunk::<8>()?;
        let whole = crc32fast::hash(body) == u32::from_le_bytes(*own);
        if !whole || magic != MAGIC || u64::from_le_bytes(*count) != pieces as u64 {
            return None;
        }
        let (known, values) = rest.split_at(sums.known.len());
        sums.known.copy_from_slice(known);
        let (values, _) = values.as_chunks::<4>();
        sums.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = u32::from_le_bytes(*value));
        Some(sums)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(count: u64) -> Pieces {
        Pieces { count, order: blake3::hash(b"one order") }
    }

    fn learned(root: &tempfile::TempDir) -> Learned {
        Learned::open(Some(root.path()), None, "f00d").expect("no file")
    }

    fn path(learned: &Learned) -> std::path::PathBuf {
        learned.folder().expect("made").join(format!("{FILE}-{:.16}", pieces(0).order.to_hex()))
    }

    #[test]
    fn a_piece_is_recorded_once_and_compared_from_then_on() {
        let root = tempfile::tempdir().expect("a folder");
        let first = Checksums::open(&learned(&root), &pieces(9));
        let sum = crc32fast::hash(b"whole");
        first.check(8, &[b"who", b"le"]).expect("unknown");
        first.check(8, &[b"whole"]).expect("however it is cut");
        assert_eq!(first.check(8, &[b"hole"]), Err(Mismatch { recorded: sum, found: crc32fast::hash(b"hole") }));
        first.check(0, &[]).expect("a sum of 0 is one too");
        assert!(first.check(0, &[b"x"]).is_err());
        assert_eq!(first.counted(), Counted { recorded: 2, same: 1, changed: 2 });
        first.save().expect("written");
        let second = Checksums::open(&learned(&root), &pieces(9));
        assert_eq!(second.note(), None);
        second.compare(8, &[b"whole"]).expect("the same");
        assert_eq!(second.compare(8, &[b"holes"]).expect_err("others").recorded, sum);
        second.compare(3, &[b"unknown"]).expect("not known");
        second.check(3, &[b"other"]).expect("and not recorded");
        assert!(second.check(0, &[b"x"]).is_err());
        assert!(second.advice().contains(&root.path().display().to_string()));
    }

    #[test]
    fn what_two_record_at_once_is_joined_and_the_first_stays() {
        let root = tempfile::tempdir().expect("a folder");
        let [a, b] = [(); 2].map(|()| Checksums::open(&learned(&root), &pieces(3)));
        a.check(0, &[b"a"]).expect("unknown");
        a.check(1, &[b"a"]).expect("unknown");
        b.check(1, &[b"b"]).expect("unknown to b");
        b.check(2, &[b"b"]).expect("unknown");
        a.save().expect("written");
        b.save().expect("written");
        let joined = Checksums::open(&learned(&root), &pieces(3));
        [(0, b"a"), (1, b"a"), (2, b"b")].iter().for_each(|(rank, bytes)| joined.check(*rank, &[*bytes]).expect("joined"));
        assert_eq!(joined.counted(), Counted { same: 3, ..Counted::default() });
    }

    #[test]
    fn a_file_that_is_not_these_sums_is_ignored_with_a_line() {
        let root = tempfile::tempdir().expect("a folder");
        let sums = Checksums::open(&learned(&root), &pieces(20));
        (0..20).for_each(|rank| sums.check(rank, &[b"x"]).expect("unknown"));
        sums.save().expect("written");
        let path = path(&learned(&root));
        let good = std::fs::read(&path).expect("there");
        let mut bad = vec![Vec::new(), b"{}".to_vec(), good[..good.len() - 1].to_vec(), vec![0; good.len()], [&good[..], b"x"].concat()];
        bad.extend((0..good.len()).map(|at| {
            let mut bytes = good.clone();
            bytes[at] ^= 1;
            bytes
        }));
        for bytes in bad {
            std::fs::write(&path, &bytes).expect("written");
            let sums = Checksums::open(&learned(&root), &pieces(20));
            assert!(sums.note().is_some_and(|note| note.contains("checksums") && !note.contains('\n')), "{bytes:?}");
            sums.check(5, &[b"y"]).expect("unknown");
        }
        std::fs::write(&path, &good).expect("written");
        assert!(Checksums::open(&learned(&root), &pieces(19)).note().is_some_and(|note| note.contains("another form")));
        Checksums::open(&learned(&root), &pieces(19)).check(5, &[b"y"]).expect("sums of another number of pieces are not these");
        assert!(Checksums::open(&learned(&root), &pieces(20)).check(5, &[b"y"]).is_err());
    }

    #[test]
    fn without_a_folder_sums_last_as_long_as_the_process() {
        let sums = Checksums::open(&Learned::nowhere("a test"), &pieces(2));
        sums.check(1, &[b"x"]).expect("unknown");
        assert!(sums.check(1, &[b"y"]).is_err());
        sums.save().expect("nothing to do");
    }

    #[test]
    fn every_minute_what_was_recorded_is_saved() {
        let root = tempfile::tempdir().expect("a folder");
        let sums = Checksums::open(&learned(&root), &pieces(3));
        sums.check(0, &[b"x"]).expect("unknown");
        assert!(!path(&learned(&root)).exists());
        sums.lock().saved_at = Instant::now().checked_sub(SAVE_EVERY).expect("a clock of over a minute");
        sums.check(1, &[b"x"]).expect("unknown");
        assert!(Checksums::open(&learned(&root), &pieces(3)).check(1, &[b"y"]).is_err());
    }
}
