//! Which tensors a checkpoint stores, in which file, in which order: from the manifest alone, so that nothing is listed twice.

use std::fmt::Write;

use nightshift::model::manifest::{Blocks, Manifest, WeightId};

use super::values::Fill;

/// Bytes of a shard by default, as the released ones have.
const SHARD_BYTES: u64 = 16_250_000_000;
/// The header is filled up with blanks so that the data begin at a multiple of it.
const HEADER_ALIGN: usize = 8;

/// An element as the header names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Dtype {
    F32,
    Bf16,
    U8,
}

impl Dtype {
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "F32",
            Dtype::Bf16 => "BF16",
            Dtype::U8 => "U8",
        }
    }

    fn bytes(self) -> u64 {
        match self {
            Dtype::F32 => 4,
            Dtype::Bf16 => 2,
            Dtype::U8 => 1,
        }
    }
}

/// One tensor of a shard.
pub struct Stored {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub fill: Fill,
}

impl Stored {
    pub fn bytes(&self) -> u64 {
        self.shape.iter().map(|&n| n as u64).product::<u64>() * self.dtype.bytes()
    }
}

/// What lies in one file whatever the number of files: a weight, or an expert's tensors.
#[derive(Clone, Copy)]
pub enum Unit {
    Weight(WeightId),
    Block { layer: usize, expert: usize },
}

/// The units of each file: in the layers' order, each layer's weights before its experts, and what belongs to no layer behind the last.
pub fn shards(manifest: &Manifest, count: Option<usize>) -> Vec<Vec<Unit>> {
    let mut units = Vec::new();
    let in_layers = manifest.layers.last().map_or(0, |l| l.weights.end);
    for (layer, l) in manifest.layers.iter().enumerate() {
        units.extend(l.weights.clone().map(|w| Unit::Weight(WeightId(w))));
        units.extend((0..l.blocks.as_ref().map_or(0, |b| b.count)).map(|expert| Unit::Block { layer, expert }));
    }
    units.extend((in_layers..manifest.weights.len() as u32).map(|w| Unit::Weight(WeightId(w))));
    let bytes: Vec<u64> = units.iter().map(|unit| stored(manifest, *unit).iter().map(Stored::bytes).sum()).collect();
    let total: u64 = bytes.iter().sum();
    let count = count.map_or(total.div_ceil(SHARD_BYTES), |n| n as u64).max(1);
    let mut shards = vec![Vec::new(); count as usize];
    let mut before = 0;
    for (unit, bytes) in units.into_iter().zip(bytes) {
        shards[(u128::from(before) * u128::from(count) / u128::from(total)) as usize].push(unit);
        before += bytes;
    }
    shards.retain(|shard| !shard.is_empty());
    shards
}

/// The tensors of a file in their order: wide elements first, then by name, as the format's own writer does. So an expert's lie together.
pub fn tensors(manifest: &Manifest, shard: &[Unit]) -> Vec<Stored> {
    let mut tensors: Vec<Stored> = shard.iter().flat_map(|unit| stored(manifest, *unit)).collect();
    tensors.sort_by(|a, b| (a.dtype, &a.name).cmp(&(b.dtype, &b.name)));
    tensors
}

/// The header of a file that holds `tensors` one behind the other, its length in front.
pub fn header(tensors: &[Stored]) -> Vec<u8> {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0;
    for tensor in tensors {
        let (name, dtype, end) = (&tensor.name, tensor.dtype.name(), at + tensor.bytes());
        let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        write!(json, ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{at},{end}]}}")
            .expect("a string takes text");
        at = end;
    }
    json.push('}');
    let length = json.len().next_multiple_of(HEADER_ALIGN);
    json.extend(std::iter::repeat_n(' ', length - json.len()));
    [&(length as u64).to_le_bytes(), json.as_bytes()].concat()
}

fn stored(manifest: &Manifest, unit: Unit) -> Vec<Stored> {
    match unit {
        Unit::Weight(id) => {
            let weight = manifest.weight(id);
            let (dtype, fill) = weight_fill(&weight.name, &weight.shape, id == manifest.embedding);
            vec![Stored { name: weight.name.clone(), dtype, shape: weight.shape.clone(), fill }]
        }
        Unit::Block { layer, expert } => block(manifest.layers[layer].blocks.as_ref().expect("a layer that has experts"), expert),
    }
}

/// What a weight holds: gains of one, and matrices that neither grow nor shrink what goes through them. The embedding has the size of what the
/// layers add to it.
fn weight_fill(name: &str, shape: &[usize], embedding: bool) -> (Dtype, Fill) {
    let normal = |mean, std| Fill::Normal { mean, std };
    match name.rsplit('.').next().unwrap_or(name) {
        "A_log" => (Dtype::F32, normal(0.0, 0.5)),
        // A state forgets a few parts in a hundred a token, as trained ones do, and not half of it.
        "dt_bias" => (Dtype::F32, normal(-4.0, 1.0)),
        "e_score_correction_bias" => (Dtype::F32, normal(0.0, 0.01)),
        _ if embedding => (Dtype::Bf16, normal(0.0, 1.0)),
        _ if shape.len() == 1 => (Dtype::Bf16, normal(1.0, 0.0)),
        _ => (Dtype::Bf16, normal(0.0, 1.0 / (shape[1..].iter().product::<usize>() as f32).sqrt())),
    }
}

fn block(blocks: &Blocks, expert: usize) -> Vec<Stored> {
    let part = |suffix: &str| blocks.parts.iter().find(|p| suffix.strip_prefix(p.name).is_some_and(|rest| rest.starts_with('.')));
    let stored = |tensor: nightshift::model::manifest::PartTensor| {
        let cols = part(&tensor.suffix).expect("a tensor of one of the parts").cols;
        Stored {
            name: format!("{}{expert}.{}", blocks.prefix, tensor.suffix),
            dtype: Dtype::U8,
            shape: tensor.shape.to_vec(),
            fill: if tensor.suffix.ends_with("_scale") { Fill::scales(cols) } else { Fill::Codes },
        }
    };
    blocks.tensors().into_iter().map(stored).collect()
}
