//! Calls of ours that have their outcome, as long as frames of them may still come.

use std::{
    collections::{BTreeMap, VecDeque},
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
        self.calls.values().filter(|gone| gone.asked.owner == *owner && gone.has_place()).count()
    }

    /// The call, if this is who was asked.
    pub(super) fn owned_by(&mut self, call: &CallId, id: &Identity, remote: &Remote) -> Option<&mut Gone> {
        self.calls.get_mut(call).filter(|gone| gone.asked.is_of(id, remote))
    }

    /// An owner is gone for good, or another instance: it need not know of stops.
    pub(super) fn give_up(&mut self, owner: &Identity) {
        for gone in self.calls.values_mut().filter(|gone| gone.asked.owner == *owner) {
            gone.stop = Stop::Known;
        }
    }

    pub(super) fn get_mut(&mut self, call: &CallId) -> Option<&mut Gone> {
        self.calls.get_mut(call)
    }

    /// The calls of this owner whose stops wait to be sent.
    pub(super) fn waiting_stops(&self, owner: &Identity) -> Vec<CallId> {
        let waits = |gone: &Gone| gone.asked.owner == *owner && gone.stop == Stop::Waiting;
        self.calls.iter().filter(|(_, gone)| waits(gone)).map(|(id, _)| id.clone()).collect()
    }

    /// The call of this owner with such a request or stop.
    pub(super) fn find(
        &mut self,
        owner: &Identity,
        which: impl Fn(&Gone) -> bool,
    ) -> Option<(CallId, &mut Gone)> {
        let found = self.calls.iter_mut().find(|(_, gone)| gone.asked.owner == *owner && which(gone))?;
        Some((found.0.clone(), found.1))
    }
}

impl Session {
    pub(super) fn remember(&mut self, now: Instant, call: CallId, gone: Gone) {
        if self.past.order.len() >= MAX_PAST
            && let Some((_, oldest)) = self.past.order.pop_front()
        {
            self.past.calls.remove(&oldest);
        }
        self.past.order.push_back((gone.at, call.clone()));
        self.past.calls.insert(call, gone);
        if !self.timers.is_set(&Timer::Past) {
            self.timers.set(now, Timer::Past, self.config.times.memory);
        }
    }

    pub(super) fn expire_past(&mut self, now: Instant) {
        let memory = self.config.times.memory;
        while let Some((at, call)) = self.past.order.front() {
            let age = now.saturating_duration_since(*at);
            if age < memory {
                self.timers.set(now, Timer::Past, memory - age);
                return;
            }
            self.past.calls.remove(call);
            self.past.order.pop_front();
        }
    }
}
