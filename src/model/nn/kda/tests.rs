//! A layer over a feed of its own: one sequence, its states in memory, its records kept.

use super::*;
use crate::kernels::{Data, Matrix, Path};
use crate::model::{Expert, Mix, Routing};

const HIDDEN: usize = 12;
const HEADS: usize = 5;
const WIDTH: usize = 20;
const TAPS: usize = 4;
const GROUP: usize = 2;
const TOKENS: usize = 9;

/// Numbers in [-1, 1).
fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The layer, and its weights' rows and columns by id.
fn layer() -> (Kda, Vec<(usize, usize)>) {
    let (wide, mut shapes) = (HEADS * WIDTH, Vec::new());
    let mut weight = |rows, cols| {
        shapes.push((rows, cols));
        WeightId(shapes.len() as u32 - 1)
    };
    let kda = Kda {
        f_a: weight(WIDTH, HIDDEN),
        b: weight(HEADS, HIDDEN),
        qkv: [(); 3].map(|()| (weight(wide, HIDDEN), weight(wide, TAPS))),
        a_log: weight(1, WIDTH),
        f_b: weight(wide, WIDTH),
        dt_bias: weight(1, wide),
        g: weight(wide, HIDDEN),
        o_norm: weight(1, WIDTH),
        o: weight(HIDDEN, wide),
        states: (0..HEADS.div_ceil(GROUP) as u32).map(StateId).collect(),
        heads: HEADS,
        width: WIDTH,
        taps: TAPS,
        group: GROUP,
        gate_lower_bound: -5.0,
        eps: 1e-5,
    };
    (kda, shapes)
}

/// A group's state: all of it, the records that it does not hold yet, and those of the last span where they are kept.
#[derive(Clone, Default)]
struct Held {
    data: Vec<f32>,
    past: Vec<f32>,
    log: Vec<f32>,
}

/// One sequence.
struct One {
    kernels: Kernels,
    scratch: Scratch,
    weights: Vec<(usize, Vec<u8>)>,
    states: Vec<Held>,
    first: usize,
    logs: bool,
}

impl One {
    fn new(kernels: Kernels, shapes: &[(usize, usize)]) -> One {
        let bytes = |seed, count| noise(seed, count).iter().flat_map(|v| v.to_le_bytes()).collect();
        let weights = (1..).zip(shapes).map(|(seed, &(rows, cols))| (cols, bytes(seed, rows * cols))).collect();
        let state = |heads: usize| Held { data: vec![0.0; heads * WIDTH * (3 * (TAPS - 1) + WIDTH)], ..Held::default() };
        let states = [GROUP, GROUP, HEADS - 2 * GROUP].map(state).to_vec();
        One { kernels, scratch: Scratch::default(), weights, states, first: 0, logs: false }
    }

    fn matrix(&self, w: WeightId) -> Matrix<'_> {
        let (cols, bytes) = &self.weights[w.0 as usize];
        Matrix::new(bytes.len() / 4 / cols, *cols, Data::F32(bytes)).expect("the bytes are of this shape")
    }

    /// The layer's outputs at some positions, of which the first is the next.
    fn run(&mut self, kda: &Kda, positions: Range<usize>, logs: bool) -> Vec<f32> {
        assert_eq!(positions.start, self.first);
        let mut x = self.scratch.take(positions.len() * HIDDEN);
        x.copy_from_slice(&noise(99, TOKENS * HIDDEN)[positions.start * HIDDEN..positions.end * HIDDEN]);
        self.logs = logs;
        let mut stream = Stream { data: self.scratch.take(0), width: HIDDEN };
        let y = kda.forward(self, &mut stream, x, HIDDEN).expect("nothing is read");
        self.first = positions.end;
        y.to_vec()
    }
}

impl Feed for One {
    fn kernels(&self) -> Kernels {
        self.kernels
    }

    fn scratch(&self) -> Scratch {
        self.scratch.clone()
    }

    fn matmul(&mut self, w: WeightId, outputs: Range<usize>, x: View<'_>, y: ViewMut<'_>) -> Result<()> {
        self.kernels.matmul(x.data.len() / x.stride, x, &self.matrix(w).slice(outputs), y);
        Ok(())
    }

    fn panel(&mut self, _: WeightId, _: Range<usize>, _: &mut dyn FnMut(Matrix<'_>)) -> Result<()> {
        unreachable!("the layer takes no panel")
    }

    fn vector(&mut self, w: WeightId) -> Result<Buffer> {
        let mut out = self.scratch.take(self.weights[w.0 as usize].1.len() / 4);
        self.matrix(w).decode(&mut out);
        Ok(out)
    }

    fn mix(&mut self, state: StateId, y: &mut [f32], f: &Mix<'_>) -> Result<()> {
        let held = &mut self.states[state.0 as usize];
        let heads = held.data.len() / (WIDTH * (3 * (TAPS - 1) + WIDTH));
        let rows = y.len() / (heads * WIDTH);
        held.log = vec![f32::NAN; if self.logs { rows * RECORD * heads * WIDTH } else { 0 }];
        let log = self.logs.then_some(&mut held.log[..]);
        f(0..rows, y, StateView { first: self.first, data: &mut held.data, past: &held.past, log });
        held.past.clear();
        Ok(())
    }

    fn narrow(&mut self, _: &mut Stream, _: &mut [&mut Buffer]) {}

    fn queue(&mut self, _: &Routing) {}

    fn experts(&mut self, _: &Routing, _: &[f32], _: &mut [f32], _: &Expert<'_>) -> Result<()> {
        unreachable!("the layer has no experts")
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn an_older_state_and_its_records_go_on_with_the_same_bits() {
    let (kda, shapes) = layer();
    for kernels in [Path::Scalar, Path::Avx2, Path::Avx512].into_iter().filter_map(Kernels::with) {
        let mut straight = One::new(kernels, &shapes);
        let want = straight.run(&kda, 0..TOKENS, false);
        assert!(want.iter().all(|v| v.is_finite() && *v != 0.0));
        for (old, now) in (0..TOKENS).flat_map(|old| (old..TOKENS).map(move |now| (old, now))) {
            let mut one = One::new(kernels, &shapes);
            one.run(&kda, 0..old, false);
            let whole: Vec<Vec<f32>> = one.states.iter().map(|held| held.data.clone()).collect();
            let between = one.run(&kda, old..now, true);
            assert_eq!(bits(&between), bits(&want[old * HIDDEN..now * HIDDEN]), "with a log, {old} to {now}");
            for (held, whole) in one.states.iter_mut().zip(whole) {
                *held = Held { data: whole, past: std::mem::take(&mut held.log), log: Vec::new() };
            }
            let last = one.run(&kda, now..TOKENS, true);
            assert_eq!(bits(&last), bits(&want[now * HIDDEN..]), "of a state at {old} with records to {now}, {:?}", kernels.path());
            for (held, straight) in one.states.iter().zip(&straight.states) {
                assert_eq!(bits(&held.data), bits(&straight.data), "the state after {old} and {now}");
            }
        }
    }
}
