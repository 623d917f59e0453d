//! Connections to a room: who is in it, and what is sent and received.
//!
//! [`Transport`] is one participant's connection. [`livekit`] is a connection to a LiveKit room, [`memory`] a room inside the
//! process for tests, and any other network can implement the trait. The types are usable without an async runtime.

#[cfg(feature = "runtime")]
mod api;
#[cfg(feature = "livekit")]
pub mod livekit;
#[cfg(feature = "runtime")]
pub mod memory;
pub(crate) mod types;

#[cfg(feature = "runtime")]
pub use api::{Incoming, SendError, Transport, TransportEvent};
pub use types::{
    Capabilities, CloseReason, ConnectionState, Identity, Lane, Packet, Participant, ParticipantKind, Peer,
    ROLE_ATTRIBUTE, Role, STREAM_CHUNK, STREAM_TOPIC, Sid, StreamHeader, StreamPart, StreamParts, TOPIC,
};
