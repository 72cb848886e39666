//! Why the plan is as it is, in words.

use std::sync::Arc;

use super::misfits::id;
use super::overlap;
use super::prepare::Prepared;
use super::profile::Profile;
use crate::error::Result;
use crate::plan::{self, Footprint, Forecast, States, Unions};
use crate::report::{Explained, Least, Measured, Tabled, TabledWave};
use crate::request::RowFacts;
use crate::units::show_bytes;

/// More rows are not looked at one by one.
const EXPLAINED_ROWS: usize = 100_000;

/// Waves that are told one by one, the ids of each, and requests that share least.
const WAVES: usize = 8;
const IDS: usize = 3;
const LEAST: usize = 5;

/// What the states take on their disk.
pub fn scratch_bytes(prepared: &Prepared) -> u64 {
    match prepared.schedule.allotment() {
        allotment if allotment.states == States::Memory => 0,
        allotment => (allotment.pool as u64).saturating_mul(prepared.limits.scratch.slot_bytes),
    }
}

/// Who decodes together, by whose word, and why.
pub fn grouping(prepared: &Prepared) -> String {
    let name = prepared.schedule.grouping().name();
    let predictor = prepared.schedule.overlap().map_or_else(String::new, |overlap| format!(" as `{}` foretells it", overlap.predictor()));
    format!("{name}{predictor}: {}", prepared.why)
}

/// Where states lie, and what it costs.
pub fn states(states: States, f: &Forecast, prepared: &Prepared) -> String {
    let lie = match states {
        States::Memory => return "in memory".into(),
        States::Parked => "on disk while a row waits, in memory while it is answered",
        States::Passing => "on disk, in memory while their layer is swept",
    };
    let limit = prepared
        .limits
        .scratch
        .write_limit_bytes
        .map_or_else(|| "no limit is set".into(), |most| format!("the limit is {}", show_bytes(most)));
    let a_token = f.bytes_state_written / (f.prompt_tokens + f.completion_tokens_max).max(1);
    format!(
        "{lie}: {} of disk, {} read, {} written ({} a token; {limit})",
        show_bytes(scratch_bytes(prepared)),
        show_bytes(f.bytes_state_read),
        show_bytes(f.bytes_state_written),
        show_bytes(a_token)
    )
}

/// Who would run together by what is known now, and what that is expected to save.
///
/// # Errors
/// The spool cannot be read.
pub fn explain(prepared: &Prepared) -> Result<Explained> {
    let (schedule, allotment) = (&prepared.schedule, prepared.schedule.allotment());
    let profile = Profile::load(&prepared.learned, prepared.model.manifest());
    let (table, no_table) = match tabled(prepared, &profile)? {
        Ok(table) => (Some(table), None),
        Err(why) => (None, Some(why)),
    };
    let measured = profile.measured(allotment.wave);
    let count = |of: fn(&RowFacts) -> bool| schedule.rows().iter().filter(|row| of(row)).count() as u64;
    Ok(Explained {
        rows_answered: count(is_answered),
        rows_errored: count(|row| row.faulty),
        saving_expected: profile.expected_saving(allotment.wave).0,
        saving_measured: measured.map(|s| Measured { wave: s.wave, saved: s.saved, sd: s.sd, runs: s.runs }),
        predictors: schedule.overlap().map(plan::Overlap::candidates).unwrap_or_default(),
        wave: allotment.wave,
        pool: allotment.pool,
        cohort: allotment.cohort,
        refill: allotment.refill,
        table,
        no_table,
    })
}

fn is_answered(row: &RowFacts) -> bool {
    !row.is_idle() && row.max_tokens > 1
}

/// Waves by the table's word, or why there are none.
fn tabled(prepared: &Prepared, profile: &Profile) -> Result<std::result::Result<Tabled, &'static str>> {
    let (rows, spool, allotment) = (prepared.schedule.rows(), &prepared.input.spool, prepared.schedule.allotment());
    if profile.table.is_empty() {
        return Ok(Err(
            "there is none of this model yet: a job that finishes makes one; until then prompts tell, once they have been read",
        ));
    }
    if rows.len() > EXPLAINED_ROWS {
        return Ok(Err("more than 100,000 rows are not explained one by one"));
    }
    let known = prepared.schedule.overlap().map(plan::Overlap::tables).filter(|tables| !tables.is_empty());
    let tables: Arc<[Footprint]> = known.map_or_else(|| overlap::tables(profile, rows, spool), Ok)?;
    let answered = || (0..rows.len()).filter(|&i| is_answered(&rows[i]));
    let of: Vec<usize> = answered().filter(|&i| !tables[i].is_empty()).collect();
    let footprints: Vec<&Footprint> = of.iter().map(|&i| &tables[i]).collect();
    let Some(unions) = plan::unions(&footprints, allotment.wave, allotment.pool, LEAST) else {
        return Ok(Err("no row is answered in a wave of whose tokens one was seen before"));
    };
    let id = |member: u32| id(spool, of[member as usize]);
    let bytes = |blocks: f64| (blocks * prepared.facts.block_bytes_mean() as f64) as u64;
    let Unions { grouped, random, random_sd, draws, shared, least, waves } = unions;
    let told = waves.iter().take(WAVES).map(|(members, blocks)| TabledWave {
        requests: members.len(),
        first: members.iter().take(IDS).map(|&member| id(member)).collect(),
        blocks: *blocks,
        bytes: bytes(*blocks),
    });
    Ok(Ok(Tabled {
        layers: profile.table.layers().len(),
        layers_all: prepared.facts.blocks.len(),
        rows_unknown: (answered().count() - of.len()) as u64,
        waves_all: waves.len() as u64,
        waves: told.collect(),
        grouped_blocks: grouped,
        grouped_bytes: bytes(grouped),
        random_blocks: random,
        random_sd,
        random_draws: draws,
        random_bytes: bytes(random),
        shared,
        least: least.into_iter().map(|(member, shared)| Least { id: id(member), shared }).collect(),
    }))
}
