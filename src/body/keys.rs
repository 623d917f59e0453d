//! The keys of maps that are being scanned: one key twice is found without allocation in maps of usual
//! size, and in bounded memory and time in any other.

use super::{
    DecodeError,
    scan::Span,
    text::word,
    token::{Key, is_short_text},
};

/// A container whose values are still coming.
#[derive(Clone, Copy, Default)]
pub(super) struct Open {
    pub(super) start: u32,
    pub(super) left: u32,
    pub(super) is_map: bool,
    is_large: bool,
    /// Its first key in `Keys::small` or `Keys::large`.
    base: u32,
    /// A filter of its keys: a bit for each value of a small hash.
    seen: u64,
}

/// The keys of the maps that are open.
pub(super) struct Keys {
    small: [Span; KEY_ROOM],
    top: usize,
    large: Vec<Span>,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { small: [Span::default(); KEY_ROOM], top: 0, large: Vec::new() }
    }

    pub(super) fn open(&mut self, map: &mut Open, count: usize) {
        map.seen = 0;
        map.is_large = count > SMALL_MAP || self.top + count > KEY_ROOM;
        if map.is_large {
            map.base = self.large.len() as u32;
            self.large.reserve(count);
        } else {
            map.base = self.top as u32;
        }
    }

    /// Notes a key, and gives its place if the map has it already. Large maps wait until they close.
    #[inline(always)]
    pub(super) fn add(&mut self, map: &mut Open, key: Span, bit: u64, bytes: &[u8]) -> Option<Span> {
        if map.is_large {
            self.large.push(key);
            return None;
        }
        let mut first = None;
        if map.seen & bit != 0 {
            let only_short = bit != ANY_KEY && map.seen != ANY_KEY;
            first = find(&self.small[map.base as usize..self.top], key, only_short, bytes);
        }
        map.seen |= bit;
        self.small[self.top] = key;
        self.top += 1;
        first
    }

    pub(super) fn close(&mut self, map: &Open, bytes: &[u8]) -> Result<(), DecodeError> {
        let base = map.base as usize;
        if !map.is_large {
            self.top = base;
            return Ok(());
        }
        let keys = &mut self.large[base..];
        keys.sort_unstable_by(|a, b| {
            let by_value = Key::of(a.of(bytes)).cmp(&Key::of(b.of(bytes)));
            by_value.then(a.start.cmp(&b.start))
        });
        let twice = keys.windows(2).find(|pair| Key::of(pair[0].of(bytes)) == Key::of(pair[1].of(bytes)));
        if let Some(pair) = twice {
            return Err(duplicate(pair[0], pair[1]));
        }
        self.large.truncate(base);
        Ok(())
    }
}

/// Maps up to this many keys are compared in place.
const SMALL_MAP: usize = 32;

/// Room for the keys of all small maps that are open at once; a map that finds it full is a large one.
const KEY_ROOM: usize = 128;

/// The same key among earlier ones. Short strings have one spelling each, and can be told apart by their
/// bytes; anything else only by its value.
#[inline(never)]
fn find(earlier: &[Span], key: Span, only_short: bool, bytes: &[u8]) -> Option<Span> {
    let (length, text) = (key.len(), key.of(bytes));
    let mut earlier = earlier.iter().copied();
    if only_short {
        earlier.find(|first| first.len() == length && first.of(bytes) == text)
    } else {
        let value = Key::of(text);
        earlier.find(|first| Key::of(first.of(bytes)) == value)
    }
}

/// The bits of a key that is no short string: it must be compared with all others.
pub(super) const ANY_KEY: u64 = u64::MAX;

/// One bit that equal short strings share and others mostly do not, from their head and first bytes.
#[inline]
pub(super) fn filter_bit(head: u8, first: u64) -> u64 {
    // The multiplier of Fibonacci hashing: it spreads all bits into the topmost six.
    1 << ((first ^ u64::from(head)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58)
}

pub(super) fn bit_of(bytes: &[u8], key: Span) -> u64 {
    let (head, start) = (bytes[key.start as usize], key.start as usize);
    if is_short_text(head) {
        filter_bit(head, word(bytes, start + 1, key.len() as usize - 1))
    } else {
        ANY_KEY
    }
}

#[cold]
pub(super) fn duplicate(first: Span, second: Span) -> DecodeError {
    DecodeError::DuplicateKey { offset: second.start as usize, first: first.start as usize }
}
