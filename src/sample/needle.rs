//! Has this pattern just gone by? A stop string comes in pieces that no token border respects, and an answer may hold
//! 100,000 tokens, so nothing is searched twice: one comparison state a pattern (Knuth, Morris and Pratt), fed item by item.

/// A pattern and how much of it the items so far end with.
#[derive(Debug, Clone)]
pub(super) struct Needle<T> {
    pattern: Vec<T>,
    /// Entry i: the longest proper prefix of the pattern that ends its first i + 1 items.
    fallback: Vec<usize>,
    matched: usize,
}

impl<T: PartialEq> Needle<T> {
    /// A pattern that nothing has matched yet; it must not be empty.
    pub(super) fn new(pattern: Vec<T>) -> Self {
        assert!(!pattern.is_empty(), "an empty pattern is everywhere");
        let mut fallback = vec![0; pattern.len()];
        let mut length = 0;
        for i in 1..pattern.len() {
            while length > 0 && pattern[i] != pattern[length] {
                length = fallback[length - 1];
            }
            length += usize::from(pattern[i] == pattern[length]);
            fallback[i] = length;
        }
        Needle { pattern, fallback, matched: 0 }
    }

    /// Items in the pattern.
    pub(super) fn len(&self) -> usize {
        self.pattern.len()
    }

    /// Takes the next item; true where the items so far end with the pattern.
    pub(super) fn push(&mut self, item: &T) -> bool {
        if self.matched == self.pattern.len() {
            self.matched = self.fallback[self.matched - 1];
        }
        while self.matched > 0 && *item != self.pattern[self.matched] {
            self.matched = self.fallback[self.matched - 1];
        }
        self.matched += usize::from(*item == self.pattern[self.matched]);
        self.matched == self.pattern.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_occurrence_is_seen_where_it_ends(pattern in prop::collection::vec(0u8..2, 1..6), items in prop::collection::vec(0u8..2, 0..40)) {
            let mut needle = Needle::new(pattern.clone());
            for (i, item) in items.iter().enumerate() {
                prop_assert_eq!(needle.push(item), items[..=i].ends_with(&pattern), "after {} items", i + 1);
            }
        }
    }
}
