//! A bridge from standard input and output to an MCP server at an address: see [`attach`].
//!
//! Messages pass as text. They are read only for what HTTP needs to know: the method, the id, and the protocol version.

mod exchange;
mod message;

use std::{collections::HashMap, io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::{
    exchange::{Gone, Server},
    message::{HostMessage, Kind},
};
use crate::adapter::{
    jsonrpc::{
        error::{INTERNAL, INVALID_REQUEST, refusal},
        head::Head,
        lines::{Lines, ReadLine},
    },
    mcp::source::address::Address,
};

/// The longest line that a host may send, in bytes: as a request to the server.
const MAX_LINE: usize = 4 << 20;

/// The most requests that are open at once: the server runs as many calls.
const MAX_OPEN: usize = 64;

/// The most messages that wait to be written. Each answer that is being read adds one.
const QUEUED: usize = 16;

/// How long open requests may take after the host has closed its input, as over standard input and output.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

/// How long the last messages may take to be written.
const LAST_WRITE: Duration = Duration::from_secs(2);

/// How long a cancellation waits until the server has the request that it names.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

/// Carries one MCP host's standard input and output to an MCP server at an address, such as
/// [`McpListener::url`](super::McpListener::url).
///
/// It is for hosts that start their servers as child processes, beside an assistant that runs already: no second
/// assistant joins the room. The address must be `https`, or `http` of this machine. Redirects are not followed.
pub fn attach(url: impl Into<String>) -> Attach {
    Attach { url: url.into(), bearer: None }
}

/// Carries messages between a host and a server: see [`attach`].
#[must_use = "nothing is carried before it has a connection"]
pub struct Attach {
    url: String,
    bearer: Option<String>,
}

impl Attach {
    /// Sets the bearer token of the server. Default: none.
    pub fn bearer_token(mut self, token: impl Into<String>) -> Self {
        self.bearer = Some(token.into());
        self
    }

    /// Carries messages, one per line, until the host closes its input or its output, or the server is gone. Nothing but
    /// messages is written. Requests that are open when the host closes its input have 5 s to end.
    ///
    /// A line has at most 4 MiB, and at most 64 requests are open. Further ones are refused.
    ///
    /// # Errors
    /// [`AttachError::Address`] if the address cannot be used, [`AttachError::Gone`] if the server cannot be reached,
    /// refuses the token, or has ended the session. The host gets an error for each open request first.
    ///
    /// # Cancel safety
    /// Dropping the future ends the connection and cancels its calls.
    pub async fn over(
        self,
        read: impl AsyncRead + Send + Unpin,
        write: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Result<(), AttachError> {
        let address = Address::read(&self.url).map_err(|error| AttachError::Address(error.to_string()))?;
        let server = Server::new(&address, self.bearer.as_deref()).map_err(AttachError::Address)?;
        let (out, lines) = mpsc::channel(QUEUED);
        let mut writing = JoinSet::new(); // aborted with this future
        writing.spawn(write_lines(write, lines));
        let mut bridge = Bridge::new(server, out);
        let ended = tokio::select! {
            biased;
            ended = bridge.carry(Lines::new(read, MAX_LINE)) => ended,
            _ = writing.join_next() => Ok(()), // the host reads no more
        };
        let server = bridge.end().await;
        let _ = timeout(LAST_WRITE, writing.join_next()).await;
        server.close().await;
        ended.map_err(|gone| AttachError::Gone(gone.0))
    }
}

/// Without the token, and without the path of the address, which may be secret.
impl std::fmt::Debug for Attach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attach").finish_non_exhaustive()
    }
}

/// Why an [`Attach`] ended with an error. No text has the token, or more of the address than its host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// The address, or the token, cannot be used.
    #[error("{0}")]
    Address(String),
    /// The server cannot be reached, refuses the token, or has ended the session.
    #[error("the MCP server is gone: {0}")]
    Gone(String),
}

/// A request that the server has not answered.
struct Open {
    task: AbortHandle,
    /// Cancelled when the server has the request.
    heard: CancellationToken,
    /// Cancelled when the host has cancelled the request.
    given_up: CancellationToken,
    /// The request has no session: it ends with its connection.
    is_modern: bool,
}

struct Bridge {
    server: Arc<Server>,
    out: mpsc::Sender<String>,
    open: HashMap<String, Open>,
    requests: JoinSet<Result<(), Gone>>,
    /// The streams that stay open: of notifications, and of subscriptions.
    streams: JoinSet<Result<(), Gone>>,
}

impl Bridge {
    fn new(server: Server, out: mpsc::Sender<String>) -> Self {
        Self {
            server: Arc::new(server),
            out,
            open: HashMap::new(),
            requests: JoinSet::new(),
            streams: JoinSet::new(),
        }
    }

    /// Carries messages until the host has closed its input and its requests have ended.
    async fn carry<R: AsyncRead + Unpin>(&mut self, mut lines: Lines<R>) -> Result<(), Gone> {
        loop {
            tokio::select! {
                line = lines.next() => match line {
                    Ok(Some(line)) => self.line(line).await?,
                    Ok(None) | Err(_) => break,
                },
                Some(ended) = self.requests.join_next() => self.ended(ended.unwrap_or(Ok(())))?,
                Some(ended) = self.streams.join_next() => self.ended(ended.unwrap_or(Ok(())))?,
            }
        }
        let answers = async {
            while let Some(ended) = self.requests.join_next().await {
                ended.unwrap_or(Ok(()))?;
            }
            Ok(())
        };
        timeout(LAST_ANSWERS, answers).await.unwrap_or(Ok(()))
    }

    fn ended(&mut self, ended: Result<(), Gone>) -> Result<(), Gone> {
        self.open.retain(|_, open| !open.task.is_finished());
        ended
    }

    async fn line(&mut self, line: ReadLine) -> Result<(), Gone> {
        let text = match line {
            ReadLine::Text(text) if text.trim_ascii().is_empty() => return Ok(()),
            ReadLine::Text(text) => text,
            ReadLine::TooLong { size, start, end } => {
                let reason = format!("it has {size} bytes; the limit is {MAX_LINE}");
                let head = Head::of_ends(&start, &end);
                let refused = HostMessage::unreadable(head, INVALID_REQUEST, &reason);
                return self.answer(refused).await;
            }
        };
        let message = match HostMessage::read(text) {
            Ok(message) => message,
            Err(error) => return self.answer(error).await,
        };
        match &message.kind {
            Kind::Request { method, .. } if method == "initialize" => {
                let (heard, given_up) = (CancellationToken::new(), CancellationToken::new());
                self.server.request(&message, &heard, &given_up, &self.out).await
            }
            Kind::Request { id, method } => {
                let (id, is_stream) = (id.clone(), method == "subscriptions/listen");
                self.begin(id, is_stream, message).await
            }
            Kind::Notification { method, cancels } => {
                if method == "notifications/cancelled"
                    && let Some(id) = cancels
                    && self.cancel(id).await
                {
                    return Ok(());
                }
                let is_initialized = method == "notifications/initialized";
                self.server.notify(&message).await?;
                if is_initialized {
                    self.streams.spawn(Arc::clone(&self.server).listen(self.out.clone()));
                }
                Ok(())
            }
            Kind::Response => self.server.notify(&message).await,
        }
    }

    /// Sends a request in a task of its own: others overtake it.
    async fn begin(&mut self, id: String, is_stream: bool, message: HostMessage) -> Result<(), Gone> {
        if self.open.len() >= MAX_OPEN {
            let text = format!("busy: {MAX_OPEN} requests are open already; wait for one to end");
            return self.answer(refusal(message.id.as_ref(), INTERNAL, &text)).await;
        }
        let (server, out, heard) = (Arc::clone(&self.server), self.out.clone(), CancellationToken::new());
        let (is_modern, begun) = (message.version.is_some(), heard.clone());
        let given_up = CancellationToken::new();
        let cancelled = given_up.clone();
        let request = async move {
            let ended = server.request(&message, &begun, &cancelled, &out).await;
            begun.cancel();
            ended
        };
        let tasks = if is_stream { &mut self.streams } else { &mut self.requests };
        let task = tasks.spawn(request);
        self.open.insert(id, Open { task, heard, given_up, is_modern });
        Ok(())
    }

    /// Cancels a request that has no session, and returns whether it did. For others, it waits until the server has the
    /// request, because a cancellation that overtakes it has no effect.
    async fn cancel(&mut self, id: &str) -> bool {
        let Some(open) = self.open.get(id) else { return false };
        open.given_up.cancel();
        if open.is_modern {
            open.task.abort();
        } else {
            let _ = timeout(CANCEL_WAIT, open.heard.cancelled()).await;
        }
        open.is_modern
    }

    async fn answer(&self, line: String) -> Result<(), Gone> {
        let _ = self.out.send(line).await; // a host that reads no more is noticed elsewhere
        Ok(())
    }

    /// Ends what is open, and returns the server.
    async fn end(mut self) -> Arc<Server> {
        self.requests.shutdown().await;
        self.streams.shutdown().await;
        self.server
    }
}

/// Writes lines until nothing can follow.
async fn write_lines(
    mut write: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<String>,
) -> io::Result<()> {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        write.write_all(line.as_bytes()).await?;
        write.flush().await?;
    }
    write.shutdown().await
}
