//! Defines the entries of a recorded session.

use std::{fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::rpc::RPC_TOPIC;
use crate::transport::{Identity, Lane, Peer, Role, Sid, TOPIC};

/// A point in time: nanoseconds since 1970-01-01 UTC, by the recording machine's clock.
///
/// In JSON it is milliseconds with at most three decimals, like all times: JavaScript and jq cannot represent
/// nanoseconds since 1970 exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// Returns the time since `earlier`, or zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        millis::serialize(&Duration::from_nanos(self.0), serializer)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let since = millis::deserialize(deserializer)?;
        Ok(Self(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Times in JSON: milliseconds as a number with at most three decimals.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// Returns the number that represents a time.
    pub(crate) fn of(time: Duration) -> f64 {
        time.as_micros() as f64 / 1e3
    }

    pub(crate) fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(of(*time))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let micros = f64::deserialize(deserializer)? * 1e3;
        let fits = (0.0..1.9e16).contains(&micros);
        fits.then(|| Duration::from_micros(micros.round() as u64))
            .ok_or_else(|| D::Error::custom("a time is a number of milliseconds since 1970"))
    }
}

/// An entry of a recording, in the order in which the recorder received them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// When it happened.
    pub at: Moment,
    /// What happened.
    pub what: Happened,
}

impl Entry {
    /// Creates an entry.
    pub fn new(at: Moment, what: Happened) -> Self {
        Self { at, what }
    }
}

/// A packet or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// A packet was sent or received.
    Packet(Recorded),
    /// Another event in the room.
    Event(RoomEvent),
}

/// Whether the recorded participant sent or received a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// It was handed to the transport.
    Sent,
    /// It was received from the room.
    Heard,
}

/// A packet that was sent or received.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recorded {
    /// Whether it was sent or received.
    pub direction: Direction,
    /// The sender as reported by the room; none if the room does not disclose it. For a sent packet, the recorded
    /// participant with its sid at that time.
    pub from: Option<Peer>,
    /// The receivers. Empty for a broadcast and for received packets, which do not list receivers.
    pub to: Vec<Identity>,
    /// LiveKit's topic, or empty.
    pub topic: String,
    /// The lane.
    pub lane: Lane,
    /// Whether it was transferred as a byte stream.
    pub stream: bool,
    /// Whether it was transferred as a compressed frame (`wire.md`, section 5.11). The payload is the frame before compression.
    pub compressed: bool,
    /// Its MCAP channel.
    pub channel: u16,
    /// Its sequence number on that channel, from 0.
    pub sequence: u32,
    /// The bytes. A received stream is reassembled.
    pub payload: Bytes,
}

impl Recorded {
    /// Creates a reliable packet on toolbridge's topic, without receivers, as number 0 of channel 0. A sender with an
    /// empty identity counts as not disclosed.
    pub fn new(direction: Direction, from: impl Into<Option<Peer>>, payload: impl Into<Bytes>) -> Self {
        Self {
            direction,
            from: from.into().filter(|peer| !peer.identity().as_str().is_empty()),
            to: Vec::new(),
            topic: TOPIC.to_owned(),
            lane: Lane::Reliable,
            stream: false,
            compressed: false,
            channel: 0,
            sequence: 0,
            payload: payload.into(),
        }
    }
}

impl Recorded {
    /// Whether it is a message of RPC.
    pub(crate) fn is_rpc(&self) -> bool {
        self.topic == RPC_TOPIC
    }

    /// Returns the sender's identity, if it is disclosed.
    pub fn sender(&self) -> Option<&Identity> {
        self.from.as_ref().map(Peer::identity)
    }
}

impl fmt::Debug for Recorded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("direction", &self.direction)
            .field("from", &self.from)
            .field("to", &self.to)
            .field("topic", &self.topic)
            .field("lane", &self.lane)
            .field("stream", &self.stream)
            .field("compressed", &self.compressed)
            .field("channel", &self.channel)
            .field("sequence", &self.sequence)
            .field("bytes", &self.payload.len())
            .finish()
    }
}

/// An event on the topic `room/events`: one JSON object per message, named by `event`.
///
/// A reader reads an event of a later version as [`Other`](RoomEvent::Other).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoomEvent {
    /// The recorded participant joined: the first event of a file, repeated after each join under another sid.
    Here {
        /// Its identity.
        identity: Identity,
        /// The id of this join.
        sid: Sid,
        /// The room's name.
        room: String,
    },
    /// A participant is present, or its metadata changed. After [`Here`](RoomEvent::Here), an event about the
    /// recorded participant itself marks an observer: its role is `observer`, or `hidden` if other participants
    /// cannot see it.
    Joined {
        /// Its identity.
        identity: Identity,
        /// The id of its join.
        sid: Sid,
        /// Whether LiveKit reports it as an agent.
        agent: bool,
        /// Its `toolbridge.role`, if its token has one; a value that is no role is cut to 64 characters.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
        /// The version of LiveKit's client protocol that it announces, which decides how its calls by RPC are answered; 0
        /// if it announces none.
        #[serde(default, skip_serializing_if = "is_zero")]
        protocol: u32,
    },
    /// The recorded participant is a client that answers calls by LiveKit's RPC.
    AnswersRpc {
        /// The assistant that its author named, if any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        assistant: Option<Identity>,
        /// The participants that may call without being the assistant.
        callers: Vec<Identity>,
        /// Whether its transport carries streams.
        streams: bool,
    },
    /// A participant left.
    Left {
        /// Its identity.
        identity: Identity,
        /// The id of its join.
        sid: Sid,
    },
    /// The connection went up or down.
    Link {
        /// Whether packets can be sent.
        up: bool,
    },
    /// A packet that the file lists as sent was not sent.
    Unsent {
        /// Its MCAP channel.
        channel: u16,
        /// Its sequence number on that channel.
        sequence: u32,
        /// The reason.
        reason: String,
    },
    /// Packets were not recorded since the last such event, because the queue was full or the file had too many
    /// channels.
    Unrecorded {
        /// How many.
        packets: u64,
    },
    /// Packets of a participant without rights, and packets to it, are not in the file, because a limit was reached.
    ///
    /// The counts are of the whole recording so far: the last such event of a participant has all. There is one after the
    /// first packet, whenever the number of packets has doubled, and at the end.
    LeftOut {
        /// The participant; none for senders that the room does not disclose, and beyond the first 1,024 participants.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        identity: Option<Identity>,
        /// How many packets.
        packets: u64,
        /// How many bytes they had.
        bytes: u64,
        /// Which limit.
        limit: LeftOutLimit,
        /// The limit, in bytes or joins.
        most: u64,
    },
    /// The session ended.
    Closed {
        /// The reason.
        reason: String,
    },
    /// A call of the recorded participant that no participant was asked to run, because none was available.
    Unasked {
        /// The call's id.
        call: String,
        /// The tool.
        tool: String,
        /// The code of its error.
        code: String,
        /// The error's text.
        message: String,
        /// How long the call waited for a participant, in milliseconds.
        #[serde(rename = "tookMs")]
        took_ms: u64,
    },
    /// A call of the recorded participant ended for its caller without an answer, or otherwise than the answer says:
    /// by its time limit, a cancellation, an interruption of its turn, or the loss of its owner.
    Ended {
        /// The call's id.
        call: String,
        /// The code of its error.
        code: String,
    },
    /// An event that this version does not know.
    #[serde(other)]
    Other,
}

/// A limit of what participants without rights add to a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LeftOutLimit {
    /// That of one participant.
    Sender,
    /// That of all of them in one file.
    File,
    /// That of their joins, each of which needs channels of the file.
    Joins,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The role of a recorded observer that other participants cannot see.
pub(crate) const HIDDEN: &str = "hidden";

impl RoomEvent {
    /// Returns the participant that joined, and whether its token makes it a client or an assistant.
    pub(crate) fn rights(&self) -> Option<(&Identity, bool)> {
        let Self::Joined { identity, agent, role, .. } = self else { return None };
        let has_rights = role
            .as_deref()
            .map_or(*agent, |role| matches!(Role::from_text(role), Some(Role::Assistant | Role::Client)));
        Some((identity, has_rights))
    }

    /// Whether this event marks `home`, the recorded participant, as an observer.
    pub(crate) fn is_observer(&self, home: &Identity) -> bool {
        matches!(self, Self::Joined { identity, role: Some(role), .. }
            if identity == home && (role == Role::Observer.as_str() || role == HIDDEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_is_one_named_object_and_unknown_event_reads_as_other() {
        let left = RoomEvent::Left { identity: "phone".into(), sid: "PA_1".into() };
        let text = serde_json::to_string(&left).unwrap();
        assert_eq!(text, r#"{"event":"left","identity":"phone","sid":"PA_1"}"#);
        assert_eq!(serde_json::from_str::<RoomEvent>(&text).unwrap(), left);
        let later: RoomEvent = serde_json::from_str(r#"{"event":"moved","to":"x"}"#).unwrap();
        assert_eq!(later, RoomEvent::Other);
    }

    #[test]
    fn events_keep_their_names_in_files() {
        for text in [
            r#"{"event":"here","identity":"a","sid":"PA_1","room":"r"}"#,
            r#"{"event":"joined","identity":"a","sid":"PA_1","agent":true}"#,
            r#"{"event":"joined","identity":"a","sid":"PA_1","agent":true,"protocol":2}"#,
            r#"{"event":"answers_rpc","callers":["a"],"streams":true}"#,
            r#"{"event":"answers_rpc","assistant":"b","callers":[],"streams":false}"#,
            r#"{"event":"left","identity":"a","sid":"PA_1"}"#,
            r#"{"event":"link","up":true}"#,
            r#"{"event":"unsent","channel":1,"sequence":2,"reason":"x"}"#,
            r#"{"event":"unrecorded","packets":3}"#,
            r#"{"event":"left_out","identity":"a","packets":3,"bytes":4,"limit":"sender","most":5}"#,
            r#"{"event":"left_out","packets":3,"bytes":4,"limit":"file","most":5}"#,
            r#"{"event":"closed","reason":"x"}"#,
            r#"{"event":"ended","call":"c","code":"timeout"}"#,
            r#"{"event":"unasked","call":"c","tool":"t","code":"lost","message":"m","tookMs":4}"#,
        ] {
            let event: RoomEvent = serde_json::from_str(text).unwrap();
            assert_ne!(event, RoomEvent::Other, "{text}");
            assert_eq!(serde_json::to_string(&event).unwrap(), text);
        }
    }
}
