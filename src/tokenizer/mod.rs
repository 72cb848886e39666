//! Text <-> ids: which numbers does the model see for this text, and which bytes does an id stand for?
//!
//! A document of a night's job is hostile: it holds the names of control tokens, 5 MB without a space, half a character.
//! So text is always encoded as ordinary text (a control token enters a prompt by its id alone), cutting text into words takes
//! linear time (`split.rs`), and merging a word of n bytes takes n log n (`bpe.rs`), where the usual loop takes n squared:
//! 5 MB of one letter take 0.2 s, not hours.
//!
//! The room knows no rows. One family's files are read so far: `tiktoken.model` and `tokenizer_config.json` (`files.rs`).

mod bpe;
mod chat;
mod files;
mod split;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Result;

pub use chat::{Channels, Message, Role};

/// A model's vocabulary: ordinary tokens with their bytes, and control tokens, which have an id alone.
pub struct Tokenizer {
    ranks: bpe::Ranks,
    splitter: split::Splitter,
    form: chat::Form,
    control: BTreeMap<u32, String>,
    fingerprint: [u8; 32],
}

impl Tokenizer {
    /// Reads the tokenizer files of the checkpoint in `folder`, whose embedding has `vocab` rows. `None` where the folder has none.
    ///
    /// # Errors
    /// Refused, naming the file: unreadable, damaged, of another family, or ids that do not fit `vocab`.
    pub fn open(folder: &Path, vocab: usize) -> Result<Option<Tokenizer>> {
        let Some(files) = files::load(folder, vocab)? else { return Ok(None) };
        let splitter = split::Splitter::new();
        let encode = |text: &str| encode(&splitter, &files.ranks, text);
        let form = chat::Form::new(&files.markers, &encode);
        let files::Files { ranks, control, fingerprint, .. } = files;
        Ok(Some(Tokenizer { ranks, splitter, form, control, fingerprint }))
    }

    /// The ids of `text` as ordinary text; the name of a control token in it is text like any other.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        encode(&self.splitter, &self.ranks, text)
    }

    /// The bytes that `id` adds to a text, perhaps a part of a character only. `None`: a control token or no token at all.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        self.ranks.bytes(id)
    }

    /// The name of a control token. `None`: an ordinary token or no token at all.
    pub fn control_name(&self, id: u32) -> Option<&str> {
        self.control.get(&id).map(String::as_str)
    }

    /// The prompt of a conversation; it ends with the assistant's thinking channel open, or with the response channel.
    pub fn chat(&self, messages: &[Message], thinking: bool) -> Vec<u32> {
        self.form.prompt(messages, thinking, &|text| self.encode(text))
    }

    /// The token sequences that open and close the parts of an answer.
    pub fn channels(&self) -> &Channels {
        self.form.channels()
    }

    /// BLAKE3 of the tokenizer's files.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }
}

fn encode(splitter: &split::Splitter, ranks: &bpe::Ranks, text: &str) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len() / 3 + 1);
    splitter.each(text, |piece| ranks.encode(piece.as_bytes(), &mut ids));
    ids
}

#[cfg(test)]
mod tests;
