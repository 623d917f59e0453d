//! Stores the open calls and their indexes.

use super::{Call, Stage};
use crate::{
    protocol::session::CallKey,
    sorted::{SortedMap, SortedSet},
    tool::CallId,
    transport::Identity,
};

/// All open calls. Each lookup takes time logarithmic in their number.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: SortedMap<CallKey, Call>,
    by_id: SortedMap<CallId, CallKey>,
    /// The calls that no owner has been sent.
    waiting: SortedSet<CallKey>,
    by_owner: SortedMap<Identity, AtOwner>,
}

/// The calls that were sent to one owner.
#[derive(Debug, Default)]
struct AtOwner {
    calls: SortedSet<CallKey>,
    /// Bytes of their arguments.
    bytes: usize,
}

impl Calls {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = CallKey> {
        self.open.keys().copied()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&CallKey, &Call)> {
        self.open.iter()
    }

    pub(super) fn get(&self, key: &CallKey) -> Option<&Call> {
        self.open.get(key)
    }

    pub(super) fn get_mut(&mut self, key: &CallKey) -> Option<&mut Call> {
        self.open.get_mut(key)
    }

    pub(super) fn key_of(&self, id: &CallId) -> Option<CallKey> {
        self.by_id.get(id).copied()
    }

    /// Returns the calls that no owner has been sent.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (CallKey, &Call)> {
        self.waiting.iter().filter_map(|key| Some((*key, self.open.get(key)?)))
    }

    /// Returns the calls that were sent to this owner, at most as many as one owner may have open.
    pub(super) fn of_owner(&self, owner: &Identity) -> impl Iterator<Item = (CallKey, &Call)> {
        let keys = self.by_owner.get(owner).into_iter().flat_map(|at| &at.calls);
        keys.filter_map(|key| Some((*key, self.open.get(key)?)))
    }

    /// Returns the number of calls that were sent to this owner.
    pub(super) fn count_of(&self, owner: &Identity) -> usize {
        self.by_owner.get(owner).map_or(0, |at| at.calls.len())
    }

    /// Returns the bytes of arguments of the calls that were sent to this owner.
    pub(super) fn bytes_of(&self, owner: &Identity) -> usize {
        self.by_owner.get(owner).map_or(0, |at| at.bytes)
    }

    pub(super) fn insert(&mut self, key: CallKey, call: Call) {
        self.by_id.insert(call.id.clone(), key);
        self.index(key, &call);
        self.open.insert(key, call);
    }

    pub(super) fn remove(&mut self, key: &CallKey) -> Option<Call> {
        let call = self.open.remove(key)?;
        self.by_id.remove(&call.id);
        self.unindex(*key, &call);
        Some(call)
    }

    /// Moves a call to another stage and returns the previous one.
    pub(super) fn set_stage(&mut self, key: CallKey, stage: Stage) -> Option<Stage> {
        // The indexes are made from the stage, so the call leaves them before it changes.
        let mut call = self.open.remove(&key)?;
        self.unindex(key, &call);
        let before = std::mem::replace(&mut call.stage, stage);
        self.index(key, &call);
        self.open.insert(key, call);
        Some(before)
    }

    fn index(&mut self, key: CallKey, call: &Call) {
        match &call.stage {
            Stage::Waiting => {
                self.waiting.insert(key);
            }
            Stage::Asked(asked) => {
                let at = self.by_owner.entry(asked.owner.clone()).or_default();
                at.calls.insert(key);
                at.bytes += call.arguments.as_bytes().len();
            }
            Stage::Own(_) => {}
        }
    }

    fn unindex(&mut self, key: CallKey, call: &Call) {
        match &call.stage {
            Stage::Waiting => {
                self.waiting.remove(&key);
            }
            Stage::Asked(asked) => {
                if let Some(at) = self.by_owner.get_mut(&asked.owner) {
                    at.calls.remove(&key);
                    at.bytes = at.bytes.saturating_sub(call.arguments.as_bytes().len());
                    if at.calls.is_empty() {
                        self.by_owner.remove(&asked.owner);
                    }
                }
            }
            Stage::Own(_) => {}
        }
    }
}
