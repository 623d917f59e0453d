//! One thing that happened in a recorded session.

use std::{fmt, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::transport::{Identity, Lane, Peer, Role, Sid};

/// When something happened: nanoseconds since 1970-01-01 UTC, by the recording machine's clock.
///
/// In JSON it is a number of milliseconds with three decimals, as all times are: nanoseconds since 1970 are more than
/// JavaScript and jq can read exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub u64);

impl Moment {
    /// How long after `earlier` this was; zero if it was before.
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

/// Times in JSON: milliseconds, as a number with three decimals at most.
pub(crate) mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    /// The number that stands for a time.
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

/// One thing that happened, in the order in which the recorder was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Moment,
    /// What.
    pub what: Happened,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// A packet was sent or heard.
    Packet(Recorded),
    /// Something else in the room.
    Event(RoomEvent),
}

/// Whether the recorded participant sent a packet or heard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// It was handed to the room.
    Sent,
    /// It came from the room.
    Heard,
}

/// A packet, as it was sent or heard.
#[derive(Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Which way it went.
    pub direction: Direction,
    /// Who sent it, as the room said. Either part may be empty if the room did not say; of what was sent, the
    /// recorded participant in the join that it was in.
    pub from: Peer,
    /// Whom it was sent to. Empty: everybody, and what was heard names no receivers.
    pub to: Vec<Identity>,
    /// LiveKit's topic, or nothing.
    pub topic: String,
    /// The channel.
    pub lane: Lane,
    /// It travelled as a byte stream, in parts.
    pub stream: bool,
    /// Its MCAP channel.
    pub channel: u16,
    /// Its number on that channel, from 0.
    pub sequence: u32,
    /// The bytes. Parts of a stream that was heard are put together.
    pub payload: Bytes,
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
            .field("channel", &self.channel)
            .field("sequence", &self.sequence)
            .field("bytes", &self.payload.len())
            .finish()
    }
}

/// What is on the topic `room/events`, as JSON: one object a message, named by `event`.
///
/// A reader keeps an event of a later version as [`Other`](RoomEvent::Other).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoomEvent {
    /// The recorded participant is in the room; the first event of a file, and again after each join under
    /// another sid.
    Here {
        /// Its identity.
        identity: Identity,
        /// The id of this join.
        sid: Sid,
        /// The room's name.
        room: String,
    },
    /// A participant is there, or what is known of it has changed. Of the recorded participant it says, behind its
    /// [`Here`](RoomEvent::Here), that it is an observer: its role is `observer`, or `hidden` if nobody sees it.
    Joined {
        /// Its identity.
        identity: Identity,
        /// The id of its join.
        sid: Sid,
        /// LiveKit says that it is an agent.
        agent: bool,
        /// Its `toolbridge.role`, if its token gave it one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        role: Option<String>,
    },
    /// A participant is gone.
    Left {
        /// Its identity.
        identity: Identity,
        /// The id of its join.
        sid: Sid,
    },
    /// Whether packets can pass has changed.
    Link {
        /// They can.
        up: bool,
    },
    /// A packet that is in the file as sent did not leave.
    Unsent {
        /// Its MCAP channel.
        channel: u16,
        /// Its number there.
        sequence: u32,
        /// Why.
        reason: String,
    },
    /// So many packets could not be recorded since the last such event: the queue was full, or there were too many
    /// channels.
    Unrecorded {
        /// How many.
        packets: u64,
    },
    /// It is over.
    Closed {
        /// Why.
        reason: String,
    },
    /// A call of the recorded participant that nobody was asked to run: nobody was there who could be.
    Unasked {
        /// Its id.
        call: String,
        /// The tool.
        tool: String,
        /// The code of its error.
        code: String,
        /// The error's text.
        message: String,
        /// How long it was waited for somebody, in milliseconds.
        #[serde(rename = "tookMs")]
        took_ms: u64,
    },
    /// An event that this version does not know.
    #[serde(other)]
    Other,
}

/// The role of a recorded participant that only listens, and that nobody sees.
pub(crate) const HIDDEN: &str = "hidden";

impl RoomEvent {
    /// Whether it says of this participant, the recorded one, that it only listens.
    pub(crate) fn is_observer(&self, home: &Identity) -> bool {
        matches!(self, Self::Joined { identity, role: Some(role), .. }
            if identity == home && (role == Role::Observer.as_str() || role == HIDDEN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_object_that_names_itself_and_an_unknown_one_is_kept_apart() {
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
            r#"{"event":"left","identity":"a","sid":"PA_1"}"#,
            r#"{"event":"link","up":true}"#,
            r#"{"event":"unsent","channel":1,"sequence":2,"reason":"x"}"#,
            r#"{"event":"unrecorded","packets":3}"#,
            r#"{"event":"closed","reason":"x"}"#,
            r#"{"event":"unasked","call":"c","tool":"t","code":"lost","message":"m","tookMs":4}"#,
        ] {
            let event: RoomEvent = serde_json::from_str(text).unwrap();
            assert_ne!(event, RoomEvent::Other, "{text}");
            assert_eq!(serde_json::to_string(&event).unwrap(), text);
        }
    }
}
