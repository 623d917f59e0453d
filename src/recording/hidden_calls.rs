//! Remembers which calls belong to hidden tools: only a request names its tool.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::BuildHasher as _,
};

use crate::transport::Identity;

/// How many calls are remembered: more than are ever open at once.
pub(super) const CALLS: usize = 16_384;

/// Where a packet came from and where it goes, as far as that is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Route<'a> {
    pub(super) from: Option<&'a Identity>,
    /// Empty for a broadcast, and for a received packet.
    pub(super) to: &'a [Identity],
}

/// The calls of hidden tools, and others from which they must be told apart.
#[derive(Debug, Default)]
pub(super) struct HiddenCalls {
    /// By id and caller. Both are hashed, since their length is not limited.
    calls: BTreeMap<(u64, u64), Call>,
    /// The keys of the calls that are open, and of those that have ended, in the order of their requests.
    order: [BTreeMap<u64, (u64, u64)>; 2],
    last: u64,
    hasher: RandomState,
    /// Whether a hidden call may be missing.
    is_incomplete: bool,
}

#[derive(Debug)]
struct Call {
    is_hidden: bool,
    has_ended: bool,
    number: u64,
}

impl HiddenCalls {
    /// Returns whether every unknown call is one of a tool that is not hidden, and none is known.
    pub(super) fn is_idle(&self) -> bool {
        self.calls.is_empty() && !self.is_incomplete
    }

    /// Remembers a request. An id that its caller used before belongs to this tool from now on.
    pub(super) fn begin(&mut self, route: Route<'_>, id: &str, is_hidden: bool) {
        let key = (self.hash(id), self.caller(route.from));
        self.last += 1;
        let call = Call { is_hidden, has_ended: false, number: self.last };
        if let Some(old) = self.calls.insert(key, call) {
            self.order[usize::from(old.has_ended)].remove(&old.number);
        }
        self.order[0].insert(self.last, key);
        if self.calls.len() > CALLS {
            self.evict();
        }
    }

    /// Notes that a result arrived. The call is remembered, because a result can be repeated.
    pub(super) fn end(&mut self, route: Route<'_>, id: &str) {
        let id = self.hash(id);
        let callers = self.callers(route);
        let (order, ended) = self.order.split_at_mut(1);
        for (key, call) in self.calls.range_mut((id, 0)..=(id, u64::MAX)) {
            if !call.has_ended && (callers.is_empty() || callers.contains(&key.1)) {
                call.has_ended = true;
                order[0].remove(&call.number);
                ended[0].insert(call.number, *key);
            }
        }
    }

    /// Returns whether the call with this id is hidden, as far as that is known. If the packet does not show whose call it is, it is
    /// hidden if one of the candidates is.
    pub(super) fn is_hidden(&self, route: Route<'_>, id: &str) -> Option<bool> {
        let id = self.hash(id);
        let candidates = || self.calls.range((id, 0)..=(id, u64::MAX));
        let of = |caller: u64| self.calls.get(&(id, caller)).map(|call| call.is_hidden);
        if let Some(is_hidden) = of(self.caller(route.from)) {
            return Some(is_hidden); // its own call: of a tool that the caller itself runs
        }
        let known = route.to.iter().filter_map(|to| of(self.caller(Some(to))));
        known
            .reduce(|one, other| one || other)
            .or_else(|| candidates().map(|(_, call)| call.is_hidden).reduce(|one, other| one || other))
    }

    /// Returns whether a call that is not known may be hidden, although most are not.
    pub(super) fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }

    /// Notes that requests may have been missed.
    pub(super) fn miss(&mut self) {
        self.is_incomplete = true;
    }

    /// Drops the oldest call that has ended, or else the oldest one.
    fn evict(&mut self) {
        let [open, ended] = &mut self.order;
        let oldest = ended.pop_first().or_else(|| open.pop_first());
        if let Some(call) = oldest.and_then(|(_, key)| self.calls.remove(&key)) {
            self.is_incomplete |= call.is_hidden;
        }
    }

    /// The possible callers of the call that a result belongs to; empty if they are not known.
    fn callers(&self, route: Route<'_>) -> Vec<u64> {
        let from = route.from.filter(|_| !route.to.is_empty());
        route.to.iter().chain(from).map(|it| self.caller(Some(it))).collect()
    }

    fn caller(&self, identity: Option<&Identity>) -> u64 {
        self.hash(identity.map_or("", Identity::as_str))
    }

    fn hash(&self, text: &str) -> u64 {
        self.hasher.hash_one(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(caller: &Identity) -> Route<'_> {
        Route { from: Some(caller), to: &[] }
    }

    #[test]
    fn call_ids_of_several_callers_are_told_apart() {
        let [a, b, phone, eye]: [Identity; 4] = ["a".into(), "b".into(), "phone".into(), "eye".into()];
        let mut calls = HiddenCalls::default();
        calls.begin(from(&a), "1", true);
        calls.begin(from(&b), "1", false);
        let to = |to: &[Identity]| calls.is_hidden(Route { from: Some(&phone), to }, "1");
        assert_eq!(to(std::slice::from_ref(&a)), Some(true));
        assert_eq!(to(std::slice::from_ref(&b)), Some(false));
        assert_eq!(to(&[b.clone(), eye.clone()]), Some(false));
        assert_eq!(to(&[eye]), Some(true), "a copy for an observer does not name the caller");
        assert_eq!(to(&[]), Some(true));
        assert_eq!(calls.is_hidden(from(&b), "1"), Some(false), "it runs the tool itself");
        assert_eq!(calls.is_hidden(from(&b), "2"), None);
    }

    #[test]
    fn each_request_sets_whether_its_id_is_hidden() {
        let a: Identity = "a".into();
        let mut calls = HiddenCalls::default();
        for is_hidden in [true, false, true] {
            calls.begin(from(&a), "1", is_hidden);
            assert_eq!(calls.is_hidden(Route::default(), "1"), Some(is_hidden));
            calls.end(Route::default(), "1");
            assert_eq!(calls.is_hidden(Route::default(), "1"), Some(is_hidden), "results can be repeated");
        }
        assert_eq!((calls.calls.len(), calls.order[0].len(), calls.order[1].len()), (1, 0, 1));
    }

    #[test]
    fn ended_calls_are_evicted_first_and_what_is_forgotten_is_noted() {
        let a: Identity = "a".into();
        let mut calls = HiddenCalls::default();
        calls.begin(from(&a), "long", true);
        for n in 0..2 * CALLS {
            calls.begin(from(&a), &n.to_string(), false);
            calls.end(Route::default(), &n.to_string());
        }
        assert_eq!(calls.is_hidden(Route::default(), "long"), Some(true));
        assert!(!calls.is_incomplete(), "no hidden call was forgotten");
        for n in 0..CALLS {
            calls.begin(from(&a), &n.to_string(), true);
        }
        assert!(calls.is_incomplete() && calls.calls.len() == CALLS);
        assert_eq!(calls.is_hidden(Route::default(), "long"), None);
        assert_eq!(calls.order.iter().map(BTreeMap::len).sum::<usize>(), CALLS);
    }
}
