//! What sweeps read and compute, given who stays in memory: closed formulas over counts of rows.
//!
//! A sweep of R rows reads all of the trunk that is not kept, and of a layer's n experts, k a row, those that some row chooses:
//! n (1 - (1 - k/n)^R) of them if rows choose evenly. Real rows choose less evenly, so that it is an upper bound.

use super::ModelFacts;

/// A model's weights, some of them kept.
#[derive(Debug, Clone)]
pub(super) struct Weights {
    /// Read in each sweep, the embedding's rows left out.
    pub streamed: u64,
    /// Trunk that is read once.
    pub kept: u64,
    /// A row's embedding, where it is read row by row.
    pub embedding_row: u64,
    /// Layers whose rows choose alike.
    groups: Vec<Group>,
}

#[derive(Debug, Clone)]
struct Group {
    count: u64,
    chosen: u64,
    /// Bytes of the experts that are not kept, and of those that are.
    bytes: [f64; 2],
}

impl Weights {
    /// Those of which the first so many panels and blocks are kept.
    pub fn new(m: &ModelFacts, kept_panels: u64, kept_blocks: u64) -> Self {
        let (kept, rest) = m.panels.split_at(kept_panels as usize);
        let gathered = (m.embedding.start.max(kept.len())..m.embedding.end).map(|i| m.panels[i]).sum::<u64>();
        let mut groups: Vec<Group> = Vec::new();
        let mut left = kept_blocks;
        for &(count, chosen, block) in &m.blocks {
            let here = left.min(count);
            left -= here;
            let at = groups.iter().position(|g| (g.count, g.chosen) == (count, chosen)).unwrap_or_else(|| {
                groups.push(Group { count, chosen, bytes: [0.0; 2] });
                groups.len() - 1
            });
            for (bytes, n) in groups[at].bytes.iter_mut().zip([count - here, here]) {
                *bytes += (n * block) as f64;
            }
        }
        Weights {
            streamed: rest.iter().sum::<u64>() - gathered,
            kept: kept.iter().sum::<u64>() + m.whole_bytes,
            embedding_row: if gathered == 0 { 0 } else { m.embedding_row_bytes },
            groups,
        }
    }

    /// Expected bytes of the distinct blocks that `rows` rows choose: of those not kept, of those kept.
    pub fn union(&self, rows: f64) -> [f64; 2] {
        let mut union = [0.0; 2];
        for group in &self.groups {
            let share = 1.0 - (1.0 - group.chosen as f64 / group.count as f64).powf(rows);
            for (sum, bytes) in union.iter_mut().zip(group.bytes) {
                *sum += share * bytes;
            }
        }
        union
    }

    /// Bytes of trunk that a sweep of so many rows reads.
    pub fn trunk(&self, rows: u64) -> u64 {
        self.streamed.saturating_add(self.embedding_row.saturating_mul(rows))
    }

    /// Bytes that are read once in a job of so many rows: of trunk, of experts.
    pub fn once(&self, rows: u64) -> (u64, f64) {
        (self.kept, self.union(rows as f64)[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_union_grows_from_what_a_row_chooses_to_everything() {
        let m = ModelFacts { blocks: vec![(10, 2, 100), (10, 2, 50), (4, 1, 7)], ..ModelFacts::default() };
        let near = |a: [f64; 2], b: [f64; 2]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-9);
        let none = Weights::new(&m, 0, 0);
        assert!(near(none.union(1.0), [307.0, 0.0]));
        assert!(near(none.union(2.0), [(1.0 - 0.64) * 1500.0 + (1.0 - 0.5625) * 28.0, 0.0]));
        assert!(near(none.union(1e9), [1528.0, 0.0]));
        assert!(near(Weights::new(&m, 0, 13).union(1e9), [350.0 + 28.0, 1000.0 + 150.0]));
    }

    #[test]
    fn an_embedding_is_read_by_rows_until_it_is_kept() {
        let m = ModelFacts { panels: vec![5, 7, 11, 13], embedding: 2..4, embedding_row_bytes: 2, whole_bytes: 1, ..ModelFacts::default() };
        for (kept, trunk, once) in [(0, 12 + 20, 1), (1, 7 + 20, 6), (2, 20, 13), (3, 20, 24), (4, 0, 37)] {
            let weights = Weights::new(&m, kept, 0);
            assert_eq!((weights.trunk(10), weights.once(10).0), (trunk, once), "{kept} panels kept");
        }
    }
}
