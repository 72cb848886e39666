//! A rehearsal in words: what was measured, and apart from it what follows from that for a job.

use std::fmt::Write;

use serde::Serialize;

use crate::machine::{Bound, Estimate, ProductRate, Rates};
use crate::memory::Ledger;
use crate::units::{show_bytes, show_count};

/// Seconds of a night: ten hours.
const NIGHT_S: f64 = 36_000.0;
/// With less of their time the threads were held up by others.
const CORES_SHARE_MIN: f64 = 0.85;

/// What was measured, and what was computed from it.
pub struct Rehearsal<'a> {
    /// The machine's rates.
    pub measured: &'a Rates,
    /// The job.
    pub computed: Computed,
    /// Why the rates could not be kept for later, if so.
    pub not_saved: Option<String>,
}

/// A job over the model: its rows are alike.
#[derive(Debug, Clone, Serialize)]
pub struct Computed {
    /// Rows.
    pub rows: u32,
    /// Tokens of each prompt.
    pub prompt_tokens: u32,
    /// New tokens of each row.
    pub new_tokens: u32,
    /// Most memory, in bytes.
    pub memory_budget: u64,
    /// What of it is used.
    pub ledger_total: u64,
    /// Sequences in flight.
    pub sequences: usize,
    /// Prompt rows in a sweep.
    pub prompt_rows_a_sweep: usize,
    /// What memory is for.
    pub ledger: Ledger,
    /// All prompts; None where the disk has no rate.
    pub prompts: Option<Estimate>,
    /// All new tokens but each row's first.
    pub answers: Option<Estimate>,
}

impl Computed {
    /// Seconds of the whole job.
    fn seconds(&self) -> Option<f64> {
        Some(self.prompts?.seconds + self.answers?.seconds)
    }

    fn documents_a_night(&self) -> Option<f64> {
        Some(f64::from(self.rows) * NIGHT_S / self.seconds()?.max(1e-9))
    }
}

/// For scripts.
#[derive(Serialize)]
pub struct Record<'a> {
    measured: &'a Rates,
    computed: RecordComputed<'a>,
}

#[derive(Serialize)]
struct RecordComputed<'a> {
    #[serde(flatten)]
    computed: &'a Computed,
    seconds: Option<f64>,
    documents_a_night: Option<f64>,
}

impl Rehearsal<'_> {
    /// For scripts.
    pub fn for_scripts(&self) -> Record<'_> {
        let (seconds, documents_a_night) = (self.computed.seconds(), self.computed.documents_a_night());
        Record { measured: self.measured, computed: RecordComputed { computed: &self.computed, seconds, documents_a_night } }
    }

    /// For a person.
    pub fn words(&self) -> String {
        let m = self.measured;
        let mut text = format!("measured {} in {}, on pieces of {}\n", m.measured(), m.scratch.display(), m.shape);
        self.measured(&mut text);
        let c = &self.computed;
        let (rows, prompt, new) = (show_count(c.rows.into()), show_count(c.prompt_tokens.into()), show_count(c.new_tokens.into()));
        writeln!(text, "\ncomputed from that: a job of {rows} rows, {prompt} prompt tokens and {new} new tokens each").expect("a string");
        self.computed(&mut text);
        if let Some(why) = &self.not_saved {
            writeln!(text, "\nthe rates were not kept for later: {why}").expect("a string");
        }
        text
    }

    fn measured(&self, text: &mut String) {
        let m = self.measured;
        let mut line = |name: &str, value: String| writeln!(text, "{name:<18}{value}").expect("a string takes text");
        line("processor", format!("{}, {} threads, kernel {}", m.processor, m.threads, m.kernel));
        match (m.disk.bytes_per_s, m.disk.passes.first(), m.disk.passes.last()) {
            (Some(rate), Some(least), Some(most)) => {
                let (least, most) = (show_bytes(least.rate()), show_bytes(most.rate()));
                line("disk", format!("{}/s ({least}/s to {most}/s in {} passes)", show_bytes(rate), m.disk.passes.len()));
                let method = if m.disk.uring { "io_uring" } else { "threads" };
                let (piece, all) = (show_bytes(m.disk.piece_bytes), show_bytes(m.disk.file_bytes));
                line("", format!("blocks of {piece}, {all} of them in random order, by {method}, {}", m.file_system));
                line("", self.proof());
            }
            _ => line("disk", format!("no figure: {}", m.disk.doubt.as_deref().unwrap_or("nothing was read"))),
        }
        let rates = |rates: &[ProductRate], f: fn(&ProductRate) -> String| rates.iter().map(|r| format!("{:>8}", f(r))).collect::<String>();
        line("rows at once", rates(&m.experts, |r| show_count(r.rows.into())));
        line("  experts", rates(&m.experts, gflops) + "  GFLOP/s");
        line("  trunk", rates(&m.trunk, gflops) + "  GFLOP/s");
        if m.cores_share < CORES_SHARE_MIN {
            let share = format!("{:.0} %", m.cores_share * 100.0);
            line("", format!("but the threads got {share} of the time: other programs were at work, and without them this is faster"));
        }
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let disk = match m.together.disk_bytes_per_s {
            Some(rate) => format!("{}/s of disk ({} of that alone)", show_bytes(rate), percent(m.together.disk_share)),
            None => "an unknown rate of disk".into(),
        };
        let gflops = m.together.flops_per_s / 1_000_000_000;
        let (rows, share) = (m.together.rows, percent(m.together.arithmetic_share));
        line("both at once", format!("{disk} beside {gflops} GFLOP/s of experts at {rows} rows ({share} of that alone)"));
    }

    /// Why the rate is the disk's and not memory's.
    fn proof(&self) -> String {
        let disk = &self.measured.disk;
        let way = if disk.direct { "reads went past the page cache" } else { "reads went through the page cache, which was emptied" };
        match disk.pages_cached {
            Some(n) => format!("{way}; of {} pages asked for before a pass, {n} lay in memory", disk.pages_sampled),
            None => way.into(),
        }
    }

    fn computed(&self, text: &mut String) {
        let c = &self.computed;
        let mut line = |name: &str, value: String| writeln!(text, "{name:<18}{value}").expect("a string takes text");
        line("memory", format!("{} of {}", show_bytes(c.ledger_total), show_bytes(c.memory_budget)));
        for entry in c.ledger.lines.iter().filter(|l| l.bytes > 0) {
            line(&format!("  {}", entry.name), format!("{:>8}  {}", show_bytes(entry.bytes), entry.buys));
        }
        let (Some(prompts), Some(answers), Some(seconds), Some(documents)) = (c.prompts, c.answers, c.seconds(), c.documents_a_night())
        else {
            line("time", "unknown, since the disk has no rate; name a --scratch folder on the disk that will hold the model".into());
            return;
        };
        line("", format!("{:>10}{:>12}{:>14}{:>16}  {}", "sweeps", "tokens", "bytes a token", "seconds a token", "bound by"));
        for (name, e) in [("prompts", prompts), ("answers", answers)].into_iter().filter(|(_, e)| e.tokens > 0) {
            let bound = match e.bound {
                Bound::Disk => format!("disk ({}; arithmetic {})", duration(e.disk_s), duration(e.arithmetic_s)),
                Bound::Arithmetic => format!("arithmetic ({}; disk {})", duration(e.arithmetic_s), duration(e.disk_s)),
            };
            let (sweeps, tokens, bytes) = (show_count(e.sweeps), show_count(e.tokens), show_bytes(e.bytes_a_token));
            line(name, format!("{sweeps:>10}{tokens:>12}{bytes:>14}{:>16}  {bound}", significant(e.seconds_a_token)));
        }
        line("whole job", format!("{}; {} documents in a night of 10 hours", duration(seconds), whole(documents)));
        line("", "experts chosen evenly; attention over long prompts comes on top".into());
    }
}

fn gflops(rate: &ProductRate) -> String {
    significant(rate.flops_per_s as f64 / 1e9)
}

fn whole(n: f64) -> String {
    if n < 10.0 { format!("{n:.1}") } else { show_count(n as u64) }
}

/// Two or three digits that count.
fn significant(x: f64) -> String {
    match x {
        x if x >= 100.0 => show_count(x.round() as u64),
        x if x >= 10.0 => format!("{x:.1}"),
        x if x >= 0.1 => format!("{x:.2}"),
        x if x >= 0.001 => format!("{x:.4}"),
        x => format!("{x:.1e}"),
    }
}

/// A time as a person says it.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 86_400.0 => format!("{} days", significant(s / 86_400.0)),
        s if s >= 2.0 * 3_600.0 => format!("{} hours", significant(s / 3_600.0)),
        s if s >= 120.0 => format!("{} min", significant(s / 60.0)),
        s => format!("{} s", significant(s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_times_are_shown_short() {
        for (seconds, shown) in [
            (0.0004, "4.0e-4 s"),
            (0.5, "0.50 s"),
            (119.0, "119 s"),
            (600.0, "10.0 min"),
            (36_000.0, "10.0 hours"),
            (864_000.0, "10.0 days"),
        ] {
            assert_eq!(duration(seconds), shown);
        }
        assert_eq!((whole(1.26), whole(12_345.6)), ("1.3".into(), "12,345".into()));
    }
}
