//! Finds duplicate keys of maps that are being scanned. Duplicate keys are found without allocation in maps
//! of usual size, and in bounded memory and time in all others.
//!
//! Data is mostly lists of records with equal keys. As long as a map's keys are, one by one, those of the map that
//! used the same slots before it, they are distinct because those were, and need no other check.

use super::{
    DecodeError,
    scan::Span,
    text::MASKS,
    token::{Key, is_short_text},
};

/// A container with values still to come.
#[derive(Clone, Copy, Default)]
pub(super) struct Open {
    pub(super) start: u32,
    /// Values still to come; before a map's key it is even.
    pub(super) left: u32,
    /// The index after its last key in `Keys::small`; from `LARGE` on, the index of its first key in `Keys::large`.
    end: u32,
    /// The earlier map whose keys it has repeated so far, or `NO_MAP`.
    like: u32,
    /// Once it differs from every earlier map, a filter of its keys: one bit for each value of a small hash.
    seen: u32,
    /// How many keys it has, if it is a small map.
    count: u8,
    pub(super) is_map: bool,
}

impl Open {
    /// Returns a name that no other container has.
    fn name(&self) -> u32 {
        self.start + 1
    }
}

/// The keys of the open maps, and in the slots above them the keys of closed ones.
pub(super) struct Keys {
    small: [Place; KEY_ROOM],
    top: u32,
    large: Vec<Span>,
}

/// A key of a small map. All keys with the same map name are distinct.
#[derive(Clone, Copy)]
struct Place {
    /// Its head and first bytes, or 0 if it is not a short string.
    word: u64,
    start: u32,
    /// Its map's name.
    map: u32,
}

impl Keys {
    pub(super) fn new() -> Self {
        Self { small: [Place { word: 0, start: 0, map: NO_MAP }; KEY_ROOM], top: 0, large: Vec::new() }
    }

    #[inline]
    pub(super) fn open(&mut self, map: &mut Open, count: u32) {
        map.seen = 0;
        if count > SMALL_MAP || self.top + count > KEY_ROOM as u32 {
            (map.end, map.like) = (LARGE + self.large.len() as u32, NO_MAP);
            self.large.reserve(count as usize);
        } else {
            map.count = count as u8;
            map.like = self.small.get(self.top as usize).map_or(NO_MAP, |place| place.map);
            self.top += count;
            map.end = self.top;
        }
    }

    /// Returns whether a short string equals the key that the similar map had in this slot. It is then recorded, and
    /// is known to be UTF-8 and to differ from the other keys.
    #[inline(always)]
    pub(super) fn repeats(&mut self, map: &Open, left: u32, word: u64, key: Span, bytes: &[u8]) -> bool {
        // For a large map, this slot does not exist.
        let Some(place) = self.small.get_mut(map.end.wrapping_sub(left / 2) as usize) else { return false };
        if place.word != word || place.map != map.like || !same_rest(place.start, key, bytes) {
            return false;
        }
        (place.start, place.map) = (key.start, map.name());
        true
    }

    /// Records a key, and returns the position of the same key if the map already has it. Large maps are checked when
    /// they close.
    pub(super) fn add(&mut self, map: &mut Open, left: u32, key: Span, bytes: &[u8]) -> Option<u32> {
        let word = word_of(bytes, key);
        if word != 0 && self.repeats(map, left, word, key, bytes) {
            return None;
        }
        self.insert(map, left, word, key, bytes)
    }

    /// As `add`, for a key that is not a duplicate. `word` is the result of `word_of`.
    pub(super) fn insert(
        &mut self,
        map: &mut Open,
        left: u32,
        word: u64,
        key: Span,
        bytes: &[u8],
    ) -> Option<u32> {
        if map.end >= LARGE {
            self.large.push(key);
            return None;
        }
        let at = (map.end - left / 2) as usize;
        let earlier = &self.small[(map.end - u32::from(map.count)) as usize..at];
        if map.like != NO_MAP {
            map.like = NO_MAP;
            map.seen = earlier.iter().fold(0, |seen, place| seen | filter_bit(place.word));
        }
        let bit = filter_bit(word);
        let first = if map.seen & bit == 0 { None } else { find(earlier, map.seen | bit, word, key, bytes) };
        map.seen |= bit;
        self.small[at] = Place { word, start: key.start, map: map.name() };
        first
    }

    #[inline]
    pub(super) fn close(&mut self, map: &Open, bytes: &[u8]) -> Result<(), DecodeError> {
        if map.end >= LARGE {
            return self.close_large((map.end - LARGE) as usize, bytes);
        }
        self.top = map.end - u32::from(map.count);
        Ok(())
    }

    #[inline(never)]
    fn close_large(&mut self, base: usize, bytes: &[u8]) -> Result<(), DecodeError> {
        let keys = &mut self.large[base..];
        keys.sort_unstable_by(|a, b| Key::compare(bytes, a.start, b.start).then(a.start.cmp(&b.start)));
        let twice = keys.windows(2).find(|pair| Key::compare(bytes, pair[0].start, pair[1].start).is_eq());
        if let Some(pair) = twice {
            return Err(duplicate(pair[0].start, pair[1]));
        }
        self.large.truncate(base);
        Ok(())
    }
}

/// Maps with up to this many keys are compared in place.
const SMALL_MAP: u32 = 32;

/// Slots for the keys of all small maps that are open at once; a map that finds them all used is treated as large.
const KEY_ROOM: usize = 96;

/// The limit that identifies large maps: their keys, fewer than this, have no slot in `Keys::small`.
const LARGE: u32 = 1 << 31;

/// The name of no map.
const NO_MAP: u32 = 0;

/// Finds the same key among earlier ones. Short strings have one encoding each and are compared by their bytes; other
/// keys are compared by their value.
#[inline(never)]
fn find(earlier: &[Place], seen: u32, word: u64, key: Span, bytes: &[u8]) -> Option<u32> {
    let same = if seen != ANY_KEY {
        earlier.iter().find(|first| first.word == word && same_rest(first.start, key, bytes))
    } else {
        earlier.iter().find(|first| Key::compare(bytes, first.start, key.start).is_eq())
    };
    same.map(|first| first.start)
}

/// Returns whether a key whose first eight bytes equal those of an earlier key is the same to its end.
#[inline(always)]
fn same_rest(earlier: u32, key: Span, bytes: &[u8]) -> bool {
    let length = key.len();
    length <= 8 || Span { start: earlier, end: earlier + length }.of(bytes) == key.of(bytes)
}

/// The bits of a key that is not a short string: it must be compared with all others.
const ANY_KEY: u32 = u32::MAX;

/// Returns one bit that equal short strings share and different ones mostly do not.
#[inline]
fn filter_bit(word: u64) -> u32 {
    match word {
        0 => ANY_KEY,
        // The multiplier of Fibonacci hashing: it spreads all bits into the topmost five.
        _ => 1 << (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59),
    }
}

/// Returns a short string's head and first bytes, with the head lowest; 0 for any other value.
fn word_of(bytes: &[u8], key: Span) -> u64 {
    let text = key.of(bytes);
    if !text.first().is_some_and(|head| is_short_text(*head)) {
        return 0;
    }
    match bytes[key.start as usize..].first_chunk::<8>() {
        Some(chunk) => u64::from_le_bytes(*chunk) & MASKS[text.len().min(8)],
        None => text.iter().take(8).rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[cold]
pub(super) fn duplicate(first: u32, second: Span) -> DecodeError {
    DecodeError::DuplicateKey { offset: second.start as usize, first: first as usize }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};

    use crate::value::{DecodeError, Limits, scan::scan, write::Write};

    fn check(bytes: &[u8]) -> Result<(), DecodeError> {
        scan(bytes, &Limits::default(), |_| {})
    }

    /// Returns a list of maps with the given keys; `/` nests the following keys in a map.
    fn records(records: &[&[&str]]) -> Vec<u8> {
        let mut out = Vec::new();
        out.array(records.len());
        for keys in records {
            out.map(keys.len());
            for key in *keys {
                let (key, inner) = key.split_once('/').unwrap_or((key, ""));
                out.str(key);
                out.map(inner.len());
                for name in inner.chars() {
                    out.str(&name.to_string());
                    out.nil();
                }
            }
        }
        // Bytes after the last record, so that none is treated as the end of the input.
        [vec![0x92], out, vec![0xc4, 40], vec![0; 40]].concat()
    }

    #[test]
    fn equal_records_do_not_hide_a_duplicate_key() {
        let fine: [&[&[&str]]; 6] = [
            &[&["a", "b", "c"], &["a", "b", "c"], &["a", "c", "b"], &["c", "a", "b"]],
            &[&["a", "b"], &["a", "b", "c", "d"], &["a"], &["a", "b", "c", "d"]],
            &[&["a/xy", "b"], &["a/xy", "b"], &["a/yx", "x", "y"], &["a/xy", "b"]],
            &[&["a", "b/xy"], &["a", "b", "x", "y"], &["a", "b/xy"], &["a", "b/ab"]],
            &[&["description_of_a", "description_of_b"], &["description_of_a", "description_of_b"]],
            &[&["description_of_a"], &["description_of_b"], &["descript"], &["descripx"]],
        ];
        for list in fine {
            assert_eq!(check(&records(list)), Ok(()), "{list:?}");
        }
        let twice: [&[&[&str]]; 7] = [
            &[&["a", "b", "c"], &["a", "b", "a"]],
            &[&["a", "b", "c"], &["a", "b", "c"], &["a", "b", "b"]],
            // The third slot still holds the key of the first record.
            &[&["a", "b", "x"], &["x", "y"], &["x", "y", "x"]],
            &[&["a", "b/xy"], &["x", "y"], &["a", "b/xx"]],
            &[&["a", "b/xy"], &["a", "b", "a", "x"]],
            &[&["a/yx", "b"], &["y", "z/b", "y"]],
            &[&["description_of_a", "description_of_b"], &["description_of_a", "description_of_a"]],
        ];
        for list in twice {
            let error = check(&records(list));
            assert!(matches!(error, Err(DecodeError::DuplicateKey { .. })), "{list:?}: {error:?}");
        }
    }

    #[test]
    fn error_in_a_repeated_record_names_its_own_keys() {
        let bytes = b"\x92\x82\xa1a\xc0\xa1b\xc0\x83\xa1a\xc0\xa1b\xc0\xa1a\xc0";
        assert_eq!(check(bytes), Err(DecodeError::DuplicateKey { offset: 15, first: 9 }));
    }

    #[derive(Clone, Debug)]
    enum Tree {
        Leaf,
        List(Vec<Tree>),
        Map(Vec<(&'static str, Tree)>),
    }

    impl Tree {
        fn write(&self, out: &mut Vec<u8>) {
            match self {
                Self::Leaf => out.nil(),
                Self::List(items) => {
                    out.array(items.len());
                    items.iter().for_each(|item| item.write(out));
                }
                Self::Map(entries) => {
                    out.map(entries.len());
                    for (key, value) in entries {
                        match key.strip_prefix('#') {
                            Some(number) => out.unsigned(number.parse().unwrap()),
                            None => out.str(key),
                        }
                        value.write(out);
                    }
                }
            }
        }

        fn is_valid(&self) -> bool {
            match self {
                Self::Leaf => true,
                Self::List(items) => items.iter().all(Self::is_valid),
                Self::Map(entries) => {
                    let distinct = |n: usize| entries[..n].iter().all(|(key, _)| *key != entries[n].0);
                    (0..entries.len()).all(distinct) && entries.iter().all(|(_, value)| value.is_valid())
                }
            }
        }
    }

    fn tree() -> impl Strategy<Value = Tree> {
        let key =
            prop::sample::select(&["a", "b", "c", "d", "e", "", "#1", "日本", "longer_a", "longer_b"][..]);
        Just(Tree::Leaf).prop_recursive(4, 60, 6, move |inner| {
            let map = prop::collection::vec((key.clone(), inner.clone()), 0..5);
            let copies = (map.clone(), 1..4_usize, map.clone());
            prop_oneof![
                2 => map.prop_map(Tree::Map),
                1 => prop::collection::vec(inner, 0..5).prop_map(Tree::List),
                3 => copies.prop_map(|(map, count, other)| {
                    let mut items = vec![Tree::Map(map); count];
                    items.insert(count / 2, Tree::Map(other));
                    Tree::List(items)
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn map_is_refused_exactly_if_it_has_a_duplicate_key(tree in tree()) {
            let mut bytes = Vec::new();
            tree.write(&mut bytes);
            let outcome = check(&bytes);
            prop_assert_eq!(outcome.is_ok(), tree.is_valid(), "{:?}", outcome);
        }
    }
}
