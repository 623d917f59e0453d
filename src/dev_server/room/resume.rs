//! Handles lost connections and resumes.

use std::time::Instant;

use livekit_protocol::{
    DisconnectReason, ReconnectResponse, RoomUpdate, SignalTarget, leave_request::Action,
    participant_info::State, signal_response::Message,
};

use super::{JoinAttempt, Key, Output, PATH_GRACE, PeerId, Presence, RESUME_LIMIT, Refusal, Rooms, update};

impl Rooms {
    /// Resumes a participant. An unknown participant is asked to rejoin.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        known: Option<Key>,
        attempt: &JoinAttempt,
    ) -> Result<(), Refusal> {
        let asked = &attempt.request.participant_sid;
        // livekit-server checks the identity only. Another sid belongs to another stay, and another token to another
        // participant, which has to join with its own rights.
        let known = known.filter(|key| {
            self.participant(*key).is_some_and(|it| asked.is_empty() || it.sid == *asked)
                && !self.faults.refuse_resume
                && !self.has_other_rights(*key, attempt)
        });
        let Some(key) = known else {
            self.send_leave(attempt.connection, Action::Reconnect, DisconnectReason::StateMismatch);
            self.outputs.push_back(Output::CloseSignal(attempt.connection));
            return Ok(());
        };
        let sequences = self.faults.forget_sequences;
        let Some(participant) = self.participant_mut(key) else { return Ok(()) };
        let old = participant.connection.replace(attempt.connection);
        tracing::debug!(identity = participant.identity(), sid = participant.sid, "a participant resumed");
        if participant.refuse_resume.take_if(|until| now < *until).is_some() {
            participant.connection = None;
            self.disconnect(old);
            return Err(Refusal(500, "connection closed by media"));
        }
        // The participant has limited time to find a path.
        participant.due = participant.due.map(|_| (now + RESUME_LIMIT, DisconnectReason::ConnectionTimeout));
        let cut = participant.cut_after_resume.take().is_some_and(|until| now < until);
        let last_message_seq = if sequences { 0 } else { participant.last_sequence };
        self.disconnect(old);
        self.connections.insert(attempt.connection, key);
        let (room, identity) = (&attempt.claims.video.room, &attempt.claims.sub);
        self.agents.handle_presence(now, room, identity, Presence::Connected);
        let response = ReconnectResponse {
            server_info: Some(self.server.clone()),
            last_message_seq,
            ..Default::default()
        };
        let Some(room) = self.room_of(key) else { return Ok(()) };
        // The room update after the participant list marks the list as complete.
        let complete = Message::RoomUpdate(RoomUpdate { room: Some(room.info.clone()) });
        let messages = [Message::Reconnect(response), update(room.visible().collect()), complete];
        self.outputs.extend(messages.map(|message| Output::Signal(attempt.connection, Box::new(message))));
        if self.participant(key).is_some_and(|it| it.receives_on == SignalTarget::Subscriber) {
            self.outputs.push_back(Output::Negotiate(key));
        }
        self.renew(key);
        if cut {
            self.close_signal(key);
        }
        Ok(())
    }

    /// Returns whether a token that resumes a participant has other rights than those of its tokens, and warns of it.
    fn has_other_rights(&mut self, key: Key, attempt: &JoinAttempt) -> bool {
        let claims = &attempt.claims;
        let differences = self.participant(key).and_then(|it| it.issued.differences(claims));
        let Some(differences) = differences else { return false };
        let (identity, room) = (&claims.sub, &claims.video.room);
        let warning = format!(
            "a connection that resumes {identity:?} in the room {room:?} must rejoin, because its token has other rights: \
             {differences}"
        );
        self.warn_of_rights(room, &warning);
        true
    }

    /// ICE found a path for a participant, or found one again.
    pub(in crate::dev_server) fn handle_connected(&mut self, (key, target): PeerId) {
        let Some(participant) = self.participant_mut(key) else { return };
        participant.lost.remove(&target);
        let is_active = participant.state == State::Active || target == participant.receives_on;
        if !is_active || !participant.lost.is_empty() {
            return;
        }
        participant.due = None;
        if participant.advance(State::Active) {
            self.announce(key, DisconnectReason::UnknownReason);
        }
    }

    /// A participant closed a peer connection. Usually its leave request follows; otherwise it is removed by timeout.
    pub(in crate::dev_server) fn handle_peer_closed(&mut self, now: Instant, (key, _): PeerId) {
        if let Some(participant) = self.participant_mut(key) {
            participant.due = Some((now + PATH_GRACE, DisconnectReason::ConnectionTimeout));
        }
    }

    /// ICE lost the path to a participant, which may resume for a while. Before the first path this is ignored.
    pub(in crate::dev_server) fn handle_path_lost(&mut self, now: Instant, (key, target): PeerId) {
        let Some(participant) = self.participant_mut(key).filter(|it| it.state == State::Active) else {
            return;
        };
        participant.lost.insert(target);
        participant.due = Some((now + PATH_GRACE, DisconnectReason::ConnectionTimeout));
        if let Some(connection) = participant.connection {
            self.send_leave(connection, Action::Resume, DisconnectReason::ConnectionTimeout);
        }
        self.close_signal(key);
    }
}
