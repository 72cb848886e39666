//! What `run` and `plan` do alike: open the model, read the input, plan.

use std::path::Path;

use super::profile::{self, Profile};
use super::{facts, misfits, overlap, scratch};
use crate::error::{Error, Kind, Result};
use crate::input::{self, Ingested};
use crate::job::Job;
use crate::kernels::{self, Kernels, Path as KernelPath};
use crate::learned::Learned;
use crate::machine;
use crate::model::manifest::PANEL_BYTES;
use crate::model::{self, Model};
use crate::output;
use crate::plan::{self, Grouping, Limits, ModelFacts, Schedule};
use crate::request::RowFacts;
use crate::store::Checkpoint;
use crate::tokenizer::Tokenizer;
use crate::units::show_bytes;

/// A job that is ready to run.
pub struct Prepared {
    /// BLAKE3 of config.json.
    pub config: blake3::Hash,
    /// Of config, tokenizer and weights.
    pub identity: blake3::Hash,
    /// What is remembered of the model.
    pub learned: Learned,
    /// Why rows are grouped as they are.
    pub why: String,
    pub model: Box<dyn Model>,
    pub tokenizer: Option<Tokenizer>,
    pub input: Ingested,
    pub facts: ModelFacts,
    pub limits: Limits,
    pub schedule: Schedule,
    pub kernels: Kernels,
}

/// Opens, reads and plans; no weight is read. The spool goes to `state`.
pub fn prepare(job: &Job, state: &Path) -> Result<(Prepared, Checkpoint)> {
    let kernels = kernels(job.engine.kernel)?;
    let path = job.model.join("config.json");
    let config = std::fs::read(&path).map_err(|e| {
        let cannot = Error::io(Kind::Refused, "read", &path, &e);
        Error::refused(format!("{cannot}; model.path must be a checkpoint's folder, with config.json and its .safetensors files"))
    })?;
    let model = model::of_config(&config, &path, PANEL_BYTES)?;
    let manifest = model.manifest();
    let tokenizer = Tokenizer::open(&job.model, manifest.vocab)?;
    let checkpoint = Checkpoint::open(&job.model, manifest)?;
    let identity = checkpoint.fingerprint()?;
    let learned = Learned::open(job.engine.cache.as_deref(), machine::cache_home().as_deref(), &identity.to_hex())?;
    let profile = Profile::load(&learned, manifest);
    let facts = facts::of_model(manifest, &checkpoint, tokenizer.is_some());
    let budget_bytes = facts::budget_bytes(&job.engine);
    let room = input::Room { budget_bytes, row_bytes: plan::reading_room(budget_bytes, &facts) };
    let about = input::ModelFacts { vocab: manifest.vocab, room };
    let mut input = input::read(&job.input, &job.sampling, tokenizer.as_ref(), &about, state, &mut |_| {})?;
    let rows = std::mem::take(&mut input.facts);
    let mut limits = facts::limits(&job.engine, budget_bytes, job.output.rows_per_part, &rows, &facts);
    limits.reading_bytes = input.row_bytes;
    limits.scratch = scratch::facts_of(job, manifest, &rows, facts.state)?;
    limits.rates = facts::machine_rates();
    if !job.input.keep.is_empty() {
        limits.output_bytes += output::KEPT_BYTES;
    }
    let grouping = job.grouping.unwrap_or(Grouping::Overlap);
    let tokens = rows.iter().filter(|row| !row.is_idle()).map(|row| u64::from(row.prompt_tokens)).sum();
    limits.profile_bytes = profile::shape(manifest).table_bytes(tokens);
    if grouping == Grouping::Overlap {
        limits.saving = Some(profile.expected_saving(limits.wave.unwrap_or(USUAL_WAVE)).0);
        limits.profile_bytes += overlap::tables_bytes(&profile, manifest, &rows, budget_bytes);
    }
    let alone = |row: &[RowFacts]| Limits {
        output_bytes: facts::limits(&job.engine, budget_bytes, job.output.rows_per_part, row, &facts).output_bytes,
        scratch: scratch::facts_of(job, manifest, row, facts.state).unwrap_or(limits.scratch),
        ..limits.clone()
    };
    scratch::refuse_none(job, &limits)?;
    let allotment = plan::allot(&rows, grouping, &facts, &limits)
        .map_err(|r| refusal(&r, &limits, &misfits::misfits(&rows, &facts, &input.spool, alone)))?;
    let who = overlap::decide(job, manifest, &profile, (&allotment, budget_bytes), &rows, &input.spool)?;
    let allotment = if who.grouping == grouping {
        allotment
    } else {
        (limits.saving, limits.profile_bytes) = (None, profile::shape(manifest).table_bytes(tokens));
        plan::allot(&rows, who.grouping, &facts, &limits).map_err(|r| refusal(&r, &limits, ""))?
    };
    let mut schedule = Schedule::new(rows, who.grouping, allotment, facts.state);
    scratch::refuse_more(&schedule, &facts, &limits)?;
    if let Some(foresight) = who.foresight {
        schedule = schedule.by_overlap(foresight);
    }
    let why = who.why;
    let prepared =
        Prepared { config: blake3::hash(&config), identity, learned, why, model, tokenizer, input, facts, limits, schedule, kernels };
    Ok((prepared, checkpoint))
}

/// The wave for which a saving is looked up before the wave is known.
const USUAL_WAVE: usize = 32;

/// A refusal in words, `misfits` being what is said of its rows.
pub fn refusal(refusal: &plan::Refusal, limits: &Limits, misfits: &str) -> Error {
    let mib = refusal.smallest_bytes.div_ceil(1 << 20);
    let most = refusal.ledger.lines.iter().find(|l| l.name == refusal.blame).map_or(0, |l| l.bytes);
    Error::refused(format!(
        "engine.memory is {}MiB, but this job needs at least {mib}MiB; the largest part is `{}` ({}){misfits}",
        limits.budget_bytes >> 20,
        refusal.blame,
        show_bytes(most)
    ))
}

fn kernels(named: Option<KernelPath>) -> Result<Kernels> {
    match named {
        None => Ok(Kernels::detect()),
        Some(path) => Kernels::with(path)
            .ok_or_else(|| Error::refused(format!("engine.kernel is `{}`, which this processor lacks; try `auto`", path.name()))),
    }
}

/// Identity of all that an answer depends on beside its row: config, weights, tokenizer, precision, order of summation.
pub fn fingerprint(prepared: &Prepared) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(prepared.config.as_bytes());
    hasher.update(prepared.identity.as_bytes());
    if let Some(tokenizer) = &prepared.tokenizer {
        hasher.update(&tokenizer.fingerprint());
    }
    hasher.update(PRECISION.as_bytes());
    hasher.update(kernels::ORDER.as_bytes());
    hasher.finalize().to_hex()[..16].to_string()
}

/// `engine.precision`.
pub const PRECISION: &str = "f32";
