//! Which channel is a token in? A prompt may leave a thinking channel open; the answer's text begins only when the
//! response channel opens, and markup is known by token ids alone, never by what text looks like.

use super::needle::Needle;
use crate::tokenizer::{Channels, Tokenizer};

/// What a room that makes text of tokens needs to know of a tokenizer.
pub trait Vocabulary: Sync {
    /// The bytes of token `id`; None where it contributes no text (control, reserved and unassigned ids).
    fn bytes(&self, id: u32) -> Option<&[u8]>;

    /// The model's markup.
    fn channels(&self) -> &Channels;
}

impl Vocabulary for Tokenizer {
    fn bytes(&self, id: u32) -> Option<&[u8]> {
        Tokenizer::bytes(self, id)
    }

    fn channels(&self) -> &Channels {
        Tokenizer::channels(self)
    }
}

/// Whether `prompt` leaves the thinking channel open.
pub(super) fn opens_thinking(channels: &Channels, prompt: &[u32]) -> bool {
    !channels.thinking_open.is_empty() && prompt.ends_with(&channels.thinking_open)
}

/// Where a sequence stands between thinking and response.
#[derive(Debug, Clone)]
enum Place {
    /// Until the closing ids have come.
    Thinking(Needle<u32>),
    /// Until the opening ids have come.
    Between(Needle<u32>),
    /// Text from here on.
    Response,
}

/// Follows one sequence's channels, token by token.
#[derive(Debug, Clone)]
pub(super) struct Tracker {
    place: Place,
    response_open: Vec<u32>,
    generated: usize,
    reasoning_tokens: Option<usize>,
}

impl Tracker {
    /// The channel that `prompt` leaves open; without markup everything is response.
    pub(super) fn new(channels: Option<&Channels>, prompt: &[u32]) -> Self {
        let thinking = channels.filter(|channels| opens_thinking(channels, prompt));
        let (place, response_open) = match thinking {
            Some(channels) if !channels.thinking_close.is_empty() => {
                (Place::Thinking(Needle::new(channels.thinking_close.clone())), channels.response_open.clone())
            }
            _ => (Place::Response, Vec::new()),
        };
        Tracker { place, response_open, generated: 0, reasoning_tokens: None }
    }

    /// True where the next token belongs to the answer's text.
    pub(super) fn in_response(&self) -> bool {
        matches!(self.place, Place::Response)
    }

    /// How many of the tokens so far are thinking, once that channel is closed.
    pub(super) fn reasoning_tokens(&self) -> Option<usize> {
        self.reasoning_tokens
    }

    /// Takes the next token.
    pub(super) fn push(&mut self, token: u32) {
        self.generated += 1;
        match &mut self.place {
            Place::Thinking(close) => {
                if close.push(&token) {
                    self.reasoning_tokens = Some(self.generated - close.len());
                    let open = std::mem::take(&mut self.response_open);
                    self.place = if open.is_empty() { Place::Response } else { Place::Between(Needle::new(open)) };
                }
            }
            Place::Between(open) => {
                if open.push(&token) {
                    self.place = Place::Response;
                }
            }
            Place::Response => {}
        }
    }
}

/// A toy vocabulary for tests: ids below 256 are bytes, 300.. are the words given, 900.. is markup.
#[cfg(test)]
pub(super) mod toy {
    use super::*;

    pub(crate) const OPEN: u32 = 900;
    pub(crate) const CLOSE: u32 = 901;
    pub(crate) const SEP: u32 = 902;
    pub(crate) const END: u32 = 903;
    pub(crate) const THINK: u32 = 300;
    pub(crate) const RESPONSE: u32 = 301;

    pub(crate) struct Toy {
        words: Vec<Vec<u8>>,
        bytes: Vec<u8>,
        channels: Channels,
    }

    impl Toy {
        pub(crate) fn new(words: &[&[u8]]) -> Self {
            let mut all: Vec<Vec<u8>> = vec![b"think".to_vec(), b"response".to_vec()];
            all.extend(words.iter().map(|word| word.to_vec()));
            Toy {
                words: all,
                bytes: (0..=255).collect(),
                channels: Channels {
                    thinking_open: vec![OPEN, THINK, SEP],
                    thinking_close: vec![CLOSE, THINK, SEP],
                    response_open: vec![OPEN, RESPONSE, SEP],
                    response_end: CLOSE,
                    ends: vec![END, END + 1],
                },
            }
        }
    }

    impl Vocabulary for Toy {
        fn bytes(&self, id: u32) -> Option<&[u8]> {
            let id = id as usize;
            if id < 256 { Some(&self.bytes[id..=id]) } else { self.words.get(id.checked_sub(300)?).map(Vec::as_slice) }
        }

        fn channels(&self) -> &Channels {
            &self.channels
        }
    }

    /// A request with this prompt and these stop strings, 1,000 tokens at most.
    pub(crate) fn request(prompt: &[u32], stop: &[&str]) -> crate::request::Request {
        let sampling = crate::request::Sampling {
            max_tokens: 1_000,
            stop: stop.iter().map(|s| (*s).to_owned()).collect(),
            ..crate::request::Sampling::default()
        };
        crate::request::Request { index: 0, id: "toy".into(), prompt: prompt.to_vec(), truncated_tokens: 0, sampling, fault: None }
    }
}
