//! Tool calls between a voice assistant and the apps in its LiveKit room, each with exactly one outcome.
//!
//! ```text
//!    your tools (async fn, programs)                   your model's tool calls
//!         │                                                     │
//!    ┌────▼─────┐  Execute / settle  ┌─────────────────┐  Call  ▼  Result
//!    │ executor │◄──────────────────►│     session     │◄── bridge (Client, Assistant)
//!    └──────────┘                    │ sans-IO, no clock│
//!                                    └────────┬────────┘
//!                                      wire (MessagePack)
//!                                             │
//!                             transport: memory │ room (LiveKit) │ your own
//! ```
//!
//! A client offers tools, and an assistant calls them:
//!
//! ```
//! # #[cfg(feature = "runtime")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! use toolbridge::{Assistant, Client, ToolError, memory};
//!
//! async fn get_battery() -> Result<f32, ToolError> {
//!     Ok(0.8)
//! }
//!
//! let room = memory::Room::new(); // a LiveKit room: `.join("wss://…", "token")` in place of `join_over`
//! let client = Client::builder().tool("get_battery", "Battery level, 0 to 1", get_battery);
//! let _client = client.join_over(room.client("phone")).await?;
//!
//! let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
//! let level: f32 = assistant.call("get_battery", ()).await?.decode()?;
//! assert_eq!(level, 0.8);
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "runtime"))]
//! # fn main() {}
//! ```
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | none | the core: [`Frame`](protocol::frame::Frame), [`Body`], [`Session`], without any async crate |
//! | `runtime` | `Client`, `Assistant`, tools, transports in memory and of your own |
//! | `record` | sessions as MCAP files: written, read, checked, replayed |
//! | `room` | the LiveKit participant in pure Rust, and tokens |
//! | `cli` (default) | the command line tool `toolbridge` |

#[cfg(feature = "runtime")]
pub mod participant;
pub mod protocol;
#[cfg(feature = "record")]
pub mod recording;
#[cfg(feature = "record")]
pub mod replay;
pub mod tool;
pub mod transport;
pub mod value;

#[cfg(feature = "runtime")]
pub use participant::{
    Assistant, AssistantBuilder, Call, CallBuilder, Client, ClientBuilder, ConsentRequest, Events, JoinError,
    PromptRequest, Propagate, Ready, ReadyError, Turn,
};
pub use protocol::session::{
    CallKey, CallRecord, CallState, Candidate, Choose, Config, Counter, Destination, Event, Job, JobKey,
    LateResult, LocalText, Output, Question, Request, SendFrameError, Session, Stats, StopError, TurnKey,
    Unaccepted, Unsent,
};
#[cfg(feature = "runtime")]
pub use tool::functions::{Handler, State, Tools, check_tool};
#[cfg(all(feature = "runtime", unix))]
pub use tool::programs::{ProgramTools, ProgramsError};
#[cfg(feature = "runtime")]
pub use tool::source::{Prefixed, ToolContext, ToolSource};
pub use tool::{
    AuthorizePrompt, BadToolName, BadTraceContext, BargeIn, CallError, CallId, ChoicePrompt, Consent,
    DEFAULT_TIMEOUT, Decision, Disclose, ErrorCode, Execution, FormPrompt, MAX_TOOL_NAME, NotAdmitted,
    NotOffered, Offer, Outcome, PermissionOption, PermissionPrompt, Progress, ProgressStatus, Prompt,
    PromptAnswer, PromptedCall, RegisterError, Tool, ToolError, ToolName, ToolOptions, TraceContext,
};
#[cfg(feature = "room")]
pub use transport::livekit::{
    ConnectError, Room, RoomOptions,
    access_token::{AccessKey, Bearer, Token, TokenError},
};
pub use transport::{
    Capabilities, CloseReason, ConnectionState, Identity, Lane, Packet, Participant, ParticipantKind, Peer,
    ROLE_ATTRIBUTE, Role, STREAM_CHUNK, STREAM_TOPIC, Sid, StreamHeader, StreamPart, StreamParts, TOPIC,
};
#[cfg(feature = "runtime")]
pub use transport::{Incoming, SendError, Transport, TransportEvent, memory};
pub use value::{Body, BodyKind, DecodeError, EncodeError, Limits};

/// The README's programs compile.
#[cfg(all(doctest, feature = "room"))]
#[doc = include_str!("../README.md")]
struct Readme;
