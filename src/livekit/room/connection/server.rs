//! Handles signaling messages of the server during a connection.

use std::time::Instant;

use livekit_protocol::{ParticipantInfo, RoomMovedResponse, participant_info};

use super::{Connection, is_hidden};
use crate::{
    livekit::{
        room::{
            liveness::End,
            participants::{self, can_publish_data},
            queues::Queues,
            snapshot::TaskEvent,
        },
        signaling::{NotResumed, ServerEvent},
        token::tokens::has_the_form_of_a_token,
    },
    transport::{CloseReason, ConnectionState, TransportEvent},
};

impl Connection {
    pub(super) fn handle_server(&mut self, event: ServerEvent, queues: &mut Queues) -> Option<End> {
        match event {
            ServerEvent::Participants(infos) => self.handle_participants(&infos, queues),
            ServerEvent::Token(token) => queues.shared.with(|state| state.token = token),
            ServerEvent::Candidate(line) => self.peer.handle_candidate(&line),
            ServerEvent::Answer(sdp, number) => {
                if let Err(error) = self.peer.handle_answer(&sdp, number) {
                    self.liveness.handle_peer_lost(Instant::now(), &error.to_string());
                }
            }
            ServerEvent::Leave(end) => return Some(end),
            ServerEvent::AsksToResume(reason) => return self.handle_asked_to_resume(reason),
            ServerEvent::Lost(why) => return self.handle_signal_lost(&why),
            ServerEvent::Resumed(answer) => self.handle_resumed(&answer),
            ServerEvent::NotResumed(NotResumed::Again(why)) => self.handle_not_resumed(&why),
            ServerEvent::NotResumed(NotResumed::Over(end)) => return Some(end),
            ServerEvent::Listed => {
                let ourselves = Some(self.local.sid()).filter(|_| !self.hidden);
                for gone in self.recovery.take_unlisted(ourselves, &mut self.participants) {
                    queues.inbox.event(TransportEvent::Left(gone));
                }
            }
            ServerEvent::Moved(moved) => return self.handle_moved(*moved, queues),
        }
        None
    }

    fn handle_participants(&mut self, infos: &[ParticipantInfo], queues: &mut Queues) {
        for info in infos {
            // Also the local sid: only a list that contains it is complete (`Recovery::take_unlisted`).
            self.recovery.handle_listed(&info.sid);
            if *self.local.sid() == *info.sid {
                self.local = participants::participant(info);
                self.hidden = is_hidden(info);
                self.can_publish_data = can_publish_data(info);
                queues.shared.with(|state| state.can_publish_data = self.can_publish_data);
                // The server announces the participant to itself and to the others at the same time.
                queues.inbox.push(if info.state() == participant_info::State::Active {
                    TaskEvent::Event(TransportEvent::Joined(self.local.clone()))
                } else {
                    TaskEvent::Local(self.local.clone())
                });
            // Another sid under the local identity is an earlier join of this participant. It is neither a
            // peer nor this connection.
            } else if self.local.identity() != &*info.identity {
                for event in self.participants.update(info) {
                    queues.inbox.event(event);
                }
            }
        }
        self.find_others();
    }

    /// Handles a move to another room over the same connections, which is reported as a rejoin.
    fn handle_moved(&mut self, moved: RoomMovedResponse, queues: &mut Queues) -> Option<End> {
        let (Some(room), Some(local)) = (moved.room, moved.participant) else {
            tracing::debug!("a room move without room or participant");
            return Some(End::Closed(CloseReason::Server("ROOM_MOVED".into())));
        };
        // What is half written was meant for the old room.
        self.writing = Default::default();
        queues.interrupt();
        queues.emit_connection_state(ConnectionState::Reconnecting);
        self.room = room.name;
        self.local = participants::participant(&local);
        self.can_publish_data = can_publish_data(&local);
        self.hidden = is_hidden(&local);
        self.participants.clear();
        self.participants.update_all(&moved.other_participants);
        self.recovery.handle_moved_room();
        if has_the_form_of_a_token(&moved.token) {
            self.token.clone_from(&moved.token);
            queues.shared.with(|state| state.token = moved.token);
        }
        queues.resume(self.local.sid().clone(), self.can_publish_data, self.snapshot());
        None
    }
}
