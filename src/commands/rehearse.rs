//! `nightshift doctor --shape`: what a job over a model that is not here would take.

use std::path::Path;

use super::Said;
use super::doctor::encode;
use super::prepare::refusal;
use super::{facts, scratch};
use crate::cli::DoctorArgs;
use crate::error::{Error, Result};
use crate::job::{EngineSection, Grouping, Predict};
use crate::kernels::Kernels;
use crate::machine::{self, Cost, Estimate, Means, Rates, Shape, Work};
use crate::model::{self, manifest::PANEL_BYTES};
use crate::plan::{self, Allotment, Forecast, Limits, ModelFacts, Schedule};
use crate::report::{Computed, Rehearsal};
use crate::request::RowFacts;
use crate::units::parse_bytes;

/// Written to the scratch folder.
const SCRATCH_BYTES: u64 = 4_000_000_000;
/// `output.rows_per_part` of a job that sets nothing.
const ROWS_PER_PART: u64 = 10_000;

/// Measures disk and arithmetic on the shape's pieces, and computes what the job in `args` would take.
///
/// # Errors
/// Usage: an unknown shape, no size. Refused: the shape is not computed here, the budget too small for it, or the scratch folder.
pub fn rehearse(args: &DoctorArgs, name: &str, folder: &Path, note: &mut dyn FnMut(&str)) -> Result<Said> {
    let model = model::of_config(&config(name)?, Path::new(name), PANEL_BYTES)?;
    let shape = Shape::of(name, model.manifest())?;
    let facts = facts::of_shape(model.manifest());
    let memory_bytes = size("--memory", args.memory.as_deref())?;
    let engine = EngineSection {
        memory_bytes,
        threads: None,
        wave: None,
        prefill_rows: None,
        resident_bytes: None,
        direct_io: true,
        kernel: None,
        cache: None,
        predict: Predict::Auto,
        states: None,
        scratch: None,
        scratch_write_limit_bytes: None,
    };
    let row = |max_tokens| RowFacts { prompt_tokens: args.prompt_tokens, max_tokens, faulty: false, drawn: false, prompt_logprobs: false };
    let rows = vec![row(args.new_tokens); args.rows as usize];
    let limits = facts::limits(&engine, facts::budget_bytes(&engine), ROWS_PER_PART, &rows, &facts);
    let limits = Limits { scratch: scratch::facts(folder, None, model.manifest(), &rows, facts.state)?, ..limits };
    let allotment = plan::allot(&rows, Grouping::Input, &facts, &limits).map_err(|r| refusal(&r, &limits, ""))?;
    let means = Means {
        scratch: folder,
        scratch_bytes: size("--scratch-bytes", args.scratch_bytes.as_deref())?.unwrap_or(SCRATCH_BYTES),
        kernels: Kernels::detect(),
        threads: limits.threads,
        side_by_side: allotment.blocks_in_flight as usize,
    };
    let rates = machine::rehearse(&shape, &means, note)?;
    let not_saved = match machine::cache_folder() {
        Some(folder) => rates.save(&folder).err().map(|e| e.message),
        None => Some("the environment names no cache folder".into()),
    };
    let walk = |rows: Vec<RowFacts>| walk(rows, &allotment, &facts);
    let (prompts, whole) = (walk(vec![row(1); args.rows as usize]), walk(rows));
    let (prompts, answers) = phases(args, &prompts, &whole, &shape.cost, &rates);
    let computed = Computed {
        rows: args.rows,
        prompt_tokens: args.prompt_tokens,
        new_tokens: args.new_tokens,
        memory_budget: limits.budget_bytes,
        ledger_total: allotment.ledger.total(),
        sequences: allotment.wave,
        prompt_rows_a_sweep: allotment.prefill_rows,
        ledger: allotment.ledger,
        prompts,
        answers,
    };
    let rehearsal = Rehearsal { measured: &rates, computed, not_saved };
    Ok(Said { text: if args.json { encode(&rehearsal.for_scripts())? } else { rehearsal.words() }, code: 0 })
}

/// The whole job as the plan would walk it.
fn walk(rows: Vec<RowFacts>, allotment: &Allotment, facts: &ModelFacts) -> Forecast {
    plan::forecast(Schedule::new(rows, Grouping::Input, allotment.clone(), facts.state), facts, None)
}

/// What prompts take, and what the rest of the whole: a job of one new token a row is prompts alone.
fn phases(args: &DoctorArgs, prompts: &Forecast, whole: &Forecast, cost: &Cost, rates: &Rates) -> (Option<Estimate>, Option<Estimate>) {
    let rows = u64::from(args.rows);
    let first = Work { sweeps: prompts.sweeps, rows: prompts.prompt_tokens, logits: rows, bytes: prompts.bytes() };
    let new_tokens = rows * u64::from(args.new_tokens - 1);
    let rest = Work {
        sweeps: whole.sweeps.saturating_sub(prompts.sweeps),
        rows: new_tokens,
        logits: new_tokens,
        bytes: whole.bytes().saturating_sub(first.bytes),
    };
    (Estimate::of(&first, cost, rates), Estimate::of(&rest, cost, rates))
}

/// The content of the config.json that `name` means.
fn config(name: &str) -> Result<Vec<u8>> {
    if let Some(config) = model::shape(name) {
        return Ok(config.as_bytes().to_vec());
    }
    std::fs::read(name).map_err(|e| {
        let names = model::SHAPES.map(|(known, _)| known);
        let nearest = names.into_iter().min_by_key(|known| strsim::damerau_levenshtein(known, &name.to_lowercase())).unwrap_or_default();
        let all = names.join(", ");
        Error::usage(format!(
            "--shape: `{name}` is no published shape (there are: {all}) and no config.json ({e}); did you mean `{nearest}`?"
        ))
    })
}

fn size(flag: &str, text: Option<&str>) -> Result<Option<u64>> {
    text.map(parse_bytes).transpose().map_err(|fault| Error::usage(format!("{flag}: {fault}")))
}
