//! What is each row called? Ids are unique over all files, or no row has one and the place is the name.
//!
//! 10^8 ids of 36 characters are 6 GB, so a row's id leaves 8 bytes of hash in memory; equal hashes are compared by the ids themselves,
//! in the spool.

use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use serde_json::{Map, Value};

use super::{Place, sampling};
use crate::error::{Error, Result};
use crate::spool::Spool;

/// Columns that name a row where the job names none, the first that is there.
pub(super) const USUAL: [&str; 2] = ["custom_id", "id"];
/// Equal hashes looked into; all but a few in 10^8 rows are equal ids.
const COMPARED: usize = 64;
/// Characters of an id in a message.
const SHOWN: usize = 80;

/// Gives each row its id and keeps what shows that no two are equal.
pub(super) struct Ids<'j> {
    column: Option<&'j str>,
    /// Whether rows have ids, once the first is seen.
    named: Option<bool>,
    /// The first row, as messages write it.
    first: String,
    hashes: Vec<u64>,
    hasher: RandomState,
}

impl<'j> Ids<'j> {
    pub(super) fn new(column: Option<&'j str>) -> Self {
        Ids { column, named: None, first: String::new(), hashes: Vec::new(), hasher: RandomState::new() }
    }

    /// The id of the next row.
    ///
    /// # Errors
    /// Refused: this row has an id and earlier ones have none, or the reverse; or it is neither text nor a whole number.
    pub(super) fn take(&mut self, row: &Map<String, Value>, place: Place<'_>) -> Result<String> {
        let own = self.own(row, place)?;
        match (self.named, own.is_some()) {
            (None, has) => {
                self.named = Some(has);
                self.first = place.to_string();
            }
            (Some(true), false) => {
                return Err(Error::refused(format!(
                    "{place} has no {}, but rows before it have one: give all rows an id or none",
                    self.names()
                )));
            }
            (Some(false), true) => {
                let (first, names) = (&self.first, self.names());
                return Err(Error::refused(format!("{first} has no {names}, but {place} has one: give all rows an id or none")));
            }
            _ => {}
        }
        Ok(self.keep(own))
    }

    /// The id of the next row, which is no row at all but a line that cannot be read.
    pub(super) fn skip(&mut self) -> String {
        self.keep(None)
    }

    fn keep(&mut self, own: Option<String>) -> String {
        let id = own.unwrap_or_else(|| format!("row-{}", self.hashes.len()));
        self.hashes.push(self.hasher.hash_one(&id));
        id
    }

    fn names(&self) -> String {
        match self.column {
            Some(column) => format!("`{column}`"),
            None => "`custom_id` or `id`".to_string(),
        }
    }

    fn own(&self, row: &Map<String, Value>, place: Place<'_>) -> Result<Option<String>> {
        let usual = if self.column.is_some() { &[] } else { USUAL.as_slice() };
        let column = self.column.iter().chain(usual).find(|&&name| !matches!(row.get(name), None | Some(Value::Null)));
        let Some(&name) = column else { return Ok(None) };
        match &row[name] {
            Value::String(text) => Ok(Some(text.clone())),
            Value::Number(number) if number.is_u64() => Ok(Some(number.to_string())),
            number @ Value::Number(_) if sampling::whole(number).is_some() => Ok(sampling::whole(number).map(|whole| whole.to_string())),
            _ => Err(Error::refused(format!("{place}: `{name}` must be text or a whole number of 64 bits to be the row's id"))),
        }
    }

    /// # Errors
    /// Refused: two rows have one id; `locate` says where a row stands.
    pub(super) fn check(self, spool: &Spool, locate: impl Fn(u64) -> Result<String>) -> Result<()> {
        let mut sorted = self.hashes.clone();
        sorted.sort_unstable();
        let repeated = sorted.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).take(COMPARED);
        let repeated: HashSet<u64> = repeated.collect();
        drop(sorted);
        if repeated.is_empty() {
            return Ok(());
        }
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        for (index, hash) in (0u64..).zip(&self.hashes) {
            if repeated.contains(hash) {
                let id = spool.get(index)?.id;
                if let Some(before) = seen.get(&id) {
                    let (one, other) = (locate(*before)?, locate(index)?);
                    return Err(Error::refused(format!(
                        "the id `{}` stands twice: {one} and {other}; every row needs its own",
                        shown(&id)
                    )));
                }
                seen.insert(id, index);
            }
        }
        Ok(())
    }
}

/// An id as messages show it: short, and no character of it moves a terminal's cursor.
fn shown(id: &str) -> String {
    let short: String = id.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if id.chars().nth(SHOWN).is_some() { short + "..." } else { short }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Request, Sampling};
    use crate::spool::SpoolWriter;

    #[test]
    fn equal_hashes_of_different_ids_are_no_fault() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut writer = SpoolWriter::create(folder.path()).expect("a spool");
        for (index, id) in ["a", "b", "c", "b"].into_iter().enumerate() {
            let request = Request {
                index: index as u64,
                id: id.into(),
                prompt: Vec::new(),
                truncated_tokens: 0,
                sampling: Sampling::default(),
                fault: None,
            };
            writer.push(&request).expect("written");
        }
        let spool = writer.finish().expect("closed");
        let check = |hashes: &[u64]| {
            let ids = Ids { hashes: hashes.to_vec(), ..Ids::new(None) };
            ids.check(&spool, |index| Ok(format!("place {index}")))
        };
        assert!(check(&[7, 7, 7]).is_ok());
        let error = check(&[1, 2, 3, 2]).expect_err("twice");
        assert!(error.message.contains("`b`") && error.message.contains("place 1 and place 3"), "{error}");
    }
}
