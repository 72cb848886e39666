//! Which characters are settled? Three quarters of a character may wait for the next token, and a token may hold bytes
//! that no character has. Decoded piece by piece the text is the same as decoded at once: U+FFFD takes the place of each
//! broken sequence as soon as it is certain, and of an unfinished one only at the very end.

/// A decoder that holds back at most three bytes.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoder {
    held: Vec<u8>,
}

impl Decoder {
    /// Appends to `text` what `bytes` settle.
    pub(super) fn push(&mut self, bytes: &[u8], text: &mut String) {
        self.held.extend_from_slice(bytes);
        let mut settled = 0;
        for chunk in self.held.utf8_chunks() {
            text.push_str(chunk.valid());
            settled += chunk.valid().len();
            if settled + chunk.invalid().len() == self.held.len() && unfinished(chunk.invalid()) {
                break;
            }
            if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
                settled += chunk.invalid().len();
            }
        }
        self.held.drain(..settled);
    }

    /// Appends to `text` the mark of an unfinished character, if one is held.
    pub(super) fn finish(self, text: &mut String) {
        if !self.held.is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
}

/// True where more bytes could still make a character of `invalid`.
fn unfinished(invalid: &[u8]) -> bool {
    std::str::from_utf8(invalid).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let part = prop_oneof![
            any::<char>().prop_map(|c| c.to_string().into_bytes()),
            prop::collection::vec(any::<u8>(), 0..4),
            prop::sample::select(vec![vec![0xE2, 0x82], vec![0xAC], vec![0xF0, 0x9F], vec![0x98, 0x80], vec![0xED, 0xA0]]),
        ];
        prop::collection::vec(part, 0..12)
    }

    proptest! {
        #[test]
        fn piece_by_piece_is_the_same_as_at_once(pieces in pieces()) {
            let mut decoder = Decoder::default();
            let mut text = String::new();
            for piece in &pieces {
                decoder.push(piece, &mut text);
                prop_assert!(decoder.held.len() < 4);
            }
            decoder.finish(&mut text);
            let whole = pieces.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }

    #[test]
    fn a_character_waits_for_its_last_byte() {
        let mut decoder = Decoder::default();
        let mut text = String::new();
        for (byte, expected) in "é€😀".bytes().zip(["", "é", "é", "é", "é€", "é€", "é€", "é€", "é€😀"]) {
            decoder.push(&[byte], &mut text);
            assert_eq!(text, expected);
        }
    }
}
