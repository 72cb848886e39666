//! Names to extents: which file and offset each weight and each block's tensors have.
//!
//! What stays is 16 bytes a tensor; names are parsed while a header is walked and forgotten. Which files count is the index
//! file's word; without one, every `*.safetensors` whose name does not begin with a dot counts (copies from other systems leave such strays).

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

use super::Element;
use super::extras::Extras;
use super::header::{self, Tensor};
use crate::error::{Error, Kind, Result};
use crate::model::manifest::{Manifest, PartTensor};

pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// Where a tensor begins; its length follows from the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which shard, in order of name.
    pub file: u32,
    /// Bytes from its beginning.
    pub offset: u64,
}

const NOWHERE: Place = Place { file: u32::MAX, offset: 0 };

/// One layer's blocks.
pub struct BlockPlaces {
    /// The stored tensors of a block.
    pub tensors: Vec<PartTensor>,
    /// [experts, tensors]
    pub places: Vec<Place>,
}

/// The whole checkpoint's extents.
pub struct Index {
    pub paths: Vec<PathBuf>,
    pub weights: Vec<(Place, Element)>,
    /// By layer; empty where a layer has no routed experts.
    pub blocks: Vec<BlockPlaces>,
    /// Hash of all headers.
    pub headers: blake3::Hash,
    pub extras: Extras,
}

impl Index {
    /// Reads the headers of the checkpoint in `folder` and finds every tensor of `manifest`; the opened shards, in the order of `paths`.
    pub fn build(folder: &Path, manifest: &Manifest) -> Result<(Index, Vec<File>)> {
        let names = shard_names(folder)?;
        let mut finder = Finder::new(manifest);
        let mut hasher = blake3::Hasher::new();
        let (mut paths, mut files) = (Vec::new(), Vec::new());
        for (number, name) in names.iter().enumerate() {
            let path = folder.join(name);
            let (file, header) = finder.see_all(number as u32, &path)?;
            hasher.update(&header);
            paths.push(path);
            files.push(file);
        }
        finder.settle(folder, &names)?;
        finder.check(folder)?;
        let weights = finder.weights.iter().map(|w| (w.0, w.1)).collect();
        Ok((Index { paths, weights, blocks: finder.blocks, headers: hasher.finalize(), extras: finder.extras }, files))
    }
}

/// All that is wrong with a checkpoint that is refused: a fault of each shard, or what is wrong with them together.
pub fn faults(folder: &Path, manifest: &Manifest) -> Vec<Error> {
    let names = match shard_names(folder) {
        Ok(names) => names,
        Err(fault) => return vec![fault],
    };
    let mut finder = Finder::new(manifest);
    let mut faults: Vec<Error> = (0..).zip(&names).filter_map(|(number, name)| finder.see_all(number, &folder.join(name)).err()).collect();
    if faults.is_empty() {
        faults.extend(finder.settle(folder, &names).and_then(|()| finder.check(folder)).err());
    }
    faults
}

/// The files that make up the checkpoint, in order of name.
fn shard_names(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join(INDEX_FILE);
    if path.exists() {
        let mut names = BTreeSet::new();
        walk_index(&path, &mut |_, file| {
            if !names.contains(file) {
                names.insert(file.to_string());
            }
        })?;
        if let Some(bad) = names.iter().find(|n| n.contains('/') || n.starts_with('.')) {
            return Err(Error::refused(format!("{}: `{bad}` is no plain file name", path.display())));
        }
        if let Some(missing) = names.iter().find(|n| !folder.join(n).exists()) {
            return Err(Error::refused(format!("{} names `{missing}`, which is not in the folder; download it again", path.display())));
        }
        if names.is_empty() {
            return Err(Error::refused(format!("{} names no file", path.display())));
        }
        return Ok(names.into_iter().collect());
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io(Kind::Refused, "read", folder, &e))?;
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.map_err(|e| Error::io(Kind::Refused, "read", folder, &e))?.file_name();
        if let Some(name) = name.to_str()
            && name.ends_with(".safetensors")
            && !name.starts_with('.')
        {
            names.push(name.to_string());
        }
    }
    names.sort();
    if names.is_empty() {
        return Err(Error::refused(format!(
            "{} holds no .safetensors file: model.path must be a checkpoint's folder, downloaded as a whole",
            folder.display()
        )));
    }
    Ok(names)
}

/// Calls `each` with every (tensor, file) of the index file's weight_map.
fn walk_index(path: &Path, each: &mut dyn FnMut(&str, &str)) -> Result<()> {
    struct Map<'c>(&'c mut dyn FnMut(&str, &str));
    impl<'de> Visitor<'de> for Map<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of tensor names and file names")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
            while let Some((name, file)) = map.next_entry::<Cow<'de, str>, Cow<'de, str>>()? {
                (self.0)(&name, &file);
            }
            Ok(())
        }
    }
    #[derive(Deserialize)]
    struct Whole<'a> {
        #[serde(borrow)]
        weight_map: &'a serde_json::value::RawValue,
    }
    let text = std::fs::read(path).map_err(|e| Error::io(Kind::Refused, "read", path, &e))?;
    let fault = |e: serde_json::Error| Error::refused(format!("{}: {e}", path.display()));
    let whole: Whole<'_> = serde_json::from_slice(&text).map_err(fault)?;
    serde_json::Deserializer::from_str(whole.weight_map.get()).deserialize_map(Map(each)).map_err(fault)
}

/// A tensor seen a second time.
struct Twin {
    name: String,
    slot: Slot,
    place: Place,
    element: Element,
}

#[derive(Clone, Copy)]
enum Slot {
    Weight(usize),
    Block { layer: usize, at: usize },
}

struct Finder<'m> {
    manifest: &'m Manifest,
    names: HashMap<&'m str, usize>,
    prefixes: HashMap<&'m str, usize>,
    /// Length of the longest prefix: a header may hold names of megabytes, of which no more than this is looked at.
    prefix_max: usize,
    weights: Vec<(Place, Element)>,
    blocks: Vec<BlockPlaces>,
    twins: Vec<Twin>,
    extras: Extras,
}

impl<'m> Finder<'m> {
    fn new(manifest: &'m Manifest) -> Self {
        let names = manifest.weights.iter().enumerate().map(|(i, w)| (w.name.as_str(), i)).collect();
        let prefixes: HashMap<_, _> = manifest.blocks().map(|(layer, b)| (b.prefix.as_str(), layer)).collect();
        let prefix_max = prefixes.keys().map(|p| p.len()).max().unwrap_or(0);
        let blocks = manifest.layers.iter().map(|layer| match &layer.blocks {
            Some(b) => {
                let tensors = b.tensors();
                BlockPlaces { places: vec![NOWHERE; b.count * tensors.len()], tensors }
            }
            None => BlockPlaces { tensors: Vec::new(), places: Vec::new() },
        });
        let weights = vec![(NOWHERE, Element::F32); manifest.weights.len()];
        Finder { manifest, names, prefixes, prefix_max, weights, blocks: blocks.collect(), twins: Vec::new(), extras: Extras::default() }
    }

    /// Sees every tensor of a shard; gives its header back.
    fn see_all(&mut self, number: u32, path: &Path) -> Result<(File, Vec<u8>)> {
        let file = File::open(path).map_err(|e| Error::io(Kind::Refused, "open", path, &e))?;
        let header = header::read(&file, &mut |tensor| self.see(number, &tensor))
            .map_err(|fault| Error::refused(format!("{} {fault}", path.display())))?;
        Ok((file, header))
    }

    /// Which entry of the manifest `name` is.
    fn slot(&self, name: &str) -> Option<Slot> {
        if let Some(&weight) = self.names.get(name) {
            return Some(Slot::Weight(weight));
        }
        let bytes = name.as_bytes();
        for at in (1..bytes.len().min(self.prefix_max + 1)).filter(|&i| bytes[i - 1] == b'.' && bytes[i].is_ascii_digit()) {
            let Some(&layer) = self.prefixes.get(&name[..at]) else { continue };
            let (number, suffix) = name[at..].split_once('.')?;
            let tensors = &self.blocks[layer].tensors;
            let tensor = tensors.iter().position(|t| t.suffix == suffix)?;
            // "07" would be a second name of expert 7.
            let expert: usize = number.parse().ok().filter(|e: &usize| e.to_string() == number)?;
            let count = self.manifest.layers[layer].blocks.as_ref().map_or(0, |b| b.count);
            return (expert < count).then_some(Slot::Block { layer, at: expert * tensors.len() + tensor });
        }
        None
    }

    fn see(&mut self, file: u32, tensor: &Tensor<'_>) -> std::result::Result<(), String> {
        let name = tensor.name;
        let Some(slot) = self.slot(name) else {
            if self.manifest.ignored.iter().any(|prefix| name.starts_with(prefix)) {
                self.extras.unused.push(name);
                return Ok(());
            }
            return Err(format!("holds a tensor `{name}` that is no part of the model that config.json describes"));
        };
        let place = Place { file, offset: tensor.offset };
        let mut element = Element::F32;
        let held = match slot {
            Slot::Weight(i) => {
                element = self.check_weight(i, tensor)?;
                self.weights[i].0
            }
            Slot::Block { layer, at } => {
                let blocks = &self.blocks[layer];
                let wanted = &blocks.tensors[at % blocks.tensors.len()];
                let shape = wanted.shape.map(|n| n as u64);
                if tensor.dtype != "U8" || tensor.shape != shape {
                    return Err(format!("tensor `{name}` is {} {:?}, must be U8 {shape:?}", tensor.dtype, tensor.shape));
                }
                blocks.places[at]
            }
        };
        if held.file == file {
            return Err(format!("names the tensor `{name}` twice"));
        }
        if held != NOWHERE {
            self.twins.push(Twin { name: name.to_string(), slot, place, element });
            return Ok(());
        }
        self.settle_on(slot, place, element);
        Ok(())
    }

    fn settle_on(&mut self, slot: Slot, place: Place, element: Element) {
        match slot {
            Slot::Weight(i) => self.weights[i] = (place, element),
            Slot::Block { layer, at } => self.blocks[layer].places[at] = place,
        }
    }

    fn place(&self, slot: Slot) -> Place {
        match slot {
            Slot::Weight(i) => self.weights[i].0,
            Slot::Block { layer, at } => self.blocks[layer].places[at],
        }
    }

    fn check_weight(&self, i: usize, tensor: &Tensor<'_>) -> std::result::Result<Element, String> {
        let wanted = &self.manifest.weights[i].shape;
        if !tensor.shape.iter().copied().eq(wanted.iter().map(|&n| n as u64)) {
            return Err(format!("tensor `{}` has shape {:?}, config.json makes it {wanted:?}", tensor.name, tensor.shape));
        }
        match tensor.dtype {
            "BF16" => Ok(Element::Bf16),
            "F32" => Ok(Element::F32),
            other => Err(format!("tensor `{}` is stored as {other}; supported: BF16, F32", tensor.name)),
        }
    }

    /// Where a tensor lies twice, the index file decides.
    fn settle(&mut self, folder: &Path, files: &[String]) -> Result<()> {
        let Some(first) = self.twins.first() else { return Ok(()) };
        let path = folder.join(INDEX_FILE);
        if !path.exists() {
            return Err(Error::refused(format!(
                "tensor `{}` lies twice in {} and no {INDEX_FILE} says which counts; remove one of the files",
                first.name,
                folder.display()
            )));
        }
        let mut choice: HashMap<String, String> = self.twins.iter().map(|t| (t.name.clone(), String::new())).collect();
        walk_index(&path, &mut |name, file| {
            if let Some(chosen) = choice.get_mut(name) {
                *chosen = file.to_string();
            }
        })?;
        let twins = std::mem::take(&mut self.twins);
        for twin in &twins {
            let mut left_out = twin.place;
            if files[twin.place.file as usize] == choice[&twin.name] {
                left_out = self.place(twin.slot);
                self.settle_on(twin.slot, twin.place, twin.element);
            }
            self.extras.copies.push(&format!("`{}` in {}", twin.name, files[left_out.file as usize]));
        }
        let unsettled = twins.iter().find(|twin| files[self.place(twin.slot).file as usize] != choice[&twin.name]);
        unsettled.map_or(Ok(()), |twin| {
            Err(Error::refused(format!(
                "{}: tensor `{}` lies in two files, and in none that this one names for it",
                path.display(),
                twin.name
            )))
        })
    }

    /// Every tensor of the manifest must have been found.
    fn check(&self, folder: &Path) -> Result<()> {
        let weights = self.manifest.weights.iter().zip(&self.weights).filter(|(_, w)| w.0 == NOWHERE).map(|(w, _)| w.name.clone());
        let blocks = self.manifest.blocks().flat_map(|(layer, b)| {
            let found = &self.blocks[layer];
            let n = found.tensors.len();
            found
                .places
                .iter()
                .enumerate()
                .filter(|(_, p)| **p == NOWHERE)
                .map(move |(at, _)| format!("{}{}.{}", b.prefix, at / n, found.tensors[at % n].suffix))
        });
        let mut missing = weights.chain(blocks);
        let Some(first) = missing.next() else { return Ok(()) };
        let more = missing.count();
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        Err(Error::refused(format!("{}: tensor `{first}`{rest} is in none of its shards; download the model again", folder.display())))
    }
}
