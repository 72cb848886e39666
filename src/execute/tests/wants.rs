//! What the disk is told beforehand, written down by a store that passes everything on.

use std::sync::Mutex;

use super::*;
use crate::store::{Counters, Element, Lease, Piece, Store};

struct Told<'a> {
    inner: &'a Weights,
    wants: Mutex<Vec<Vec<Piece>>>,
    forgotten: Mutex<Vec<Piece>>,
    taken: Mutex<Vec<Piece>>,
    /// What it claims to have read for nobody.
    wasted: u64,
}

impl Store for Told<'_> {
    fn want(&self, turn: u64, pieces: &[Piece]) {
        self.wants.lock().expect("free").push(pieces.to_vec());
        self.inner.want(turn, pieces);
    }
    fn ready(&self, piece: Piece) -> bool {
        self.inner.ready(piece)
    }
    fn forget(&self, pieces: &[Piece]) {
        self.forgotten.lock().expect("free").extend(pieces);
        self.inner.forget(pieces);
    }
    fn take(&self, piece: Piece) -> Result<Lease> {
        self.taken.lock().expect("free").push(piece);
        self.inner.take(piece)
    }
    fn row(&self, weight: WeightId, row: usize, out: &mut [u8]) -> Result<()> {
        self.inner.row(weight, row, out)
    }
    fn element(&self, weight: WeightId) -> Element {
        self.inner.element(weight)
    }
    fn name(&self, piece: Piece, i: usize) -> String {
        self.inner.name(piece, i)
    }
    fn counters(&self) -> Counters {
        Counters { blocks_wasted: self.wasted, blocks_used: 10, ..Counters::default() }
    }
}

fn layer_of(piece: &Piece) -> Option<u32> {
    match piece {
        Piece::Block { layer, .. } => Some(*layer),
        Piece::Panel { .. } | Piece::State { .. } => None,
    }
}

/// What a store was told in a run.
struct Heard {
    wants: Vec<Vec<Piece>>,
    forgotten: Vec<Piece>,
    taken: Vec<Piece>,
    tokens: Vec<Vec<u32>>,
}

impl Heard {
    /// How often all `count` blocks of a layer were wanted together.
    fn whole(&self, layer: usize, count: usize) -> usize {
        let of_layer = |piece: &Piece| layer_of(piece) == Some(layer as u32);
        self.wants.iter().filter(|pieces| pieces.len() == count && pieces.iter().all(of_layer)).count()
    }
}

/// Two prompts of so many tokens, a sweep each.
fn heard(tokens: u32, wasted: u64) -> Heard {
    let checkpoint = fixture("goldens/tiny/checkpoint");
    let requests = [0, 1].map(|i| {
        let mut asked = request(i, (0..tokens).map(|p| (p * 7 + 3 * i as u32) % 384).collect(), 1);
        asked.sampling.prompt_logprobs = false;
        asked
    });
    let bench = Bench::new(&checkpoint, &requests);
    let store = Told { inner: &bench.store, wants: Mutex::default(), forgotten: Mutex::default(), taken: Mutex::default(), wasted };
    let watch = Ticks(AtomicI64::new(0));
    let engine = Engine { store: &store, ..bench.engine(Kernels::detect(), &watch) };
    let mut sink = Collected(Vec::new());
    run(&mut bench.schedule(Grouping::Input, 1, tokens as usize, 1), &engine, &mut sink).expect("the run ends");
    sink.0.sort_by_key(|event| event.index);
    Heard {
        wants: store.wants.into_inner().expect("free"),
        forgotten: store.forgotten.into_inner().expect("free"),
        taken: store.taken.into_inner().expect("free"),
        tokens: sink.0.into_iter().map(|event| event.tokens).collect(),
    }
}

#[test]
fn where_many_rows_need_all_experts_layers_are_wanted_whole_but_the_last() {
    let model = open(&fixture("goldens/tiny/checkpoint"), PANEL_BYTES);
    let blocks: Vec<(usize, usize)> = model.manifest().blocks().map(|(layer, blocks)| (layer, blocks.count)).collect();
    let last = model.manifest().layers.len() - 1;
    // So many rows that all experts are expected, so few that some are left out.
    let rows = 24;
    let all = heard(rows, 0);
    for &(layer, count) in &blocks {
        assert_eq!(all.whole(layer, count), if layer == last { 0 } else { 2 }, "layer {layer}, two sweeps");
    }
    let is_block = |piece: &&Piece| layer_of(piece).is_some();
    let wanted = all.wants.iter().flatten().filter(is_block).count();
    assert!(!all.forgotten.is_empty(), "some were not chosen");
    assert_eq!(wanted, all.taken.iter().filter(is_block).count() + all.forgotten.len(), "what is wanted is taken or forgotten");
    // A router that leaves many out has shown that it does not pay.
    let off = heard(rows, 1);
    let whole = |heard: &Heard| blocks.iter().map(|&(layer, count)| heard.whole(layer, count)).sum::<usize>();
    assert!(whole(&off) < whole(&all) && off.forgotten.len() < all.forgotten.len());
    assert_eq!(off.tokens, all.tokens);
    // Few rows wait for the router.
    let few = heard(5, 0);
    assert!(whole(&few) == 0 && few.forgotten.is_empty());
}

#[test]
fn panels_are_wanted_in_the_order_in_which_they_are_taken() {
    let Heard { wants, taken, .. } = heard(60, 0);
    let of = |pieces: &mut dyn Iterator<Item = Piece>| pieces.filter(|piece| layer_of(piece).is_none()).collect::<Vec<_>>();
    assert!(of(&mut wants.into_iter().flatten()) == of(&mut taken.into_iter()), "another order");
}
