//! What does a raw row ask for? One place for all forms of a row.
//!
//! | form | prompt from | sampling keys from |
//! |---|---|---|
//! | OpenAI's batch line `{custom_id, body}` | `body` | `body` |
//! | `{custom_id, params}` | `params` | `params` |
//! | flat, with `messages`, `prompt` or `prompt_token_ids` | the row | `params` |
//! | flat, with a column of the job's template | the template | `params` |
//!
//! The template goes first, so that a data set's own columns may have any name. A flat row's column `temperature` is data.

use std::cell::RefCell;

use serde_json::{Map, Value};

use super::jsonl::kind;
use super::prompt::{Prompt, fit, fit_ids};
use super::room::{Room, text_bytes};
use super::sampling::{self, ids, wrong};
use super::template::{Failed, Template};
use crate::error::Error;
use crate::job::InputSection;
use crate::request::{Fault, Request, Sampling};
use crate::tokenizer::{Message, Role, Tokenizer};

type Outcome<T> = std::result::Result<T, Fault>;
type Row = Map<String, Value>;

/// Keys that hold a prompt.
pub(super) const CONTENT: [&str; 3] = ["messages", "prompt", "prompt_token_ids"];
/// Other columns that make a row's form.
pub(super) const FRAME: [&str; 4] = ["body", "params", "method", "url"];

/// All that a row is resolved with.
pub(super) struct Forms<'j> {
    pub(super) section: &'j InputSection,
    pub(super) sampling: &'j Sampling,
    pub(super) tokenizer: Option<&'j Tokenizer>,
    pub(super) vocab: usize,
    pub(super) template: Option<&'j Template>,
    pub(super) room: Room,
    /// What a row has shown to be wrong with the job.
    pub(super) trouble: RefCell<Option<Error>>,
}

/// Where a row has its prompt.
enum Source<'r> {
    Template,
    Content(&'r Row),
}

impl Forms<'_> {
    /// The request of `row`; what is wrong with it is its fault.
    pub(super) fn request(&self, index: u64, id: String, row: &Row) -> Request {
        let mut sampling = self.sampling.clone();
        match self.resolve(row, &mut sampling) {
            Ok(Prompt { ids, truncated }) => Request { index, id, prompt: ids, truncated_tokens: truncated, sampling, fault: None },
            Err(fault) => self.faulty(index, id, sampling, fault),
        }
    }

    /// A row that is no object at all.
    pub(super) fn bad_line(&self, index: u64, id: String, message: String) -> Request {
        self.faulty(index, id, self.sampling.clone(), Fault::new("bad_line", message))
    }

    fn faulty(&self, index: u64, id: String, sampling: Sampling, fault: Fault) -> Request {
        Request { index, id, prompt: Vec::new(), truncated_tokens: 0, sampling, fault: Some(fault) }
    }

    fn resolve(&self, row: &Row, sampling: &mut Sampling) -> Outcome<Prompt> {
        let (source, keys) = self.form(row)?;
        if let Some(keys) = keys {
            let content: &[&str] = if matches!(source, Source::Content(map) if std::ptr::eq(map, keys)) { &CONTENT } else { &[] };
            *sampling = sampling::resolve(self.sampling, keys, content, self.vocab)?;
        }
        let prompt = match source {
            Source::Template => self.templated(row)?,
            Source::Content(map) => self.content(map)?,
        };
        if prompt.ids.is_empty() {
            return Err(Fault::new("empty_prompt", "the prompt has no token"));
        }
        if !sampling.stop.is_empty() {
            self.tokenizer("stop strings")?;
        }
        Ok(prompt)
    }

    fn form<'r>(&self, row: &'r Row) -> Outcome<(Source<'r>, Option<&'r Row>)> {
        let has = |map: &Row, key: &str| !matches!(map.get(key), None | Some(Value::Null));
        let holds_prompt = |map: &Row| CONTENT.iter().any(|key| has(map, key));
        let template = self.template.filter(|template| template.fits(row));
        if template.is_some_and(|template| template.columns().iter().any(|name| name == "params")) {
            return Ok((Source::Template, None));
        }
        if template.is_none() && has(row, "body") {
            let body = object(row, "body")?.ok_or_else(|| bad_body(row))?;
            self.endpoint(row)?;
            return Ok((Source::Content(body), Some(body)));
        }
        if template.is_none() && !holds_prompt(row) && row.contains_key("body") {
            return Err(bad_body(row));
        }
        let params = object(row, "params")?;
        Ok(match params {
            params if template.is_some() => (Source::Template, params),
            params if holds_prompt(row) => (Source::Content(row), params),
            Some(params) if holds_prompt(params) => (Source::Content(params), Some(params)),
            // the message of a missing column says more than that of a missing prompt
            params if self.template.is_some() => (Source::Template, params),
            _ => {
                return Err(Fault::new("no_prompt", "the row has none of messages, prompt, prompt_token_ids, and the job has no template"));
            }
        })
    }

    /// A batch line's method and url must be those of an answer to a prompt.
    fn endpoint(&self, row: &Row) -> Outcome<()> {
        let refused = |key: &str, value: &Value| {
            Err(Fault::new(
                "not_supported",
                format!("`{key}` = {value} is not supported; POST to /v1/chat/completions or /v1/completions is"),
            ))
        };
        match row.get("method") {
            None | Some(Value::Null) => {}
            Some(Value::String(method)) if method.eq_ignore_ascii_case("post") => {}
            Some(other) => return refused("method", other),
        }
        match row.get("url") {
            None | Some(Value::Null) => Ok(()),
            Some(Value::String(url))
                if ["/chat/completions", "/completions"].iter().any(|end| url.trim_end_matches('/').ends_with(end)) =>
            {
                Ok(())
            }
            Some(other) => refused("url", other),
        }
    }

    fn tokenizer(&self, what: &str) -> Outcome<&Tokenizer> {
        let fault =
            || Fault::new("no_tokenizer", format!("the model's folder has no tokenizer, which {what} needs; prompt_token_ids run without"));
        self.tokenizer.ok_or_else(fault)
    }

    fn templated(&self, row: &Row) -> Outcome<Prompt> {
        let template = self.template.ok_or_else(|| Fault::new("no_prompt", "the job has no template"))?;
        let text = template.render(row).map_err(|failed| self.blame(failed))?;
        if let Err(error) = self.room.check(&"the message of input.template", text_bytes(text.len() as u64)) {
            self.trouble.replace(Some(error));
            return Err(Fault::new("template_failed", "too long"));
        }
        let tokenizer = self.tokenizer("a template")?;
        let chat = |text: String| {
            let system = self.section.system.iter().map(|system| Message { role: Role::System, content: system.clone() });
            let messages: Vec<Message> = system.chain([Message { role: Role::User, content: text }]).collect();
            tokenizer.chat(&messages, self.section.thinking)
        };
        let length = |name: &&String| row[name.as_str()].as_str().map_or(0, str::len);
        let longest = template.columns().iter().filter(|name| row[name.as_str()].is_string()).max_by_key(length);
        let document = longest.and_then(|name| row[name.as_str()].as_str());
        fit(self.section, tokenizer, chat(text), document, |rest| {
            let mut shorter = row.clone();
            if let Some(name) = longest {
                shorter[name.as_str()] = Value::from(rest);
            }
            template.render(&shorter).map(chat).map_err(|failed| self.blame(failed))
        })
    }

    /// A template that no row can pass is a fault of the job.
    fn blame(&self, failed: Failed) -> Fault {
        match failed {
            Failed::Row(fault) => fault,
            Failed::Job(error) => {
                let fault = Fault::new("template_failed", error.message.clone());
                self.trouble.replace(Some(error));
                fault
            }
        }
    }

    fn content(&self, map: &Row) -> Outcome<Prompt> {
        let mut given = CONTENT.iter().filter_map(|&key| map.get(key).filter(|value| !value.is_null()).map(|value| (key, value)));
        let (Some((key, value)), None) = (given.next(), given.next()) else {
            return match CONTENT.iter().filter(|&&key| map.get(key).is_some_and(|value| !value.is_null())).count() {
                0 => Err(Fault::new("no_prompt", "the row has none of messages, prompt, prompt_token_ids")),
                _ => Err(Fault::new("ambiguous_prompt", "the row has more than one of messages, prompt, prompt_token_ids")),
            };
        };
        match (key, value) {
            ("messages", messages) => self.conversation(messages),
            ("prompt", Value::String(text)) => {
                let tokenizer = self.tokenizer("a prompt of text")?;
                fit(self.section, tokenizer, tokenizer.encode(text), Some(text), |rest| Ok(tokenizer.encode(rest)))
            }
            ("prompt", other) if !other.is_array() => Err(wrong("prompt", "text", other)),
            (key, list) => fit_ids(self.section, ids(key, list, self.vocab)?),
        }
    }

    fn conversation(&self, value: &Value) -> Outcome<Prompt> {
        let mut messages = messages(value)?;
        let tokenizer = self.tokenizer("a conversation")?;
        let whole = tokenizer.chat(&messages, self.section.thinking);
        let last = messages.iter().rposition(|message| message.role == Role::User);
        let document = last.map(|at| std::mem::take(&mut messages[at].content));
        fit(self.section, tokenizer, whole, document.as_deref(), |rest| {
            let mut shorter = messages.clone();
            if let Some(at) = last {
                shorter[at].content = rest.to_string();
            }
            Ok(tokenizer.chat(&shorter, self.section.thinking))
        })
    }
}

fn bad_body(row: &Row) -> Fault {
    wrong("body", "an object", row.get("body").unwrap_or(&Value::Null))
}

fn object<'r>(row: &'r Row, key: &str) -> Outcome<Option<&'r Row>> {
    match row.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(wrong(key, "an object", other)),
    }
}

fn messages(value: &Value) -> Outcome<Vec<Message>> {
    let bad = |text: String| Fault::new("bad_messages", text);
    let items = value.as_array().ok_or_else(|| bad(format!("`messages` must be a list, not {}", kind(value))))?;
    if items.is_empty() {
        return Err(bad("`messages` holds no message".into()));
    }
    let message = |(at, item): (usize, &Value)| {
        let item = item.as_object().ok_or_else(|| bad(format!("`messages[{at}]` must be an object, not {}", kind(item))))?;
        let name = item.get("role").and_then(Value::as_str);
        let role = name.and_then(Role::parse).ok_or_else(|| {
            let shown = item.get("role").map_or("absent".into(), Value::to_string);
            bad(format!("`messages[{at}].role` must be system, developer, user or assistant; it is {shown}"))
        })?;
        for key in ["tool_calls", "function_call", "tool_call_id", "audio"] {
            if item.get(key).is_some_and(|value| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty)) {
                return Err(Fault::new("not_supported", format!("`messages[{at}].{key}` is not supported")));
            }
        }
        Ok(Message { role, content: text(item.get("content").unwrap_or(&Value::Null), at)? })
    };
    items.iter().enumerate().map(message).collect()
}

/// The text of a message: a string, or the texts of its parts, one after the other.
fn text(content: &Value, at: usize) -> Outcome<String> {
    let bad = |what: &str| Fault::new("bad_messages", format!("`messages[{at}].content` must be text or text parts; {what}"));
    let parts = match content {
        Value::String(text) => return Ok(text.clone()),
        Value::Array(parts) if !parts.is_empty() => parts,
        Value::Array(_) => return Err(bad("it has no part")),
        other => return Err(bad(&format!("it is {}", kind(other)))),
    };
    let part = |part: &Value| match (part.get("type").and_then(Value::as_str), part.get("text").and_then(Value::as_str)) {
        (Some("text"), Some(text)) => Ok(text.to_string()),
        (Some("text") | None, _) => Err(bad("one part has no text")),
        (Some(other), _) => {
            Err(Fault::new("not_supported", format!("`messages[{at}].content` has a part of type `{other}`; text alone is supported")))
        }
    };
    parts.iter().map(part).collect()
}
