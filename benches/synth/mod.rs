//! Writes the checkpoint, a file at a time, a piece at a time.
//!
//! 22 GB of fresh pages would push everything else out of memory, and a bench that follows would read them from there; so each piece of 64 MiB is
//! synced and its pages are dropped before the next is made.

pub mod config;
mod layout;
mod values;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use nightshift::error::{Error, Kind, Result};
use nightshift::model::{self, manifest::PANEL_BYTES};
use nightshift::units::show_bytes;
use rayon::prelude::*;
use rustix::fs::{Advice, fadvise, statvfs};
use serde::Serialize;

use layout::{Dtype, Stored};
use values::Values;

/// Bytes in memory at a time.
const PIECE_BYTES: usize = 64 << 20;
/// Bytes that one thread fills at a time.
const PART_BYTES: u64 = 1 << 20;

/// A checkpoint to be made.
pub struct Wanted {
    /// The text of its config.json.
    pub config: String,
    /// How many files; by default one for each 16 GB.
    pub shards: Option<usize>,
    pub seed: u64,
    /// Leave the data out: holes of the right size.
    pub headers_only: bool,
}

/// What was made.
#[derive(Debug, PartialEq, Eq)]
pub struct Made {
    pub tensors: u64,
    /// Of tensors.
    pub bytes: u64,
    pub files: u64,
}

/// Writes it into `out`, which must be empty or absent; config.json comes last, so that half a checkpoint is none.
pub fn write(wanted: &Wanted, out: &Path) -> Result<Made> {
    let config = out.join("config.json");
    let model = model::of_config(wanted.config.as_bytes(), &config, PANEL_BYTES)?;
    let manifest = model.manifest();
    let shards = layout::shards(manifest, wanted.shards);
    empty_folder(out)?;
    let weights: u64 = shards.iter().flat_map(|shard| layout::tensors(manifest, shard)).map(|t| t.bytes()).sum();
    room(out, if wanted.headers_only { 0 } else { weights })?;
    let mut values = Values::new(wanted.seed);
    let names: Vec<String> = (1..=shards.len()).map(|i| format!("model-{i:05}-of-{:05}.safetensors", shards.len())).collect();
    let mut weight_map = BTreeMap::new();
    for (shard, name) in shards.iter().zip(&names) {
        let tensors = layout::tensors(manifest, shard);
        tensors.iter().for_each(|t| values.prepare(t.fill));
        let path = out.join(name);
        let data = (!wanted.headers_only).then_some(&values);
        write_shard(&path, &tensors, data).map_err(|e| Error::io(Kind::Storage, "write", &path, &e))?;
        weight_map.extend(tensors.into_iter().map(|t| (t.name, name.as_str())));
    }
    let made = Made { tensors: weight_map.len() as u64, bytes: weights, files: shards.len() as u64 };
    let index = Index { metadata: BTreeMap::from([("total_size", weights)]), weight_map };
    let path = out.join("model.safetensors.index.json");
    write_index(&path, &index).map_err(|e| Error::io(Kind::Storage, "write", &path, &e))?;
    fs::write(&config, &wanted.config).map_err(|e| Error::io(Kind::Storage, "write", &config, &e))?;
    Ok(made)
}

/// Makes `out` unless it is there; there must be nothing in it.
fn empty_folder(out: &Path) -> Result<()> {
    fs::create_dir_all(out).map_err(|e| Error::io(Kind::Storage, "make", out, &e))?;
    let mut entries = fs::read_dir(out).map_err(|e| Error::io(Kind::Storage, "read", out, &e))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => Err(Error::other_job(format!("{} is not empty; name a folder that is not there yet", out.display()))),
    }
}

/// Whether the disk of `out` takes `bytes` more.
pub fn room(out: &Path, bytes: u64) -> Result<()> {
    let disk = statvfs(out).map_err(|e| Error::io(Kind::Storage, "ask for the room in", out, &e.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if bytes <= free {
        return Ok(());
    }
    let (free, bytes) = (show_bytes(free), show_bytes(bytes));
    Err(Error::storage(format!("{} has {free} free, the checkpoint takes {bytes}; fewer --layers or --experts take less", out.display())))
}

/// The index file, by the names of its fields.
#[derive(Serialize)]
struct Index<'a> {
    metadata: BTreeMap<&'a str, u64>,
    /// Which file holds a tensor.
    weight_map: BTreeMap<String, &'a str>,
}

fn write_index(path: &Path, index: &Index<'_>) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    serde_json::to_writer_pretty(&mut file, index)?;
    file.flush()
}

/// The header and, unless `values` is None, the data.
fn write_shard(path: &Path, tensors: &[Stored], values: Option<&Values>) -> std::io::Result<()> {
    let mut file = File::create_new(path)?;
    let header = layout::header(tensors);
    let bytes: u64 = tensors.iter().map(Stored::bytes).sum();
    file.write_all(&header)?;
    let Some(values) = values else { return file.set_len(header.len() as u64 + bytes) };
    let mut piece = vec![0u8; PIECE_BYTES.min(bytes as usize)];
    let (mut left, mut tensor, mut done) = (bytes, 0, 0);
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE_BYTES as u64) as usize];
        left -= piece.len() as u64;
        let mut parts = Vec::new();
        let mut rest = &mut piece[..];
        while !rest.is_empty() {
            let t = &tensors[tensor];
            let n = (t.bytes() - done).min(PART_BYTES).min(rest.len() as u64);
            let (part, behind) = rest.split_at_mut(n as usize);
            parts.push((t, done, part));
            (rest, done) = (behind, done + n);
            if done == t.bytes() {
                (tensor, done) = (tensor + 1, 0);
            }
        }
        parts.into_par_iter().for_each(|(t, from, part)| values.of(&t.name, t.fill, t.dtype == Dtype::F32).write(from, part));
        file.write_all(piece)?;
        file.sync_data()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}
