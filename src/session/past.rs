//! Calls of ours that have their outcome, as long as frames of them may still come.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Instant,
};

use super::{Session, Timer, outbound::Asked, peer::Remote};
use crate::{link::Identity, tool::CallId};

/// Settled calls that are remembered at once.
const MAX_PAST: usize = 4096;

/// The settled calls.
#[derive(Debug, Default)]
pub(super) struct Past {
    calls: BTreeMap<CallId, Gone>,
    /// Those whose owners shall stop and do not know it yet: few, and all that frames are looked up in.
    stopping: BTreeSet<CallId>,
    order: VecDeque<(Instant, CallId)>,
}

/// A call that was settled.
#[derive(Debug)]
pub(super) struct Gone {
    /// Who was asked, and how.
    pub(super) asked: Asked,
    /// Whether its owner answered.
    pub(super) answered: bool,
    pub(super) stop: Stop,
    at: Instant,
}

/// Whether its owner was told to stop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It need not be: it answered, or nobody minds if it goes on.
    Unwanted,
    /// It shall be, when it can be reached.
    Waiting,
    /// It was, under this stanza.
    Sent(i32),
    /// It knows, or is gone.
    Known,
}

impl Gone {
    /// A call that ends without its owner, which shall stop.
    pub(super) fn unanswered(asked: &Asked, now: Instant) -> Self {
        Self { asked: asked.clone(), answered: false, stop: Stop::Waiting, at: now }
    }

    /// A call that its owner has done with, one way or another.
    pub(super) fn answered(asked: &Asked, now: Instant) -> Self {
        Self { answered: true, stop: Stop::Unwanted, ..Self::unanswered(asked, now) }
    }

    /// Whether it still counts among its owner's open calls. A plain peer acknowledges nothing.
    fn has_place(&self) -> bool {
        self.asked.instance.is_some() && !self.answered && matches!(self.stop, Stop::Waiting | Stop::Sent(_))
    }
}

impl Past {
    pub(super) fn places_at(&self, owner: &Identity) -> usize {
        self.stopping_at(owner).filter(|(_, gone)| gone.has_place()).count()
    }

    /// The call, if this is who was asked.
    pub(super) fn owned_by(&mut self, call: &CallId, id: &Identity, remote: &Remote) -> Option<&mut Gone> {
        self.calls.get_mut(call).filter(|gone| gone.asked.is_of(id, remote))
    }

    /// An owner is gone for good, or another instance: it need not know of stops.
    pub(super) fn give_up(&mut self, owner: &Identity) {
        let given_up: Vec<_> = self.stopping_at(owner).map(|(call, _)| call.clone()).collect();
        for call in given_up {
            self.known(&call);
        }
    }

    /// The owner knows of the stop that was sent under this stanza.
    pub(super) fn stop_known(&mut self, owner: &Identity, stanza: i32) {
        let sent = self.stopping_at(owner).find(|(_, gone)| gone.stop == Stop::Sent(stanza));
        if let Some(call) = sent.map(|(call, _)| call.clone()) {
            self.known(&call);
        }
    }

    pub(super) fn get_mut(&mut self, call: &CallId) -> Option<&mut Gone> {
        self.calls.get_mut(call)
    }

    /// The calls of this owner whose stops wait to be sent.
    pub(super) fn waiting_stops(&self, owner: &Identity) -> Vec<CallId> {
        let waiting = self.stopping_at(owner).filter(|(_, gone)| gone.stop == Stop::Waiting);
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// The call of this owner whose request had this stanza and whose stop waits to be sent.
    pub(super) fn waiting_stop_of(&self, owner: &Identity, stanza: i32) -> Option<CallId> {
        let is_it = |gone: &Gone| gone.asked.stanza == stanza && gone.stop == Stop::Waiting;
        self.stopping_at(owner).find(|(_, gone)| is_it(gone)).map(|(id, _)| id.clone())
    }

    fn stopping_at<'a>(&'a self, owner: &'a Identity) -> impl Iterator<Item = (&'a CallId, &'a Gone)> {
        let all = self.stopping.iter().filter_map(|call| Some((call, self.calls.get(call)?)));
        all.filter(move |(_, gone)| gone.asked.owner == *owner)
    }

    fn known(&mut self, call: &CallId) {
        self.stopping.remove(call);
        if let Some(gone) = self.calls.get_mut(call) {
            gone.stop = Stop::Known;
        }
    }

    fn insert(&mut self, call: CallId, gone: Gone) {
        if self.order.len() >= MAX_PAST {
            self.forget_oldest();
        }
        if gone.stop == Stop::Waiting {
            self.stopping.insert(call.clone());
        }
        self.order.push_back((gone.at, call.clone()));
        self.calls.insert(call, gone);
    }

    fn forget_oldest(&mut self) {
        if let Some((_, oldest)) = self.order.pop_front() {
            self.stopping.remove(&oldest);
            self.calls.remove(&oldest);
        }
    }
}

impl Session {
    pub(super) fn remember(&mut self, now: Instant, call: CallId, gone: Gone) {
        self.past.insert(call, gone);
        if !self.timers.is_set(&Timer::Past) {
            self.timers.set(now, Timer::Past, self.config.times.memory);
        }
    }

    pub(super) fn expire_past(&mut self, now: Instant) {
        let memory = self.config.times.memory;
        while let Some((at, _)) = self.past.order.front() {
            let age = now.saturating_duration_since(*at);
            if age < memory {
                self.timers.set(now, Timer::Past, memory - age);
                return;
            }
            self.past.forget_oldest();
        }
    }
}
