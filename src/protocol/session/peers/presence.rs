//! Tracks the participants in the room by the server's announcements and by the sids of packets.

use std::{collections::BinaryHeap, time::Duration};

use super::{
    Context, Counter, Delivery, Feature, Instance, Peers, Received, Remote, Timer,
    admission::RightsChange,
    contact::Signal,
    handshake::is_proven,
    held::HeldItem,
    reach::OtherForms,
    remote::{Join, Pair, Presence},
};
use crate::{
    clock::Instant,
    protocol::{
        frame::{Message, ViewUpdate},
        session::Event,
    },
    transport::{Identity, Participant, Peer, ROLE_ATTRIBUTE, Sid},
};

/// The shortest interval between two checks of a provisional sid, however short the wait, so that time can advance.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// Whether a frame can be handled now.
#[derive(Debug)]
pub(crate) enum SenderStanding {
    /// Its sender is in the join that the frame states.
    Current,
    /// The frame is a Configuration and has moved its sender to an unannounced sid. These frames of that sid were held.
    Moved(Vec<(Peer, HeldItem)>),
    /// Its sender is not known yet.
    Early,
    /// Its sender has left that join, or is in another one.
    Dead,
}

impl Peers {
    /// Handles a participant that is in the room or whose description has changed.
    pub(crate) fn handle_joined(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        who: Participant,
    ) -> RightsChange {
        let (id, sid) = (who.identity().clone(), who.sid().clone());
        let remote = self.known(cx, &id);
        if remote.is_unannounced() && remote.join.fallback.as_ref().is_some_and(|old| *old.sid() == sid) {
            // The server describes the join that an unannounced one has replaced. The news of the latter is on its way.
            let continues = remote.join.participant.is_some();
            remote.join.fallback = Some(who.clone());
            return self.describe(cx, delivery, &id, continues.then_some(who));
        }
        remote.join.fallback = None; // the server confirms that it was replaced
        remote.revive(&sid);
        let is_news = match &mut remote.presence {
            Presence::Here { sid: current, announced } if *current == sid => {
                !std::mem::replace(announced, true)
            }
            _ => {
                self.move_to(cx, delivery, &id, sid, Join::default(), true);
                true
            }
        };
        cx.timers.cancel(&Timer::Provisional(id.clone()));
        let is_doubtful = who.attribute(ROLE_ATTRIBUTE).is_some() && who.token_role().is_none();
        if is_news {
            cx.event(Event::Joined(who.clone()));
        }
        if is_doubtful {
            cx.complain(&id, Counter::UntrustedRole);
        }
        let change = self.describe(cx, delivery, &id, Some(who));
        self.look_for_assistant(cx);
        self.show_registration(cx, delivery, &id);
        change
    }

    /// Handles a participant that left this join.
    pub(crate) fn handle_left(&mut self, cx: &mut Context, delivery: &mut Delivery, who: &Peer) {
        let (id, sid) = (who.identity(), who.sid());
        // Whichever join is present: the leave of an earlier one can arrive after the next one has been
        // announced.
        self.held.forget(who);
        let Some(remote) = self.remotes.get_mut(id) else { return };
        remote.mark_dead(sid.clone());
        if remote.join.fallback.as_ref().is_some_and(|old| old.sid() == sid) {
            remote.join.fallback = None;
        }
        if remote.sid() == Some(sid) {
            self.leave(cx, delivery, id, sid.clone());
            self.bind_candidate(cx, delivery);
            self.admit_the_only_one(cx, delivery);
        }
    }

    /// Returns whether a frame can be handled now. A Configuration may move its sender to a sid that the server has not
    /// announced.
    pub(crate) fn place(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        from: &Peer,
        incoming: &Received,
    ) -> SenderStanding {
        let (id, sid) = (from.identity(), from.sid());
        let Some(remote) = self.get(id) else { return SenderStanding::Early };
        // Announcements and packets travel on different connections, so packets of a join can arrive after
        // its leave.
        if remote.is_dead(sid) {
            return SenderStanding::Dead;
        }
        let is_configuration = matches!(incoming.message, Message::Configuration(_));
        if remote.is_at(sid) {
            let is_other = || {
                let is_it = |it: &Instance| Some(it.as_str()) == incoming.instance();
                !self.is_named(cx, id) && !remote.present_instance().is_some_and(is_it)
            };
            let must_wait = is_configuration && remote.is_unannounced() && is_other();
            return if must_wait { SenderStanding::Early } else { SenderStanding::Current };
        }
        // Nothing that the server announced about another join gives this one a right. It is known by the author's own
        // word, or as the process of the announced join, which has proven that.
        let continues = self.continues(cx, from, remote, incoming);
        if !is_configuration || !(continues || self.is_named(cx, id)) {
            return SenderStanding::Early;
        }
        self.move_provisionally(cx, delivery, from, continues);
        SenderStanding::Moved(self.held.release(from))
    }

    /// Returns whether a Configuration from another sid proves that its sender is the process of the present join, which this
    /// one continues.
    fn continues(&self, cx: &Context, from: &Peer, remote: &Remote, incoming: &Received) -> bool {
        let Some(shown) = incoming.instance() else { return false };
        remote.may_move(shown, incoming.stanza()) && is_proven(cx, shown, from, incoming.proof())
    }

    /// Keeps a frame until its sender is announced, and asks the sender for its Configuration.
    pub(crate) fn hold(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        from: &Peer,
        incoming: Received,
    ) {
        self.held.hold(cx, from, HeldItem::Frame(incoming), Timer::Unannounced);
        self.ask_for_configuration(cx, delivery, from.identity());
    }

    /// Returns who has sent a packet if its sid is that of its identity. An agent can name another sender, but no other sid.
    pub(crate) fn named<'a>(&self, from: &'a Peer) -> Option<&'a Identity> {
        self.get(from.identity()).is_some_and(|it| it.is_at(from.sid())).then(|| from.identity())
    }

    /// Returns whether a frame of this sender may arrive as a byte stream: it must be a counterpart in the join that
    /// the packet states.
    pub(crate) fn may_stream(&self, cx: &Context, from: &Peer) -> bool {
        let id = from.identity();
        let is_known = |remote: &Remote| {
            remote.is_at(from.sid()) && !remote.has_left() && self.is_counterpart(cx, id, remote)
        };
        !id.as_str().is_empty() && id != cx.local.identity() && self.get(id).is_some_and(is_known)
    }

    /// Handles the timer of an unannounced sid that a Configuration showed. A peer that still sends packets is in the
    /// room. Otherwise it has left; if the server lists an earlier join of it, that participant is returned.
    pub(crate) fn check_provisional(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
    ) -> Option<Participant> {
        let remote = self.remotes.get_mut(id)?;
        let heard = remote.silent_since();
        if cx.now.saturating_duration_since(heard) >= cx.config.times.hold {
            if let Some(listed) = remote.join.fallback.take() {
                return Some(listed);
            }
            if let Presence::Here { sid, announced: false } = remote.presence.clone() {
                // It left before the server announced it, so the server will not announce its departure either.
                self.leave(cx, delivery, id, sid);
                self.bind_candidate(cx, delivery);
            }
            return None;
        }
        if remote.is_crossed() && remote.lists(Feature::Ack) {
            // A local participant without signaling gets no announcements. The answer is then all that shows
            // that the peer is there (`wire.md`, section 6).
            delivery.to(cx, self, id).ping();
        }
        schedule_provisional_check(cx, id, heard);
        None
    }

    /// Returns whether a later frame about the same has arrived, which has replaced this one.
    pub(crate) fn is_replaced(&mut self, id: &Identity, received: &Received) -> bool {
        let about = match &received.message {
            Message::ToolsRegister(_) | Message::ToolsRegisterAck(_) => "",
            Message::ViewUpdate(view) if view.view.len() <= ViewUpdate::MAX_NAME => view.view.as_str(),
            _ => return false,
        };
        let (Some(remote), Some(stanza)) = (self.remotes.get_mut(id), received.stanza()) else {
            return false;
        };
        stanza != 0 && remote.pair.is_replaced((received.frame.kind(), about.into()), stanza.unsigned_abs())
    }

    /// Notes that a packet of this peer arrived.
    pub(crate) fn note_packet(&mut self, cx: &Context, id: &Identity) {
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.note_packet(cx.now);
        }
    }

    /// Returns whether a frame must be dropped because its sender has said goodbye. Only the Configuration of another
    /// instance is accepted then: it starts a new handshake.
    pub(crate) fn is_after_goodbye(
        &mut self,
        delivery: &mut Delivery,
        id: &Identity,
        incoming: &Received,
    ) -> bool {
        let Some(remote) = self.remotes.get_mut(id).filter(|remote| remote.has_left()) else { return false };
        let is_new_run = matches!(incoming.message, Message::Configuration(_))
            && incoming.instance().is_some_and(|it| Some(it) != remote.instance().map(Instance::as_str));
        if is_new_run {
            (remote.pair, remote.join.other) = (Pair::default(), OtherForms::default());
            remote.join.asked_for_admission = false;
            delivery.forget_pair(id);
            self.unconfigured.forget_all(id);
        }
        !is_new_run
    }

    /// Excuses the silence of a peer while the local participant may not send: no ping asks for an answer then.
    pub(crate) fn excuse_silence(&mut self, cx: &Context, id: &Identity) {
        if let Some(remote) = self.remotes.get_mut(id).filter(|_| cx.local.cannot_publish()) {
            remote.restart_silence(cx.now);
        }
    }

    /// Restarts the timeouts of peers after an outage of the local connection.
    pub(crate) fn restart_peer_timeouts(&mut self, now: Instant) {
        for remote in self.remotes.values_mut() {
            remote.restart_silence(now);
            // A registration could not arrive during the outage, so the time in which it must arrive begins
            // again.
            remote.pair.crossed_at = remote.pair.crossed_at.map(|_| now);
            remote.pair.settled = false;
        }
    }

    /// Resets the state of all pairs because the local sid has changed. Plain peers remain plain.
    pub(crate) fn begin_new_pairs(&mut self, cx: &mut Context, delivery: &mut Delivery) {
        delivery.forget_posted_to_room();
        for (id, remote) in &mut self.remotes {
            cancel_pair_timers(cx, id);
            self.unconfigured.forget_all(id);
            // A plain peer is never sent a frame again, so its large packets are not dropped. Nor are requests in other
            // forms, which may have arrived.
            delivery.reset_pair(id, !remote.is_plain() && remote.takes_frames(cx, id), None);
            let contact = remote.pair.contact.after(Signal::Void);
            remote.pair = Pair { contact, ..Pair::default() };
            remote.restart_silence(cx.now);
            remote.join.shown = false;
        }
    }

    /// Returns the peers that are not among these participants, whom the server has listed.
    pub(crate) fn missing_from(&mut self, present: &[Participant]) -> Vec<Peer> {
        for remote in self.remotes.values_mut() {
            remote.join.fallback = None; // the list is newer than any unannounced join
        }
        // By identity: a participant that is listed under another sid has rejoined, and `joined` moves it.
        let is_listed = |id: &Identity| present.iter().any(|who| who.identity() == id);
        self.present().filter(|(id, _)| !is_listed(id)).map(|(id, remote)| remote.peer(id)).collect()
    }

    /// Returns whether this is the goodbye of a peer whose departure the server has already announced.
    pub(crate) fn is_late_goodbye(&self, cx: &Context, from: &Peer, incoming: &Received) -> bool {
        let Some(remote) = self.get(from.identity()) else { return false };
        remote.presence == Presence::Away { sid: from.sid().clone(), crossed: true }
            && !remote.has_left()
            && incoming.is_goodbye()
            && self.is_counterpart(cx, from.identity(), remote)
    }

    /// Marks that one side has said goodbye, and stops the timers of the peer.
    pub(crate) fn part(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        remote.pair.signal(Signal::Goodbye);
        remote.end_process();
        delivery.reset_lane(id);
        // The grace period ends with the goodbye: what it protects has just ended.
        remote.departed = None;
        for timer in [Timer::Heartbeat, Timer::Register, Timer::Ping] {
            cx.timers.cancel(&timer(id.clone()));
        }
        delivery.end_streams(id, !remote.is_plain(), None);
    }

    /// Handles the end of a join's grace period. Returns whether it is that of the last one in which calls were possible.
    pub(crate) fn is_grace_over(&mut self, id: &Identity, join: &Sid) -> bool {
        self.remotes.get_mut(id).is_some_and(|it| it.departed.take_if(|departed| departed == join).is_some())
    }

    /// Handles the end of the grace period: the process that left has not returned.
    pub(crate) fn end_process(&mut self, id: &Identity) {
        if let Some(remote) = self.remotes.get_mut(id).filter(|it| it.present_instance().is_none()) {
            remote.end_process();
        }
    }

    /// Marks that the local participant has said goodbye to this peer.
    pub(crate) fn said_goodbye(&mut self, delivery: &mut Delivery, id: &Identity) {
        if let Some(remote) = self.remotes.get_mut(id) {
            remote.pair.signal(Signal::Goodbye);
            delivery.reset_lane(id);
        }
    }

    /// Forgets the oldest identities that left and have no state to keep, beyond
    /// [`RequestCaps::remembered_peers`](crate::protocol::session::RequestCaps::remembered_peers). Returns the forgotten ones.
    pub(crate) fn forget_old_identities(
        &mut self,
        cx: &mut Context,
        is_needed: impl Fn(&Identity) -> bool,
    ) -> Vec<Identity> {
        let is_forgettable = |id: &Identity, remote: &Remote| {
            !remote.is_here() && remote.departed.is_none() && !self.is_named(cx, id) && !is_needed(id)
        };
        let (mut forgotten, mut rest) = (Vec::new(), BinaryHeap::new());
        for (id, remote) in self.remotes.iter().filter(|(id, remote)| is_forgettable(id, remote)) {
            match remote.process {
                // Without an instance a returning peer counts as another caller in any case, so its requests
                // would not be recognized.
                None => forgotten.push(id.clone()),
                Some(_) => rest.push((remote.heard_at(), id.clone())),
            }
        }
        let most = cx.config.caps.requests.remembered_peers;
        if rest.len() > most {
            let excess = rest.len() - most / 2; // half of them at once, so that this is rare
            forgotten.extend(rest.into_sorted_vec().into_iter().take(excess).map(|(_, id)| id));
        }
        for id in &forgotten {
            self.remotes.remove(id);
            self.observers.remove(id);
            for timer in [Timer::Ping, Timer::Table] {
                cx.timers.cancel(&timer(id.clone()));
            }
        }
        forgotten
    }

    /// Returns the remote participant of this identity. It is created if it is unknown.
    pub(super) fn known(&mut self, cx: &Context, id: &Identity) -> &mut Remote {
        let is_named = self.is_named(cx, id);
        self.remotes.entry(id.clone()).or_insert_with(|| Remote::new(cx.now, is_named))
    }

    /// Moves an identity to another sid and ends the state of the old one.
    fn move_to(
        &mut self,
        cx: &mut Context,
        delivery: &mut Delivery,
        id: &Identity,
        sid: Sid,
        join: Join,
        announced: bool,
    ) {
        let is_named = self.is_named(cx, id);
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let was_in_contact = remote.is_in_contact(cx);
        let before = std::mem::replace(&mut remote.presence, Presence::Here { sid, announced });
        let withdraws = remote.takes_frames(cx, id);
        remote.restart_silence(cx.now);
        // If it is the same join, it has not left: an SDK may report everybody as gone while it reconnects.
        if !matches!(&before, Presence::Away { sid: old, .. } if remote.sid() == Some(old)) {
            let join = Join { named: join.named || is_named, ..join };
            (remote.join, remote.pair) = (join, Pair::default());
        }
        if let Presence::Here { sid: old, .. } = &before {
            remote.mark_dead(old.clone());
            remote.begin_grace(cx, id, old, was_in_contact);
        }
        self.end_pair(cx, delivery, id, withdraws);
        if let Presence::Here { sid: old, announced: true } = before {
            cx.event(Event::Left(Peer::new(id, old)));
        }
    }

    /// Begins the handshake of a present participant again. A goodbye remains one.
    pub(super) fn renew_pair(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity) {
        let Some(remote) = self.remotes.get_mut(id).filter(|remote| !remote.has_left()) else { return };
        if remote.pair.greetings > 0 || remote.is_configured() || remote.is_plain() {
            let withdraws = remote.takes_frames(cx, id);
            remote.pair = Pair::default();
            let is_unannounced = remote.is_unannounced();
            self.end_pair(cx, delivery, id, withdraws);
            if is_unannounced {
                schedule_provisional_check(cx, id, cx.now);
            }
        }
    }

    /// Ends what belongs to the pair of sids before, or to its handshake before.
    fn end_pair(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity, withdraws: bool) {
        self.note_observer(id);
        self.unconfigured.forget_all(id);
        cancel_pair_timers(cx, id);
        delivery.reset_pair(id, withdraws, self.get(id).and_then(Remote::sid));
    }

    /// Moves an identity to an unannounced sid. If it does not continue the present join, only the author's word gives it
    /// rights, so the description of the earlier join does not count.
    fn move_provisionally(&mut self, cx: &mut Context, delivery: &mut Delivery, to: &Peer, continues: bool) {
        let (id, sid) = (to.identity(), to.sid());
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let is_announced = matches!(remote.presence, Presence::Here { announced: true, .. });
        let before = &remote.join;
        let fallback = if is_announced { before.participant.clone() } else { before.fallback.clone() };
        let join = match continues {
            true => {
                let participant = before.participant.clone();
                Join { participant, named: before.named, fallback, ..Join::default() }
            }
            false => Join { fallback, ..Join::default() },
        };
        self.move_to(cx, delivery, id, sid.clone(), join, false);
        schedule_provisional_check(cx, id, cx.now);
    }

    /// Notes that a participant has left this join.
    fn leave(&mut self, cx: &mut Context, delivery: &mut Delivery, id: &Identity, sid: Sid) {
        let Some(remote) = self.remotes.get_mut(id) else { return };
        let was_in_contact = remote.is_in_contact(cx);
        let was_announced = matches!(remote.presence, Presence::Here { announced: true, .. });
        let withdraws = remote.takes_frames(cx, id);
        remote.presence = Presence::Away { sid: sid.clone(), crossed: remote.is_crossed() };
        // A goodbye counts also if the same join is announced again.
        let contact = Some(remote.pair.contact).filter(|it| it.has_left()).unwrap_or_default();
        remote.pair = Pair { contact: contact.after(Signal::Void), ..Pair::default() };
        remote.begin_grace(cx, id, &sid, was_in_contact);
        remote.limits.rpc_refusals.waiting.clear();
        self.end_pair(cx, delivery, id, withdraws);
        if was_announced {
            cx.event(Event::Left(Peer::new(id, sid)));
        }
        if cx.is_client() {
            cx.timers.cancel(&Timer::Ping(id.clone())); // of a present assistant: it may be due too soon
        }
    }
}

impl Remote {
    /// Begins the grace period of a join that has ended. That of an earlier one goes on, and counts for the identity unless calls
    /// were possible in this one: strangers who join and leave do not prolong it.
    fn begin_grace(&mut self, cx: &mut Context, id: &Identity, join: &Sid, was_in_contact: bool) {
        let grace = Timer::Grace(id.clone(), join.clone());
        if was_in_contact || self.departed.is_none() {
            self.departed = Some(join.clone());
            cx.timers.cancel(&grace); // the join was announced again meanwhile
        }
        cx.set_timer(grace, cx.config.times.grace);
    }
}

/// Sets the next check of a provisional sid, before it has sent nothing for as long as an announcement may take.
fn schedule_provisional_check(cx: &mut Context, id: &Identity, heard: Instant) {
    let hold = cx.config.times.hold;
    let left = hold.saturating_sub(cx.now.saturating_duration_since(heard));
    cx.set_timer(Timer::Provisional(id.clone()), left.min(hold / 2).max(SHORTEST_LOOK));
}

fn cancel_pair_timers(cx: &mut Context, id: &Identity) {
    for timer in [
        Timer::Greet,
        Timer::Ask,
        Timer::Register,
        Timer::Silent,
        Timer::Heartbeat,
        Timer::Provisional,
        Timer::Lane,
        Timer::Replay,
    ] {
        cx.timers.cancel(&timer(id.clone()));
    }
}
