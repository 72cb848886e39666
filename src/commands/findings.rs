//! What is said of a model that was read once.

use std::fmt::Write;
use std::path::Path;

use serde_json::json;

use crate::store::{Counted, DirectIo, Method, Names, Verified};
use crate::units::{show_bytes, show_count};

/// What was found, beside the weights themselves.
pub struct Findings {
    pub fingerprint: String,
    /// Where sums are kept.
    pub sums: Option<String>,
    pub counted: Counted,
    /// Lines to be said.
    pub notes: Vec<String>,
    pub verified: Verified,
}

impl Findings {
    /// For scripts.
    pub fn object(&self, folder: &Path) -> String {
        let (v, counted) = (&self.verified, self.counted);
        let names = |names: &Names| json!({ "count": names.count, "first": names.first });
        let object = json!({
            "model": folder.display().to_string(), "ok": v.faults_total == 0, "read": true, "fingerprint": self.fingerprint,
            "files": v.files, "pieces": v.pieces, "weight_bytes": v.weight_bytes, "bytes_read": v.bytes_read,
            "wall_ms": v.time.as_millis() as u64, "bytes_per_second": rate(v), "direct_io": direct(v.direct), "method": method(v.method),
            "checksums": { "recorded": counted.recorded, "same": counted.same, "changed": counted.changed, "folder": self.sums },
            "unused_tensors": names(&v.extras.unused), "ignored_copies": names(&v.extras.copies), "stray_files": v.strays,
            "notes": self.notes, "unreadable": v.unreadable, "faults_total": v.faults_total, "faults": v.faults,
        });
        format!("{object:#}\n")
    }

    /// For a person.
    pub fn words(&self, folder: &Path) -> String {
        let (v, counted) = (&self.verified, self.counted);
        let mut text = String::new();
        let mut line = |name: &str, value: &str| writeln!(text, "{name:<12}{}", shown(value)).expect("a string takes text");
        line("model", &format!("{}, {} of weights in {} files", folder.display(), show_bytes(v.weight_bytes), show_count(v.files)));
        let how = match v.direct {
            DirectIo::All => "past the page cache",
            DirectIo::Some => "some files past the page cache, some through it",
            DirectIo::None => "through the page cache, which this file system asks for",
        };
        let (read, seconds, rate) = (show_bytes(v.bytes_read), v.time.as_secs_f64(), rate(v) as f64 / 1e9);
        line("read", &format!("{read} in {seconds:.1} s, {rate:.2} GB/s, {how} ({})", method(v.method)));
        let kept = self.sums.as_ref().map_or(String::new(), |folder| format!(", kept in {folder}"));
        let [recorded, same, changed] = [counted.recorded, counted.same, counted.changed].map(show_count);
        line("checksums", &format!("{recorded} taken for the first time, {same} as recorded, {changed} changed{kept}"));
        self.notes.iter().for_each(|note| line("note", note));
        for (name, names) in [("not used", &v.extras.unused), ("copies", &v.extras.copies)] {
            if names.count > 0 {
                line(name, &format!("{}: {}", show_count(names.count), few(&names.first, names.count)));
            }
        }
        if !v.strays.is_empty() {
            line("strays", &format!("files of no checkpoint: {}", few(&v.strays, v.strays.len() as u64)));
        }
        v.faults.iter().for_each(|fault| line("fault", fault));
        let untold = v.faults_total.saturating_sub(v.faults.len() as u64);
        if untold > 0 {
            line("", &format!("and {} faults more", show_count(untold)));
        }
        line(
            "verdict",
            &if v.faults_total == 0 {
                "no fault found".into()
            } else {
                format!("{} fault{}", show_count(v.faults_total), if v.faults_total == 1 { "" } else { "s" })
            },
        );
        text
    }
}

/// What is said of a model whose headers are wrong, so that none of its weights were read.
pub fn unopened(folder: &Path, faults: &[String], json: bool) -> String {
    if json {
        return format!(
            "{:#}\n",
            json!({ "model": folder.display().to_string(), "ok": false, "read": false, "faults_total": faults.len(), "faults": faults })
        );
    }
    let mut text = format!("{:<12}{}, which cannot be opened, so no weight was read\n", "model", folder.display());
    faults.iter().for_each(|fault| writeln!(text, "{:<12}{}", "fault", shown(fault)).expect("a string takes text"));
    text
}

/// The first three of some names.
fn few(first: &[String], count: u64) -> String {
    let told = first.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    if count > 3 { format!("{told} and {} more", show_count(count - 3)) } else { told }
}

/// A terminal gets no control characters of a file.
fn shown(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

fn rate(v: &Verified) -> u64 {
    (v.bytes_read as f64 / v.time.as_secs_f64().max(1e-9)) as u64
}

fn direct(direct: DirectIo) -> &'static str {
    match direct {
        DirectIo::All => "all",
        DirectIo::Some => "some",
        DirectIo::None => "none",
    }
}

fn method(method: Method) -> &'static str {
    match method {
        Method::Uring => "io_uring",
        Method::Threads => "threads",
    }
}
