//! The disk that states may wait on: what it has room for, and the file on it.

use std::fs;
use std::path::{Path, PathBuf};

use super::prepare::Prepared;
use crate::error::{Error, Kind, Result};
use crate::job::Job;
use crate::model::manifest::{Layer, Manifest, StateSpec};
use crate::plan::{self, Limits, ModelFacts, Schedule, StateBytes, States};
use crate::request::RowFacts;
use crate::store::{self, PageCache, ScratchFile, StateSpace};
use crate::units::show_bytes;

/// Of what a disk has free, states leave a part for answers and for others: 9 of 10 are theirs.
const SHARE: (u64, u64) = (9, 10);

const FLOAT: u64 = 4;

/// What a sequence leaves behind.
pub fn state_bytes(manifest: &Manifest) -> StateBytes {
    let fixed =
        || manifest.states.iter().filter_map(|spec| if let StateSpec::Fixed { floats, log } = *spec { Some((floats, log)) } else { None });
    let appended = |layer: &Layer| {
        let states = &manifest.states[layer.states.start as usize..layer.states.end as usize];
        states.iter().map(|spec| if let StateSpec::Appended(floats) = *spec { floats } else { 0 }).sum::<usize>()
    };
    let bytes = |floats: usize| floats as u64 * FLOAT;
    StateBytes {
        fixed: bytes(manifest.fixed_floats()),
        a_token: bytes(manifest.token_floats()),
        log: bytes(fixed().map(|(_, log)| log).sum()),
        piece: bytes(fixed().map(|(floats, _)| floats).max().unwrap_or(0)),
        piece_log: bytes(fixed().map(|(_, log)| log).max().unwrap_or(0)),
        layer_token: bytes(manifest.layers.iter().map(appended).max().unwrap_or(0)),
    }
}

/// The folder for states: the one that the job names, else the job's own.
fn folder(job: &Job) -> &Path {
    job.engine.scratch.as_deref().unwrap_or(&job.output.path)
}

/// The space of some sequences, the longest of so many positions.
fn space(slots: u32, positions: u64, state: StateBytes) -> StateSpace {
    StateSpace {
        slots,
        positions: u32::try_from(positions).unwrap_or(u32::MAX),
        whole_every: state.whole_every() as u32,
        ring_bytes: 0,
        write_bytes: 0,
    }
}

/// What the disk of `folder`, or of what there is of it, has room for.
///
/// # Errors
/// Refused: it cannot be asked.
pub fn facts(
    folder: &Path,
    write_limit_bytes: Option<u64>,
    manifest: &Manifest,
    rows: &[RowFacts],
    state: StateBytes,
) -> Result<plan::Scratch> {
    let folder = std::path::absolute(folder).map_err(|e| Error::io(Kind::Refused, "find", folder, &e))?;
    let there = folder.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("/"));
    let (share, of) = SHARE;
    let longest = rows.iter().filter(|row| !row.is_idle()).map(RowFacts::positions_max).max().unwrap_or(1);
    let of_slots = |slots| space(slots, longest, state);
    let bytes = |of: &dyn Fn(&StateSpace) -> u64| of(&of_slots(2)).saturating_sub(of(&of_slots(1)));
    Ok(plan::Scratch {
        slot_bytes: bytes(&|space| ScratchFile::bytes(&manifest.states, space)),
        slot_memory_bytes: bytes(&|space| ScratchFile::memory_bytes(&manifest.states, space)),
        free_bytes: store::free_bytes(there)? / of * share,
        write_limit_bytes,
    })
}

/// Refuses a job that wants its states on a disk that has no room for one, or that may not be written to.
///
/// # Errors
/// Usage: nothing may be written. Refused: what is free, and what a sequence takes.
pub fn refuse_none(job: &Job, limits: &Limits) -> Result<()> {
    let scratch = &limits.scratch;
    if limits.states.is_none_or(|states| states == States::Memory) {
        return Ok(());
    }
    if scratch.write_limit_bytes == Some(0) {
        return Err(Error::usage(
            "engine.states wants states on disk, but engine.scratch_write_limit is 0; give a larger limit, or engine.states = 'auto'",
        ));
    }
    if scratch.slot_bytes <= scratch.free_bytes {
        return Ok(());
    }
    Err(Error::refused(format!(
        "engine.states wants states on disk, but the longest row's take {} and {} has {} for them; name another folder with engine.scratch",
        show_bytes(scratch.slot_bytes),
        folder(job).display(),
        show_bytes(scratch.free_bytes)
    )))
}

/// Refuses a plan that writes more than it may: the plan looks for one that does not, and these rows have none.
///
/// # Errors
/// Refused: what would be written, and what may be.
pub fn refuse_more(schedule: &Schedule, facts: &ModelFacts, limits: &Limits) -> Result<()> {
    let Some(most) = limits.scratch.write_limit_bytes else { return Ok(()) };
    let written = plan::states_written(schedule, facts, limits);
    if written <= most {
        return Ok(());
    }
    Err(Error::refused(format!(
        "states on disk take {} of writes if every answer takes its most, but engine.scratch_write_limit is {}; give a larger limit, or engine.states = 'memory'",
        show_bytes(written),
        show_bytes(most)
    )))
}

/// What the disk of a job's folder for states has room for.
///
/// # Errors
/// Refused: the disk cannot be asked.
pub fn facts_of(job: &Job, manifest: &Manifest, rows: &[RowFacts], state: StateBytes) -> Result<plan::Scratch> {
    facts(folder(job), job.engine.scratch_write_limit_bytes, manifest, rows, state)
}

/// The file for the states of a job that leaves any on disk, its space taken.
///
/// # Errors
/// Refused: the disk has too little space, or the folder cannot be made.
pub fn open(job: &Job, prepared: &Prepared, own: PathBuf) -> Result<Option<ScratchFile>> {
    let allotment = prepared.schedule.allotment();
    if allotment.states == States::Memory {
        return Ok(None);
    }
    let folder = job.engine.scratch.clone().unwrap_or(own);
    fs::create_dir_all(&folder).map_err(|e| Error::io(Kind::Refused, "create", &folder, &e))?;
    let rows = prepared.schedule.rows();
    let longest = rows.iter().filter(|row| !row.is_idle()).map(RowFacts::positions_max).max().unwrap_or(1);
    let [ring_bytes, write_bytes] = allotment.state_ring_bytes.map(|bytes| bytes as usize);
    let space = StateSpace { ring_bytes, write_bytes, ..space(allotment.pool as u32, longest, prepared.facts.state) };
    let cache = if job.engine.direct_io { PageCache::Bypass } else { PageCache::Use };
    ScratchFile::open(&folder, &prepared.model.manifest().states, &space, cache).map(Some)
}
