//! Connects tools of other systems: sources offer them in the room, sinks call the room's tools from another
//! system.
//!
//! Adapters use the public API only.

#[cfg(all(feature = "acp", unix))]
pub mod acp;
pub mod agent_air;
#[cfg(all(any(feature = "acp", feature = "mcp"), unix))]
mod elicitation;
#[cfg(any(feature = "mcp-server", all(feature = "mcp", unix), all(feature = "rap", unix)))]
mod filter;
mod json;
#[cfg(any(feature = "mcp-server", all(any(feature = "acp", feature = "mcp"), unix)))]
pub(crate) mod jsonrpc;
pub mod mcp;
pub mod orchestrate;
#[cfg(all(feature = "rap", unix))]
pub mod rap;
#[cfg(any(feature = "mcp-server", all(feature = "rap", unix)))]
mod sink;
#[cfg(all(any(feature = "acp", feature = "mcp", feature = "rap"), unix))]
mod source;
#[cfg(any(feature = "mcp-server", all(any(feature = "mcp", feature = "rap"), unix)))]
mod web;
#[cfg(all(any(feature = "acp", feature = "mcp", feature = "rap"), unix))]
mod words;

pub use json::DocumentError;
#[cfg(all(any(feature = "acp", feature = "mcp", feature = "rap"), unix))]
pub use source::SourceError;
