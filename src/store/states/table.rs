//! What a slot's table says: as of which sweep, and for each state where it is and what its bytes sum to.
//!
//! It is what a later process would know of the file, so it names itself, its slot and its sweep, and ends with a sum of its own: of
//! two tables that one counts which is whole and of the later sweep that was settled. Which was the last one is not written here: a power
//! cut may fall between two slots' tables.

use super::book::Version;

/// What a table begins with; the number is the form's.
pub const MAGIC: [u8; 8] = *b"nsstat 1";
/// Magic, sweep, slot, number of states.
const HEAD_BYTES: usize = 8 + 8 + 4 + 4;
const STATE_BYTES: usize = 16;
const SUM_BYTES: usize = 4;

/// Bytes of a table of so many states.
pub fn bytes(states: usize) -> usize {
    HEAD_BYTES + states * STATE_BYTES + SUM_BYTES
}

/// A table, into `out`, whose earlier contents go.
pub fn encode(sweep: u64, slot: u32, versions: impl ExactSizeIterator<Item = Version>, out: &mut Vec<u8>) {
    out.clear();
    out.extend(MAGIC);
    out.extend(sweep.to_le_bytes());
    out.extend(slot.to_le_bytes());
    out.extend((versions.len() as u32).to_le_bytes());
    for v in versions {
        [v.positions, v.records, v.extent, v.sum].iter().for_each(|x| out.extend(x.to_le_bytes()));
    }
    out.extend(crc32fast::hash(out).to_le_bytes());
}

/// What a table says: sweep, slot, states; `None` if it is not whole.
#[cfg(test)]
pub fn decode(table: &[u8]) -> Option<(u64, u32, Vec<Version>)> {
    let word = |at: usize| Some(u32::from_le_bytes(table.get(at..at + 4)?.try_into().ok()?));
    let count = word(20)? as usize;
    let end = HEAD_BYTES + count.checked_mul(STATE_BYTES)?;
    if table[..8] != MAGIC || word(end)? != crc32fast::hash(table.get(..end)?) {
        return None;
    }
    let version = |at: usize| Some(Version { positions: word(at)?, records: word(at + 4)?, extent: word(at + 8)?, sum: word(at + 12)? });
    let versions = (0..count).map(|i| version(HEAD_BYTES + i * STATE_BYTES)).collect::<Option<_>>()?;
    Some((u64::from(word(8)?) | u64::from(word(12)?) << 32, word(16)?, versions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_comes_back_and_a_changed_byte_is_seen() {
        let version = |n: u32| Version { positions: n, records: n + 1, extent: n % 2, sum: n * 77 };
        let mut table = vec![9; 3];
        encode(1 << 40, 7, (1..6).map(version), &mut table);
        assert_eq!(table.len(), bytes(5));
        assert_eq!(decode(&table), Some((1 << 40, 7, (1..6).map(version).collect())));
        for at in 0..table.len() {
            let mut other = table.clone();
            other[at] ^= 4;
            assert_eq!(decode(&other), None, "byte {at}");
        }
    }
}
