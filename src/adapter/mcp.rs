//! The Model Context Protocol (MCP).

mod document;

pub use document::CallToolResult;
