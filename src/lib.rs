//! Tool calls between a voice assistant and the apps in its LiveKit room, each with exactly one outcome.

pub mod body;
pub mod link;
pub mod tool;
pub mod wire;

#[cfg(feature = "room")]
pub mod room;
#[cfg(feature = "runtime")]
pub mod source;
#[cfg(feature = "room")]
pub mod token;
#[cfg(feature = "runtime")]
pub mod transport;

pub use body::{Body, DecodeError, EncodeError};
pub use link::*;
#[cfg(feature = "room")]
pub use room::{JoinError, Room, RoomOptions};
#[cfg(feature = "runtime")]
pub use source::{Prefixed, ToolContext, ToolSource};
#[cfg(feature = "room")]
pub use token::{AccessKey, Token, TokenError};
pub use tool::*;
#[cfg(feature = "runtime")]
pub use transport::{Incoming, SendError, Transport, TransportEvent, memory};
