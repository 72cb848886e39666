//! Routes: who chose whom in a job, on disk, so that other orders of the same requests can be tried without the model.
//!
//! A row of the largest model takes 2.9 kB where its sweep read gigabytes, but a long job has more rows than memory. So the file is only appended
//! to, and what is read back is that of the first requests, as many as fit. A header says the widths; a record is the request
//! (u32), the first position (u32), the token there (u32), the number of positions (u32, its top bit says: of an answer) and the ids (u16 each), all
//! little-endian. An end that is torn is left out.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};

/// No expert: a row may be left out of the last layer.
pub const NO_EXPERT: u16 = u16::MAX;

const MAGIC: &[u8; 8] = b"nsroute2";
const HEADER_BYTES: usize = MAGIC.len() + 3 * 4;
const RECORD_BYTES: usize = 4 * 4;
const OF_ANSWER: u32 = 1 << 31;
const BUFFER_BYTES: usize = 1 << 18;

/// The widths of a model's routing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Widths {
    /// Layers that route.
    pub layers: u32,
    /// Experts of a layer, at most.
    pub experts: u32,
    /// Experts that a row chooses in a layer, at most.
    pub chosen: u32,
}

impl Widths {
    /// Ids of a row.
    pub fn row(self) -> usize {
        self.layers as usize * self.chosen as usize
    }
}

/// Appends what rows chose.
pub struct RoutesWriter {
    path: PathBuf,
    file: BufWriter<File>,
    widths: Widths,
    record: Vec<u8>,
}

impl RoutesWriter {
    /// The file's name.
    pub const NAME: &str = "routes";

    /// Starts an empty file in `folder`, which must exist.
    ///
    /// # Errors
    /// Storage: the file cannot be created.
    pub fn create(folder: &Path, widths: Widths) -> Result<Self> {
        let path = folder.join(RoutesWriter::NAME);
        let file = File::create(&path).map_err(|e| Error::io(Kind::Storage, "create", &path, &e))?;
        let mut writer = RoutesWriter { path, file: BufWriter::with_capacity(BUFFER_BYTES, file), widths, record: Vec::new() };
        writer.record.extend_from_slice(MAGIC);
        for n in [widths.layers, widths.experts, widths.chosen] {
            writer.record.extend_from_slice(&n.to_le_bytes());
        }
        writer.write()?;
        Ok(writer)
    }

    /// Appends consecutive positions of request `row`, from `first_position`, at which `token` stands, on: ids [positions, layers, chosen].
    ///
    /// # Errors
    /// Storage: the disk refuses the write.
    pub fn push(&mut self, row: u64, first_position: u32, token: u32, of_answer: bool, ids: &[u16]) -> Result<()> {
        let count = (ids.len() / self.widths.row().max(1)) as u32;
        let row = u32::try_from(row).map_err(|_| Error::storage(format!("row {row} is more than {} can name", self.path.display())))?;
        for n in [row, first_position, token, count | if of_answer { OF_ANSWER } else { 0 }] {
            self.record.extend_from_slice(&n.to_le_bytes());
        }
        self.record.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        self.write()
    }

    /// Closes the file.
    ///
    /// # Errors
    /// Storage: the disk refuses the write.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(|e| Error::io(Kind::Storage, "write", &self.path, &e))
    }

    fn write(&mut self) -> Result<()> {
        let written = self.file.write_all(&self.record);
        self.record.clear();
        written.map_err(|e| Error::io(Kind::Storage, "write", &self.path, &e))
    }
}

/// What the first requests of a job chose, in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct Routes {
    widths: Widths,
    /// A request each: its prompt's positions, its answer's.
    requests: Vec<[Known; 2]>,
    /// Of request after request, prompt before answer: [positions, layers, chosen].
    ids: Vec<u16>,
}

/// Consecutive positions of which the choices are known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    first: u32,
    /// The token at the first.
    token: u32,
    count: u32,
    /// The row of `ids` that begins them.
    at: u64,
}

/// A record's head.
struct Record {
    request: usize,
    first: u32,
    token: u32,
    count: u32,
    of_answer: bool,
}

impl Routes {
    /// Reads what was recorded in `folder` of a job of so many requests: whole requests, in order, as many as `bytes_max` holds.
    ///
    /// # Errors
    /// Storage: the file cannot be read, or is none of these.
    pub fn load(folder: &Path, requests: usize, bytes_max: u64) -> Result<Routes> {
        let path = folder.join(RoutesWriter::NAME);
        let mut heads = Reading::open(&path)?;
        let widths = heads.widths;
        let mut known = vec![[Known::default(); 2]; requests];
        while let Some(record) = heads.next()? {
            let of_request = known.get_mut(record.request).ok_or_else(|| heads.foreign())?;
            let part = &mut of_request[usize::from(record.of_answer)];
            if part.count == 0 {
                (part.first, part.token) = (record.first, record.token);
            }
            if part.first.checked_add(part.count) != Some(record.first) || record.first.checked_add(record.count).is_none() {
                return Err(heads.foreign());
            }
            part.count += record.count;
            heads.skip(record.count)?;
        }
        let mut rows = 0;
        let rows_max = bytes_max / (size_of::<u16>() * widths.row().max(1)) as u64;
        let mut whole = 0;
        for of_request in &mut known {
            let end = rows + of_request.iter().map(|part| u64::from(part.count)).sum::<u64>();
            if end > rows_max {
                break;
            }
            for part in of_request {
                part.at = rows;
                rows += u64::from(part.count);
            }
            whole += 1;
        }
        known.truncate(whole);
        let mut ids = vec![NO_EXPERT; rows as usize * widths.row()];
        let mut records = Reading::open(&path)?;
        while let Some(record) = records.next()? {
            let Some(of_request) = known.get(record.request) else {
                records.skip(record.count)?;
                continue;
            };
            let part = of_request[usize::from(record.of_answer)];
            let at = (part.at + u64::from(record.first - part.first)) as usize;
            records.ids(&mut ids[at * widths.row()..(at + record.count as usize) * widths.row()])?;
        }
        Ok(Routes { widths, requests: known, ids })
    }

    /// Widths of what is recorded.
    pub fn widths(&self) -> Widths {
        self.widths
    }

    /// Requests that it holds, from the first on.
    pub fn requests(&self) -> usize {
        self.requests.len()
    }

    /// Whom the rows of a request's answer chose, by position: [positions, layers, chosen]; empty where nothing was recorded.
    pub fn answer(&self, request: u64) -> &[u16] {
        self.part(request, 1)
    }

    /// The same of its prompt.
    pub fn prompt(&self, request: u64) -> &[u16] {
        self.part(request, 0)
    }

    /// The first token of its answer; none where nothing was recorded.
    pub fn next(&self, request: u64) -> Option<u32> {
        self.requests.get(request as usize).map(|of_request| of_request[1]).filter(|answer| answer.count > 0).map(|answer| answer.token)
    }

    fn part(&self, request: u64, part: usize) -> &[u16] {
        let known = self.requests.get(request as usize).map(|of_request| of_request[part]).unwrap_or_default();
        &self.ids[known.at as usize * self.widths.row()..][..known.count as usize * self.widths.row()]
    }
}

/// A file on its way through.
struct Reading<'a> {
    path: &'a Path,
    file: BufReader<File>,
    widths: Widths,
    /// Bytes behind the place where reading stands.
    left: u64,
    bytes: Vec<u8>,
}

impl<'a> Reading<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let fault = |e: std::io::Error| Error::io(Kind::Storage, "read", path, &e);
        let file = File::open(path).map_err(fault)?;
        let len = file.metadata().map_err(fault)?.len();
        let mut reading = Reading {
            path,
            file: BufReader::with_capacity(BUFFER_BYTES, file),
            widths: Widths { layers: 0, experts: 0, chosen: 0 },
            left: len,
            bytes: Vec::new(),
        };
        let mut header = [0; HEADER_BYTES];
        if len < HEADER_BYTES as u64 {
            return Err(reading.foreign());
        }
        reading.file.read_exact(&mut header).map_err(fault)?;
        reading.left -= HEADER_BYTES as u64;
        let (magic, widths) = header.split_at(MAGIC.len());
        let [layers, experts, chosen] = numbers(widths);
        reading.widths = Widths { layers, experts, chosen };
        // So that products of widths and counts stay far below 64 bits.
        let narrow = u64::from(layers).checked_mul(u64::from(chosen)).is_some_and(|row| row <= 1 << 24);
        if magic != MAGIC || !narrow { Err(reading.foreign()) } else { Ok(reading) }
    }

    /// The next record's head; None at the end, or where the rest is no whole record.
    fn next(&mut self) -> Result<Option<Record>> {
        if self.left < RECORD_BYTES as u64 {
            return Ok(None);
        }
        let mut head = [0; RECORD_BYTES];
        self.file.read_exact(&mut head).map_err(|e| self.fault(&e))?;
        self.left -= RECORD_BYTES as u64;
        let [request, first, token, count] = numbers(&head);
        let record = Record { request: request as usize, first, token, count: count & !OF_ANSWER, of_answer: count & OF_ANSWER != 0 };
        Ok((self.bytes_of(record.count) <= self.left).then_some(record))
    }

    fn skip(&mut self, count: u32) -> Result<()> {
        let bytes = self.bytes_of(count);
        self.left -= bytes;
        self.file.seek_relative(bytes as i64).map_err(|e| self.fault(&e))
    }

    fn ids(&mut self, ids: &mut [u16]) -> Result<()> {
        let bytes = size_of_val(ids);
        self.left -= bytes as u64;
        self.bytes.resize(bytes, 0);
        self.file.read_exact(&mut self.bytes).map_err(|e| self.fault(&e))?;
        for (id, bytes) in ids.iter_mut().zip(self.bytes.as_chunks::<2>().0) {
            *id = u16::from_le_bytes(*bytes);
            if *id != NO_EXPERT && u32::from(*id) >= self.widths.experts {
                return Err(self.foreign());
            }
        }
        Ok(())
    }

    fn bytes_of(&self, count: u32) -> u64 {
        u64::from(count) * (self.widths.row() * size_of::<u16>()) as u64
    }

    fn fault(&self, error: &std::io::Error) -> Error {
        Error::io(Kind::Storage, "read", self.path, error)
    }

    fn foreign(&self) -> Error {
        Error::storage(format!("{} does not hold the routes of this job; remove it", self.path.display()))
    }
}

/// Numbers as they lie in a head.
fn numbers<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut numbers = [0; N];
    numbers.iter_mut().zip(bytes.as_chunks::<4>().0).for_each(|(n, bytes)| *n = u32::from_le_bytes(*bytes));
    numbers
}

#[cfg(test)]
mod tests;
