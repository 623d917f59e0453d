//! What can be mended within a join: a signaling connection that was lost, an address of ours that went away.
//!
//! Packets travel without the signaling, so a new one is opened beside them, and nobody is told. It does not begin
//! ICE anew as other participants do: the server forgets its way to us when it is asked for that, and what it had to
//! say meanwhile it says again a second later.

use std::{
    collections::{HashSet, VecDeque},
    mem,
    time::{Duration, Instant},
};

use bytes::Bytes;
use livekit_protocol::{
    DataChannelInfo, DataChannelReceiveState, ReconnectResponse, SessionDescription, SignalTarget, SyncState,
    UpdateSubscription,
};
use prost::Message;
use rustls::pki_types::CertificateDer;

use super::Connection;
use crate::transport::{
    ConnectionState, Lane, Packet, Peer, Sid,
    livekit::{
        chance,
        liveness::{End, Loss},
        packet,
        participants::Participants,
        peer_connection::{Error, Locals},
        queues::Queues,
        signal::demands_relays,
        simulate::Scenario,
    },
};

/// How long the server is silent before it is looked whether the address that the connection stands on is still
/// ours, and how often then.
const LOOK: Duration = Duration::from_millis(1_200);
/// How often while the system refuses to send.
const LOOK_UNSENT: Duration = Duration::from_millis(100);
/// How often ICE begins anew while the connection moves to another address.
const MOVE_AGAIN: Duration = Duration::from_millis(1_500);
/// How many participants are noted as listed after a resume: as many as are known at most, twice over.
const MAX_LISTED: usize = 8_192;

/// What is being mended.
pub(super) struct Recovery {
    roots: Vec<CertificateDer<'static>>,
    /// ICE begins anew as soon as the server can be told.
    restart: Option<Locals>,
    /// Since when the connection moves to another address, and when it is tried again.
    moving: Option<(Instant, Instant)>,
    looked: Instant,
    /// The system has refused to send since then.
    unsent: bool,
    /// Who was listed since the signaling was resumed, until everybody was.
    listed: Option<HashSet<String>>,
    /// Something is to be written that the server must acknowledge: whether it lives is not known.
    probe: bool,
    /// What goes again, before anything new.
    again: VecDeque<Vec<u8>>,
    /// We are in another room than the one that was joined. The signaling knows us by our old name there.
    has_moved_room: bool,
}

impl Recovery {
    pub(super) fn new(now: Instant, roots: Vec<CertificateDer<'static>>) -> Self {
        Self {
            roots,
            restart: None,
            moving: None,
            looked: now,
            unsent: false,
            listed: None,
            probe: false,
            again: VecDeque::new(),
            has_moved_room: false,
        }
    }

    /// Whether the connection is without a way.
    pub(super) fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// The server was last heard at this time. Whether that ends a move.
    pub(super) fn handle_heard(&mut self, at: Instant) -> bool {
        self.moving.take_if(|(since, _)| at > *since).is_some()
    }

    /// The server lists a participant.
    pub(super) fn handle_listed(&mut self, sid: &str) {
        if let Some(listed) = self.listed.as_mut().filter(|listed| listed.len() < MAX_LISTED) {
            listed.insert(sid.to_owned());
        }
    }

    /// The server tells of the room, as it does behind the list of everybody that follows a resume: takes away who
    /// was not in that. It may tell of it at any time, but the list has ourselves in it, unless we are hidden.
    pub(super) fn take_unlisted(
        &mut self,
        ourselves: Option<&Sid>,
        participants: &mut Participants,
    ) -> Vec<Peer> {
        let is_whole =
            |listed: &mut HashSet<String>| ourselves.is_none_or(|sid| listed.contains(sid.as_str()));
        let Some(listed) = self.listed.take_if(is_whole) else { return Vec::new() };
        participants.retain(|peer| listed.contains(peer.sid().as_str()))
    }

    /// We are in another room: what was to be said and heard in the old one is no matter any more.
    pub(super) fn handle_moved_room(&mut self) {
        self.listed = None;
        self.again.clear();
        self.has_moved_room = true;
    }
}

impl Connection {
    /// Does what is due.
    pub(super) fn recover(&mut self, queues: &mut Queues) {
        let now = Instant::now();
        self.look_for_another_address(now, queues);
        if self.peer.wants_restart() {
            self.begin_anew();
        }
        if let Some((_, again)) = &mut self.recovery.moving
            && now >= *again
        {
            *again = now + MOVE_AGAIN;
            self.recovery.restart = Some(Locals::Replace);
        }
        if let Some(limit) = self.resume.poll(now) {
            self.signal.resume(self.recovery.roots.clone(), limit);
        }
        self.restart_ice();
        self.tell_candidates();
    }

    /// Tells the server addresses of ours that it does not know. They change while a connection moves.
    fn tell_candidates(&mut self) {
        while self.resume.is_up()
            && let Some(line) = self.peer.poll_candidate()
        {
            self.signal.tell_candidate(&line);
        }
    }

    /// When to ask again.
    pub(super) fn recovery_timeout(&self) -> Instant {
        let due = match self.recovery.moving {
            Some((_, again)) => again,
            None => self.look_at(),
        };
        self.resume.poll_timeout().map_or(due, |at| at.min(due))
    }

    /// The way to the server may have changed.
    pub(super) fn begin_anew(&mut self) {
        self.liveness.handle_restarted(Instant::now());
        self.recovery.restart.get_or_insert(Locals::Keep);
    }

    pub(super) fn handle_signal_lost(&mut self, why: &str) -> Option<End> {
        if self.recovery.has_moved_room {
            return Some(End::Lost(Loss::Signaling(why.into())));
        }
        let end = self.liveness.handle_signal_lost();
        if end.is_none() {
            tracing::debug!(%why, "the signaling was lost");
            self.resume.handle_lost(Instant::now(), chance());
            // A server that was killed ends the signaling, and the peer connection only falls silent.
            self.recovery.probe = true;
        }
        end
    }

    pub(super) fn simulate(&mut self, scenario: Scenario) {
        match scenario.request() {
            Some(request) => self.signal.say(request),
            None => self.resume.handle_wanted(Instant::now(), chance()),
        }
    }

    pub(super) fn handle_asked_to_resume(&mut self, reason: &'static str) -> Option<End> {
        tracing::debug!(%reason, "the server asks to resume");
        if self.recovery.has_moved_room {
            return Some(End::Lost(Loss::Asked(reason)));
        }
        // It does so when its own end of the way has failed.
        self.begin_anew();
        self.resume.handle_wanted(Instant::now(), chance());
        None
    }

    pub(super) fn handle_not_resumed(&mut self, why: &str) {
        tracing::debug!(%why, "an attempt to resume failed");
        self.resume.handle_failed(Instant::now(), chance());
    }

    pub(super) fn handle_resumed(&mut self, answer: &ReconnectResponse) {
        tracing::debug!(heard = answer.last_message_seq, "the signaling is resumed");
        self.resume.handle_resumed(Instant::now());
        self.recovery.listed = Some(HashSet::new());
        self.peer.use_relays(
            &answer.ice_servers,
            demands_relays(answer.client_configuration.as_ref()),
            &self.recovery.roots,
        );
        self.recovery.again = self.numbers.unheard(answer.last_message_seq).map(<[u8]>::to_vec).collect();
        let state = self.sync_state();
        self.signal.synchronize(state);
    }

    /// Writes what goes before all that is new: what the server has not heard, and a question whether it lives.
    /// Whether that is all.
    pub(super) fn write_again(&mut self) -> Result<bool, Error> {
        while let Some(packet) = self.recovery.again.front() {
            if !self.peer.write(Lane::Reliable, packet)? {
                return Ok(false);
            }
            self.numbers.written_other(packet.len());
            self.recovery.again.pop_front();
        }
        if self.recovery.probe && !self.recovery.is_moving() {
            self.recovery.probe = !self.write_probe()?;
        }
        Ok(!self.recovery.probe)
    }

    /// Writes a packet to ourselves, which the server acknowledges and delivers to nobody. It has no number: behind one
    /// the server would take nothing again that came before.
    fn write_probe(&mut self) -> Result<bool, Error> {
        let to_us = Packet::new([self.local.identity().clone()], Bytes::new());
        let probe = packet::outgoing(to_us, self.local.sid()).encode_to_vec();
        let written = self.peer.write(Lane::Reliable, &probe)?;
        if written {
            self.numbers.written_other(probe.len());
        }
        Ok(written)
    }

    fn restart_ice(&mut self) {
        if !self.resume.is_up() {
            return;
        }
        let Some(locals) = mem::take(&mut self.recovery.restart) else { return };
        match self.peer.restart_ice(locals) {
            Ok(()) => {
                tracing::debug!(?locals, "ICE begins anew");
                self.liveness.handle_restarted(Instant::now());
                self.signal.offer(self.peer.described());
            }
            Err(error) => self.liveness.handle_peer_lost(Instant::now(), &error.to_string()),
        }
    }

    /// An address that went away says nothing: no packet comes, and none of ours leaves.
    fn look_for_another_address(&mut self, now: Instant, queues: &mut Queues) {
        self.recovery.unsent |= self.peer.take_unsent();
        if self.recovery.is_moving() || now < self.look_at() {
            return;
        }
        (self.recovery.looked, self.recovery.unsent) = (now, false);
        if self.peer.has_moved() {
            tracing::debug!("the address that the connection stood on is gone");
            self.recovery.moving = Some((now, now));
            // The present one stands on that address, too, and would only fall silent.
            self.resume.handle_wanted(now, chance());
            queues.emit_connection_state(ConnectionState::Reconnecting);
        }
    }

    fn look_at(&self) -> Instant {
        if self.recovery.unsent {
            return self.recovery.looked + LOOK_UNSENT;
        }
        self.recovery.looked.max(self.liveness.heard()) + LOOK
    }

    fn sync_state(&mut self) -> SyncState {
        let channels = self.peer.channels();
        let said = self.peer.described();
        let description = |kind: &str, sdp: &str| {
            Some(SessionDescription { r#type: kind.into(), sdp: sdp.into(), ..Default::default() })
        };
        SyncState {
            offer: description("offer", &said.offer),
            answer: description("answer", &said.answer),
            subscription: Some(UpdateSubscription { subscribe: true, ..Default::default() }),
            data_channels: channels
                .into_iter()
                .map(|(label, id)| DataChannelInfo {
                    label: label.into(),
                    id,
                    target: SignalTarget::Publisher.into(),
                })
                .collect(),
            datachannel_receive_states: self
                .heard
                .last()
                .map(|(sid, last_seq)| DataChannelReceiveState { publisher_sid: sid.into(), last_seq })
                .collect(),
            ..Default::default()
        }
    }
}
