//! Runs actions that tests trigger in the rooms.

use std::time::Instant;

use livekit_protocol::{
    DisconnectReason, RoomMovedResponse, SimulateScenario, leave_request::Action,
    signal_request::Message as Request, simulate_scenario::Scenario,
};

use super::{Key, Message, Output, Room, Rooms, Settings};

impl Rooms {
    /// Sends a leave request. A participant that is asked to resume stays in the room, as in livekit-server.
    pub(in crate::dev_server) fn inject_leave(
        &mut self,
        identity: &str,
        action: Action,
        reason: DisconnectReason,
    ) {
        let key = self.key_of(identity);
        if action != Action::Resume {
            return self.remove(Instant::now(), key, reason, Some(action));
        }
        if let Some(connection) = self.participant(key).and_then(|it| it.connection) {
            self.send_leave(connection, action, reason);
        }
        self.close_signal(key);
    }

    /// Moves a participant to another room under this sid, over its existing connections.
    pub(in crate::dev_server) fn move_to(&mut self, identity: &str, to: &str, sid: &str) {
        let (now, key) = (Instant::now(), self.key_of(identity));
        let from = self.locations[&key].room.clone();
        let mut participant = self.rooms.get_mut(&from).unwrap().participants.remove(identity).unwrap();
        self.locations.get_mut(&key).unwrap().room = to.into();
        (participant.sid, participant.claims.video.room) = (sid.into(), to.into());
        let (connection, claims) = (participant.connection.unwrap(), participant.claims.clone());
        let info = participant.info(DisconnectReason::UnknownReason);
        let room = self
            .rooms
            .entry(to.into())
            .or_insert_with(|| Room::new(now, (to, "RM_moved".into()), 0, Settings::default()));
        let moved = RoomMovedResponse {
            room: Some(room.info.clone()),
            participant: Some(info),
            other_participants: room.visible().collect(),
            ..Default::default()
        };
        room.participants.insert(identity.into(), participant);
        self.outputs.push_back(Output::Signal(connection, Box::new(Message::RoomMoved(moved))));
        self.outputs.push_back(Output::RefreshToken(connection, Box::new(claims)));
        self.announce(key, DisconnectReason::UnknownReason);
    }

    /// Closes a participant's signaling connection without a leave request.
    pub(in crate::dev_server) fn sever(&mut self, identity: &str) {
        let key = self.key_of(identity);
        self.close_signal(key);
    }

    /// Handles a `SimulateScenario` request of a participant.
    pub(in crate::dev_server) fn simulate_for(&mut self, identity: &str, scenario: Scenario) {
        let connection = self.participant(self.key_of(identity)).and_then(|it| it.connection).unwrap();
        let simulate = Request::Simulate(SimulateScenario { scenario: Some(scenario) });
        self.handle_request(Instant::now(), connection, simulate);
    }

    /// Returns whether a participant has a signaling connection.
    pub(in crate::dev_server) fn is_signaling(&self, identity: &str) -> bool {
        self.find_key(identity)
            .and_then(|key| self.participant(key))
            .is_some_and(|it| it.connection.is_some())
    }

    fn key_of(&self, identity: &str) -> Key {
        self.find_key(identity).expect("no participant with this identity")
    }

    fn find_key(&self, identity: &str) -> Option<Key> {
        let of = |(key, location): (&Key, &super::Location)| (location.identity == identity).then_some(*key);
        self.locations.iter().find_map(of)
    }
}
