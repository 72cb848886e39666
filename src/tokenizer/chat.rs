//! How does a conversation become a prompt? By fixed markup whose four markers enter by id alone.
//!
//! Each quoted run of the markup is encoded by itself, as in training: encoded together, `message role="` would merge across the borders
//! and give other ids. Content is encoded as ordinary text, so a document cannot close its message or forge another.

use std::collections::HashMap;

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Instructions above all others.
    System,
    /// Instructions of the application's maker.
    Developer,
    /// The person, or the document.
    User,
    /// An earlier answer of the model.
    Assistant,
}

impl Role {
    /// The role that a row names, if it is one.
    pub fn parse(name: &str) -> Option<Role> {
        Some(match name {
            "system" => Role::System,
            "developer" => Role::Developer,
            "user" => Role::User,
            "assistant" => Role::Assistant,
            _ => return None,
        })
    }

    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
        }
    }
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said; of an assistant, the response without its thinking.
    pub content: String,
}

/// Token sequences that open and close the parts of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Channels {
    /// A prompt that ends with these has the thinking channel open.
    pub thinking_open: Vec<u32>,
    /// Ends the thinking.
    pub thinking_close: Vec<u32>,
    /// Opens the response; a prompt may end with these too.
    pub response_open: Vec<u32>,
    /// Ends the answer once the response is open; what the model would add is fixed markup.
    pub response_end: u32,
    /// End the answer anywhere.
    pub ends: Vec<u32>,
}

/// Names of the control tokens that a conversation needs.
pub(super) const NEEDED: [&str; 5] = [OPEN, CLOSE, SEP, END_OF_MESSAGE, END];
const OPEN: &str = "<|open|>";
const CLOSE: &str = "<|close|>";
const SEP: &str = "<|sep|>";
const END_OF_MESSAGE: &str = "<|end_of_msg|>";
const END: &str = "[EOS]";

/// The markup's runs, encoded once.
pub(super) struct Form {
    channels: Channels,
    /// `<|open|>message role="`
    head: Vec<u32>,
    /// `"<|sep|>`
    head_end: Vec<u32>,
    /// `<|close|>response<|sep|>`
    response_close: Vec<u32>,
    /// `<|close|>message<|sep|><|end_of_msg|>`
    tail: Vec<u32>,
}

impl Form {
    /// `markers` holds the id of each name in [`NEEDED`]; `encode` encodes ordinary text.
    pub(super) fn new(markers: &HashMap<&'static str, u32>, encode: &dyn Fn(&str) -> Vec<u32>) -> Self {
        let [open, close, sep, message_end, end] = NEEDED.map(|name| markers[name]);
        let tag = |mark: u32, name: &str| [vec![mark], encode(name), vec![sep]].concat();
        Form {
            channels: Channels {
                thinking_open: tag(open, "think"),
                thinking_close: tag(close, "think"),
                response_open: tag(open, "response"),
                response_end: close,
                ends: vec![message_end, end],
            },
            head: [vec![open], encode("message"), encode(" role"), encode("=\"")].concat(),
            head_end: [encode("\""), vec![sep]].concat(),
            response_close: tag(close, "response"),
            tail: [tag(close, "message"), vec![message_end]].concat(),
        }
    }

    pub(super) fn channels(&self) -> &Channels {
        &self.channels
    }

    pub(super) fn prompt(&self, messages: &[Message], thinking: bool, encode: &dyn Fn(&str) -> Vec<u32>) -> Vec<u32> {
        let mut ids = Vec::new();
        let head = |ids: &mut Vec<u32>, role: Role| {
            ids.extend_from_slice(&self.head);
            ids.extend(encode(role.name()));
            ids.extend_from_slice(&self.head_end);
        };
        for Message { role, content } in messages {
            head(&mut ids, *role);
            if *role == Role::Assistant {
                ids.extend_from_slice(&self.channels.response_open);
                ids.extend(encode(content));
                ids.extend_from_slice(&self.response_close);
            } else {
                ids.extend(encode(content));
            }
            ids.extend_from_slice(&self.tail);
        }
        head(&mut ids, Role::Assistant);
        ids.extend_from_slice(if thinking { &self.channels.thinking_open } else { &self.channels.response_open });
        ids
    }
}
