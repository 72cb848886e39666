//! `nightshift plan`: what would run, without running it.

use std::fmt::Write;
use std::time::Duration;

use serde::Serialize;

use super::prepare::{Prepared, prepare};
use super::{Said, explain, facts};
use crate::error::{Error, Result};
use crate::job::Job;
use crate::machine;
use crate::memory::Ledger;
use crate::plan::{self, Forecast, Limits, Schedule, States, allot, forecast};
use crate::report::{Explained, show_duration};
use crate::units::{show_bytes, show_count};

/// More rows are not planned a second time for a comparison.
const COMPARED_ROWS: usize = 100_000;

/// The plan, for scripts.
#[derive(Serialize)]
struct Plan<'a> {
    #[serde(flatten)]
    forecast: Forecast,
    wave: usize,
    pool: usize,
    prefill_rows: usize,
    states: States,
    scratch_bytes: u64,
    memory_budget: u64,
    ledger_total: u64,
    ledger: &'a Ledger,
    kernel: &'static str,
    grouping: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    predictor: Option<&'static str>,
    why: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    explain: Option<Explained>,
}

/// Reads the input into a temporary folder, plans, and says what would happen; with `explained`, also why.
///
/// # Errors
/// As a run's, before work.
pub fn plan(job: &Job, explained: bool, json: bool) -> Result<Said> {
    let state = tempfile::tempdir().map_err(|e| Error::storage(format!("cannot make a temporary folder: {e}")))?;
    let (prepared, _) = prepare(job, state.path())?;
    let allotment = prepared.schedule.allotment();
    let plan = Plan {
        forecast: forecast(prepared.schedule.clone(), &prepared.facts, prepared.limits.rates),
        wave: allotment.wave,
        pool: allotment.pool,
        prefill_rows: allotment.prefill_rows,
        states: allotment.states,
        scratch_bytes: explain::scratch_bytes(&prepared),
        memory_budget: prepared.limits.budget_bytes,
        ledger_total: allotment.ledger.total(),
        ledger: &allotment.ledger,
        kernel: prepared.kernels.path().name(),
        grouping: prepared.schedule.grouping().name(),
        predictor: prepared.schedule.overlap().map(plan::Overlap::predictor),
        why: &prepared.why,
        explain: if explained { Some(explain::explain(&prepared)?) } else { None },
    };
    let text = if json {
        serde_json::to_string_pretty(&plan).map_err(|e| Error::storage(format!("cannot encode the plan: {e}")))? + "\n"
    } else {
        words(&plan, &prepared)?
    };
    Ok(Said { text, code: 0 })
}

fn words(plan: &Plan<'_>, prepared: &Prepared) -> Result<String> {
    let f = &plan.forecast;
    let mut text = String::new();
    let mut line = |name: &str, value: String| writeln!(text, "{name:<18}{value}").expect("a string takes text");
    let faulty = if f.rows_faulty > 0 { format!(", {} of them errored", show_count(f.rows_faulty)) } else { String::new() };
    line("rows", show_count(f.rows) + &faulty);
    if let Some(fault) = first_fault(prepared)? {
        line("  first of them", fault);
    }
    line("tokens", format!("{} of prompts, at most {} generated", show_count(f.prompt_tokens), show_count(f.completion_tokens_max)));
    line(
        "sequences",
        format!("{} at most decode together, {} at most have begun", show_count(plan.wave as u64), show_count(plan.pool as u64)),
    );
    line("sweeps", format!("{} at most, of up to {} prompt tokens", show_count(f.sweeps), show_count(plan.prefill_rows as u64)));
    line(
        "reads",
        format!("{} of trunk, {} of experts, if every answer takes its most", show_bytes(f.bytes_trunk), show_bytes(f.bytes_experts)),
    );
    line("states", explain::states(plan.states, &plan.forecast, prepared));
    line("grouping", explain::grouping(prepared));
    plan.explain.iter().flat_map(Explained::lines).for_each(|(name, value)| line(&name, value));
    line("computes", format!("{} GFLOP, attention over positions left out", show_count(f.gflop)));
    let about = |ms| format!("about {} at the rates that `doctor --shape` measured", show_duration(Duration::from_millis(ms)));
    line("takes", f.wall_ms.map_or_else(|| "unknown; `nightshift doctor --shape` measures this machine".into(), about));
    line("kernel", prepared.kernels.path().name().into());
    let over = facts::shortage(plan.ledger_total, machine::available_bytes()).map_or_else(String::new, |words| format!("; {words}"));
    line("memory", format!("{} of {}{over}", show_bytes(plan.ledger_total), show_bytes(plan.memory_budget)));
    for entry in plan.ledger.lines.iter().filter(|l| l.bytes > 0) {
        line(&format!("  {}", entry.name), format!("{:>8}  {}", show_bytes(entry.bytes), entry.buys));
    }
    if let Some(words) = with_twice_the_memory(plan, prepared) {
        line("with twice that", format!("memory: {words}"));
    }
    Ok(text)
}

/// What twice the memory would save, where that is something and soon told.
fn with_twice_the_memory(plan: &Plan<'_>, prepared: &Prepared) -> Option<String> {
    let (schedule, m) = (&prepared.schedule, &prepared.facts);
    let rows = schedule.rows();
    if rows.len() > COMPARED_ROWS {
        return None;
    }
    let limits = Limits { budget_bytes: prepared.limits.budget_bytes.saturating_mul(2), ..prepared.limits.clone() };
    let allotment = allot(rows, schedule.grouping(), m, &limits).ok()?;
    let f = forecast(Schedule::new(rows.to_vec(), schedule.grouping(), allotment, m.state), m, limits.rates);
    let saves = f.bytes() < plan.forecast.bytes() / 10 * 9;
    saves.then(|| {
        format!("{} moved instead of {}, in {} sweeps", show_bytes(f.bytes()), show_bytes(plan.forecast.bytes()), show_count(f.sweeps))
    })
}

/// The first row that cannot run, and why; a terminal gets no control characters of the input.
fn first_fault(prepared: &Prepared) -> Result<Option<String>> {
    let Some(index) = prepared.schedule.rows().iter().position(|row| row.faulty) else { return Ok(None) };
    let request = prepared.input.spool.get(index as u64)?;
    let id: String = request.id.chars().take(60).collect();
    let words = request.fault.map(|fault| format!("`{id}`: {}: {}", fault.code, fault.message));
    Ok(words.map(|words| words.replace(char::is_control, "\u{fffd}")))
}
