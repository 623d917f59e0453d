//! The transport over a byte stream: one JSON-RPC message per line.

use std::{borrow::Cow, io, time::Duration};

use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, ErrorCode, JsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::raw;
use crate::adapter::{
    json::{DocumentError, head::Head, message},
    lines::{Line, Lines},
};

/// The longest line that a host may send, in bytes: as a request over HTTP.
pub(super) const MAX_MESSAGE: usize = 4 * 1024 * 1024;

/// How long the last messages may take to be written when a connection ends.
pub(super) const LAST_WRITE: Duration = Duration::from_secs(2);

/// The most messages that wait to be written.
const QUEUED: usize = 64;

/// A line to write, and who waits for that.
type Written = (String, Option<oneshot::Sender<()>>);

/// The connection to one host.
pub(super) struct Connection<R> {
    lines: Lines<R>,
    /// The host has sent a request. Before that `rmcp` expects nothing else.
    is_open: bool,
    out: mpsc::Sender<Written>,
    /// Cancelled when the host sends nothing more.
    closed: CancellationToken,
    /// An error to send before the next line is read.
    refusal: Option<String>,
}

impl<R: AsyncRead + Unpin + Send> Connection<R> {
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
        let connection =
            Self { lines: Lines::new(read, MAX_MESSAGE), is_open: false, out, closed, refusal: None };
        (connection, write_lines(write, lines))
    }

    /// Reads the next message; `None` when the host sends nothing more.
    async fn next_message(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.refusal.is_some() {
                let permit = self.out.reserve().await.ok()?;
                permit.send((self.refusal.take().unwrap_or_default(), None));
            }
            let refusal = match self.lines.next().await.ok()?? {
                Line::Text(line) if line.trim_ascii().is_empty() => None,
                Line::Text(line) => match parsed(&line) {
                    Ok((message, _)) => {
                        self.is_open |= matches!(message, JsonRpcMessage::Request(_));
                        if self.is_open {
                            return Some(message);
                        }
                        None
                    }
                    Err(refusal) => refusal,
                },
                Line::TooLong { start, end, .. } => {
                    let text = format!("the message exceeds {MAX_MESSAGE} bytes");
                    Some(unreadable(ErrorCode::INVALID_REQUEST, Head::of_ends(&start, &end), &text))
                }
            };
            self.refusal = refusal.map(|refusal| refusal.to_string());
        }
    }
}

/// The parts that tell a request from a notification and from an answer.
#[derive(Deserialize)]
struct Shape {
    #[serde(default)]
    id: Option<IgnoredAny>,
    #[serde(default)]
    method: Option<IgnoredAny>,
    #[serde(default)]
    result: Option<IgnoredAny>,
    #[serde(default)]
    error: Option<IgnoredAny>,
}

/// Parses a message. Returns its text, too, if that had to be repaired.
///
/// # Errors
/// The JSON-RPC error to send, or `None` for a notification or an answer, which get no response.
pub(super) fn parsed(bytes: &[u8]) -> Result<(ClientJsonRpcMessage, Option<String>), Option<Json>> {
    let text = message(bytes).map_err(|error| {
        let code = match error {
            DocumentError::NotUtf8 { .. } | DocumentError::NotJson { .. } => ErrorCode::PARSE_ERROR,
            _ => ErrorCode::INVALID_REQUEST,
        };
        Some(unreadable(code, Head::of(bytes), &format!("the message cannot be read: {error}")))
    })?;
    let message = serde_json::from_str(&text).map_err(|_| {
        let shape = serde_json::from_str::<Shape>(&text).ok();
        let needs_none = shape.is_some_and(|it| {
            it.method.is_some() && it.id.is_none()
                || it.method.is_none() && (it.result.is_some() || it.error.is_some())
        });
        let text = "not a JSON-RPC 2.0 request, notification or response";
        (!needs_none).then(|| refusal(ErrorCode::INVALID_REQUEST, Head::of(bytes).id(), text))
    })?;
    Ok((message, matches!(text, Cow::Owned(_)).then(|| text.into_owned())))
}

/// Returns the error for a message that cannot be read. Only a request gets its id back: the id of an answer may be that
/// of another request.
fn unreadable(code: ErrorCode, head: Head<'_>, text: &str) -> Json {
    refusal(code, head.id().filter(|_| head.has_method()), text)
}

/// Returns a JSON-RPC error. If the id is unknown it is left out: MCP does not allow null, as JSON-RPC does.
pub(super) fn refusal(code: ErrorCode, id: Option<Json>, text: &str) -> Json {
    let mut error = json!({"jsonrpc": "2.0", "error": {"code": code.0, "message": text}});
    if let Some(id) = id {
        error["id"] = id;
    }
    error
}

impl<R: AsyncRead + Unpin + Send> Transport<RoleServer> for Connection<R> {
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
async fn write_lines(
    mut write: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<Written>,
) -> io::Result<()> {
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
