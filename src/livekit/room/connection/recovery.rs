//! Recovers without a rejoin: from lost signaling and from a changed local address.
//!
//! Packets do not need signaling, so it is reopened in the background and nothing is reported. Unlike LiveKit's own clients,
//! this does not restart ICE: on a restart request the server discards its selected pair and delays queued data by about
//! 1 s.

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

use super::Connection;
use crate::{
    livekit::{
        chance,
        path::peer_connection::{Error, Locals},
        room::{
            liveness::{End, Loss},
            participants::Participants,
            queues::Queues,
            simulate::Scenario,
        },
        signaling::demands_relays,
        wire::packet,
    },
    transport::{ConnectionState, Lane, Packet, Peer, Sid},
};

/// How long no packet arrives before the local address is checked, and the interval of these checks. The second missing answer is then
/// due, so this needs no wake-up of its own. An address that is gone is mostly noticed earlier, because the system refuses to send.
const LOOK: Duration = Duration::from_secs(2);
/// The interval of these checks while the system refuses to send.
const LOOK_UNSENT: Duration = Duration::from_millis(100);
/// The interval of ICE restarts while the connection moves to another local address.
const MOVE_AGAIN: Duration = Duration::from_millis(1_500);
/// The largest number of participants recorded as listed after a resume: as many as one frame may have.
const MAX_LISTED: usize = 8_192;

/// The recovery state of a connection.
pub(super) struct Recovery {
    /// Set if ICE should restart as soon as signaling works.
    restart: Option<Locals>,
    /// Since when the connection is moving to another local address, and when ICE restarts next.
    moving: Option<(Instant, Instant)>,
    looked: Instant,
    /// True if the system has refused to send since `looked`.
    unsent: bool,
    /// The sids listed since signaling was resumed, until the list is complete.
    listed: Option<HashSet<String>>,
    /// True if a probe packet should be written, whose acknowledgement shows that the server is alive.
    probe: bool,
    /// The packets to retransmit before new ones.
    retransmit: VecDeque<Vec<u8>>,
    /// True after a move to another room. Signaling cannot be resumed then, because it uses the old sid.
    has_moved_room: bool,
}

impl Recovery {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            restart: None,
            moving: None,
            looked: now,
            unsent: false,
            listed: None,
            probe: false,
            retransmit: VecDeque::new(),
            has_moved_room: false,
        }
    }

    /// Returns whether signaling can be resumed.
    pub(super) fn can_resume(&self) -> bool {
        !self.has_moved_room
    }

    /// Returns true while the connection moves to another local address.
    pub(super) fn is_moving(&self) -> bool {
        self.moving.is_some()
    }

    /// Handles that a packet was last received at this time. Returns true if that ends a move.
    pub(super) fn handle_heard(&mut self, at: Instant) -> bool {
        self.moving.take_if(|(since, _)| at > *since).is_some()
    }

    /// Notes that the server listed a participant.
    pub(super) fn handle_listed(&mut self, sid: &str) {
        if let Some(listed) = self.listed.as_mut().filter(|listed| listed.len() < MAX_LISTED) {
            listed.insert(sid.to_owned());
        }
    }

    /// Handles a room update, which follows the participant list after a resume: removes and returns the
    /// participants not listed. Room updates can arrive at any time, so the list counts as complete only if
    /// it contains the local participant, unless that is hidden.
    pub(super) fn take_unlisted(
        &mut self,
        ourselves: Option<&Sid>,
        participants: &mut Participants,
    ) -> Vec<Peer> {
        let is_whole = |listed: &mut HashSet<String>| {
            listed.len() >= MAX_LISTED || ourselves.is_none_or(|sid| listed.contains(sid.as_str()))
        };
        let Some(listed) = self.listed.take_if(is_whole) else { return Vec::new() };
        // Whoever is missing in a list that was cut may still be there.
        if listed.len() >= MAX_LISTED {
            return Vec::new();
        }
        participants.retain(|peer| listed.contains(peer.sid().as_str()))
    }

    /// Handles a move to another room. Pending work for the old room is discarded.
    pub(super) fn handle_moved_room(&mut self) {
        self.listed = None;
        self.retransmit.clear();
        self.has_moved_room = true;
    }
}

impl Connection {
    /// Runs the recovery steps that are due.
    pub(super) fn recover(&mut self, queues: &mut Queues) {
        let now = Instant::now();
        self.check_local_address(now, queues);
        if self.peer.wants_restart() {
            self.request_ice_restart();
        }
        if let Some((_, again)) = &mut self.recovery.moving
            && now >= *again
        {
            *again = now + MOVE_AGAIN;
            self.recovery.restart = Some(Locals::Replace);
        }
        if let Some(limit) = self.resume.poll(now) {
            self.signal.resume(limit);
        }
        self.restart_ice();
        self.send_candidates();
    }

    /// Sends new local candidates to the server. They change while the connection moves.
    fn send_candidates(&mut self) {
        while self.resume.is_up()
            && let Some(line) = self.peer.poll_candidate()
        {
            self.signal.send_candidate(&line);
        }
    }

    /// Returns when to call [`recover`](Self::recover) next.
    pub(super) fn recovery_timeout(&self) -> Instant {
        let due = match self.recovery.moving {
            Some((_, again)) => again,
            None => self.look_at(),
        };
        self.resume.poll_timeout().map_or(due, |at| at.min(due))
    }

    /// Requests an ICE restart, because the path may have changed.
    pub(super) fn request_ice_restart(&mut self) {
        self.liveness.handle_restarted(Instant::now());
        // A pending `Replace` stays: its addresses are gone, whatever else suggests a restart.
        self.recovery.restart.get_or_insert(Locals::Keep);
    }

    pub(super) fn handle_signal_lost(&mut self, why: &str) -> Option<End> {
        if !self.recovery.can_resume() {
            return Some(End::Lost(Loss::Signaling(why.into())));
        }
        let end = self.liveness.handle_signal_lost();
        if end.is_none() {
            tracing::debug!(%why, "the signaling connection was lost");
            self.resume.handle_lost(Instant::now(), chance());
            // When a server is killed, its signaling closes, while the peer connection only falls silent.
            self.recovery.probe = true;
        }
        end
    }

    pub(super) fn simulate(&mut self, scenario: Scenario) {
        match scenario.request() {
            Some(request) => self.signal.send(request),
            None => self.resume.handle_wanted(Instant::now(), chance()),
        }
    }

    /// Resumes signaling, whereupon the server lists all participants, if some are not known although there is room for them.
    pub(super) fn find_others(&mut self) {
        if self.recovery.can_resume() && self.participants.wants_list() {
            tracing::debug!("asking the server for all participants");
            self.resume.handle_wanted(Instant::now(), chance());
        }
    }

    pub(super) fn handle_asked_to_resume(&mut self, reason: &'static str) -> Option<End> {
        tracing::debug!(%reason, "the server asked to resume");
        if !self.recovery.can_resume() {
            return Some(End::Lost(Loss::Asked(reason)));
        }
        // The server does so when its own end of the path has failed.
        self.request_ice_restart();
        self.resume.handle_wanted(Instant::now(), chance());
        None
    }

    pub(super) fn handle_not_resumed(&mut self, why: &str) {
        tracing::debug!(%why, "an attempt to resume failed");
        self.resume.handle_failed(Instant::now(), chance());
    }

    pub(super) fn handle_resumed(&mut self, answer: &ReconnectResponse) {
        tracing::debug!(heard = answer.last_message_seq, "the signaling connection was resumed");
        self.resume.handle_resumed(Instant::now());
        self.recovery.listed = Some(HashSet::new());
        self.peer.use_relays(
            &answer.ice_servers,
            demands_relays(answer.client_configuration.as_ref()),
            self.signal.roots(),
        );
        self.recovery.retransmit =
            // Only what the server has received and not processed. What SCTP has not delivered it delivers
            // itself, since the peer connection is the same.
            self.numbers.unheard(answer.last_message_seq).map(<[u8]>::to_vec).collect();
        let state = self.sync_state();
        // Sent before any offer, in the order of LiveKit's own clients: `restart_ice` makes an offer only
        // after this.
        self.signal.synchronize(state);
    }

    /// Writes what precedes new packets: retransmissions and the probe. Returns true if all of it was written.
    pub(super) fn write_retransmissions(&mut self) -> Result<bool, Error> {
        while let Some(packet) = self.recovery.retransmit.front() {
            if !self.peer.write(Lane::Reliable, packet)? {
                return Ok(false);
            }
            self.numbers.written_other(packet.len());
            self.recovery.retransmit.pop_front();
        }
        if self.recovery.probe && !self.recovery.is_moving() {
            // After the retransmissions, and never while the address changes: then nothing arrives, and the
            // probe would be one more packet behind SCTP's timer.
            self.recovery.probe = !self.write_probe()?;
        }
        Ok(!self.recovery.probe)
    }

    /// Writes a packet addressed to the local participant, which the server acknowledges but does not deliver. It has no
    /// sequence number; with one, the server would discard later retransmissions of earlier packets.
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
                tracing::debug!(?locals, "restarting ICE");
                self.liveness.handle_restarted(Instant::now());
                self.signal.offer(self.peer.described());
            }
            Err(error) => self.liveness.handle_peer_lost(Instant::now(), &error.to_string()),
        }
    }

    /// Checks whether the local address is gone. The system does not report this: packets are just neither sent nor received.
    fn check_local_address(&mut self, now: Instant, queues: &mut Queues) {
        self.recovery.unsent |= self.peer.take_unsent();
        if self.recovery.is_moving() || now < self.look_at() {
            return;
        }
        (self.recovery.looked, self.recovery.unsent) = (now, false);
        if self.peer.has_moved() {
            tracing::debug!("the local address of the connection is gone");
            self.recovery.moving = Some((now, now));
            // The signaling connection uses that address, too, and would only fall silent.
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
            // `subscribe` is the opposite of `auto_subscribe` of the join, as in LiveKit's own clients:
            // nothing is unsubscribed.
            subscription: Some(UpdateSubscription { subscribe: true, ..Default::default() }),
            // The server uses these and the receive states only if it moves the participant to another node.
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

#[cfg(test)]
mod tests {
    use livekit_protocol::ParticipantInfo;

    use super::*;

    #[test]
    fn list_removes_who_is_missing_once_it_is_whole_and_a_cut_one_removes_nobody() {
        let here = |id: &str| ParticipantInfo { identity: id.into(), sid: id.into(), ..Default::default() };
        let local = Sid::from("local");
        for (size, gone) in [(0, vec!["b"]), (MAX_LISTED, vec![])] {
            let mut participants = Participants::default();
            participants.update_all(&[here("a"), here("b")]);
            let mut recovery = Recovery::new(Instant::now());
            recovery.listed = Some(HashSet::new());
            recovery.handle_listed("a");
            (0..size).for_each(|n| recovery.handle_listed(&format!("PA_{n}")));
            let removed = |recovery: &mut Recovery, participants: &mut Participants| {
                let gone = recovery.take_unlisted(Some(&local), participants);
                gone.iter().map(|peer| peer.identity().to_string()).collect::<Vec<_>>()
            };
            if size == 0 {
                assert!(removed(&mut recovery, &mut participants).is_empty(), "it is not whole");
            }
            recovery.handle_listed("local");
            assert_eq!(removed(&mut recovery, &mut participants), gone);
            assert!(recovery.listed.is_none());
        }
    }
}
