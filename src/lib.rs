//! Tool calls between a voice assistant and the apps in its LiveKit room, each with exactly one outcome.

pub mod body;
pub mod link;
pub mod tool;
pub mod wire;

#[cfg(feature = "runtime")]
#[cfg_attr(not(test), expect(dead_code, reason = "driven by the bridge"))]
mod executor;
#[cfg(feature = "runtime")]
pub mod registry;
#[cfg(feature = "runtime")]
mod schema;
#[cfg(feature = "runtime")]
pub mod source;
#[cfg(feature = "runtime")]
pub mod transport;

pub use body::{Body, BodyKind, DecodeError, EncodeError, Limits};
pub use link::{
    Capabilities, CloseReason, Identity, Lane, LinkState, Packet, Participant, Peer, ROLE_ATTRIBUTE, Role,
    Sid, TOPIC,
};
#[cfg(feature = "runtime")]
pub use registry::{Handler, State, Tools, check_tool};
#[cfg(feature = "runtime")]
pub use source::{Prefixed, ToolContext, ToolSource};
pub use tool::{
    BadToolName, CallError, CallId, Consent, DEFAULT_TIMEOUT, Disclose, ErrorCode, Execution, MAX_TOOL_NAME,
    Offer, Outcome, Progress, ProgressStatus, RegisterError, Tool, ToolError, ToolName, ToolOptions,
};
#[cfg(feature = "runtime")]
pub use transport::{Incoming, SendError, Transport, TransportEvent, memory};
