//! Which tokens is a word made of? Byte pairs are merged, lowest rank first, the leftmost of equals first.
//!
//! Scanning all pairs for the lowest after each merge takes n squared steps: right for words of ten bytes, hours for a "word" of 5 MB.
//! Up to [`SHORT`] bytes the scan runs; longer words keep their pairs in a heap. Both give the same ids.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Longest word, in bytes, that is merged by scanning.
const SHORT: usize = 96;
/// No such pair of parts in the vocabulary.
const NONE: u32 = u32::MAX;

/// The ordinary tokens: id = rank = order of merging.
pub(super) struct Ranks {
    ids: HashMap<Box<[u8]>, u32>,
    /// All tokens' bytes, back to back.
    blob: Vec<u8>,
    /// Token `id` is `blob[starts[id]..starts[id + 1]]`.
    starts: Vec<u32>,
    longest: usize,
}

impl Ranks {
    /// The vocabulary of `tokens`, each at its rank; they are distinct, and all 256 single bytes are among them.
    pub(super) fn new(tokens: Vec<Box<[u8]>>) -> Self {
        let mut blob = Vec::new();
        let mut starts = vec![0];
        for token in &tokens {
            blob.extend_from_slice(token);
            starts.push(blob.len() as u32);
        }
        let longest = tokens.iter().map(|token| token.len()).max().unwrap_or(0);
        let ids = tokens.into_iter().zip(0..).collect();
        Ranks { ids, blob, starts, longest }
    }

    pub(super) fn bytes(&self, id: u32) -> Option<&[u8]> {
        let start = *self.starts.get(id as usize)? as usize;
        let end = *self.starts.get(id as usize + 1)? as usize;
        Some(&self.blob[start..end])
    }

    fn rank(&self, bytes: &[u8]) -> u32 {
        if bytes.len() > self.longest { NONE } else { self.ids.get(bytes).copied().unwrap_or(NONE) }
    }

    /// Appends the ids of the word `piece`.
    pub(super) fn encode(&self, piece: &[u8], ids: &mut Vec<u32>) {
        match self.rank(piece) {
            NONE if piece.len() <= SHORT => self.scan(piece, ids),
            NONE => self.heap(piece, ids),
            id => ids.push(id),
        }
    }

    fn scan(&self, piece: &[u8], ids: &mut Vec<u32>) {
        let n = piece.len();
        // (where a part starts, rank of it joined with the next); the last two entries close the list
        let mut parts: Vec<(usize, u32)> = (0..=n).map(|at| (at, if at + 2 <= n { self.rank(&piece[at..at + 2]) } else { NONE })).collect();
        loop {
            let (at, rank) = parts.iter().map(|part| part.1).enumerate().min_by_key(|&(at, rank)| (rank, at)).unwrap_or((0, NONE));
            if rank == NONE {
                break;
            }
            parts.remove(at + 1);
            let joined = |at: usize| match parts.get(at + 2) {
                Some(end) => self.rank(&piece[parts[at].0..end.0]),
                None => NONE,
            };
            let (here, before) = (joined(at), at.checked_sub(1).map(joined));
            parts[at].1 = here;
            if let Some(rank) = before {
                parts[at - 1].1 = rank;
            }
        }
        ids.extend(parts.windows(2).map(|pair| self.rank(&piece[pair[0].0..pair[1].0])));
    }

    /// Takes 20 bytes for each byte of the word.
    fn heap(&self, piece: &[u8], ids: &mut Vec<u32>) {
        let n = u32::try_from(piece.len()).expect("a text is at most 2 GiB");
        let rank = |start: u32, end: u32| self.rank(&piece[start as usize..end as usize]);
        // ends[i]: where the part that starts at i ends, 0 where none starts; before[i]: where the part before it starts
        let mut ends: Vec<u32> = (1..=n).collect();
        let mut before: Vec<u32> = (0..n).map(|at| at.saturating_sub(1)).collect();
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, start: u32, end: u32| match rank(start, end) {
            NONE => {}
            rank => heap.push(Reverse((rank, start, end))),
        };
        for at in 0..n.saturating_sub(1) {
            offer(&mut heap, at, at + 2);
        }
        while let Some(Reverse((_, start, end))) = heap.pop() {
            // stale unless a part starts here and the next one ends there
            let middle = ends[start as usize];
            if middle == 0 || middle >= end || ends[middle as usize] != end {
                continue;
            }
            ends[start as usize] = end;
            ends[middle as usize] = 0;
            if end < n {
                before[end as usize] = start;
                offer(&mut heap, start, ends[end as usize]);
            }
            if start > 0 {
                offer(&mut heap, before[start as usize], end);
            }
        }
        let mut at = 0;
        while at < n {
            ids.push(rank(at, ends[at as usize]));
            at = ends[at as usize];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A vocabulary with many ties and chains over few letters.
    fn small() -> Ranks {
        let merges = ["aa", "ab", "ba", "aab", "bb", "aaaa", "abab", "bba", "aabaab", "baa"];
        let bytes = (0..=255u8).map(|byte| Box::from([byte]));
        Ranks::new(bytes.chain(merges.iter().map(|token| Box::from(token.as_bytes()))).collect())
    }

    proptest! {
        #[test]
        fn scan_and_heap_agree(text in "[abc]{0,300}") {
            let ranks = small();
            let (mut scanned, mut heaped) = (Vec::new(), Vec::new());
            ranks.scan(text.as_bytes(), &mut scanned);
            ranks.heap(text.as_bytes(), &mut heaped);
            prop_assert_eq!(&scanned, &heaped);
            let back: Vec<u8> = heaped.iter().flat_map(|&id| ranks.bytes(id).expect("a token").to_vec()).collect();
            prop_assert_eq!(back, text.as_bytes());
        }
    }

    #[test]
    fn the_lowest_rank_merges_first_and_the_leftmost_of_equals() {
        let ranks = small();
        let mut ids = Vec::new();
        ranks.scan(b"aaa", &mut ids);
        assert_eq!(ids, [256, 97], "the left pair of two equal ones");
        ids.clear();
        ranks.scan(b"bab", &mut ids);
        assert_eq!(ids, [98, 257], "`ab` has a lower rank than `ba`");
    }
}
