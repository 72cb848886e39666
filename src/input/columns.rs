//! Does any row have the columns that the job names? A misspelt one must not render as nothing for a whole night.

use std::collections::BTreeSet;

use crate::error::{Error, Result};

/// Most column names remembered for the sake of "did you mean".
const REMEMBERED: usize = 1000;

/// A column that the job names.
struct Wanted {
    /// The job's key: `input.template`.
    key: &'static str,
    name: String,
    seen: bool,
}

/// Columns that the job names, and those that rows have.
pub(super) struct Columns {
    wanted: Vec<Wanted>,
    seen: BTreeSet<String>,
}

impl Columns {
    pub(super) fn new() -> Self {
        Columns { wanted: Vec::new(), seen: BTreeSet::new() }
    }

    /// The job's `key` names the column `name`.
    pub(super) fn want(&mut self, key: &'static str, name: &str) {
        self.wanted.push(Wanted { key, name: name.to_string(), seen: false });
    }

    /// A row or a file has these columns.
    pub(super) fn saw<'n>(&mut self, names: impl Iterator<Item = &'n str>) {
        for name in names {
            for wanted in self.wanted.iter_mut().filter(|wanted| wanted.name == name) {
                wanted.seen = true;
            }
            if self.seen.len() < REMEMBERED && !self.seen.contains(name) {
                self.seen.insert(name.to_string());
            }
        }
    }

    /// # Errors
    /// Usage: a column that no row has, with the nearest that one has.
    pub(super) fn check(&self) -> Result<()> {
        let Some(Wanted { key, name, .. }) = self.wanted.iter().find(|wanted| !wanted.seen) else { return Ok(()) };
        let hint = match nearest(name, self.seen.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", self.seen.iter().take(20).map(|c| format!("`{c}`")).collect::<Vec<_>>().join(", ")),
        };
        Err(Error::usage(format!("{key} names the column `{name}`, which no row has; {hint}")))
    }
}

/// The one of `names` that is most like `name`, if any is like it at all.
pub(super) fn nearest<'n>(name: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let likeness = |other: &str| strsim::jaro_winkler(&name.to_lowercase(), &other.to_lowercase());
    names.map(|other| (likeness(other), other)).filter(|(like, _)| *like > 0.7).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, other)| other)
}
