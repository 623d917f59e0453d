//! Tool calls between a voice assistant and the apps in its LiveKit room, each with exactly one outcome.
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
//! let room = memory::MemoryRoom::new(); // for a LiveKit room: `.join("wss://…", "token")` in place of `join_over`
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
//! # Where to start
//!
//! | you write | start with |
//! | --- | --- |
//! | a client: an app that has tools | [`Client`], [`Tools`], [`ToolError`], [`ToolContext`] |
//! | an assistant: the process that has the model | [`Assistant`], [`Call`], [`CallError`], [`Turn`], [`participant::chat`] |
//! | tests of either | [`memory::MemoryRoom`], [`replay::Cassette`] |
//! | an integration with your own event loop, without an async runtime | [`Session`], [`protocol`] |
//! | your own tool source, or your own transport | [`ToolSource`], [`Transport`] |
//! | a program that reads recordings | [`recording`] |
//!
//! The guide has a page on each larger subject: [reliability](guide::reliability), [reconnection](guide::reconnection),
//! [recording and replay](guide::recording), [networks](guide::networks), [tokens](guide::tokens),
//! [testing](guide::testing), and [the command line](guide::command_line).
//!
//! # How it fits together
//!
//! The protocol is one deterministic state machine, [`Session`]: bytes, commands and the current time go in; packets,
//! jobs, outcomes, events and the next deadline come out. [`participant`] drives it in an async task. It runs the tools
//! of a [`tool`] source, and sends packets over a [`transport`]: LiveKit, in memory, or your own.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | none | the core, without an async crate: [`Frame`](protocol::frame::Frame), [`Value`], [`Session`] |
//! | `runtime` | `Client`, `Assistant`, tools, the in-memory transport and transports of your own |
//! | `livekit` | the LiveKit participant in pure Rust, and tokens |
//! | `livekit-sdk` | other users of `livekit-net` in the same process keep its native client |
//! | `schema-validation` | arguments are checked against the tool's JSON Schema before the tool runs; without it they are only decoded |
//! | `programs` | tools that are programs, described by a `tools.toml`; Unix only |
//! | `record` | sessions as MCAP files: recording, reading, checking, replaying |
//! | `report` | a recording as an HTML page |
//! | `cli` (default) | the command line tool `toolbridge`, with all of the above but `livekit-sdk` |

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
    CallKey, CallRecord, CallState, Candidate, Config, Counter, Destination, Event, Job, JobKey, LateResult,
    LocalText, Output, Question, Request, SelectionPolicy, SendFailure, SendFrameError, Session, Stats,
    StopError, TurnKey, Unaccepted,
};
#[cfg(feature = "runtime")]
pub use tool::functions::{Handler, State, Tools, check_tool};
#[cfg(all(feature = "programs", unix))]
pub use tool::programs::{ProgramTools, ProgramsError};
#[cfg(feature = "runtime")]
pub use tool::source::{Prefixed, ToolContext, ToolSource};
pub use tool::{
    AuthorizePrompt, BargeIn, CallError, CallId, ChoicePrompt, Consent, DEFAULT_TIMEOUT, Decision, ErrorCode,
    Execution, FormPrompt, InvalidCallId, InvalidToolName, InvalidTraceContext, MAX_TOOL_NAME, NotAdmitted,
    NotOffered, Offer, Outcome, PermissionOption, PermissionPrompt, Progress, ProgressStatus, Prompt,
    PromptAnswer, PromptedCall, RegisterError, Tool, ToolError, ToolName, ToolOptions, TraceContext,
    Visibility,
};
#[cfg(feature = "livekit")]
pub use transport::livekit::{
    ConnectError, ConnectOptions, LiveKitTransport,
    access_token::{AccessKey, Bearer, Token, TokenError},
};
pub use transport::{
    Capabilities, CloseReason, ConnectionState, Identity, Lane, Packet, Participant, ParticipantKind, Peer,
    ROLE_ATTRIBUTE, Role, STREAM_CHUNK, STREAM_TOPIC, Sid, StreamHeader, StreamPart, StreamParts, TOPIC,
};
#[cfg(feature = "runtime")]
pub use transport::{Incoming, SendError, Transport, TransportEvent, memory};
pub use value::{DecodeError, EncodeError, Limits, Value, ValueKind};

#[cfg(all(any(doc, doctest), feature = "record", feature = "livekit"))]
pub mod guide {
    //! The guide: subjects that concern more than one item.
    //!
    //! | page | answers |
    //! | --- | --- |
    //! | [`reliability`] | What does the caller see when something fails, and did the tool run? |
    //! | [`reconnection`] | When does a participant resume or rejoin, and what do others see? |
    //! | [`recording`] | How is a session recorded, read, redacted and replayed? |
    //! | [`networks`] | What works behind proxies, firewalls and TURN servers, and how are failures found? |
    //! | [`tokens`] | How does a token server set a participant's role? |
    //! | [`testing`] | How are tools and assistants tested without a network? |
    //! | [`command_line`] | Which verbs has `toolbridge`, and what do its exit codes mean? |

    #[doc = include_str!("guide/command_line.md")]
    pub mod command_line {}

    #[doc = include_str!("guide/networks.md")]
    pub mod networks {}

    #[doc = include_str!("guide/reconnection.md")]
    pub mod reconnection {}

    #[doc = include_str!("guide/recording.md")]
    pub mod recording {}

    #[doc = include_str!("guide/reliability.md")]
    pub mod reliability {}

    #[doc = include_str!("guide/testing.md")]
    pub mod testing {}

    #[doc = include_str!("guide/tokens.md")]
    pub mod tokens {}
}

/// Compiles the examples in README.md.
#[cfg(all(doctest, feature = "livekit"))]
#[doc = include_str!("../README.md")]
struct Readme;
