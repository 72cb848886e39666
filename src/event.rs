//! What `execute/` hands on: how far a row has come, how it ended, and what that cost in time and bytes.

use crate::error::Result;
use crate::request::Fault;

/// Takes what each row makes, sweep by sweep, and its end, in any order of rows.
pub trait Sink: Send {
    /// Keeps what a row that goes on has made in this sweep: a later run goes on behind it.
    ///
    /// # Errors
    /// Storage, as for `push`.
    fn advanced(&mut self, index: u64, news: &Known) -> Result<()>;

    /// Ends a sweep: what came before is kept, whatever becomes of this process.
    ///
    /// # Errors
    /// Storage, as for `push`.
    fn swept(&mut self) -> Result<()>;

    /// Keeps a row's result; each row of the spool, a faulty one included, comes exactly once.
    ///
    /// # Errors
    /// Storage: the result could not be kept. The job must stop; nothing kept before is lost.
    fn push(&mut self, event: Event, stamp: Stamp) -> Result<()>;
}

/// Why a sequence ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The model's own end token, the last of the row's tokens.
    Model,
    /// A token of `stop_token_ids`, the last of the row's tokens.
    StopToken(u32),
    /// A stop string came up in the answer's text.
    StopString(String),
    /// `max_tokens` was reached.
    Length,
    /// The row failed; its tokens so far are kept.
    Failed(Fault),
}

/// A row's result: together with its `Request` all that its answer is made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The request's place in the input.
    pub index: u64,
    /// Generated ids, the ending one included.
    pub tokens: Vec<u32>,
    /// Log-probability of each generated token, before temperature; kept for every row, shown when asked for.
    pub logprobs: Vec<f32>,
    /// One a prompt token, without the first; empty unless asked for.
    pub prompt_logprobs: Vec<f32>,
    /// Why it ended.
    pub end: End,
}

/// What a row has made that has not ended: all of it, or what is new of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Known {
    /// Generated ids.
    pub tokens: Vec<u32>,
    /// Log-probability of each generated token, before temperature.
    pub logprobs: Vec<f32>,
    /// One a prompt token, without the first, as far as they were computed; empty unless asked for.
    pub prompt_logprobs: Vec<f32>,
    /// What it has cost; lists hold the same tokens as `tokens`.
    pub stamp: Stamp,
}

/// What a row cost; never part of its answer.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Stamp {
    /// Admitted to the wave, microseconds since the epoch (UTC).
    pub started_us: i64,
    /// Waited from the job's start to admission, microseconds.
    pub queue_us: i64,
    /// First generated token, microseconds since `started_us`; 0 where none was made.
    pub first_token_us: i64,
    /// Ended, microseconds since `started_us`.
    pub finished_us: i64,
    /// The wave that the row ran in, as the plan numbers them.
    pub group_id: i64,
    /// Runs that worked on the row, the one that ended it included.
    pub attempt: i32,
    /// Tokens that it had when the last of them began to work on it.
    pub resumed_from_token: i32,
    /// This row's even share of the bytes that its sweeps read.
    pub bytes_read: i64,
    /// Blocks of this row's sweeps that were resident.
    pub expert_hits: i64,
    /// Blocks of this row's sweeps that were read.
    pub expert_misses: i64,
    /// A generated token each: microseconds since `started_us`.
    pub token_us: Vec<i64>,
    /// A generated token each: this row's even share of its sweep's bytes.
    pub token_bytes_read: Vec<i64>,
    /// A generated token each: rows in its sweep.
    pub token_rows: Vec<i32>,
}
