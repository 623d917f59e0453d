//! Reads and writes strings of JSON texts, for readers and writers that build no tree.

use std::borrow::Cow;

use memchr::memchr2;

/// Returns the position after the string that starts here.
pub(crate) fn string_end(text: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(found) = memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        at += found + 1;
        if text[at - 1] == b'"' {
            return at;
        }
        at += 1; // the escaped character
    }
    text.len().max(start + 1) + 1
}

/// Returns the text of a string with its quotes. One with half of a surrogate pair has none.
pub(crate) fn decoded(quoted: &str) -> Option<Cow<'_, str>> {
    let inside = quoted.get(1..quoted.len().checked_sub(1)?)?;
    if inside.contains('\\') {
        match serde_json::from_str(quoted) {
            Ok(serde_json::Value::String(text)) => Some(text.into()),
            _ => None,
        }
    } else {
        Some(inside.into())
    }
}

/// Returns whether a text has a byte that JSON escapes: a control character, a quote or a backslash.
pub(crate) fn has_escape(text: &[u8]) -> bool {
    text.iter().fold(false, |has, byte| has | (*byte < b' ') | is_quote(*byte))
}

/// Returns whether a text has a quote or a backslash.
pub(crate) fn has_quote(text: &[u8]) -> bool {
    text.iter().fold(false, |has, byte| has | is_quote(*byte))
}

fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\')
}

/// The bytes that are handled at once.
const BLOCK: usize = 32;

/// A text of fewer than [`BLOCK`] bytes, and the bytes after it.
///
/// Most texts are short, and each has another length. The same work for a whole block is faster than a loop over the
/// text, because a processor cannot foresee where that ends.
#[derive(Clone, Copy)]
pub(crate) struct ShortText<'a> {
    block: &'a [u8; BLOCK],
    length: usize,
}

impl<'a> ShortText<'a> {
    /// Returns the text of this length at the start of these bytes, unless too few bytes follow it.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], length: usize) -> Option<Self> {
        Some(Self { block: bytes.first_chunk()?, length }).filter(|_| length < BLOCK)
    }

    /// Appends the text in quotes and returns true, unless JSON escapes one of its bytes.
    #[inline]
    pub(crate) fn append_quoted(self, out: &mut Vec<u8>) -> bool {
        if self.has(|word| below_space(word) | equal(word, b'"') | equal(word, b'\\')) {
            return false;
        }
        let end = out.len() + 1 + self.length;
        out.push(b'"');
        out.extend_from_slice(self.block);
        out.truncate(end);
        out.push(b'"');
        true
    }

    /// Returns whether the text has no quote and no backslash, and these bytes start with it.
    #[inline]
    pub(crate) fn is_plain_and_starts(self, bytes: &[u8]) -> bool {
        let Some(other) = ShortText::new(bytes, self.length) else { return false };
        let difference = self.any(|n| self.word(n) ^ other.word(n));
        difference == 0 && !self.has(|word| equal(word, b'"') | equal(word, b'\\'))
    }

    /// Returns whether a test sets the highest bit of a byte of the text.
    #[inline]
    fn has(self, test: impl Fn(u64) -> u64) -> bool {
        self.any(|n| test(self.word(n))) & HIGH != 0
    }

    /// Returns the bits that are found in any word of the text, without those of the bytes after it. Most keys are one word.
    #[inline]
    fn any(self, find: impl Fn(usize) -> u64) -> u64 {
        let masks = MASKS[self.length % BLOCK];
        let found = |n: usize| find(n) & masks[n];
        if self.length <= 8 { found(0) } else { found(0) | found(1) | found(2) | found(3) }
    }

    #[inline]
    fn word(self, n: usize) -> u64 {
        self.block.as_chunks().0.get(n).map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// For each length, the bytes of a block that are the text's.
static MASKS: [[u64; 4]; BLOCK] = masks();

const fn masks() -> [[u64; 4]; BLOCK] {
    let mut masks = [[0; 4]; BLOCK];
    let mut length = 0;
    while length < masks.len() {
        let mut at = 0;
        while at < length {
            masks[length][at / 8] |= 0xff << (at % 8 * 8);
            at += 1;
        }
        length += 1;
    }
    masks
}

/// The least bit of each byte of a word.
const LOW: u64 = u64::from_le_bytes([1; 8]);

/// The highest bit of each byte of a word.
const HIGH: u64 = u64::from_le_bytes([0x80; 8]);

/// Sets the highest bit of each byte that is this one, and perhaps of bytes after it.
#[inline]
fn equal(word: u64, byte: u8) -> u64 {
    let difference = word ^ (LOW * u64::from(byte));
    difference.wrapping_sub(LOW) & !difference
}

/// Sets the highest bit of each byte that is a control character, and perhaps of bytes after it.
#[inline]
fn below_space(word: u64) -> u64 {
    word.wrapping_sub(LOW * u64::from(b' ')) & !word
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_escaped_byte_is_found_at_each_place_of_a_short_text() {
        for (length, fill, after) in (0..32).flat_map(|length| {
            [(b'a', b'"'), (b' ', b'a'), (b'[', 0), (0x7f, 0xff), (0x80, b'\\'), (0xff, 0x1f)]
                .map(|(fill, after)| (length, fill, after))
        }) {
            let mut block = [after; 40];
            block[..length].fill(fill);
            for (at, byte) in (0..length).flat_map(|at| (0..=255).map(move |byte| (at, byte))) {
                block[at] = byte;
                let text = &block[..length];
                let short = ShortText::new(&block, length).unwrap();
                let mut out = b"before".to_vec();
                assert_eq!(short.append_quoted(&mut out), !has_escape(text), "{text:?}");
                let quoted = [b"before\"", text, b"\""].concat();
                assert_eq!(out, if has_escape(text) { b"before".to_vec() } else { quoted });
                let mut other = block;
                other[length..].fill(b'x');
                assert_eq!(short.is_plain_and_starts(&other), !has_quote(text), "{text:?}");
                other[at] ^= 1;
                assert!(!short.is_plain_and_starts(&other), "{text:?}");
                block[at] = fill;
            }
        }
        assert!(ShortText::new(&[b'a'; 31], 5).is_none() && ShortText::new(&[b'a'; 40], 32).is_none());
    }
}
