//! Defines what a transport reports.

use std::{borrow::Cow, fmt};

use bytes::Bytes;

use super::{CloseReason, ConnectionState, Lane, Participant, Peer, RpcMessage, StreamPart};

/// An event of a transport.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportEvent {
    /// A remote participant joined or changed. For the local participant: the server has announced it to the others.
    Joined(Participant),
    /// A remote participant left.
    Left(Peer),
    /// A packet arrived.
    Packet(Incoming),
    /// The connection was lost or restored.
    ConnectionState(ConnectionState),
    /// A part of a byte stream arrived.
    Stream {
        /// The sender, as reported by the server. A stream whose sender the server does not disclose is not reported.
        from: Peer,
        /// The part.
        part: StreamPart,
    },
    /// A message of LiveKit's RPC arrived.
    Rpc {
        /// The sender, as reported by the server. A call of the server itself has the id of the request as identity, and
        /// no sid.
        from: Option<Peer>,
        /// The message.
        message: RpcMessage,
    },
    /// A packet arrived that cannot be read, because data is encrypted end to end.
    Unreadable {
        /// The sender, as reported by the server.
        from: Option<Peer>,
        /// Why it cannot be read.
        why: Unreadable,
    },
    /// The connection ended. No event follows.
    Closed(CloseReason),
}

impl TransportEvent {
    /// Creates a packet event without a topic, as a participant without toolbridge sends it: see [`Incoming::new`].
    pub fn packet(from: impl Into<Option<Peer>>, lane: Lane, payload: impl Into<Bytes>) -> Self {
        Self::Packet(Incoming::new(from, lane, "", payload))
    }
}

/// Why a packet cannot be read in a room whose data is, or is not, encrypted end to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is encrypted, and the local participant has no key.
    Encrypted,
    /// It is not encrypted, although the local participant has a key.
    NotEncrypted,
    /// It is encrypted with another key or key index, or in another way, or was changed.
    Undecryptable,
}

/// The reason, and what a person can do so that such packets are read.
impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encrypted => "the room is encrypted; pass --e2ee-key-file, or set `ConnectOptions::e2ee_key`",
            Self::NotEncrypted => {
                "its data is not encrypted, and is ignored; set the option `encryption` of its SDK, not `e2ee`"
            }
            Self::Undecryptable => {
                "its data is encrypted otherwise; check that all participants have the same key, key index and salt"
            }
        })
    }
}

/// A received packet.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incoming {
    /// The sender, as reported by the server; none if it does not disclose it, as for a hidden participant or a packet
    /// sent by a server API.
    pub from: Option<Peer>,
    /// The lane that carried it.
    pub lane: Lane,
    /// The topic. Empty if there is none.
    pub topic: Cow<'static, str>,
    /// The payload.
    pub payload: Bytes,
}

impl Incoming {
    /// Creates a received packet. A sender with an empty identity counts as not disclosed.
    pub fn new(
        from: impl Into<Option<Peer>>,
        lane: Lane,
        topic: impl Into<Cow<'static, str>>,
        payload: impl Into<Bytes>,
    ) -> Self {
        let from = from.into().filter(|peer| !peer.identity().as_str().is_empty());
        Self { from, lane, topic: topic.into(), payload: payload.into() }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("from", &self.from)
            .field("lane", &self.lane)
            .field("topic", &self.topic)
            .field("bytes", &self.payload.len())
            .finish()
    }
}
