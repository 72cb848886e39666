//! Which files are the input? Names and glob patterns become a list, each file of a known kind.
//!
//! As in every shell a star does not match a leading dot: beside `a.jsonl` an exFAT disk holds a binary `._a.jsonl`. A name that
//! exists as it is written is that file, even if it has brackets.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind, Result};

/// How a file's bytes become rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A JSON object a line.
    Jsonl,
    /// Apache Parquet.
    Parquet,
}

/// One file to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) bytes: u64,
}

const KNOWN: &str = "known are .jsonl, .ndjson and .parquet";

/// The files that `paths` name, in the given order, the matches of a pattern sorted.
pub(super) fn resolve(paths: &[PathBuf]) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut seen = BTreeSet::new();
    for path in paths {
        for file in expand(path)? {
            if !seen.insert(file.clone()) {
                return Err(Error::refused(format!("the input names {} twice: its rows would run twice", file.display())));
            }
            sources.push(source(file)?);
        }
    }
    if sources.is_empty() {
        return Err(Error::usage("input.path names no file"));
    }
    Ok(sources)
}

fn expand(path: &Path) -> Result<Vec<PathBuf>> {
    if path.symlink_metadata().is_ok() {
        return Ok(vec![path.to_path_buf()]);
    }
    let absent = || Error::refused(format!("the input {} does not exist", path.display()));
    let Some(pattern) = path.to_str().filter(|text| text.contains(['*', '?', '['])) else { return Err(absent()) };
    let options = glob::MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
    let matches =
        glob::glob_with(pattern, options).map_err(|e| Error::refused(format!("the input pattern {pattern} cannot be understood: {e}")))?;
    let mut files = Vec::new();
    for found in matches {
        let file = found.map_err(|e| Error::io(Kind::Refused, "read", e.path(), e.error()))?;
        if !file.is_dir() {
            files.push(file);
        }
    }
    if files.is_empty() {
        return Err(Error::refused(format!("the input pattern {pattern} matches no file")));
    }
    files.sort();
    Ok(files)
}

fn source(path: PathBuf) -> Result<Source> {
    let facts = path.metadata().map_err(|e| Error::io(Kind::Refused, "read", &path, &e))?;
    let name = path.display();
    if facts.is_dir() {
        return Err(Error::refused(format!(
            "the input {name} is a folder: name its files, {} for instance",
            path.join("*.jsonl").display()
        )));
    }
    let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
    let format = match extension.as_deref() {
        Some("jsonl" | "ndjson") => Format::Jsonl,
        Some("parquet") => Format::Parquet,
        Some(other) => return Err(Error::refused(format!("the input {name} is of the unknown kind .{other}: {KNOWN}"))),
        None => return Err(Error::refused(format!("the input {name} has no ending that says its kind: {KNOWN}"))),
    };
    if !facts.is_file() {
        return Err(Error::refused(format!("the input {name} is no plain file: rows are read twice at need, so a pipe cannot be one")));
    }
    if facts.len() == 0 {
        return Err(Error::refused(format!("the input {name} is empty")));
    }
    Ok(Source { path, format, bytes: facts.len() })
}
