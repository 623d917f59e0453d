//! Holds the state of the rooms: participants, packet routing, and resumes. It has no I/O, no clock and no
//! randomness.
//!
//! Inputs are joins, signaling requests, packets, ends of connections, and the time. Outputs are [`Output`] and the next timeout.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use livekit_protocol::{
    self as proto, DisconnectReason, JoinRequest, JoinResponse, LeaveRequest, ParticipantInfo,
    ParticipantUpdate, RoomAgentDispatch, ServerInfo, SignalTarget, leave_request::Action,
    participant_info::State, signal_response::Message,
};
use livekit_token::Claims;

use super::{
    agents::{Agents, Presence},
    faults::Faults,
    grant,
    limits::{self, MAX_NAME, Refusal},
    packet::Nonces,
};
use crate::transport::Lane;

mod data;
mod participant;
mod removal;
mod requests;
mod resume;
mod rights;
mod service;
mod settings;
#[cfg(test)]
mod test_hooks;
#[cfg(test)]
mod tests;

pub(super) use service::ServiceError;
pub(super) use settings::check_config;

use participant::{Participant, receives_on};
use rights::Holders;
use settings::Settings;

/// The maximum number of rooms.
const MAX_ROOMS: usize = 256;
/// The maximum number of participants in all rooms. Killed participants count for another 20 s.
const MAX_PARTICIPANTS: usize = 256;
/// The ping interval and the ping timeout of clients, in seconds, as in livekit-server.
pub(super) const PING: [i32; 2] = [5, 15];
/// The time that a join has to connect.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// The time that a participant has to resume after its path was lost.
const PATH_GRACE: Duration = Duration::from_secs(5);
/// The time that a participant has to find a path after a resume.
const RESUME_LIMIT: Duration = Duration::from_secs(20);
/// The interval of token refreshes.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// The delay before other participants are notified of a departure, so that its last packets, which travel over the data
/// channels, arrive first. In livekit-server it takes up to 3 s.
const LEAVE_DELAY: Duration = Duration::from_millis(500);
/// The time that an empty room waits for its first participant, in seconds, unless its settings say otherwise. Agents and
/// recorders do not count.
const EMPTY_TIMEOUT: u32 = 300;
/// The time that a room stays open after its last participant left, in seconds, unless its settings say otherwise.
const DEPARTURE_TIMEOUT: u32 = 20;
/// The refusal of a join when the room has as many participants as it may have. livekit-server has the same status, and the
/// first four words.
const FULL: Refusal = Refusal(500, "connection closed by media: room has exceeded its max participants");
/// The signaling protocol version.
const PROTOCOL: i32 = 17;

/// The id of a participant's stay in a room. Never reused.
pub(super) type Key = u64;
/// The id of a signaling connection. Never reused.
pub(super) type ConnectionId = u64;
/// A peer connection: the participant, and which of its two. [`SignalTarget::Publisher`] is the one that the participant offers,
/// which carries both directions if it is the only one. [`SignalTarget::Subscriber`] is the one that the server offers.
pub(super) type PeerId = (Key, SignalTarget);

/// An action for the server's task.
#[derive(Debug)]
pub(super) enum Output {
    /// Send a signaling message.
    Signal(ConnectionId, Box<Message>),
    /// Close a signaling connection after its queued messages.
    CloseSignal(ConnectionId),
    /// Send a refreshed token.
    RefreshToken(ConnectionId, Box<Claims>),
    /// Answer a participant's SDP offer.
    Offer(Key, proto::SessionDescription),
    /// Offer a participant a peer connection, or restart ICE on it.
    Negotiate(Key),
    /// Accept a participant's answer to the server's offer.
    Answer(Key, proto::SessionDescription),
    /// Add a candidate of a participant.
    Candidate(PeerId, String),
    /// Send a packet to a participant.
    Data(PeerId, Lane, Vec<u8>),
    /// Close a participant's peer connections.
    Close(Key),
    /// Tell the developer of a mistake.
    Warn(String),
}

/// A participant that wants to join or resume.
#[derive(Debug)]
pub(super) struct JoinAttempt {
    pub(super) key: Key,
    pub(super) connection: ConnectionId,
    pub(super) claims: Claims,
    pub(super) request: JoinRequest,
    /// Whether one peer connection carries both directions.
    pub(super) single_peer_connection: bool,
    /// The sids of the participant and of the room, if they are new.
    pub(super) sids: [String; 2],
    /// The time in milliseconds since 1970.
    pub(super) unix_ms: i64,
}

/// All rooms.
#[derive(Debug)]
pub(super) struct Rooms {
    rooms: BTreeMap<String, Room>,
    /// The room and the identity of each participant.
    locations: HashMap<Key, Location>,
    connections: HashMap<ConnectionId, Key>,
    server: ServerInfo,
    outputs: VecDeque<Output>,
    /// The jobs of the agents, which begin and end with rooms and participants.
    pub(super) agents: Agents,
    pub(super) faults: Faults,
}

#[derive(Clone, Debug)]
struct Location {
    room: String,
    identity: String,
}

#[derive(Debug)]
struct Room {
    info: proto::Room,
    participants: BTreeMap<String, Participant>,
    nonces: Nonces,
    /// The participants that left, and when to announce it.
    departed: Vec<(Instant, ParticipantInfo)>,
    holders: Holders,
    /// When the room closes, while no participant keeps it open.
    ends: Option<Instant>,
    /// Whether a participant ever kept it open.
    was_occupied: bool,
}

impl Rooms {
    /// Creates the state without rooms. `version` is the reported server version, `run` makes ids of agents unique.
    pub(super) fn new(version: &str, run: impl Into<String>) -> Self {
        let server = ServerInfo { version: version.into(), protocol: PROTOCOL, ..Default::default() };
        Self {
            rooms: BTreeMap::new(),
            locations: HashMap::new(),
            connections: HashMap::new(),
            agents: Agents::new(server.clone(), run.into()),
            server,
            outputs: VecDeque::new(),
            faults: Faults::default(),
        }
    }

    /// Returns the next action.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns when to call `handle_timeout` next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let of = |participant: &Participant| {
            participant.due.map_or(participant.refresh_at, |(due, _)| due.min(participant.refresh_at))
        };
        let participants = self.rooms.values().flat_map(|room| room.participants.values()).map(of);
        let ends = self.rooms.values().filter_map(|room| room.ends);
        let departed = self.rooms.values().flat_map(|room| room.departed.iter().map(|(due, _)| *due));
        participants.chain(ends).chain(departed).chain(self.agents.poll_timeout()).min()
    }

    /// Handles a join or a resume.
    ///
    /// # Errors
    /// The limits are reached, or an injected fault refuses the resume.
    pub(super) fn handle_join(&mut self, now: Instant, attempt: JoinAttempt) -> Result<(), Refusal> {
        let (name, identity) = (&attempt.claims.video.room, &attempt.claims.sub);
        let known = self.rooms.get(name).and_then(|room| room.participants.get(identity)).map(|it| it.key);
        if attempt.request.reconnect {
            return self.resume(now, known, &attempt);
        }
        if self.locations.len() >= MAX_PARTICIPANTS && known.is_none() {
            return Err(Refusal(503, "the server has reached its limit of participants"));
        }
        if !self.has_place_for(now, name) {
            return Err(Refusal(503, "the server has reached its limit of rooms"));
        }
        if let Some(old) = known {
            self.remove(now, old, DisconnectReason::DuplicateIdentity, Some(Action::Disconnect));
        }
        let name = &attempt.claims.video.room;
        if !grant::is_dependent(&attempt.claims) && self.rooms.get(name).is_some_and(Room::is_full) {
            return Err(FULL);
        }
        self.join(now, attempt);
        Ok(())
    }

    fn join(&mut self, now: Instant, attempt: JoinAttempt) {
        let JoinAttempt { key, connection, claims, request, single_peer_connection, sids, unix_ms } = attempt;
        let [sid, room_sid] = sids;
        let (name, identity) = (claims.video.room.clone(), claims.sub.clone());
        let config = claims.room_config.clone().unwrap_or_default();
        let due = (now + JOIN_LIMIT, DisconnectReason::JoinFailure);
        let client = request.client_info.unwrap_or_default();
        let is_new = !self.rooms.contains_key(&name);
        let room = self
            .rooms
            .entry(name.clone())
            .or_insert_with(|| Room::new(now, (&name, room_sid), unix_ms, Settings::of_config(&config)));
        let (issued, differences) = room.holders.join(now, &claims);
        let due = (due, now + REFRESH_INTERVAL);
        let receives_on = receives_on(single_peer_connection, &claims, &client);
        let can_publish = claims.video.can_publish.unwrap_or(true);
        let ids = ((key, receives_on), connection);
        let mut participant = Participant::new(ids, sid, (claims, issued), client, due, unix_ms);
        if !participant.is_hidden() {
            room.info.num_participants += 1;
        }
        let [ping_interval, ping_timeout] = self.faults.ping.unwrap_or(PING);
        let response = JoinResponse {
            room: Some(room.info.clone()),
            participant: Some(participant.info(DisconnectReason::UnknownReason)),
            other_participants: room.visible().collect(),
            subscriber_primary: receives_on == SignalTarget::Subscriber,
            fast_publish: can_publish,
            ping_interval,
            ping_timeout,
            server_version: self.server.version.clone(),
            server_info: Some(self.server.clone()),
            ..Default::default()
        };
        self.outputs.push_back(Output::Signal(connection, Box::new(Message::Join(response))));
        participant.advance(State::Joined);
        room.participants.insert(identity.clone(), participant);
        room.update_closing(now);
        if is_new {
            self.agents.open((now, unix_ms), &room.info, &config.agents);
        } else {
            self.warn_of_agents(&name, &config.agents);
        }
        self.agents.handle_presence(now, &name, &identity, Presence::Connected);
        if let Some(differences) = differences {
            let who = format!("{identity:?} joins the room {name:?}");
            self.warn_of_rights(&name, &format!("{who} with other rights than before: {differences}"));
        }
        let location = Location { room: name, identity };
        self.connections.insert(connection, key);
        tracing::debug!(?location, "a participant joins");
        self.locations.insert(key, location);
        self.renew(key);
        self.announce(key, DisconnectReason::UnknownReason);
        if receives_on == SignalTarget::Subscriber {
            self.outputs.push_back(Output::Negotiate(key));
        }
        if let Some(offer) = request.publisher_offer {
            self.outputs.push_back(Output::Offer(key, offer));
        }
    }

    /// A participant reads too slowly and its queue overflowed. It is asked to rejoin.
    pub(super) fn handle_overflow(&mut self, now: Instant, key: Key) {
        self.remove(now, key, DisconnectReason::StateMismatch, Some(Action::Reconnect));
    }

    /// A participant's SDP offer or answer was refused. It is asked to rejoin.
    pub(super) fn handle_bad_description(&mut self, now: Instant, key: Key) {
        self.remove(now, key, DisconnectReason::StateMismatch, Some(Action::Reconnect));
    }

    /// Sends the SDP answer or offer of a peer connection, and the server's candidates.
    pub(super) fn handle_description(
        &mut self,
        (key, target): PeerId,
        description: proto::SessionDescription,
        mut candidates: Vec<String>,
    ) {
        let Some(participant) = self.participant(key) else { return };
        let Some(connection) = participant.connection else { return };
        if participant.prefers_tcp {
            candidates.retain(|line| line.contains(" tcp "));
        }
        let last = candidates.len().saturating_sub(1);
        let lines = candidates.into_iter().enumerate().map(|(n, line)| {
            let init = serde_json::json!({
                "candidate": line, "sdpMid": "", "sdpMLineIndex": 0, "usernameFragment": null
            });
            Message::Trickle(proto::TrickleRequest {
                candidate_init: init.to_string(),
                target: target.into(),
                r#final: n == last,
            })
        });
        let description = match target {
            SignalTarget::Publisher => Message::Answer(description),
            SignalTarget::Subscriber => Message::Offer(description),
        };
        let messages = [description].into_iter().chain(lines);
        self.outputs.extend(messages.map(|message| Output::Signal(connection, Box::new(message))));
    }

    /// A signaling connection ended. A participant with a network path stays while the path works.
    /// An agent leaves earlier if its worker has gone, too.
    pub(super) fn handle_signal_closed(&mut self, now: Instant, connection: ConnectionId) {
        let Some(key) = self.connections.remove(&connection) else { return };
        let Some(participant) = self.participant_mut(key) else { return };
        participant.connection.take_if(|it| *it == connection);
        if participant.connection.is_some() {
            return;
        }
        if participant.state != State::Active {
            return self.remove(now, key, DisconnectReason::SignalClose, None);
        }
        if let Some(Location { room, identity }) = self.locations.get(&key) {
            self.agents.handle_presence(now, room, identity, Presence::Disconnected);
        }
    }

    /// Returns whether this room exists or one more can begin, for which an empty one may be closed.
    fn has_place_for(&mut self, now: Instant, name: &str) -> bool {
        self.rooms.len() < MAX_ROOMS || self.rooms.contains_key(name) || self.delete_empty_room(now)
    }

    fn delete_empty_room(&mut self, now: Instant) -> bool {
        let empty = self.rooms.iter().filter(|(_, room)| room.participants.is_empty());
        let first = empty.min_by_key(|(_, room)| room.ends).map(|(name, _)| name.clone());
        first.is_some_and(|name| {
            self.agents.close(now, &name);
            self.rooms.remove(&name).is_some()
        })
    }

    /// Closes a participant's signaling connection after its queued messages.
    fn close_signal(&mut self, key: Key) {
        let connection = self.participant_mut(key).and_then(|it| it.connection.take());
        self.disconnect(connection);
    }

    fn disconnect(&mut self, connection: Option<ConnectionId>) {
        if let Some(connection) = connection {
            self.connections.remove(&connection);
            self.outputs.push_back(Output::CloseSignal(connection));
        }
    }

    fn send_leave(&mut self, connection: ConnectionId, action: Action, reason: DisconnectReason) {
        let leave = LeaveRequest { action: action.into(), reason: reason.into(), ..Default::default() };
        self.outputs.push_back(Output::Signal(connection, Box::new(Message::Leave(leave))));
    }

    /// Sends a participant a token with its present rights.
    fn renew(&mut self, key: Key) {
        let Some(participant) = self.participant_mut(key) else { return };
        let (connection, claims) = (participant.connection, participant.claims.clone());
        if let Some(connection) = connection {
            participant.issued.add(&claims);
            self.outputs.push_back(Output::RefreshToken(connection, Box::new(claims)));
        }
    }

    /// Warns of tokens with different rights for one identity, once of each difference.
    fn warn_of_rights(&mut self, room: &str, warning: &str) {
        if self.rooms.get_mut(room).is_some_and(|room| room.holders.may_warn(warning)) {
            self.outputs.push_back(Output::Warn(format!(
                "{warning}. Do not issue tokens with different rights for one identity: LiveKit's server gives a connection \
                 that resumes the rights of the participant that has the identity"
            )));
        }
    }

    /// Warns of agents of a token that opens no room: they get no job, as with livekit-server.
    fn warn_of_agents(&mut self, name: &str, agents: &[RoomAgentDispatch]) {
        let dispatched = if agents.is_empty() { Vec::new() } else { self.agents.list(name, "") };
        let is_missing = |it: &&str| dispatched.iter().all(|dispatch| dispatch.agent_name != **it);
        let missing: Vec<_> = agents.iter().map(|it| &*it.agent_name).filter(is_missing).collect();
        if missing.is_empty() {
            return;
        }
        let warning = format!(
            "the room {name:?} was open, so these agents of a token (`roomConfig.agents`) get no job in it: {missing:?}. \
             Name them in the token that opens the room or in CreateRoom, or call CreateDispatch"
        );
        if self.rooms.get_mut(name).is_some_and(|room| room.holders.may_warn(&warning)) {
            self.outputs.push_back(Output::Warn(warning));
        }
    }

    /// Announces a participant's state to all participants of its room, including itself. Hidden participants are not announced.
    fn announce(&mut self, key: Key, reason: DisconnectReason) {
        let Some(participant) = self.participant(key).filter(|it| !it.is_hidden()) else { return };
        let info = participant.info(reason);
        let Some(room) = self.room_of(key) else { return };
        let connections: Vec<_> = room.participants.values().filter_map(|it| it.connection).collect();
        for connection in connections {
            self.outputs.push_back(Output::Signal(connection, Box::new(update(vec![info.clone()]))));
        }
    }

    fn room_of(&self, key: Key) -> Option<&Room> {
        self.rooms.get(&self.locations.get(&key)?.room)
    }

    fn participant(&self, key: Key) -> Option<&Participant> {
        let location = self.locations.get(&key)?;
        self.rooms.get(&location.room)?.participants.get(&location.identity)
    }

    fn participant_mut(&mut self, key: Key) -> Option<&mut Participant> {
        let location = self.locations.get(&key)?;
        self.rooms.get_mut(&location.room)?.participants.get_mut(&location.identity)
    }
}

impl Room {
    fn new(now: Instant, (name, sid): (&str, String), unix_ms: i64, settings: Settings) -> Self {
        let ends = Some(now + Duration::from_secs(settings.empty_timeout().into()));
        let info = proto::Room {
            sid,
            name: name.to_owned(),
            empty_timeout: settings.empty_timeout(),
            departure_timeout: settings.departure_timeout(),
            max_participants: settings.max_participants,
            metadata: settings.metadata,
            creation_time: unix_ms / 1000,
            creation_time_ms: unix_ms,
            ..Default::default()
        };
        Self {
            info,
            participants: BTreeMap::new(),
            nonces: Nonces::default(),
            departed: Vec::new(),
            holders: Holders::default(),
            ends,
            was_occupied: false,
        }
    }

    /// Returns the participants that are not hidden.
    fn visible(&self) -> impl Iterator<Item = ParticipantInfo> {
        let seen = self.participants.values().filter(|it| !it.is_hidden());
        seen.map(|it| it.info(DisconnectReason::UnknownReason))
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        self.participants.values().map(|it| it.key)
    }

    /// Returns whether the room has as many participants as it may have. Agents and recorders do not count.
    fn is_full(&self) -> bool {
        let limit = self.info.max_participants;
        let present = self.participants.values().filter(|it| !it.is_dependent()).count();
        limit > 0 && u32::try_from(present).is_ok_and(|present| present >= limit)
    }

    /// Updates when the room closes, after a participant joined or left.
    fn update_closing(&mut self, now: Instant) {
        let kept = self.participants.values().any(|it| !it.is_dependent());
        self.was_occupied |= kept;
        let after_departure = now + Duration::from_secs(self.info.departure_timeout.into());
        self.ends = match self.ends {
            _ if kept => None,
            None => Some(after_departure),
            Some(ends) if self.was_occupied => Some(ends.min(after_departure)),
            ends => ends,
        };
    }
}

fn update(participants: Vec<ParticipantInfo>) -> Message {
    Message::Update(ParticipantUpdate { participants })
}
