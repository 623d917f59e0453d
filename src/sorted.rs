//! Sorted maps and sets that compile to little code.
//!
//! Each type of entry that a `BTreeMap` holds adds 4 KB to a WebAssembly module, and a session has fifty. These maps add a
//! quarter of it. Entries are in chunks of at most [`CHUNK`], so that an insertion moves few of them, however many there are.

use std::{
    borrow::Borrow,
    cmp::Ordering,
    fmt, mem,
    ops::{Bound, RangeBounds},
    slice,
};

/// The most entries of a chunk.
const CHUNK: usize = 32;

/// A map in the order of its keys. Its methods are those of `BTreeMap`.
#[derive(Clone)]
pub(crate) struct SortedMap<K, V> {
    /// No chunk is empty.
    chunks: Vec<Vec<(K, V)>>,
    len: usize,
}

/// The number of a chunk, and the number of an entry in it.
type Place = (usize, usize);

impl<K, V> SortedMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.chunks.iter().flatten())
    }

    pub(crate) fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.chunks.iter().flatten().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.chunks.iter().flatten().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut V> {
        self.chunks.iter_mut().flatten().map(|(_, value)| value)
    }

    pub(crate) fn first_key_value(&self) -> Option<(&K, &V)> {
        self.chunks.first()?.first().map(|(key, value)| (key, value))
    }

    pub(crate) fn pop_first(&mut self) -> Option<(K, V)> {
        (!self.is_empty()).then(|| self.remove_at((0, 0)))
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn retain(&mut self, mut keeps: impl FnMut(&K, &mut V) -> bool) {
        for chunk in &mut self.chunks {
            chunk.retain_mut(|(key, value)| keeps(key, value));
        }
        self.chunks.retain(|chunk| !chunk.is_empty());
        self.len = self.chunks.iter().map(Vec::len).sum();
        // Small chunks become one, so that there are never more than an eighth of the entries.
        let mut at = 0;
        while at < self.chunks.len() {
            if !self.join_next(at) {
                at += 1;
            }
        }
    }

    fn at_mut(&mut self, (chunk, entry): Place) -> &mut V {
        &mut self.chunks[chunk][entry].1
    }

    /// Inserts an entry before this place. Returns where it is.
    fn insert_at(&mut self, (chunk, entry): Place, item: (K, V)) -> Place {
        self.len += 1;
        let Some(entries) = self.chunks.get_mut(chunk) else {
            // The last key of all. A full chunk stays full: most keys are counted up.
            match self.chunks.last_mut().filter(|last| last.len() < CHUNK) {
                Some(last) => last.push(item),
                None => self.chunks.push(vec![item]),
            }
            let chunk = self.chunks.len() - 1;
            return (chunk, self.chunks[chunk].len() - 1);
        };
        entries.insert(entry, item);
        if entries.len() <= CHUNK {
            return (chunk, entry);
        }
        let rest = entries.split_off(CHUNK / 2);
        self.chunks.insert(chunk + 1, rest);
        if entry < CHUNK / 2 { (chunk, entry) } else { (chunk + 1, entry - CHUNK / 2) }
    }

    fn remove_at(&mut self, (chunk, entry): Place) -> (K, V) {
        self.len -= 1;
        let removed = self.chunks[chunk].remove(entry);
        if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
        } else if !self.join_next(chunk) && chunk > 0 {
            self.join_next(chunk - 1);
        }
        removed
    }

    /// Joins this chunk with the next one, if both are small.
    fn join_next(&mut self, chunk: usize) -> bool {
        let joins =
            self.chunks.get(chunk..chunk + 2).is_some_and(|two| two[0].len() + two[1].len() <= CHUNK / 2);
        if joins {
            let mut next = self.chunks.remove(chunk + 1);
            self.chunks[chunk].append(&mut next);
        }
        joins
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Returns where the key is, or where it would be.
    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<Place, Place>
    where
        K: Borrow<Q>,
    {
        let order = |(other, _): &(K, V)| other.borrow().cmp(key);
        let chunk = self.chunks.partition_point(|chunk| chunk.last().map(order) == Some(Ordering::Less));
        match self.chunks.get(chunk).map(|entries| entries.binary_search_by(order)) {
            Some(Ok(entry)) => Ok((chunk, entry)),
            Some(Err(entry)) => Err((chunk, entry)),
            None => Err((chunk, 0)),
        }
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        let (chunk, entry) = self.find(key).ok()?;
        Some(&self.chunks[chunk][entry].1)
    }

    pub(crate) fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        let (chunk, entry) = self.find(key).ok()?;
        self.chunks[chunk].get(entry).map(|(key, value)| (key, value))
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let place = self.find(key).ok()?;
        Some(self.at_mut(place))
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.find(&key) {
            Ok(place) => Some(mem::replace(self.at_mut(place), value)),
            Err(place) => {
                self.insert_at(place, (key, value));
                None
            }
        }
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    pub(crate) fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let place = self.find(key).ok()?;
        Some(self.remove_at(place))
    }

    /// Returns the place of the key. The map does not change before a method of the entry is called.
    pub(crate) fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        Entry { place: self.find(&key), key, map: self }
    }

    /// Returns the entries of these keys; none if the range ends before it begins.
    pub(crate) fn range<Q: Ord + ?Sized>(
        &self,
        keys: impl RangeBounds<Q>,
    ) -> impl DoubleEndedIterator<Item = (&K, &V)>
    where
        K: Borrow<Q>,
    {
        let place = |key, after: bool| match self.find(key) {
            Ok((chunk, entry)) => (chunk, entry + usize::from(after)),
            Err(place) => place,
        };
        let start = match keys.start_bound() {
            Bound::Included(key) => place(key, false),
            Bound::Excluded(key) => place(key, true),
            Bound::Unbounded => (0, 0),
        };
        let end = match keys.end_bound() {
            Bound::Included(key) => place(key, true),
            Bound::Excluded(key) => place(key, false),
            Bound::Unbounded => (self.chunks.len(), 0),
        };
        let chunks = self.chunks.get(start.0..).unwrap_or_default();
        let chunks = chunks.iter().take((end.0 + 1).saturating_sub(start.0)).enumerate();
        let entries = chunks.flat_map(move |(after, entries)| {
            let from = if after == 0 { start.1 } else { 0 };
            let to = if start.0 + after == end.0 { end.1 } else { entries.len() };
            entries.get(from..to).unwrap_or_default()
        });
        entries.map(|(key, value)| (key, value))
    }
}

/// The place of a key in a map.
pub(crate) struct Entry<'a, K, V> {
    map: &'a mut SortedMap<K, V>,
    key: K,
    place: Result<Place, Place>,
}

impl<'a, K, V> Entry<'a, K, V> {
    pub(crate) fn or_insert_with(self, value: impl FnOnce() -> V) -> &'a mut V {
        let place = match self.place {
            Ok(place) => place,
            Err(place) => self.map.insert_at(place, (self.key, value())),
        };
        self.map.at_mut(place)
    }

    pub(crate) fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }
}

/// The entries of a map.
pub(crate) struct Iter<'a, K, V>(std::iter::Flatten<slice::Iter<'a, Vec<(K, V)>>>);

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(|(key, value)| (key, value))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(|(key, value)| (key, value))
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::iter::Flatten<std::vec::IntoIter<Vec<(K, V)>>>;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.into_iter().flatten()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SortedMap<K, V> {
    fn extend<T: IntoIterator<Item = (K, V)>>(&mut self, entries: T) {
        for (key, value) in entries {
            self.insert(key, value);
        }
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<T: IntoIterator<Item = (K, V)>>(entries: T) -> Self {
        let mut map = Self::new();
        map.extend(entries);
        map
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = std::iter::Map<
        std::iter::Flatten<slice::IterMut<'a, Vec<(K, V)>>>,
        fn(&'a mut (K, V)) -> (&'a K, &'a mut V),
    >;

    fn into_iter(self) -> Self::IntoIter {
        self.chunks.iter_mut().flatten().map(|(key, value)| (key, value))
    }
}

/// A set in its order. Its methods are those of `BTreeSet`.
#[derive(Clone)]
pub(crate) struct SortedSet<K>(SortedMap<K, ()>);

impl<K> SortedSet<K> {
    pub(crate) const fn new() -> Self {
        Self(SortedMap::new())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.keys()
    }

    pub(crate) fn first(&self) -> Option<&K> {
        self.0.first_key_value().map(|(key, ())| key)
    }

    pub(crate) fn pop_first(&mut self) -> Option<K> {
        self.0.pop_first().map(|(key, ())| key)
    }
}

impl<K: Ord> SortedSet<K> {
    pub(crate) fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.contains_key(key)
    }

    pub(crate) fn insert(&mut self, key: K) -> bool {
        self.0.insert(key, ()).is_none()
    }

    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.0.remove(key).is_some()
    }
}

impl<'a, K> IntoIterator for &'a SortedSet<K> {
    type Item = &'a K;
    type IntoIter = std::iter::Map<Iter<'a, K, ()>, fn((&'a K, &'a ())) -> &'a K>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter().map(|(key, ())| key)
    }
}

impl<K> IntoIterator for SortedSet<K> {
    type Item = K;
    type IntoIter = std::iter::Map<<SortedMap<K, ()> as IntoIterator>::IntoIter, fn((K, ())) -> K>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().map(|(key, ())| key)
    }
}

impl<K: Ord> Extend<K> for SortedSet<K> {
    fn extend<T: IntoIterator<Item = K>>(&mut self, keys: T) {
        self.0.extend(keys.into_iter().map(|key| (key, ())));
    }
}

impl<K: Ord> FromIterator<K> for SortedSet<K> {
    fn from_iter<T: IntoIterator<Item = K>>(keys: T) -> Self {
        Self(keys.into_iter().map(|key| (key, ())).collect())
    }
}

impl<K> Default for SortedSet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug> fmt::Debug for SortedSet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    fn check(map: &SortedMap<u16, u32>, model: &BTreeMap<u16, u32>) {
        assert!(map.iter().eq(model) && map.iter().rev().eq(model.iter().rev()));
        assert_eq!(map.len(), model.len());
        assert!(map.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        // No two neighbors are small together, so chunks are few.
        assert!(map.chunks.windows(2).all(|two| two[0].len() + two[1].len() > CHUNK / 2));
        assert_eq!(map.first_key_value(), model.first_key_value());
    }

    proptest! {
        #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sorted_map_does_what_a_b_tree_does(
            steps in proptest::collection::vec((0..10_u8, 0..400_u16, any::<u32>()), 0..1_200),
        ) {
            let (mut map, mut model) = (SortedMap::new(), BTreeMap::new());
            for (step, key, value) in steps {
                match step {
                    0..=3 => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    4 => prop_assert_eq!(map.entry(key).or_insert_with(|| value), model.entry(key).or_insert(value)),
                    5 | 6 => prop_assert_eq!(map.remove_entry(&key), model.remove_entry(&key)),
                    7 => prop_assert_eq!(map.pop_first(), model.pop_first()),
                    8 => {
                        let (end, shorter) = (key + value as u16 % 300, key.saturating_sub(1));
                        prop_assert!(map.range(key..).eq(model.range(key..)));
                        prop_assert!(map.range(key..end).rev().eq(model.range(key..end).rev()));
                        prop_assert!(map.range(key..=end).eq(model.range(key..=end)));
                        prop_assert!(map.range(..key).eq(model.range(..key)));
                        prop_assert_eq!(map.range(key..shorter).count(), 0);
                    }
                    _ if key < 20 => {
                        map.retain(|key, value| (u32::from(*key) ^ *value) % 7 > 2);
                        model.retain(|key, value| (u32::from(*key) ^ *value) % 7 > 2);
                    }
                    _ => {
                        prop_assert_eq!(map.get(&key), model.get(&key));
                        prop_assert_eq!(map.get_mut(&key), model.get_mut(&key));
                    }
                }
            }
            check(&map, &model);
            prop_assert!(map.into_iter().eq(model));
        }
    }

    #[test]
    fn keys_that_are_counted_up_fill_their_chunks() {
        let set: SortedSet<u32> = (0..3_200).collect();
        assert_eq!(set.0.chunks.len(), 3_200 / CHUNK);
        let down: SortedSet<u32> = (0..3_200).rev().collect();
        assert!(down.0.chunks.len() <= 2 * 3_200 / CHUNK);
        assert!(set.into_iter().eq(down));
    }
}
