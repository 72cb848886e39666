//! Where does one word end and the next begin? Merges never cross these borders.
//!
//! The pattern that the vocabulary was trained with ends in `\s+(?!\S)`: white space before a word gives up its last character to
//! the word. A look-ahead needs a backtracking engine, and those give up on (or take minutes for) megabytes of spaces. So the pattern here
//! goes without, in linear time, and [`Splitter::each`] gives the character back itself.

use regex::Regex;

/// The alternatives in order of preference; `&&` is class intersection.
const PATTERN: [&str; 7] = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+",
];

/// The compiled pattern.
pub(super) struct Splitter {
    pattern: Regex,
}

impl Splitter {
    pub(super) fn new() -> Self {
        Splitter { pattern: Regex::new(&PATTERN.join("|")).expect("a fixed pattern") }
    }

    /// Calls `take` with each word of `text`, in order; together they are the text.
    pub(super) fn each<'t>(&self, text: &'t str, mut take: impl FnMut(&'t str)) {
        let mut at = 0;
        while let Some(found) = self.pattern.find_at(text, at) {
            let end = found.end() - given_up(found.as_str(), found.end() == text.len());
            take(&text[found.start()..end]);
            at = end;
        }
    }
}

/// Bytes of the last character of `piece` that go to the next word.
///
/// Only the last alternative ends in white space that is no line end: every other has a mark or a letter, or ends in one of `\r\n`.
fn given_up(piece: &str, at_end: bool) -> usize {
    match piece.chars().next_back() {
        Some(last) if last.is_whitespace() && !matches!(last, '\r' | '\n') && !at_end && last.len_utf8() < piece.len() => last.len_utf8(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        Splitter::new().each(text, |word| out.push(word));
        out
    }

    #[test]
    fn white_space_gives_its_last_character_to_the_next_word() {
        assert_eq!(words("a   b"), ["a", "  ", " b"]);
        assert_eq!(words("a \t1"), ["a", " ", "\t", "1"]);
        assert_eq!(words("a\u{a0}\u{2003}b"), ["a", "\u{a0}", "\u{2003}b"]);
        assert_eq!(words("a   "), ["a", "   "]);
        assert_eq!(words(" \n \n  x"), [" \n \n", " ", " x"]);
        assert_eq!(words("   !"), ["  ", " !"]);
        assert_eq!(words("日本語kana 12345"), ["日本語", "kana", " ", "123", "45"]);
        assert!(words("").is_empty());
    }

    #[test]
    fn the_words_are_the_text() {
        let text = "É\u{301}  \u{1f469}\u{200d}\u{1f469} can't\r\n\r\n\u{0}\u{feff}  \u{2028}x \u{85}";
        assert_eq!(words(text).concat(), text);
    }
}
