//! What do the tokenizer's files say, and do they belong to this model?
//!
//! A folder whose tokenizer is another family's gives fluent nonsense, so everything that can be checked is: the ranks are dense, every
//! byte has a token, ranks and the 256 slots above them are the model's vocabulary, the markers of the chat form have ids.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use super::bpe::Ranks;
use super::chat::NEEDED;
use crate::error::{Error, Kind, Result};

const RANKS: &str = "tiktoken.model";
const CONFIG: &str = "tokenizer_config.json";
/// Files of other families' tokenizers; a folder with one of these and no [`RANKS`] is not one that has no tokenizer.
const FOREIGN: [&str; 4] = ["tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model"];
/// Slots above the last rank, for control tokens.
const RESERVED: usize = 256;
/// The largest known file has 2.8 MB.
const MOST_BYTES: u64 = 256 << 20;

/// The checked contents of a folder's tokenizer files.
pub(super) struct Files {
    pub(super) ranks: Ranks,
    /// Names of control tokens by id.
    pub(super) control: BTreeMap<u32, String>,
    /// Ids of the names in [`NEEDED`].
    pub(super) markers: HashMap<&'static str, u32>,
    /// BLAKE3 of both files.
    pub(super) fingerprint: [u8; 32],
}

#[derive(Deserialize)]
struct Config {
    added_tokens_decoder: BTreeMap<String, Added>,
}

#[derive(Deserialize)]
struct Added {
    content: String,
}

/// Reads and checks the files of `folder`; `None` where it has no tokenizer at all.
pub(super) fn load(folder: &Path, vocab: usize) -> Result<Option<Files>> {
    let (ranks_file, config_file) = (folder.join(RANKS), folder.join(CONFIG));
    let (ranks_bytes, config_bytes) = match (read(&ranks_file)?, read(&config_file)?) {
        (Some(ranks), Some(config)) => (ranks, config),
        (Some(_), None) => return Err(missing(folder, CONFIG)),
        (None, config) => {
            return match FOREIGN.iter().find(|name| folder.join(name).exists()) {
                Some(name) => Err(Error::refused(format!(
                    "{} belongs to another family's tokenizer: this model needs {RANKS} and {CONFIG}",
                    folder.join(name).display()
                ))),
                None if config.is_some() => Err(missing(folder, RANKS)),
                None => Ok(None),
            };
        }
    };
    let tokens = parse_ranks(&ranks_bytes).map_err(|fault| broken(&ranks_file, &fault))?;
    if tokens.len() + RESERVED != vocab {
        let fault = format!(
            "{} tokens and {RESERVED} reserved ids, but the model's vocabulary has {vocab}: it is another model's file",
            tokens.len()
        );
        return Err(broken(&ranks_file, &fault));
    }
    let control = parse_control(&config_bytes, tokens.len(), vocab).map_err(|fault| broken(&config_file, &fault))?;
    let mut markers = HashMap::new();
    for name in NEEDED {
        let id = control.iter().find(|(_, content)| *content == name).map(|(id, _)| *id);
        let id = id.ok_or_else(|| {
            broken(&config_file, &format!("no control token {name}, which the chat form needs: it is another family's file"))
        })?;
        markers.insert(name, id);
    }
    let mut hash = blake3::Hasher::new();
    for bytes in [&ranks_bytes, &config_bytes] {
        hash.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    }
    Ok(Some(Files { ranks: Ranks::new(tokens), control, markers, fingerprint: *hash.finalize().as_bytes() }))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    let fault = |e: &std::io::Error| Error::io(Kind::Refused, "read", path, e);
    match fs::metadata(path) {
        Ok(facts) if facts.len() > MOST_BYTES => Err(broken(path, &format!("{} bytes, too long for a tokenizer", facts.len()))),
        Ok(_) => fs::read(path).map(Some).map_err(|e| fault(&e)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(fault(&e)),
    }
}

fn missing(folder: &Path, name: &str) -> Error {
    Error::refused(format!("{} has a tokenizer but no {name}: copy it from the model's release", folder.display()))
}

fn broken(path: &Path, fault: &str) -> Error {
    Error::refused(format!("{}: {fault}", path.display()))
}

/// Lines `BASE64 RANK` -> tokens by rank.
fn parse_ranks(bytes: &[u8]) -> std::result::Result<Vec<Box<[u8]>>, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "not a text of `base64 rank` lines".to_string())?;
    let lines: Vec<(usize, &str)> = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let mut tokens: Vec<Option<Box<[u8]>>> = vec![None; lines.len()];
    let mut seen: HashMap<Box<[u8]>, usize> = HashMap::with_capacity(lines.len());
    for (at, line) in lines {
        let line_number = at + 1;
        let mut fields = line.split_whitespace();
        let (Some(token), Some(rank), None) = (fields.next(), fields.next(), fields.next()) else {
            return Err(format!("line {line_number} is not `base64 rank`"));
        };
        let token = STANDARD.decode(token).map_err(|_| format!("line {line_number}: `{token}` is not base64"))?.into_boxed_slice();
        if token.is_empty() {
            return Err(format!("line {line_number}: the token is empty"));
        }
        let rank: usize = rank.parse().map_err(|_| format!("line {line_number}: the rank `{rank}` is no number"))?;
        match tokens.get_mut(rank) {
            Some(slot @ None) => *slot = Some(token.clone()),
            Some(Some(_)) => return Err(format!("line {line_number}: rank {rank} stands twice")),
            None => return Err(format!("line {line_number}: rank {rank} with {} tokens, so that ranks are missing", tokens.len())),
        }
        if let Some(first) = seen.insert(token, line_number) {
            return Err(format!("line {line_number}: the same token as in line {first}"));
        }
    }
    if let Some(byte) = (0..=255u8).find(|byte| !seen.contains_key([*byte].as_slice())) {
        return Err(format!("no token for the byte {byte:#04x}, so that not every text can be encoded"));
    }
    Ok(tokens.into_iter().map(|token| token.expect("as many distinct ranks as slots")).collect())
}

/// Control tokens by id; all lie in the slots above the `ordinary` ranks.
fn parse_control(bytes: &[u8], ordinary: usize, vocab: usize) -> std::result::Result<BTreeMap<u32, String>, String> {
    let config: Config = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let mut control: BTreeMap<u32, String> = BTreeMap::new();
    let mut ids: HashMap<String, u32> = HashMap::new();
    for (key, added) in config.added_tokens_decoder {
        let id: u32 = key.parse().map_err(|_| format!("added_tokens_decoder: `{key}` is no token id"))?;
        if (id as usize) < ordinary || id as usize >= vocab {
            return Err(format!(
                "added_tokens_decoder: id {id} ({}) lies outside of {ordinary}..{vocab}, the ids of control tokens",
                added.content
            ));
        }
        if let Some(other) = ids.insert(added.content.clone(), id) {
            return Err(format!("added_tokens_decoder: {} has two ids, {other} and {id}", added.content));
        }
        if control.insert(id, added.content).is_some() {
            return Err(format!("added_tokens_decoder: id {id} stands twice"));
        }
    }
    Ok(control)
}
