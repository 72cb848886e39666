//! Which values make sense? Settings become the job's sections; ranges are vLLM's where the key is.

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::request::Sampling;
use crate::units::parse_bytes;

use super::settings::{Setting, Settings, Value};
use super::{EngineSection, Grouping, InputSection, Job, KernelName, OnBadLine, OutputSection, Predict, Side, States};

/// Above this many threads a number is a slip of the finger.
const THREADS_MAX: u64 = 4_096;
const ROWS_PER_PART: u64 = 10_000;

/// The job that `settings` ask for.
pub(super) fn job(settings: &Settings) -> Result<Job> {
    precision(settings)?;
    Ok(Job {
        model: required(settings, "model.path", "\"models/demo\"", "--model")?.path()?,
        input: input(settings)?,
        sampling: sampling(settings)?,
        engine: engine(settings)?,
        grouping: match settings.get("plan.grouping") {
            None => None,
            Some(setting) => setting.choice(
                &[
                    ("auto", None),
                    ("input", Some(Grouping::Input)),
                    ("length", Some(Grouping::Length)),
                    ("random", Some(Grouping::Random)),
                    ("overlap", Some(Grouping::Overlap)),
                ],
                &[],
            )?,
        },
        keep_routing: flag(settings, "plan.keep_routing")?,
        output: OutputSection {
            path: required(settings, "output.path", "\"out\"", "--output")?.path()?,
            rows_per_part: settings.get("output.rows_per_part").map_or(Ok(ROWS_PER_PART), |s| s.whole(1, i64::MAX as u64))?,
        },
    })
}

fn input(settings: &Settings) -> Result<InputSection> {
    Ok(InputSection {
        paths: required(settings, "input.path", "\"docs/*.jsonl\"", "--input")?.paths()?,
        id: settings.get("input.id").map(Setting::filled_text).transpose()?,
        template: settings.get("input.template").map(Setting::filled_text).transpose()?,
        system: settings.get("input.system").map(Setting::text).transpose()?,
        thinking: flag(settings, "input.thinking")?,
        on_bad_line: match settings.get("input.on_bad_line") {
            None => OnBadLine::Refuse,
            Some(setting) => setting.choice(&[("refuse", OnBadLine::Refuse), ("row", OnBadLine::Row)], &[])?,
        },
        max_prompt_tokens: settings.get("input.max_prompt_tokens").map(|s| s.whole(1, u64::from(u32::MAX))).transpose()?.map(|n| n as u32),
        truncate: settings.get("input.truncate").map(|s| s.choice(&[("left", Side::Left), ("right", Side::Right)], &[])).transpose()?,
        keep: settings.get("output.keep").map_or(Ok(Vec::new()), Setting::columns)?,
    })
}

fn sampling(settings: &Settings) -> Result<Sampling> {
    let defaults = Sampling::default();
    let get = |key| settings.get(key);
    let most = i32::MAX as u64;
    Ok(Sampling {
        temperature: get("sampling.temperature")
            .map_or(Ok(defaults.temperature), |s| s.real("a number from 0 on", |x| x >= 0.0 && x.is_finite()))?,
        top_p: get("sampling.top_p").map_or(Ok(defaults.top_p), |s| s.real("a number above 0 and at most 1", |x| x > 0.0 && x <= 1.0))?,
        top_k: get("sampling.top_k").map_or(Ok(defaults.top_k), Setting::top_k)?,
        min_p: get("sampling.min_p").map_or(Ok(defaults.min_p), |s| s.real("a number from 0 to 1", |x| (0.0..=1.0).contains(&x)))?,
        seed: get("sampling.seed").map_or(Ok(defaults.seed), Setting::integer)?,
        max_tokens: get("sampling.max_tokens").map_or(Ok(u64::from(defaults.max_tokens)), |s| s.whole(0, most))? as u32,
        stop: get("sampling.stop").map_or(Ok(defaults.stop), Setting::texts)?,
        stop_token_ids: get("sampling.stop_token_ids").map_or(Ok(defaults.stop_token_ids), Setting::ids)?,
        logprobs: get("sampling.logprobs").map_or(Ok(defaults.logprobs), Setting::logprobs)?,
        prompt_logprobs: get("sampling.prompt_logprobs").map_or(Ok(defaults.prompt_logprobs), Setting::logprobs)?,
        ignore_eos: flag(settings, "sampling.ignore_eos")?,
    })
}

fn engine(settings: &Settings) -> Result<EngineSection> {
    let count = |key| settings.get(key).map(|s| s.whole(1, u64::from(u32::MAX))).transpose().map(|n| n.map(|n| n as usize));
    Ok(EngineSection {
        memory_bytes: settings.get("engine.memory").map(|s| s.bytes(1)).transpose()?,
        threads: settings.get("engine.threads").map(|s| s.whole(1, THREADS_MAX)).transpose()?.map(|n| n as usize),
        wave: count("engine.wave")?,
        prefill_rows: count("engine.prefill_rows")?,
        resident_bytes: settings.get("engine.resident").map(|s| s.bytes(0)).transpose()?,
        direct_io: settings.get("engine.direct_io").map_or(Ok(true), |s| s.flag())?,
        kernel: match settings.get("engine.kernel") {
            None => None,
            Some(setting) => setting.choice(
                &[
                    ("auto", None),
                    ("scalar", Some(KernelName::Scalar)),
                    ("avx2", Some(KernelName::Avx2)),
                    ("avx512", Some(KernelName::Avx512)),
                ],
                &["avx512bf16", "amx"],
            )?,
        },
        predict: settings.get("engine.predict").map_or(Ok(Predict::Auto), |setting| {
            let built = [
                ("auto", Predict::Auto),
                ("prefill", Predict::Prefill),
                ("table", Predict::Table),
                ("learned", Predict::Learned),
                ("probe", Predict::Probe),
            ];
            setting.choice(&built, &[])
        })?,
        states: settings.get("engine.states").map_or(Ok(None), |setting| {
            let built =
                [("auto", None), ("memory", Some(States::Memory)), ("parked", Some(States::Parked)), ("passing", Some(States::Passing))];
            setting.choice(&built, &[])
        })?,
        cache: settings.get("engine.cache").map(Setting::path).transpose()?,
        scratch: settings.get("engine.scratch").map(Setting::path).transpose()?,
        scratch_write_limit_bytes: settings.get("engine.scratch_write_limit").map(|s| s.bytes(0)).transpose()?,
    })
}

fn precision(settings: &Settings) -> Result<()> {
    settings.get("engine.precision").map_or(Ok(()), |setting| setting.choice(&[("f32", ())], &["bf16"]))
}

fn flag(settings: &Settings, key: &'static str) -> Result<bool> {
    settings.get(key).map_or(Ok(false), Setting::flag)
}

fn required<'s>(settings: &'s Settings, key: &'static str, example: &str, flag: &str) -> Result<&'s Setting> {
    let (section, name) = key.split_once('.').expect("a key has a section");
    settings.get(key).ok_or_else(|| {
        Error::usage(format!("{}: `{key}` is missing: write `{name} = {example}` under [{section}], or give {flag}", settings.name))
    })
}

/// What a setting's value is read as.
impl Setting {
    fn text(&self) -> Result<String> {
        match &self.value {
            Value::Text(text) => Ok(text.clone()),
            _ => Err(self.fault("a text in quotes")),
        }
    }

    fn filled_text(&self) -> Result<String> {
        self.text().and_then(|text| if text.is_empty() { Err(self.fault("a text that is not empty")) } else { Ok(text) })
    }

    /// A text, or a list of them; none is empty.
    fn texts(&self) -> Result<Vec<String>> {
        let wanted = "a text or a list of texts, none of them empty";
        let filled = |value: &Value| match value {
            Value::Text(text) if !text.is_empty() => Some(text.clone()),
            _ => None,
        };
        let texts = match &self.value {
            Value::List(items) => items.iter().map(filled).collect(),
            one => filled(one).map(|text| vec![text]),
        };
        texts.ok_or_else(|| match &self.value {
            Value::List(items) => {
                let wrong = items.iter().position(|item| filled(item).is_none()).unwrap_or(0);
                Error::usage(format!("{}: `{}` must be {wanted}; entry {} is {}", self.place, self.key, wrong + 1, items[wrong].show()))
            }
            _ => self.fault(wanted),
        })
    }

    fn path(&self) -> Result<PathBuf> {
        let path = self.filled_text()?;
        if path.contains('\0') { Err(self.fault("a path")) } else { Ok(self.base.join(path)) }
    }

    fn paths(&self) -> Result<Vec<PathBuf>> {
        let paths = self.texts()?;
        if paths.is_empty() || paths.iter().any(|path| path.contains('\0')) {
            return Err(self.fault("a path or a list of paths, one at least"));
        }
        Ok(paths.into_iter().map(|path| self.base.join(path)).collect())
    }

    /// Names of columns, each once.
    fn columns(&self) -> Result<Vec<String>> {
        let columns = self.texts()?;
        let mut seen = std::collections::BTreeSet::new();
        match columns.iter().find(|column| !seen.insert(column.as_str())) {
            Some(twice) => Err(Error::usage(format!("{}: `{}` names the column `{twice}` twice", self.place, self.key))),
            None => Ok(columns),
        }
    }

    fn flag(&self) -> Result<bool> {
        match self.value {
            Value::Flag(flag) => Ok(flag),
            _ => Err(self.fault("true or false")),
        }
    }

    /// True or 1: of the chosen token; more than that is not built.
    fn logprobs(&self) -> Result<bool> {
        match self.value {
            Value::Flag(flag) => Ok(flag),
            Value::Integer(1) => Ok(true),
            _ => Err(self.fault("true, 1 or false (log-probabilities of the chosen token; no others are built)")),
        }
    }

    /// An integer, also one written as 4.0.
    fn number(&self) -> Option<i64> {
        match &self.value {
            Value::Integer(n) => Some(*n),
            Value::Float(x) if x.fract() == 0.0 && x.abs() < 9.0e15 => Some(*x as i64),
            _ => None,
        }
    }

    fn integer(&self) -> Result<i64> {
        self.number().ok_or_else(|| self.fault("an integer"))
    }

    fn whole(&self, least: u64, most: u64) -> Result<u64> {
        let number = self.number().and_then(|n| u64::try_from(n).ok()).filter(|n| (least..=most).contains(n));
        number.ok_or_else(|| {
            let bound = if most >= u64::from(u32::MAX) { format!("from {least} on") } else { format!("from {least} to {most}") };
            self.fault(&format!("an integer {bound}"))
        })
    }

    fn top_k(&self) -> Result<u32> {
        let k = self.number().filter(|k| *k >= -1);
        k.map(|k| u32::try_from(k.max(0)).unwrap_or(u32::MAX)).ok_or_else(|| self.fault("an integer: 1 or more, or 0 or -1 for all"))
    }

    fn real(&self, wanted: &str, holds: impl Fn(f32) -> bool) -> Result<f32> {
        let number = match self.value {
            Value::Integer(n) => Some(n as f32),
            Value::Float(x) => Some(x as f32),
            _ => None,
        };
        number.filter(|x| holds(*x)).ok_or_else(|| self.fault(wanted))
    }

    fn ids(&self) -> Result<Vec<u32>> {
        let id = |item: &Value| match item {
            Value::Integer(n) => u32::try_from(*n).ok(),
            _ => None,
        };
        match &self.value {
            Value::List(items) => items.iter().map(id).collect::<Option<Vec<u32>>>(),
            _ => None,
        }
        .ok_or_else(|| self.fault("a list of token ids, as in [2, 17]"))
    }

    fn bytes(&self, least: u64) -> Result<u64> {
        let bytes = match &self.value {
            Value::Integer(n) => u64::try_from(*n).ok(),
            Value::Text(text) => parse_bytes(text).ok(),
            _ => None,
        };
        bytes
            .filter(|bytes| *bytes >= least)
            .ok_or_else(|| self.fault("a size: bytes, or a number with KiB, MiB, GiB, TiB, KB, MB, GB or TB, as in \"8GiB\""))
    }

    /// One of `built`; the names of `later` are refused by name.
    fn choice<T: Copy>(&self, built: &[(&str, T)], later: &[&str]) -> Result<T> {
        let names: Vec<String> = built.iter().map(|(name, _)| format!("\"{name}\"")).collect();
        let wanted = names.join(" or ");
        let Value::Text(text) = &self.value else { return Err(self.fault(&wanted)) };
        if later.contains(&text.as_str()) {
            return Err(Error::usage(format!("{}: `{}` = \"{text}\" is not built in this version; use {wanted}", self.place, self.key)));
        }
        built.iter().find(|(name, _)| name == text).map(|(_, value)| *value).ok_or_else(|| self.fault(&wanted))
    }
}
