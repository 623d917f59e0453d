//! The Agent Client Protocol (ACP), version 1: an agent as a tool, and an assistant as the agent of an editor.
//!
//! An agent is a process that speaks JSON-RPC over its standard streams, one message a line. Its definition is at
//! <https://agentclientprotocol.com>.

mod agent;
#[allow(dead_code, reason = "both directions will use it")]
mod lines;
mod result;
mod text;

pub use agent::{AcpAgent, AcpServeError, AgentCall, AgentTurn, Editor, TurnEnd, UserPrompt, agent};
