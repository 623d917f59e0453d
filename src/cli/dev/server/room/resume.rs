//! Connections that are lost, and participants who come back.

use std::time::Instant;

use livekit_protocol::{
    DisconnectReason, ReconnectResponse, RoomUpdate, leave_request::Action, participant_info::State,
    signal_response::Message,
};

use super::{JoinAttempt, Key, Output, PATH_GRACE, RESUME_LIMIT, Refusal, Rooms, update};

impl Rooms {
    /// Somebody who was there says that it is again. Who is not known is asked to join anew.
    pub(super) fn resume(
        &mut self,
        now: Instant,
        known: Option<Key>,
        attempt: &JoinAttempt,
    ) -> Result<(), Refusal> {
        let asked = &attempt.request.participant_sid;
        // The real server asks for the identity alone; a sid that is another one is somebody else's resume.
        let known = known.filter(|key| {
            self.participant(*key).is_some_and(|it| asked.is_empty() || it.sid == *asked)
                && !self.faults.refuse_resume
        });
        let Some(key) = known else {
            self.send_leave(attempt.connection, Action::Reconnect, DisconnectReason::StateMismatch);
            self.outputs.push_back(Output::CloseSignal(attempt.connection));
            return Ok(());
        };
        let sequences = self.faults.forget_sequences;
        let Some(participant) = self.participant_mut(key) else { return Ok(()) };
        let old = participant.connection.replace(attempt.connection);
        tracing::debug!(identity = participant.identity(), sid = participant.sid, "a participant is back");
        if participant.refuse_resume.take_if(|until| now < *until).is_some() {
            participant.connection = None;
            self.disconnect(old);
            return Err(Refusal(500, "connection closed by media"));
        }
        // Whoever is back has some time to find a path, and no more.
        participant.due = participant.due.map(|_| (now + RESUME_LIMIT, DisconnectReason::ConnectionTimeout));
        let cut = participant.cut_after_resume.take().is_some_and(|until| now < until);
        let last_message_seq = if sequences { 0 } else { participant.last_sequence };
        let claims = participant.claims.clone();
        self.disconnect(old);
        self.connections.insert(attempt.connection, key);
        let response = ReconnectResponse {
            server_info: Some(self.server.clone()),
            last_message_seq,
            ..Default::default()
        };
        let Some(room) = self.room_of(key) else { return Ok(()) };
        // The room behind the list of everybody says that the list is whole.
        let whole = Message::RoomUpdate(RoomUpdate { room: Some(room.info.clone()) });
        let told = [Message::Reconnect(response), update(room.visible().collect()), whole];
        self.outputs.extend(told.map(|message| Output::Signal(attempt.connection, Box::new(message))));
        self.outputs.push_back(Output::RefreshToken(attempt.connection, Box::new(claims)));
        if cut {
            self.close_signal(key);
        }
        Ok(())
    }

    /// Its path was found, or found again.
    pub(in crate::cli::dev::server) fn handle_connected(&mut self, key: Key) {
        let Some(participant) = self.participant_mut(key) else { return };
        participant.due = None;
        if participant.advance(State::Active) {
            self.announce(key, DisconnectReason::UnknownReason);
        }
    }

    /// It has closed its peer connection, and says so by signalling too: unless its word is lost, it is gone by then.
    pub(in crate::cli::dev::server) fn handle_peer_closed(&mut self, now: Instant, key: Key) {
        if let Some(participant) = self.participant_mut(key) {
            participant.due = Some((now + PATH_GRACE, DisconnectReason::ConnectionTimeout));
        }
    }

    /// No path to it works any more: it may come back, for a while. Before the first one, that says nothing.
    pub(in crate::cli::dev::server) fn handle_path_lost(&mut self, now: Instant, key: Key) {
        let Some(participant) = self.participant_mut(key).filter(|it| it.state == State::Active) else {
            return;
        };
        participant.due = Some((now + PATH_GRACE, DisconnectReason::ConnectionTimeout));
        if let Some(connection) = participant.connection {
            self.send_leave(connection, Action::Resume, DisconnectReason::ConnectionTimeout);
        }
        self.close_signal(key);
    }
}
