//! The book of one allocation that is lent in pieces, one behind the other.
//!
//! Pieces are read and given back in about the same order, so the free part is what lies between the newest and the oldest: no search,
//! no fragments. A piece that is given back early waits until those before it are back too.

use std::collections::VecDeque;
use std::ops::Range;

/// Which segment of a ring; numbers are never used twice.
pub type Segment = u64;

/// A ring's book. It holds no memory.
pub struct Ring {
    capacity: usize,
    /// Oldest first: its bytes, and whether they are lent.
    live: VecDeque<(Range<usize>, bool)>,
    /// The number of the oldest.
    oldest: Segment,
    used_bytes: usize,
    used_bytes_max: usize,
}

impl Ring {
    /// An empty ring over `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        Ring { capacity, live: VecDeque::new(), oldest: 0, used_bytes: 0, used_bytes_max: 0 }
    }

    /// Whether a piece of `len` bytes fits into the empty ring.
    pub fn could_hold(&self, len: usize) -> bool {
        len <= self.capacity
    }

    /// Most bytes that were lent at the same time.
    pub fn used_bytes_max(&self) -> usize {
        self.used_bytes_max
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty() && self.used_bytes == 0
    }

    /// Lends `len` bytes behind those lent last, at the ring's beginning where they do not fit at its end.
    pub fn carve(&mut self, len: usize) -> Option<(Segment, Range<usize>)> {
        assert!(len > 0, "a segment of nothing has no place");
        let (first, last) = match (self.live.front(), self.live.back()) {
            (Some(front), Some(back)) => (front.0.start, back.0.end),
            _ => (self.capacity, 0),
        };
        // Where the newest lies behind the oldest, free is what is behind the newest, and what is before the oldest.
        let turned = self.live.back().is_some_and(|back| back.0.start < first);
        let start = match (turned, self.live.is_empty()) {
            (_, true) if len <= self.capacity => 0,
            (true, false) if len <= first - last => last,
            (false, false) if len <= self.capacity - last => last,
            (false, false) if len <= first => 0,
            _ => return None,
        };
        self.live.push_back((start..start + len, true));
        self.used_bytes += len;
        self.used_bytes_max = self.used_bytes_max.max(self.used_bytes);
        Some((self.oldest + self.live.len() as u64 - 1, start..start + len))
    }

    /// Takes a segment back.
    pub fn give_back(&mut self, segment: Segment) {
        let held = &mut self.live[(segment - self.oldest) as usize];
        assert!(std::mem::take(&mut held.1), "a segment is given back once");
        self.used_bytes -= held.0.len();
        while self.live.pop_front_if(|held| !held.1).is_some() {
            self.oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_piece_given_back_early_waits_for_those_before_it() {
        let mut ring = Ring::new(100);
        let [a, b, c] = [40, 40, 20].map(|len| ring.carve(len).expect("fits").0);
        ring.give_back(b);
        assert_eq!(ring.carve(20), None);
        ring.give_back(a);
        let (d, range) = ring.carve(60).expect("a and b are free");
        assert_eq!(range, 0..60);
        ring.give_back(c);
        assert_eq!(ring.carve(40).expect("c and what is left of b are free").1, 60..100);
        ring.give_back(d);
        assert_eq!(ring.used_bytes_max(), 100);
    }

    proptest! {
        #[test]
        fn lent_ranges_never_meet(steps in prop::collection::vec((1usize..60, any::<prop::sample::Index>(), any::<bool>()), 1..200)) {
            let mut ring = Ring::new(100);
            let mut lent: Vec<(Segment, Range<usize>)> = Vec::new();
            for (len, which, give) in steps {
                if give && !lent.is_empty() {
                    ring.give_back(lent.remove(which.index(lent.len())).0);
                } else if let Some((segment, range)) = ring.carve(len) {
                    prop_assert!(range.end <= 100 && range.len() == len);
                    prop_assert!(lent.iter().all(|(_, l)| l.end <= range.start || range.end <= l.start));
                    lent.push((segment, range));
                }
                if lent.is_empty() {
                    let whole = ring.carve(100).expect("an empty ring lends all of itself");
                    ring.give_back(whole.0);
                }
            }
        }
    }
}
