//! Which key was given which value, where? The job file and the command line become one list of settings; every fault names its place.
//!
//! A key that nobody reads would cost a night, so an unknown one is an error that names the nearest known key, and a known one whose
//! feature this version lacks says so.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Error, Result};

/// All keys that a job may set.
const KEYS: [&str; 38] = [
    "model.path",
    "input.path",
    "input.id",
    "input.template",
    "input.system",
    "input.thinking",
    "input.on_bad_line",
    "input.max_prompt_tokens",
    "input.truncate",
    "sampling.temperature",
    "sampling.top_p",
    "sampling.top_k",
    "sampling.min_p",
    "sampling.seed",
    "sampling.max_tokens",
    "sampling.stop",
    "sampling.stop_token_ids",
    "sampling.logprobs",
    "sampling.prompt_logprobs",
    "sampling.ignore_eos",
    "engine.memory",
    "engine.threads",
    "engine.wave",
    "engine.prefill_rows",
    "engine.resident",
    "engine.direct_io",
    "engine.kernel",
    "engine.precision",
    "engine.cache",
    "engine.predict",
    "engine.states",
    "engine.scratch",
    "engine.scratch_write_limit",
    "plan.grouping",
    "plan.keep_routing",
    "output.path",
    "output.keep",
    "output.rows_per_part",
];

/// Names of keys and sections whose feature is not built.
const LATER: [&str; 1] = ["structured_outputs"];

/// Sections of a job file.
const SECTIONS: [&str; 6] = ["model", "input", "sampling", "engine", "plan", "output"];

/// One key from the command line; it wins over the job file.
#[derive(Debug, Clone, PartialEq)]
pub struct Override {
    key: String,
    value: Value,
    /// As a person finds it: "--set engine.memory=8GiB".
    place: String,
}

impl Override {
    /// The argument of a `--set`: KEY=VALUE, where VALUE is a TOML value, else the bare string.
    ///
    /// # Errors
    /// Usage: no `=`, or nothing before it.
    pub fn set(text: &str) -> Result<Self> {
        let place = format!("--set {text}");
        let (key, value) = text
            .split_once('=')
            .map(|(key, value)| (key.trim(), value))
            .filter(|(key, _)| !key.is_empty())
            .ok_or_else(|| Error::usage(format!("{place}: write KEY=VALUE, as in --set engine.memory=8GiB")))?;
        let parsed = DeValue::parse(value.trim()).map(|parsed| Value::of(parsed.get_ref()));
        Ok(Override { key: key.to_owned(), value: parsed.unwrap_or_else(|_| Value::Text(value.to_owned())), place })
    }

    /// A flag of its own for `key`, whose value is taken as it stands.
    pub fn flag(flag: &str, key: &str, value: &str) -> Self {
        Override { key: key.to_owned(), value: Value::Text(value.to_owned()), place: format!("{flag} {value}") }
    }

    /// A flag of its own for `key`, whose value is a number.
    pub fn count(flag: &str, key: &str, value: u32) -> Self {
        Override { key: key.to_owned(), value: Value::Integer(i64::from(value)), place: format!("{flag} {value}") }
    }

    /// A repeated flag for `key`, whose values are a list.
    pub fn flags(flag: &str, key: &str, values: &[String]) -> Self {
        let list = values.iter().map(|value| Value::Text(value.clone())).collect();
        Override { key: key.to_owned(), value: Value::List(list), place: format!("{flag} {}", values.join(" ")) }
    }
}

/// A TOML value, free of its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Flag(bool),
    List(Vec<Value>),
    /// What no key takes: its name for a person.
    Other(&'static str),
}

impl Value {
    fn of(value: &DeValue<'_>) -> Self {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(n) => {
                i64::from_str_radix(n.as_str(), n.radix()).map_or(Value::Other("a number beyond 64 bits"), Value::Integer)
            }
            DeValue::Float(x) => x.as_str().parse().map_or(Value::Other("a number that cannot be read"), Value::Float),
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Array(items) => Value::List(items.iter().map(|item| Value::of(item.get_ref())).collect()),
            DeValue::Datetime(_) => Value::Other("a date"),
            DeValue::Table(_) => Value::Other("a table"),
        }
    }

    /// The value for a message: what it is, and itself where it is short.
    pub(super) fn show(&self) -> String {
        match self {
            Value::Text(text) if text.chars().count() > 40 => format!("the text \"{}...\"", text.chars().take(40).collect::<String>()),
            Value::Text(text) => format!("the text \"{text}\""),
            Value::Integer(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::List(_) => "a list".to_owned(),
            Value::Other(name) => (*name).to_owned(),
        }
    }
}

/// A value that a job sets, with what its faults and paths need.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Setting {
    pub(super) key: &'static str,
    pub(super) value: Value,
    /// As a person finds it: "job.toml line 3".
    pub(super) place: String,
    /// The folder that paths in the value start from; empty for the current one.
    pub(super) base: PathBuf,
}

impl Setting {
    /// A fault of this setting: `wanted` says what the key takes.
    pub(super) fn fault(&self, wanted: &str) -> Error {
        Error::usage(format!("{}: `{}` must be {wanted}, not {}", self.place, self.key, self.value.show()))
    }
}

/// All settings of a job, each known.
#[derive(Debug)]
pub(super) struct Settings {
    /// The job file's name, for what is missing.
    pub(super) name: String,
    by_key: BTreeMap<&'static str, Setting>,
}

impl Settings {
    /// Reads `text`, the job file called `name` whose paths start from `base`, and lays `overrides` over it in order.
    pub(super) fn read(text: &str, name: &str, base: &Path, overrides: &[Override]) -> Result<Self> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let place =
            |at: usize| format!("{name} line {}", 1 + text.as_bytes()[..at.min(text.len())].iter().filter(|byte| **byte == b'\n').count());
        let document = DeTable::parse(text).map_err(|error| {
            let place = error.span().map_or(name.to_owned(), |span| place(span.start));
            Error::usage(format!("{place}: {}", error.message().replace('\n', ", ")))
        })?;
        let mut settings = Settings { name: name.to_owned(), by_key: BTreeMap::new() };
        for (section, value) in document.get_ref() {
            let table =
                section_of(section, value).map_err(|problem| Error::usage(format!("{}: {problem}", place(section.span().start))))?;
            for (key, value) in table {
                let place = place(key.span().start);
                settings.insert(&format!("{}.{}", section.get_ref(), key.get_ref()), Value::of(value.get_ref()), place, base)?;
            }
        }
        for given in overrides {
            settings.insert(&given.key, given.value.clone(), given.place.clone(), Path::new(""))?;
        }
        Ok(settings)
    }

    fn insert(&mut self, key: &str, value: Value, place: String, base: &Path) -> Result<()> {
        if is_later(key) {
            return Err(Error::usage(format!("{place}: `{key}` is not built in this version; leave it out")));
        }
        let Some(key) = KEYS.into_iter().find(|known| *known == key) else {
            if let Some(example) = KEYS.into_iter().find(|known| known.split_once('.').is_some_and(|(section, _)| section == key)) {
                return Err(Error::usage(format!("{place}: `{key}` is a section: name one of its keys, as in {example}=VALUE")));
            }
            return Err(Error::usage(format!("{place}: unknown key `{key}`; did you mean `{}`?", nearest_key(key))));
        };
        self.by_key.insert(key, Setting { key, value, place, base: base.to_path_buf() });
        Ok(())
    }

    /// The setting of `key`, one of the known keys.
    pub(super) fn get(&self, key: &'static str) -> Option<&Setting> {
        debug_assert!(KEYS.contains(&key), "{key}");
        self.by_key.get(key)
    }
}

fn is_later(key: &str) -> bool {
    key.split('.').any(|name| LATER.contains(&name))
}

fn section_of<'t, 'i>(
    section: &Spanned<std::borrow::Cow<'i, str>>,
    value: &'t Spanned<DeValue<'i>>,
) -> std::result::Result<&'t DeTable<'i>, String> {
    let name = section.get_ref();
    if is_later(name) {
        return Err(format!("[{name}] is not built in this version; leave it out"));
    }
    let DeValue::Table(table) = value.get_ref() else {
        if SECTIONS.contains(&name.as_ref()) {
            return Err(format!("`{name}` is a section: write [{name}] on a line, its keys below"));
        }
        return Err(format!("unknown key `{name}` outside of a section; did you mean `{}`?", nearest_key(name)));
    };
    if SECTIONS.contains(&name.as_ref()) {
        return Ok(table);
    }
    let nearest = nearest(name, &SECTIONS);
    Err(format!("unknown section [{name}]; did you mean [{nearest}]?"))
}

/// The known key that `key` most likely means: the same name in another section, else the fewest letters away.
fn nearest_key(key: &str) -> &'static str {
    let name = |key: &'static str| key.rsplit_once('.').map_or(key, |(_, name)| name);
    let given = key.rsplit_once('.').map_or(key, |(_, name)| name);
    KEYS.into_iter().find(|known| name(known) == given).unwrap_or_else(|| {
        if key.contains('.') {
            nearest(key, &KEYS)
        } else {
            KEYS.into_iter().min_by_key(|known| distance(name(known), key)).unwrap_or(KEYS[0])
        }
    })
}

fn nearest<'k>(word: &str, known: &[&'k str]) -> &'k str {
    known.iter().copied().min_by_key(|known| distance(known, word)).unwrap_or("")
}

/// Letters to change; a key of a megabyte is not compared as a whole.
fn distance(known: &str, given: &str) -> usize {
    strsim::damerau_levenshtein(known, &given.chars().take(64).collect::<String>().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(text: &str, sets: &[&str]) -> String {
        let overrides: Vec<Override> = sets.iter().map(|set| Override::set(set).expect("KEY=VALUE")).collect();
        let error = Settings::read(text, "job.toml", Path::new(""), &overrides).expect_err("must be refused");
        assert_eq!(error.kind, crate::error::Kind::Usage);
        error.message
    }

    #[test]
    fn unknown_names_are_refused_with_line_and_nearest_key() {
        let cases = [
            ("[engine]\nmemroy = 1", "job.toml line 2: unknown key `engine.memroy`; did you mean `engine.memory`?"),
            (
                "\u{feff}[engine]\r\n\r\nmax_tokens = 1",
                "job.toml line 3: unknown key `engine.max_tokens`; did you mean `sampling.max_tokens`?",
            ),
            ("memory = 1", "job.toml line 1: unknown key `memory` outside of a section; did you mean `engine.memory`?"),
            ("[enigne]\nmemory = 1", "job.toml line 1: unknown section [enigne]; did you mean [engine]?"),
            ("[sampling]\nTop_P = 1", "job.toml line 2: unknown key `sampling.Top_P`; did you mean `sampling.top_p`?"),
            ("[[engine]]\nmemory = 1", "job.toml line 1: `engine` is a section: write [engine] on a line, its keys below"),
            ("[structured_outputs]", "job.toml line 1: [structured_outputs] is not built in this version; leave it out"),
        ];
        for (text, message) in cases {
            let got = fault(text, &[]);
            assert_eq!(got, message);
        }
        assert_eq!(fault("", &["engine.memroy=1"]), "--set engine.memroy=1: unknown key `engine.memroy`; did you mean `engine.memory`?");
        assert_eq!(fault("", &["engine=1"]), "--set engine=1: `engine` is a section: name one of its keys, as in engine.memory=VALUE");
        assert!(fault("", &[&format!("engine.{}=1", "x".repeat(1 << 20))]).contains("did you mean"));
    }

    #[test]
    fn broken_toml_names_the_line() {
        assert!(fault("[engine]\nmemory = \n", &[]).starts_with("job.toml line 2: "));
        let twice = fault("[engine]\nwave = 1\nwave = 2\n", &[]);
        assert!(twice.starts_with("job.toml line 3: duplicate key"), "{twice}");
        assert!(fault(&"[".repeat(100_000), &[]).starts_with("job.toml line 1: "));
    }

    #[test]
    fn a_set_takes_toml_else_the_bare_string() {
        let value = |text: &str| Override::set(text).expect("KEY=VALUE").value;
        assert_eq!(value("a.b=3"), Value::Integer(3));
        assert_eq!(value("a.b= 0x10 "), Value::Integer(16));
        assert_eq!(value("a.b=1e-3"), Value::Float(1e-3));
        assert_eq!(value("a.b=['x', true]"), Value::List(vec![Value::Text("x".into()), Value::Flag(true)]));
        assert_eq!(value("a.b=\"3\""), Value::Text("3".into()));
        assert_eq!(value("a.b=8GiB"), Value::Text("8GiB".into()));
        assert_eq!(value("a.b= x=y "), Value::Text(" x=y ".into()));
        assert_eq!(value("a.b="), Value::Text(String::new()));
        assert_eq!(value("a.b=99999999999999999999"), Value::Other("a number beyond 64 bits"));
        for bad in ["a.b", "=3", " =3"] {
            assert!(Override::set(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_command_line_wins_and_the_last_of_it() {
        let overrides = [Override::set("engine.wave=2").expect("set"), Override::flag("--wave", "engine.wave", "3")];
        let settings = Settings::read("[engine]\nwave = 1\nthreads = 4", "job.toml", Path::new("jobs"), &overrides).expect("known keys");
        let wave = settings.get("engine.wave").expect("set");
        assert_eq!((&wave.value, wave.place.as_str(), wave.base.as_path()), (&Value::Text("3".into()), "--wave 3", Path::new("")));
        let threads = settings.get("engine.threads").expect("set");
        assert_eq!((threads.place.as_str(), threads.base.as_path()), ("job.toml line 3", Path::new("jobs")));
        assert_eq!(settings.get("engine.memory"), None);
    }
}
