//! Who is in the room, by announcement and by sid; and frames that came before their sender was known.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{
    Counter, Event, Session, Timer,
    codec::Incoming,
    peer::{Feature, Pair, Presence, Registration, Remote},
    timers::later,
};
use crate::{
    protocol::frame::Message,
    transport::{ConnectionState, Identity, Participant, Peer, ROLE_ATTRIBUTE, Sid},
};

/// A provisional sid is looked after no more often than this, however short the wait: the clock must come on between.
const SHORTEST_LOOK: Duration = Duration::from_millis(1);

/// Frames whose senders the room has not announced.
#[derive(Debug, Default)]
pub(super) struct Held {
    frames: VecDeque<(Instant, Peer, Incoming)>,
    bytes: usize,
}

impl Session {
    pub(super) fn joined(&mut self, now: Instant, who: Participant) {
        let id = who.identity().clone();
        if id == *self.local.identity() {
            return self.announced(now, &who);
        }
        if id.is_empty() {
            return;
        }
        let sid = who.sid().clone();
        let named = self.is_named(&id);
        let remote = self.peers.entry(id.clone()).or_insert_with(|| Remote::new(now, named));
        if let Some(old) = remote.fallback.take() {
            remote.bury(old.sid().clone()); // replaced, now that the room says so too
        }
        remote.revive(&sid);
        let news = match &mut remote.presence {
            Presence::Here { sid: current, announced } if *current == sid => {
                !std::mem::replace(announced, true)
            }
            _ => {
                self.move_to(now, &id, sid.clone(), true);
                true
            }
        };
        self.timers.cancel(&Timer::Provisional(id.clone()));
        if let Some(remote) = self.peers.get_mut(&id) {
            remote.who = Some(who.clone());
        }
        self.note_observer(&id);
        let doubtful = who.attribute(ROLE_ATTRIBUTE).is_some() && who.token_role().is_none();
        if news {
            self.event(Event::Joined(who));
        }
        if doubtful {
            self.complain(now, &id, Counter::DoubtfulRole);
        }
        self.judge_newcomer(now, &id);
        self.look_for_assistant(now);
        self.show_registration(&id);
        self.expect(now, &id);
        self.greet(now, &id);
        self.judge_candidates(now);
        self.release(now, &id, &sid);
    }

    pub(super) fn left(&mut self, now: Instant, who: &Peer) {
        let (id, sid) = (who.identity(), who.sid());
        self.held.frames.retain(|(_, from, incoming)| {
            let stays = from != who;
            self.held.bytes -= if stays { 0 } else { incoming.size };
            stays
        });
        let Some(remote) = self.peers.get_mut(id) else { return };
        remote.bury(sid.clone());
        if remote.fallback.as_ref().is_some_and(|old| old.sid() == sid) {
            remote.fallback = None;
        }
        if remote.sid() == Some(sid) {
            self.gone(now, id, sid.clone());
            self.judge_candidates(now);
            self.admit_the_only_one(now);
        }
    }

    pub(super) fn connection_state_changed(&mut self, now: Instant, state: ConnectionState) {
        if state == self.connection {
            return;
        }
        self.connection = state;
        match state {
            ConnectionState::Reconnecting => self.timers.pause(now),
            ConnectionState::Connected => self.link_up(now),
        }
        self.event(Event::ConnectionState(state));
    }

    /// The room tells us of ourselves, and so it has told the others.
    fn announced(&mut self, now: Instant, ourselves: &Participant) {
        if ourselves.sid() == self.local.sid() && self.unknown_until.take().is_some() {
            self.judge_silence(now);
        }
    }

    pub(super) fn rejoined(&mut self, now: Instant, local: Participant, present: Vec<Participant>) {
        let anew = local.sid() != self.local.sid();
        self.local = local;
        if anew {
            self.unknown_until = Some(later(now, self.config.times.announcement));
            self.new_pairs(now);
        }
        // With the new pairs: nothing that waited for the link goes to a peer that does not know our new sid.
        if self.connection == ConnectionState::Reconnecting {
            self.connection_state_changed(now, ConnectionState::Connected);
        } else if anew {
            self.send_all_that_never_left(now);
        }
        let missing: Vec<_> = self
            .peers
            .iter()
            .filter(|(id, remote)| remote.is_here() && !present.iter().any(|who| who.identity() == *id))
            .map(|(id, remote)| remote.peer(id))
            .collect();
        for peer in missing {
            self.left(now, &peer);
        }
        for who in present {
            self.joined(now, who);
        }
        self.greet_named(now);
    }

    /// Moves an identity to a new sid: what happened under the old one is over.
    pub(super) fn move_to(&mut self, now: Instant, id: &Identity, sid: Sid, announced: bool) {
        let grace = self.config.times.grace;
        let Some(remote) = self.peers.get_mut(id) else { return };
        let before = std::mem::replace(&mut remote.presence, Presence::Here { sid, announced });
        remote.pair = Pair::default();
        remote.heard_at = now;
        remote.forget_join();
        self.note_observer(id);
        self.cancel_pair_timers(id);
        if let Presence::Here { sid: old, announced: was_announced } = before {
            if let Some(remote) = self.peers.get_mut(id) {
                remote.bury(old.clone());
            }
            if was_announced {
                self.event(Event::Left(Peer::new(id, old)));
            }
            self.timers.set(now, Timer::Grace(id.clone()), grace);
        }
    }

    /// A Configuration moves its sender to a sid that the room has not announced.
    pub(super) fn move_provisionally(&mut self, now: Instant, id: &Identity, sid: &Sid) {
        let Some(remote) = self.peers.get(id) else { return };
        let announced = matches!(remote.presence, Presence::Here { announced: true, .. });
        let fallback = if announced { remote.who.clone() } else { remote.fallback.clone() };
        self.move_to(now, id, sid.clone(), false);
        if let Some(remote) = self.peers.get_mut(id) {
            if let Some(old) = &fallback {
                let old = old.sid().clone();
                remote.revive(&old); // the room lists it: it is not dead
            }
            remote.fallback = fallback;
        }
        self.look_after_provisional(now, id, now);
        self.release(now, id, sid);
    }

    /// Looks again before its silence is as long as an announcement may take.
    fn look_after_provisional(&mut self, now: Instant, id: &Identity, heard: Instant) {
        let hold = self.config.times.hold;
        let over = hold.saturating_sub(now.saturating_duration_since(heard));
        self.timers.set(now, Timer::Provisional(id.clone()), over.min(hold / 2).max(SHORTEST_LOOK));
    }

    /// The room has not announced yet the sid that a Configuration moved this identity to. It may not be able to
    /// tell us: what is heard under this sid is in the room.
    pub(super) fn still_unannounced(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let heard = remote.heard_at;
        if now.saturating_duration_since(heard) >= self.config.times.hold {
            return self.never_announced(now, id);
        }
        if remote.is_crossed() && remote.lists(Feature::Ack) {
            self.ping(id);
        }
        self.look_after_provisional(now, id, heard);
    }

    /// The room did not announce the sid that a Configuration moved this identity to, and nothing is heard of it.
    fn never_announced(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get_mut(id) else { return };
        match (remote.fallback.take(), &remote.presence) {
            (Some(listed), _) => self.joined(now, listed),
            (None, Presence::Here { sid, announced: false }) => {
                // It left before the room told of it, and so the room will not tell of that either.
                let sid = sid.clone();
                self.gone(now, id, sid);
                self.judge_candidates(now);
            }
            _ => {}
        }
    }

    /// A frame waits for its sender's announcement.
    pub(super) fn hold(&mut self, now: Instant, from: &Peer, incoming: Incoming) {
        let limits = &self.config.caps;
        let of_sender =
            self.held.frames.iter().filter(|(_, other, _)| other.identity() == from.identity()).count();
        let full = self.held.frames.len() >= limits.held_frames_of_all
            || of_sender >= limits.held_frames
            || self.held.bytes + incoming.size > limits.held_bytes;
        if full {
            self.stats.add(Counter::HoldExpired, 1);
            return;
        }
        self.stats.add(Counter::Held, 1);
        self.held.bytes += incoming.size;
        self.held.frames.push_back((now, from.clone(), incoming));
        if !self.timers.is_set(&Timer::Unannounced) {
            self.timers.set(now, Timer::Unannounced, self.config.times.hold);
        }
    }

    /// Whether frames of this identity wait for an announcement.
    pub(super) fn holds_frames_of(&self, id: &Identity) -> bool {
        self.held.frames.iter().any(|(_, from, _)| from.identity() == id)
    }

    pub(super) fn unannounced_over(&mut self, now: Instant) {
        let hold = self.config.times.hold;
        while let Some((since, _, incoming)) = self.held.frames.front() {
            let waited = now.saturating_duration_since(*since);
            if waited < hold {
                self.timers.set(now, Timer::Unannounced, hold - waited);
                return;
            }
            self.held.bytes -= incoming.size;
            self.held.frames.pop_front();
            self.stats.add(Counter::HoldExpired, 1);
        }
    }

    /// A peer that left, or came back under another sid, had its time.
    pub(super) fn grace_over(&mut self, now: Instant, id: &Identity) {
        let Some(remote) = self.peers.get(id) else { return };
        let (here, back) = (remote.is_here(), remote.is_reachable());
        self.lose_calls_of_other_joins(now, id);
        let Some(remote) = self.peers.get(id) else { return };
        if !back {
            self.stop_jobs_for(now, id);
            let until = later(now, self.config.times.memory);
            if let Some(table) = self.tables.get_mut(id) {
                table.abandon(until);
            }
            self.set_table_timer(now, id);
            // In the room or not: the one that we knew did not come back.
            self.forget_registration(id);
            self.unbind(now, id);
        } else if let Some(join) = remote.sid().filter(|_| remote.instance.is_none()).cloned() {
            self.stop_jobs_of_other_joins(now, id, &join);
        }
        if !here {
            self.guest_is_gone(now, id);
            self.forget_old_identities();
        }
    }

    /// A participant left this join.
    fn gone(&mut self, now: Instant, id: &Identity, sid: Sid) {
        let grace = self.config.times.grace;
        let Some(remote) = self.peers.get_mut(id) else { return };
        let announced = matches!(remote.presence, Presence::Here { announced: true, .. });
        remote.left_crossed = remote.is_crossed();
        remote.presence = Presence::Away(sid.clone());
        remote.pair = Pair::default();
        self.note_observer(id);
        self.cancel_pair_timers(id);
        if announced {
            self.event(Event::Left(Peer::new(id, sid)));
        }
        self.timers.set(now, Timer::Grace(id.clone()), grace);
    }

    fn link_up(&mut self, now: Instant) {
        self.timers.resume(now);
        self.streams.forgive(now);
        for remote in self.peers.values_mut() {
            remote.heard_at = now; // silence while we could not hear proves nothing
            remote.pair.crossed_at = remote.pair.crossed_at.map(|_| now);
            remote.pair.settled = false;
        }
        self.send_all_that_never_left(now);
    }

    fn send_all_that_never_left(&mut self, now: Instant) {
        let ids: Vec<_> = self.peers.keys().cloned().collect();
        for id in ids {
            self.send_what_never_left(now, &id);
        }
    }

    /// Our own sid is another: nothing that happened under the old one counts, except what peers are.
    fn new_pairs(&mut self, now: Instant) {
        let ids: Vec<_> = self.peers.keys().cloned().collect();
        for id in ids {
            self.cancel_pair_timers(&id);
            let Some(remote) = self.peers.get_mut(&id) else { continue };
            let (plain, left) = (remote.pair.plain, remote.pair.left);
            remote.pair = Pair { plain, left, registration: Registration::Idle, ..Pair::default() };
            remote.heard_at = now;
            remote.shown = false;
        }
    }

    fn cancel_pair_timers(&mut self, id: &Identity) {
        for timer in [
            Timer::Greet,
            Timer::Ask,
            Timer::Hold,
            Timer::Register,
            Timer::Silent,
            Timer::Heartbeat,
            Timer::Provisional,
            Timer::Lane,
            Timer::Replay,
        ] {
            self.timers.cancel(&timer(id.clone()));
        }
        self.end_streams(id);
    }

    /// Takes the frames of a sid that is known now.
    fn release(&mut self, now: Instant, id: &Identity, sid: &Sid) {
        let (released, kept) = std::mem::take(&mut self.held.frames)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, from, _)| from.identity() == id && from.sid() == sid);
        self.held.frames = kept;
        self.held.bytes = self.held.frames.iter().map(|(_, _, incoming)| incoming.size).sum();
        // Its Configuration first: the others may have to wait for it, and it was sent first.
        let (first, rest): (Vec<_>, Vec<_>) = released
            .into_iter()
            .partition(|(_, _, incoming)| matches!(incoming.message, Message::Configuration(_)));
        for (_, from, incoming) in first.into_iter().chain(rest) {
            self.accept(now, &from, incoming);
        }
    }

    /// Only so many identities that left are remembered: those of which something may still come first.
    pub(super) fn forget_old_identities(&mut self) {
        let forgettable = |id: &Identity, remote: &Remote| {
            !remote.is_here()
                && !self.timers.is_set(&Timer::Grace(id.clone()))
                && !self.is_named(id)
                && self.tables.get(id).is_none_or(super::Table::is_empty)
        };
        let old: Vec<_> = self
            .peers
            .iter()
            .filter(|(id, it)| forgettable(id, it))
            .map(|(id, it)| (it.heard_at, id.clone()))
            .collect();
        let showed_nothing: Vec<_> = old
            .iter()
            .filter(|(_, id)| self.peers.get(id).is_some_and(|it| it.instance.is_none()))
            .cloned()
            .collect();
        for (_, id) in showed_nothing {
            self.forget(&id);
        }
        let mut rest: Vec<_> = old.into_iter().filter(|(_, id)| self.peers.contains_key(id)).collect();
        let most = self.config.caps.remembered_peers;
        if rest.len() > most {
            rest.sort();
            // Half of them at once, so that this is rare.
            for (_, id) in rest.drain(..rest.len() - most / 2) {
                self.forget(&id);
            }
        }
    }

    fn forget(&mut self, id: &Identity) {
        self.peers.remove(id);
        self.tables.remove(id);
        self.observers.remove(id);
        for timer in [Timer::Grace, Timer::Ping, Timer::Table] {
            self.timers.cancel(&timer(id.clone()));
        }
    }
}
