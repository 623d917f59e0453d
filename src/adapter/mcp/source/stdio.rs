//! The connection to a server that is a child process: one JSON-RPC message a line.
//!
//! `rmcp`'s own transport for children is not used: its lines cannot be read before its types parse them.

use std::{io, sync::Arc, sync::atomic::Ordering};

use rmcp::{
    RoleClient,
    model::{ClientJsonRpcMessage, JsonRpcMessage, RequestId, ServerJsonRpcMessage},
    transport::Transport,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot},
    time::{Duration, Instant},
};

use super::requests::{Answer, MAX_MESSAGE, Requests};
use crate::adapter::jsonrpc::{
    head::Head,
    id::restored,
    lines::{Line, Lines},
};

/// The most messages that wait for the server to read them. Then nothing more is read from it.
const MAX_WAITING: usize = 256;

/// After this many bytes without a message the server counts as down.
const MAX_JUNK: usize = 1 << 20;

/// The shortest time between two reports of what is ignored.
const REPORT_AGAIN: Duration = Duration::from_secs(10);

/// A message, and who learns that it was written.
type Outgoing = (Vec<u8>, Option<RequestId>, oneshot::Sender<io::Result<()>>);

pub(super) struct StdioTransport<R> {
    server: Arc<str>,
    lines: Lines<R>,
    outgoing: mpsc::Sender<Outgoing>,
    requests: Arc<Requests>,
    /// The bytes since the last message.
    junk: usize,
    reported: Option<Instant>,
}

impl<R: AsyncRead + Send + Unpin + 'static> StdioTransport<R> {
    /// Creates the transport, and the task that writes to the server.
    pub(super) fn new(
        server: Arc<str>,
        stdout: R,
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        requests: Arc<Requests>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (outgoing, messages) = mpsc::channel(MAX_WAITING);
        let writing = write(stdin, messages, Arc::clone(&requests));
        let lines = Lines::new(stdout, MAX_MESSAGE);
        (Self { server, lines, outgoing, requests, junk: 0, reported: None }, writing)
    }

    /// Returns the next message for `rmcp`, or `None` if nothing more can be read.
    async fn next(&mut self) -> Option<ServerJsonRpcMessage> {
        loop {
            // A server that floods requests and reads no answers is not read either.
            let _ = self.outgoing.reserve().await; // an error: it has closed its input, and may still write
            match self.lines.next().await {
                Ok(Some(line)) => {
                    if let Some(message) = self.incoming(line) {
                        return Some(message);
                    }
                    if self.junk > MAX_JUNK {
                        tracing::warn!(
                            server = &*self.server,
                            bytes = self.junk,
                            "the program is not an MCP server: it wrote 1 MiB without a message"
                        );
                        self.requests.fail("it wrote 1 MiB without a message".to_owned());
                        return None;
                    }
                }
                Ok(None) => {
                    self.requests.note_end();
                    return None;
                }
                Err(error) => {
                    tracing::warn!(server = &*self.server, %error, "the output of an MCP server cannot be read");
                    return None;
                }
            }
        }
    }

    fn incoming(&mut self, line: Line) -> Option<ServerJsonRpcMessage> {
        match line {
            Line::Text(text) => match self.requests.receive(&self.server, &text, None) {
                Ok(message) => {
                    self.junk = 0;
                    return message;
                }
                Err(_) => {
                    self.junk += text.len() + 1;
                    self.requests.ignored.junk.fetch_add(1, Ordering::Relaxed);
                }
            },
            Line::TooLong { size, start, end } => {
                self.requests.ignored.too_long.fetch_add(1, Ordering::Relaxed);
                let message = self.requests.unreadable(Head::of_ends(&start, &end), Answer::TooLarge(size));
                if message.is_some() {
                    self.junk = 0;
                    return message;
                }
                self.junk += MAX_JUNK / 2 + 1; // one is skipped, two in a row are too many
            }
        }
        self.report();
        None
    }

    fn report(&mut self) {
        let now = Instant::now();
        if self.reported.is_none_or(|before| now - before >= REPORT_AGAIN) {
            self.reported = Some(now);
            let lines = self.requests.ignored.total();
            tracing::warn!(
                server = &*self.server,
                lines,
                "an MCP server writes lines that are not messages; they are ignored"
            );
        }
    }
}

impl<R: AsyncRead + Send + Unpin + 'static> Transport<RoleClient> for StdioTransport<R> {
    type Error = io::Error;

    fn send(
        &mut self,
        message: ClientJsonRpcMessage,
    ) -> impl Future<Output = io::Result<()>> + Send + 'static {
        self.requests.register(&message);
        let id = match &message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let (written, was_written) = oneshot::channel();
        let queued = serde_json::to_string(&message).map_err(io::Error::from).and_then(|line| {
            let line = restored(&line).into_owned() + "\n";
            let queued = self.outgoing.try_send((line.into_bytes(), id.clone(), written));
            queued.map_err(|_| io::Error::other("the server does not read its input"))
        });
        if let (Err(_), Some(id)) = (&queued, &id) {
            self.requests.complete(id, Answer::NotSent);
        }
        async move {
            queued?;
            was_written.await.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()))
        }
    }

    async fn receive(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = self.next().await;
        if message.is_none() {
            self.requests.disconnect();
        }
        message
    }

    async fn close(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes messages in their order, until the transport is dropped or the server has closed its input.
async fn write(
    mut stdin: impl AsyncWrite + Send + Unpin,
    mut messages: mpsc::Receiver<Outgoing>,
    requests: Arc<Requests>,
) {
    while let Some((line, id, written)) = messages.recv().await {
        let result = stdin.write_all(&line).await;
        match (&result, &id) {
            (Ok(()), Some(id)) => requests.sent(id),
            (Err(_), Some(id)) => _ = requests.complete(id, Answer::NotSent),
            _ => {}
        }
        let has_failed = result.is_err();
        let _ = written.send(result); // rmcp may have stopped
        if has_failed {
            requests.note_end(); // it has closed its input
            return;
        }
    }
}

impl<R> Drop for StdioTransport<R> {
    fn drop(&mut self) {
        self.requests.disconnect();
    }
}
