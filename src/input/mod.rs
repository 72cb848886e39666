//! What are the rows? Files in, numbered requests in a spool out.
//!
//! An input has up to 10 GB and 10^8 rows, so nothing is held but 20 bytes a row (28 at the moment when ids are compared): files are read
//! as a stream, requests go to the spool, kept columns to an Arrow file. A row whose content is wrong is data, an errored row; what leaves in doubt which rows there are
//! (a torn line, an id that stands twice, a file that is missing) refuses the job before work, with file and line.
//!
//! The order of rows is the order of files and of lines in them; nothing here changes it.

mod cells;
mod columns;
mod files;
mod ids;
mod intake;
mod jsonl;
mod kept;
mod parquet;
mod portable;
mod prompt;
mod request;
mod room;
mod sampling;
mod template;

use std::cell::RefCell;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::job::InputSection;
use crate::request::{RowFacts, Sampling};
use crate::spool::Spool;
use crate::tokenizer::Tokenizer;

pub use kept::KeptReader;
#[cfg(test)]
pub(crate) use kept::TAKEN;
pub use room::Room;

/// What reading has to know of the model and of the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelFacts {
    /// Rows of the embedding: token ids lie below.
    pub vocab: usize,
    /// Memory for reading.
    pub room: Room,
}

/// One file of the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// As the job or the glob pattern names it.
    pub path: PathBuf,
    /// Length in bytes.
    pub bytes: u64,
    /// Rows in it, errored ones included.
    pub rows: u64,
    /// BLAKE3 of its bytes.
    pub blake3: [u8; 32],
}

/// The input, read to its end.
pub struct Ingested {
    /// All requests, in input order.
    pub spool: Spool,
    /// Output columns that [`KeptReader`] gives, in the job's order of `output.keep`; empty without kept columns.
    pub kept: Vec<arrow::datatypes::Field>,
    /// A row each, in input order.
    pub facts: Vec<RowFacts>,
    /// Most memory that the reading of one row may have taken.
    pub row_bytes: u64,
    /// The files, in the order in which they were read.
    pub files: Vec<InputFile>,
    /// BLAKE3 over the bytes of all files in order; their names are not in it.
    pub fingerprint: [u8; 32],
}

/// Reads the whole input into `state`: the spool and, where columns are kept, `kept.arrow`. `sampling` holds the job's values, which a
/// row's own override; what reading has to know of the model is in `model`. `watch` is told the number of rows so far, now and then.
///
/// # Errors
/// Usage: the template's syntax, or a column that no row has. Refused: a file that is missing, empty, of an unknown kind or
/// unreadable; a line that is not a JSON object; ids that stand twice or are given to some rows only. Storage: `state` cannot be written.
pub fn read(
    section: &InputSection,
    sampling: &Sampling,
    tokenizer: Option<&Tokenizer>,
    model: &ModelFacts,
    state: &Path,
    watch: &mut dyn FnMut(u64),
) -> Result<Ingested> {
    if let Some(id) = sampling.stop_token_ids.iter().find(|&&id| id as usize >= model.vocab) {
        return Err(Error::usage(format!("sampling.stop_token_ids holds {id}, but the model's vocabulary has {} ids", model.vocab)));
    }
    let sources = files::resolve(&section.paths)?;
    let template = section.template.as_deref().map(template::Template::new).transpose()?;
    let survey = intake::survey(&sources, section, template.as_ref())?;
    let forms = request::Forms {
        section,
        sampling,
        tokenizer,
        vocab: model.vocab,
        template: template.as_ref(),
        room: model.room,
        trouble: RefCell::default(),
    };
    intake::Intake::start(survey, forms, state, watch)?.run(&sources)
}

/// Where a row stands, for messages.
#[derive(Debug, Clone, Copy)]
struct Place<'a> {
    path: &'a Path,
    /// "line" or "row", which are counted from 1.
    unit: &'static str,
    number: u64,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.path.display(), self.unit, self.number)
    }
}

#[cfg(test)]
mod tests;
