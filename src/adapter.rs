//! Tools of other systems: sources offer them in the room, sinks call the room's tools from another system.
//!
//! Adapters use the public API only.

pub mod agent_air;
mod json;
pub mod mcp;
pub mod orchestrate;
#[cfg(all(feature = "rap", unix))]
pub mod rap;

pub use json::DocumentError;
