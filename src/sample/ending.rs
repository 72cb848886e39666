//! Is this the end? Asked after each token, answered with work in proportion to the token alone.
//!
//! When one token gives several reasons, the first of this list is the answer's: the model's own end, a token of
//! `stop_token_ids`, a stop string, `max_tokens`. Of several stop strings that one token completes the leftmost wins, as the
//! text is cut there; where two begin together, the one that the request lists first. Text of the prompt, of the thinking channel and
//! of an ending token is never searched; a character is searched once its last byte is there.

use crate::event::End;
use crate::request::Request;

use super::channels::{Tracker, Vocabulary};
use super::needle::Needle;
use super::utf8::Decoder;

/// One sequence's search for its end.
pub struct Ending<'v, V: ?Sized> {
    vocabulary: Option<&'v V>,
    tracker: Tracker,
    ignore_eos: bool,
    /// Ascending.
    stop_token_ids: Vec<u32>,
    stops: Stops,
    left: u32,
}

impl<'v, V: Vocabulary + ?Sized> Ending<'v, V> {
    /// The search for the end of `request`'s answer, before its first token. Without a vocabulary (a model folder without tokenizer
    /// files) there is no text and no known markup: `stop_token_ids` and `max_tokens` alone end an answer.
    pub fn new(request: &Request, vocabulary: Option<&'v V>) -> Self {
        let sampling = &request.sampling;
        let mut stop_token_ids = sampling.stop_token_ids.clone();
        stop_token_ids.sort_unstable();
        Ending {
            vocabulary,
            tracker: Tracker::new(vocabulary.map(V::channels), &request.prompt),
            ignore_eos: sampling.ignore_eos,
            stop_token_ids,
            stops: Stops::new(&sampling.stop),
            left: sampling.max_tokens,
        }
    }

    /// Takes the next token; Some where it is the answer's last. Afterwards the search must not go on.
    pub fn push(&mut self, token: u32) -> Option<End> {
        let in_response = self.tracker.in_response();
        self.tracker.push(token);
        self.left = self.left.saturating_sub(1);
        if !self.ignore_eos && self.is_model_end(token, in_response) {
            return Some(End::Model);
        }
        if self.stop_token_ids.binary_search(&token).is_ok() {
            return Some(End::StopToken(token));
        }
        let bytes = self.vocabulary.filter(|_| in_response).and_then(|vocabulary| vocabulary.bytes(token));
        if let Some(stop) = bytes.and_then(|bytes| self.stops.push(bytes)) {
            return Some(End::StopString(stop));
        }
        (self.left == 0).then_some(End::Length)
    }

    fn is_model_end(&self, token: u32, in_response: bool) -> bool {
        self.vocabulary.is_some_and(|vocabulary| {
            let channels = vocabulary.channels();
            channels.ends.contains(&token) || (in_response && channels.response_end == token)
        })
    }
}

/// The stop strings of one answer and the text that they wait for.
struct Stops {
    needles: Vec<(Needle<u8>, String)>,
    decoder: Decoder,
    /// Settled text of the token at hand.
    text: String,
    /// Bytes of settled text before it.
    before: usize,
}

impl Stops {
    fn new(stops: &[String]) -> Self {
        let needles = stops.iter().filter(|stop| !stop.is_empty()).map(|stop| (Needle::new(stop.clone().into_bytes()), stop.clone()));
        Stops { needles: needles.collect(), decoder: Decoder::default(), text: String::new(), before: 0 }
    }

    /// Takes a token's bytes; the leftmost stop string that they complete.
    fn push(&mut self, bytes: &[u8]) -> Option<String> {
        if self.needles.is_empty() {
            return None;
        }
        self.text.clear();
        self.decoder.push(bytes, &mut self.text);
        let mut best: Option<(usize, &str)> = None;
        for (needle, stop) in &mut self.needles {
            let length = needle.len();
            let end = self.text.bytes().position(|byte| needle.push(&byte)).map(|at| self.before + at + 1);
            if let Some(start) = end.map(|end| end - length)
                && best.is_none_or(|(leftmost, _)| start < leftmost)
            {
                best = Some((start, stop));
            }
        }
        self.before += self.text.len();
        best.map(|(_, stop)| stop.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::super::channels::toy::{CLOSE, END, OPEN, RESPONSE, SEP, THINK, Toy, request};
    use super::*;

    /// Pushes until the end; how many tokens it took, and the end.
    fn run(request: &Request, toy: &Toy, tokens: &[u32]) -> Option<(usize, End)> {
        let mut ending = Ending::new(request, Some(toy));
        tokens.iter().enumerate().find_map(|(i, token)| ending.push(*token).map(|end| (i + 1, end)))
    }

    fn bytes(text: &str) -> Vec<u32> {
        text.bytes().map(u32::from).collect()
    }

    #[test]
    fn the_models_own_ends() {
        let toy = Toy::new(&[]);
        let plain = request(&[1], &[]);
        assert_eq!(run(&plain, &toy, &[65, CLOSE, 66]), Some((2, End::Model)));
        assert_eq!(run(&plain, &toy, &[65, END + 1]), Some((2, End::Model)));
        let mut on = plain.clone();
        on.sampling.ignore_eos = true;
        assert_eq!(run(&on, &toy, &[65, CLOSE, END]), None);
        on.sampling.stop_token_ids = vec![CLOSE, 7];
        assert_eq!(run(&on, &toy, &[65, CLOSE, END]), Some((2, End::StopToken(CLOSE))));
    }

    #[test]
    fn thinking_must_open_a_response_before_a_close_ends_it() {
        let toy = Toy::new(&[]);
        let thinking = request(&[1, OPEN, THINK, SEP], &["x"]);
        let answer = [bytes("x"), vec![CLOSE, THINK, SEP, OPEN, RESPONSE, SEP], bytes("a"), vec![CLOSE]].concat();
        assert_eq!(run(&thinking, &toy, &answer), Some((answer.len(), End::Model)));
        assert_eq!(run(&thinking, &toy, &[CLOSE, 65, END]), Some((3, End::Model)));
        let stopped = [bytes("x"), vec![CLOSE, THINK, SEP, OPEN, RESPONSE, SEP], bytes("ax")].concat();
        assert_eq!(run(&thinking, &toy, &stopped), Some((stopped.len(), End::StopString("x".into()))));
    }

    #[test]
    fn a_stop_string_may_begin_and_end_inside_tokens() {
        let toy = Toy::new(&[b"foo ba", b"r baz", b"\xE2\x82", b"\xAC!"]);
        assert_eq!(run(&request(&[1], &["bar b"]), &toy, &[302, 303]), Some((2, End::StopString("bar b".into()))));
        assert_eq!(run(&request(&[1], &["€"]), &toy, &[304, 305]), Some((2, End::StopString("€".into()))));
        assert_eq!(run(&request(&[302], &["foo ba"]), &toy, &[303]), None);
        assert_eq!(run(&request(&[1], &["ba\u{FFFD}"]), &toy, &[302, 304]), None, "the character may still be finished");
    }

    #[test]
    fn the_leftmost_stop_string_wins_then_the_first_listed() {
        let toy = Toy::new(&[b"xabcz"]);
        let stop = |stops: &[&str]| run(&request(&[1], stops), &toy, &[302]).map(|(_, end)| end);
        assert_eq!(stop(&["z", "abc"]), Some(End::StopString("abc".into())));
        assert_eq!(stop(&["bc", "abc"]), Some(End::StopString("abc".into())));
        assert_eq!(stop(&["abc", "ab"]), Some(End::StopString("abc".into())));
        assert_eq!(stop(&["ab", "abc"]), Some(End::StopString("ab".into())));
        assert_eq!(run(&request(&[1], &["abc", "ab"]), &toy, &bytes("abc")), Some((2, End::StopString("ab".into()))));
    }

    #[test]
    fn length_comes_last() {
        let toy = Toy::new(&[]);
        let mut short = request(&[1], &["b"]);
        short.sampling.max_tokens = 2;
        assert_eq!(run(&short, &toy, &bytes("ac")), Some((2, End::Length)));
        assert_eq!(run(&short, &toy, &bytes("ab")), Some((2, End::StopString("b".into()))));
        assert_eq!(run(&short, &toy, &[65, CLOSE]), Some((2, End::Model)));
    }

    #[test]
    fn without_a_vocabulary_ids_and_length_still_end() {
        let mut bare = request(&[1], &["a"]);
        bare.sampling.stop_token_ids = vec![9];
        bare.sampling.max_tokens = 3;
        let mut ending = Ending::<Toy>::new(&bare, None);
        assert_eq!([97, CLOSE, END].map(|token| ending.push(token)), [None, None, Some(End::Length)]);
        assert_eq!(Ending::<Toy>::new(&bare, None).push(9), Some(End::StopToken(9)));
    }
}
