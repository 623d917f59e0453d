//! What tests make happen in the rooms.

use std::time::Instant;

use livekit_protocol::{
    DisconnectReason, SimulateScenario, leave_request::Action, signal_request::Message as Request,
    simulate_scenario::Scenario,
};

use super::{Key, Rooms};

impl Rooms {
    /// Says goodbye to somebody. Whoever is asked to resume stays, as at the real server.
    pub(in crate::dev_room) fn inject_leave(
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
            self.tell_leave(connection, action, reason);
        }
        self.hang_up(key);
    }

    /// Ends somebody's signalling without a word.
    pub(in crate::dev_room) fn sever(&mut self, identity: &str) {
        let key = self.key_of(identity);
        self.hang_up(key);
    }

    /// Does what somebody would ask for.
    pub(in crate::dev_room) fn simulate_for(&mut self, identity: &str, scenario: Scenario) {
        let connection = self.participant(self.key_of(identity)).and_then(|it| it.connection).unwrap();
        let simulate = Request::Simulate(SimulateScenario { scenario: Some(scenario) });
        self.handle_request(Instant::now(), connection, simulate);
    }

    /// Whether somebody's signalling is there.
    pub(in crate::dev_room) fn is_signalling(&self, identity: &str) -> bool {
        self.find_key(identity)
            .and_then(|key| self.participant(key))
            .is_some_and(|it| it.connection.is_some())
    }

    fn key_of(&self, identity: &str) -> Key {
        self.find_key(identity).expect("nobody of that name")
    }

    fn find_key(&self, identity: &str) -> Option<Key> {
        let of = |(key, place): (&Key, &super::Place)| (place.identity == identity).then_some(*key);
        self.places.iter().find_map(of)
    }
}
