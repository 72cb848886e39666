//! The journal: each ended row once, as it ends.
//!
//! A million rows' answers do not fit in memory beside a model, and a row's part may wait for its slowest row until the morning. So
//! a row's result goes to an append-only file, through a buffer, unsynced, and is read back by its offset when the part is made: what is
//! safe is a part, not the journal.
//!
//! Layout, little-endian: a header of `NSJOURNL`, a version (u32) and the CRC-32 of these twelve bytes (u32); then records of a payload length (u32),
//! the CRC-32 of length and payload (u32), and the payload: event, then stamp. Numbers keep their bits; a list is its length (u32) and its
//! elements; a string is a list of UTF-8 bytes.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};
use crate::event::{End, Event, Stamp};
use crate::request::Fault;

const MAGIC: &[u8; 8] = b"NSJOURNL";
const VERSION: u32 = 1;
const HEADER_BYTES: u64 = 16;
const FRAME_BYTES: usize = 8;
const BUFFER_BYTES: usize = 64 << 10;

/// Appends rows and reads them back.
pub(super) struct Journal {
    path: PathBuf,
    writer: BufWriter<File>,
    end: u64,
}

impl Journal {
    /// Starts an empty journal at `path`, where no file may be.
    pub(super) fn create(path: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|e| Error::io(Kind::Storage, "create", path, &e))?;
        let mut journal = Journal { path: path.to_path_buf(), writer: BufWriter::with_capacity(BUFFER_BYTES, file), end: 0 };
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        header.extend_from_slice(&crc32fast::hash(&header).to_le_bytes());
        journal.append(&header)?;
        Ok(journal)
    }

    /// Appends a row's record; its offset is never 0.
    pub(super) fn push(&mut self, event: &Event, stamp: &Stamp) -> Result<u64> {
        let mut frame = vec![0; FRAME_BYTES];
        encode(&mut frame, event, stamp);
        let too_long = || Error::storage(format!("row {} is too long for the journal {}", event.index, self.path.display()));
        let length = u32::try_from(frame.len() - FRAME_BYTES).map_err(|_| too_long())?.to_le_bytes();
        frame[..4].copy_from_slice(&length);
        let crc = checksum(length, &frame[FRAME_BYTES..]);
        frame[4..FRAME_BYTES].copy_from_slice(&crc.to_le_bytes());
        let offset = self.end;
        self.append(&frame)?;
        Ok(offset)
    }

    /// Hands what is buffered to the system, so that it can be read back.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.writer.flush().map_err(|e| Error::io(Kind::Storage, "write", &self.path, &e))
    }

    /// The flushed record at `offset`.
    pub(super) fn read(&self, offset: u64) -> Result<(Event, Stamp)> {
        let fault = |e: std::io::Error| Error::io(Kind::Storage, "read", &self.path, &e);
        let damaged = || Error::storage(format!("{} is damaged at byte {offset}: its disk or file system lost data", self.path.display()));
        let file = self.writer.get_ref();
        let mut frame = [0u8; FRAME_BYTES];
        file.read_exact_at(&mut frame, offset).map_err(fault)?;
        let (length, crc) = frame.split_at(4);
        let length: [u8; 4] = length.try_into().expect("four bytes");
        let crc = u32::from_le_bytes(crc.try_into().expect("four bytes"));
        let payload_bytes = u64::from(u32::from_le_bytes(length));
        // Before memory is asked for: a damaged length must not ask for four gigabytes.
        let payload_start = offset + FRAME_BYTES as u64;
        if self.end.checked_sub(payload_start).is_none_or(|left| left < payload_bytes) {
            return Err(damaged());
        }
        let mut payload = vec![0u8; payload_bytes as usize];
        file.read_exact_at(&mut payload, payload_start).map_err(fault)?;
        if checksum(length, &payload) != crc {
            return Err(damaged());
        }
        decode(&payload).ok_or_else(damaged)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(|e| Error::io(Kind::Storage, "write", &self.path, &e))?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

fn checksum(length: [u8; 4], payload: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&length);
    hasher.update(payload);
    hasher.finalize()
}

fn encode(out: &mut Vec<u8>, event: &Event, stamp: &Stamp) {
    out.extend_from_slice(&event.index.to_le_bytes());
    match &event.end {
        End::Model => out.push(0),
        End::StopToken(id) => {
            out.push(1);
            out.extend_from_slice(&id.to_le_bytes());
        }
        End::StopString(text) => {
            out.push(2);
            put_text(out, text);
        }
        End::Length => out.push(3),
        End::Failed(fault) => {
            out.push(4);
            put_text(out, &fault.code);
            put_text(out, &fault.message);
        }
    }
    put_list(out, &event.tokens, |id| id.to_le_bytes());
    put_list(out, &event.logprobs, |value| value.to_le_bytes());
    put_list(out, &event.prompt_logprobs, |value| value.to_le_bytes());
    let Stamp { started_us, queue_us, first_token_us, finished_us, group_id, bytes_read, expert_hits, expert_misses, .. } = stamp;
    for value in [started_us, queue_us, first_token_us, finished_us, group_id, bytes_read, expert_hits, expert_misses] {
        out.extend_from_slice(&value.to_le_bytes());
    }
    put_list(out, &stamp.token_us, |value| value.to_le_bytes());
    put_list(out, &stamp.token_bytes_read, |value| value.to_le_bytes());
    put_list(out, &stamp.token_rows, |value| value.to_le_bytes());
}

fn put_list<T: Copy, const N: usize>(out: &mut Vec<u8>, list: &[T], bytes: impl Fn(T) -> [u8; N]) {
    out.extend_from_slice(&u32::try_from(list.len()).expect("a sequence is shorter than 2^32").to_le_bytes());
    for &element in list {
        out.extend_from_slice(&bytes(element));
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_list(out, text.as_bytes(), |byte| [byte]);
}

/// None where the bytes are no whole record.
fn decode(payload: &[u8]) -> Option<(Event, Stamp)> {
    let mut bytes = payload;
    let index = take(&mut bytes).map(u64::from_le_bytes)?;
    let end = match take::<1>(&mut bytes)?[0] {
        0 => End::Model,
        1 => End::StopToken(take(&mut bytes).map(u32::from_le_bytes)?),
        2 => End::StopString(take_text(&mut bytes)?),
        3 => End::Length,
        4 => End::Failed(Fault { code: take_text(&mut bytes)?, message: take_text(&mut bytes)? }),
        _ => return None,
    };
    let event = Event {
        index,
        end,
        tokens: take_list(&mut bytes, u32::from_le_bytes)?,
        logprobs: take_list(&mut bytes, f32::from_le_bytes)?,
        prompt_logprobs: take_list(&mut bytes, f32::from_le_bytes)?,
    };
    let mut number = || take(&mut bytes).map(i64::from_le_bytes);
    let mut stamp = Stamp {
        started_us: number()?,
        queue_us: number()?,
        first_token_us: number()?,
        finished_us: number()?,
        group_id: number()?,
        bytes_read: number()?,
        expert_hits: number()?,
        expert_misses: number()?,
        ..Stamp::default()
    };
    stamp.token_us = take_list(&mut bytes, i64::from_le_bytes)?;
    stamp.token_bytes_read = take_list(&mut bytes, i64::from_le_bytes)?;
    stamp.token_rows = take_list(&mut bytes, i32::from_le_bytes)?;
    bytes.is_empty().then_some((event, stamp))
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}

fn take_list<T, const N: usize>(bytes: &mut &[u8], element: impl Fn([u8; N]) -> T) -> Option<Vec<T>> {
    let count = take(bytes).map(u32::from_le_bytes)? as usize;
    let (list, rest) = bytes.split_at_checked(count.checked_mul(N)?)?;
    *bytes = rest;
    Some(list.as_chunks::<N>().0.iter().map(|chunk| element(*chunk)).collect())
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    String::from_utf8(take_list(bytes, |[byte]: [u8; 1]| byte)?).ok()
}

const _: () = assert!(HEADER_BYTES == (MAGIC.len() + 8) as u64);
const _: () = assert!(HEADER_BYTES > 0, "offset 0 stands for a row that has not ended");

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<(Event, Stamp)> {
        let ends = [
            End::Model,
            End::StopToken(163_586),
            End::StopString("ab\n\u{2028}é".into()),
            End::Length,
            End::Failed(Fault::new("prompt_too_long", "a message")),
        ];
        let row = |(i, end): (usize, End)| {
            let event = Event {
                index: i as u64,
                tokens: (0..i as u32 * 3).map(|t| u32::MAX - t).collect(),
                logprobs: (0..i * 3).map(|t| f32::from_bits(0x8000_0001 + t as u32)).collect(),
                prompt_logprobs: vec![f32::NEG_INFINITY, -0.0],
                end,
            };
            let stamp =
                Stamp { started_us: i64::MAX, group_id: -1, token_us: vec![i as i64; i], token_rows: vec![i32::MIN], ..Stamp::default() };
            (event, stamp)
        };
        ends.into_iter().enumerate().map(row).collect()
    }

    fn written(path: &Path) -> (Journal, Vec<u64>) {
        let mut journal = Journal::create(path).expect("a journal");
        let offsets = rows().iter().map(|(event, stamp)| journal.push(event, stamp).expect("written")).collect();
        journal.flush().expect("flushed");
        (journal, offsets)
    }

    #[test]
    fn rows_come_back_bit_for_bit() {
        let folder = tempfile::tempdir().expect("a folder");
        let (journal, offsets) = written(&folder.path().join("journal"));
        assert!(!offsets.contains(&0), "offset 0 stands for no row");
        for (offset, row) in offsets.iter().zip(rows()).rev() {
            let read = journal.read(*offset).expect("read");
            assert_eq!(read, row);
            assert!(read.0.prompt_logprobs[1].is_sign_negative());
        }
    }

    #[test]
    fn a_flipped_bit_is_found_wherever_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (journal, offsets) = written(&path);
        let whole = std::fs::read(&path).expect("bytes");
        for at in offsets[2]..offsets[3] {
            for bit in [0, 7] {
                let mut bytes = whole.clone();
                bytes[at as usize] ^= 1 << bit;
                std::fs::write(&path, bytes).expect("damaged");
                let error = journal.read(offsets[2]).expect_err("found");
                assert_eq!(error.kind, Kind::Storage);
                assert!(error.message.contains("journal is damaged at byte"), "{error}");
            }
        }
    }

    #[test]
    fn a_record_cut_short_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (journal, offsets) = written(&path);
        let file = OpenOptions::new().write(true).open(&path).expect("opened");
        for length in (offsets[4]..journal.end).rev() {
            file.set_len(length).expect("cut");
            assert_eq!(journal.read(offsets[4]).expect_err("found").kind, Kind::Storage);
            assert!(journal.read(offsets[3]).is_ok(), "the record before is whole");
        }
    }

    #[test]
    fn a_payload_of_another_form_is_no_row() {
        let (event, stamp) = &rows()[2];
        let mut payload = Vec::new();
        encode(&mut payload, event, stamp);
        assert!(decode(&payload).is_some());
        for length in 0..payload.len() {
            assert!(decode(&payload[..length]).is_none(), "{length} bytes");
        }
        payload.push(0);
        assert!(decode(&payload).is_none(), "a byte too many");
    }

    #[test]
    fn a_full_disk_is_a_fault_of_storage() {
        let path = PathBuf::from("/dev/full");
        let file = OpenOptions::new().write(true).open(&path).expect("Linux has it");
        let mut journal = Journal { path, writer: BufWriter::new(file), end: HEADER_BYTES };
        let (event, stamp) = &rows()[0];
        journal.push(event, stamp).expect("buffered");
        let error = journal.flush().expect_err("no space");
        assert_eq!(error.kind, Kind::Storage);
        assert!(error.message.contains("/dev/full"), "{error}");
    }

    #[test]
    fn another_journal_is_never_overwritten() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        drop(written(&path));
        assert!(Journal::create(&path).is_err());
    }
}
