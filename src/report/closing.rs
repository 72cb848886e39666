//! The last words of a run: where the answers are, what they cost, how to look at them.

use std::path::Path;
use std::time::Duration;

use super::progress::show_duration;
use crate::output::{ExpertLoads, Summary};
use crate::units::{show_bytes, show_count};

/// Some lines for a person, each ended by a newline.
pub fn closing_words(summary: &Summary, out: &Path) -> String {
    let tokens = summary.prompt_tokens + summary.completion_tokens;
    let mut lines = vec![format!("answers     {}", out.join("data").display()), rows(summary)];
    lines.push(format!(
        "tokens      {} of prompts, {} generated, {} in {}",
        show_count(summary.prompt_tokens),
        show_count(summary.completion_tokens),
        rate(tokens, summary.wall_ms),
        wall(summary.wall_ms),
    ));
    let a_token = summary.bytes_read.checked_div(tokens).map_or_else(String::new, |bytes| format!(", {} a token", show_bytes(bytes)));
    let sweeps = show_count(summary.sweeps);
    lines.push(format!("read        {}{a_token}, in {sweeps} {}", show_bytes(summary.bytes_read), plural(summary.sweeps, "sweep")));
    lines.extend(experts(&summary.expert_loads));
    lines.push(format!(
        "memory      {} at most, {} in the ledger, {} allowed",
        show_bytes(summary.peak_memory),
        show_bytes(summary.ledger_total),
        show_bytes(summary.memory_budget),
    ));
    lines.push(format!("look at it  {}", duckdb_line("custom_id, text", out, "")));
    if summary.rows_errored > 0 {
        lines.push(format!("the errors  {}", duckdb_line("custom_id, error_code, error_message", out, " where status = 'errored'")));
    }
    lines.join("\n") + "\n"
}

fn rows(summary: &Summary) -> String {
    let mut text = format!("rows        {} of {} succeeded", show_count(summary.rows_succeeded), show_count(summary.rows_total));
    if summary.rows_errored > 0 {
        text += &format!(", {} errored", show_count(summary.rows_errored));
    }
    if summary.rows_cut_by_length > 0 {
        text += &format!(", {} cut by max_tokens", show_count(summary.rows_cut_by_length));
    }
    text
}

/// What answers loaded, beside what the same requests load in random waves; within two standard deviations they do not differ.
fn experts(loads: &ExpertLoads) -> Option<String> {
    let ran = format!("experts     {} loads for {} tokens", show_count(loads.ran), show_count(loads.tokens));
    let random = loads.random.zip(loads.random_sd).map_or_else(String::new, |(random, sd)| {
        let alike = if random.abs_diff(loads.ran) as f64 <= 2.0 * sd { ": no difference" } else { "" };
        format!("; random waves of the same size {} (sd {}){alike}", show_count(random), show_count(sd.round() as u64))
    });
    (loads.tokens > 0).then(|| ran + &random)
}

fn rate(tokens: u64, wall_ms: u64) -> String {
    match (tokens as u128 * 1000).checked_div(u128::from(wall_ms)) {
        Some(rate) => format!("{} a second", show_count(u64::try_from(rate).unwrap_or(u64::MAX))),
        None => "none a second".into(),
    }
}

/// A short run in tenths of a second, so that its rate can be believed.
fn wall(wall_ms: u64) -> String {
    match wall_ms {
        0..10_000 => format!("{:.1} s", wall_ms as f64 / 1000.0),
        _ => show_duration(Duration::from_millis(wall_ms)),
    }
}

fn plural(n: u64, noun: &str) -> String {
    if n == 1 { noun.into() } else { format!("{noun}s") }
}

/// A command that can be pasted, whatever the path's characters: quoted for SQL, then for the shell.
fn duckdb_line(columns: &str, out: &Path, which: &str) -> String {
    let pattern = out.join("data").join("*.parquet").display().to_string().replace('\'', "''");
    let mut quoted = String::with_capacity(pattern.len());
    for c in pattern.chars() {
        if matches!(c, '"' | '$' | '`' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    format!("duckdb -c \"select {columns} from '{quoted}'{which} limit 10\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_matters_is_said() {
        let summary = Summary {
            rows_total: 1_500,
            rows_succeeded: 1_498,
            rows_errored: 2,
            rows_cut_by_length: 7,
            prompt_tokens: 150_000,
            completion_tokens: 6_000,
            sweeps: 123,
            bytes_read: 15_600_000_000,
            expert_loads: ExpertLoads { ran: 12_345, tokens: 6_789, random: Some(13_000), random_sd: Some(50.4), ..ExpertLoads::default() },
            memory_budget: 8 << 30,
            ledger_total: 1_200_000_000,
            peak_memory: 1_100_000_000,
            wall_ms: 100_000,
            ..Summary::default()
        };
        let words = closing_words(&summary, Path::new("out"));
        let expected = "answers     out/data\n\
            rows        1,498 of 1,500 succeeded, 2 errored, 7 cut by max_tokens\n\
            tokens      150,000 of prompts, 6,000 generated, 1,560 a second in 2 min\n\
            read        15.6 GB, 100 kB a token, in 123 sweeps\n\
            experts     12,345 loads for 6,789 tokens; random waves of the same size 13,000 (sd 50)\n\
            memory      1.10 GB at most, 1.20 GB in the ledger, 8.59 GB allowed\n\
            look at it  duckdb -c \"select custom_id, text from 'out/data/*.parquet' limit 10\"\n\
            the errors  duckdb -c \"select custom_id, error_code, error_message from 'out/data/*.parquet' where status = 'errored' limit 10\"\n";
        assert_eq!(words, expected);
    }

    #[test]
    fn a_run_of_nothing_divides_by_nothing() {
        let words = closing_words(&Summary { rows_total: 1, rows_errored: 1, ..Summary::default() }, Path::new("out"));
        assert!(words.contains("0 of 1 succeeded, 1 errored"), "{words}");
        assert!(words.contains("none a second in 0.0 s"), "{words}");
        assert_eq!([9_949, 10_000].map(wall), ["9.9 s", "10 s"]);
    }

    #[test]
    fn a_difference_within_noise_is_none() {
        let said = |random, random_sd| experts(&ExpertLoads { ran: 100, tokens: 7, random, random_sd, ..ExpertLoads::default() });
        assert_eq!(said(None, None).as_deref(), Some("experts     100 loads for 7 tokens"));
        for (random, sd, noise) in [(104, 2.0, true), (105, 2.0, false), (96, 2.0, true), (95, 2.0, false), (100, 0.0, true)] {
            let words = said(Some(random), Some(sd)).expect("tokens were generated");
            assert_eq!(words.ends_with(": no difference"), noise, "{words}");
        }
        assert_eq!(experts(&ExpertLoads::default()), None);
    }

    #[test]
    fn the_command_survives_a_shell() {
        let line = duckdb_line("custom_id, text", Path::new("it's $HOME/\"a\""), "");
        assert_eq!(line, r#"duckdb -c "select custom_id, text from 'it''s \$HOME/\"a\"/data/*.parquet' limit 10""#);
    }
}
