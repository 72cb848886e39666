//! The delta rule and its replay: the definition's bits on every path, however tokens are cut.

use proptest::prelude::*;

use super::*;
use crate::kernels::tests::{all, noise, same};

/// Token `from..to` of a problem with `heads` of `d`.
struct Problem {
    d: usize,
    heads: usize,
    inputs: [Vec<f32>; 4],
    beta: Vec<f32>,
}

impl Problem {
    fn new(d: usize, heads: usize, tokens: usize) -> Problem {
        let mut inputs = [1, 2, 3, 4].map(|seed| noise(seed, tokens * heads * d));
        inputs[3].iter_mut().for_each(|g| *g = 0.6 + 0.4 * g.abs());
        Problem { d, heads, inputs, beta: noise(5, tokens * heads) }
    }

    fn view<'a>(&self, data: &'a [f32], from: usize) -> View<'a> {
        View { data, start: from * self.heads * self.d, stride: self.heads * self.d }
    }

    /// Writes to `out` and to `changes`, both of all tokens.
    fn run(&self, kernels: Kernels, state: &mut [f32], [out, changes]: [&mut [f32]; 2], range: Range<usize>) {
        let (d, heads, from) = (self.d, self.heads, range.start);
        let [q, k, v, decay] = self.inputs.each_ref().map(|x| self.view(x, from));
        let beta = View { data: &self.beta, start: from * heads, stride: heads };
        let delta = Delta { q, k, v, decay, beta, d, heads, tokens: range.len() };
        let [out, changes] = [out, changes].map(|data| ViewMut { data, start: from * heads * d, stride: heads * d });
        kernels.delta_rule(state, &delta, out, Some(changes));
    }

    fn replay(&self, kernels: Kernels, state: &mut [f32], changes: &[f32], range: Range<usize>) {
        let [k, decay, change] = [&self.inputs[1], &self.inputs[3], changes].map(|x| self.view(x, range.start));
        let replay = Replay { k, decay, change, d: self.d, heads: self.heads, tokens: range.len() };
        kernels.delta_replay(state, &replay);
    }

    /// The definition, in plain loops.
    fn plainly(&self, state: &mut [f32], tokens: usize) -> Vec<f32> {
        let (d, heads) = (self.d, self.heads);
        let [q, k, v, decay] = &self.inputs;
        let mut out = vec![0.0; tokens * heads * d];
        for (t, h, c) in (0..tokens).flat_map(|t| (0..heads * d).map(move |c| (t, c / d, c % d))) {
            let at = (t * heads + h) * d;
            let s = |i: usize| (h * d + i) * d + c;
            let mut seen = 0.0f32;
            for i in 0..d {
                state[s(i)] *= decay[at + i];
                seen = k[at + i].mul_add(state[s(i)], seen);
            }
            let w = self.beta[t * heads + h] * (v[at + c] - seen);
            for i in 0..d {
                state[s(i)] = k[at + i].mul_add(w, state[s(i)]);
                out[at + c] = q[at + i].mul_add(state[s(i)], out[at + c]);
            }
        }
        out
    }
}

#[test]
fn matches_the_definition_and_any_cut_gives_the_same_bits() {
    for (d, heads, tokens) in [(128, 2, 3), (16, 3, 5), (20, 2, 4), (7, 1, 4), (100, 1, 3)] {
        let problem = Problem::new(d, heads, tokens);
        let start = noise(9, heads * d * d);
        let mut want_state = start.clone();
        let want = problem.plainly(&mut want_state, tokens);
        for kernels in all() {
            for cut in 0..=tokens {
                let (mut state, mut out, mut changes) = (start.clone(), vec![0.0; want.len()], vec![0.0; want.len()]);
                problem.run(kernels, &mut state, [&mut out, &mut changes], 0..cut);
                problem.run(kernels, &mut state, [&mut out, &mut changes], cut..tokens);
                assert!(same(&out, &want) && same(&state, &want_state), "d {d}, cut {cut}, {:?}", kernels.path());
            }
        }
    }
}

proptest! {
    /// An older state and what has changed it since, replayed at once or in two parts, are the state of steps straight on.
    #[test]
    fn changes_lead_from_an_older_state_to_the_same_bits(
        d in 1usize..70,
        heads in 1usize..4,
        tokens in 1usize..20,
        cuts in (0usize..20, 0usize..20, 0usize..20),
    ) {
        let mut cuts = [cuts.0 % (tokens + 1), cuts.1 % (tokens + 1), cuts.2 % (tokens + 1)];
        cuts.sort_unstable();
        let [old, between, now] = cuts;
        let problem = Problem::new(d, heads, tokens);
        let start = noise(9, heads * d * d);
        let mut straight = start.clone();
        problem.plainly(&mut straight, now);
        for kernels in all() {
            let (mut state, mut out, mut changes) = (start.clone(), vec![0.0; tokens * heads * d], vec![0.0; tokens * heads * d]);
            problem.run(kernels, &mut state, [&mut out, &mut changes], 0..old);
            let mut replayed = state.clone();
            problem.run(kernels, &mut state, [&mut out, &mut changes], old..now);
            problem.replay(kernels, &mut replayed, &changes, old..between);
            problem.replay(kernels, &mut replayed, &changes, between..now);
            prop_assert!(same(&state, &straight) && same(&replayed, &straight), "{:?}", kernels.path());
        }
    }
}
