//! Tools of other systems: sources offer them in the room, sinks call the room's tools from another system.
//!
//! Adapters use the public API only.

pub mod agent_air;
pub mod mcp;
pub mod orchestrate;
