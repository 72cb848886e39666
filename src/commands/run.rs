//! `nightshift run`: prompts in, answers and timings out.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arrow::array::ArrayRef;
use arrow::datatypes::Field;

use super::Said;
use super::account::{snapshot, summary};
use super::prepare::{fingerprint, prepare};
use super::routing::Recording;
use super::{facts, scratch};
use crate::error::{Error, Result};
use crate::event::End;
use crate::execute::{self, Engine, Tally, Watch};
use crate::input::KeptReader;
use crate::job::Job;
use crate::machine;
use crate::output::{Answers, JobFolder, Kept, OutputSpec, Wording};
use crate::report::{Progress, Screen, closing_words};
use crate::request::Request;
use crate::sample::{self, Vocabulary, Words};
use crate::scratch::Scratch;
use crate::store::{Checksums, Keep, PageCache, Setup, States};
use crate::tokenizer::Tokenizer;
use crate::units::show_bytes;

/// Runs the whole job.
///
/// # Errors
/// Before work: model, input or budget are refused, or the output folder is in use. During work: storage fails.
pub fn run(job: &Job, mut screen: Screen) -> Result<Said> {
    let started = Instant::now();
    let folder = JobFolder::create(&job.output.path)?;
    let (mut prepared, checkpoint) = prepare(job, &folder.state())?;
    let ledger_bytes = prepared.schedule.allotment().ledger.total();
    if let Some(words) = facts::shortage(ledger_bytes, machine::available_bytes()) {
        screen.say(&format!("warning: engine.memory holds {}, but {words}", show_bytes(ledger_bytes)));
    }
    let checksums = Checksums::open(&prepared.learned, &checkpoint.pieces());
    for note in [prepared.learned.note(), checksums.note()].into_iter().flatten() {
        screen.say(note);
    }
    let threads = facts::threads(&job.engine);
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|e| Error::storage(format!("cannot start {threads} threads: {e}")))?;
    let kept = (!job.input.keep.is_empty()).then(|| KeptReader::open(&folder.state())).transpose()?;
    let spec = OutputSpec {
        spool: &prepared.input.spool,
        wording: Box::new(Speech(prepared.tokenizer.as_ref())),
        kept: kept.map(|k| Box::new(Columns(k)) as Box<dyn Kept>),
        model: job.model.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
        system_fingerprint: fingerprint(&prepared),
        rows_per_part: job.output.rows_per_part,
        run_id: run_id(),
    };
    let scratch = scratch::open(job, &prepared, folder.state())?;
    let mut answers = Answers::create(&folder, spec)?;
    let rows = prepared.schedule.rows();
    let tokens = rows.iter().filter(|r| !r.is_idle()).map(|r| u64::from(r.prompt_tokens) + u64::from(r.max_tokens)).sum();
    let clock = Clock { started, progress: Mutex::new(Progress::start(screen, rows.len() as u64, tokens, &folder)) };
    let allotment = prepared.schedule.allotment();
    let keep = Keep { panels: allotment.kept_panels, blocks: allotment.kept_blocks };
    let setup = Setup::new(allotment.panel_ring_bytes as usize, allotment.block_ring_bytes as usize);
    let weights = checkpoint.read(keep, &setup, if job.engine.direct_io { PageCache::Bypass } else { PageCache::Use }, checksums)?;
    let engine = Engine {
        model: &*prepared.model,
        store: &weights,
        states: scratch.as_ref().map(|scratch| scratch as &dyn States),
        kernels: prepared.kernels,
        scratch: Scratch::default(),
        blocks_in_flight: allotment.blocks_in_flight as usize,
        spool: &prepared.input.spool,
        vocabulary: prepared.tokenizer.as_ref().map(|t| t as &dyn Vocabulary),
        watch: &clock,
    };
    let schedule = &mut prepared.schedule;
    let mut recording = Recording::start(folder.state(), prepared.model.manifest(), &prepared.input.spool, job.keep_routing);
    let walking = Instant::now();
    let ran = pool.install(|| execute::run(schedule, &engine, &mut answers, &mut recording));
    let walk = walking.elapsed();
    let unsaved = weights.checksums().save().err(); // the answers do not depend on it
    let reads = (weights.direct(), weights.method());
    drop(engine); // its memory and that of the weights take what is replayed
    drop(weights);
    let tally = ran?;
    let totals = answers.finish()?;
    clock.progress.into_inner().unwrap_or_else(PoisonError::into_inner).finish(started.elapsed(), &snapshot(&tally));
    let compared = pool.install(|| recording.close(&prepared, &tally));
    let summary = summary(&prepared, &tally, reads, &totals, compared, [walk, started.elapsed()]);
    summary.write(&folder)?;
    let text = unsaved
        .map_or_else(String::new, |note| format!("checksums   the answers are whole, but what was read is not remembered: {note}\n"))
        + &recording.note().unwrap_or_default()
        + &closing_words(&summary, folder.root());
    Ok(Said { text, code: u8::from(totals.rows_errored > 0) })
}

/// The answers' words.
struct Speech<'a>(Option<&'a Tokenizer>);

impl Wording for Speech<'_> {
    fn words(&self, request: &Request, tokens: &[u32], end: &End) -> Option<Words> {
        self.0.map(|tokenizer| sample::words(request, tokens, end, tokenizer))
    }
}

/// The input's columns that answers keep.
struct Columns(KeptReader);

impl Kept for Columns {
    fn schema(&self) -> Vec<Field> {
        self.0.fields()
    }

    fn rows(&mut self, range: Range<u64>) -> Result<Vec<ArrayRef>> {
        self.0.rows(range).map(|batch| batch.columns().to_vec())
    }
}

/// The real clock and the real screen.
struct Clock {
    started: Instant,
    progress: Mutex<Progress>,
}

impl Watch for Clock {
    fn now_us(&self) -> i64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as i64)
    }

    fn swept(&self, tally: &Tally) {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).update(self.started.elapsed(), &snapshot(tally));
    }
}

/// Names this run in `timings/`.
fn run_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
    let seed = [now.to_le_bytes(), u128::from(std::process::id()).to_le_bytes()].concat();
    blake3::hash(&seed).to_hex()[..16].to_string()
}
