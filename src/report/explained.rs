//! Why would requests run together, and what is that expected to save? What is known before a prompt is read, in words.

use serde::Serialize;

use crate::units::{show_bytes, show_count};

/// All that `plan --explain` tells.
#[derive(Debug, Clone, Serialize)]
pub struct Explained {
    /// Rows whose answers have more than one token: they decode in waves.
    pub rows_answered: u64,
    /// Rows that cannot run.
    pub rows_errored: u64,
    /// The part of the expert loads of random waves that grouping is expected to save.
    pub saving_expected: f64,
    /// What earlier runs saved, if any.
    pub saving_measured: Option<Measured>,
    /// Who may foretell what answers use; none where rows are not grouped by that.
    pub predictors: Vec<&'static str>,
    /// Most sequences that decode together.
    pub wave: usize,
    /// Most sequences that have begun.
    pub pool: usize,
    /// So many places, or all, are free before others join the wave.
    pub cohort: usize,
    /// So many prompts, or all that are left, have room before some are read.
    pub refill: usize,
    /// By what the table knows.
    pub table: Option<Tabled>,
    /// Why there is nothing of it.
    pub no_table: Option<&'static str>,
}

/// What runs with waves of about this size saved.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Measured {
    /// Sequences of a wave, rounded up to a power of two.
    pub wave: u64,
    /// The part of the expert loads of random waves: the mean over runs.
    pub saved: f64,
    /// Its standard deviation by chance alone.
    pub sd: f64,
    /// Runs.
    pub runs: u32,
}

/// Waves as the table of tokens foretells them. Blocks and bytes are those of the layers that it knows, a sweep.
#[derive(Debug, Clone, Serialize)]
pub struct Tabled {
    /// Layers that it knows, of all that have experts.
    pub layers: usize,
    /// See `layers`.
    pub layers_all: usize,
    /// Rows of whose tokens none was seen before: they are left out.
    pub rows_unknown: u64,
    /// All waves.
    pub waves_all: u64,
    /// The first of them.
    pub waves: Vec<TabledWave>,
    /// Expected distinct blocks, the mean over all waves.
    pub grouped_blocks: f64,
    /// Bytes of these.
    pub grouped_bytes: u64,
    /// The same of shuffled waves, its standard deviation from draw to draw, and how often it was drawn.
    pub random_blocks: f64,
    /// See `random_blocks`.
    pub random_sd: f64,
    /// See `random_blocks`.
    pub random_draws: usize,
    /// Bytes of the shuffled waves' blocks.
    pub random_bytes: u64,
    /// The part of its blocks that a request shares with its wave: the mean.
    pub shared: f64,
    /// Who shares least.
    pub least: Vec<Least>,
}

/// One wave.
#[derive(Debug, Clone, Serialize)]
pub struct TabledWave {
    /// Its requests.
    pub requests: usize,
    /// Ids of the first of them, cut short.
    pub first: Vec<String>,
    /// Expected distinct blocks.
    pub blocks: f64,
    /// Bytes of these.
    pub bytes: u64,
}

/// A request that fits no wave well.
#[derive(Debug, Clone, Serialize)]
pub struct Least {
    /// Its id, cut short.
    pub id: String,
    /// The part of its blocks that it shares with its wave.
    pub shared: f64,
}

impl Explained {
    /// Names and values of lines for a person.
    pub fn lines(&self) -> Vec<(String, String)> {
        let mut lines =
            vec![("explained".into(), "by what is known before a prompt is read; a run decides anew when it has read them".into())];
        let mut line = |name: &str, value: String| lines.push((format!("  {name}"), value));
        line("saving", self.saving());
        line("predictor", self.predictor());
        line("waves", self.waves());
        line("prompts", self.prompts());
        line("table", self.table.as_ref().map_or_else(|| self.no_table.unwrap_or("unknown").into(), Tabled::words));
        for (i, wave) in self.table.iter().flat_map(|table| &table.waves).enumerate() {
            line(&format!("wave {}", i + 1), wave.words());
        }
        if let Some(table) = self.table.as_ref().filter(|table| !table.least.is_empty()) {
            let least: Vec<String> = table.least.iter().map(|l| format!("`{}` {}", l.id, percent(l.shared))).collect();
            line("fit least", format!("of their blocks share with their wave {}; the mean is {}", least.join(", "), percent(table.shared)));
        }
        line("fit nowhere", self.nowhere());
        lines
    }

    fn saving(&self) -> String {
        let of = "of the expert loads of random waves";
        match self.saving_measured {
            None => {
                format!("{} {of}, assumed: waves of about {} were not measured with this model", percent(self.saving_expected), self.wave)
            }
            Some(Measured { wave, saved, sd, runs }) => {
                let runs = format!("{runs} {} in waves of about {wave}", if runs == 1 { "run" } else { "runs" });
                let (saved, sd) = (percent(saved), percent(sd));
                if self.saving_expected > 0.0 {
                    format!("{saved} {of}: the mean of {runs} (by chance alone: sd {sd})")
                } else {
                    format!("nothing: {runs} saved {saved} {of}, no more than chance explains (sd {sd})")
                }
            }
        }
    }

    fn predictor(&self) -> String {
        match self.predictors.as_slice() {
            [] => "none: requests are not grouped by the experts that they share".into(),
            [only] => format!("`{only}`, as engine.predict says"),
            [first, ..] => format!(
                "`{first}` to begin with; each finished answer scores {}, and the best so far is believed",
                self.predictors.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            ),
        }
    }

    fn waves(&self) -> String {
        match self.cohort.min(self.wave) {
            0 | 1 => {
                let next = if self.predictors.is_empty() { "the next in order" } else { "the one that waits and adds fewest blocks" };
                format!("each free place is taken at once, by {next}")
            }
            places => format!("filled when {} places are free: answers that begin together share more", show_count(places as u64)),
        }
    }

    fn prompts(&self) -> String {
        let pool = show_count(self.pool as u64);
        match self.refill {
            0 | 1 => format!("read as soon as one more may begin; {pool} at most have begun"),
            refill => format!("read when {} more may begin, or all that are left; {pool} at most have begun", show_count(refill as u64)),
        }
    }

    fn nowhere(&self) -> String {
        match self.rows_errored {
            0 => "no request: each has room in memory".into(),
            errored => format!("{} errored rows; each other has room in memory", show_count(errored)),
        }
    }
}

impl Tabled {
    fn words(&self) -> String {
        let blocks = |blocks: f64, bytes| format!("{blocks:.1} distinct experts ({})", show_bytes(bytes));
        let less = 1.0 - self.grouped_blocks / self.random_blocks.max(f64::MIN_POSITIVE);
        let noise = if self.random_blocks - self.grouped_blocks <= 2.0 * self.random_sd { ", no more than chance explains" } else { "" };
        let unknown = match self.rows_unknown {
            0 => String::new(),
            rows => format!("; nothing is known of {} rows", show_count(rows)),
        };
        format!(
            "of {} of {} layers: {} a sweep, the mean of {} waves; {} in random waves (sd {:.2} of {} draws): {} less{noise}{unknown}",
            self.layers,
            self.layers_all,
            blocks(self.grouped_blocks, self.grouped_bytes),
            show_count(self.waves_all),
            blocks(self.random_blocks, self.random_bytes),
            self.random_sd,
            self.random_draws,
            percent(less),
        )
    }
}

impl TabledWave {
    fn words(&self) -> String {
        let first: Vec<String> = self.first.iter().map(|id| format!("`{id}`")).collect();
        let more = match self.requests - self.first.len().min(self.requests) {
            0 => String::new(),
            more => format!(" and {} more", show_count(more as u64)),
        };
        format!("{}{more}: {:.1} distinct experts, {}", first.join(", "), self.blocks, show_bytes(self.bytes))
    }
}

/// "7.2 %".
fn percent(part: f64) -> String {
    format!("{:.1} %", 100.0 * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained() -> Explained {
        Explained {
            rows_answered: 9,
            rows_errored: 0,
            saving_expected: 0.08,
            saving_measured: None,
            predictors: vec!["prefill", "table"],
            wave: 8,
            pool: 20,
            cohort: 1,
            refill: 1,
            table: None,
            no_table: Some("there is none"),
        }
    }

    fn value(explained: &Explained, name: &str) -> String {
        explained.lines().into_iter().find(|(n, _)| n.trim() == name).unwrap_or_else(|| panic!("no {name}")).1
    }

    #[test]
    fn a_saving_is_assumed_measured_or_noise() {
        let mut e = explained();
        assert!(value(&e, "saving").starts_with("8.0 % of the expert loads of random waves, assumed"));
        e.saving_measured = Some(Measured { wave: 8, saved: 0.072, sd: 0.009, runs: 3 });
        e.saving_expected = 0.072;
        let words = value(&e, "saving");
        assert!(words.contains("7.2 %") && words.contains("3 runs") && words.contains("sd 0.9 %"), "{words}");
        e.saving_expected = 0.0;
        assert!(value(&e, "saving").starts_with("nothing: 3 runs"));
    }

    #[test]
    fn each_way_to_fill_a_wave_has_its_words() {
        let mut e = explained();
        assert!(value(&e, "waves").contains("fewest blocks") && value(&e, "prompts").contains("as soon as one"));
        assert!(value(&e, "predictor").contains("`prefill` to begin with") && value(&e, "table") == "there is none");
        (e.predictors, e.cohort, e.refill, e.rows_errored) = (Vec::new(), 8, 10, 2);
        assert!(value(&e, "waves").contains("8 places") && value(&e, "prompts").contains("when 10 more"));
        assert!(value(&e, "predictor").starts_with("none") && value(&e, "fit nowhere").starts_with("2 errored"));
    }

    #[test]
    fn a_table_says_how_many_layers_it_knows_and_what_chance_does() {
        let wave = TabledWave { requests: 3, first: vec!["a".into(), "b".into()], blocks: 30.0, bytes: 3000 };
        let least = vec![Least { id: "c".into(), shared: 0.125 }];
        let mut e = explained();
        e.table = Some(Tabled {
            layers: 5,
            layers_all: 92,
            rows_unknown: 1,
            waves_all: 1,
            waves: vec![wave],
            grouped_blocks: 30.0,
            grouped_bytes: 3000,
            random_blocks: 40.0,
            random_sd: 1.0,
            random_draws: 20,
            random_bytes: 4000,
            shared: 0.5,
            least,
        });
        let words = value(&e, "table");
        assert!(words.contains("5 of 92 layers") && words.contains("25.0 % less") && !words.contains("chance"), "{words}");
        assert_eq!(value(&e, "wave 1"), "`a`, `b` and 1 more: 30.0 distinct experts, 3.00 kB");
        assert!(value(&e, "fit least").contains("`c` 12.5 %"));
        e.table.as_mut().expect("a table").random_sd = 6.0;
        assert!(value(&e, "table").contains("no more than chance explains"));
    }
}
