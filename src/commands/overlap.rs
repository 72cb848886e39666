//! Who decodes together, and by whose word.

use std::sync::Arc;

use super::profile::Profile;
use crate::error::Result;
use crate::job::{Job, Predict};
use crate::model::manifest::Manifest;
use crate::plan::{Allotment, FOOTPRINT_ENTRIES, Footprint, FootprintSize, Foresight, Grouping, Predictor, PredictorKind};
use crate::request::RowFacts;
use crate::spool::Spool;

/// Layers by whose routing `probe` goes: one of eight.
const PROBED_PART: usize = 8;
/// What the table says of all rows takes one part of so many of the memory at most: its word is worth less than their prompts'.
const TABLES_PART: u64 = 32;

/// What was decided.
pub struct Who {
    pub grouping: Grouping,
    /// By whose word, where that is asked.
    pub foresight: Option<Foresight>,
    /// In a sentence.
    pub why: String,
}

impl Who {
    fn without(grouping: Grouping, why: impl Into<String>) -> Self {
        Who { grouping, foresight: None, why: why.into() }
    }
}

/// Decides who decodes together: what the job names is done; else overlap, where there is a choice to be made and bytes to be saved.
///
/// # Errors
/// The spool cannot be read.
pub fn decide(
    job: &Job,
    manifest: &Manifest,
    profile: &Profile,
    (allotment, budget_bytes): (&Allotment, u64),
    rows: &[RowFacts],
    spool: &Spool,
) -> Result<Who> {
    let grouping = match job.grouping {
        Some(grouping) if grouping != Grouping::Overlap => return Ok(Who::without(grouping, "as the job says")),
        named => named,
    };
    let answered = rows.iter().filter(|row| !row.is_idle() && row.max_tokens > 1).count();
    let blocks: usize = manifest.blocks().map(|(_, blocks)| blocks.count).sum();
    let streams = (allotment.kept_blocks as usize) < blocks;
    let (saving, measured) = profile.expected_saving(allotment.wave);
    if grouping.is_none() {
        let input = |why: &str| Ok(Who::without(Grouping::Input, why));
        match () {
            () if !streams => return input("all experts stay in memory: nothing is read that grouping could save"),
            () if answered <= allotment.wave => return input("all rows decode together"),
            () if allotment.pool <= allotment.wave => return input("no rows wait among whom to choose: states of more do not fit"),
            () if measured && saving == 0.0 => return input("earlier runs with this model and wave saved no more than chance"),
            () => {}
        }
    }
    let size = FootprintSize { blocks: blocks as u32, most: FOOTPRINT_ENTRIES };
    let kind = match job.engine.predict {
        Predict::Auto => PredictorKind::Auto,
        Predict::Prefill => PredictorKind::Prefill,
        Predict::Table => PredictorKind::Table,
        Predict::Learned => PredictorKind::Learned,
        Predict::Probe => PredictorKind::Probe { blocks: first_blocks(manifest) },
    };
    let uses_table = matches!(kind, PredictorKind::Auto | PredictorKind::Table) && tables_bytes(profile, manifest, rows, budget_bytes) > 0;
    let tables = if uses_table { tables(profile, rows, spool)? } else { Arc::default() };
    let known = if measured { "measured in earlier runs" } else { "not yet measured with this model" };
    let by = if uses_table { format!(", with the table {}", &profile.table.hash().to_hex()[..8]) } else { String::new() };
    let why = format!("expected to save {:.0} % of the expert loads of random waves ({known}{by})", 100.0 * saving);
    Ok(Who { grouping: Grouping::Overlap, foresight: Some(Foresight::Predicted { predictor: Predictor::new(kind, size), tables }), why })
}

/// What the table takes with what it says of all rows; 0 where it says nothing, or that would be too much.
pub fn tables_bytes(profile: &Profile, manifest: &Manifest, rows: &[RowFacts], budget_bytes: u64) -> u64 {
    let blocks: usize = manifest.blocks().map(|(_, blocks)| blocks.count).sum();
    let footprint = (blocks.min(FOOTPRINT_ENTRIES) * size_of::<u32>()) as u64;
    let bytes = profile.table.shape().table_bytes(u64::MAX) + rows.len() as u64 * footprint;
    if profile.table.is_empty() || bytes > budget_bytes / TABLES_PART { 0 } else { bytes }
}

/// Blocks of the first layers that route.
fn first_blocks(manifest: &Manifest) -> u32 {
    let layers = manifest.blocks().count().div_ceil(PROBED_PART);
    manifest.blocks().take(layers).map(|(_, blocks)| blocks.count as u32).sum()
}

/// What the table says of each row.
pub fn tables(profile: &Profile, rows: &[RowFacts], spool: &Spool) -> Result<Arc<[Footprint]>> {
    let of = |index: usize| -> Result<Footprint> {
        if rows[index].is_idle() {
            return Ok(Footprint::default());
        }
        Ok(profile.table.predict(&spool.get(index as u64)?.prompt, FOOTPRINT_ENTRIES))
    };
    (0..rows.len()).map(of).collect::<Result<Vec<_>>>().map(Arc::from)
}
