//! The transport over a byte stream: one JSON-RPC message per line.

use std::{borrow::Cow, io, time::Duration};

use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, ErrorCode, JsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader},
    sync::{mpsc, oneshot},
};

use super::raw;
use tokio_util::sync::CancellationToken;

/// The longest line that a host may send, in bytes: as a request over HTTP.
pub(super) const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// How long the last messages may take to be written when a connection ends.
pub(super) const LAST_WRITE: Duration = Duration::from_secs(2);

/// The most messages that wait to be written.
const QUEUED: usize = 64;

/// A line to write, and who waits for that.
type Line = (String, Option<oneshot::Sender<()>>);

/// The connection to one host.
pub(super) struct Lines<R> {
    read: BufReader<R>,
    line: Vec<u8>,
    /// The rest of a line that is too long is skipped.
    is_skipping: bool,
    /// The host has sent a request. Before that `rmcp` expects nothing else.
    is_open: bool,
    out: mpsc::Sender<Line>,
    /// Cancelled when the host sends nothing more.
    closed: CancellationToken,
    /// An error to send before the next line is read.
    refusal: Option<String>,
}

impl<R: AsyncRead + Unpin + Send> Lines<R> {
    /// Returns the transport, and its task, which writes.
    pub(super) fn new<W>(
        read: R,
        write: W,
        closed: CancellationToken,
    ) -> (Self, impl Future<Output = io::Result<()>> + Send)
    where
        W: AsyncWrite + Unpin + Send,
    {
        let (out, lines) = mpsc::channel(QUEUED);
        let read = BufReader::new(read);
        let lines_in =
            Self { read, line: Vec::new(), is_skipping: false, is_open: false, out, closed, refusal: None };
        (lines_in, write_lines(write, lines))
    }

    /// Reads into `line` until it is complete: `Some(true)`, or too long: `Some(false)`. Cancel-safe: what was read stays in
    /// `line`.
    async fn read_line(&mut self) -> Option<bool> {
        loop {
            let read = self.read.fill_buf().await.ok()?;
            if read.is_empty() {
                return None;
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let part = end.unwrap_or(read.len());
            let is_too_long = self.line.len() + part > MAX_MESSAGE;
            if !self.is_skipping && !is_too_long {
                self.line.extend_from_slice(&read[..part]);
            }
            self.read.consume(end.map_or(part, |end| end + 1));
            let was_skipping = self.is_skipping;
            self.is_skipping = (was_skipping || is_too_long) && end.is_none();
            match (was_skipping, is_too_long, end) {
                (false, true, _) => {
                    self.line.clear();
                    return Some(false);
                }
                (false, false, Some(_)) => return Some(true),
                _ => {}
            }
        }
    }

    /// Reads the next message; `None` when the host sends nothing more.
    async fn next_message(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.refusal.is_some() {
                let permit = self.out.reserve().await.ok()?;
                permit.send((self.refusal.take().unwrap_or_default(), None));
            }
            if self.read_line().await? {
                if let Some(message) = self.read_message() {
                    return Some(message);
                }
            } else {
                let text = format!("the message exceeds {MAX_MESSAGE} bytes");
                self.refusal = Some(refusal(ErrorCode::INVALID_REQUEST, None, &text).to_string());
            }
        }
    }

    /// Returns the message of a line. A line that is none is refused, or skipped if it is a notification.
    fn read_message(&mut self) -> Option<ClientJsonRpcMessage> {
        let line = std::mem::take(&mut self.line);
        if line.trim_ascii().is_empty() {
            return None;
        }
        match parsed(&line) {
            Ok(message) => {
                let is_request = matches!(message, JsonRpcMessage::Request(_));
                self.is_open |= is_request;
                self.is_open.then_some(message)
            }
            Err(refusal) => {
                self.refusal = refusal.map(|refusal| refusal.to_string());
                None
            }
        }
    }
}

/// Parses a message.
///
/// # Errors
/// The JSON-RPC error to send, or `None` for a notification, which gets no response.
pub(super) fn parsed(bytes: &[u8]) -> Result<ClientJsonRpcMessage, Option<Json>> {
    let json: Json = serde_json::from_slice(bytes)
        .map_err(|error| Some(refusal(ErrorCode::PARSE_ERROR, None, &format!("malformed JSON: {error}"))))?;
    let id = json.get("id").filter(|id| id.is_string() || id.is_number()).cloned();
    let is_notification = json.get("method").is_some() && json.get("id").is_none();
    serde_json::from_value(json).map_err(|_| {
        let text = "not a JSON-RPC 2.0 request, notification or response";
        (!is_notification).then(|| refusal(ErrorCode::INVALID_REQUEST, id, text))
    })
}

/// Returns a JSON-RPC error. If the id is unknown it is left out: MCP does not allow null, as JSON-RPC does.
pub(super) fn refusal(code: ErrorCode, id: Option<Json>, text: &str) -> Json {
    let mut error = json!({"jsonrpc": "2.0", "error": {"code": code.0, "message": text}});
    if let Some(id) = id {
        error["id"] = id;
    }
    error
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleServer> for Lines<R> {
    type Error = io::Error;

    fn name() -> Cow<'static, str> {
        "lines".into()
    }

    fn send(
        &mut self,
        message: ServerJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        let out = self.out.clone();
        async move {
            let text = serde_json::to_string(&message)?;
            let text = raw::unwrapped(&text).unwrap_or(text);
            let (written, is_written) = oneshot::channel();
            let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
            out.send((text, Some(written))).await.map_err(|_| gone())?;
            is_written.await.map_err(|_| gone())
        }
    }

    async fn receive(&mut self) -> Option<ClientJsonRpcMessage> {
        let message = self.next_message().await;
        if message.is_none() {
            self.closed.cancel();
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes lines until the transport is dropped.
async fn write_lines(mut write: impl AsyncWrite + Unpin, mut lines: mpsc::Receiver<Line>) -> io::Result<()> {
    while let Some((mut line, written)) = lines.recv().await {
        line.push('\n');
        write.write_all(line.as_bytes()).await?;
        write.flush().await?;
        if let Some(written) = written {
            let _ = written.send(()); // the sender may not wait any more
        }
    }
    write.shutdown().await
}
