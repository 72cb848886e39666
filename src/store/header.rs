//! The header of a safetensors file: an 8-byte length, then JSON of names, shapes and offsets.
//!
//! Headers are untrusted: every offset is proved to lie in the file, tensor by tensor without a gap or an overlap, before anything is read by it.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

/// The longest header that is read; the format's own limit.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// A tensor as a header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub dtype: &'a str,
    pub shape: &'a [u64],
    /// From the start of the file.
    pub offset: u64,
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    dtype: Cow<'a, str>,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// Reads the header of `file`, hands each tensor to `each`, and returns the header's bytes.
///
/// The error says what is wrong, without the file's name.
pub fn read(file: &File, each: &mut dyn FnMut(Tensor<'_>) -> Result<(), String>) -> Result<Vec<u8>, String> {
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let mut length = [0u8; 8];
    file.read_exact_at(&mut length, 0).map_err(|_| format!("is no safetensors file: it has {size} bytes"))?;
    let length = u64::from_le_bytes(length);
    if !(2..=HEADER_BYTES_MAX).contains(&length) || length > size.saturating_sub(8) {
        return Err(format!("is no safetensors file, or cut short: its header would take {length} of {size} bytes"));
    }
    let mut header = vec![0u8; length as usize];
    file.read_exact_at(&mut header, 8).map_err(|e| e.to_string())?;
    let mut walk = Walk { start: 8 + length, each, ranges: Vec::new(), fault: None };
    let mut json = serde_json::Deserializer::from_slice(&header);
    let parsed = json.deserialize_map(&mut walk).and_then(|()| json.end());
    let (fault, mut ranges) = (walk.fault.take(), walk.ranges);
    if let Some(fault) = fault {
        return Err(fault);
    }
    parsed.map_err(|e| format!("has a header that is not valid: {e}"))?;
    check_ranges(&mut ranges, size - 8 - length)?;
    Ok(header)
}

/// The tensors must fill the rest of the file, one behind the other.
fn check_ranges(ranges: &mut [(u64, u64)], data: u64) -> Result<(), String> {
    ranges.sort_unstable();
    let mut end = 0;
    for &(from, to) in ranges.iter() {
        if from != end {
            return Err(format!("has a header in which tensors overlap or leave a gap at byte {end} of the data"));
        }
        end = to;
    }
    if end > data {
        return Err(format!("is cut short: {} bytes are missing; download it again", end - data));
    }
    if end < data {
        return Err(format!("has {} bytes more than its header says; download it again", data - end));
    }
    Ok(())
}

struct Walk<'c> {
    start: u64,
    each: &'c mut dyn FnMut(Tensor<'_>) -> Result<(), String>,
    ranges: Vec<(u64, u64)>,
    fault: Option<String>,
}

impl Walk<'_> {
    fn tensor(&mut self, name: &str, entry: &Entry<'_>) -> Result<(), String> {
        let [from, to] = entry.data_offsets;
        let bytes = to.checked_sub(from).ok_or_else(|| format!("tensor `{name}` ends before it begins"))?;
        let offset = self.start.checked_add(from).filter(|o| o.checked_add(bytes).is_some());
        let offset = offset.ok_or_else(|| format!("tensor `{name}` has an offset beyond any file"))?;
        let elements = entry.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
        if let Some(width) = element_bytes(&entry.dtype)
            && elements.and_then(|n| n.checked_mul(width)) != Some(bytes)
        {
            return Err(format!("tensor `{name}` has {bytes} bytes, its shape {:?} of {} needs another number", entry.shape, entry.dtype));
        }
        self.ranges.push((from, to));
        (self.each)(Tensor { name, dtype: &entry.dtype, shape: &entry.shape, offset, bytes })
    }
}

/// Bytes of an element; `None` for types that no weight here has.
fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" | "U16" => 2,
        "U8" | "I8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 1,
        _ => return None,
    })
}

impl<'de> Visitor<'de> for &mut Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let entry: Entry<'de> = map.next_value()?;
            if let Err(fault) = self.tensor(&name, &entry) {
                self.fault = Some(fault);
                return Err(serde::de::Error::custom("see fault"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn read_bytes(bytes: &[u8]) -> Result<Vec<String>, String> {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        let mut names = Vec::new();
        read(&file, &mut |tensor| {
            names.push(tensor.name.to_string());
            Ok(())
        })?;
        Ok(names)
    }

    fn file(header: &str, data: usize) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; data]].concat()
    }

    const TWO: &str = r#"{"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"y":{"dtype":"U8","shape":[3,1],"data_offsets":[8,11]}}"#;

    #[test]
    fn offsets_are_proved() {
        assert_eq!(read_bytes(&file(TWO, 11)), Ok(vec!["x".into(), "y".into()]));
        let cases = [
            (TWO.replace("[8,11]", "[7,10]"), 11, "overlap or leave a gap at byte 8"),
            (TWO.replace("[8,11]", "[9,12]"), 12, "overlap or leave a gap at byte 8"),
            (TWO.replace("[0,8]", "[8,0]"), 11, "`x` ends before it begins"),
            (TWO.replace("[2]", "[3]"), 11, "its shape [3] of F32 needs another number"),
            (TWO.replace("[2]", "[4294967296,4294967296,2]"), 11, "needs another number"),
            (TWO.replace("[0,8]", "[18446744073709551607,18446744073709551615]"), 11, "beyond any file"),
            (TWO.to_string(), 10, "cut short: 1 bytes are missing"),
            (TWO.to_string(), 12, "1 bytes"),
            ("[]".into(), 0, "header that is not valid"),
            ("{}x".into(), 0, "header that is not valid"),
        ];
        for (header, data, wanted) in cases {
            let said = read_bytes(&file(&header, data)).expect_err("refused");
            assert!(said.contains(wanted), "{header}: {said}");
        }
        for bytes in [&b""[..], b"1234567", &[255; 8], &[0; 8], &[255; 200]] {
            assert!(read_bytes(bytes).expect_err("refused").contains("no safetensors file"));
        }
    }

    proptest! {
        #[test]
        fn no_header_makes_a_panic(at in 0usize..160, value in any::<u8>(), cut in 0usize..170) {
            let mut bytes = file(TWO, 11);
            let place = at % bytes.len();
            bytes[place] = value;
            bytes.truncate(bytes.len() - cut % 3 * (cut % bytes.len()) / 3);
            let _ = read_bytes(&bytes);
        }
    }
}
