//! A table as bytes, and back: magic, shape, sums, rows by ascending token, and a CRC32 of it all. A file may hold anything, so the length is
//! worked out and compared before a row is made, and each expert and token must be one of the model's.

use std::collections::BTreeMap;

use super::{BYTES_MAX, Row, Slot, Table, TableShape};

/// What the bytes begin with; the number is the form's.
const MAGIC: [u8; 8] = *b"nstbl  1";
/// Bytes beside sums and rows: magic; vocabulary, layers, experts, chosen; tokens seen; number of rows; CRC32.
pub(super) const FRAME_BYTES: usize = 8 + 4 * 4 + 8 + 4 + 4;

impl Table {
    /// More bytes than this no table has.
    pub const BYTES_MAX: u64 = BYTES_MAX as u64;

    /// The same table, the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FRAME_BYTES + self.uses.len() * 8 + self.rows.len() * self.row_bytes());
        bytes.extend(head(&self.shape));
        bytes.extend(self.seen.to_le_bytes());
        bytes.extend((self.rows.len() as u32).to_le_bytes());
        bytes.extend(self.uses.iter().flat_map(|uses| uses.to_le_bytes()));
        for (id, row) in &self.rows {
            bytes.extend(id.to_le_bytes());
            bytes.extend(row.seen.to_le_bytes());
            for slot in &row.slots {
                bytes.extend(slot.expert.to_le_bytes());
                bytes.extend(slot.count.to_le_bytes());
            }
        }
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        bytes
    }

    /// The table that [`Table::to_bytes`] wrote for a model of this shape.
    ///
    /// # Errors
    /// Half a sentence: what is wrong with the bytes. Nothing else was lost; the table may be begun anew.
    pub fn from_bytes(bytes: &[u8], shape: TableShape) -> Result<Self, &'static str> {
        let (body, sum) = bytes.split_last_chunk::<4>().map_or((&[][..], [0; 4]), |(body, sum)| (body, *sum));
        let mut rest = Rest(body);
        let told: [u8; 24] = rest.take().ok_or("it is cut short")?;
        if told[..8] != MAGIC {
            return Err("it is no table of tokens, or of another form");
        }
        if crc32fast::hash(body) != u32::from_le_bytes(sum) {
            return Err("it is damaged: its sum is not that of its bytes");
        }
        if told != head(&shape) {
            return Err("it is of a model of another shape");
        }
        let mut table = Table::new(shape);
        table.seen = rest.take().map(u64::from_le_bytes).ok_or("it is cut short")?;
        let rows = rest.take().map(u32::from_le_bytes).ok_or("it is cut short")? as usize;
        if rows > table.plan.rows {
            return Err("it has more rows than fit");
        }
        // Rows are bounded, so nothing here is larger than a table may be.
        if rest.0.len() != table.uses.len() * 8 + rows * table.row_bytes() {
            return Err("its length is not that of its rows");
        }
        for uses in &mut table.uses {
            *uses = rest.take().map(u64::from_le_bytes).ok_or("it is cut short")?;
        }
        table.rows = table.read_rows(&mut rest, rows)?;
        Ok(table)
    }

    fn read_rows(&self, rest: &mut Rest<'_>, rows: usize) -> Result<BTreeMap<u32, Row>, &'static str> {
        let mut read = BTreeMap::new();
        for _ in 0..rows {
            let id = rest.take().map(u32::from_le_bytes).ok_or("it is cut short")?;
            if id >= self.shape.vocab || read.last_key_value().is_some_and(|(&last, _)| id <= last) {
                return Err("its tokens are not ascending, or not the model's");
            }
            let seen = rest.take().map(u16::from_le_bytes).ok_or("it is cut short")?;
            let mut slots = vec![Slot::default(); self.plan.layers * self.plan.slots];
            for slot in &mut slots {
                let expert = rest.take().map(u16::from_le_bytes).ok_or("it is cut short")?;
                let count = rest.take().map(u16::from_le_bytes).ok_or("it is cut short")?;
                if expert >= self.shape.experts {
                    return Err("it names an expert that the model has not");
                }
                *slot = Slot { expert, count };
            }
            read.insert(id, Row { seen, slots: slots.into() });
        }
        Ok(read)
    }

    pub(super) fn row_bytes(&self) -> usize {
        4 + 2 + self.plan.layers * self.plan.slots * 4
    }
}

fn head(shape: &TableShape) -> [u8; 24] {
    let mut head = [0; 24];
    head[..8].copy_from_slice(&MAGIC);
    let fields = [shape.vocab, shape.layers, shape.experts.into(), shape.chosen.into()];
    for (to, field) in head[8..].chunks_exact_mut(4).zip(fields) {
        to.copy_from_slice(&field.to_le_bytes());
    }
    head
}

/// Bytes not yet read.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }
}
