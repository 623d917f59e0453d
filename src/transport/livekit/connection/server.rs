//! What the server tells while a join lasts.

use std::time::Instant;

use livekit_protocol::{ParticipantInfo, RoomMovedResponse, participant_info};

use super::{Joined, can_publish_data, is_hidden};
use crate::transport::{
    CloseReason, LinkState, TransportEvent,
    livekit::{
        liveness::End,
        participants::{self, Participants},
        queues::Desk,
        signal::{NotResumed, ServerEvent},
        snapshot::Told,
        tokens::has_the_form_of_a_token,
    },
};

impl Joined {
    pub(super) fn handle_server(&mut self, event: ServerEvent, desk: &mut Desk) -> Option<End> {
        match event {
            ServerEvent::Participants(infos) => self.handle_participants(&infos, desk),
            ServerEvent::Token(token) => desk.shared.with(|state| state.token = token),
            ServerEvent::Candidate(line) => self.peer.handle_candidate(&line),
            ServerEvent::Answer(sdp, number) => {
                if let Err(error) = self.peer.handle_answer(&sdp, number) {
                    self.health.handle_peer_lost(Instant::now(), &error.to_string());
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
                for gone in self.mending.take_unlisted(ourselves, &mut self.participants) {
                    desk.inbox.tell(TransportEvent::Left(gone));
                }
            }
            ServerEvent::Moved(moved) => return self.handle_moved(*moved, desk),
        }
        None
    }

    fn handle_participants(&mut self, infos: &[ParticipantInfo], desk: &mut Desk) {
        for info in infos {
            self.mending.handle_listed(&info.sid);
            if *self.local.sid() == *info.sid {
                self.local = participants::participant(info);
                self.hidden = is_hidden(info);
                desk.shared.with(|state| state.can_publish_data = can_publish_data(info));
                // The server tells us of ourselves on the same tick as it tells the others.
                desk.inbox.push(if info.state() == participant_info::State::Active {
                    Told::Event(TransportEvent::Joined(self.local.clone()))
                } else {
                    Told::Local(self.local.clone())
                });
            } else if self.local.identity() != &*info.identity {
                for event in self.participants.update(info) {
                    desk.inbox.tell(event);
                }
            }
        }
    }

    /// The server has put us into another room, over the same connections: to the user a new join.
    fn handle_moved(&mut self, moved: RoomMovedResponse, desk: &mut Desk) -> Option<End> {
        let (Some(room), Some(local)) = (moved.room, moved.participant) else {
            tracing::debug!("a move without a room or without ourselves");
            return Some(End::Closed(CloseReason::Server("ROOM_MOVED".into())));
        };
        desk.interrupt();
        desk.tell_link(LinkState::Down);
        self.room = room.name;
        self.local = participants::participant(&local);
        self.can_publish_data = can_publish_data(&local);
        self.hidden = is_hidden(&local);
        self.participants = Participants::default();
        self.participants.update_all(&moved.other_participants);
        self.mending.handle_moved_room();
        if has_the_form_of_a_token(&moved.token) {
            self.token.clone_from(&moved.token);
            desk.shared.with(|state| state.token = moved.token);
        }
        desk.resume(self.local.sid().clone(), self.can_publish_data, self.view());
        None
    }
}
