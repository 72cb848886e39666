//! What did the person ask for? A TOML file and flags become one validated [`Job`], one section a room.
//!
//! A mistake that shows in the morning has cost a night, so nothing is guessed: an unknown key, a value out of range and a key whose feature
//! is not built are errors that name the line, the key and what it takes. No file is touched here: the text comes in, paths go out.

mod build;
mod settings;

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::request::Sampling;

pub use crate::kernels::Path as KernelName;
pub use crate::plan::Grouping;
pub use crate::plan::States;
pub use settings::Override;

/// What was asked, validated; facts of the machine and open files are not in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The checkpoint's folder.
    pub model: PathBuf,
    /// Which rows, and how a row becomes a prompt.
    pub input: InputSection,
    /// The job's sampling; a row's own keys win.
    pub sampling: Sampling,
    /// How the machine is used; nothing here changes an answer but `precision`.
    pub engine: EngineSection,
    /// `plan.grouping`; the plan's choice where unset.
    pub grouping: Option<Grouping>,
    /// `plan.keep_routing`: prompts are recorded beside answers, and the record stays.
    pub keep_routing: bool,
    /// Where answers go.
    pub output: OutputSection,
}

impl Job {
    /// Reads `text`, the content of the job file that messages call `name`, and lays `overrides` over it in order. Paths of the file
    /// start from the folder `base`, paths of overrides from the current one. Without a file `text` is empty.
    ///
    /// # Errors
    /// Usage, naming the line or the flag, the key and what it takes.
    pub fn parse(text: &str, name: &str, base: &Path, overrides: &[Override]) -> Result<Job> {
        build::job(&settings::Settings::read(text, name, base, overrides)?)
    }
}

/// `[input]`.
#[derive(Debug, Clone, PartialEq)]
pub struct InputSection {
    /// Files or glob patterns, in order; a name that exists as it is written is that file.
    pub paths: Vec<PathBuf>,
    /// The column that names a row; `custom_id`, then `id`, where unset.
    pub id: Option<String>,
    /// minijinja template of one user message, over the row's columns.
    pub template: Option<String>,
    /// A system message before the template's user message.
    pub system: Option<String>,
    /// Open the thinking channel.
    pub thinking: bool,
    /// What becomes of a line that is not a JSON object.
    pub on_bad_line: OnBadLine,
    /// Longest prompt in tokens; unlimited where unset.
    pub max_prompt_tokens: Option<u32>,
    /// Which side of a document gives way to `max_prompt_tokens`; too long is an errored row where unset.
    pub truncate: Option<Side>,
    /// Columns that the output keeps (`output.keep`).
    pub keep: Vec<String>,
}

/// `input.on_bad_line`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnBadLine {
    /// The input is refused and the line named.
    Refuse,
    /// The line becomes an errored row.
    Row,
}

/// `input.truncate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The document's beginning is cut.
    Left,
    /// The document's end is cut.
    Right,
}

/// `[engine]`.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineSection {
    /// The ledger's ceiling in bytes; 80 percent of what the machine still has where unset.
    pub memory_bytes: Option<u64>,
    /// Threads of arithmetic; all processors where unset.
    pub threads: Option<usize>,
    /// Most sequences that decode together; as many as fit where unset.
    pub wave: Option<usize>,
    /// Most prompt rows in a sweep; the plan's choice where unset.
    pub prefill_rows: Option<usize>,
    /// Most bytes of weights kept in memory; what is left of the budget where unset.
    pub resident_bytes: Option<u64>,
    /// Whether weights are read past the page cache where the file system can.
    pub direct_io: bool,
    /// `auto` where unset.
    pub kernel: Option<KernelName>,
    /// What foretells which experts an answer uses.
    pub predict: Predict,
    /// Where the states of sequences lie; the plan's choice where unset.
    pub states: Option<States>,
    /// The folder for what is learned of models; the user's cache folder where unset.
    pub cache: Option<PathBuf>,
    /// The folder for states that do not fit memory; the job's own where unset.
    pub scratch: Option<PathBuf>,
    /// Most bytes of states that may be written there; 0 for none at all.
    pub scratch_write_limit_bytes: Option<u64>,
}

/// `engine.predict`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Predict {
    /// Whatever has been best so far.
    Auto,
    /// What the prompt uses.
    Prefill,
    /// What its tokens used in earlier jobs.
    Table,
    /// What answers to like prompts used.
    Learned,
    /// As learned, by the prompt's first layers alone.
    Probe,
}

/// `[output]`.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputSection {
    /// The job's folder.
    pub path: PathBuf,
    /// Rows in a Parquet part.
    pub rows_per_part: u64,
}

#[cfg(test)]
mod tests;
