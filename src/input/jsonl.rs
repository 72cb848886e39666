//! Lines of JSON: bytes -> (line number, object).
//!
//! LF alone ends a line: U+2028, U+2029 and U+0085 may stand raw inside a JSON string, and readers that know more line ends cut records in
//! two. A CR before the LF, a byte-order mark at the file's start, blank lines and a last line without LF are all usual.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use serde_json::{Map, Value};

use super::room::{self, Room};
use crate::error::{Error, Kind, Result};

/// Longest line in bytes; encoding one takes some twenty times its length of memory.
const LINE_BYTES: u64 = 128 << 20;
/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that is hashed as it is read.
struct Hashed {
    file: File,
    hash: blake3::Hasher,
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}

/// The lines of one file that are not blank, one in memory at a time.
pub(super) struct Lines<'p> {
    path: &'p Path,
    reader: BufReader<Hashed>,
    number: u64,
    line: Vec<u8>,
    room: Room,
}

impl<'p> Lines<'p> {
    /// [`Lines::within`] any memory.
    pub(super) fn open(path: &'p Path) -> Result<Self> {
        Self::within(path, Room::AMPLE)
    }

    /// # Errors
    /// Refused: the file cannot be read or begins as no text does.
    pub(super) fn within(path: &'p Path, room: Room) -> Result<Self> {
        let fault = |e: &std::io::Error| Error::io(Kind::Refused, "read", path, e);
        let file = File::open(path).map_err(|e| fault(&e))?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, Hashed { file, hash: blake3::Hasher::new() });
        let start = reader.fill_buf().map_err(|e| fault(&e))?;
        if start[..start.len().min(4096)].contains(&0) {
            return Err(Error::refused(format!("{} holds NUL bytes: it is not JSON lines in UTF-8", path.display())));
        }
        if start.starts_with(b"\xef\xbb\xbf") {
            reader.consume(3);
        }
        Ok(Lines { path, reader, number: 0, line: Vec::new(), room })
    }

    /// The next line's number, from 1, and its bytes without line end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &[u8])>> {
        let most = LINE_BYTES.min(self.room.text_bytes_max());
        loop {
            self.line.clear();
            let n = (&mut self.reader)
                .take(most)
                .read_until(b'\n', &mut self.line)
                .map_err(|e| Error::io(Kind::Refused, "read", self.path, &e))?;
            if n == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.line.last() == Some(&b'\n') {
                self.line.pop();
            } else if n as u64 == most && most < LINE_BYTES {
                let place = super::Place { path: self.path, unit: "line", number: self.number };
                let rest = self.skip_line()?;
                self.room.check(&place, room::text_bytes(most + rest + 1))?;
            } else if n as u64 == LINE_BYTES {
                let (name, number) = (self.path.display(), self.number);
                return Err(Error::refused(format!("{name} line {number} is longer than {LINE_BYTES} bytes")));
            }
            if self.line.last() == Some(&b'\r') {
                self.line.pop();
            }
            if !self.line.iter().all(u8::is_ascii_whitespace) {
                return Ok(Some((self.number, &self.line)));
            }
        }
    }

    /// Passes over the rest of a line, whose length is the result.
    fn skip_line(&mut self) -> Result<u64> {
        let mut length = 0;
        loop {
            let bytes = self.reader.fill_buf().map_err(|e| Error::io(Kind::Refused, "read", self.path, &e))?;
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let n = end.map_or(bytes.len(), |end| end + 1);
            length += n as u64;
            self.reader.consume(n);
            if end.is_some() || n == 0 {
                return Ok(length);
            }
        }
    }

    /// BLAKE3 of the file, once [`Lines::next`] has given `None`.
    pub(super) fn blake3(&self) -> [u8; 32] {
        *self.reader.get_ref().hash.finalize().as_bytes()
    }
}

/// The line of the row that comes after `before` others in `path`; for messages.
pub(super) fn line_of(path: &Path, before: u64) -> Result<u64> {
    let mut lines = Lines::open(path)?;
    let mut number = 0;
    for _ in 0..=before {
        number = lines.next()?.map_or(number, |line| line.0);
    }
    Ok(number)
}

/// The object that `line` holds, or why it holds none.
pub(super) fn object(line: &[u8]) -> std::result::Result<Map<String, Value>, String> {
    let text = std::str::from_utf8(line).map_err(|e| format!("byte {} is not UTF-8", e.valid_up_to() + 1))?;
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(first) => match mend_surrogates(text) {
            Cow::Owned(mended) => serde_json::from_str(&mended).map_err(|e| reason(&e))?,
            // the first line of a file that is one JSON document, its rows in a list
            Cow::Borrowed(_) if text.trim_ascii() == "[" => {
                return Err("a list begins here; write each of its objects on a line of its own".into());
            }
            Cow::Borrowed(_) => return Err(reason(&first)),
        },
    };
    match value {
        Value::Object(map) => Ok(map),
        other => Err(format!("it is {}", kind(&other))),
    }
}

/// What a JSON value is, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// The parser's message without its own count of lines, which knows this line only.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    format!("{} at column {}", &text[..end], error.column())
}

/// Escapes of half a surrogate pair stand for no character: they become U+FFFD, as a decoder of UTF-16 would have it.
fn mend_surrogates(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    let escape = |at: usize| -> Option<u32> {
        let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let (mut out, mut copied, mut at) = (String::new(), 0, 0);
    while let Some(step) = bytes[at..].iter().position(|&byte| byte == b'\\') {
        at += step;
        match escape(at) {
            Some(0xd800..=0xdbff) if matches!(escape(at + 6), Some(0xdc00..=0xdfff)) => at += 12,
            Some(0xd800..=0xdfff) => {
                out.push_str(&text[copied..at]);
                out.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            _ => at = (at + 2).min(bytes.len()),
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[copied..]);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_a_surrogate_pair_becomes_a_replacement_character() {
        let text = |line: &str| object(line.as_bytes()).map(|map| map["t"].as_str().expect("a string").to_string());
        assert_eq!(text(r#"{"t":"a\ud800b"}"#), Ok("a\u{fffd}b".into()));
        assert_eq!(text(r#"{"t":"\udc00\ud83d\ude00\ud83d"}"#), Ok("\u{fffd}\u{1f600}\u{fffd}".into()));
        assert_eq!(text(r#"{"t":"\\ud800 \ud800\u0041"}"#), Ok("\\ud800 \u{fffd}A".into()));
        assert_eq!(text("{\"t\":\"\\u0000x\"}"), Ok("\0x".into()));
        assert!(text(r#"{"t":"\ud800"#).is_err());
        assert!(text("{\"t\":\"é\\").is_err());
    }

    #[test]
    fn a_line_that_is_no_object_says_what_it_is() {
        assert_eq!(object(b"[1,2]"), Err("it is a list".into()));
        assert_eq!(object(b"null"), Err("it is null".into()));
        assert!(object(b" [\r").expect_err("a list over lines").starts_with("a list begins here"));
        assert!(object(b"{\"a\":\"\xff\"}").expect_err("not UTF-8").contains("byte 7"));
        let deep = "[".repeat(100_000);
        assert!(object(format!("{{\"a\":{deep}").as_bytes()).expect_err("too deep").contains("recursion"));
        let torn = object(br#"{"custom_id":"k","prompt":"#).expect_err("torn");
        assert!(torn.contains("column") && !torn.contains("line"), "{torn}");
    }
}
