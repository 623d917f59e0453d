//! Stops and goodbyes (type 10), in both directions.

use std::time::Instant;

use super::{
    Counter, JobKey, Session, codec,
    codec::Incoming,
    lane::FastLane,
    past::Stop,
    peer::{Presence, Remote},
    send::Sent,
    table::State,
};
use crate::{
    protocol::frame::{ControlStop, Message, Meta},
    tool::{CallError, CallId},
    transport::{Identity, Peer},
};

impl Session {
    /// Tells the owner of a call that was settled without its answer to stop, once it can be reached.
    pub(super) fn stop_owner(&mut self, call: &CallId) {
        let Some(gone) = self.past.get(call).filter(|gone| *gone.stop() == Stop::Waiting) else { return };
        let asked = gone.asked();
        let owner = asked.owner.clone();
        // Another instance knows nothing of it; the one that was asked may still come back. Whoever was asked
        // in the plain form may be any that is there now: it need not be, and a stop of what it has not does no harm.
        let may_run_it = |remote: &Remote| {
            let was_asked = asked.is_of(&owner, remote) || asked.instance.is_none();
            remote.is_reachable() && was_asked
        };
        if !self.peers.get(&owner).is_some_and(may_run_it) {
            return;
        }
        let message = self.stop_message(call);
        let sent = self.post_small(&owner, &message);
        self.copy(&Meta::default(), &message);
        if let Some(sent) = sent {
            self.past.stop_sent(call, sent.stanza, sent.packet);
        }
    }

    /// Sends a stop again, under the stanza that it had. None if its owner knows of it.
    pub(super) fn stop_again(&mut self, call: &CallId) -> Option<Sent> {
        let gone = self.past.get(call)?;
        let owner = gone.asked().owner.clone();
        let Stop::Sent { stanza, .. } = *gone.stop() else {
            self.stop_owner(call);
            return None;
        };
        let message = self.stop_message(call);
        let sent = self.post_again(&owner, stanza, &Meta::default(), &message).ok()?;
        self.past.stop_sent(call, stanza, sent.packet);
        Some(sent)
    }

    fn stop_message(&self, call: &CallId) -> Message {
        Message::ControlStop(ControlStop {
            conversation_id: Some(self.config.room.clone()),
            target_id: Some(call.as_str().to_owned()),
            ..ControlStop::default()
        })
    }

    /// An owner can be reached again: the stops that it was not sent go.
    pub(super) fn send_waiting_stops(&mut self, owner: &Identity) {
        for call in self.past.waiting_stops(owner) {
            self.stop_owner(&call);
        }
    }

    /// A replaced instance has returned: the assistant sends it a stop for each of its calls that has ended since.
    pub(super) fn stop_what_ended_meanwhile(&mut self, now: Instant, owner: &Identity) {
        let Some(remote) = self.peers.get(owner).filter(|remote| remote.is_crossed()) else { return };
        let Some(instance) = remote.instance.clone() else { return };
        for call in self.past.may_be_run_by(now, owner, &instance) {
            let message = self.stop_message(&call);
            self.post_small(owner, &message);
        }
    }

    pub(super) fn stop_acknowledged(&mut self, owner: &Identity, stanza: i32) {
        self.past.stop_known(owner, stanza);
    }

    /// The owner took a request whose call had ended: it is told to stop, if it was not.
    pub(super) fn stop_what_was_delivered(&mut self, owner: &Identity, stanza: i32, named: Option<&str>) {
        if let Some(call) =
            self.past.waiting_stop_of(owner, stanza).filter(|call| codec::may_mean(named, call))
        {
            self.stop_owner(&call);
        }
    }

    /// Client: a stop or goodbye came.
    pub(super) fn client_stop_came(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        stop: &ControlStop,
    ) {
        if !self.peers.get(id).is_some_and(|remote| self.may_be_assistant(id, remote)) {
            return self.complain(now, id, Counter::Stranger);
        }
        if incoming.is_goodbye() {
            return self.goodbye_came(now, id);
        }
        self.acknowledge_always(id, incoming.stanza(), None);
        match &stop.target_id {
            Some(target) if target.len() <= self.config.caps.id_bytes => {
                self.stop_one(now, id, incoming.stanza(), &target.as_str().into())
            }
            Some(_) => self.complain(now, id, Counter::Malformed),
            None => self.stop_all_jobs_for(now, id),
        }
    }

    /// Assistant: a stop or goodbye came.
    pub(super) fn assistant_stop_came(
        &mut self,
        now: Instant,
        id: &Identity,
        incoming: &Incoming,
        stop: &ControlStop,
    ) {
        let Some(remote) = self.peers.get(id) else { return };
        if incoming.is_goodbye() && self.is_counterpart(id, remote) {
            return self.goodbye_came(now, id);
        }
        if !self.may_stop(remote) {
            let what = if self.is_counterpart(id, remote) { Counter::Foreign } else { Counter::Stranger };
            return self.complain(now, id, what);
        }
        self.acknowledge_always(id, incoming.stanza(), None);
        let Some(target) = &stop.target_id else { return self.stop_all(now) };
        if let Some(key) = self.calls.key_of(&CallId::from(target.as_str())) {
            self.settle_call(now, key, Err(CallError::Cancelled));
        }
    }

    /// Says goodbye to everybody we shook hands with.
    pub(super) fn say_goodbye(&mut self) {
        let known: Vec<_> = self
            .peers
            .iter()
            .filter(|(_, remote)| remote.is_crossed() && !remote.pair.plain)
            .map(|(id, _)| id.clone())
            .collect();
        for id in known {
            self.lane_last_word(&id);
            let message = Message::ControlStop(ControlStop {
                conversation_id: Some(self.config.room.clone()),
                stop_type: Some("all".to_owned()),
                ..ControlStop::default()
            });
            if let Err(error) = self.post(&id, &codec::goodbye(), &message) {
                tracing::warn!(peer = %id, ?error, "a goodbye cannot be sent");
            }
            if let Some(remote) = self.peers.get_mut(&id) {
                remote.pair.left = true; // nothing follows a goodbye
                remote.pair.lane = FastLane::default();
            }
        }
    }

    /// Whether this is the goodbye of a peer of which the room has told before that it left.
    pub(super) fn is_late_goodbye(&self, from: &Peer, incoming: &Incoming) -> bool {
        let Some(remote) = self.peers.get(from.identity()) else { return false };
        remote.presence == Presence::Away(from.sid().clone())
            && remote.left_crossed
            && !remote.pair.left
            && matches!(incoming.message, Message::ControlStop(_))
            && incoming.is_goodbye()
            && self.is_counterpart(from.identity(), remote)
    }

    /// A peer that shook hands leaves in order: nothing of it is waited for.
    fn goodbye_came(&mut self, now: Instant, id: &Identity) {
        let knows_us = |remote: &Remote| remote.is_crossed() || remote.instance.is_some();
        if !self.peers.get(id).is_some_and(knows_us) {
            return self.complain(now, id, Counter::Foreign);
        }
        self.part_with(now, id);
    }

    /// A peer is done with us in this join: everything between us ends now.
    pub(super) fn part_with(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.pair.left = true;
        remote.pair.lane = FastLane::default();
        for timer in
            [super::Timer::Grace, super::Timer::Heartbeat, super::Timer::Register, super::Timer::Ping]
        {
            self.timers.cancel(&timer(id.clone()));
        }
        self.end_streams(id);
        self.lose_calls(now, id, |_| true);
        self.stop_jobs_for(now, id);
        self.forget_stops(id);
        if let Some(table) = self.tables.get_mut(id) {
            table.acknowledge_all(now);
        }
        self.set_table_timer(now, id);
        self.forget_registration(id);
        self.unbind(now, id);
    }

    /// Client: a caller stops one of its calls.
    fn stop_one(&mut self, now: Instant, id: &Identity, stanza: Option<i32>, call: &CallId) {
        let found = self.tables.get(id).and_then(|table| table.find(call));
        let running: Option<JobKey> = match found.map(|entry| &entry.state) {
            Some(State::Running(job)) => Some(*job),
            Some(State::Claiming) => return self.cancel_claim(now, id, call),
            Some(_) => {
                self.stats.add(Counter::Duplicate, 1);
                return self.withdraw_answer(now, id, call);
            }
            None => None,
        };
        match running {
            Some(job) => self.cancel_job(now, job),
            None if self.bound.as_ref() == Some(id) => {
                let table = self.tables.entry(id.clone()).or_default();
                table.bury(now, call, stanza, self.config.times.longest_call, &self.config.caps);
                self.set_table_timer(now, id);
            }
            None => {}
        }
    }
}
