//! Reads one MessagePack head at a time, for the readers that follow the scan.

use std::{cmp::Ordering, collections::BTreeMap};

use super::DecodeError;

/// A scalar, or the head of a container whose values follow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Token<'a> {
    Nil,
    Bool(bool),
    /// Any integer that is not negative.
    Unsigned(u64),
    /// A negative integer.
    Negative(i64),
    F32(f32),
    F64(f64),
    /// May not be checked for UTF-8, unless the scan has seen it.
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext(i8, &'a [u8]),
    /// The number of values that follow.
    Array(u32),
    /// The number of pairs that follow.
    Map(u32),
}

impl<'a> Token<'a> {
    /// Reads the token at this position, and returns the position after it.
    pub(crate) fn read(bytes: &'a [u8], at: usize) -> Result<(Self, usize), DecodeError> {
        #[cfg(test)]
        work::add(1);
        let mut input = Input { bytes, start: at, at };
        let [head] = input.take()?;
        let token = match head {
            0x00..=0x7f => Self::Unsigned(head.into()),
            0x80..=0x8f => Self::Map((head & 0x0f).into()),
            0x90..=0x9f => Self::Array((head & 0x0f).into()),
            0xa0..=0xbf => Self::Str(input.slice(usize::from(head & 0x1f))?),
            0xc0 => Self::Nil,
            0xc1 => return Err(DecodeError::Reserved { offset: at }),
            0xc2 => Self::Bool(false),
            0xc3 => Self::Bool(true),
            0xc4..=0xc6 => {
                let length = input.length(head - 0xc4)?;
                Self::Bin(input.slice(length)?)
            }
            0xc7..=0xc9 => {
                let length = input.length(head - 0xc7)?;
                let [kind] = input.take()?;
                Self::Ext(kind as i8, input.slice(length)?)
            }
            0xca => Self::F32(f32::from_be_bytes(input.take()?)),
            0xcb => Self::F64(f64::from_be_bytes(input.take()?)),
            0xcc => Self::Unsigned(u8::from_be_bytes(input.take()?).into()),
            0xcd => Self::Unsigned(u16::from_be_bytes(input.take()?).into()),
            0xce => Self::Unsigned(u32::from_be_bytes(input.take()?).into()),
            0xcf => Self::Unsigned(u64::from_be_bytes(input.take()?)),
            0xd0 => Self::signed(i8::from_be_bytes(input.take()?).into()),
            0xd1 => Self::signed(i16::from_be_bytes(input.take()?).into()),
            0xd2 => Self::signed(i32::from_be_bytes(input.take()?).into()),
            0xd3 => Self::signed(i64::from_be_bytes(input.take()?)),
            0xd4..=0xd8 => {
                let [kind] = input.take()?;
                Self::Ext(kind as i8, input.slice(1 << (head - 0xd4))?)
            }
            0xd9..=0xdb => {
                let length = input.length(head - 0xd9)?;
                Self::Str(input.slice(length)?)
            }
            0xdc => Self::Array(u16::from_be_bytes(input.take()?).into()),
            0xdd => Self::Array(u32::from_be_bytes(input.take()?)),
            0xde => Self::Map(u16::from_be_bytes(input.take()?).into()),
            0xdf => Self::Map(u32::from_be_bytes(input.take()?)),
            0xe0..=0xff => Self::Negative((head as i8).into()),
        };
        Ok((token, input.at))
    }

    fn signed(value: i64) -> Self {
        u64::try_from(value).map_or(Self::Negative(value), Self::Unsigned)
    }

    /// Returns whether the token counts as absent: nil, and the `undefined` of JavaScript's msgpackr.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Nil | Self::Ext(0, [_]))
    }

    /// Returns an integer, or a whole float, because JavaScript and Go write integers in both forms.
    pub(crate) fn as_integer(&self) -> Option<i128> {
        match *self {
            Self::Unsigned(value) => Some(value.into()),
            Self::Negative(value) => Some(value.into()),
            Self::F32(value) => whole(value.into()),
            Self::F64(value) => whole(value),
            _ => None,
        }
    }

    /// Returns the text if it is a string.
    pub(crate) fn as_text(&self) -> Option<&'a str> {
        match self {
            Self::Str(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns the kind of the token, for an error message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Nil => "nil",
            Self::Bool(_) => "a bool",
            Self::Unsigned(_) | Self::Negative(_) => "an integer",
            Self::F32(_) | Self::F64(_) => "a float",
            Self::Str(_) => "a string",
            Self::Bin(_) => "binary data",
            Self::Ext(..) => "an extension value",
            Self::Array(_) => "an array",
            Self::Map(_) => "a map",
        }
    }
}

fn whole(value: f64) -> Option<i128> {
    // 2^64: beyond it no integer field can hold the value anyway, and NaN fails the comparison.
    (value.trunc() == value && value.abs() <= 18_446_744_073_709_551_616.0).then_some(value as i128)
}

/// Returns whether a value with this first byte is a string of up to 31 bytes.
#[inline]
pub(crate) fn is_short_text(head: u8) -> bool {
    head & 0xe0 == 0xa0
}

/// Returns a string of up to 31 bytes that starts here, and the position after it.
#[inline]
pub(crate) fn short_text(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    let head = *bytes.get(at)?;
    let end = at + width(head);
    if is_short_text(head) { Some((bytes.get(at + 1..end)?, end)) } else { None }
}

/// Returns the string that starts here, and the position after it.
#[inline]
pub(crate) fn text_at(bytes: &[u8], at: usize) -> Option<(&[u8], usize)> {
    short_text(bytes, at).or_else(|| match Token::read(bytes, at).ok()? {
        (Token::Str(text), next) => Some((text, next)),
        _ => None,
    })
}

/// Returns the length of a value if its first byte determines it: scalars of fixed width and short strings. Otherwise
/// 0.
///
/// The next value cannot be read before this is known, so the most frequent cases avoid a table lookup.
#[inline]
pub(crate) fn width(head: u8) -> usize {
    if is_short_text(head) {
        1 + usize::from(head & 0x1f)
    } else if matches!(head, 0x00..=0x7f | 0xe0..=0xff) {
        1
    } else {
        WIDTH[usize::from(head)].into()
    }
}

static WIDTH: [u8; 256] = widths();

const fn widths() -> [u8; 256] {
    let mut widths = [0; 256];
    let mut head = 0;
    while head < 256 {
        widths[head] = match head {
            0x00..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => 1,
            0xa0..=0xbf => 1 + (head & 0x1f) as u8,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 | 0xd4 => 3,
            0xd5 => 4,
            0xca | 0xce | 0xd2 => 5,
            0xd6 => 6,
            0xcb | 0xcf | 0xd3 => 9,
            0xd7 => 10,
            0xd8 => 18,
            _ => 0,
        };
        head += 1;
    }
    widths
}

/// Returns the position after the value that starts here.
pub(crate) fn skip(bytes: &[u8], mut at: usize) -> Result<usize, DecodeError> {
    let mut left = 1_u64;
    while left > 0 {
        left -= 1;
        #[cfg(test)]
        work::add(1);
        let head = bytes.get(at).copied().unwrap_or_default();
        let width = width(head);
        if width != 0 && at + width <= bytes.len() {
            at += width;
            continue;
        }
        let (token, next) = Token::read(bytes, at)?;
        at = next;
        match token {
            Token::Array(count) => left += u64::from(count),
            Token::Map(count) => left += 2 * u64::from(count),
            _ => {}
        }
    }
    Ok(at)
}

/// Returns whether two values are equal, whatever the order of their keys and the width of their encodings. Two numbers
/// are equal also if one of them is a whole float.
pub(crate) fn alike(a: &[u8], b: &[u8]) -> bool {
    let whole = |bytes| Token::read(bytes, 0).ok().and_then(|(token, _)| token.as_integer());
    a == b || whole(a).is_some_and(|number| whole(b) == Some(number)) || Tree::of(a) == Tree::of(b)
}

/// A value with the keys of its maps in one order. It is built in one pass, and compared in another.
#[derive(PartialEq)]
enum Tree<'a> {
    Scalar(Key<'a>),
    List(Vec<Self>),
    Map(BTreeMap<Key<'a>, Self>),
}

impl<'a> Tree<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        Self::read(bytes, &mut 0)
    }

    /// Reads the value that starts at `at`, which then is the position after it.
    fn read(bytes: &'a [u8], at: &mut usize) -> Option<Self> {
        let (token, next) = Token::read(bytes, *at).ok()?;
        *at = next;
        match token {
            Token::Array(count) => {
                (0..count).map(|_| Self::read(bytes, at)).collect::<Option<_>>().map(Self::List)
            }
            Token::Map(count) => {
                let pair = |_| {
                    let (key, next) = Token::read(bytes, *at).ok()?;
                    *at = next;
                    Some((Key::of(key)?, Self::read(bytes, at)?))
                };
                (0..count).map(pair).collect::<Option<_>>().map(Self::Map)
            }
            scalar => Key::of(scalar).map(Self::Scalar),
        }
    }
}

/// A value that contains no others, such as every map's key. It is compared whatever the width of its encoding.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key<'a> {
    Nil,
    Bool(bool),
    Integer(i128),
    /// Compared by its bits, so that every NaN equals itself.
    Float(u64),
    Str(&'a [u8]),
    Bin(&'a [u8]),
    Ext(i8, &'a [u8]),
}

impl<'a> Key<'a> {
    /// Compares the keys that start here.
    pub(super) fn compare(bytes: &'a [u8], a: u32, b: u32) -> Ordering {
        let key = |start| Token::read(bytes, start as usize).ok().and_then(|(token, _)| Self::of(token));
        let (a, b) = (key(a), key(b));
        #[cfg(test)]
        work::add(a.iter().chain(&b).map(Self::len).min().unwrap_or(0));
        a.cmp(&b)
    }

    /// Returns the number of bytes that a comparison may read.
    #[cfg(test)]
    fn len(&self) -> usize {
        match self {
            Self::Str(bytes) | Self::Bin(bytes) | Self::Ext(_, bytes) => bytes.len(),
            _ => 1,
        }
    }

    /// Returns the key that this token is; `None` for a container's.
    fn of(token: Token<'a>) -> Option<Self> {
        Some(match token {
            Token::Nil => Self::Nil,
            Token::Bool(value) => Self::Bool(value),
            Token::Unsigned(value) => Self::Integer(value.into()),
            Token::Negative(value) => Self::Integer(value.into()),
            Token::F32(value) => Self::Float(f64::from(value).to_bits()),
            Token::F64(value) => Self::Float(value.to_bits()),
            Token::Str(text) => Self::Str(text),
            Token::Bin(data) => Self::Bin(data),
            Token::Ext(kind, data) => Self::Ext(kind, data),
            Token::Array(_) | Token::Map(_) => return None,
        })
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    start: usize,
    at: usize,
}

impl<'a> Input<'a> {
    #[inline]
    fn take<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let chunk = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>());
        let Some(chunk) = chunk else { return Err(self.truncated(N)) };
        self.at += N;
        Ok(*chunk)
    }

    #[inline]
    fn length(&mut self, width: u8) -> Result<usize, DecodeError> {
        Ok(match width {
            0 => u8::from_be_bytes(self.take()?).into(),
            1 => u16::from_be_bytes(self.take()?).into(),
            _ => u32::from_be_bytes(self.take()?) as usize,
        })
    }

    #[inline]
    fn slice(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let slice = self.bytes.get(self.at..).and_then(|rest| rest.get(..length));
        let Some(slice) = slice else { return Err(self.truncated(length)) };
        self.at += length;
        Ok(slice)
    }

    #[cold]
    fn truncated(&self, needed: usize) -> DecodeError {
        DecodeError::Truncated { offset: self.start, needed, left: self.bytes.len().saturating_sub(self.at) }
    }
}

/// Counts the work of the thread's readers: tokens that are read or skipped, and bytes of keys that are compared.
#[cfg(test)]
pub(crate) mod work {
    use std::cell::Cell;

    thread_local! {
        static DONE: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn add(steps: usize) {
        DONE.set(DONE.get() + steps);
    }

    /// Returns the work that this takes.
    pub(crate) fn of(read: impl FnOnce()) -> usize {
        let before = DONE.get();
        read();
        DONE.get() - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Value, write::Write};

    /// Returns the bytes of a map with these keys, all of whose values are nil.
    fn map_of(keys: impl ExactSizeIterator<Item = Vec<u8>>) -> Vec<u8> {
        let mut out = Vec::new();
        out.map(keys.len());
        keys.for_each(|key| {
            out.bin(&key);
            out.nil();
        });
        out
    }

    /// Returns maps inside one another, around a list of 200 values. `last` is a second key of each.
    fn nested(last: &[u8]) -> Vec<u8> {
        let list = [&b"\xdc\x00\xc8"[..], &[0xc0; 200]].concat();
        (0..60).fold(list, |inner, _| [b"\x82\xa1a", &inner[..], last, b"\xc0"].concat())
    }

    #[test]
    fn work_of_reading_is_linear_in_the_bytes_whatever_they_are() {
        let long = |length: usize| move |n: u16| [vec![b'x'; length], n.to_be_bytes().to_vec()].concat();
        let lists = |map: Vec<u8>| [&b"\x9a"[..], &map.repeat(10)].concat();
        for bytes in [
            nested(b"\xa1b"),
            nested(b"\x01"),
            map_of((0..32).map(long(1_000))),
            map_of((0..400).map(long(100))),
            map_of((0..400).map(|n| long(if n % 100 == 0 { 4_000 } else { 0 })(n))),
            lists(map_of((0..32).map(long(40)))),
            lists(nested(b"\xcb\0\0\0\0\0\0\0\0")),
        ] {
            let value = Value::from_bytes(bytes.clone()).unwrap();
            let readers: [(&str, &dyn Fn()); 6] = [
                ("scan", &|| drop(Value::from_bytes(bytes.clone()))),
                ("tree", &|| drop(value.to_json())),
                ("text", &|| drop(value.to_json_text())),
                ("type", &|| drop(value.decode::<Value>())),
                ("write", &|| drop(Value::encode(&value))),
                ("equality", &|| assert!(!alike(&bytes, b"\x90"))),
            ];
            for (name, read) in readers {
                let work = work::of(read);
                assert!(work < 32 * bytes.len(), "{name}: {work} for {} B", bytes.len());
            }
        }
    }

    #[test]
    fn equality_ignores_order_and_width() {
        let alike = |a: &[u8], b: &[u8]| alike(a, b) && alike(b, a);
        for (a, b) in [
            (&b"\x82\xa1a\x01\xa1b\x02"[..], &b"\x82\xa1b\x02\xa1a\x01"[..]),
            (b"\x91\x82\x01\x02\xc0\x80", b"\x91\x82\xc0\x80\xd0\x01\xcc\x02"),
            (b"\x91\xca\x3f\xc0\x00\x00", b"\x91\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"),
            (b"\x05", b"\xca\x40\xa0\x00\x00"),
            (b"\x81\xa1a\xd9\x01x", b"\xde\x00\x01\xd9\x01a\xa1x"),
        ] {
            assert!(alike(a, b), "{a:x?} {b:x?}");
        }
        for (a, b) in [
            (&b"\x82\xa1a\x01\xa1b\x02"[..], &b"\x82\xa1b\x01\xa1a\x02"[..]),
            (b"\x82\xa1a\x01\xa1b\x02", b"\x81\xa1a\x01"),
            (b"\x92\x01\x02", b"\x92\x02\x01"),
            (b"\x91\x05", b"\x91\xca\x40\xa0\x00\x00"),
            (b"\xa1a", b"\xc4\x01a"),
            (b"\x80", b"\x90"),
        ] {
            assert!(!alike(a, b), "{a:x?} {b:x?}");
        }
    }
}
