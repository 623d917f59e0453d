//! The Model Context Protocol (MCP).
