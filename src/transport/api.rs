//! Defines the trait that connects a session to a network.

use std::{fmt, future::Future, sync::Arc};

use super::{Capabilities, CloseReason, Packet, Participant, TransportEvent, send_queue::Observer};

/// One participant's connection to a room.
///
/// Packets of one lane are sent in the order of the calls to [`send`](Transport::send).
///
/// # Cancel safety
/// Implementations of [`recv`](Transport::recv) must be cancel safe: dropping the future loses no event. `send` borrows
/// nothing, so a pending `send` cannot block `recv`.
pub trait Transport: Send + 'static {
    /// Returns the local participant with its current sid. Called again after [`ConnectionState::Connected`](crate::ConnectionState::Connected).
    fn local(&self) -> Participant;

    /// Returns the room's name.
    fn room(&self) -> String;

    /// Returns the remote participants that have been announced and are still in the room.
    fn present(&self) -> Vec<Participant>;

    /// Returns what the transport can carry.
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }

    /// Sends a packet. The future completes when the packet was handed to the network, not when it arrived.
    ///
    /// A packet larger than [`Capabilities::max_packet`] is sent as a byte stream
    /// ([`StreamParts`](crate::transport::StreamParts)) if the transport has them, with the attributes of its header. Packets that
    /// [overtake](Packet::overtakes) are sent between its parts. Only a participant that takes part in LiveKit's RPC sends packets of
    /// another [form](crate::transport::Form) than data; a transport that does not carry them fails them.
    ///
    /// # Errors
    /// Returns a [`SendError`] if the packet was not handed over.
    ///
    /// # Cancel safety
    /// Dropping the future aborts a byte stream that was not handed over completely, and notifies its receivers.
    fn send(&self, packet: Packet) -> impl Future<Output = Result<(), SendError>> + Send + 'static;

    /// Reports each packet that is sent from now on to a recorder, and what became of it. A transport that cannot know this returns
    /// false; what became of a packet is then what its [`send`](Transport::send) returns. Default: false.
    #[doc(hidden)]
    fn observe_sent(&mut self, observer: SentObserver) -> bool {
        drop(observer);
        false
    }

    /// Waits for the next event. Returns `None` if the connection ended without a reason.
    ///
    /// # Cancel safety
    /// Dropping the future loses no event.
    fn recv(&mut self) -> impl Future<Output = Option<TransportEvent>> + Send;

    /// Leaves the room after sending the packets that were already handed over. Default: does nothing.
    ///
    /// # Cancel safety
    /// Dropping the future may leave without sending them.
    fn close(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Receives the packets that a transport sends ([`Transport::observe_sent`]).
#[doc(hidden)]
pub struct SentObserver(
    #[cfg_attr(not(feature = "livekit"), expect(dead_code, reason = "only LiveKit rooms are observed"))]
    pub(crate) Observer,
);

impl fmt::Debug for SentObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentObserver").finish_non_exhaustive()
    }
}

/// The reason why a packet was not sent.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The packet has no destination and is not a broadcast.
    #[error("the packet has no destination; name one, or use `Packet::broadcast`")]
    NoDestination,
    /// The packet is too large for its lane.
    #[error("the packet has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// The packet's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The local participant's token does not grant publishing data.
    #[error("the token does not allow publishing data; grant `canPublishData`")]
    NotAllowed,
    /// The connection has ended.
    #[error("not connected: {0}")]
    Closed(CloseReason),
    /// The connection was lost before the packet was sent, and is being restored.
    #[error(
        "the connection was lost before the packet was sent; send it again when the state is `Connected`"
    )]
    Interrupted,
    /// An error of the transport implementation.
    #[error("{0}")]
    Other(Arc<dyn std::error::Error + Send + Sync>),
}

impl SendError {
    /// Wraps an error of the transport implementation.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Other(Arc::new(error))
    }
}
