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
//! **A client**, an app that offers tools:
//!
//! | item | what for |
//! | --- | --- |
//! | [`Client`], [`ClientBuilder`], [`JoinError`] | joins a room, serves tools, leaves |
//! | [`Tools`], [`State`], [`ToolContext`], [`ToolError`], [`ToolOptions`] | tools that are async functions, their state, call and errors |
//! | [`Consent`], [`ConsentRequest`], [`PromptRequest`](prompt::PromptRequest) | ask a person before a tool runs, or on the assistant's behalf |
//! | [`programs::ProgramTools`] | tools that are programs, described by a `tools.toml` |
//!
//! **An assistant**, the process that runs the model:
//!
//! | item | what for |
//! | --- | --- |
//! | [`Assistant`], [`AssistantBuilder`], [`Ready`] | joins a room, knows the clients and their tools |
//! | [`CallBuilder`], [`Call`], [`CallError`], [`Progress`] | one tool call and its one outcome |
//! | [`Turn`], [`BargeIn`], [`LateResult`] | calls of one turn of the conversation, and what an interruption does to them |
//! | [`chat`] | tool definitions and calls in the form of chat-model APIs |
//! | [`PermissionPrompt`](prompt::PermissionPrompt), [`ChoicePrompt`](prompt::ChoicePrompt), [`FormPrompt`](prompt::FormPrompt), [`AuthorizePrompt`](prompt::AuthorizePrompt) | questions to a person at a client |
//!
//! **A result that keeps its meaning:**
//!
//! | item | what for |
//! | --- | --- |
//! | [`ToolResult`] | what the model reads, what a person sees and hears; returned by a tool, read from a call's value |
//! | [`ContentBlock`](result::ContentBlock), [`BlockKind`](result::BlockKind), [`Audience`](result::Audience), [`Media`](result::Media) | its content, in pieces with an audience |
//! | [`Display`](result::Display), [`DisplayContent`](result::DisplayContent), [`DisplayKind`](result::DisplayKind), [`Widget`](result::Widget) | what a screen shows |
//! | [`ModelView`](result::ModelView), [`Native`](result::Native), [`ToolSystem`](result::ToolSystem), [`Cut`](result::Cut) | the model's text, the document of another system, what was removed |
//!
//! **Both:** [`Builder`] has what both set, [`Event`] and [`Events`] say what happens, [`CallRecord`] and [`Stats`] what happened, [`Config`] with [`Times`] and
//! [`Caps`] sets limits, [`livekit`] has connection options, tokens and a diagnosis of joins that fail, [`recording`] records
//! a session.
//!
//! **Tests:** [`memory`] is a room inside the process, and [`replay`] runs recordings again.
//!
//! **An integrator**, with other tools, another network or another event loop:
//!
//! | item | what for |
//! | --- | --- |
//! | [`ToolSource`], [`Tool`], [`Prefixed`](tools::Prefixed) | tools of another system |
//! | [`Transport`](transport::Transport), [`TransportEvent`](transport::TransportEvent), [`Packet`](transport::Packet), [`Participant`](transport::Participant) | another network |
//! | [`Session`](session::Session), [`Output`](session::Output), [`Request`](session::Request), [`Job`](session::Job) | the protocol's state machine in your own event loop, without an async runtime |
//! | [`adapter`] | tools and results of other systems |
//! | [`DataSchema`](tools::DataSchema) | checks data against a JSON Schema, within limits |
//! | [`process`] | child processes, such as the servers of other tool systems |
//! | [`frame`], [`Value`] | encoding and decoding of frames and values |
//!
//! The guide has a page on each larger subject: [reliability](guide::reliability), [reconnection](guide::reconnection),
//! [recording and replay](guide::recording), [networks](guide::networks), [tokens](guide::tokens),
//! [testing](guide::testing), [logging and events](guide::logging), [tool sources](guide::tool_sources),
//! [MCP](guide::mcp), [RAP](guide::rap), [ACP](guide::acp), [LiveKit RPC](guide::livekit_rpc),
//! [results between tool systems](guide::systems), [which tool for what](guide::coming_from), and
//! [the command line](guide::command_line).
//!
//! # How it fits together
//!
//! The protocol is one deterministic state machine, [`Session`](session::Session): bytes, commands and the current time go in; packets,
//! jobs, outcomes, events and the next deadline come out. [`Client`] and [`Assistant`] drive it in an async task. They run
//! the tools of a [`ToolSource`], and send packets over a [`Transport`](transport::Transport): [`livekit`], [`memory`], or your own.
//!
//! # Threads
//!
//! A participant is one task. Give a program whose work is a participant or two a runtime on one thread
//! (`#[tokio::main(flavor = "current_thread")]`), as the command line has it. On several threads, a call that is awaited in `main`
//! itself wakes another thread for each result, which took a quarter more time and CPU in a trial; calls in spawned tasks took as
//! long as on one thread. Tools that compute for more than a millisecond, or block, belong into `tokio::task::spawn_blocking`: on one
//! thread they delay the acknowledgements and answers of all other calls. Recordings are written by a thread of their own. A server
//! with many participants, or tools that compute all the time, needs several threads.
//!
//! Every item has one path: items for everyday use are at the crate's root, the rest is in the modules below.
//!
//! # Features
//!
//! | feature | what it adds |
//! | --- | --- |
//! | none | the core, without an async crate: [`Frame`](frame::Frame), [`Value`], [`Session`](session::Session) |
//! | `rpc` | calls by LiveKit's RPC, from and to participants without toolbridge; part of `runtime` |
//! | `deflate` | compressed frames, and compressed streams of LiveKit's RPC; part of `livekit` |
//! | `runtime` | `Client`, `Assistant`, tools, the in-memory transport and transports of your own |
//! | `livekit` | the LiveKit participant in pure Rust, and tokens |
//! | `schema-validation` | arguments are checked against the tool's JSON Schema before the tool runs; without it they are only decoded |
//! | `programs` | child processes, and tools that are programs, described by a `tools.toml`; Unix only |
//! | `acp` | agents of the Agent Client Protocol as tools, and an assistant as the agent of an editor; Unix only |
//! | `mcp` | tools of MCP servers, run as child processes or reached at an address; Unix only |
//! | `mcp-server` | the room's tools as an MCP server |
//! | `rap` | tools of RAP servers, and the room's tools as a RAP server; Unix only |
//! | `record` | sessions as MCAP files: recording, reading, checking, replaying |
//! | `report` | a recording as an HTML page |
//! | `dev-server` | a LiveKit-compatible server for tests and development, without media |
//! | `cli` (default) | the command line tool `toolbridge`, with all of the above |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "runtime")]
pub mod adapter;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli_support;
pub mod clock;
#[cfg(feature = "dev-server")]
pub mod dev_server;
#[cfg(feature = "vocabulary")]
#[doc(hidden)]
pub mod engine;
pub mod escape;
#[cfg(feature = "livekit")]
pub mod livekit;
#[cfg(feature = "runtime")]
pub mod memory;
#[cfg(any(feature = "acp", feature = "livekit", feature = "mcp", feature = "mcp-server", feature = "rap"))]
mod net;
#[cfg(all(feature = "programs", unix))]
pub mod process;
mod protocol;
#[cfg(feature = "record")]
pub mod recording;
#[cfg(feature = "record")]
pub mod replay;
#[cfg(feature = "runtime")]
mod runtime;
mod sorted;
mod tool;
#[cfg(all(feature = "programs", unix))]
mod tools_file;
pub mod transport;
mod value;
#[cfg(feature = "vocabulary")]
#[doc(hidden)]
pub mod vocabulary;

pub use protocol::{
    frame,
    session::{CallRecord, Caps, Config, Event, LateResult, Stats, Times},
};
#[cfg(all(feature = "programs", unix))]
pub use runtime::programs;
#[cfg(feature = "runtime")]
pub use runtime::{
    Assistant, AssistantBuilder, Builder, Call, CallBuilder, Client, ClientBuilder, ConsentRequest, Events,
    JoinError, Ready, State, ToolContext, ToolSource, Tools, Turn, chat,
};
pub use tool::{
    BargeIn, CallError, CallId, Consent, ErrorCode, Outcome, Progress, Tool, ToolError, ToolName,
    ToolOptions, ToolResult,
};
pub use transport::types::{CloseReason, ConnectionState, Identity, Role};
pub use value::{DecodeError, EncodeError, Value};

pub mod prompt {
    //! Questions to a person: permissions, choices, forms and addresses to open.

    #[cfg(feature = "runtime")]
    pub use crate::runtime::PromptRequest;
    pub use crate::tool::{
        AuthorizePrompt, ChoicePrompt, Decision, FormPrompt, MAX_PROMPT_CHOICES, MAX_PROMPT_LABEL,
        MAX_PROMPT_SCHEMA, MAX_PROMPT_TEXT, MAX_PROMPT_URL, PermissionOption, PermissionPrompt, Prompt,
        PromptAnswer, PromptedCall,
    };
}

pub mod result {
    //! Results of tools in pieces: their content with an audience, what a screen shows, and the document of another system.
    //!
    //! [`ToolResult`](crate::ToolResult) is made of them. [`render`] lays a result out as lines.

    pub use crate::tool::{
        Audience, BlockKind, ContentBlock, Cut, Diff, Display, DisplayContent, DisplayKind, EmbeddedResource,
        Media, ModelView, Native, ToolSystem, Widget, render,
    };
}

pub mod session {
    //! The protocol's state machine, for a driver of your own: without I/O, clock, randomness and async runtime.

    pub use crate::protocol::session::{
        COMPLAINT_INTERVAL, CONSENT_MARGIN, CallCaps, CallKey, CallState, Candidate, Counter, Destination,
        FrameCaps, LocalText, Output, Question, Readiness, Request, RequestCaps, Selection, SelectionFn,
        SelectionKey, SelectionPolicy, SendFailure, SendFrameError, Session, StopError, ToolCaps, TurnKey,
        Unaccepted,
    };
    pub use crate::tool::{Job, JobKey};
}

pub mod tools {
    //! What tools, their names and their sources are made of.

    #[cfg(feature = "runtime")]
    pub use crate::runtime::{
        ByOwner, DataSchema, Handler, Prefixed, Propagate, ReadyError, Report, Reported, Reporter,
        SOURCE_CLOSE, SchemaError, WithOptions, check_tool,
    };
    pub use crate::tool::{
        DEFAULT_TIMEOUT, Execution, InvalidCallId, InvalidToolName, InvalidTraceContext, LossCause,
        MAX_TOOL_NAME, ModelTool, NameMap, NameRules, NotAdmitted, NotAssistant, NotOffered, Offer,
        ProgressStatus, Reach, RegisterError, ReportError, SourceHealth, SourceStatus, StopReason, ToolHints,
        TraceContext, UnfitTool, Visibility,
    };
}

/// The bytes of a packet.
#[doc(no_inline)]
pub use bytes::Bytes;
/// The trait that a tool's argument type derives (`#[derive(schemars::JsonSchema)]`), in the version that [`Tools`] uses.
#[cfg(feature = "runtime")]
#[doc(no_inline)]
pub use schemars;
/// The token that [`ToolContext::with_cancellation`] takes.
#[cfg(feature = "runtime")]
#[doc(no_inline)]
pub use tokio_util::sync::CancellationToken;

#[cfg(all(any(doc, doctest), feature = "record", feature = "dev-server"))]
pub mod guide {
    // In a page, the first definition of a link counts: `links.md` leads to the pages that rustdoc makes, and the
    // definitions at the end of a page lead to the files, as GitHub shows them.

    //! The guide: subjects that concern more than one item.
    //!
    //! | page | answers |
    //! | --- | --- |
    //! | [`coming_from`] | What changes for users of LiveKit's RPC, MCP, ElevenLabs' client tools and CopilotKit? |
    //! | [`reliability`] | What does the caller see when something fails, and did the tool run? |
    //! | [`reconnection`] | When does a participant resume or rejoin, and what do others see? |
    //! | [`recording`] | How is a session recorded, read, redacted and replayed? |
    //! | [`tool_sources`] | What do programs, MCP servers, RAP toolsets and ACP agents have in common? |
    //! | [`mcp`] | How do the tools of MCP servers come into a room, and the room's tools to an MCP host? |
    //! | [`rap`] | How do the tools of RAP toolsets come into a room, and the room's tools to a RAP runtime? |
    //! | [`acp`] | How does an ACP agent become a tool, and how do the room's tools reach an editor? |
    //! | [`livekit_rpc`] | How do clients answer LiveKit's `performRpc`, and how do assistants call apps by it? |
    //! | [`systems`] | What arrives of a result of one tool system in another one? |
    //! | [`networks`] | What works behind proxies, firewalls and TURN servers, and how are failures found? |
    //! | [`tokens`] | How does a token server set a participant's role? |
    //! | [`testing`] | How are tools and assistants tested without a network? |
    //! | [`logging`] | What is reported as events, counters and logs, and what does a panicking tool leave? |
    //! | [`command_line`] | Which verbs has `toolbridge`, and what do its exit codes mean? |

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/acp.md")]
    pub mod acp {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/coming_from.md")]
    pub mod coming_from {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/command_line.md")]
    pub mod command_line {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/logging.md")]
    pub mod logging {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/livekit_rpc.md")]
    pub mod livekit_rpc {}

    #[cfg(feature = "mcp-server")]
    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/mcp.md")]
    pub mod mcp {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/networks.md")]
    pub mod networks {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/rap.md")]
    pub mod rap {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/reconnection.md")]
    pub mod reconnection {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/recording.md")]
    pub mod recording {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/reliability.md")]
    pub mod reliability {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/systems.md")]
    pub mod systems {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/testing.md")]
    pub mod testing {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/tokens.md")]
    pub mod tokens {}

    #[doc = include_str!("guide/links.md")]
    #[doc = include_str!("guide/tool_sources.md")]
    pub mod tool_sources {}
}

/// Compiles the examples in README.md.
#[cfg(all(doctest, feature = "livekit"))]
#[doc = include_str!("../README.md")]
struct Readme;
