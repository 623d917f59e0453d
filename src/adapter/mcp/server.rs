//! Serves the room's tools as an MCP server: its host's model calls what the clients in the room offer.
//!
//! `rmcp` has the lifecycle and the HTTP transport. [`lines`] is the transport over a byte stream, because `rmcp`'s own
//! does not answer malformed JSON. [`raw`] carries results past `rmcp`'s types, which drop unknown keys. [`fit`] makes
//! documents of other programs valid.

use std::{fmt, io, net::SocketAddr, sync::Arc};

use rmcp::service::{QuitReason, ServerInitializeError, serve_server_with_ct};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::JoinSet,
};

use tokio_util::sync::CancellationToken;

use crate::{
    Assistant, CloseReason,
    adapter::{filter::Filter, sink::Room},
};

mod call;
mod changes;
mod conform;
mod definition;
mod handler;
mod http;
mod lines;
mod opened;
mod progress;
mod raw;
mod read;
mod result;

pub use http::McpListener;

use handler::Handler;
use lines::Connection;
use opened::Opened;

/// Serves the tools of the assistant's room as an MCP server.
///
/// The assistant keeps working as before. A tool that one participant offers is listed under its own name, one of
/// several as `owner__tool`. Names contain only characters that model APIs allow: a dot becomes `__`.
///
/// ```no_run
/// # async fn example(assistant: toolbridge::Assistant) -> Result<(), Box<dyn std::error::Error>> {
/// use toolbridge::adapter::mcp;
///
/// let server = mcp::serve(assistant).deny("erase_*").listen("127.0.0.1:0".parse()?).await?;
/// println!("{}  Authorization: Bearer {}", server.url(), server.token());
/// # Ok(())
/// # }
/// ```
pub fn serve(assistant: Assistant) -> RoomServer {
    RoomServer { assistant, filter: Filter::default(), hosts: Vec::new() }
}

/// Serves the tools of a room to MCP hosts: see [`serve`].
#[must_use = "a server does nothing until it has a connection"]
pub struct RoomServer {
    assistant: Assistant,
    filter: Filter,
    hosts: Vec<String>,
}

impl RoomServer {
    /// Offers only tools that match this pattern or another allowed one. Default: all tools.
    ///
    /// A pattern is a tool's name, or `owner.tool`, or the name that a host sees. A `*` at its end stands for any text:
    /// `fs.*`, `phone.*`, `fs__read`.
    pub fn allow(mut self, pattern: impl Into<String>) -> Self {
        self.filter.allow([pattern.into()]);
        self
    }

    /// Does not offer tools that match this pattern, even if another pattern allows them.
    pub fn deny(mut self, pattern: impl Into<String>) -> Self {
        self.filter.deny([pattern.into()]);
        self
    }

    /// HTTP: accepts requests for this host name too, optionally with a port. Default: loopback names, and the address
    /// that the server listens on.
    pub fn host(mut self, name: impl Into<String>) -> Self {
        self.hosts.push(name.into());
        self
    }

    /// Serves one host over standard input and output, until the host closes standard input. Nothing else in the
    /// process may print to standard output.
    ///
    /// # Errors
    /// [`McpServeError::Handshake`] if the host does not open the connection as the protocol says, and
    /// [`McpServeError::Left`] if the assistant leaves the room.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection and cancels its calls.
    pub async fn stdio(self) -> Result<(), McpServeError> {
        self.over(tokio::io::stdin(), tokio::io::stdout()).await
    }

    /// Serves one host over a byte stream, one JSON message per line, until the host closes it. Calls that are open
    /// then have 5 s to end.
    ///
    /// # Errors
    /// As [`stdio`](Self::stdio).
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection and cancels its calls.
    pub async fn over(
        self,
        read: impl AsyncRead + Send + Unpin + 'static,
        write: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), McpServeError> {
        let assistant = self.assistant.clone();
        let (stop, closed) = (CancellationToken::new(), CancellationToken::new());
        let (transport, writer) = Connection::new(read, write, closed.clone());
        let mut tasks = JoinSet::new(); // aborted with this future
        let writing = tasks.spawn(writer);
        let handler = Handler::new(Arc::new(self.into_shared()), closed);
        let serving = connection(handler, transport, stop.clone());
        tokio::pin!(serving);
        let ended = tokio::select! {
            biased;
            ended = &mut serving => ended,
            // The host does not read any more.
            _ = tasks.join_next() => {
                stop.cancel();
                serving.await
            }
            reason = assistant.closed() => {
                stop.cancel();
                let _ = serving.await; // the reason below says more
                Err(McpServeError::Left(reason))
            }
        };
        // What was sent last is still written.
        if !writing.is_finished() {
            let _ = tokio::time::timeout(lines::LAST_WRITE, tasks.join_next()).await;
        }
        ended
    }

    /// Listens for HTTP connections ("Streamable HTTP") at this address, with a random bearer token that each request must
    /// carry. Only programs on this machine reach a loopback address; port 0 selects a free port.
    ///
    /// At most 64 sessions and 256 requests are open, and a request has at most 4 MiB. Beyond 64 sessions, the one
    /// that has been idle for longest ends. Requests for other hosts, and requests of web pages that are not from this
    /// machine, are refused.
    ///
    /// # Errors
    /// The address cannot be bound, or the operating system gives no random bytes.
    ///
    /// # Cancel safety
    /// Dropping the future before it completes listens to nothing.
    pub async fn listen(self, address: SocketAddr) -> io::Result<McpListener> {
        let hosts = self.hosts.clone();
        http::listen(Arc::new(self.into_shared()), address, hosts).await
    }

    fn into_shared(self) -> Room {
        Room::new(self.assistant, self.filter)
    }
}

impl fmt::Debug for RoomServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RoomServer").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// Serves one connection until it ends.
async fn connection<R>(
    handler: Handler,
    transport: Connection<R>,
    stop: CancellationToken,
) -> Result<(), McpServeError>
where
    R: AsyncRead + Send + Unpin + 'static,
{
    let running = match serve_server_with_ct(Opened(handler), transport, stop).await {
        Ok(running) => running,
        // The host left before it asked for anything, or this side stopped.
        Err(ServerInitializeError::ConnectionClosed(_) | ServerInitializeError::Cancelled) => return Ok(()),
        Err(error) => return Err(McpServeError::Handshake(Box::new(error))),
    };
    match running.waiting().await {
        Ok(QuitReason::JoinError(error)) | Err(error) => Err(McpServeError::Handshake(Box::new(error))),
        Ok(_) => Ok(()),
    }
}

/// Why an MCP connection ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum McpServeError {
    /// The host did not open the connection as the protocol says.
    #[error("the MCP connection failed: {0}")]
    Handshake(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The assistant has left the room.
    #[error("not in the room: {0}")]
    Left(CloseReason),
}
