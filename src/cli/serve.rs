//! Holds the verbs that serve a room's tools to other systems, talk to an agent, or run the development server.

pub(super) mod acp;
pub(super) mod acp_agent;
pub(super) mod dev;
pub(super) mod mcp;
pub(super) mod rap;
