//! The other side of a connection, as whatever sends to it sees it: its open requests, and the lines to write.
//!
//! Whatever sends waits until there is room, so that a program that stops reading makes nothing grow.

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot, watch},
};
use tokio_util::sync::CancellationToken;

use super::{error::RpcError, failure::Failure, memory::Share};

/// The most messages that wait to be written.
const QUEUED: usize = 16;

/// The notification that withdraws a request, as in ACP and in the Language Server Protocol.
const CANCEL: &str = "$/cancel_request";

/// A line to write. Its share of memory is free once it is written.
struct Line {
    text: String,
    _share: Option<Share>,
}

/// Why a request has no result.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::adapter) enum Unanswered {
    /// As many requests as may be open are open already.
    TooMany(usize),
    /// The other side has answered with this error, or its answer cannot be read.
    Refused(Failure),
    /// The connection has ended: see [`Peer::end`].
    Ended,
}

/// Why a connection has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::adapter) enum End {
    /// The other side sends nothing more.
    Closed,
    /// It cannot be read, or written to.
    Failed(Arc<str>),
}

/// The other side of a connection.
pub(in crate::adapter) struct Peer {
    out: mpsc::Sender<Line>,
    closing: CancellationToken,
    open: Mutex<Open>,
    /// The most requests that are open at once.
    most_open: usize,
    end: watch::Sender<Option<End>>,
}

/// The requests of this side without an answer.
#[derive(Default)]
struct Open {
    last: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Result<Json, Failure>>>,
    has_ended: bool,
}

impl Peer {
    /// Returns the other side, and the writer, which writes the messages of this side to it.
    pub(in crate::adapter) fn new(most_open: usize) -> (Arc<Self>, Writer) {
        let (out, lines) = mpsc::channel(QUEUED);
        let closing = CancellationToken::new();
        let writer = Writer { lines, closing: closing.clone() };
        let peer = Self { out, closing, open: Mutex::default(), most_open, end: watch::Sender::new(None) };
        (Arc::new(peer), writer)
    }

    /// Sends a request, and waits for its result.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the request: the other side is told, and its answer has no effect.
    pub(in crate::adapter) async fn request(&self, method: &str, params: Json) -> Result<Json, Unanswered> {
        let (id, answer) = self.begin()?;
        let mut request = Request { peer: self, id, is_sent: false };
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.send(&message, None).await.ok_or(Unanswered::Ended)?;
        request.is_sent = true;
        answer.await.map_err(|_| Unanswered::Ended)?.map_err(Unanswered::Refused)
    }

    /// Sends a notification. A side that has gone does not get it.
    pub(in crate::adapter) async fn notify(&self, method: &str, params: Json) {
        self.send(&notification(method, &params), None).await;
    }

    /// Answers a request. The share is free once the answer is written.
    pub(in crate::adapter) async fn answer(
        &self,
        id: &Json,
        answer: Result<Json, RpcError>,
        share: Option<Share>,
    ) {
        let mut message = json!({"jsonrpc": "2.0", "id": id});
        match answer {
            Ok(result) => message["result"] = result,
            Err(error) => message["error"] = json!({"code": error.code, "message": error.message}),
        }
        self.send(&message, share).await;
    }

    /// Returns room for one notification, or `None` if the connection has ended.
    pub(in crate::adapter) async fn room(&self) -> Option<Room<'_>> {
        self.out.reserve().await.ok().map(Room)
    }

    async fn send(&self, message: &Json, share: Option<Share>) -> Option<()> {
        self.out.send(Line { text: message.to_string(), _share: share }).await.ok()
    }

    fn begin(&self) -> Result<(u64, oneshot::Receiver<Result<Json, Failure>>), Unanswered> {
        let (reply, answer) = oneshot::channel();
        let mut open = self.open();
        if open.has_ended {
            return Err(Unanswered::Ended);
        }
        if open.waiting.len() >= self.most_open {
            return Err(Unanswered::TooMany(self.most_open));
        }
        open.last += 1;
        let id = open.last;
        open.waiting.insert(id, reply);
        Ok((id, answer))
    }

    /// Ends a request with its answer. Returns whether it was open.
    pub(super) fn answered(&self, id: &Json, answer: Result<Json, Failure>) -> bool {
        let waiting = id.as_u64().and_then(|id| self.open().waiting.remove(&id));
        waiting.is_some_and(|waiting| waiting.send(answer).is_ok())
    }

    /// Ends the only open request with an error that names none. Returns whether there is one: of several, none can be told.
    pub(super) fn answered_unnamed(&self, failure: Failure) -> bool {
        let only = {
            let waiting = &mut self.open().waiting;
            let only = waiting.keys().next().copied().filter(|_| waiting.len() == 1);
            only.and_then(|id| waiting.remove(&id))
        };
        only.is_some_and(|waiting| waiting.send(Err(failure)).is_ok())
    }

    /// Notes that the connection has ended, and ends all requests, also those that follow. The first reason counts.
    pub(in crate::adapter) fn end(&self, end: End) {
        self.end.send_if_modified(|before| {
            let is_first = before.is_none();
            before.get_or_insert(end);
            is_first
        });
        let mut open = self.open();
        open.has_ended = true;
        open.waiting.clear();
    }

    /// Resolves when the connection has ended, with the reason.
    ///
    /// # Cancel safety
    /// Safe.
    pub(in crate::adapter) async fn ended(&self) -> End {
        let mut end = self.end.subscribe();
        let ended = end.wait_for(Option::is_some).await;
        ended.ok().and_then(|end| end.clone()).unwrap_or(End::Closed) // the sender is in `self`
    }

    /// Returns why the connection has failed, if it has.
    pub(in crate::adapter) fn failure(&self) -> Option<Arc<str>> {
        match &*self.end.borrow() {
            Some(End::Failed(reason)) => Some(Arc::clone(reason)),
            _ => None,
        }
    }

    /// Closes the stream to the other side once what was sent is written. Nothing more can be sent.
    pub(in crate::adapter) fn close(&self) {
        self.closing.cancel();
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn notification(method: &str, params: &Json) -> Json {
    json!({"jsonrpc": "2.0", "method": method, "params": params})
}

/// Room for one message.
pub(in crate::adapter) struct Room<'a>(mpsc::Permit<'a, Line>);

impl Room<'_> {
    /// Sends a notification.
    pub(in crate::adapter) fn notify(self, method: &str, params: &Json) {
        self.0.send(Line { text: notification(method, params).to_string(), _share: None });
    }
}

/// A request that is open.
struct Request<'a> {
    peer: &'a Peer,
    id: u64,
    is_sent: bool,
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        let is_open = self.peer.open().waiting.remove(&self.id).is_some();
        if is_open && self.is_sent {
            let text = notification(CANCEL, &json!({"requestId": self.id})).to_string();
            let _ = self.peer.out.try_send(Line { text, _share: None }); // without room its answer is ignored
        }
    }
}

/// Writes the messages of this side to the stream that the other side reads.
pub(in crate::adapter) struct Writer {
    lines: mpsc::Receiver<Line>,
    closing: CancellationToken,
}

impl Writer {
    /// Writes until the peer is closed, and then closes the stream.
    ///
    /// # Errors
    /// The stream cannot be written to.
    pub(in crate::adapter) async fn write(mut self, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        loop {
            let line = tokio::select! {
                biased;
                line = self.lines.recv() => line,
                () = self.closing.cancelled(), if !self.lines.is_closed() => {
                    self.lines.close(); // what is queued is still written
                    continue;
                }
            };
            let Some(mut line) = line else { break };
            line.text.push('\n');
            to.write_all(line.text.as_bytes()).await?;
            to.flush().await?;
        }
        to.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::poll;
    use tokio::{
        io::{AsyncReadExt as _, duplex},
        task::JoinSet,
    };

    use super::*;
    use crate::adapter::jsonrpc::memory::Memory;

    #[tokio::test]
    async fn whatever_sends_waits_while_the_other_side_reads_nothing() {
        let (peer, writer) = Peer::new(1);
        let (near, mut far) = duplex(16);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { writer.write(near).await.unwrap() });
        let mut sent = 0;
        loop {
            let mut sending = pin!(peer.notify("note", json!({})));
            let mut is_ready = false;
            for _ in 0..100 {
                is_ready = poll!(&mut sending).is_ready();
                if is_ready {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if !is_ready {
                break;
            }
            sent += 1;
        }
        assert_eq!(sent, QUEUED + 1, "one is being written");
        peer.close();
        let mut written = String::new();
        far.read_to_string(&mut written).await.unwrap();
        assert_eq!(written.lines().count(), sent, "what was sent is written before the stream is closed");
        assert!(peer.room().await.is_none());
    }

    #[tokio::test]
    async fn memory_of_an_answer_is_free_once_it_is_written() {
        let (peer, writer) = Peer::new(1);
        let (near, mut far) = duplex(16);
        let memory = Memory::new(4 << 10);
        let share = memory.share(4 << 10).await;
        peer.answer(&json!(1), Ok(json!("x".repeat(100))), Some(share)).await;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { writer.write(near).await.unwrap() });
        let mut next = pin!(memory.share(1));
        for _ in 0..100 {
            assert!(poll!(&mut next).is_pending());
            tokio::task::yield_now().await;
        }
        peer.close();
        far.read_to_string(&mut String::new()).await.unwrap();
        let mut share = next.await;
        share.shrink(0);
        assert!(poll!(pin!(memory.share(4 << 10))).is_ready());
    }

    #[tokio::test]
    async fn request_that_is_dropped_is_withdrawn() {
        let (peer, mut writer) = Peer::new(1);
        {
            let mut asking = pin!(peer.request("ask", json!({})));
            assert!(poll!(&mut asking).is_pending());
        }
        let mut sent = Vec::new();
        while let Ok(line) = writer.lines.try_recv() {
            sent.push(line.text);
        }
        assert!(sent[0].contains(r#""id":1,"method":"ask""#), "{sent:?}");
        assert_eq!(sent[1], r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#);
        assert!(!peer.answered(&json!(1), Ok(Json::Null)));
        // One that was never sent is not.
        while poll!(pin!(peer.notify("note", json!({})))).is_ready() {}
        {
            let mut asking = pin!(peer.request("ask", json!({})));
            assert!(poll!(&mut asking).is_pending());
        }
        assert_eq!(std::iter::from_fn(|| writer.lines.try_recv().ok()).count(), QUEUED);
    }

    #[tokio::test]
    async fn first_reason_for_the_end_counts() {
        let (peer, _writer) = Peer::new(1);
        peer.end(End::Failed("broken pipe".into()));
        peer.end(End::Closed);
        assert_eq!(peer.failure().as_deref(), Some("broken pipe"));
        assert_eq!(peer.ended().await, End::Failed("broken pipe".into()));
    }
}
