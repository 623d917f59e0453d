//! The caller's names of calls and turns, and the keys of the core.

use std::collections::{BTreeMap, VecDeque};

use toolbridge::{
    CallId,
    session::{CallKey, TurnKey},
    vocabulary::Id,
};

/// The most turns that are remembered: as many as may be open.
const TURNS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Names {
    calls: BTreeMap<Id, CallKey>,
    /// The open calls in the order of their keys, which rise.
    open: VecDeque<Open>,
    turns: VecDeque<(Id, TurnKey)>,
}

#[derive(Debug)]
struct Open {
    key: CallKey,
    /// The id in the room; none if the call has ended at once.
    call: Option<CallId>,
    id: Id,
}

impl Names {
    /// Returns the key of an open call.
    pub(crate) fn call(&self, id: &Id) -> Option<CallKey> {
        self.calls.get(id).copied()
    }

    pub(crate) fn begin(&mut self, id: Id, key: CallKey, call: Option<CallId>) {
        self.calls.insert(id.clone(), key);
        self.open.push_back(Open { key, call, id });
    }

    /// Returns the names of the call with this key.
    pub(crate) fn of(&self, key: CallKey) -> Option<&Id> {
        let at = self.open.binary_search_by_key(&key, |it| it.key).ok()?;
        self.open.get(at).map(|it| &it.id)
    }

    /// Returns the name of the call with this id in the room. The last calls are found first.
    pub(crate) fn of_call(&self, call: &CallId) -> Option<Id> {
        self.open.iter().rev().find(|it| it.call.as_ref() == Some(call)).map(|it| it.id.clone())
    }

    /// Forgets a call that has ended, and returns its name.
    pub(crate) fn end(&mut self, key: CallKey) -> Option<Id> {
        let at = self.open.binary_search_by_key(&key, |it| it.key).ok()?;
        let ended = self.open.remove(at)?;
        self.calls.remove(&ended.id);
        Some(ended.id)
    }

    /// Returns the turn with this name, which begins if it is not known.
    pub(crate) fn turn(&mut self, id: &Id, begin: impl FnOnce() -> TurnKey) -> TurnKey {
        if let Some((_, turn)) = self.turns.iter().rev().find(|(known, _)| known == id) {
            return *turn;
        }
        if self.turns.len() >= TURNS {
            self.turns.pop_front();
        }
        let turn = begin();
        self.turns.push_back((id.clone(), turn));
        turn
    }
}
