//! Speaks the Agent Client Protocol (ACP), version 1: an agent becomes a tool, and an assistant becomes the
//! agent of an editor.
//!
//! An agent is a process that speaks JSON-RPC over its standard streams, one message a line. Its definition is at
//! <https://agentclientprotocol.com>.

mod agent;
mod client;
mod document;
mod result;
mod text;

pub use agent::{AcpAgent, AcpServeError, AgentCall, AgentTurn, Editor, TurnEnd, UserPrompt, agent};
pub use client::{AcpCommand, AcpTool, command, forget_permissions, from_file, line, stdio};
pub use document::{CallStatus, ToolCall};
