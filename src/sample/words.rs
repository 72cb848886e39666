//! What does an answer say? Its tokens become text once, when the answer is written, by the rules that [`super::Ending`] searched by.

use crate::event::End;
use crate::request::Request;

use super::channels::opens_thinking;
use super::channels::{Tracker, Vocabulary};
use super::utf8::Decoder;

/// An answer's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Words {
    /// What the response channel holds, before a stop string; empty while that channel is not open.
    pub text: String,
    /// What the thinking channel holds; None where the prompt did not open it.
    pub reasoning: Option<String>,
}

/// Makes text of the generated `tokens` of `request`, which ended by `end`. Control tokens and an ending token contribute nothing; bytes
/// that make no character become U+FFFD.
pub fn words<V: Vocabulary + ?Sized>(request: &Request, tokens: &[u32], end: &End, vocabulary: &V) -> Words {
    let spoken = match end {
        End::Model | End::StopToken(_) => &tokens[..tokens.len().saturating_sub(1)],
        End::StopString(_) | End::Length | End::Failed(_) => tokens,
    };
    let channels = vocabulary.channels();
    let mut tracker = Tracker::new(Some(channels), &request.prompt);
    let mut response_from = 0;
    while response_from < spoken.len() && !tracker.in_response() {
        tracker.push(spoken[response_from]);
        response_from += 1;
    }
    let mut text = decode(&spoken[response_from..], vocabulary);
    if let End::StopString(stop) = end
        && let Some(at) = text.find(stop)
    {
        text.truncate(at);
    }
    let thinking = &spoken[..tracker.reasoning_tokens().unwrap_or(response_from)];
    Words { text, reasoning: opens_thinking(channels, &request.prompt).then(|| decode(thinking, vocabulary)) }
}

fn decode<V: Vocabulary + ?Sized>(tokens: &[u32], vocabulary: &V) -> String {
    let mut text = String::new();
    let mut decoder = Decoder::default();
    for bytes in tokens.iter().filter_map(|token| vocabulary.bytes(*token)) {
        decoder.push(bytes, &mut text);
    }
    decoder.finish(&mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::super::channels::toy::{CLOSE, END, OPEN, RESPONSE, SEP, THINK, Toy, request};
    use super::super::ending::Ending;
    use super::*;
    use proptest::prelude::*;

    fn toy() -> Toy {
        Toy::new(&[b"ab", b"ba", b"b\xE2", b"\x82", b"\xACa", b"\xF0\x9F", b""])
    }

    #[test]
    fn channels_are_split_by_ids() {
        let toy = Toy::new(&[]);
        let thinking = request(&[OPEN, THINK, SEP], &[]);
        let whole = [65, CLOSE, THINK, SEP, 88, OPEN, RESPONSE, SEP, 66, 67, CLOSE];
        let at = |n: usize, end: End| words(&thinking, &whole[..n], &end, &toy);
        let pair = |text: &str, reasoning: &str| Words { text: text.into(), reasoning: Some(reasoning.into()) };
        assert_eq!(at(1, End::Length), pair("", "A"));
        assert_eq!(at(3, End::Length), pair("", "Athink"));
        assert_eq!(at(4, End::Length), pair("", "A"));
        assert_eq!(at(7, End::Length), pair("", "A"));
        assert_eq!(at(8, End::Length), pair("", "A"));
        assert_eq!(at(9, End::Length), pair("B", "A"));
        assert_eq!(at(11, End::Model), pair("BC", "A"));
        assert_eq!(words(&request(&[1], &[]), &[65, CLOSE], &End::Model, &toy), Words { text: "A".into(), reasoning: None });
        assert_eq!(words(&request(&[1], &[]), &[65, 66], &End::StopToken(66), &toy).text, "A");
        assert_eq!(words(&request(&[1], &[]), &[], &End::Length, &toy).text, "");
    }

    #[test]
    fn an_unfinished_character_shows_at_the_very_end_alone() {
        let toy = toy();
        assert_eq!(words(&request(&[1], &[]), &[304, 305], &End::Length, &toy).text, "b\u{FFFD}");
        assert_eq!(words(&request(&[1], &[]), &[304, SEP, 305, 306], &End::Length, &toy).text, "b€a");
    }

    fn tokens() -> impl Strategy<Value = Vec<u32>> {
        let token = prop_oneof![4 => 302u32..309, 2 => 97u32..99, 1 => prop::sample::select(vec![OPEN, CLOSE, SEP, END, THINK, RESPONSE])];
        let markup = Just(vec![CLOSE, THINK, SEP, OPEN, RESPONSE, SEP]);
        (prop::collection::vec(token.clone(), 0..8), prop::option::of(markup), prop::collection::vec(token, 0..16))
            .prop_map(|(before, markup, after)| [before, markup.unwrap_or_default(), after].concat())
    }

    fn stops() -> impl Strategy<Value = Vec<String>> {
        prop::collection::vec(prop::sample::select(vec!["ab", "ba", "aba", "bb", "b€", "€", "€a", "\u{FFFD}"]), 0..4)
            .prop_map(|stops| stops.into_iter().map(str::to_owned).collect())
    }

    fn after<'t>(tokens: &'t [u32], ids: &[u32]) -> &'t [u32] {
        tokens.windows(ids.len()).position(|window| window == ids).map_or(&[], |at| &tokens[at + ids.len()..])
    }

    /// Text whose last character can no longer change.
    fn settled(tokens: &[u32], thinking: bool, toy: &Toy) -> String {
        let response = if thinking { after(after(tokens, &[CLOSE, THINK, SEP]), &[OPEN, RESPONSE, SEP]) } else { tokens };
        let bytes: Vec<u8> = response.iter().filter_map(|token| toy.bytes(*token)).flatten().copied().collect();
        let waits =
            |n: &usize| std::str::from_utf8(&bytes[bytes.len() - n..]).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none());
        let held = (1..=bytes.len().min(3)).find(waits).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..bytes.len() - held]).into_owned()
    }

    /// The slow way: after each token all that is settled of the response is searched again.
    fn slow(stops: &[String], tokens: &[u32], thinking: bool, toy: &Toy) -> Option<(usize, String, String)> {
        (1..=tokens.len()).find_map(|n| {
            let text = settled(&tokens[..n], thinking, toy);
            let found = stops.iter().filter_map(|stop| text.find(stop.as_str()).map(|at| (at, stop)));
            found.min_by_key(|(at, _)| *at).map(|(at, stop)| (n, stop.clone(), text[..at].to_owned()))
        })
    }

    proptest! {
        #[test]
        fn stops_token_by_token_are_those_of_the_whole_text(tokens in tokens(), stops in stops(), thinking: bool) {
            let toy = toy();
            let mut request = request(if thinking { &[OPEN, THINK, SEP] } else { &[1] }, &[]);
            request.sampling.stop = stops;
            request.sampling.ignore_eos = true;
            let mut ending = Ending::new(&request, Some(&toy));
            let fast = tokens.iter().enumerate().find_map(|(i, token)| ending.push(*token).map(|end| (i + 1, end)));
            let fast = fast.map(|(n, end)| {
                let text = words(&request, &tokens[..n], &end, &toy).text;
                match end { End::StopString(stop) => (n, stop, text), other => panic!("{other:?}") }
            });
            prop_assert_eq!(fast, slow(&request.sampling.stop, &tokens, thinking, &toy));
        }
    }
}
