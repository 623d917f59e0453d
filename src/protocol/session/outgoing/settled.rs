//! Remembers settled calls of the local participant as long as frames for them may arrive.

use std::{collections::VecDeque, time::Duration};

use super::{Asked, Core, Outgoing};
use crate::{
    clock::{Instant, later},
    protocol::session::{ids::Instance, peers::Remote, timers::Timer},
    sorted::{SortedMap, SortedSet},
    tool::{CallId, StopReason},
    transport::Identity,
};

/// The limit on remembered settled calls.
const MAX_SETTLED: usize = 4096;

/// The limit on replaced instances that may still run a call. They are searched linearly when an instance appears, and
/// when a call ends whose request was sent to another instance.
const MAX_REPLACED: usize = 256;

/// The settled calls. Each lookup takes time logarithmic in their number.
#[derive(Debug, Default)]
pub(super) struct Settled {
    calls: SortedMap<CallId, Gone>,
    /// The time at which each may be forgotten.
    order: SortedSet<(Instant, CallId)>,
    by_owner: SortedMap<Identity, AtOwner>,
    /// The calls that still count as open for their owner's instance.
    places: SortedMap<(Identity, Instance), usize>,
    /// The calls whose stops wait to be sent, by the stanza of the request. The session never uses a stanza twice.
    waiting: SortedMap<i32, CallId>,
    /// Instances that were replaced while they had an open call. Their replacements were sent the request.
    replaced: VecDeque<Replaced>,
}

/// A replaced instance that may still run an ended call.
#[derive(Debug)]
struct Replaced {
    owner: Identity,
    instance: Instance,
    call: CallId,
    /// The time at which the call's time limit ends.
    until: Instant,
}

/// The settled calls of one owner.
#[derive(Debug, Default)]
struct AtOwner {
    remembered: usize,
    /// The calls that the owner must stop and whose stop it may not have received.
    stopping: SortedSet<CallId>,
    /// The calls that nothing can stop and that the owner has not answered, by their time limits.
    running: SortedSet<(Instant, CallId)>,
}

/// A call that was settled.
#[derive(Debug)]
pub(super) struct Gone {
    /// The owner that was sent the request, and how.
    asked: Asked,
    /// Whether the owner has answered.
    answered: bool,
    /// Indexed, as `asked` and `answered` are: only [`Settled`] changes it.
    stop: Stop,
    /// Why the call ended without its owner's answer.
    reason: StopReason,
    /// The time at which the call may be forgotten.
    until: Instant,
}

/// Whether the owner has been sent a stop.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// No stop is needed, because the owner has answered, or possible, because the request was no frame.
    Unwanted,
    /// The stop is sent when the owner is reachable.
    Waiting,
    /// The stop was sent, under this stanza.
    Sent(i32),
    /// The owner has acknowledged the stop, or is gone.
    Known,
}

impl Gone {
    /// Creates the record of a call that ended without its owner's answer. The owner must stop.
    pub(super) fn unanswered(asked: &Asked, now: Instant, reason: StopReason) -> Self {
        let stop = if asked.is_frame() { Stop::Waiting } else { Stop::Unwanted };
        Self { asked: asked.clone(), answered: false, stop, reason, until: now }
    }

    /// Creates the record of a call that its owner has finished or declined.
    pub(super) fn answered(asked: &Asked, now: Instant) -> Self {
        Self { answered: true, stop: Stop::Unwanted, ..Self::unanswered(asked, now, StopReason::Caller) }
    }

    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    pub(super) fn reason(&self) -> StopReason {
        self.reason
    }

    pub(super) fn stop(&self) -> &Stop {
        &self.stop
    }

    /// Returns the stanza of a stop that was sent and not acknowledged.
    pub(super) fn stop_sent_as(&self) -> Option<i32> {
        match self.stop {
            Stop::Sent(stanza) => Some(stanza),
            Stop::Unwanted | Stop::Waiting | Stop::Known => None,
        }
    }

    /// Returns whether the owner must stop and may not have received the stop. A plain-form request may be run by any
    /// instance that appears later, whichever instance acknowledged the stop.
    fn is_stopping(&self) -> bool {
        match self.stop {
            Stop::Waiting | Stop::Sent(_) => true,
            Stop::Known => self.asked.instance.is_none() && !self.answered,
            Stop::Unwanted => false,
        }
    }

    /// Returns whether the owner may run the call until its time limit, because nothing can stop it.
    fn may_run_on(&self) -> bool {
        !self.asked.is_frame() && !self.answered
    }

    /// Returns the owner's instance for which the call still counts as open. A plain peer acknowledges nothing, so
    /// `None` is returned for it.
    fn place(&self) -> Option<(Identity, Instance)> {
        let instance = self.asked.instance.clone().filter(|_| !self.answered && self.is_stopping())?;
        Some((self.asked.owner.clone(), instance))
    }
}

impl Settled {
    /// Returns the number of stopped calls whose stop this instance of their owner has not acknowledged, and of calls
    /// that it may still run because nothing can stop them.
    pub(super) fn places_at(&self, now: Instant, owner: &Identity, instance: Option<&Instance>) -> usize {
        let place = instance.map(|instance| (owner.clone(), instance.clone()));
        let stopped = place.and_then(|place| self.places.get(&place)).copied().unwrap_or(0);
        let running = self.by_owner.get(owner).into_iter().flat_map(|at| &at.running);
        stopped + running.rev().take_while(|(ends, _)| *ends > now).count()
    }

    /// Returns whether a call of this owner is remembered, since the owner may answer it again.
    pub(super) fn remembers(&self, owner: &Identity) -> bool {
        self.by_owner.contains_key(owner)
    }

    pub(super) fn get(&self, call: &CallId) -> Option<&Gone> {
        self.calls.get(call)
    }

    /// Returns whether the call is remembered and this participant was sent its request.
    pub(super) fn is_owned_by(&self, call: &CallId, id: &Identity, remote: &Remote) -> bool {
        self.calls.get(call).is_some_and(|gone| gone.asked.is_of(id, remote))
    }

    /// Notes an answer of the owner, which needs no stop any more. Returns whether it had answered before.
    pub(super) fn answered(&mut self, call: &CallId) -> bool {
        let before = self.calls.get(call).is_some_and(|gone| gone.answered);
        if !before {
            self.change(call, |gone| {
                gone.answered = true;
                if gone.stop == Stop::Waiting {
                    gone.stop = Stop::Unwanted;
                }
            });
        }
        before
    }

    /// Notes that the stop of this call was sent under this stanza.
    pub(super) fn stop_sent(&mut self, call: &CallId, stanza: i32) {
        self.change(call, |gone| gone.stop = Stop::Sent(stanza));
    }

    /// Notes that the stop with this stanza did not reach the owner.
    pub(super) fn stop_not_sent(&mut self, call: &CallId, stanza: i32) {
        // Packets of an earlier stop say nothing about the last one.
        if self.calls.get(call).is_some_and(|gone| gone.stop == Stop::Sent(stanza)) {
            self.change(call, |gone| gone.stop = Stop::Waiting);
        }
    }

    /// Notes that the owner acknowledged the stop with this stanza.
    pub(super) fn stop_known(&mut self, call: &CallId, stanza: i32) {
        if self.calls.get(call).is_some_and(|gone| gone.stop == Stop::Sent(stanza)) {
            self.change(call, |gone| gone.stop = Stop::Known);
        }
    }

    /// Returns the calls of this owner whose stops wait to be sent.
    pub(super) fn waiting_stops(&self, owner: &Identity) -> Vec<CallId> {
        let waiting = self.stopping_at(owner).filter(|(_, gone)| gone.stop == Stop::Waiting);
        waiting.map(|(id, _)| id.clone()).collect()
    }

    /// Returns the call of this owner whose request had this stanza and whose stop waits to be sent.
    pub(super) fn waiting_stop_of(&self, owner: &Identity, stanza: i32) -> Option<CallId> {
        let call = self.waiting.get(&stanza)?;
        let is_its = self.calls.get(call).is_some_and(|gone| gone.asked.owner == *owner);
        is_its.then(|| call.clone())
    }

    /// Marks the stops of plain-form calls as waiting, since a new instance may be the one that received the request.
    /// Returns the stanzas of the stops that were sent and not acknowledged.
    pub(super) fn stop_plain_calls_again(&mut self, owner: &Identity) -> Vec<i32> {
        let is_plain = |gone: &Gone| gone.asked.instance.is_none() && gone.stop != Stop::Waiting;
        let again: Vec<_> = self
            .stopping_at(owner)
            .filter(|(_, gone)| is_plain(gone))
            .map(|(call, _)| call.clone())
            .collect();
        let stanzas = again.iter().filter_map(|call| self.get(call)?.stop_sent_as()).collect();
        for call in again {
            self.change(&call, |gone| gone.stop = Stop::Waiting);
        }
        stanzas
    }

    /// Notes an ended call that this instance was sent before another one. The instance may run it until `until`.
    pub(super) fn replaced(&mut self, owner: Identity, instance: Instance, call: CallId, until: Instant) {
        if self.replaced.len() >= MAX_REPLACED {
            // Its instance gets no stop then, and the tool ends with the call's budget.
            self.replaced.pop_front();
        }
        self.replaced.push_back(Replaced { owner, instance, call, until });
    }

    /// Returns the ended calls that this formerly replaced instance may still run.
    pub(super) fn may_be_run_by(
        &mut self,
        now: Instant,
        owner: &Identity,
        instance: &Instance,
    ) -> Vec<CallId> {
        self.replaced.retain(|it| it.until > now);
        let its = self.replaced.iter().filter(|it| it.owner == *owner && it.instance == *instance);
        its.map(|it| it.call.clone()).collect()
    }

    fn stopping_at(&self, owner: &Identity) -> impl Iterator<Item = (&CallId, &Gone)> {
        let calls = self.by_owner.get(owner).into_iter().flat_map(|at| &at.stopping);
        calls.filter_map(|call| Some((call, self.calls.get(call)?)))
    }

    fn insert(&mut self, call: CallId, gone: Gone) {
        self.order.insert((gone.until, call.clone()));
        self.index(&call, &gone);
        self.calls.insert(call, gone);
    }

    fn forget(&mut self, call: &CallId) -> Option<Gone> {
        let gone = self.calls.remove(call)?;
        self.unindex(call, &gone);
        self.order.remove(&(gone.until, call.clone()));
        Some(gone)
    }

    /// Returns the call that was settled first, if it may be forgotten by then.
    fn first(&self, until: Option<Instant>) -> Option<CallId> {
        let (at, call) = self.order.first()?;
        until.is_none_or(|until| *at <= until).then(|| call.clone())
    }

    fn change(&mut self, call: &CallId, change: impl FnOnce(&mut Gone)) {
        let Some((call, mut gone)) = self.calls.remove_entry(call) else { return };
        self.unindex(&call, &gone);
        change(&mut gone);
        self.index(&call, &gone);
        self.calls.insert(call, gone);
    }

    fn index(&mut self, call: &CallId, gone: &Gone) {
        let at = self.by_owner.entry(gone.asked.owner.clone()).or_default();
        at.remembered += 1;
        if gone.is_stopping() {
            at.stopping.insert(call.clone());
        }
        if gone.may_run_on() {
            at.running.insert((gone.asked.ends, call.clone()));
        }
        if let Some(place) = gone.place() {
            // A stopped call keeps its place until the owner knows of the stop. Otherwise calls that are
            // cancelled at once would let any number of requests wait at the owner, some of which would start
            // after their cancellation.
            *self.places.entry(place).or_default() += 1;
        }
        if gone.stop == Stop::Waiting {
            self.waiting.insert(gone.asked.stanza, call.clone());
        }
    }

    fn unindex(&mut self, call: &CallId, gone: &Gone) {
        if let Some(at) = self.by_owner.get_mut(&gone.asked.owner) {
            at.remembered -= 1;
            at.stopping.remove(call);
            at.running.remove(&(gone.asked.ends, call.clone()));
            if at.remembered == 0 {
                self.by_owner.remove(&gone.asked.owner);
            }
        }
        if let Some(place) = gone.place()
            && let Some(held) = self.places.get_mut(&place)
        {
            *held -= 1;
            if *held == 0 {
                self.places.remove(&place);
            }
        }
        if gone.stop == Stop::Waiting {
            self.waiting.remove(&gone.asked.stanza);
        }
    }
}

impl Outgoing {
    pub(super) fn remember(&mut self, core: &mut Core, call: CallId, mut gone: Gone) {
        // A stop is kept as long as its owner may still run the call, and so is a call that nothing can stop.
        let working = gone.asked.ends.saturating_duration_since(core.cx.now);
        let is_running = gone.stop == Stop::Waiting || gone.may_run_on();
        let still = if is_running { working } else { Duration::ZERO };
        gone.until = later(core.cx.now, still.saturating_add(core.cx.config.times.memory));
        if self.settled.order.len() >= MAX_SETTLED
            && let Some(first) = self.settled.first(None)
        {
            self.forget_settled(core, &first);
        }
        self.settled.insert(call, gone);
        self.set_settled_timer(core);
    }

    pub(crate) fn expire_settled(&mut self, core: &mut Core) {
        while let Some(first) = self.settled.first(Some(core.cx.now)) {
            self.forget_settled(core, &first);
        }
        self.set_settled_timer(core);
    }

    fn forget_settled(&mut self, core: &mut Core, call: &CallId) {
        if let Some(gone) = self.settled.forget(call)
            && let Some(stanza) = gone.stop_sent_as()
            && core.delivery.forget_frame(&gone.asked.owner, stanza)
        {
            self.retransmit(core, &gone.asked.owner);
        }
    }

    fn set_settled_timer(&mut self, core: &mut Core) {
        if let Some((until, _)) = self.settled.order.first() {
            core.cx.set_timer(Timer::Past, until.saturating_duration_since(core.cx.now));
        }
    }
}
