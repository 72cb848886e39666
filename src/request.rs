//! One input row, resolved: what `input/` makes of a line and every later room works from.

use serde::{Deserialize, Serialize};

/// A row as it lies in the spool: complete, validated, independent of every other row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// Place in the input, counted from 0 over all files.
    pub index: u64,
    /// `custom_id` of the output.
    pub id: String,
    /// Prompt token ids; empty in a faulty row. In the spool they lie before the rest, as numbers.
    #[serde(skip)]
    pub prompt: Vec<u32>,
    /// Tokens that `input.truncate` cut from the prompt.
    pub truncated_tokens: u32,
    /// How the next tokens are chosen and when they end.
    pub sampling: Sampling,
    /// Why this row cannot run; such a row becomes an errored row of the output.
    pub fault: Option<Fault>,
}

/// What the plan knows of a row: numbers alone, 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowFacts {
    /// Prompt length in tokens.
    pub prompt_tokens: u32,
    /// Most new tokens.
    pub max_tokens: u32,
    /// The row is faulty and only reported.
    pub faulty: bool,
    /// The row draws its tokens (temperature above 0), so that a whole row of logits is held for it.
    pub drawn: bool,
    /// The row wants its prompt's log-probabilities.
    pub prompt_logprobs: bool,
}

const _: () = assert!(size_of::<RowFacts>() <= 12);

impl RowFacts {
    /// The facts of a request.
    pub fn of(request: &Request) -> Self {
        RowFacts {
            prompt_tokens: request.prompt.len() as u32,
            max_tokens: request.sampling.max_tokens,
            faulty: request.fault.is_some(),
            drawn: request.sampling.temperature > 0.0,
            prompt_logprobs: request.sampling.prompt_logprobs,
        }
    }

    /// Whether no token has to be computed.
    pub fn is_idle(&self) -> bool {
        self.faulty || (self.max_tokens == 0 && !self.prompt_logprobs)
    }

    /// Most positions that the sequence can take.
    pub fn positions_max(&self) -> u64 {
        u64::from(self.prompt_tokens) + u64::from(self.max_tokens.saturating_sub(1))
    }
}

/// Why a row failed: data of the output, not an error of the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Stable, lower_snake_case: `bad_max_tokens`, `prompt_too_long`, `no_tokenizer`, ...
    pub code: String,
    /// For a person; names the field.
    pub message: String,
}

impl Fault {
    /// A fault with a stable `code` and a message for a person.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        Fault { code: code.into(), message: message.into() }
    }
}

/// vLLM's sampling names and meanings, resolved: a row's own values over the job's over the defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// In (0, 1]; 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// In [0, 1]; 0 keeps all.
    pub min_p: f32,
    /// Key of the counter-based generator, beside id and position.
    pub seed: i64,
    /// Most new tokens; 0 scores the prompt alone.
    pub max_tokens: u32,
    /// Strings that end the answer's text; none is empty.
    pub stop: Vec<String>,
    /// Token ids that end the answer.
    pub stop_token_ids: Vec<u32>,
    /// Keep the log-probability of each chosen token, before temperature.
    pub logprobs: bool,
    /// Keep the log-probability of each prompt token but the first.
    pub prompt_logprobs: bool,
    /// Go on past the model's own end tokens.
    pub ignore_eos: bool,
}

/// The documented defaults of a job that sets nothing; they are vLLM's.
impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            max_tokens: 16,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            logprobs: false,
            prompt_logprobs: false,
            ignore_eos: false,
        }
    }
}
