//! Handles the lifecycle of peers (join, handshake, replacement, leave) and the end of the session.

use std::time::Duration;

use super::{Exchange, Outgoing};
use crate::{
    protocol::{
        frame::Configuration,
        session::{
            Counter, Event,
            codec::Received,
            core::Core,
            delivery::Retransmit,
            ids::Instance,
            peers::{Greeting, Remote, RightsChange},
            timers::Timer,
        },
    },
    tool::{CallError, ErrorCode, LossCause, StopReason, ToolError},
    transport::{CloseReason, ConnectionState, Identity, Participant, Peer, Sid},
};

/// The interval between two checks of a bound assistant while another one waits for the client.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// How often the silence timeout must pass after a ping before a bound assistant is replaced.
const UNANSWERED: u32 = 3;

impl Exchange {
    pub(crate) fn joined(&mut self, core: &mut Core, who: Participant) {
        let Core { cx, peers, delivery, .. } = core;
        let join = who.peer().clone();
        let (id, sid) = (join.identity().clone(), join.sid());
        if id == *cx.local.identity() {
            // The server describes the local participant, so it has announced it to the others.
            if sid != cx.local.participant.sid() {
                return;
            }
            if who.may_publish_data() && !cx.local.participant.may_publish_data() {
                // The server has granted the permission since it refused a packet.
                cx.permit();
            }
            cx.local.participant = who; // its permissions may have changed
            if cx.local.unannounced_until.take().is_some() {
                Outgoing::start_silence_timeouts(core);
                self.announced(core);
            }
            return;
        }
        if id.as_str().is_empty() {
            return;
        }
        match peers.handle_joined(cx, delivery, who) {
            RightsChange::Lost if cx.is_client() => self.give_up(core, &id),
            RightsChange::Lost => self.outgoing.owner_dismissed(core, &id),
            RightsChange::None | RightsChange::Gained => {}
        }
        self.offer_described(core, &id);
        self.outgoing.expect(core, &id);
        let Core { cx, peers, delivery, .. } = core;
        peers.greet(cx, delivery, &id);
        peers.bind_candidate(cx, delivery);
        for (from, item) in core.peers.held.release(&join) {
            self.accept_held(core, &from, item);
        }
        self.incoming.send_waiting_results(core, &id);
    }

    /// Looks for owners of the waiting calls when the room has announced the local participant, or must have done so.
    pub(super) fn announced(&mut self, core: &mut Core) {
        core.cx.timers.cancel(&Timer::Announced);
        if !core.cx.config.described.is_empty() {
            self.send_all_unsent(core);
            self.outgoing.look_for_owners(core);
        }
    }

    /// Handles a participant that left this join.
    pub(crate) fn left(&mut self, core: &mut Core, who: &Peer) {
        let Core { cx, peers, delivery, .. } = core;
        peers.handle_left(cx, delivery, who);
    }

    /// Client: checks the bound assistant while another one waits for the client.
    ///
    /// One without open calls that the room reports as gone is replaced. One that is present is pinged when it sends
    /// nothing, and replaced when it does not answer and nothing has arrived for the grace period: its process may have
    /// been killed, which the room reports much later.
    pub(super) fn check_assistant(&mut self, core: &mut Core, id: &Identity) {
        let Core { cx, peers, delivery, jobs } = core;
        if peers.bound() != Some(id) || !peers.has_other_candidates(cx, id) {
            return;
        }
        let Some(remote) = peers.get(id) else { return };
        let times = &cx.config.times;
        let silence = cx.now.saturating_duration_since(remote.silent_since());
        let is_replaced = match remote.is_here() {
            // A call in progress outweighs the waiting assistant: its caller may return within the grace
            // period and expects the result.
            false => jobs.held_by(id).jobs == 0 && !self.incoming.has_claims_for(id),
            true if !remote.answers_pings() => return,
            true => {
                // The server reports a killed process only after 20 s. Silence before the first ping shows
                // nothing, because an idle assistant has nothing to send: clients once left it as soon as
                // another one joined.
                silence >= times.grace
                    && remote.unanswered_for(cx.now) >= times.silence.saturating_mul(UNANSWERED)
            }
        };
        if is_replaced {
            tracing::info!(peer = %id, ?silence, "another assistant waits, and the bound one is gone: it is replaced");
            return self.give_up(core, id);
        }
        if remote.is_in_contact(cx) && silence >= times.silence {
            peers.ping(cx, delivery, id);
        }
        cx.set_timer(Timer::Ping(id.clone()), WATCH_EVERY);
    }

    pub(crate) fn connection_state_changed(&mut self, core: &mut Core, state: ConnectionState) {
        if self.note_connection(core, state) {
            self.send_all_unsent(core);
        }
    }

    /// Notes the state of the connection. Returns whether the connection is back.
    fn note_connection(&mut self, core: &mut Core, state: ConnectionState) -> bool {
        if state == core.cx.local.connection {
            return false;
        }
        core.cx.local.connection = state;
        let Core { cx, peers, delivery, .. } = core;
        match state {
            ConnectionState::Reconnecting => cx.timers.pause(cx.now),
            ConnectionState::Connected => {
                // The last packets of all peers are older now by the length of the outage. Without new
                // starting points, the timeouts that have just been resumed would expire because of it.
                cx.timers.resume(cx.now);
                delivery.restart_timeouts(cx.now);
                peers.restart_peer_timeouts(cx.now);
            }
        }
        core.cx.event(Event::ConnectionState(state));
        state == ConnectionState::Connected
    }

    /// Handles a rejoin of the local participant under another sid.
    pub(crate) fn rejoined(&mut self, core: &mut Core, local: Participant, present: Vec<Participant>) {
        let Core { cx, peers, delivery, .. } = core;
        let has_moved = local.sid() != cx.local.participant.sid();
        cx.local.participant = local;
        if has_moved {
            cx.await_announcement();
            peers.begin_new_pairs(cx, delivery);
            if cx.local.participant.may_publish_data() {
                cx.permit();
            }
        }
        let is_back = self.note_connection(core, ConnectionState::Connected);
        let Core { cx, peers, delivery, .. } = core;
        // The server does not report what happened between the joins, so a participant that is not listed has
        // left.
        for peer in peers.missing_from(&present) {
            peers.handle_left(cx, delivery, &peer);
        }
        for who in present {
            self.joined(core, who);
        }
        // After the list, which says who is here: otherwise another participant of the same identity would get what waits.
        if is_back || has_moved {
            self.send_all_unsent(core);
        }
        core.peers.greet_named(&mut core.cx, &mut core.delivery);
    }

    /// Handles a peer's Configuration.
    pub(super) fn configured(
        &mut self,
        core: &mut Core,
        id: &Identity,
        received: &Received,
        its: &Configuration,
    ) {
        let Core { cx, peers, delivery, .. } = core;
        match peers.handle_configuration(cx, delivery, id, received, its) {
            Greeting::Ignored | Greeting::Repeated { may_lack_frames: false } => {}
            Greeting::Repeated { may_lack_frames: true } => self.retransmit(core, id),
            Greeting::New { before, instance } => {
                if instance.is_some() {
                    peers.withdraw_described(cx, id);
                }
                if before != instance {
                    // A call in the plain form may have reached this instance, whichever one has acknowledged
                    // its stop.
                    self.outgoing.stop_plain_calls_again(core, id);
                }
                match before.clone() {
                    Some(before) if Some(&before) != instance.as_ref() => {
                        self.replace_instance(core, id, before)
                    }
                    Some(_) => {}
                    None => {
                        if instance.is_some() && !core.peers.get(id).is_some_and(Remote::is_plain) {
                            self.incoming.end_earlier_joins(core, id);
                        }
                        // The plain requests before may be of another run. Its floor must not apply to this
                        // one, whose first requests would be refused with 304 (`wire.md`, section 5.1).
                        self.incoming.forget_plain_run(core, id, received.stanza());
                        self.incoming.raise_floor(core, id);
                    }
                }
                // After the old instance has been replaced: from here on frames are exchanged with the new
                // one, which must not find the calls, jobs and registration of the old one.
                let earlier = core.peers.complete_handshake(&mut core.cx, &mut core.delivery, id, received);
                self.incoming.continue_join(core, id, earlier);
                self.crossed(core, id);
            }
        }
    }

    /// Handles another instance of the same identity.
    pub(super) fn replace_instance(&mut self, core: &mut Core, id: &Identity, before: Instance) {
        tracing::debug!(peer = %id, "the peer's instance was replaced");
        // First, so that no timer or window sends a frame for the old instance to the new one.
        core.delivery.forget_pair(id);
        self.views.forget(core, id);
        self.end_shown(core, id);
        // Before the registration is forgotten, which says which tools are idempotent.
        self.outgoing.reassign_calls(core, id);
        // What it registered in this join before its Configuration, which was late, is the new one's.
        if !core.peers.get(id).is_some_and(|it| it.is_plain() && it.is_registered()) {
            core.peers.forget_registration(&mut core.cx, id);
        }
        self.incoming.stop_jobs_of(core, id, |_| true);
        self.outgoing.forget_stops(core, id);
        let last = self.incoming.replace_instance(core, id);
        if let Some(remote) = core.peers.get_mut(id) {
            remote.replace_instance(before, last.unwrap_or(0));
        }
        self.incoming.raise_floor(core, id);
    }

    /// Sends the frames again that a peer has not acknowledged.
    pub(super) fn retransmit(&mut self, core: &mut Core, id: &Identity) {
        let Core { cx, peers, delivery, .. } = core;
        match delivery.may_retransmit(cx, peers, id) {
            Retransmit::Later => {}
            Retransmit::NeverSent => {
                self.incoming.send_waiting_results(core, id);
                self.views.send_due_to(core, id);
            }
            Retransmit::Now => {
                self.views.send_again_to(core, id, false);
                core.delivery.retransmit(&core.cx, id, self.incoming.results_never_sent(id));
                if core.cx.is_client() {
                    self.incoming.retransmit(core, id);
                } else {
                    self.outgoing.retransmit(core, id);
                }
            }
        }
    }

    /// Ends all exchange with a peer that has finished with the local participant in this join.
    pub(super) fn part_with(&mut self, core: &mut Core, id: &Identity) {
        let Core { cx, peers, delivery, .. } = core;
        if peers.get(id).is_none() {
            return;
        }
        // First, because nothing is sent to a peer that has left. Otherwise the calls and jobs that end below
        // would each send it a stop or a result.
        peers.part(cx, delivery, id);
        self.outgoing.lose_calls(core, id, LossCause::Left, |_| true);
        self.incoming.stop_jobs_of(core, id, |_| true);
        self.outgoing.forget_stops(core, id);
        self.incoming.acknowledge_all(core, id);
        self.views.forget(core, id);
        self.end_shown(core, id);
        core.peers.forget_and_unbind(&mut core.cx, &mut core.delivery, id);
    }

    /// Ends all exchange with a participant that is gone, or has no rights any more. Its results are kept for a while, in case
    /// it returns.
    fn give_up(&mut self, core: &mut Core, id: &Identity) {
        self.incoming.stop_jobs_of(core, id, |_| true);
        self.incoming.abandon(core, id);
        self.end_shown(core, id);
        core.peers.forget_and_unbind(&mut core.cx, &mut core.delivery, id);
    }

    /// Client: ends what an assistant shows, before the client unbinds it or takes another instance for it.
    fn end_shown(&mut self, core: &mut Core, id: &Identity) {
        self.views.end_seen(core, id);
        self.incoming.observed.end_all(core, id);
    }

    /// Handles the end of the grace period of a join: what was requested in it and not continued stops. If it was the last in
    /// which calls were possible, it has not returned, since that ends the grace period. Another program may be in the room under
    /// its identity.
    pub(super) fn grace_over(&mut self, core: &mut Core, id: &Identity, join: &Sid) {
        if !core.peers.get(id).is_some_and(|remote| remote.is_at(join)) {
            self.incoming.stop_jobs_of(core, id, |joins| joins.last == *join);
        }
        if !core.peers.is_grace_over(id, join) {
            return;
        }
        self.outgoing.lose_calls_of_other_joins(core, id);
        let Core { cx, peers, .. } = core;
        peers.end_process(id);
        let Some(remote) = peers.get(id) else { return };
        let is_here = remote.is_here();
        if !remote.is_in_contact(cx) {
            self.give_up(core, id);
            if !is_here {
                self.dismiss_absent(core, id);
            }
        } else if remote.present_instance().is_none() {
            self.end_shown(core, id);
            self.incoming.abandon(core, id);
        }
        self.offer_described(core, id);
    }

    /// Forgets a peer that will not return, and other peers that left long ago.
    pub(super) fn dismiss_absent(&mut self, core: &mut Core, id: &Identity) {
        let Core { cx, peers, delivery, .. } = core;
        peers.dismiss_absent(cx, delivery, id);
        for id in peers.forget_old_identities(cx, |id| self.incoming.remembers(id)) {
            self.incoming.forget(&id);
            core.delivery.forget_pair(&id);
            self.views.forget(core, &id);
        }
    }

    /// Ends the session. `is_orderly` states whether peers are sent a goodbye.
    pub(crate) fn end(&mut self, core: &mut Core, reason: &CloseReason, is_orderly: bool) {
        if is_orderly {
            // Before the goodbye, which ends the other calls as perhaps run.
            self.incoming.refuse_unstarted(core);
            // Before the calls are settled: the goodbye ends all of them at its receiver. Nothing is sent to
            // that peer afterwards, so there is no stop for each call.
            core.say_goodbye();
        } else {
            core.peers.clear(); // no peer can be reached
        }
        let close = |owner: Option<Identity>, may_have_run: bool| match owner {
            _ if !may_have_run => CallError::NotInRoom(reason.clone()),
            Some(owner) if !is_orderly => CallError::Lost { owner, why: LossCause::Disconnected },
            _ => CallError::Closed(reason.clone()),
        };
        self.outgoing.close(core, close);
        for key in core.jobs.keys() {
            let error = ToolError::new(ErrorCode::LOST, "the owner left");
            if let Some(ended) = core.abort_job(key, StopReason::Leaving, error) {
                self.incoming.job_aborted(core, ended);
            }
        }
        core.cx.timers.clear();
        core.peers.clear();
        core.delivery.clear();
        self.incoming.clear();
        self.outgoing.clear();
        core.cx.event(Event::Closed(reason.clone()));
    }

    /// Continues everything that waited for both Configurations to arrive.
    fn crossed(&mut self, core: &mut Core, id: &Identity) {
        let is_client = core.cx.is_client();
        if is_client {
            let Core { cx, peers, delivery, .. } = core;
            peers.bind_candidate(cx, delivery);
            if peers.is_bound(cx, id) {
                peers.register(cx, delivery, id);
            }
            self.incoming.resume(id);
        } else {
            self.outgoing.resume_calls(core, id);
        }
        self.take_waiting(core, id); // first, since these frames may acknowledge frames that would otherwise be sent again
        self.retransmit(core, id);
        if is_client {
            self.outgoing.send_stops(core, id, true);
        } else {
            self.outgoing.send_waiting_stops(core, id);
            self.outgoing.stop_calls_ended_meanwhile(core, id);
            // Calls that waited are sent after the retransmission, so that their stanzas rise above it
            // (`wire.md`, section 5.2).
            self.outgoing.look_for_owners(core);
        }
    }

    /// Sends every peer what was not sent: the connection or the permission is back, or the room knows the local
    /// participant.
    pub(super) fn send_all_unsent(&mut self, core: &mut Core) {
        core.delivery.send_waiting(&mut core.cx, None);
        for id in core.peers.ids() {
            self.incoming.send_waiting_results(core, &id);
            let is_called = |remote: &Remote| remote.is_reachable() || remote.reach(&core.cx).is_some();
            if core.peers.get(&id).is_some_and(is_called) {
                self.incoming.claims_again(core, &id);
                self.outgoing.send_unsent(core, &id, true);
                self.views.send_due_to(core, &id);
            }
        }
    }

    /// Handles a peer's goodbye.
    pub(super) fn goodbye(&mut self, core: &mut Core, id: &Identity) {
        if core.peers.has_counterpart(&core.cx, id) || core.peers.get(id).is_some_and(Remote::is_known) {
            self.part_with(core, id);
        } else {
            core.cx.complain(id, Counter::NotPermitted);
            let Core { cx, peers, delivery, .. } = core;
            peers.part(cx, delivery, id); // it may get rights in this join
        }
    }
}
