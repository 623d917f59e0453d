//! Calls of ours that have their outcome, as long as frames of them may still come.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{Session, Timer, ids::Instance, outbound::Asked, peer::Remote, replay::place, timers::later};
use crate::{link::Identity, tool::CallId};

/// Settled calls that are remembered at once.
const MAX_PAST: usize = 4096;

/// The settled calls.
#[derive(Debug, Default)]
pub(super) struct Past {
    calls: BTreeMap<CallId, Gone>,
    /// Those whose owners shall stop and do not know it yet: few, and all that frames are looked up in.
    stopping: BTreeSet<CallId>,
    /// When each may be forgotten.
    order: BTreeSet<(Instant, CallId)>,
}

/// A call that was settled.
#[derive(Debug)]
pub(super) struct Gone {
    /// Who was asked, and how.
    pub(super) asked: Asked,
    /// Whether its owner answered.
    pub(super) answered: bool,
    pub(super) stop: Stop,
    /// When it may be forgotten.
    until: Instant,
}

/// Whether its owner was told to stop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It need not be: it answered, or nobody minds if it goes on.
    Unwanted,
    /// It shall be, when it can be reached.
    Waiting,
    /// It was, under this stanza, last in this packet.
    Sent { stanza: i32, packet: u64 },
    /// It knows, or is gone.
    Known,
}

impl Gone {
    /// A call that ends without its owner, which shall stop.
    pub(super) fn unanswered(asked: &Asked, now: Instant) -> Self {
        Self { asked: asked.clone(), answered: false, stop: Stop::Waiting, until: now }
    }

    /// A call that its owner has done with, one way or another.
    pub(super) fn answered(asked: &Asked, now: Instant) -> Self {
        Self { answered: true, stop: Stop::Unwanted, ..Self::unanswered(asked, now) }
    }

    /// Whether it still counts among its owner's open calls. A plain peer acknowledges nothing.
    fn has_place(&self) -> bool {
        self.asked.instance.is_some()
            && !self.answered
            && matches!(self.stop, Stop::Waiting | Stop::Sent { .. })
    }
}

impl Past {
    /// Stopped calls of which this instance of their owner does not know yet.
    pub(super) fn places_at(&self, owner: &Identity, instance: Option<&Instance>) -> usize {
        let is_its = |gone: &Gone| gone.has_place() && gone.asked.instance.as_ref() == instance;
        self.stopping_at(owner).filter(|(_, gone)| is_its(gone)).count()
    }

    /// Whether a call of this owner is remembered: it may answer it once more.
    pub(super) fn remembers(&self, owner: &Identity) -> bool {
        self.calls.values().any(|gone| gone.asked.owner == *owner)
    }

    /// The call, if this is who was asked.
    pub(super) fn owned_by(&mut self, call: &CallId, id: &Identity, remote: &Remote) -> Option<&mut Gone> {
        self.calls.get_mut(call).filter(|gone| gone.asked.is_of(id, remote))
    }

    /// The stops that this instance has not acknowledged, by the order in which they were sent.
    pub(super) fn stops_kept_for(&self, owner: &Identity, instance: &Instance) -> Vec<(u32, CallId)> {
        let kept = self.stopping_at(owner).filter_map(|(call, gone)| match gone.stop {
            Stop::Sent { stanza, .. } if gone.asked.instance.as_ref() == Some(instance) => {
                Some((place(Some(stanza)), call.clone()))
            }
            _ => None,
        });
        kept.collect()
    }

    /// The owner for whom this packet carried a stop; it did not leave.
    pub(super) fn stop_never_left(&mut self, packet: u64) -> Option<Identity> {
        let is_it = |gone: &Gone| matches!(gone.stop, Stop::Sent { packet: its, .. } if its == packet);
        let found = self.stopping.iter().find(|call| self.calls.get(*call).is_some_and(is_it)).cloned();
        let gone = self.calls.get_mut(&found?)?;
        gone.stop = Stop::Waiting;
        Some(gone.asked.owner.clone())
    }

    /// The owner knows of the stop that was sent under this stanza.
    pub(super) fn stop_known(&mut self, owner: &Identity, stanza: i32) {
        let sent = self
            .stopping_at(owner)
            .find(|(_, gone)| matches!(gone.stop, Stop::Sent { stanza: its, .. } if its == stanza));
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
            self.forget_first();
        }
        if gone.stop == Stop::Waiting {
            self.stopping.insert(call.clone());
        }
        self.order.insert((gone.until, call.clone()));
        self.calls.insert(call, gone);
    }

    fn forget_first(&mut self) {
        if let Some((_, first)) = self.order.pop_first() {
            self.stopping.remove(&first);
            self.calls.remove(&first);
        }
    }
}

impl Session {
    pub(super) fn remember(&mut self, now: Instant, call: CallId, mut gone: Gone) {
        // A stop is kept as long as its owner may still be at it.
        let working = gone.asked.ends.saturating_duration_since(now);
        let still = if gone.stop == Stop::Waiting { working } else { Duration::ZERO };
        gone.until = later(now, still.saturating_add(self.config.times.memory));
        self.past.insert(call, gone);
        self.set_past_timer(now);
    }

    pub(super) fn expire_past(&mut self, now: Instant) {
        while self.past.order.first().is_some_and(|(until, _)| *until <= now) {
            self.past.forget_first();
        }
        self.set_past_timer(now);
    }

    fn set_past_timer(&mut self, now: Instant) {
        if let Some((until, _)) = self.past.order.first() {
            self.timers.set(now, Timer::Past, until.saturating_duration_since(now));
        }
    }
}
