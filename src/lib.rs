//! Tool calls between a voice assistant and the apps in its LiveKit room, each with exactly one outcome.

pub mod body;
pub mod link;
pub mod session;
pub mod tool;
pub mod wire;

#[cfg(feature = "runtime")]
pub mod source;
#[cfg(feature = "runtime")]
pub mod transport;

pub use body::{Body, BodyKind, DecodeError, EncodeError, Limits};
pub use link::*;
pub use session::{
    CallKey, Config, Counter, Destination, Event, Job, JobKey, Output, Request, SendFrameError, Session,
    Stats, Unsent,
};
#[cfg(feature = "runtime")]
pub use source::{Prefixed, ToolContext, ToolSource};
pub use tool::*;
#[cfg(feature = "runtime")]
pub use transport::{Incoming, SendError, Transport, TransportEvent, memory};
