//! Sorted maps and sets whose code is small: [`SortedMap`] and [`SortedSet`].
//!
//! A session has about forty maps and sets. Std compiles its B-trees for each pair of key and value, which was a fifth of
//! the module for browsers. Here, the tree holds positions only and is compiled once; what depends on the type of a key is
//! a comparison, and what depends on that of a value is an access to a list.
//!
//! The methods are those of std's collections, as far as the core uses them. Searches, insertions and removals take
//! O(log n) in the worst case; a list that grows or shrinks is copied now and then, O(1) for each entry. The order of
//! entries depends on their keys alone.

mod tree;

use std::{
    borrow::Borrow,
    fmt, mem,
    ops::{Bound, RangeBounds},
};

use tree::{Place, Tree, Walk};

/// Lists of so few entries keep their memory.
const KEPT: usize = 16;

/// A sorted set.
#[derive(Clone)]
pub(crate) struct SortedSet<K> {
    tree: Tree,
    /// Each key at its position in the tree.
    keys: Vec<K>,
}

/// A sorted map.
#[derive(Clone)]
pub(crate) struct SortedMap<K, V> {
    keys: SortedSet<K>,
    /// Each value at the position of its key.
    values: Vec<V>,
}

/// The entry of a map for one key.
pub(crate) struct Entry<'a, K, V> {
    map: &'a mut SortedMap<K, V>,
    key: K,
    found: Result<usize, Place>,
}

/// The entries of a map or of a part of it, in order.
pub(crate) struct Iter<'a, K, V> {
    walk: Walk<'a>,
    keys: &'a [K],
    values: &'a [V],
}

/// The entries of a map in order, with values that can be changed.
pub(crate) struct IterMut<'a, K, V> {
    walk: Walk<'a>,
    keys: &'a [K],
    /// Each value at its position, until it is passed.
    values: Vec<Option<&'a mut V>>,
}

/// The keys of a set or of a part of it, in order.
pub(crate) struct Keys<'a, K> {
    walk: Walk<'a>,
    keys: &'a [K],
}

/// The keys of a set that is no longer needed, in order.
pub(crate) struct TakenKeys<K>(SortedSet<K>);

/// The entries of a map that is no longer needed, in order.
pub(crate) struct Taken<K, V>(SortedMap<K, V>);

impl<K> SortedSet<K> {
    pub(crate) const fn new() -> Self {
        Self { tree: Tree::new(), keys: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub(crate) fn iter(&self) -> Keys<'_, K> {
        Keys { walk: self.tree.walk(), keys: &self.keys }
    }

    pub(crate) fn first(&self) -> Option<&K> {
        self.keys.get(self.tree.end(0)?)
    }

    pub(crate) fn pop_first(&mut self) -> Option<K> {
        let first = self.tree.end(0)?;
        Some(self.take(first))
    }

    fn take(&mut self, position: usize) -> K {
        self.tree.remove(position);
        swap_remove(&mut self.keys, position)
    }

    /// Adds a key that the set does not have.
    fn put(&mut self, place: Place, key: K) {
        self.tree.insert(place);
        self.keys.push(key);
    }
}

impl<K: Ord> SortedSet<K> {
    /// Adds a key. Returns whether the set did not have it.
    pub(crate) fn insert(&mut self, key: K) -> bool {
        match self.find(&key) {
            Ok(_) => false,
            Err(place) => {
                self.put(place, key);
                true
            }
        }
    }

    pub(crate) fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).is_ok()
    }

    /// Removes a key. Returns whether the set had it.
    pub(crate) fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.find(key).map(|at| self.take(at)).is_ok()
    }

    fn find<Q: Ord + ?Sized>(&self, key: &Q) -> Result<usize, Place>
    where
        K: Borrow<Q>,
    {
        self.tree.find(&mut |at| self.keys[at].borrow().cmp(key))
    }

    fn walk_within(&self, range: &impl RangeBounds<K>) -> Walk<'_> {
        let is_before = &mut |at: usize| match range.start_bound() {
            Bound::Included(start) => self.keys[at] < *start,
            Bound::Excluded(start) => self.keys[at] <= *start,
            Bound::Unbounded => false,
        };
        let is_behind = &mut |at: usize| match range.end_bound() {
            Bound::Included(end) => self.keys[at] > *end,
            Bound::Excluded(end) => self.keys[at] >= *end,
            Bound::Unbounded => false,
        };
        self.tree.walk_within(is_before, is_behind)
    }
}

impl<K, V> SortedMap<K, V> {
    pub(crate) const fn new() -> Self {
        Self { keys: SortedSet::new(), values: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    pub(crate) fn iter(&self) -> Iter<'_, K, V> {
        Iter { walk: self.keys.tree.walk(), keys: &self.keys.keys, values: &self.values }
    }

    pub(crate) fn keys(&self) -> Keys<'_, K> {
        self.keys.iter()
    }

    pub(crate) fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.into_iter().map(|(_, value)| value)
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn pop_first(&mut self) -> Option<(K, V)> {
        let first = self.keys.tree.end(0)?;
        Some(self.take(first))
    }

    fn take(&mut self, position: usize) -> (K, V) {
        (self.keys.take(position), swap_remove(&mut self.values, position))
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    /// Sets the value of a key. Returns the one before.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.keys.find(&key) {
            Ok(at) => Some(mem::replace(&mut self.values[at], value)),
            Err(place) => {
                self.keys.put(place, key);
                self.values.push(value);
                None
            }
        }
    }

    pub(crate) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.keys.find(key).ok().map(|at| &self.values[at])
    }

    pub(crate) fn get_key_value<Q: Ord + ?Sized>(&self, key: &Q) -> Option<(&K, &V)>
    where
        K: Borrow<Q>,
    {
        self.keys.find(key).ok().map(|at| (&self.keys.keys[at], &self.values[at]))
    }

    pub(crate) fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.keys.find(key).ok().map(|at| &mut self.values[at])
    }

    pub(crate) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.contains(key)
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
        self.keys.find(key).ok().map(|at| self.take(at))
    }

    pub(crate) fn entry(&mut self, key: K) -> Entry<'_, K, V> {
        Entry { found: self.keys.find(&key), map: self, key }
    }

    /// Returns the entries whose keys are within a range.
    pub(crate) fn range(&self, range: impl RangeBounds<K>) -> Iter<'_, K, V> {
        Iter { walk: self.keys.walk_within(&range), keys: &self.keys.keys, values: &self.values }
    }
}

impl<'a, K, V> Entry<'a, K, V> {
    pub(crate) fn or_default(self) -> &'a mut V
    where
        V: Default,
    {
        self.or_insert_with(V::default)
    }

    pub(crate) fn or_insert_with(self, value: impl FnOnce() -> V) -> &'a mut V {
        let Self { map, key, found } = self;
        let at = found.unwrap_or_else(|place| {
            map.keys.put(place, key);
            map.values.push(value());
            map.values.len() - 1
        });
        &mut map.values[at]
    }
}

/// Takes an entry out of a list. The last one takes its position.
fn swap_remove<T>(list: &mut Vec<T>, position: usize) -> T {
    let taken = list.swap_remove(position);
    shrink(list);
    taken
}

/// Gives memory back, unless a quarter of it is used.
fn shrink<T>(list: &mut Vec<T>) {
    if list.len() < list.capacity() / 4 && list.capacity() > KEPT {
        list.shrink_to(list.len() * 2);
    }
}

impl<K> Default for SortedSet<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, K> Iterator for Keys<'a, K> {
    type Item = &'a K;

    fn next(&mut self) -> Option<&'a K> {
        self.walk.next().map(|at| &self.keys[at])
    }
}

impl<K> DoubleEndedIterator for Keys<'_, K> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.walk.next_back().map(|at| &self.keys[at])
    }
}

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        self.walk.next().map(|at| (&self.keys[at], &self.values[at]))
    }
}

impl<K, V> DoubleEndedIterator for Iter<'_, K, V> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.walk.next_back().map(|at| (&self.keys[at], &self.values[at]))
    }
}

impl<'a, K, V> Iterator for IterMut<'a, K, V> {
    type Item = (&'a K, &'a mut V);

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.walk.next()?;
        Some((&self.keys[at], self.values[at].take()?))
    }
}

impl<'a, K> IntoIterator for &'a SortedSet<K> {
    type Item = &'a K;
    type IntoIter = Keys<'a, K>;

    fn into_iter(self) -> Keys<'a, K> {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a SortedMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = Iter<'a, K, V>;

    fn into_iter(self) -> Iter<'a, K, V> {
        self.iter()
    }
}

impl<'a, K, V> IntoIterator for &'a mut SortedMap<K, V> {
    type Item = (&'a K, &'a mut V);
    type IntoIter = IterMut<'a, K, V>;

    fn into_iter(self) -> IterMut<'a, K, V> {
        let SortedSet { tree, keys } = &self.keys;
        IterMut { walk: tree.walk(), keys, values: self.values.iter_mut().map(Some).collect() }
    }
}

/// Takes the keys out, one by one.
impl<K> IntoIterator for SortedSet<K> {
    type Item = K;
    type IntoIter = TakenKeys<K>;

    fn into_iter(self) -> TakenKeys<K> {
        TakenKeys(self)
    }
}

/// Takes the entries out, one by one.
impl<K, V> IntoIterator for SortedMap<K, V> {
    type Item = (K, V);
    type IntoIter = Taken<K, V>;

    fn into_iter(self) -> Taken<K, V> {
        Taken(self)
    }
}

impl<K> Iterator for TakenKeys<K> {
    type Item = K;

    fn next(&mut self) -> Option<K> {
        self.0.pop_first()
    }
}

impl<K, V> Iterator for Taken<K, V> {
    type Item = (K, V);

    fn next(&mut self) -> Option<(K, V)> {
        self.0.pop_first()
    }
}

impl<K: Ord> Extend<K> for SortedSet<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        for key in keys {
            self.insert(key);
        }
    }
}

impl<K: Ord> FromIterator<K> for SortedSet<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> Self {
        let mut set = Self::new();
        set.extend(keys);
        set
    }
}

impl<K: Ord, V> FromIterator<(K, V)> for SortedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = Self::new();
        for (key, value) in entries {
            map.insert(key, value);
        }
        map
    }
}

impl<K: fmt::Debug> fmt::Debug for SortedSet<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self).finish()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SortedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::{prelude::*, test_runner::RngSeed};

    use super::*;

    /// One thing that can be done to a map.
    #[derive(Clone, Debug)]
    enum Action {
        Insert(u8, u16),
        Remove(u8),
        OrDefault(u8),
        PopFirst,
        /// Change the values of all.
        Change(u16),
        /// Take everything out.
        Take,
    }

    fn action() -> impl Strategy<Value = Action> {
        prop_oneof![
            30 => (any::<u8>(), any::<u16>()).prop_map(|(key, value)| Action::Insert(key, value)),
            20 => any::<u8>().prop_map(Action::Remove),
            5 => any::<u8>().prop_map(Action::OrDefault),
            5 => Just(Action::PopFirst),
            1 => any::<u16>().prop_map(Action::Change),
            1 => Just(Action::Take),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn map_does_what_that_of_std_does(
            actions in proptest::collection::vec(action(), 0..400),
            bounds in proptest::collection::vec((any::<Bound<u8>>(), any::<Bound<u8>>()), 4),
        ) {
            let mut ours = SortedMap::<u8, u16>::new();
            let mut std = BTreeMap::<u8, u16>::new();
            for action in actions {
                match action {
                    Action::Insert(key, value) => prop_assert_eq!(ours.insert(key, value), std.insert(key, value)),
                    Action::Remove(key) => prop_assert_eq!(ours.remove_entry(&key), std.remove_entry(&key)),
                    Action::OrDefault(key) => {
                        *ours.entry(key).or_default() ^= 1;
                        *std.entry(key).or_default() ^= 1;
                    }
                    Action::PopFirst => prop_assert_eq!(ours.pop_first(), std.pop_first()),
                    Action::Change(by) => {
                        for (key, value) in &mut ours { *value ^= by.wrapping_add(u16::from(*key)); }
                        for (key, value) in &mut std { *value ^= by.wrapping_add(u16::from(*key)); }
                    }
                    Action::Take => {
                        let taken: Vec<_> = mem::take(&mut ours).into_iter().collect();
                        prop_assert_eq!(taken, mem::take(&mut std).into_iter().collect::<Vec<_>>());
                    }
                }
                ours.keys.tree.check();
                prop_assert_eq!(ours.len(), std.len());
                prop_assert!(ours.iter().eq(&std), "{:?} is not {:?}", ours, std);
                prop_assert!(ours.values().rev().eq(std.values().rev()));
                prop_assert_eq!(ours.keys().next(), std.keys().next());
            }
            for key in 0..=u8::MAX {
                prop_assert_eq!(ours.get_key_value(&key), std.get_key_value(&key));
                prop_assert_eq!(ours.contains_key(&key), std.contains_key(&key));
            }
            for (start, end) in bounds {
                let of = |bound| match bound { Bound::Included(it) | Bound::Excluded(it) => Some(it), Bound::Unbounded => None };
                let is_empty = of(start).zip(of(end)).is_some_and(|(start, end)| start >= end);
                if is_empty {
                    continue; // std panics for some of them
                }
                prop_assert!(ours.range((start, end)).eq(std.range((start, end))));
                prop_assert!(ours.range((start, end)).rev().eq(std.range((start, end)).rev()));
            }
        }

        #[test]
        fn set_does_what_that_of_std_does(keys in proptest::collection::vec((any::<u8>(), any::<bool>()), 0..400)) {
            let mut ours = SortedSet::new();
            let mut std = BTreeSet::new();
            for (key, is_new) in keys {
                match is_new {
                    true => prop_assert_eq!(ours.insert(key), std.insert(key)),
                    false => prop_assert_eq!(ours.remove(&key), std.remove(&key)),
                }
                prop_assert_eq!(ours.contains(&key), is_new);
                prop_assert_eq!(ours.first(), std.first());
                prop_assert!(ours.iter().eq(&std));
            }
            prop_assert!(ours.clone().into_iter().eq(std.clone()));
            prop_assert_eq!(ours.pop_first(), std.pop_first());
        }
    }

    #[test]
    fn range_that_ends_before_it_starts_is_empty() {
        let map: SortedMap<u8, ()> = (0..9).map(|key| (key, ())).collect();
        let (start, end) = (7, 3);
        assert_eq!(map.range(start..end).count(), 0);
        assert_eq!(map.range(start..=end).count(), 0);
        assert_eq!(map.range(start..start).count(), 0);
    }

    #[test]
    fn operation_on_100_000_entries_compares_a_few_keys() {
        /// A key that counts comparisons.
        #[derive(PartialEq, Eq)]
        struct Key(u32);

        thread_local! {
            static COMPARISONS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
        }

        impl PartialOrd for Key {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl Ord for Key {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                COMPARISONS.set(COMPARISONS.get() + 1);
                self.0.cmp(&other.0)
            }
        }

        const COUNT: u32 = 100_000;
        /// 1.44 · log₂ 100,000, rounded up.
        const HIGHEST: u32 = 24;
        let compared = |what: &mut dyn FnMut()| {
            let before = COMPARISONS.get();
            what();
            COMPARISONS.get() - before
        };
        // Rising, falling and mixed keys: a tree that is not balanced becomes a list for one of them.
        for key in [|n| n, |n| COUNT - n, |n| (n * 7_919) % COUNT] {
            let mut set = SortedSet::new();
            for n in 0..COUNT {
                assert!(compared(&mut || assert!(set.insert(Key(key(n))))) <= HIGHEST);
            }
            for n in 0..COUNT {
                assert!(compared(&mut || assert!(set.remove(&Key(key(n))))) <= HIGHEST);
            }
        }
    }

    #[test]
    fn memory_of_many_entries_is_given_back() {
        let mut map = SortedMap::new();
        for key in 0..10_000 {
            map.insert(key, key);
        }
        for key in 10..10_000 {
            map.remove(&key);
        }
        assert!(map.values.capacity() <= 40 && map.keys.keys.capacity() <= 40);
        assert!(map.keys.tree.capacity() <= 40);
        assert!(map.keys().copied().eq(0..10));
    }
}
