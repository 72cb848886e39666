//! `nightshift doctor`: what this machine is, and what a model would do on it.

use std::path::Path;

use serde::Serialize;

use super::{Said, facts, rehearse};
use crate::cli::DoctorArgs;
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::machine::{self, Memory, Place, Processor, Rates};
use crate::report::Checkup;

/// Looks at the machine, or rehearses a shape; `note` hears what goes on.
///
/// # Errors
/// Usage and refusals; storage, if the disk fails.
pub fn doctor(args: &DoctorArgs, note: &mut dyn FnMut(&str)) -> Result<Said> {
    match (&args.shape, &args.scratch) {
        (Some(shape), Some(scratch)) => rehearse::rehearse(args, shape, scratch, note),
        _ => checkup(args.model.as_deref(), args.json),
    }
}

fn checkup(model: Option<&Path>, json: bool) -> Result<Said> {
    let model = model.map(Place::model).transpose()?;
    let shard = model.as_ref().and_then(|(place, largest)| Some((place, largest.as_ref()?)));
    let disk = shard.map(|(place, largest)| place.rate(largest)).transpose()?.flatten();
    let memory = Memory::look();
    let checkup = Checkup {
        processor: Processor::look(),
        kernel: Kernels::detect().path().name(),
        job_memory_bytes: facts::default_budget_bytes(memory.available_bytes()),
        memory,
        io_uring_fault: machine::uring().err(),
        work: Place::work(Path::new("."))?,
        shard_bytes: shard.map(|(_, largest)| largest.bytes),
        model: model.map(|(place, _)| place),
        disk,
        rates: machine::cache_folder().and_then(|folder| Rates::load(&folder)),
    };
    let text = if json { encode(&checkup.for_scripts())? } else { checkup.words() };
    Ok(Said { text, code: 0 })
}

/// One JSON object.
pub fn encode(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Error::storage(format!("cannot encode what was found: {e}")))?;
    Ok(text + "\n")
}
