//! What are the equations? One short file an architecture over shared pieces in `nn/`.
//!
//! A model sees rows and asks for weights. It never learns whose row is whose, where a weight or a state lies, or how
//! many sequences are in flight: all of that stays behind [`Feed`]. So one set of equations serves a prompt, a step of
//! decoding and any mix of both, and its bits cannot depend on them.

pub mod fields;
mod kimi_k3;
pub mod manifest;
pub mod nn;

use std::ops::Range;
use std::path::Path;

use crate::error::{Error, Result};
use crate::kernels::{Kernels, Matrix, View, ViewMut};
use crate::scratch::{Buffer, Scratch};
use manifest::{Manifest, StateId, WeightId};

/// All that one layer hands to the next: f32 [rows, width].
///
/// A row begins with the token's embedding when it enters layer 0; what it holds later is the model's own affair.
pub struct Stream {
    /// [rows, width], row-major.
    pub data: Buffer,
    /// Floats a row; the manifest's `stream_width`.
    pub width: usize,
}

impl Stream {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.width
    }
}

/// The experts that each row chose, best first, and their weights: both [rows, chosen].
#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    /// Expert ids of the layer.
    pub ids: Vec<u32>,
    /// Weight of each expert's output in the row's sum.
    pub weights: Vec<f32>,
    /// Experts a row.
    pub chosen: usize,
}

/// A span's state of one layer: all that the sequence has left behind before this span, lent while it is advanced.
pub struct StateView<'a> {
    /// Absolute position of the span's first row.
    pub first: usize,
    /// A fixed state: all of it. An appended one: rows 0 to the span's end, of which those of this span are to be written.
    pub data: &'a mut [f32],
    /// Of a fixed state with a log: [n, log], the records of the n positions before `first` that `data` does not know of yet.
    /// They are to be replayed before anything else; most often there is none.
    pub past: &'a [f32],
    /// Of a fixed state with a log, where it is wanted: [rows, log], to be filled with the records of the span's rows.
    pub log: Option<&'a mut [f32]>,
}

/// One routed expert of the layer at hand, for as long as it is lent.
pub struct Block<'a> {
    /// The block's matrices, in the manifest's order.
    pub parts: &'a [Matrix<'a>],
}

/// Advances one span: its rows in the sweep, its part of `y` ([rows, width]), its state.
pub type Mix<'a> = dyn Fn(Range<usize>, &mut [f32], StateView<'_>) + Sync + 'a;

/// Computes one expert for its rows: block, z [rows, in], y [rows, out] (to be overwritten).
pub type Expert<'a> = dyn Fn(&Block<'_>, &[f32], &mut [f32]) + Sync + 'a;

/// All that a model may ask for.
pub trait Feed {
    /// The arithmetic of this machine.
    fn kernels(&self) -> Kernels;

    /// Where temporary rows come from.
    fn scratch(&self) -> Scratch;

    /// `y[r][n] = dot(x[r], w[n])` for the output rows `outputs` of `w` (whole panels), each panel obtained once for all rows.
    ///
    /// # Errors
    /// The weight cannot be read.
    fn matmul(&mut self, w: WeightId, outputs: Range<usize>, x: View<'_>, y: ViewMut<'_>) -> Result<()>;

    /// Lends the output rows `outputs` of `w` (one panel) to `f`.
    ///
    /// # Errors
    /// The weight cannot be read.
    fn panel(&mut self, w: WeightId, outputs: Range<usize>, f: &mut dyn FnMut(Matrix<'_>)) -> Result<()>;

    /// A small weight, whole, as f32.
    ///
    /// # Errors
    /// The weight cannot be read.
    fn vector(&mut self, w: WeightId) -> Result<Buffer>;

    /// Calls `f` once a span with the span's state; y is [rows, width] for some width.
    ///
    /// A fixed state is asked for once in a sweep, and a layer's in the manifest's order, so that the states of many sequences can pass
    /// through little memory. An appended one stays for its layer, which may ask for it several times.
    ///
    /// # Errors
    /// A state cannot be had.
    fn mix(&mut self, state: StateId, y: &mut [f32], f: &Mix<'_>) -> Result<()>;

    /// Says that the layer's states are complete: from here on they are read alone. After the last layer only those rows matter whose logits
    /// are wanted, so there the others are left out: of x, of each of `beside` ([rows, any width]) and of the spans that
    /// [`Feed::mix`] lends states to. In other layers nothing happens.
    fn narrow(&mut self, x: &mut Stream, beside: &mut [&mut Buffer]);

    /// Says who chose whom, so that the blocks may come while what lies between is computed.
    fn queue(&mut self, routing: &Routing);

    /// `y[row] += weight * f(block, z[row])` for every chosen expert, in ascending id; z is [rows, in], y [rows, out].
    ///
    /// # Errors
    /// A block cannot be read or holds what is no number.
    fn experts(&mut self, routing: &Routing, z: &[f32], y: &mut [f32], f: &Expert<'_>) -> Result<()>;
}

/// Receives a slice of the vocabulary and its logits [rows, slice].
pub type Fold<'a> = dyn FnMut(Range<usize>, &[f32]) + 'a;

/// One architecture: its tensors, its layers, its head.
pub trait Model: Send + Sync {
    /// Every tensor and state, in order of use.
    fn manifest(&self) -> &Manifest;

    /// One layer. As soon as every row has left its states behind it calls [`Feed::narrow`], which may leave rows out.
    ///
    /// # Errors
    /// What `feed` reports.
    fn layer(&self, layer: usize, x: &mut Stream, feed: &mut dyn Feed) -> Result<()>;

    /// Logits of all rows of x, folded slice by slice over a fixed grid of the vocabulary ([`nn::VOCABULARY_GRID`]).
    ///
    /// # Errors
    /// What `feed` reports.
    fn head(&self, x: &Stream, feed: &mut dyn Feed, fold: &mut Fold<'_>) -> Result<()>;
}

/// Published configs, the content of config.json each, by the name that a person types.
pub const SHAPES: [(&str, &str); 1] = [("kimi-k3", kimi_k3::RELEASED)];

/// The content of the config.json that was published as `name`; [`SHAPES`] lists them.
pub fn shape(name: &str) -> Option<&'static str> {
    SHAPES.iter().find(|(known, _)| *known == name).map(|(_, config)| *config)
}

/// The model that `config` describes, the content of the config.json that messages call `path`. Its weights come in panels of at most
/// `panel_bytes` ([`manifest::PANEL_BYTES`]); what is computed does not depend on them.
///
/// # Errors
/// Refused: not JSON, an unknown `model_type`, or fields that are missing or have values that this version does not compute; all of them
/// are named at once.
pub fn of_config(config: &[u8], path: &Path, panel_bytes: usize) -> Result<Box<dyn Model>> {
    let refuse = |faults: Vec<String>| Error::refused(format!("{}: {}", path.display(), faults.join("; ")));
    let text = config.strip_prefix(b"\xef\xbb\xbf").unwrap_or(config);
    let config: serde_json::Value =
        serde_json::from_slice(text).map_err(|e| Error::refused(format!("{} is not JSON: {e}", path.display())))?;
    match config.get("model_type").and_then(|v| v.as_str()) {
        Some(kimi_k3::MODEL_TYPE) => Ok(Box::new(kimi_k3::KimiK3::from_config(&config, panel_bytes).map_err(refuse)?)),
        Some(other) => Err(refuse(vec![format!("model_type `{other}` is not supported; supported: {}", kimi_k3::MODEL_TYPE)])),
        None => Err(refuse(vec!["`model_type` is missing".into()])),
    }
}
