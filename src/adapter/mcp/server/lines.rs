//! Transports messages over a byte stream: one JSON-RPC message per line.

use std::{borrow::Cow, io, time::Duration};

use rmcp::{
    RoleServer,
    model::{
        ClientJsonRpcMessage, ClientRequest, GetMeta as _, JsonRpcMessage, ProtocolVersion,
        ServerJsonRpcMessage,
    },
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::read::{Answered, Ids, parsed, with_id};
use crate::adapter::jsonrpc::{
    error::{INVALID_REQUEST, unreadable},
    head::Head,
    lines::{Lines, ReadLine},
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
    /// The host has opened the connection. Before that `rmcp` ends at anything but a request.
    is_open: bool,
    ids: Ids,
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
        let read = Lines::new(read, MAX_MESSAGE);
        let connection =
            Self { lines: read, is_open: false, ids: Ids::default(), out, closed, refusal: None };
        (connection, write_lines(write, lines))
    }

    /// Reads the next message; `None` when the host sends nothing more.
    async fn next_message(&mut self) -> Option<ClientJsonRpcMessage> {
        loop {
            if self.refusal.is_some() {
                let permit = self.out.reserve().await.ok()?;
                permit.send((self.refusal.take().unwrap_or_default(), None));
            }
            self.refusal = match self.lines.next().await.ok()?? {
                ReadLine::Text(line) if line.trim_ascii().is_empty() => None,
                ReadLine::Text(line) => match parsed(&line, Some(&mut self.ids)) {
                    Ok((message, _)) => {
                        self.is_open |= opens(&message);
                        if self.is_open || matches!(message, JsonRpcMessage::Request(_)) {
                            return Some(message);
                        }
                        None // there is nothing yet that it could be about
                    }
                    Err(refusal) => refusal,
                },
                ReadLine::TooLong { start, end, .. } => {
                    let text = format!("the message exceeds {MAX_MESSAGE} bytes");
                    Some(unreadable(Head::of_ends(&start, &end), INVALID_REQUEST, &text))
                }
            };
        }
    }
}

/// Whether `rmcp` takes a message for the first one of an open connection: `initialize`, or a request that says all of itself.
fn opens(message: &ClientJsonRpcMessage) -> bool {
    let JsonRpcMessage::Request(message) = message else { return false };
    match &message.request {
        ClientRequest::InitializeRequest(_) => true,
        ClientRequest::PingRequest(_) | ClientRequest::DiscoverRequest(_) => false,
        request => {
            let meta = request.get_meta();
            let version = meta.protocol_version();
            meta.missing_required_keys(&ProtocolVersion::V_2026_07_28).is_empty()
                && version.is_some_and(|version| ProtocolVersion::KNOWN_VERSIONS.contains(&version))
        }
    }
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
        let answered = match &message {
            JsonRpcMessage::Response(answer) => Some(&answer.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let id = answered.map(|id| self.ids.end(id));
        async move {
            let text = match id {
                Some(None) => return Ok(()), // the host has cancelled the request
                Some(Some(Answered::Other(id))) => with_id(&serde_json::to_string(&message)?, &id),
                Some(Some(Answered::Same)) | None => serde_json::to_string(&message)?,
            };
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
