//! Scans bytes from outside in a single pass. It detects everything that can be wrong with a MessagePack
//! value before anything is built from it.
//!
//! It uses no recursion and, with one exception, no allocation. Open containers are in a fixed array, and so are the
//! keys of open maps, which are compared as they are read. For a map of more than 32 keys, the pass stores their
//! positions in a `Vec` (8 bytes per key, and at most 8 MB under the default limits) and sorts them once, so that no
//! input takes quadratic time.

use std::ops::Range;

use super::{
    DecodeError,
    keys::{Keys, Open, duplicate},
    run::run,
    text::check_text,
    token::Token,
};

/// Limits for a value from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of the whole value. Default: 16 MiB; at most 4 GiB − 1.
    pub bytes: usize,
    /// Nesting depth, counting the outermost container. Default and maximum: [`Limits::MAX_DEPTH`].
    pub depth: usize,
    /// Values of all kinds, including keys. Default: 1,000,000.
    pub values: usize,
}

impl Limits {
    /// The deepest nesting that can be allowed. Deeper data is an attack or a mistake, and later readers may recurse
    /// to this depth.
    pub const MAX_DEPTH: usize = 64;

    /// The default limit in bytes: the largest frame that the protocol carries.
    pub const BYTES: usize = 16 * 1024 * 1024;

    /// The default limit in values: one byte on the wire can take forty in memory as part of a tree.
    pub const VALUES: usize = 1_000_000;
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: Self::BYTES, depth: Self::MAX_DEPTH, values: Self::VALUES }
    }
}

/// The position of a value in its buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Span {
    pub(crate) fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }

    pub(crate) fn len(self) -> u32 {
        self.end - self.start
    }

    pub(crate) fn of(self, bytes: &[u8]) -> &[u8] {
        bytes.get(self.range()).unwrap_or_default()
    }
}

/// Checks that the bytes are exactly one value within the limits.
///
/// Calls `child` for each direct child of the outermost container, including keys, once it is complete.
pub(crate) fn scan(bytes: &[u8], limits: &Limits, child: impl FnMut(Span)) -> Result<(), DecodeError> {
    pass::<true>(bytes, limits, child)
}

/// Checks that a value whose parts are known to be valid is within the limits: it does not check again that texts are
/// UTF-8 and keys are unique.
pub(crate) fn measure(bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    pass::<false>(bytes, limits, |_| {})
}

fn pass<const ALL: bool>(
    bytes: &[u8],
    limits: &Limits,
    mut child: impl FnMut(Span),
) -> Result<(), DecodeError> {
    let limit = limits.bytes.min(u32::MAX as usize);
    if bytes.len() > limit {
        return Err(DecodeError::TooLarge { size: bytes.len(), limit });
    }
    let max_depth = limits.depth.min(Limits::MAX_DEPTH);
    let mut keys = Keys::new();
    // The slot below the outermost container stays empty.
    let mut stack = [Open::default(); Limits::MAX_DEPTH + 1];
    let mut depth = 0;
    let mut values = 1_usize;
    let mut at = 0_usize;

    loop {
        let mut done = Span::default();
        let mut closing = false;
        if depth > 1 {
            let open = &mut stack[depth];
            at = run::<ALL>(bytes, at, open, &mut keys)?;
            closing = open.left == 0;
        }
        if !closing {
            let (next, container) = value::<ALL>(bytes, at)?;
            done = Span { start: at as u32, end: next as u32 };
            at = next;
            if let Some((count, is_map)) = container {
                let around = &stack[depth];
                if ALL && around.is_map && around.left.is_multiple_of(2) {
                    let (offset, found) = (done.start as usize, if is_map { "a map" } else { "an array" });
                    return Err(DecodeError::Key { offset, found, expected: "a value without others" });
                }
                let (left, children) = (bytes.len() - at, u64::from(count) << u32::from(is_map));
                if children > left as u64 {
                    let needed = usize::try_from(children).unwrap_or(usize::MAX);
                    return Err(DecodeError::Truncated { offset: done.start as usize, needed, left });
                }
                values += children as usize;
                if values > limits.values {
                    let (offset, limit) = (done.start as usize, limits.values);
                    return Err(DecodeError::TooManyValues { offset, count: values, limit });
                }
                if depth == max_depth {
                    let offset = done.start as usize;
                    return Err(DecodeError::TooDeep { offset, depth: depth + 1, limit: max_depth });
                }
                if children > 0 {
                    depth += 1;
                    let open = &mut stack[depth];
                    (open.start, open.left, open.is_map) = (done.start, children as u32, is_map);
                    if ALL && is_map {
                        keys.open(open, count);
                    }
                    continue;
                }
            }
        }

        // A value is complete; the containers around it may be complete too.
        loop {
            if closing {
                let open = &stack[depth];
                if ALL && open.is_map {
                    keys.close(open, bytes)?;
                }
                done = Span { start: open.start, end: at as u32 };
                depth -= 1;
            }
            if depth == 0 {
                return match bytes.len() - at {
                    0 => Ok(()),
                    left => Err(DecodeError::Trailing { offset: at, left }),
                };
            }
            let open = &mut stack[depth];
            let left = open.left;
            if ALL
                && open.is_map
                && left.is_multiple_of(2)
                && let Some(first) = keys.add(open, left, done, bytes)
            {
                return Err(duplicate(first, done));
            }
            open.left = left - 1;
            if depth == 1 {
                child(done);
            }
            closing = open.left == 0;
            if !closing {
                break;
            }
        }
    }
}

/// Returns the position after a scalar, or after the head of a container, with the number of its values or pairs and
/// whether it is a map.
#[inline]
fn value<const ALL: bool>(bytes: &[u8], at: usize) -> Result<(usize, Option<(u32, bool)>), DecodeError> {
    let Some(&head) = bytes.get(at) else {
        return Err(DecodeError::Truncated { offset: at, needed: 1, left: 0 });
    };
    if head & 0xe0 == 0x80 {
        return Ok((at + 1, Some((u32::from(head & 0x0f), head & 0x10 == 0))));
    }
    let (token, next) = Token::read(bytes, at)?;
    Ok(match token {
        Token::Str(text) => {
            if ALL {
                check_text(text, next - text.len())?;
            }
            (next, None)
        }
        Token::Array(count) => (next, Some((count, false))),
        Token::Map(count) => (next, Some((count, true))),
        _ => (next, None),
    })
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    fn check(bytes: &[u8]) -> Result<(), DecodeError> {
        scan(bytes, &Limits::default(), |_| {})
    }

    #[test]
    fn depth_counts_containers_only() {
        let nested = |levels: usize| [vec![0x91; levels], vec![0x01]].concat();
        assert_eq!(check(&nested(64)), Ok(()));
        assert_eq!(check(&nested(65)), Err(DecodeError::TooDeep { offset: 64, depth: 65, limit: 64 }));
        assert_eq!(check(&[vec![0x91; 63], vec![0x90]].concat()), Ok(()));
        let limits = Limits { depth: 2, ..Limits::default() };
        assert!(scan(&nested(2), &limits, |_| {}).is_ok() && scan(&nested(3), &limits, |_| {}).is_err());
    }

    #[test]
    fn value_count_includes_keys_and_comes_from_heads() {
        let limits = Limits { values: 5, ..Limits::default() };
        assert_eq!(scan(&[0x82, 1, 2, 3, 4], &limits, |_| {}), Ok(()));
        let error = scan(&[0x82, 1, 2, 3, 0x91, 4], &limits, |_| {});
        assert_eq!(error, Err(DecodeError::TooManyValues { offset: 4, count: 6, limit: 5 }));
        let million = [vec![0xdd, 0x00, 0x0f, 0x42, 0x3f], vec![0xc0; 999_999]].concat();
        assert_eq!(check(&million), Ok(()));
        let more = [vec![0xdd, 0x00, 0x0f, 0x42, 0x40], vec![0xc0; 1_000_000]].concat();
        assert_eq!(
            check(&more),
            Err(DecodeError::TooManyValues { offset: 0, count: 1_000_001, limit: 1_000_000 })
        );
    }

    #[test]
    fn exactly_the_limit_in_bytes_is_allowed() {
        let text =
            |length: u32| [vec![0xdb], length.to_be_bytes().to_vec(), vec![b'x'; length as usize]].concat();
        assert_eq!(check(&text(Limits::BYTES as u32 - 5)), Ok(()));
        let error = check(&text(Limits::BYTES as u32 - 4));
        assert_eq!(error, Err(DecodeError::TooLarge { size: Limits::BYTES + 1, limit: Limits::BYTES }));
    }

    #[test]
    fn key_equality_ignores_the_encoding() {
        let twice: [&[u8]; 7] = [
            b"\x82\xa1a\x01\xa1a\x02",
            b"\x82\xa1a\x01\xd9\x01a\x02",
            b"\x82\x05\x01\xcd\x00\x05\x02",
            b"\x82\xff\x01\xd3\xff\xff\xff\xff\xff\xff\xff\xff\x02",
            b"\x82\xc4\x01a\x01\xc5\x00\x01a\x02",
            b"\x82\xca\x3f\xc0\x00\x00\x01\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\x02",
            b"\x82\xd4\x05\x01\x01\xc7\x01\x05\x01\x02",
        ];
        for bytes in twice {
            assert!(matches!(check(bytes), Err(DecodeError::DuplicateKey { first: 1, .. })), "{bytes:x?}");
        }
        let apart: [&[u8]; 5] = [
            b"\x82\xa1a\x01\xa1b\x02",
            b"\x82\x01\x01\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x02",
            b"\x82\xa1a\x01\xc4\x01a\x02",
            b"\x83\xc0\x01\xc2\x02\xc3\x03",
            b"\x92\x81\xa1a\x01\x81\xa1a\x01",
        ];
        for bytes in apart {
            assert_eq!(check(bytes), Ok(()), "{bytes:x?}");
        }
    }

    /// Returns a map with this many keys of different first letters, and one more key at its end.
    fn map_of(count: u32, last: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xdf];
        bytes.extend_from_slice(&(count + 1).to_be_bytes());
        for n in 0..count {
            let key = format!("k{n:05}");
            bytes.push(0xa0 | key.len() as u8);
            bytes.extend_from_slice(key.as_bytes());
            bytes.push(0xc0);
        }
        bytes.extend_from_slice(last);
        bytes.push(0xc0);
        bytes
    }

    #[test]
    fn duplicates_are_found_in_maps_of_any_size() {
        for count in [1, 5, 31, 32, 33, 200, 5000] {
            assert_eq!(check(&map_of(count, b"\xa1x")), Ok(()), "{count}");
            let error = check(&map_of(count, b"\xd9\x06k00000"));
            assert!(matches!(error, Err(DecodeError::DuplicateKey { first: 5, .. })), "{count}: {error:?}");
        }
    }

    #[test]
    fn nested_small_maps_may_exhaust_the_key_slots() {
        // Each level has 30 keys, the last of which holds the next level: more keys than slots.
        let level = |inner: Vec<u8>| {
            let mut bytes = map_of(29, b"\xa4last");
            bytes.pop();
            bytes.extend_from_slice(&inner);
            bytes
        };
        let nested = (0..20).fold(vec![0x01], |inner, _| level(inner));
        assert_eq!(check(&nested), Ok(()));
        let hidden = (0..20).fold(b"\x82\x01\x01\xcc\x01\x02".to_vec(), |inner, _| level(inner));
        assert!(matches!(check(&hidden), Err(DecodeError::DuplicateKey { .. })));
    }

    #[test]
    fn container_is_no_key_at_any_depth() {
        let refused =
            |offset, found| Err(DecodeError::Key { offset, found, expected: "a value without others" });
        assert_eq!(check(b"\x81\x80\xc0"), refused(1, "a map"));
        assert_eq!(check(b"\x82\xa1a\x01\x92\x01\x02\xc0"), refused(4, "an array"));
        assert_eq!(check(b"\x91\x82\xa1a\x81\xa1b\x01\xdc\x00\x00\xc0"), refused(8, "an array"));
        assert_eq!(check(b"\x82\xa1a\x91\x01\xa1b\x80"), Ok(()), "they are values");
    }

    #[test]
    fn invalid_utf_8_is_found_at_every_position() {
        for length in 1..40 {
            for place in 0..length {
                let mut text = vec![b'a'; length];
                text[place] = 0xff;
                let bytes = [vec![0xd9, length as u8], text].concat();
                assert_eq!(check(&bytes), Err(DecodeError::Utf8 { offset: place + 2 }));
            }
        }
        assert_eq!(check(&[&[0xa6], "日本".as_bytes()].concat()), Ok(()));
    }

    #[test]
    fn children_of_the_outermost_container_are_reported() {
        let mut children = Vec::new();
        let bytes = b"\x82\xa1a\x92\x01\x90\xa1b\x80";
        scan(bytes, &Limits::default(), |span| children.push(span.of(bytes).to_vec())).unwrap();
        assert_eq!(
            children,
            [b"\xa1a".to_vec(), b"\x92\x01\x90".to_vec(), b"\xa1b".to_vec(), b"\x80".to_vec()]
        );
    }

    /// Returns what another reader decodes from the same bytes: `None` if they are not exactly one value.
    fn other_reader(mut bytes: &[u8]) -> Option<rmpv::Value> {
        let value = rmpv::decode::read_value_with_max_depth(&mut bytes, 70).ok()?;
        bytes.is_empty().then_some(value)
    }

    fn is_valid(value: &rmpv::Value) -> bool {
        match value {
            rmpv::Value::String(text) => text.is_str(),
            rmpv::Value::Array(items) => items.iter().all(is_valid),
            rmpv::Value::Map(pairs) => {
                let distinct = |n: usize| pairs[..n].iter().all(|(key, _)| *key != pairs[n].0);
                let is_key = |key: &rmpv::Value| !key.is_array() && !key.is_map() && is_valid(key);
                pairs.iter().all(|(key, value)| is_key(key) && is_valid(value))
                    && (0..pairs.len()).all(distinct)
            }
            _ => true,
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn another_reader_agrees(bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), 0x80_u8..0x94, 0xa0_u8..0xa3, Just(b'a'), 0_u8..4], 0..40,
        )) {
            match (check(&bytes), other_reader(&bytes)) {
                (Ok(()), Some(value)) => prop_assert!(is_valid(&value), "{value}"),
                (Ok(()), None) => prop_assert!(false, "only we take {bytes:x?}"),
                // The other reader decodes the unused byte as nil.
                (Err(DecodeError::Reserved { .. }), Some(_)) => {}
                // Equal floats of different widths are rare enough.
                (Err(error), Some(value)) => prop_assert!(!is_valid(&value), "only we refuse: {error}"),
                (Err(_), None) => {}
            }
        }
    }
}
