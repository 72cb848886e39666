//! Where do answers go, and when are they safe?
//!
//! A night's answers are worth more than the program that made them: rows end in any order, the disk fills up, the power
//! goes. So a row that ended goes to the journal (eight bytes of memory a row remain), and only when every row of a part
//! has ended is the part made, from the journal and the spool, in input order. A part is written beside its place, synced,
//! opened again, its ids compared with the input's, then renamed: what carries a Parquet name is whole.
//!
//! What is not here: an answer never looks at a [`crate::event::Stamp`], at a clock or at another row, so the bytes of `data/` follow
//! from the rows alone (`parts_do_not_depend_on_the_order_in_which_rows_end`).

mod answer;
mod columns;
mod folder;
mod journal;
mod part;
mod sink;
mod summary;
mod timings;

pub use columns::data_fields;
pub use folder::JobFolder;
pub(crate) use folder::replace;
pub use sink::{Answers, KEPT_BYTES, OutputSpec, Totals, memory_bytes};
pub use summary::{Blocks, ExpertLoads, Summary};

use std::ops::Range;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;

use crate::error::{Error, Result};
use crate::event::End;
use crate::request::Request;
use crate::sample::Words;

/// Turns a row's tokens into text; the tokenizer's side of an answer.
pub trait Wording: Send {
    /// The words of a row that succeeded; none where the model's folder has no tokenizer.
    fn words(&self, request: &Request, tokens: &[u32], end: &End) -> Option<Words>;
}

/// The input's columns that `output.keep` names, in input order.
pub trait Kept: Send {
    /// The columns' names and types, already free of names that the output has itself.
    fn schema(&self) -> Vec<Field>;

    /// The columns of these rows, one array a field of `schema`.
    ///
    /// # Errors
    /// Storage: the kept columns cannot be read.
    fn rows(&mut self, range: Range<u64>) -> Result<Vec<ArrayRef>>;

    /// Bytes of one row's columns, the same whatever lies beside it.
    ///
    /// # Errors
    /// Storage: the kept columns cannot be read.
    fn bytes(&mut self, row: u64) -> Result<usize> {
        let size = |column: &ArrayRef| column.to_data().get_slice_memory_size();
        let sizes: std::result::Result<Vec<usize>, _> = self.rows(row..row + 1)?.iter().map(size).collect();
        sizes.map(|sizes| sizes.iter().sum()).map_err(|e| Error::storage(format!("cannot weigh the kept columns of row {row}: {e}")))
    }
}

#[cfg(test)]
mod tests;
