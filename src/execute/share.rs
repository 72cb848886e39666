//! How many threads walk the layers?
//!
//! One where weights stream: each panel and block is read once for all rows, and the arithmetic of a piece is spread over threads. Where all
//! weights stay in memory nothing is read, and a small model's layer is some thirty pieces of work of a tenth of a millisecond,
//! after each of which threads wait for each other (measured: a sixth of the time of two). There a sweep of many rows is cut into
//! shares, and each thread walks all layers with its own; they meet at the end. A row's bits do not depend on its company.

use rayon::prelude::*;

use super::Engine;
use super::feed::{SweepFeed, Used};
use super::fold::{self, Fold, Want};
use super::order::Turns;
use super::span::{Beside, SpanRows};
use crate::error::Result;
use crate::kernels::{Data, Matrix};
use crate::model::Stream;
use crate::plan::Walkers;
use crate::store::Element;

/// Rows whose embeddings one task gathers.
const GATHERED_ROWS: usize = 64;

/// Some spans of a sweep, whose rows are counted from 0.
pub struct Share<'a> {
    spans: Vec<SpanRows<'a>>,
    wants: Vec<Want>,
}

/// Cuts a sweep into shares of about as many rows; a span is never cut.
pub fn cut(spans: Vec<SpanRows<'_>>, wants: Vec<Want>, walkers: Walkers) -> Vec<Share<'_>> {
    let rows = spans.last().map_or(0, |span| span.rows.end);
    let count = walkers.most.min(rows / walkers.rows).max(1);
    let mut shares: Vec<Share<'_>> = Vec::with_capacity(count);
    let mut wants = wants.into_iter().peekable();
    let (mut first, mut last_part) = (0, None);
    for mut span in spans {
        // A span belongs to the part of the rows in which its middle lies.
        let part = (span.rows.start + span.rows.end) / 2 * count / rows;
        if last_part.replace(part) != Some(part) {
            first = span.rows.start;
            shares.push(Share { spans: Vec::new(), wants: Vec::new() });
        }
        let share = shares.last_mut().expect("one was pushed");
        while let Some(want) = wants.next_if(|want| want.row < span.rows.end) {
            share.wants.push(Want { row: want.row - first, ..want });
        }
        span.rows = span.rows.start - first..span.rows.end - first;
        share.spans.push(span);
    }
    shares
}

impl Share<'_> {
    /// All layers and the head: the logits of the rows that are wanted, folded, and who was chosen.
    pub fn walk(self, engine: &Engine<'_>, turns: Turns, beside: Beside) -> Result<(Vec<Fold>, Used)> {
        let model = engine.model;
        let mut stream = self.embed(engine)?;
        let mut feed = SweepFeed::new(engine, self.spans, self.wants.iter().map(|want| want.row).collect(), turns, beside);
        for layer in 0..model.manifest().layers.len() {
            feed.enter(layer);
            model.layer(layer, &mut stream, &mut feed)?;
            feed.leave()?;
        }
        let vocab = model.manifest().vocab;
        let mut folds: Vec<Fold> = self.wants.into_iter().map(|want| Fold::new(want, vocab)).collect();
        if !folds.is_empty() {
            model.head(&stream, &mut feed, &mut |range, logits| fold::fold(engine.kernels, &mut folds, range, logits))?;
        }
        Ok((folds, feed.used))
    }

    /// Each row begins as its token's embedding.
    fn embed(&self, engine: &Engine<'_>) -> Result<Stream> {
        let manifest = engine.model.manifest();
        let (store, weight) = (engine.store, manifest.embedding);
        let (width, hidden) = (manifest.stream_width, manifest.hidden);
        let ids: Vec<u32> = self.spans.iter().flat_map(|span| span.ids.iter().copied()).collect();
        let mut stream = Stream { data: engine.scratch.take(ids.len() * width), width };
        let element = store.element(weight);
        let tasks = stream.data.par_chunks_mut(GATHERED_ROWS * width).zip(ids.par_chunks(GATHERED_ROWS));
        tasks.with_max_len(1).try_for_each(|(rows, ids)| {
            let mut stored = vec![0u8; hidden * element.bytes()];
            for (row, &id) in rows.chunks_exact_mut(width).zip(ids) {
                store.row(weight, id as usize, &mut stored)?;
                let data = match element {
                    Element::F32 => Data::F32(&stored),
                    Element::Bf16 => Data::Bf16(&stored),
                };
                Matrix { rows: 1, cols: hidden, data }.decode(&mut row[..hidden]);
            }
            Ok(())
        })?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::super::fold::WantKind;
    use super::super::span::SpanStates;
    use super::*;
    use crate::plan::Home;

    /// (rows, wanted rows) of each share, for spans of these lengths of which all rows are wanted.
    fn cut_of(lengths: &[usize], walkers: usize) -> Vec<(Vec<std::ops::Range<usize>>, Vec<usize>)> {
        let mut kept = vec![Vec::new(); lengths.len()];
        let mut end = 0;
        let spans = lengths.iter().zip(&mut kept).map(|(&n, kept)| {
            end += n;
            let states = SpanStates { slot: 0, positions: 0..n as u32, from: Home::Nowhere, home: Home::Memory, kept, held: Vec::new() };
            SpanRows { rows: end - n..end, first: 0, ids: vec![0; n], of_answer: false, states }
        });
        let spans: Vec<_> = spans.collect();
        let wants = (0..end).map(|row| Want { row, slot: 0, kind: WantKind::Greedy }).collect();
        let shares = cut(spans, wants, Walkers { most: walkers, rows: 256 });
        shares.iter().map(|s| (s.spans.iter().map(|s| s.rows.clone()).collect(), s.wants.iter().map(|w| w.row).collect())).collect()
    }

    #[test]
    fn shares_hold_all_rows_counted_from_their_own_first() {
        for (lengths, walkers, expected) in [
            (vec![300, 300], 2, vec![300, 300]),
            (vec![300, 300], 1, vec![600]),
            (vec![100, 100], 2, vec![200]),
            (vec![1000, 100, 100], 2, vec![1000, 200]),
            (vec![2000, 1], 4, vec![2000, 1]),
            (vec![100; 20], 3, vec![700, 600, 700]),
            (vec![5000], 2, vec![5000]),
            (vec![], 2, vec![]),
        ] {
            let shares = cut_of(&lengths, walkers);
            assert_eq!(shares.iter().map(|s| s.1.len()).collect::<Vec<_>>(), expected, "{lengths:?} {walkers}");
            for (rows, wants) in &shares {
                assert!(rows.windows(2).all(|w| w[0].end == w[1].start) && rows[0].start == 0);
                assert_eq!(*wants, (0..rows.last().expect("a span").end).collect::<Vec<_>>());
            }
            let all: Vec<usize> = shares.iter().flat_map(|s| s.0.iter().map(std::iter::ExactSizeIterator::len)).collect();
            assert_eq!(all, lengths);
        }
    }
}
