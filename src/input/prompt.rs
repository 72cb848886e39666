//! How long may a prompt be, and what gives way? The document alone: instructions and markup stay whole.
//!
//! A text cut between two tokens may be encoded in others, so the length is known only after encoding again. Each round cuts at least as
//! many tokens as were too many, and later rounds at least half of what is left: the number of rounds is at most the logarithm of the length.

use crate::job::{InputSection, Side};
use crate::request::Fault;
use crate::tokenizer::Tokenizer;

/// Rounds before a round cuts half of the rest.
const FINE_ROUNDS: u32 = 8;

/// A prompt that fits.
#[derive(Debug)]
pub(super) struct Prompt {
    pub(super) ids: Vec<u32>,
    /// How many tokens shorter it is than the uncut prompt.
    pub(super) truncated: u32,
}

type Outcome<T> = std::result::Result<T, Fault>;

/// `whole` if it is short enough, else the prompt that `build` makes of a shorter `document`.
pub(super) fn fit(
    section: &InputSection,
    tokenizer: &Tokenizer,
    whole: Vec<u32>,
    document: Option<&str>,
    build: impl Fn(&str) -> Outcome<Vec<u32>>,
) -> Outcome<Prompt> {
    let Some((most, over)) = excess(section, &whole)? else { return Ok(Prompt { ids: whole, truncated: 0 }) };
    let (Some(side), Some(document)) = (section.truncate, document) else { return Err(too_long(whole.len(), most)) };
    let ends = token_ends(tokenizer, document);
    let (mut keep, mut over, mut round) = (ends.len(), over, 0);
    loop {
        if round >= FINE_ROUNDS {
            over = over.max(keep / 2);
        }
        keep = keep.saturating_sub(over);
        let rest = cut(document, &ends, keep, side);
        if rest.is_empty() {
            return Err(Fault::new(
                "prompt_too_long",
                format!(
                    "the prompt has {} tokens, input.max_prompt_tokens is {most}, and nothing of the document would be left",
                    whole.len()
                ),
            ));
        }
        let ids = build(rest)?;
        if ids.len() <= most {
            return Ok(Prompt { truncated: count(whole.len().saturating_sub(ids.len()))?, ids });
        }
        over = ids.len() - most;
        round += 1;
    }
}

/// A prompt of ids that came as ids: all of it is the document.
pub(super) fn fit_ids(section: &InputSection, mut ids: Vec<u32>) -> Outcome<Prompt> {
    let Some((most, over)) = excess(section, &ids)? else { return Ok(Prompt { ids, truncated: 0 }) };
    match section.truncate {
        _ if most == 0 => return Err(too_long(ids.len(), most)),
        None => return Err(too_long(ids.len(), most)),
        Some(Side::Left) => drop(ids.drain(..over)),
        Some(Side::Right) => ids.truncate(most),
    }
    Ok(Prompt { ids, truncated: count(over)? })
}

/// The limit and by how many tokens `ids` is over it, if it is.
fn excess(section: &InputSection, ids: &[u32]) -> Outcome<Option<(usize, usize)>> {
    count(ids.len())?;
    let Some(most) = section.max_prompt_tokens.map(|most| most as usize) else { return Ok(None) };
    Ok(ids.len().checked_sub(most).filter(|&over| over > 0).map(|over| (most, over)))
}

fn count(tokens: usize) -> Outcome<u32> {
    i32::try_from(tokens).ok().and_then(|n| u32::try_from(n).ok()).ok_or_else(|| too_long(tokens, i32::MAX as usize))
}

fn too_long(tokens: usize, most: usize) -> Fault {
    Fault::new("prompt_too_long", format!("the prompt has {tokens} tokens, input.max_prompt_tokens is {most}"))
}

/// Where each token of `document` ends, in bytes.
fn token_ends(tokenizer: &Tokenizer, document: &str) -> Vec<usize> {
    let mut end = 0;
    let length = |id: u32| tokenizer.bytes(id).map_or(0, <[u8]>::len);
    tokenizer
        .encode(document)
        .into_iter()
        .map(|id| {
            end += length(id);
            end
        })
        .collect()
}

/// At most `keep` tokens of `document`, whole characters only; `side` gives way.
fn cut<'d>(document: &'d str, ends: &[usize], keep: usize, side: Side) -> &'d str {
    if keep == 0 {
        return "";
    }
    match side {
        Side::Right => &document[..document.floor_char_boundary(ends[keep - 1])],
        Side::Left => {
            let start = (ends.len() - keep).checked_sub(1).map_or(0, |at| ends[at]);
            &document[document.ceil_char_boundary(start)..]
        }
    }
}
