//! How often a request uses which blocks.
//!
//! A million requests are grouped in 2 GB, so a footprint is a sorted list of four-byte entries, cut to those blocks that it uses most: the
//! largest model has 82,432 blocks, of which an answer of twenty tokens touches some thousands, most of them once.

/// Bits of an entry that hold the share.
const SHARE_BITS: u32 = 8;
/// A share of 1.
const WHOLE: f32 = ((1 << SHARE_BITS) - 1) as f32;
/// Blocks that can be told apart.
pub const BLOCKS_MAX: u32 = 1 << (u32::BITS - SHARE_BITS);
/// Blocks of a request that a run reports: 16 kB.
pub const FOOTPRINT_ENTRIES: usize = 4096;

/// Blocks with the share of a request's tokens that use each; what is left out is used by few or none. A block's number counts experts layer by
/// layer, over the layers that have any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Footprint(Box<[u32]>);

impl Footprint {
    /// Of blocks and shares in (0, 1] in any order, each block once; the `most` largest shares stay (of equals, the lower numbers).
    pub fn of(uses: impl IntoIterator<Item = (u32, f32)>, most: usize) -> Self {
        let entry = |(block, share): (u32, f32)| {
            assert!(block < BLOCKS_MAX, "a model of 16 million blocks");
            let parts = (share.clamp(0.0, 1.0) * WHOLE).round() as u32;
            (parts > 0).then_some(block << SHARE_BITS | parts)
        };
        let mut entries: Vec<u32> = uses.into_iter().filter_map(entry).collect();
        if entries.len() > most {
            let key = |entry: &u32| (std::cmp::Reverse(entry & ((1 << SHARE_BITS) - 1)), *entry);
            entries.select_nth_unstable_by_key(most, key);
            entries.truncate(most);
        }
        entries.sort_unstable();
        Footprint(entries.into())
    }

    /// Blocks, ascending, and shares in (0, 1].
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (usize, f32)> + '_ {
        self.0.iter().map(|entry| ((entry >> SHARE_BITS) as usize, (entry & ((1 << SHARE_BITS) - 1)) as f32 / WHOLE))
    }

    /// Blocks and parts of 255, as [`split`] takes them apart; ascending.
    pub(super) fn entries(&self) -> &[u32] {
        &self.0
    }

    /// Blocks in it.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it tells nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The block of an entry and its share in parts of 255.
pub(super) fn split(entry: u32) -> (usize, usize) {
    ((entry >> SHARE_BITS) as usize, (entry & ((1 << SHARE_BITS) - 1)) as usize)
}

/// What a prompt used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PromptUse {
    /// All of its tokens.
    pub all: Footprint,
    /// Its last [`LAST_TOKENS`].
    pub last: Footprint,
    /// The answer's first token, which is known as soon as the prompt is: answers that begin alike use the same experts.
    pub next: Option<u32>,
}

/// How many tokens at a prompt's end are counted by themselves: what is about to be answered shows there.
pub const LAST_TOKENS: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_shares_stay_in_order_of_their_blocks() {
        let footprint = Footprint::of([(9, 0.5), (2, 1.0), (7, 0.001), (4, 0.25), (3, 0.25)], 3);
        let blocks: Vec<(usize, f32)> = footprint.iter().collect();
        assert_eq!(blocks.iter().map(|b| b.0).collect::<Vec<_>>(), [2, 3, 9]);
        assert_eq!(blocks[0].1, 1.0);
        assert!((blocks[1].1 - 0.25).abs() < 0.003 && (blocks[2].1 - 0.5).abs() < 0.003);
        assert!(Footprint::of([(7, 0.001)], 3).is_empty(), "what rounds to nothing is nothing");
    }
}
