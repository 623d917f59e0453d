//! The rooms as state alone: who is there, who hears what, and what follows a lost connection. No I/O, no clock, no chance.
//!
//! In: joins, signalling, packets, the ends of connections, and the time. Out: [`Output`], and when to ask again.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use livekit_protocol::{
    self as proto, DisconnectReason, JoinRequest, JoinResponse, LeaveRequest, ParticipantInfo,
    ParticipantUpdate, ServerInfo, leave_request::Action, participant_info::State, signal_response::Message,
};
use livekit_token::Claims;

use super::{faults::Faults, packet::Nonces};
use toolbridge::transport::Lane;

mod data;
mod limits;
mod participant;
mod removal;
mod requests;
mod resume;
mod service;
#[cfg(test)]
mod test_hooks;
#[cfg(test)]
mod tests;

pub(super) use limits::check as check_size;
pub(super) use service::ServiceError;

use participant::Participant;

/// How many rooms there may be at once.
const MAX_ROOMS: usize = 256;
/// How many participants all rooms together may have. Those that were killed count for 20 s.
const MAX_PARTICIPANTS: usize = 256;
/// The longest room name or identity, in bytes: LiveKit's own limit.
pub(super) const MAX_NAME: usize = 256;
/// How often a client asks whether the server is there, and how long it waits: LiveKit's own figures, in seconds.
pub(super) const PING: [i32; 2] = [5, 15];
/// How long a join has to connect.
const JOIN_LIMIT: Duration = Duration::from_secs(60);
/// How long somebody whose path is lost is kept.
const PATH_GRACE: Duration = Duration::from_secs(5);
/// How long somebody who has resumed has to find a path again.
const RESUME_LIMIT: Duration = Duration::from_secs(20);
/// How often a newer token is given.
const REFRESH_INTERVAL: Duration = Duration::from_secs(300);
/// How long the others are told nothing of somebody who left: what it has said last travels another way, and comes
/// first. The real server takes up to 3 s.
const LEAVE_DELAY: Duration = Duration::from_millis(500);
/// How long a room waits for its first participant who keeps it open, in seconds.
const EMPTY_TIMEOUT: u32 = 300;
/// How long it waits for another one after its last, in seconds.
const DEPARTURE_TIMEOUT: u32 = 20;
/// The protocol that we speak.
const PROTOCOL: i32 = 17;

/// A participant, for as long as it is there. Never given twice.
pub(super) type Key = u64;
/// A signalling connection. Never given twice.
pub(super) type ConnectionId = u64;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Output {
    /// Tell a participant this.
    Signal(ConnectionId, Box<Message>),
    /// End its signalling, after what was told.
    CloseSignal(ConnectionId),
    /// Give it a newer token.
    RefreshToken(ConnectionId, Box<Claims>),
    /// Answer its offer.
    Offer(Key, proto::SessionDescription),
    /// Take an address of its.
    Candidate(Key, String),
    /// Send it a packet.
    Data(Key, Lane, Vec<u8>),
    /// End its peer connection.
    Close(Key),
}

/// Somebody at the door.
#[derive(Debug)]
pub(super) struct JoinAttempt {
    pub(super) key: Key,
    pub(super) connection: ConnectionId,
    pub(super) claims: Claims,
    pub(super) request: JoinRequest,
    /// What the participant and the room are called, if they are new.
    pub(super) sids: [String; 2],
    /// The time in milliseconds since 1970.
    pub(super) unix_ms: i64,
}

/// Why somebody is not let in: the HTTP status, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal(pub(super) u16, pub(super) &'static str);

/// All rooms.
#[derive(Debug)]
pub(super) struct Rooms {
    rooms: BTreeMap<String, Room>,
    /// In which room somebody is.
    locations: HashMap<Key, Location>,
    connections: HashMap<ConnectionId, Key>,
    server: ServerInfo,
    outputs: VecDeque<Output>,
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
    /// Who has left, and when the others are told.
    departed: Vec<(Instant, ParticipantInfo)>,
    /// When it ends, while nobody is there who keeps it open.
    ends: Option<Instant>,
    /// Whether anybody was there who kept it open.
    was_occupied: bool,
}

impl Rooms {
    /// No room yet. The version is told to who joins.
    pub(super) fn new(version: &str) -> Self {
        let server = ServerInfo { version: version.into(), protocol: PROTOCOL, ..Default::default() };
        Self {
            rooms: BTreeMap::new(),
            locations: HashMap::new(),
            connections: HashMap::new(),
            server,
            outputs: VecDeque::new(),
            faults: Faults::default(),
        }
    }

    /// What is to be done next.
    pub(super) fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When the time alone brings something next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let of = |participant: &Participant| {
            participant.due.map_or(participant.refresh_at, |(due, _)| due.min(participant.refresh_at))
        };
        let participants = self.rooms.values().flat_map(|room| room.participants.values()).map(of);
        let ends = self.rooms.values().filter_map(|room| room.ends);
        let departed = self.rooms.values().flat_map(|room| room.departed.iter().map(|(due, _)| *due));
        participants.chain(ends).chain(departed).min()
    }

    /// Somebody wants to join, or to go on.
    ///
    /// # Errors
    /// There is no place, or an order says that it is not let in.
    pub(super) fn handle_join(&mut self, now: Instant, attempt: JoinAttempt) -> Result<(), Refusal> {
        let (name, identity) = (&attempt.claims.video.room, &attempt.claims.sub);
        let known = self.rooms.get(name).and_then(|room| room.participants.get(identity)).map(|it| it.key);
        if attempt.request.reconnect {
            return self.resume(now, known, &attempt);
        }
        if self.locations.len() >= MAX_PARTICIPANTS && known.is_none() {
            return Err(Refusal(503, "this server has no place for another participant"));
        }
        if self.rooms.len() >= MAX_ROOMS && !self.rooms.contains_key(name) && !self.delete_empty_room() {
            return Err(Refusal(503, "this server has no place for another room"));
        }
        if let Some(old) = known {
            self.remove(now, old, DisconnectReason::DuplicateIdentity, Some(Action::Disconnect));
        }
        self.join(now, attempt);
        Ok(())
    }

    fn join(&mut self, now: Instant, attempt: JoinAttempt) {
        let JoinAttempt { key, connection, claims, request, sids: [sid, room_sid], unix_ms } = attempt;
        let (name, identity) = (claims.video.room.clone(), claims.sub.clone());
        let due = (now + JOIN_LIMIT, DisconnectReason::JoinFailure);
        let client = request.client_info.unwrap_or_default();
        let mut participant =
            Participant::new((key, connection), sid, claims, client, (due, now + REFRESH_INTERVAL), unix_ms);
        let room = self.rooms.entry(name.clone()).or_insert_with(|| Room::new(now, &name, room_sid, unix_ms));
        if !participant.is_hidden() {
            room.info.num_participants += 1;
        }
        let [ping_interval, ping_timeout] = self.faults.ping.unwrap_or(PING);
        let response = JoinResponse {
            room: Some(room.info.clone()),
            participant: Some(participant.info(DisconnectReason::UnknownReason)),
            other_participants: room.visible().collect(),
            subscriber_primary: false,
            ping_interval,
            ping_timeout,
            server_version: self.server.version.clone(),
            server_info: Some(self.server.clone()),
            ..Default::default()
        };
        self.outputs.push_back(Output::Signal(connection, Box::new(Message::Join(response))));
        participant.advance(State::Joined);
        self.outputs.push_back(Output::RefreshToken(connection, Box::new(participant.claims.clone())));
        room.participants.insert(identity.clone(), participant);
        room.update_closing(now);
        let location = Location { room: name, identity };
        self.connections.insert(connection, key);
        tracing::debug!(?location, "a participant joins");
        self.locations.insert(key, location);
        self.announce(key, DisconnectReason::UnknownReason);
        if let Some(offer) = request.publisher_offer {
            self.outputs.push_back(Output::Offer(key, offer));
        }
    }

    /// It reads so slowly that more waits for it than we keep: a new join is the end of that.
    pub(super) fn handle_overflow(&mut self, now: Instant, key: Key) {
        self.remove(now, key, DisconnectReason::StateMismatch, Some(Action::Reconnect));
    }

    /// Its offer could not be answered.
    pub(super) fn handle_bad_offer(&mut self, now: Instant, key: Key) {
        self.remove(now, key, DisconnectReason::StateMismatch, Some(Action::Reconnect));
    }

    /// Our half of the peer connection is made.
    pub(super) fn handle_answer(
        &mut self,
        key: Key,
        answer: proto::SessionDescription,
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
                "candidate": line, "sdpMid": "0", "sdpMLineIndex": 0, "usernameFragment": null
            });
            Message::Trickle(proto::TrickleRequest {
                candidate_init: init.to_string(),
                target: proto::SignalTarget::Publisher.into(),
                r#final: n == last,
            })
        });
        let told = [Message::Answer(answer)].into_iter().chain(lines);
        self.outputs.extend(told.map(|message| Output::Signal(connection, Box::new(message))));
    }

    /// A signalling connection ended. Whoever had a path stays for as long as that.
    pub(super) fn handle_signal_closed(&mut self, now: Instant, connection: ConnectionId) {
        let Some(key) = self.connections.remove(&connection) else { return };
        let Some(participant) = self.participant_mut(key) else { return };
        participant.connection.take_if(|it| *it == connection);
        if participant.connection.is_none() && participant.state != State::Active {
            self.remove(now, key, DisconnectReason::SignalClose, None);
        }
    }

    /// Makes room for another room: one in which nobody is ends before its time. Whether there was one.
    fn delete_empty_room(&mut self) -> bool {
        let empty = self.rooms.iter().filter(|(_, room)| room.participants.is_empty());
        let first = empty.min_by_key(|(_, room)| room.ends).map(|(name, _)| name.clone());
        first.is_some_and(|name| self.rooms.remove(&name).is_some())
    }

    /// Ends somebody's signalling, after what was told.
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

    fn renew(&mut self, key: Key) {
        if let Some((connection, claims)) =
            self.participant(key).and_then(|it| Some((it.connection?, it.claims.clone())))
        {
            self.outputs.push_back(Output::RefreshToken(connection, Box::new(claims)));
        }
    }

    /// Tells all in its room, itself too, how somebody is. Of somebody hidden nobody is told.
    fn announce(&mut self, key: Key, reason: DisconnectReason) {
        let Some(participant) = self.participant(key).filter(|it| !it.is_hidden()) else { return };
        let info = participant.info(reason);
        let Some(room) = self.room_of(key) else { return };
        let told: Vec<_> = room.participants.values().filter_map(|it| it.connection).collect();
        for connection in told {
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
    fn new(now: Instant, name: &str, sid: String, unix_ms: i64) -> Self {
        let info = proto::Room {
            sid,
            name: name.to_owned(),
            empty_timeout: EMPTY_TIMEOUT,
            departure_timeout: DEPARTURE_TIMEOUT,
            creation_time: unix_ms / 1000,
            creation_time_ms: unix_ms,
            ..Default::default()
        };
        let ends = Some(now + Duration::from_secs(EMPTY_TIMEOUT.into()));
        Self {
            info,
            participants: BTreeMap::new(),
            nonces: Nonces::default(),
            departed: Vec::new(),
            ends,
            was_occupied: false,
        }
    }

    /// Those whom others may see.
    fn visible(&self) -> impl Iterator<Item = ParticipantInfo> {
        let seen = self.participants.values().filter(|it| !it.is_hidden());
        seen.map(|it| it.info(DisconnectReason::UnknownReason))
    }

    fn keys(&self) -> impl Iterator<Item = Key> {
        self.participants.values().map(|it| it.key)
    }

    /// Somebody came or left.
    fn update_closing(&mut self, now: Instant) {
        let kept = self.participants.values().any(|it| !it.is_dependent());
        self.was_occupied |= kept;
        self.ends = match self.ends {
            _ if kept => None,
            None => Some(now + Duration::from_secs(DEPARTURE_TIMEOUT.into())),
            ends if self.was_occupied => {
                ends.map(|ends| ends.min(now + Duration::from_secs(DEPARTURE_TIMEOUT.into())))
            }
            ends => ends,
        };
    }
}

fn update(participants: Vec<ParticipantInfo>) -> Message {
    Message::Update(ParticipantUpdate { participants })
}
