//! The lifecycle of peers (join, handshake, replacement, leave) and the end of the session.

use super::{
    Core, Counter, Event, Phase, Session,
    codec::Received,
    delivery::Retransmit,
    ids::Instance,
    peers::{Greeting, Remote},
    recipients::Recipients,
};
use crate::{
    protocol::frame::Configuration,
    tool::{CallError, ErrorCode, ToolError},
    transport::{CloseReason, ConnectionState, Identity, Participant},
};

impl Session {
    pub(super) fn joined(&mut self, who: Participant) {
        let Core { cx, peers, delivery, .. } = &mut self.core;
        let (id, sid) = (who.identity().clone(), who.sid().clone());
        if id == *cx.local.identity() {
            // The server describes the local participant, so it has announced it to the others.
            if sid == *cx.local.participant.sid() && cx.local.unannounced_until.take().is_some() {
                self.outgoing.start_silence_timeouts(&mut self.core);
            }
            return;
        }
        if id.is_empty() {
            return;
        }
        peers.handle_joined(cx, delivery, who);
        self.outgoing.expect(&mut self.core, &id);
        let Core { cx, peers, delivery, .. } = &mut self.core;
        peers.greet(cx, delivery, &id);
        peers.bind_candidate(cx, delivery);
        for (from, received) in self.core.peers.release(&id, &sid) {
            self.accept(&from, received);
        }
    }

    pub(super) fn connection_state_changed(&mut self, state: ConnectionState) {
        if state == self.connection {
            return;
        }
        self.connection = state;
        let Core { cx, peers, delivery, .. } = &mut self.core;
        match state {
            ConnectionState::Reconnecting => cx.timers.pause(cx.now),
            ConnectionState::Connected => {
                cx.timers.resume(cx.now);
                delivery.restart_stream_timeouts(cx.now);
                peers.restart_peer_timeouts(cx.now);
                self.send_all_unsent();
            }
        }
        self.core.cx.event(Event::ConnectionState(state));
    }

    /// Handles a rejoin of the local participant under another sid.
    pub(super) fn rejoined(&mut self, local: Participant, present: Vec<Participant>) {
        let Core { cx, peers, delivery, .. } = &mut self.core;
        let has_moved = local.sid() != cx.local.participant.sid();
        cx.local.participant = local;
        if has_moved {
            cx.local.unannounced_until = Some(super::later(cx.now, cx.config.times.announcement));
            peers.begin_new_pairs(cx, delivery);
        }
        // The connection is reported after the new pairs exist. Otherwise waiting frames would be sent to peers that do
        // not know the new sid.
        if self.connection == ConnectionState::Reconnecting {
            self.connection_state_changed(ConnectionState::Connected);
        } else if has_moved {
            self.send_all_unsent();
        }
        let Core { cx, peers, delivery, .. } = &mut self.core;
        for peer in peers.missing_from(&present) {
            peers.handle_left(cx, delivery, &peer);
        }
        for who in present {
            self.joined(who);
        }
        let Core { cx, peers, delivery, .. } = &mut self.core;
        peers.greet_named(cx, delivery);
    }

    /// Handles a peer's Configuration.
    pub(super) fn configured(&mut self, id: &Identity, received: &Received, its: &Configuration) {
        let Core { cx, peers, delivery, .. } = &mut self.core;
        match peers.handle_configuration(cx, delivery, id, received, its) {
            Greeting::Ignored | Greeting::Repeated { has_heard: true } => {}
            Greeting::Repeated { has_heard: false } => self.retransmit(id),
            Greeting::New { before, instance } => {
                if before != instance {
                    self.outgoing.stop_plain_calls_again(&mut self.core, id);
                }
                match before {
                    Some(before) if Some(&before) != instance.as_ref() => self.replace_instance(id, before),
                    Some(_) => {}
                    None => {
                        self.incoming.forget_plain_run(&mut self.core, id, received.stanza());
                        self.incoming.raise_floor(&mut self.core, id);
                    }
                }
                let Core { cx, peers, delivery, .. } = &mut self.core;
                peers.complete_handshake(cx, delivery, id, received);
                self.crossed(id);
            }
        }
    }

    /// Handles another instance of the same identity.
    pub(super) fn replace_instance(&mut self, id: &Identity, before: Instance) {
        tracing::debug!(peer = %id, "the peer's instance was replaced");
        self.core.delivery.forget_pair(id);
        self.outgoing.reassign_calls(&mut self.core, id);
        self.core.peers.forget_registration(&mut self.core.cx, id);
        self.incoming.stop_jobs_for(&mut self.core, id);
        self.outgoing.forget_stops(&mut self.core, id);
        if let Some(last) = self.incoming.replace_instance(&mut self.core, id) {
            self.core.peers.replace_instance(id, before, last);
        }
        self.incoming.raise_floor(&mut self.core, id);
    }

    /// Sends the frames again that a peer has not acknowledged.
    pub(super) fn retransmit(&mut self, id: &Identity) {
        let Core { cx, peers, delivery, .. } = &mut self.core;
        match delivery.may_retransmit(cx, peers, id) {
            Retransmit::Later => {}
            Retransmit::NeverSent => self.incoming.send_waiting_results(&mut self.core, id),
            Retransmit::Now => {
                let never_sent = self.incoming.results_never_sent(id);
                self.core.delivery.retransmit(&self.core.cx, id, never_sent);
                if self.core.cx.is_client() {
                    self.incoming.retransmit(&mut self.core, id);
                } else {
                    self.outgoing.retransmit(&mut self.core, id);
                }
            }
        }
    }

    /// Ends all exchange with a peer that has finished with the local participant in this join.
    pub(super) fn part_with(&mut self, id: &Identity) {
        let Core { cx, peers, delivery, .. } = &mut self.core;
        if peers.get(id).is_none() {
            return;
        }
        peers.part(cx, delivery, id);
        self.outgoing.lose_calls(&mut self.core, id, |_| true);
        self.incoming.stop_jobs_for(&mut self.core, id);
        self.outgoing.forget_stops(&mut self.core, id);
        self.incoming.acknowledge_all(&mut self.core, id);
        let Core { cx, peers, delivery, .. } = &mut self.core;
        peers.forget_and_unbind(cx, delivery, id);
    }

    /// Handles the grace timer of a peer that left, or came back under another sid.
    pub(super) fn grace_over(&mut self, id: &Identity) {
        let Some(remote) = self.core.peers.get(id) else { return };
        let (is_here, is_back) = (remote.is_here(), remote.is_reachable());
        self.outgoing.lose_calls_of_other_joins(&mut self.core, id);
        let Some(remote) = self.core.peers.get(id) else { return };
        if !is_back {
            self.incoming.stop_jobs_for(&mut self.core, id);
            self.incoming.abandon(&mut self.core, id);
            // Whether or not the identity is in the room: its former instance did not come back.
            let Core { cx, peers, delivery, .. } = &mut self.core;
            peers.forget_and_unbind(cx, delivery, id);
        } else if let Some(join) = remote.sid().filter(|_| remote.instance().is_none()).cloned() {
            self.incoming.stop_jobs_of_other_joins(&mut self.core, id, &join);
        }
        if !is_here {
            self.dismiss_absent(id);
        }
    }

    /// Forgets a peer that will not return, and other peers that left long ago.
    pub(super) fn dismiss_absent(&mut self, id: &Identity) {
        let Core { cx, peers, delivery, .. } = &mut self.core;
        peers.dismiss_absent(cx, delivery, id);
        for id in peers.forget_old_identities(cx, |id| self.incoming.remembers(id)) {
            self.incoming.forget(&id);
            delivery.forget_pair(&id);
        }
    }

    /// Ends the session. `is_orderly` states whether peers are sent a goodbye.
    pub(super) fn end(&mut self, reason: CloseReason, is_orderly: bool) {
        if is_orderly {
            self.core.say_goodbye();
        } else {
            self.core.peers.clear(); // no peer can be reached
        }
        let close = |owner: Option<Identity>| match owner {
            Some(owner) if !is_orderly => CallError::Lost { owner },
            _ => CallError::Closed(reason.clone()),
        };
        self.outgoing.close(&mut self.core, close);
        for key in self.core.jobs.keys() {
            let error = ToolError::new(ErrorCode::LOST, "the owner left");
            let Core { cx, peers, delivery, jobs } = &mut self.core;
            if let Some(ended) = jobs.abort(cx, peers, delivery, key, error) {
                self.incoming.job_aborted(&mut self.core, ended);
            }
        }
        self.core.cx.timers.clear();
        self.core.peers.clear();
        self.core.delivery.clear();
        self.incoming.clear();
        self.outgoing.clear();
        self.core.cx.event(Event::Closed(reason.clone()));
        self.phase = Phase::Closed(reason);
    }

    /// Continues everything that waited for both Configurations to arrive.
    fn crossed(&mut self, id: &Identity) {
        let is_client = self.core.cx.is_client();
        if is_client {
            let Core { cx, peers, delivery, .. } = &mut self.core;
            peers.bind_candidate(cx, delivery);
            if peers.is_bound(id) {
                peers.register(cx, delivery, id);
            }
            self.incoming.resume(id);
        } else {
            self.outgoing.resume_calls(&mut self.core, id);
        }
        self.take_waiting(id); // first, since these frames may acknowledge frames that would otherwise be sent again
        self.retransmit(id);
        if is_client {
            self.outgoing.send_stops(&mut self.core, id, true);
        } else {
            self.outgoing.send_waiting_stops(&mut self.core, id);
            self.outgoing.stop_calls_ended_meanwhile(&mut self.core, id);
            self.outgoing.look_for_owners(&mut self.core);
        }
    }

    /// Sends every peer the frames that have never been sent to it.
    fn send_all_unsent(&mut self) {
        for id in self.core.peers.ids() {
            if self.core.peers.is_reachable(&id) {
                self.incoming.send_unsent(&mut self.core, &id);
                self.outgoing.send_unsent(&mut self.core, &id);
            }
        }
    }

    /// Handles a peer's goodbye.
    pub(super) fn goodbye(&mut self, id: &Identity) {
        let knows = |remote: &Remote| remote.is_crossed() || remote.instance().is_some();
        if self.core.peers.get(id).is_some_and(knows) {
            self.part_with(id);
        } else {
            self.core.cx.complain(id, Counter::NotPermitted);
        }
    }
}
