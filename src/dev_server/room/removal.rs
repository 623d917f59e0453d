//! Removes participants and rooms, also by timeout.

use std::{
    mem,
    time::{Duration, Instant},
};

use livekit_protocol::{DisconnectReason, leave_request::Action, participant_info::State};

use super::{Key, LEAVE_DELAY, MAX_PARTICIPANTS, Output, REFRESH_INTERVAL, Rooms, update};
use crate::dev_server::agents::{Presence, Removal};

impl Rooms {
    /// Handles due timeouts.
    pub(in crate::dev_server) fn handle_timeout(&mut self, now: Instant) {
        let all: Vec<_> =
            self.rooms.values().flat_map(|room| room.participants.values()).map(|it| it.key).collect();
        for key in all {
            let Some(participant) = self.participant_mut(key) else { continue };
            if let Some((_, reason)) = participant.due.filter(|(due, _)| now >= *due) {
                self.remove(now, key, reason, Some(Action::Disconnect));
            } else if now >= participant.refresh_at {
                participant.refresh_at = now + REFRESH_INTERVAL;
                self.renew(key);
            }
        }
        let names: Vec<_> = self.rooms.keys().cloned().collect();
        for name in names {
            self.announce_departures(now, &name);
        }
        let over = self.rooms.iter().filter(|(_, room)| room.ends.is_some_and(|ends| now >= ends));
        let over: Vec<_> = over.map(|(name, _)| name.clone()).collect();
        for name in over {
            self.end_room(now, &name, DisconnectReason::RoomClosed);
        }
        if self.agents.poll_timeout().is_some_and(|due| now >= due) {
            for Removal { room, identity, reason } in self.agents.handle_timeout(now) {
                // It may have left before.
                if let Ok(key) = self.find(&room, &identity) {
                    self.remove(now, key, reason, Some(Action::Disconnect));
                }
            }
        }
    }

    /// Closes all rooms because the server stops.
    pub(in crate::dev_server) fn close(&mut self, now: Instant) {
        let names: Vec<_> = self.rooms.keys().cloned().collect();
        for name in names {
            self.end_room(now, &name, DisconnectReason::ServerShutdown);
        }
    }

    /// Removes all participants and deletes the room.
    pub(super) fn end_room(&mut self, now: Instant, name: &str, reason: DisconnectReason) {
        let keys: Vec<_> = self.rooms.get(name).into_iter().flat_map(|room| room.keys()).collect();
        for key in keys {
            self.remove(now, key, reason, Some(Action::Disconnect));
        }
        self.rooms.remove(name);
        self.agents.close(now, name);
    }

    /// Removes a participant. With an action it is sent a leave request first.
    pub(super) fn remove(
        &mut self,
        now: Instant,
        key: Key,
        reason: DisconnectReason,
        action: Option<Action>,
    ) {
        let Some(participant) = self.participant_mut(key) else { return };
        participant.advance(State::Disconnected);
        tracing::debug!(
            identity = participant.identity(),
            sid = participant.sid,
            ?reason,
            "a participant was removed"
        );
        let info = participant.info(reason);
        // After a duplicate identity, the others learn of the change from the new sid.
        let is_announced = !participant.is_hidden() && reason != DisconnectReason::DuplicateIdentity;
        if let (Some(connection), Some(action)) = (participant.connection, action) {
            self.send_leave(connection, action, reason);
        }
        self.close_signal(key);
        self.outputs.push_back(Output::Close(key));
        let Some(location) = self.locations.remove(&key) else { return };
        let Some(room) = self.rooms.get_mut(&location.room) else { return };
        if let Some(participant) = room.participants.remove(&location.identity) {
            if !participant.is_hidden() {
                room.info.num_participants = room.info.num_participants.saturating_sub(1);
            }
            room.holders.leave(now, &location.identity, participant.issued);
        }
        // An agent that rejoins goes on with its job.
        if reason != DisconnectReason::DuplicateIdentity {
            self.agents.handle_presence(now, &location.room, &location.identity, Presence::Absent);
        }
        if is_announced {
            // Above this number departures are announced at once.
            let wait = if room.departed.len() < MAX_PARTICIPANTS { LEAVE_DELAY } else { Duration::ZERO };
            room.departed.push((now + wait, info));
        }
        room.update_closing(now);
    }

    /// Announces departures whose delay is over.
    fn announce_departures(&mut self, now: Instant, name: &str) {
        let Some(room) = self.rooms.get_mut(name) else { return };
        let (due, later): (Vec<_>, Vec<_>) =
            mem::take(&mut room.departed).into_iter().partition(|it| now >= it.0);
        room.departed = later;
        // A participant that is back has been announced with its new sid.
        let left = due.into_iter().map(|(_, info)| info);
        let infos: Vec<_> = left.filter(|info| !room.participants.contains_key(&info.identity)).collect();
        if infos.is_empty() {
            return;
        }
        for connection in room.participants.values().filter_map(|it| it.connection) {
            self.outputs.push_back(Output::Signal(connection, Box::new(update(infos.clone()))));
        }
    }
}
