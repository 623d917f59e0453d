//! Connections to a room: its participants, and the packets sent and received.
//!
//! [`Transport`] is one participant's connection. [`livekit`](crate::livekit) connects to a LiveKit room.
//! [`memory`](crate::memory) is a room inside the process, for tests. Other networks can implement the trait. The types
//! need no async runtime.

#[cfg(feature = "runtime")]
pub(crate) mod alarm;
#[cfg(feature = "runtime")]
mod api;
mod event;
#[cfg(any(feature = "runtime", feature = "vocabulary"))]
pub(crate) mod outbox;
#[cfg(feature = "runtime")]
pub(crate) mod send_queue;
pub(crate) mod types;

#[cfg(any(feature = "livekit", feature = "record"))]
pub(crate) use api::SentObserver;
#[cfg(feature = "runtime")]
pub use api::{SendError, Transport};
pub use event::{Incoming, TransportEvent, Unreadable};
#[cfg(feature = "record")]
pub(crate) use types::BrokenStream;
pub use types::{
    Capabilities, Compression, Form, Lane, Packet, Participant, ParticipantKind, Peer, ROLE_ATTRIBUTE,
    RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcRequest, RpcResponse, STREAM_CHUNK,
    STREAM_SHA256, STREAM_TOPIC, Sid, StreamAssembler, StreamHeader, StreamKind, StreamPart, StreamParts,
    TOPIC, TextStream,
};
pub(crate) use types::{CloseReason, ConnectionState, Identity, PayloadHash, Role};
