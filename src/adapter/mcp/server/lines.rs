//! The transport over a byte stream: one JSON-RPC message per line.

use std::{borrow::Cow, io, time::Duration};

use rmcp::{
    RoleServer,
    model::{ClientJsonRpcMessage, JsonRpcMessage, ServerJsonRpcMessage},
    transport::Transport,
};
use serde_json::Value as Json;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use crate::adapter::jsonrpc::{
    self,
    error::{INVALID_REQUEST, SHAPE, code_of, refusal, unreadable},
    head::Head,
    lines::{Lines, ReadLine},
    message::Parts,
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
                ReadLine::Text(line) if line.trim_ascii().is_empty() => None,
                ReadLine::Text(line) => match parsed(&line) {
                    Ok((message, _)) => {
                        self.is_open |= matches!(message, JsonRpcMessage::Request(_));
                        if self.is_open {
                            return Some(message);
                        }
                        None
                    }
                    Err(refusal) => refusal,
                },
                ReadLine::TooLong { start, end, .. } => {
                    let text = format!("the message exceeds {MAX_MESSAGE} bytes");
                    Some(unreadable(Head::of_ends(&start, &end), INVALID_REQUEST, &text))
                }
            };
            self.refusal = refusal.map(|refusal| refusal.to_string());
        }
    }
}

/// Parses a message. Returns its text, too, if that had to be repaired.
///
/// # Errors
/// The JSON-RPC error to send, or `None` for a notification or an answer, which get no response.
pub(super) fn parsed(bytes: &[u8]) -> Result<(ClientJsonRpcMessage, Option<String>), Option<Json>> {
    let text = jsonrpc::text(bytes).map_err(|error| {
        let reason = format!("the message cannot be read: {error}");
        Some(unreadable(Head::of(bytes), code_of(&error), &reason))
    })?;
    let message = serde_json::from_str(&text).map_err(|_| {
        let needs_none = serde_json::from_str::<Parts<'_>>(&text).is_ok_and(|it| match it.method {
            Some(_) => it.id.is_none(),
            None => it.result.is_some() || it.error.is_some(),
        });
        (!needs_none).then(|| refusal(Head::of(bytes).id().as_ref(), INVALID_REQUEST, SHAPE))
    })?;
    Ok((message, matches!(text, Cow::Owned(_)).then(|| text.into_owned())))
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
