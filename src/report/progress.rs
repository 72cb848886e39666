//! How far is the job, and when will it end?
//!
//! Rows differ a hundredfold in length, so both are counted in tokens, never in rows. A terminal gets a bar, a log file one plain line every
//! 30 s, a script `state/progress.json` about once a second. Time comes in from outside.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::output::{self, JobFolder};
use crate::units::{show_bytes, show_count};

pub(super) const LINE_EVERY: Duration = Duration::from_secs(30);
const FILE_EVERY: Duration = Duration::from_secs(1);
const FILE_NAME: &str = "progress.json";
/// Before this much of the work is done an end is a guess, not an estimate.
const ETA_FROM_TOKENS_PERMILLE: u64 = 5;

/// Where a person looks.
pub enum Screen {
    /// A terminal: one bar.
    Bar(ProgressDrawTarget),
    /// Anything else: plain lines.
    Lines(Box<dyn Write + Send>),
}

impl Screen {
    /// Standard error, as it is: a bar on a terminal, lines elsewhere.
    pub fn stderr() -> Self {
        if io::stderr().is_terminal() { Screen::Bar(ProgressDrawTarget::stderr()) } else { Screen::Lines(Box::new(io::stderr())) }
    }

    /// A line before work begins. Nobody may be looking any more: that is no reason to fail.
    pub fn say(&mut self, words: &str) {
        let _ = match self {
            Screen::Bar(_) => writeln!(io::stderr(), "nightshift: {words}"),
            Screen::Lines(out) => writeln!(out, "nightshift: {words}"),
        };
    }
}

/// Counts since the job's start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Rows that ended, errored ones included.
    pub rows_done: u64,
    /// Of these, errored ones.
    pub rows_errored: u64,
    /// Prompt tokens that went through the model, and generated ones.
    pub tokens_done: u64,
    /// Tokens of the total that are not needed any more: what ended rows were allowed beyond what they took.
    pub tokens_spared: u64,
    /// Generated tokens.
    pub generated: u64,
    /// Bytes of the checkpoint read.
    pub bytes_read: u64,
    /// Blocks read.
    pub blocks_loaded: u64,
    /// Rows that those blocks served.
    pub block_rows_served: u64,
    /// Passes through all layers.
    pub sweeps: u64,
}

/// Shows a job's progress until it is finished.
pub struct Progress {
    rows_total: u64,
    tokens_total: u64,
    folder: PathBuf,
    face: Face,
    line_at: Duration,
    file_at: Duration,
    file_failed: bool,
}

enum Face {
    Bar(ProgressBar),
    Lines(Box<dyn Write + Send>),
}

/// `progress.json`.
#[derive(Serialize)]
struct Record<'a> {
    finished: bool,
    elapsed_ms: u64,
    rows_total: u64,
    tokens_total: u64,
    #[serde(flatten)]
    counts: &'a Snapshot,
    /// Null while unknown.
    eta_ms: Option<u64>,
}

impl Progress {
    /// Starts to show a job of `rows_total` rows, which may take `tokens_total` tokens: all prompts, and all that rows may generate.
    pub fn start(screen: Screen, rows_total: u64, tokens_total: u64, folder: &JobFolder) -> Self {
        let face = match screen {
            Screen::Lines(out) => Face::Lines(out),
            Screen::Bar(target) => {
                let style = ProgressStyle::with_template("{bar:12} {wide_msg}").expect("a template of known keys");
                Face::Bar(ProgressBar::with_draw_target(Some(tokens_total), target).with_style(style))
            }
        };
        Progress {
            rows_total,
            tokens_total,
            folder: folder.state(),
            face,
            line_at: LINE_EVERY,
            file_at: Duration::ZERO,
            file_failed: false,
        }
    }

    /// Shows `counts`, `elapsed` after the job's start; cheap enough to be called at each sweep and layer.
    pub fn update(&mut self, elapsed: Duration, counts: &Snapshot) {
        if let Face::Bar(bar) = &self.face {
            bar.set_position((counts.tokens_done + counts.tokens_spared).min(self.tokens_total));
            bar.set_message(self.words(elapsed, counts));
        }
        if elapsed >= self.line_at {
            self.line_at = elapsed + LINE_EVERY;
            let words = self.words(elapsed, counts);
            self.say(&words);
        }
        if elapsed >= self.file_at {
            self.file_at = elapsed + FILE_EVERY;
            self.record(elapsed, counts, false);
        }
    }

    /// Takes the bar away and leaves the last counts in `progress.json`.
    pub fn finish(mut self, elapsed: Duration, counts: &Snapshot) {
        if let Face::Bar(bar) = &self.face {
            bar.finish_and_clear();
        }
        self.record(elapsed, counts, true);
    }

    fn words(&self, elapsed: Duration, counts: &Snapshot) -> String {
        let rate = per_second(counts.tokens_done, elapsed).map_or_else(|| "-".into(), |rate| show_count(rate.round() as u64));
        let reuse = match counts.blocks_loaded {
            0 => "-".into(),
            loaded if counts.block_rows_served / loaded >= 100 => show_count(counts.block_rows_served / loaded),
            loaded => format!("{:.1}", counts.block_rows_served as f64 / loaded as f64),
        };
        let errored = if counts.rows_errored == 0 { String::new() } else { format!(" ({} errored)", show_count(counts.rows_errored)) };
        let left = self.eta(elapsed, counts).map_or_else(|| "end not known yet".into(), |left| format!("{} left", show_duration(left)));
        format!(
            "{}/{} rows{errored}, {left}, {rate} tokens/s, {} read, {reuse} rows per expert read",
            show_count(counts.rows_done),
            show_count(self.rows_total),
            show_bytes(counts.bytes_read),
        )
    }

    /// Time for the tokens that are left, at the rate of the tokens that are done.
    fn eta(&self, elapsed: Duration, counts: &Snapshot) -> Option<Duration> {
        let left = self.tokens_total.saturating_sub(counts.tokens_done).saturating_sub(counts.tokens_spared);
        if counts.tokens_done < self.tokens_total / 1000 * ETA_FROM_TOKENS_PERMILLE {
            return None;
        }
        let seconds = left as f64 / per_second(counts.tokens_done, elapsed)?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    fn record(&mut self, elapsed: Duration, counts: &Snapshot, finished: bool) {
        if self.file_failed {
            return;
        }
        let record = Record {
            finished,
            elapsed_ms: milliseconds(elapsed),
            rows_total: self.rows_total,
            tokens_total: self.tokens_total,
            counts,
            eta_ms: self.eta(elapsed, counts).map(milliseconds),
        };
        let text = serde_json::to_vec(&record).expect("integers have a JSON form");
        // Not worth a night's work: the journal, on the same disk, is what stops the job.
        if let Err(e) = output::replace(&self.folder, FILE_NAME, &text) {
            self.file_failed = true;
            self.say(&format!("{FILE_NAME} is no longer written: {e}"));
        }
    }

    fn say(&mut self, words: &str) {
        match &mut self.face {
            Face::Bar(_) => {}
            Face::Lines(out) => {
                // Nobody is left to tell that nobody listens.
                let _ = writeln!(out, "{words}").and_then(|()| out.flush());
            }
        }
    }
}

/// None while there is no rate.
fn per_second(tokens: u64, elapsed: Duration) -> Option<f64> {
    (tokens > 0 && !elapsed.is_zero()).then(|| tokens as f64 / elapsed.as_secs_f64())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// "45 s", "12 min", "3 h 05 min", "2 d 4 h".
pub fn show_duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", (seconds + 30) / 60),
        6_000..172_800 => format!("{hours} h {:02} min", minutes % 60),
        _ => format!("{} d {} h", hours / 24, hours % 24),
    }
}

#[cfg(test)]
mod tests;
