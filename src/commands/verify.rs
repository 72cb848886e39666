//! `nightshift verify`: is a model whole, and is it what it was?

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::Said;
use super::findings::{self, Findings};
use crate::error::{Error, Kind, Result};
use crate::learned::Learned;
use crate::machine;
use crate::model::{self, manifest::PANEL_BYTES};
use crate::report::{Reading, Screen};
use crate::store::{self, Checkpoint, Checksums};
use crate::tokenizer::Tokenizer;

/// A sum is taken at several times a disk's rate, and each thread holds a piece of the rings.
const THREADS_MAX: usize = 2;

/// Reads the model in `folder` once; `cache` is where a person wants its checksums. A faulty model is no error here: it is what was asked for.
///
/// # Errors
/// Usage: `cache` is a file. Refused: the folder is no model, or the machine gives no threads.
pub fn verify(folder: &Path, cache: Option<&Path>, json: bool, screen: Screen) -> Result<Said> {
    let path = folder.join("config.json");
    let config = std::fs::read(&path).map_err(|e| {
        let cannot = Error::io(Kind::Refused, "read", &path, &e);
        Error::refused(format!("{cannot}; MODEL must be a checkpoint's folder, with config.json and its .safetensors files"))
    })?;
    let model = model::of_config(&config, &path, PANEL_BYTES)?;
    let manifest = model.manifest();
    let tokenizer = Tokenizer::open(folder, manifest.vocab).err().map(|fault| fault.message);
    let checkpoint = match Checkpoint::open(folder, manifest) {
        Ok(checkpoint) => checkpoint,
        Err(fault) => {
            let mut faults = store::faults(folder, manifest);
            if faults.is_empty() {
                faults.push(fault.message); // mended since, by someone else
            }
            faults.extend(tokenizer);
            return Ok(Said { text: findings::unopened(folder, &faults, json), code: Kind::Refused.exit_code() });
        }
    };
    let fingerprint = checkpoint.fingerprint()?.to_hex().to_string();
    let learned = Learned::open(cache, machine::cache_home().as_deref(), &fingerprint)?;
    let checksums = Checksums::open(&learned, &checkpoint.pieces());
    let started = Instant::now();
    let trunk: u64 = checkpoint.weight_bytes().sum();
    let experts: u64 = manifest.blocks().map(|(_, b)| b.count as u64 * b.bytes() as u64).sum();
    let reading = Mutex::new(Reading::start(screen, trunk + experts));
    let watch = |bytes| reading.lock().unwrap_or_else(PoisonError::into_inner).update(started.elapsed(), bytes);
    let mut verified = store::verify(checkpoint, &checksums, machine::threads().min(THREADS_MAX), &watch)?;
    reading.into_inner().unwrap_or_else(PoisonError::into_inner).finish();
    verified.faults_total += u64::from(tokenizer.is_some());
    verified.faults.extend(tokenizer);
    let notes = [learned.note().map(str::to_owned), checksums.note().map(str::to_owned), checksums.save().err()];
    let notes = notes.into_iter().flatten().collect();
    let sums = learned.folder().map(|folder| folder.display().to_string());
    let findings = Findings { fingerprint, sums, counted: checksums.counted(), notes, verified };
    let code = match (findings.verified.unreadable, findings.verified.faults_total) {
        (0, 0) => 0,
        (0, _) => Kind::Refused.exit_code(),
        _ => Kind::Storage.exit_code(),
    };
    let text = if json { findings.object(folder) } else { findings.words(folder) };
    Ok(Said { text, code })
}
