//! The trait that carries packets for a session, whatever the network underneath.

use std::{borrow::Cow, fmt, future::Future, sync::Arc};

use bytes::Bytes;

use super::{Capabilities, CloseReason, ConnectionState, Lane, Packet, Participant, Peer, StreamPart};

/// One participant's connection to a room.
///
/// Packets of one lane are handed over in the order of the calls to [`send`](Transport::send).
///
/// # Cancel safety
/// [`recv`](Transport::recv) must be cancel safe: a dropped future loses no event. `send` borrows
/// nothing, so that a stalled one cannot stop `recv`.
pub trait Transport: Send + 'static {
    /// Ourselves, in this join. Asked again after [`ConnectionState::Connected`].
    fn local(&self) -> Participant;

    /// The room's name.
    fn room(&self) -> String;

    /// Who is in the room, as far as it was announced.
    fn present(&self) -> Vec<Participant>;

    /// What it can carry.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Hands a packet to the room. Resolves when it was handed over, not when it arrived.
    ///
    /// One larger than [`Capabilities::max_packet`] goes as a byte stream ([`StreamParts`](crate::transport::StreamParts))
    /// if there are any. Packets that [overtake](Packet::overtakes) pass between its parts. Dropping the
    /// future abandons a stream that is not handed over to its end, and tells its receivers so.
    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static;

    /// How many bytes of payload were handed over for [`Lane::Reliable`] and wait: for their turn, or for the
    /// other end's word that they arrived. Asked often. Default: 0, and then the session sends its reliable copies
    /// of small frames as if nothing waited.
    fn backlog(&self) -> usize {
        0
    }

    /// The next thing that happened; `None` when the connection ended without a reason.
    fn recv(&mut self) -> impl Future<Output = Option<TransportEvent>> + Send;

    /// Leaves in order. Whatever was handed over before is sent first.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// What a transport tells.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportEvent {
    /// A participant is there, or what is known of it has changed. Ourselves: the others have been told of us.
    Joined(Participant),
    /// A participant is gone.
    Left(Peer),
    /// A packet came.
    Packet(Incoming),
    /// The connection was lost or restored.
    ConnectionState(ConnectionState),
    /// A part of somebody's byte stream came.
    Stream {
        /// Who sent it, as the room says.
        from: Peer,
        /// The part.
        part: StreamPart,
    },
    /// It is over, and nothing follows.
    Closed(CloseReason),
}

impl TransportEvent {
    /// A packet on no topic, as a plain peer sends it.
    pub fn packet(from: Peer, lane: Lane, payload: impl Into<Bytes>) -> Self {
        Self::Packet(Incoming { from, lane, topic: Cow::Borrowed(""), payload: payload.into() })
    }
}

/// A packet that came.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incoming {
    /// Who sent it, as the room says; either part may be empty.
    pub from: Peer,
    /// The channel.
    pub lane: Lane,
    /// The topic, or nothing.
    pub topic: Cow<'static, str>,
    /// The bytes.
    pub payload: Bytes,
}

impl Incoming {
    /// A packet on this topic.
    pub fn new(
        from: Peer,
        lane: Lane,
        topic: impl Into<Cow<'static, str>>,
        payload: impl Into<Bytes>,
    ) -> Self {
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

/// Why a packet was not handed over: it has not left this process.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// It names nobody and means nobody.
    #[error("the packet has no destination; a broadcast must be meant")]
    NoDestination,
    /// It is larger than one packet can be.
    #[error("{size} bytes are more than the {limit} of one packet")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Our token does not allow us to publish data.
    #[error("the token does not allow publishing data (grant `canPublishData`)")]
    NotAllowed,
    /// Not connected.
    #[error("not connected: {0}")]
    Closed(CloseReason),
    /// The connection was lost before it left, and another is being made.
    #[error("the connection was lost before the packet left; it can be sent again once the link is up")]
    Interrupted,
    /// The transport's own error.
    #[error("{0}")]
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

impl SendError {
    /// The transport's own error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(error))
    }
}
