//! The spool: tokenised requests on disk, so that a job's memory does not grow with its input.
//!
//! Two files of our own in the job's state folder: records back to back, and one 8-byte offset a row. A record is
//! the number of prompt ids (u32), the ids (u32 each, little-endian), and the rest of the request as JSON. Both are read by position;
//! nothing of them stays in memory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::request::Request;

const RECORDS: &str = "requests.spool";
const OFFSETS: &str = "requests.offsets";
const OFFSET_BYTES: u64 = 8;

/// Appends requests in input order.
pub struct SpoolWriter {
    folder: PathBuf,
    records: BufWriter<File>,
    offsets: BufWriter<File>,
    end: u64,
    rows: u64,
}

impl SpoolWriter {
    /// Starts an empty spool in `folder`, which must exist.
    ///
    /// # Errors
    /// Storage: a file cannot be created.
    pub fn create(folder: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            File::create(&path).map(BufWriter::new).map_err(|e| Error::io(Kind::Storage, "create", &path, &e))
        };
        Ok(SpoolWriter { folder: folder.to_path_buf(), records: open(RECORDS)?, offsets: open(OFFSETS)?, end: 0, rows: 0 })
    }

    /// Appends `request`, whose `index` must be the number of requests before it.
    ///
    /// # Errors
    /// Storage: the disk refuses the write.
    pub fn push(&mut self, request: &Request) -> Result<()> {
        assert_eq!(request.index, self.rows, "requests come in input order");
        let mut record = Vec::with_capacity(4 + 4 * request.prompt.len() + 256);
        record.extend_from_slice(&(request.prompt.len() as u32).to_le_bytes());
        for id in &request.prompt {
            record.extend_from_slice(&id.to_le_bytes());
        }
        serde_json::to_writer(&mut record, request).map_err(|e| Error::storage(format!("cannot encode row {}: {e}", request.index)))?;
        self.offsets.write_all(&self.end.to_le_bytes()).map_err(|e| self.fault(&e))?;
        self.records.write_all(&record).map_err(|e| self.fault(&e))?;
        self.end += record.len() as u64;
        self.rows += 1;
        Ok(())
    }

    /// Closes the spool for writing and opens it for reading.
    ///
    /// # Errors
    /// Storage: the disk refuses the write.
    pub fn finish(mut self) -> Result<Spool> {
        self.offsets.write_all(&self.end.to_le_bytes()).map_err(|e| self.fault(&e))?;
        self.records.flush().map_err(|e| self.fault(&e))?;
        self.offsets.flush().map_err(|e| self.fault(&e))?;
        Spool::open(&self.folder)
    }

    fn fault(&self, error: &std::io::Error) -> Error {
        Error::io(Kind::Storage, "write the spool in", &self.folder, error)
    }
}

/// Requests by index, read from disk at each call.
pub struct Spool {
    folder: PathBuf,
    records: File,
    offsets: File,
    rows: u64,
}

impl Spool {
    /// Opens the finished spool in `folder`.
    ///
    /// # Errors
    /// Storage: a file is missing or unreadable.
    pub fn open(folder: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            File::open(&path).map_err(|e| Error::io(Kind::Storage, "open", &path, &e))
        };
        let offsets = open(OFFSETS)?;
        let bytes = offsets.metadata().map_err(|e| Error::io(Kind::Storage, "read", folder, &e))?.len();
        let rows = (bytes / OFFSET_BYTES)
            .checked_sub(1)
            .ok_or_else(|| Error::storage(format!("{} is cut short", folder.join(OFFSETS).display())))?;
        Ok(Spool { folder: folder.to_path_buf(), records: open(RECORDS)?, offsets, rows })
    }

    /// Number of requests, faulty ones included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The request of row `index`.
    ///
    /// # Errors
    /// Storage: the spool cannot be read or is damaged.
    pub fn get(&self, index: u64) -> Result<Request> {
        assert!(index < self.rows, "row {index} of {}", self.rows);
        let mut bounds = [0u8; 16];
        self.offsets.read_exact_at(&mut bounds, index * OFFSET_BYTES).map_err(|e| self.fault(&e))?;
        let start = u64::from_le_bytes(bounds[..8].try_into().expect("eight bytes"));
        let end = u64::from_le_bytes(bounds[8..].try_into().expect("eight bytes"));
        let damaged = || Error::storage(format!("row {index} of the spool in {} is damaged", self.folder.display()));
        let mut record = vec![0u8; end.checked_sub(start).ok_or_else(damaged)? as usize];
        self.records.read_exact_at(&mut record, start).map_err(|e| self.fault(&e))?;
        let (count, rest) = record.split_first_chunk::<4>().ok_or_else(damaged)?;
        let id_bytes = u32::from_le_bytes(*count) as usize * 4;
        let (ids, rest) = rest.split_at_checked(id_bytes).ok_or_else(damaged)?;
        let mut request: Request = serde_json::from_slice(rest).map_err(|_| damaged())?;
        request.prompt = ids.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        Ok(request)
    }

    fn fault(&self, error: &std::io::Error) -> Error {
        Error::io(Kind::Storage, "read the spool in", &self.folder, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Fault, Sampling};

    #[test]
    fn requests_come_back_as_they_went_in() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SpoolWriter::create(folder.path()).expect("a spool");
        let requests: Vec<Request> = (0..5)
            .map(|index| Request {
                index,
                id: format!("id \"{index}\" é"),
                prompt: (0..index as u32 * 3).collect(),
                truncated_tokens: index as u32,
                sampling: Sampling { temperature: 0.1, seed: i64::MIN, stop: vec!["\n".into()], ..Sampling::default() },
                fault: (index == 2).then(|| Fault::new("bad_body", "body is text")),
            })
            .collect();
        for request in &requests {
            writer.push(request).expect("written");
        }
        let spool = writer.finish().expect("closed");
        assert_eq!(spool.rows(), 5);
        for request in requests.iter().rev() {
            assert_eq!(&spool.get(request.index).expect("read"), request);
        }
    }
}
