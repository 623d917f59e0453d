//! The open calls, and every index by which one of them is found.

use std::collections::{BTreeMap, BTreeSet};

use super::{Call, Stage};
use crate::{
    protocol::session::{CallKey, delivery::Sent},
    tool::CallId,
    transport::Identity,
};

/// All open calls. Every lookup takes a time that grows with the logarithm of their number.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: BTreeMap<CallKey, Call>,
    by_id: BTreeMap<CallId, CallKey>,
    /// Calls for which nobody was asked.
    waiting: BTreeSet<CallKey>,
    /// Calls for which a peer was asked, by the stanza of the request. The session never uses a stanza twice.
    by_stanza: BTreeMap<i32, CallKey>,
    /// The same calls, by the last packet of the request.
    by_packet: BTreeMap<u64, CallKey>,
    by_owner: BTreeMap<Identity, AtOwner>,
}

/// The calls that one owner was asked for.
#[derive(Debug, Default)]
struct AtOwner {
    calls: BTreeSet<CallKey>,
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

    /// The calls for which nobody was asked.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (CallKey, &Call)> {
        self.waiting.iter().filter_map(|key| Some((*key, self.open.get(key)?)))
    }

    /// The calls that this owner was asked for: at most as many as one owner may have open.
    pub(super) fn of_owner(&self, owner: &Identity) -> impl Iterator<Item = (CallKey, &Call)> {
        let keys = self.by_owner.get(owner).into_iter().flat_map(|at| &at.calls);
        keys.filter_map(|key| Some((*key, self.open.get(key)?)))
    }

    /// How many calls this owner was asked for.
    pub(super) fn count_of(&self, owner: &Identity) -> usize {
        self.by_owner.get(owner).map_or(0, |at| at.calls.len())
    }

    /// The bytes of arguments of the calls that this owner was asked for.
    pub(super) fn bytes_of(&self, owner: &Identity) -> usize {
        self.by_owner.get(owner).map_or(0, |at| at.bytes)
    }

    /// The call whose request has this stanza.
    pub(super) fn asked_as(&self, stanza: i32) -> Option<CallKey> {
        self.by_stanza.get(&stanza).copied()
    }

    /// The call whose request was sent last in this packet.
    pub(super) fn sent_in(&self, packet: u64) -> Option<CallKey> {
        self.by_packet.get(&packet).copied()
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

    /// Moves a call to another stage. Returns the one before.
    pub(super) fn set_stage(&mut self, key: CallKey, stage: Stage) -> Option<Stage> {
        let mut call = self.open.remove(&key)?;
        self.unindex(key, &call);
        let before = std::mem::replace(&mut call.stage, stage);
        self.index(key, &call);
        self.open.insert(key, call);
        Some(before)
    }

    /// The request of a call was sent again, in another packet.
    pub(super) fn sent_again(&mut self, key: CallKey, sent: &Sent) {
        let Some(asked) = self.open.get_mut(&key).and_then(Call::asked_mut) else { return };
        self.by_packet.remove(&asked.packet);
        self.by_packet.insert(sent.packet, key);
        asked.packet = sent.packet;
        asked.goes_again = false;
        asked.fast = sent.is_fast || (asked.fast && asked.left > 0);
        asked.left += 1;
    }

    fn index(&mut self, key: CallKey, call: &Call) {
        match &call.stage {
            Stage::Waiting => {
                self.waiting.insert(key);
            }
            Stage::Asked(asked) => {
                self.by_stanza.insert(asked.stanza, key);
                self.by_packet.insert(asked.packet, key);
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
                self.by_stanza.remove(&asked.stanza);
                self.by_packet.remove(&asked.packet);
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
