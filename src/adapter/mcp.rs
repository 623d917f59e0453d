//! Speaks the Model Context Protocol (MCP): offers tools of its servers in the room, and keeps their documents.
//!
//! [`stdio`], [`line()`], [`command`], [`http`] and [`from_file`] name a server. Awaiting it starts it, and returns its
//! tools as a source:
//!
//! ```no_run
//! # #[cfg(all(feature = "mcp", unix))]
//! # async fn join() -> Result<(), Box<dyn std::error::Error>> {
//! use toolbridge::{Client, adapter::mcp};
//!
//! let files = mcp::stdio(["npx", "-y", "@modelcontextprotocol/server-filesystem", "/srv/photos"]);
//! let search = mcp::http("https://mcp.example.com/mcp").bearer_env("SEARCH_TOKEN");
//! let client = Client::builder().tools(files.await?).tools(search.await?);
//! # let _ = client;
//! # Ok(())
//! # }
//! ```
//!
//! | what a server does | what follows |
//! | --- | --- |
//! | it returns a result | the result keeps its document byte for byte: [`ToolResult::native`](crate::ToolResult::native) |
//! | it reports progress | the caller gets it |
//! | it asks for input (elicitation) | the person gets a form, or an address to open ([`ToolContext::ask`](crate::ToolContext::ask)) |
//! | it changes its tools | they change in the room, at most once a second |
//! | it ends | its open calls fail at once with its status, its tools go, and it is started again after 1, 2, 4 … 60 s |
//! | it writes something other than messages | it is skipped and counted; after 1 MiB without a message it is started again |
//!
//! A call that is cancelled is cancelled at the server, with the reason. Sampling, roots and tasks are not offered; tools
//! that demand tasks are left out.
//!
//! In the other direction, [`serve`] offers the tools of a room to MCP hosts, and [`attach`] carries a host that starts its
//! servers itself to one that listens. Log `rmcp`, which speaks the protocol to hosts, at the level `warn`: below it prints
//! whole messages, with arguments and results.

#[cfg(all(feature = "mcp", unix))]
mod attach;
mod document;
#[cfg(feature = "mcp-server")]
mod server;
#[cfg(all(feature = "mcp", unix))]
mod source;

#[cfg(all(feature = "mcp", unix))]
pub use attach::{Attach, AttachError, attach};
pub use document::{CallToolResult, check_output};
#[cfg(feature = "mcp-server")]
pub use server::{McpListener, McpServeError, RoomServer, serve};
#[cfg(all(feature = "mcp", unix))]
pub use source::{McpServer, McpTools, command, from_file, http, line, stdio};
