//! Runs tools and participants in an async runtime: everything that needs tokio, other than transports.

pub(crate) mod executor;
pub(crate) mod functions;
pub(crate) mod participant;
#[cfg(all(feature = "programs", unix))]
pub mod programs;
pub(crate) mod reporter;
pub(crate) mod schema;
pub(crate) mod source;
pub(crate) mod stop_signal;

pub use functions::{Handler, State, Tools, WithOptions, check_tool};
pub use participant::{
    Assistant, AssistantBuilder, Builder, ByOwner, Call, CallBuilder, Client, ClientBuilder, ConsentRequest,
    Events, JoinError, PromptRequest, Propagate, Ready, ReadyError, Turn, chat,
};
pub use reporter::{Report, Reported, Reporter};
pub use schema::{DataSchema, SchemaError};
pub use source::{Prefixed, SOURCE_CLOSE, ToolContext, ToolSource};
