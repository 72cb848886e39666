//! One line of the output: a pure function of a request and how its row ended.

use std::fmt::Write;

use sha2::{Digest, Sha256};

use crate::event::{End, Event};
use crate::request::{Fault, Request};
use crate::sample::Words;

/// One row of `data/`, before it becomes columns.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Answer {
    pub(super) custom_id: String,
    pub(super) row_index: u64,
    pub(super) text: Option<String>,
    pub(super) reasoning: Option<String>,
    /// `stop` or `length`.
    pub(super) finish_reason: Option<&'static str>,
    pub(super) stop_reason: Option<String>,
    /// Set in errored rows and in no other.
    pub(super) fault: Option<Fault>,
    pub(super) prompt_tokens: usize,
    pub(super) completion_tokens: usize,
    pub(super) truncated_tokens: u32,
    pub(super) token_ids: Option<Vec<u32>>,
    /// One a generated token.
    pub(super) logprobs: Option<Vec<f32>>,
    /// One a prompt token; only the first is null.
    pub(super) prompt_logprobs: Option<Vec<Option<f32>>>,
    pub(super) seed: i64,
    /// Null where the row failed before it had a prompt.
    pub(super) prompt_sha256: Option<String>,
}

impl Answer {
    /// The answer of `request`, whose row ended with `event`; `words` are what its tokens say.
    pub(super) fn new(request: Request, event: Event, words: Option<Words>) -> Self {
        let prompt_tokens = request.prompt.len();
        let completion_tokens = event.tokens.len();
        let (finish_reason, stop_reason, fault) = match event.end {
            End::Model => (Some("stop"), None, None),
            End::StopToken(id) => (Some("stop"), Some(id.to_string()), None),
            End::StopString(text) => (Some("stop"), Some(text), None),
            End::Length => (Some("length"), None, None),
            End::Failed(fault) => (None, None, Some(fault)),
        };
        let succeeded = fault.is_none();
        if succeeded {
            assert_eq!(event.logprobs.len(), completion_tokens, "row {}: one log-probability a token", request.index);
        }
        let prompt_logprobs = (succeeded && request.sampling.prompt_logprobs).then(|| {
            assert_eq!(event.prompt_logprobs.len() + 1, prompt_tokens, "row {}: one a prompt token but the first", request.index);
            std::iter::once(None).chain(event.prompt_logprobs.into_iter().map(Some)).collect()
        });
        let (text, reasoning) = words.filter(|_| succeeded).map_or((None, None), |words| (Some(words.text), words.reasoning));
        let had_prompt = request.fault.is_none() || prompt_tokens > 0;
        Answer {
            custom_id: request.id,
            row_index: request.index,
            text,
            reasoning,
            finish_reason,
            stop_reason,
            fault,
            prompt_tokens,
            completion_tokens,
            truncated_tokens: request.truncated_tokens,
            token_ids: succeeded.then_some(event.tokens),
            logprobs: (succeeded && request.sampling.logprobs).then_some(event.logprobs),
            prompt_logprobs,
            seed: request.sampling.seed,
            prompt_sha256: had_prompt.then(|| prompt_sha256(&request.prompt)),
        }
    }

    /// About how much memory the row takes as columns, in bytes, those of its timings included.
    pub(super) fn bytes(&self) -> usize {
        const FIXED_BYTES: usize = 512;
        // An id and a log-probability; time, bytes and rows.
        const TOKEN_BYTES: usize = 4 + 4 + 8 + 8 + 4;
        let texts = [&self.text, &self.reasoning, &self.stop_reason].into_iter().flatten().map(String::len).sum::<usize>();
        let fault = self.fault.as_ref().map_or(0, |fault| fault.code.len() + fault.message.len());
        let numbers = self.completion_tokens * TOKEN_BYTES + self.prompt_logprobs.as_ref().map_or(0, |list| list.len() * 4);
        FIXED_BYTES + self.custom_id.len() + texts + fault + numbers
    }
}

/// Lower-case hexadecimal SHA-256 of the ids as little-endian u32.
fn prompt_sha256(prompt: &[u32]) -> String {
    let mut hasher = Sha256::new();
    let mut bytes = Vec::with_capacity(4096);
    for ids in prompt.chunks(1024) {
        bytes.clear();
        bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        hasher.update(&bytes);
    }
    hasher.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes what is written");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Sampling;

    fn request(sampling: Sampling) -> Request {
        Request { index: 3, id: "a".into(), prompt: vec![1, 258, 7], truncated_tokens: 2, sampling, fault: None }
    }

    fn event(end: End) -> Event {
        Event { index: 3, tokens: vec![5, 6], logprobs: vec![-0.5, -1.5], prompt_logprobs: Vec::new(), end }
    }

    fn words() -> Option<Words> {
        Some(Words { text: "hello".into(), reasoning: None })
    }

    #[test]
    fn each_end_has_its_reasons() {
        let reasons = |end| {
            let answer = Answer::new(request(Sampling::default()), event(end), words());
            (answer.finish_reason, answer.stop_reason, answer.fault)
        };
        assert_eq!(reasons(End::Model), (Some("stop"), None, None));
        assert_eq!(reasons(End::StopToken(163_586)), (Some("stop"), Some("163586".into()), None));
        assert_eq!(reasons(End::StopString("\n\n".into())), (Some("stop"), Some("\n\n".into()), None));
        assert_eq!(reasons(End::Length), (Some("length"), None, None));
        let fault = Fault::new("not_finite", "the logits are not finite");
        assert_eq!(reasons(End::Failed(fault.clone())), (None, None, Some(fault)));
    }

    #[test]
    fn log_probabilities_stand_only_where_asked_for() {
        let plain = Answer::new(request(Sampling::default()), event(End::Length), words());
        assert_eq!((plain.logprobs, plain.prompt_logprobs), (None, None));
        let asked = Sampling { logprobs: true, prompt_logprobs: true, ..Sampling::default() };
        let answer = Answer::new(request(asked), Event { prompt_logprobs: vec![-2.0, -0.0], ..event(End::Length) }, words());
        assert_eq!(answer.logprobs, Some(vec![-0.5, -1.5]));
        assert_eq!(answer.prompt_logprobs, Some(vec![None, Some(-2.0), Some(-0.0)]));
        assert_eq!((answer.prompt_tokens, answer.completion_tokens, answer.truncated_tokens), (3, 2, 2));
    }

    #[test]
    fn a_prompt_of_one_token_has_one_null() {
        let asked = Sampling { prompt_logprobs: true, max_tokens: 0, ..Sampling::default() };
        let nothing = Event { tokens: Vec::new(), logprobs: Vec::new(), ..event(End::Length) };
        let answer =
            Answer::new(Request { prompt: vec![17], ..request(asked) }, nothing, Some(Words { text: String::new(), reasoning: None }));
        assert_eq!(answer.prompt_logprobs, Some(vec![None]));
        assert_eq!((answer.token_ids, answer.text.as_deref()), (Some(Vec::new()), Some("")));
        assert_eq!(answer.finish_reason, Some("length"));
    }

    #[test]
    fn an_errored_row_shows_no_answer() {
        let fault = Fault::new("bad_max_tokens", "max_tokens is 4.5");
        let asked = Sampling { logprobs: true, prompt_logprobs: true, ..Sampling::default() };
        let faulty = Request { prompt: Vec::new(), fault: Some(fault.clone()), ..request(asked.clone()) };
        let nothing = Event { tokens: Vec::new(), logprobs: Vec::new(), ..event(End::Failed(fault.clone())) };
        let answer = Answer::new(faulty, nothing, words());
        assert_eq!((answer.text, answer.token_ids, answer.logprobs, answer.prompt_logprobs), (None, None, None, None));
        assert_eq!((answer.prompt_sha256, answer.prompt_tokens, answer.completion_tokens), (None, 0, 0));

        let late = Answer::new(request(asked), event(End::Failed(fault)), words());
        assert_eq!((late.text, late.token_ids, late.prompt_logprobs), (None, None, None));
        assert_eq!((late.prompt_tokens, late.completion_tokens), (3, 2));
        assert!(late.prompt_sha256.is_some(), "its prompt existed");
    }

    #[test]
    fn the_prompt_hash_is_of_little_endian_ids() {
        // sha256sum of the twelve bytes 01 00 00 00 02 01 00 00 07 00 00 00.
        let known = "d059868c6b65c6b7232d59bd380b71057f6c43f61f9bc955e8d79a8a15a8cf92";
        assert_eq!(prompt_sha256(&[1, 258, 7]), known);
        let long: Vec<u32> = (0..5000).collect();
        let whole: Vec<u8> = long.iter().flat_map(|id| id.to_le_bytes()).collect();
        let expected: String = Sha256::digest(&whole).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(prompt_sha256(&long), expected);
    }
}
