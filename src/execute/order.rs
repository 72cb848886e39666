//! In which order does a model ask for its weights?
//!
//! The disk must know before it is asked. So the model is walked once without a row: it asks as it always does, nothing is computed, and what it
//! asked for is the order. A new architecture has nothing to declare, and nothing that it declares can go stale.

use std::ops::Range;

use crate::error::Result;
use crate::kernels::{Kernels, Matrix, View, ViewMut};
use crate::model::manifest::{Manifest, StateId, StateSpec, WeightId};
use crate::model::{Expert, Feed, Mix, Model, Routing, Stream};
use crate::scratch::{Buffer, Scratch};
use crate::store::Piece;

/// A sweep's panels in order of use, and where its blocks come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// Each with its turn.
    pub panels: Vec<(u64, Piece)>,
    /// How many of them are taken though no row is wanted at the end.
    pub unwanted: usize,
    /// The number of turns.
    pub turns: u64,
}

/// When a sweep's pieces are wanted.
#[derive(Debug, Clone, Copy)]
pub struct Turns {
    /// The turn with which the sweep begins.
    pub first: u64,
    /// All blocks of a layer were wanted before its rows chose; the last layer's never are.
    pub whole_layers: bool,
}

impl Turns {
    /// The turn of a layer's blocks.
    pub fn of_blocks(self, layer: usize) -> u64 {
        self.first + blocks_turn(layer)
    }
}

/// A layer's panels come one turn before this, or one after where they are used after the blocks.
fn blocks_turn(layer: usize) -> u64 {
    3 * layer as u64 + 1
}

impl Order {
    /// Asks `model`.
    ///
    /// # Errors
    /// What the model reports.
    pub fn of(model: &dyn Model, kernels: Kernels) -> Result<Self> {
        let manifest = model.manifest();
        let layers = manifest.layers.len();
        let mut asked = Asked { manifest, kernels, scratch: Scratch::default(), turn: 0, panels: Vec::new(), unwanted: 0, fixed: 0 };
        let mut stream = Stream { data: asked.scratch.take(0), width: manifest.stream_width };
        for layer in 0..layers {
            asked.turn = blocks_turn(layer) - 1;
            model.layer(layer, &mut stream, &mut asked)?;
        }
        asked.turn = blocks_turn(layers) - 1;
        model.head(&stream, &mut asked, &mut |_, _| {})?;
        let Asked { panels, unwanted, .. } = asked;
        Ok(Order { panels, unwanted, turns: blocks_turn(layers) })
    }
}

/// Writes down what is asked for.
struct Asked<'a> {
    manifest: &'a Manifest,
    kernels: Kernels,
    scratch: Scratch,
    turn: u64,
    panels: Vec<(u64, Piece)>,
    unwanted: usize,
    /// Where the next fixed state may stand in the manifest.
    fixed: u32,
}

impl Asked<'_> {
    /// Once for a panel that is asked for several times on end.
    fn note(&mut self, weight: WeightId, panel: usize) {
        let piece = Piece::Panel { weight, panel: panel as u32 };
        if self.panels.last().is_none_or(|last| last.1 != piece) {
            self.panels.push((self.turn, piece));
        }
    }

    fn note_rows(&mut self, weight: WeightId, outputs: &Range<usize>) {
        let rows = self.manifest.weight(weight).panel_rows;
        (outputs.start / rows..outputs.end.div_ceil(rows)).for_each(|panel| self.note(weight, panel));
    }
}

impl Feed for Asked<'_> {
    fn kernels(&self) -> Kernels {
        self.kernels
    }

    fn scratch(&self) -> Scratch {
        self.scratch.clone()
    }

    fn matmul(&mut self, w: WeightId, outputs: Range<usize>, _: View<'_>, _: ViewMut<'_>) -> Result<()> {
        self.note_rows(w, &outputs);
        Ok(())
    }

    fn panel(&mut self, w: WeightId, outputs: Range<usize>, _: &mut dyn FnMut(Matrix<'_>)) -> Result<()> {
        self.note_rows(w, &outputs);
        Ok(())
    }

    fn vector(&mut self, w: WeightId) -> Result<Buffer> {
        self.note(w, 0);
        let weight = self.manifest.weight(w);
        Ok(self.scratch.zeros(weight.rows() * weight.cols()))
    }

    fn mix(&mut self, state: StateId, _: &mut [f32], _: &Mix<'_>) -> Result<()> {
        if let StateSpec::Fixed { .. } = self.manifest.states[state.0 as usize] {
            assert!(state.0 >= self.fixed, "a model asks once for each fixed state, in the manifest's order");
            self.fixed = state.0 + 1;
        }
        Ok(())
    }

    fn narrow(&mut self, _: &mut Stream, _: &mut [&mut Buffer]) {
        self.unwanted = self.panels.len(); // the last layer's is the one that counts
    }

    fn queue(&mut self, _: &Routing) {}

    fn experts(&mut self, _: &Routing, _: &[f32], _: &mut [f32], _: &Expert<'_>) -> Result<()> {
        self.turn += 2;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Fold;
    use crate::model::manifest::Layer;

    /// One layer without a weight that asks for some states.
    struct Asking(Manifest, Vec<u32>);

    impl Asking {
        /// Of states 0 (appended), 1 and 2 (fixed).
        fn order(states: &[u32]) -> Result<Order> {
            let fixed = StateSpec::Fixed { floats: 8, log: 0 };
            let manifest = Manifest {
                hidden: 4,
                vocab: 4,
                stream_width: 4,
                row_scratch: 0,
                weights: Vec::new(),
                embedding: WeightId(0),
                head: WeightId(0),
                ignored: Vec::new(),
                states: vec![StateSpec::Appended(2), fixed, fixed],
                layers: vec![Layer { weights: 0..0, states: 0..3, blocks: None }],
            };
            Order::of(&Asking(manifest, states.to_vec()), Kernels::detect())
        }
    }

    impl Model for Asking {
        fn manifest(&self) -> &Manifest {
            &self.0
        }

        fn layer(&self, _: usize, _: &mut Stream, feed: &mut dyn Feed) -> Result<()> {
            self.1.iter().try_for_each(|&state| feed.mix(StateId(state), &mut [], &|_, _, _| {}))
        }

        fn head(&self, _: &Stream, _: &mut dyn Feed, _: &mut Fold<'_>) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_appended_state_may_be_asked_for_again() {
        Asking::order(&[0, 1, 0, 2, 0]).expect("nothing is read");
    }

    #[test]
    #[should_panic(expected = "asks once for each fixed state")]
    fn a_fixed_state_is_asked_for_once() {
        let _ = Asking::order(&[1, 2, 2]);
    }

    #[test]
    #[should_panic(expected = "in the manifest's order")]
    fn fixed_states_come_in_the_manifests_order() {
        let _ = Asking::order(&[2, 1]);
    }
}
