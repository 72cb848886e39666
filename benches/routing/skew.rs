//! How skewed and how persistent the routing of one text is.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use serde_json::Value;

use super::routing::{CHOSEN, EXPERTS, LAYERS, Tokens};

/// Distances between tokens at which reuse is told; the last stands for all from there on.
const LAGS: [usize; 6] = [1, 2, 4, 8, 16, 64];

/// Chosen experts: `[layers][tokens]`.
pub struct Trace(Vec<Vec<BTreeSet<u64>>>);

impl Trace {
    /// Of a file with a JSON line a token.
    pub fn read(path: &Path) -> Result<Self> {
        let fault = |line: usize, what: &str| Error::new(ErrorKind::InvalidData, format!("{}, line {}: {what}", path.display(), line + 1));
        let mut layers: Vec<Vec<BTreeSet<u64>>> = Vec::new();
        for (nth, line) in std::fs::read_to_string(path)?.lines().enumerate() {
            let token: Value = serde_json::from_str(line).map_err(|e| fault(nth, &e.to_string()))?;
            let chosen = token["layers"].as_array().ok_or_else(|| fault(nth, "no list `layers`"))?;
            layers.resize(chosen.len().max(layers.len()), Vec::new());
            for (layer, experts) in layers.iter_mut().zip(chosen) {
                layer.push(experts.as_array().into_iter().flatten().filter_map(Value::as_u64).collect());
            }
        }
        match layers.iter().all(|layer| layer.len() == layers[0].len() && !layer.is_empty()) && !layers.is_empty() {
            true => Ok(Trace(layers)),
            false => Err(fault(0, "its tokens do not all have the same layers")),
        }
    }

    /// Of a drawn text.
    pub fn of(tokens: &Tokens) -> Self {
        let mut layers = vec![Vec::new(); LAYERS];
        for token in 0..tokens.count() {
            let chosen: Vec<u64> = tokens.blocks(token).map(|block| (block % EXPERTS) as u64).collect();
            layers.iter_mut().zip(chosen.chunks(CHOSEN)).for_each(|(layer, experts)| layer.push(experts.iter().copied().collect()));
        }
        Trace(layers)
    }

    /// In words.
    pub fn skew(&self) -> String {
        let (tokens, chosen) = (self.0[0].len(), self.0[0][0].len());
        let reuse = LAGS.iter().filter(|lag| **lag < tokens).map(|lag| format!("{:.3} at {lag}", self.reuse(*lag)));
        let distinct = [2, 4, 8, 12, 32, 128].into_iter().filter(|n| *n <= tokens);
        let distinct = distinct.map(|n| format!("{:.1} after {n}", self.distinct(n) / chosen as f64));
        format!(
            "{tokens} tokens, {chosen} experts in {} layers; used again by the token behind: {}; distinct experts over those of one token: {}",
            self.0.len(),
            reuse.collect::<Vec<_>>().join(", "),
            distinct.collect::<Vec<_>>().join(", ")
        )
    }

    /// The share of a token's experts that the token `lag` before it chose too; from the last lag on, at all distances.
    fn reuse(&self, lag: usize) -> f64 {
        let farthest = if lag == LAGS[LAGS.len() - 1] { self.0[0].len() - 1 } else { lag };
        let (mut both, mut all) = (0, 0);
        for layer in &self.0 {
            for lag in lag..=farthest {
                for (before, after) in layer.iter().zip(&layer[lag..]) {
                    both += before.intersection(after).count();
                    all += after.len();
                }
            }
        }
        both as f64 / all as f64
    }

    /// Distinct experts of a layer in `n` consecutive tokens.
    fn distinct(&self, n: usize) -> f64 {
        let counts = self.0.iter().flat_map(|layer| layer.chunks_exact(n)).map(|some| some.iter().flatten().collect::<BTreeSet<_>>().len());
        counts.clone().sum::<usize>() as f64 / counts.count() as f64
    }
}
