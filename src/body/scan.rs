//! The one pass over bytes from outside: everything that can be wrong with a MessagePack value, found
//! before anything is built from it.
//!
//! No recursion and, but for one case, no allocation. Open containers stand in a fixed array, and so do
//! the keys of open maps; a map's keys are compared as they come, which a 64-bit filter makes cheap.
//! A map of more than [`SMALL_MAP`] keys puts their places into a `Vec` instead (8 bytes a key, so at most
//! four times the bytes that are left and never more than 4 MB under the default limits) and sorts
//! them once: no input makes the pass quadratic.

use std::ops::Range;

use super::{
    DecodeError,
    token::{Key, Token},
};

/// What a value from outside may have at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the whole value. Default: 16 MiB, and never more than 4 GiB less one.
    pub bytes: usize,
    /// Containers inside one another, the outermost included. Default and most: [`Limits::MAX_DEPTH`].
    pub depth: usize,
    /// Values of all kinds, keys included. Default: 1,000,000.
    pub values: usize,
}

impl Limits {
    /// The deepest nesting that can be allowed: deeper data is an attack or an accident, and every
    /// reader behind this pass may recurse this deep.
    pub const MAX_DEPTH: usize = 64;

    /// The default limit in bytes: the largest frame that the protocol carries.
    pub const BYTES: usize = 16 * 1024 * 1024;

    /// The default limit in values: one byte on the wire can cost forty in memory once it is a tree.
    pub const VALUES: usize = 1_000_000;
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: Self::BYTES, depth: Self::MAX_DEPTH, values: Self::VALUES }
    }
}

/// Where a value stands in its buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.range()).unwrap_or_default()
    }
}

/// Checks that the bytes are exactly one value within the limits.
///
/// `child` hears of each direct child of the outermost container, keys included, once it is complete.
pub(crate) fn scan(bytes: &[u8], limits: &Limits, mut child: impl FnMut(Span)) -> Result<(), DecodeError> {
    let limit = limits.bytes.min(u32::MAX as usize);
    if bytes.len() > limit {
        return Err(DecodeError::TooLarge { size: bytes.len(), limit });
    }
    let max_depth = limits.depth.min(Limits::MAX_DEPTH);
    let mut keys = Keys { small: [Span::default(); KEY_ROOM], top: 0, large: Vec::new() };
    let mut stack = [Open::default(); Limits::MAX_DEPTH];
    let mut depth = 0;
    let mut open = Open::default();
    let mut values = 1_usize;
    let mut at = 0_usize;

    loop {
        let start = at;
        let Some(&head) = bytes.get(at) else {
            return Err(DecodeError::Truncated { offset: at, needed: 1, left: 0 });
        };
        // The three kinds that nearly all values are of, without the detour of a token.
        let container = match head {
            0xa0..=0xbf => {
                let end = at + 1 + usize::from(head & 0x1f);
                let Some(text) = bytes.get(at + 1..end) else {
                    let needed = usize::from(head & 0x1f);
                    return Err(DecodeError::Truncated { offset: at, needed, left: bytes.len() - at - 1 });
                };
                check_text(text, at + 1)?;
                at = end;
                None
            }
            0x00..=0x7f | 0xe0..=0xff => {
                at += 1;
                None
            }
            _ => {
                let (token, next) = Token::read(bytes, at)?;
                at = next;
                match token {
                    Token::Str(text) => {
                        check_text(text, at - text.len())?;
                        None
                    }
                    Token::Array(count) => Some((count, u64::from(count), false)),
                    Token::Map(count) => Some((count, 2 * u64::from(count), true)),
                    _ => None,
                }
            }
        };

        if let Some((count, children, is_map)) = container {
            let left = bytes.len() - at;
            if children > left as u64 {
                let needed = usize::try_from(children).unwrap_or(usize::MAX);
                return Err(DecodeError::Truncated { offset: start, needed, left });
            }
            values += children as usize;
            if values > limits.values {
                return Err(DecodeError::TooManyValues {
                    offset: start,
                    count: values,
                    limit: limits.values,
                });
            }
            if depth == max_depth {
                return Err(DecodeError::TooDeep { offset: start, depth: depth + 1, limit: max_depth });
            }
            stack[depth] = open;
            depth += 1;
            open = Open { start: start as u32, left: children as u32, is_map, ..Open::default() };
            if is_map {
                keys.open(&mut open, count as usize);
            }
            if children > 0 {
                continue;
            }
        }

        // A value is complete; perhaps the containers around it are, too.
        let mut done = Span { start: start as u32, end: at as u32 };
        let mut closing = container.is_some();
        loop {
            if closing {
                if open.is_map {
                    keys.close(&open, bytes)?;
                }
                done.start = open.start;
                depth -= 1;
                open = stack[depth];
            }
            if depth == 0 {
                return match bytes.len() - at {
                    0 => Ok(()),
                    left => Err(DecodeError::Trailing { offset: at, left }),
                };
            }
            open.left -= 1;
            if open.is_map && open.left % 2 == 1 {
                keys.add(&mut open, done, bytes)?;
            }
            if depth == 1 {
                child(done);
            }
            if open.left > 0 {
                break;
            }
            closing = true;
        }
    }
}

/// Maps up to this many keys are compared in place.
const SMALL_MAP: usize = 32;

/// Room for the keys of all small maps that are open at once; a map that finds it full is a large one.
const KEY_ROOM: usize = 192;

/// A container whose values are still coming.
#[derive(Clone, Copy, Default)]
struct Open {
    start: u32,
    left: u32,
    is_map: bool,
    is_large: bool,
    /// Its first key in `Keys::small` or `Keys::large`.
    base: u32,
    /// A filter of its keys: a bit for each value of a small hash.
    seen: u64,
}

/// The keys of the maps that are open.
struct Keys {
    small: [Span; KEY_ROOM],
    top: usize,
    large: Vec<Span>,
}

impl Keys {
    fn open(&mut self, map: &mut Open, count: usize) {
        map.is_large = count > SMALL_MAP || self.top + count > KEY_ROOM;
        if map.is_large {
            map.base = self.large.len() as u32;
            self.large.reserve_exact(count);
        } else {
            map.base = self.top as u32;
        }
    }

    #[inline]
    fn add(&mut self, map: &mut Open, key: Span, bytes: &[u8]) -> Result<(), DecodeError> {
        if map.is_large {
            self.large.push(key);
            return Ok(());
        }
        // Only short strings have one spelling, so only they can be told apart by their bytes.
        let bit = match bytes[key.start as usize] {
            head @ 0xa0..=0xbf => {
                let last = bytes[key.end as usize - 1];
                let middle = bytes[(key.start + key.end) as usize / 2];
                1_u64 << ((head ^ last.wrapping_mul(5) ^ middle.wrapping_mul(11)) & 63)
            }
            _ => u64::MAX,
        };
        if map.seen & bit != 0 {
            let earlier = &self.small[map.base as usize..self.top];
            if let Some(first) = earlier.iter().find(|first| same_key(first.of(bytes), key.of(bytes))) {
                return Err(duplicate(*first, key));
            }
        }
        map.seen |= bit;
        self.small[self.top] = key;
        self.top += 1;
        Ok(())
    }

    fn close(&mut self, map: &Open, bytes: &[u8]) -> Result<(), DecodeError> {
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
        let twice = keys.windows(2).find(|pair| same_key(pair[0].of(bytes), pair[1].of(bytes)));
        if let Some(pair) = twice {
            return Err(duplicate(pair[0], pair[1]));
        }
        self.large.truncate(base);
        Ok(())
    }
}

fn same_key(a: &[u8], b: &[u8]) -> bool {
    match (a, b) {
        ([0xa0..=0xbf, ..], [0xa0..=0xbf, ..]) => a == b,
        _ => Key::of(a) == Key::of(b),
    }
}

fn duplicate(first: Span, second: Span) -> DecodeError {
    DecodeError::DuplicateKey { offset: second.start as usize, first: first.start as usize }
}

/// Most strings are short and ASCII: a handful of word-wide tests, before the real check.
#[inline]
fn check_text(text: &[u8], offset: usize) -> Result<(), DecodeError> {
    if is_ascii(text) {
        return Ok(());
    }
    match std::str::from_utf8(text) {
        Ok(_) => Ok(()),
        Err(error) => Err(DecodeError::Utf8 { offset: offset + error.valid_up_to() }),
    }
}

#[inline]
fn is_ascii(text: &[u8]) -> bool {
    const HIGH: u64 = 0x8080_8080_8080_8080;
    if let Some(last) = text.last_chunk::<8>() {
        let (words, _) = text.as_chunks::<8>();
        let all = words.iter().fold(u64::from_ne_bytes(*last), |all, word| all | u64::from_ne_bytes(*word));
        return all & HIGH == 0;
    }
    if let (Some(first), Some(last)) = (text.first_chunk::<4>(), text.last_chunk::<4>()) {
        let all = u32::from_ne_bytes(*first) | u32::from_ne_bytes(*last);
        return all & HIGH as u32 == 0;
    }
    text.iter().fold(0, |all, byte| all | byte) < 0x80
}
