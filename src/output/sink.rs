//! From rows that end in any order to parts in input order.
//!
//! Memory is eight bytes a row (where the journal holds it) and one row group, whatever the answers' length.

use std::fs;
use std::ops::Range;

use super::answer::Answer;
use super::columns::{DataColumns, data_fields};
use super::folder::{JobFolder, commit};
use super::journal::Journal;
use super::part::{IdDigest, PartWriter};
use super::timings::{TimingColumns, timing_fields};
use super::{Kept, Wording};
use crate::error::{Error, Kind, Result};
use crate::event::{End, Event, Known, Sink, Stamp};
use crate::spool::Spool;

/// A row group is closed when its answers pass this many bytes, or [`GROUP_ROWS`] rows.
const GROUP_BYTES: usize = 4 << 20;
const GROUP_ROWS: u64 = 1024;
/// The journal's offset of a row that has not ended.
const NOT_ENDED: u64 = 0;
/// A token of a row: id, log-probability and text, and what timings say of it.
const TOKEN_BYTES: u64 = 48;
/// What a row group leaves in memory until its part is closed.
const FOOTER_BYTES: u64 = 40_000;
/// Arrow's columns, their encoded copy, the page being compressed, and the same for timings.
const GROUP_COPIES: u64 = 8;

/// Bytes of memory that kept columns take, for the ledger: their share of a row group, and the batch they are read by with its copy.
/// A value longer than that, and there its row alone, is not in it.
pub const KEPT_BYTES: u64 = (GROUP_COPIES * GROUP_BYTES as u64) + 2 * (8 << 20);

/// All that answers are made of, beside the rows' ends.
pub struct OutputSpec<'a> {
    /// The job's requests.
    pub spool: &'a Spool,
    /// Makes words of tokens.
    pub wording: Box<dyn Wording + 'a>,
    /// The columns of `output.keep`.
    pub kept: Option<Box<dyn Kept + 'a>>,
    /// The model folder's name.
    pub model: String,
    /// Weights, tokenizer, precision and order of summation, as one short text.
    pub system_fingerprint: String,
    /// `output.rows_per_part`.
    pub rows_per_part: u64,
    /// Names this run in `timings/`.
    pub run_id: String,
}

/// What the finished output holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Rows with an answer.
    pub rows_succeeded: u64,
    /// Rows with an error code instead.
    pub rows_errored: u64,
    /// Rows with an answer that `max_tokens` cut.
    pub rows_cut_by_length: u64,
}

/// The job's answers: takes rows as they end and leaves whole parts in `data/` and `timings/`.
pub struct Answers<'a> {
    folder: &'a JobFolder,
    spec: OutputSpec<'a>,
    journal: Journal,
    /// A row each: its offset in the journal.
    offsets: Vec<u64>,
    /// A part each: rows that have not ended.
    waiting: Vec<u64>,
    totals: Totals,
}

/// Bytes of memory that answers under construction take, for the ledger, where the longest row has `tokens` tokens. What stays of
/// every row, eight bytes, and kept columns ([`KEPT_BYTES`]) are not in it.
pub fn memory_bytes(rows: u64, rows_per_part: u64, tokens: u64) -> u64 {
    let a_row = tokens * TOKEN_BYTES;
    let group = (a_row * rows.min(rows_per_part).min(GROUP_ROWS)).min(GROUP_BYTES as u64);
    GROUP_COPIES * group.max(a_row) + FOOTER_BYTES * rows.min(rows_per_part).div_ceil(GROUP_ROWS)
}

impl<'a> Answers<'a> {
    /// Starts the output in an empty `folder`, which stays from here on.
    ///
    /// # Errors
    /// Usage: `rows_per_part` is 0. Storage: the journal cannot be made.
    pub fn create(folder: &'a JobFolder, spec: OutputSpec<'a>) -> Result<Self> {
        if spec.rows_per_part == 0 {
            return Err(Error::usage("output.rows_per_part must be at least 1"));
        }
        let rows = spec.spool.rows();
        let parts = rows.div_ceil(spec.rows_per_part);
        let waiting = (0..parts).map(|part| spec.rows_per_part.min(rows - part * spec.rows_per_part)).collect();
        let journal = Journal::create(&folder.state().join("journal"))?;
        folder.keep();
        Ok(Answers { folder, spec, journal, offsets: vec![NOT_ENDED; rows as usize], waiting, totals: Totals::default() })
    }

    /// Says that all is done, once every row of the input stands in `data/`.
    ///
    /// # Errors
    /// Storage: rows are missing, or the disk refuses. No `_SUCCESS` is written then.
    pub fn finish(self) -> Result<Totals> {
        let rows = self.spec.spool.rows();
        let written = self.totals.rows_succeeded + self.totals.rows_errored;
        let parts = self.waiting.len() as u64;
        if written != rows {
            let missing = rows - written;
            return Err(Error::storage(format!("{missing} of {rows} rows are not in {}", self.folder.data().display())));
        }
        for part in 0..parts {
            let path = self.folder.data().join(part_name(part));
            fs::metadata(&path).map_err(|e| Error::io(Kind::Storage, "find", &path, &e))?;
        }
        let mark = self.folder.state().join("_SUCCESS.partial");
        fs::write(&mark, []).map_err(|e| Error::io(Kind::Storage, "write", &mark, &e))?;
        commit(&mark, &self.folder.data().join("_SUCCESS"))?;
        Ok(self.totals)
    }

    /// Writes a part whose rows have all ended.
    fn write_part(&mut self, part: u64) -> Result<()> {
        self.journal.flush()?;
        let start = part * self.spec.rows_per_part;
        let rows = start..(start + self.spec.rows_per_part).min(self.spec.spool.rows());
        let state = self.folder.state();
        let mut fields = data_fields();
        fields.extend(self.spec.kept.as_ref().map(|kept| kept.schema()).unwrap_or_default());
        let mut data = PartWriter::create(state.join(format!("part-{part:06}.partial")), fields)?;
        let mut timings = PartWriter::create(state.join(format!("part-{part:06}.timings.partial")), timing_fields())?;
        let mut tally = Tally { totals: self.totals, ids: IdDigest::default() };
        let mut next = rows.start;
        while next < rows.end {
            next = self.write_group(next..rows.end, &mut data, &mut timings, &mut tally)?;
        }
        // Timings first: a part in `data/` is a part that is done.
        let (data, timings) = (data.close()?, timings.close()?);
        timings.commit(&self.folder.timings().join(part_name(part)))?;
        data.commit_checked(&self.folder.data().join(part_name(part)), &tally.ids)?;
        self.totals = tally.totals;
        Ok(())
    }

    /// Writes the next row group of `rows` and returns the row after it. Where it ends follows from the answers alone.
    fn write_group(&mut self, rows: Range<u64>, data: &mut PartWriter, timings: &mut PartWriter, tally: &mut Tally) -> Result<u64> {
        let (mut answers, mut stamps) = (DataColumns::new(), TimingColumns::new());
        let mut bytes = 0;
        let mut next = rows.start;
        while next < rows.end && next - rows.start < GROUP_ROWS && bytes < GROUP_BYTES {
            let (answer, stamp) = self.answer(next)?;
            tally.count(&answer);
            bytes += answer.bytes();
            if let Some(kept) = &mut self.spec.kept {
                bytes += kept.bytes(next)?;
            }
            answers.push(&answer);
            stamps.push(&answer.custom_id, &stamp);
            next += 1;
        }
        let mut columns = answers.finish(&self.spec.model, &self.spec.system_fingerprint);
        if let Some(kept) = &mut self.spec.kept {
            columns.extend(kept.rows(rows.start..next)?);
        }
        data.write(columns)?;
        timings.write(stamps.finish(&self.spec.run_id))?;
        Ok(next)
    }

    fn answer(&self, row: u64) -> Result<(Answer, Stamp)> {
        let request = self.spec.spool.get(row)?;
        let (event, stamp) = self.journal.read(self.offsets[row as usize])?;
        if event.index != row || request.index != row {
            return Err(Error::storage(format!("the journal in {} mixes up row {row}", self.folder.state().display())));
        }
        let succeeded = !matches!(event.end, End::Failed(_));
        let words = succeeded.then(|| self.spec.wording.words(&request, &event.tokens, &event.end)).flatten();
        Ok((Answer::new(request, event, words), stamp))
    }
}

impl Sink for Answers<'_> {
    fn advanced(&mut self, _: u64, _: &Known) -> Result<()> {
        Ok(())
    }

    fn swept(&mut self) -> Result<()> {
        Ok(())
    }

    fn push(&mut self, event: Event, stamp: Stamp) -> Result<()> {
        let offset = &mut self.offsets[event.index as usize];
        assert_eq!(*offset, NOT_ENDED, "row {} ends once", event.index);
        *offset = self.journal.push(&event, &stamp)?;
        let part = event.index / self.spec.rows_per_part;
        let waiting = &mut self.waiting[part as usize];
        *waiting -= 1;
        if *waiting == 0 { self.write_part(part) } else { Ok(()) }
    }
}

/// What a part adds to the totals, once it is committed.
struct Tally {
    totals: Totals,
    ids: IdDigest,
}

impl Tally {
    fn count(&mut self, answer: &Answer) {
        self.ids.push(answer.row_index, &answer.custom_id);
        let errored = u64::from(answer.fault.is_some());
        self.totals.rows_errored += errored;
        self.totals.rows_succeeded += 1 - errored;
        self.totals.rows_cut_by_length += u64::from(answer.finish_reason == Some("length"));
    }
}

fn part_name(part: u64) -> String {
    format!("part-{part:06}.parquet")
}
