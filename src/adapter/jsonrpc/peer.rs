//! Sends to the other side of a connection: holds its open requests, and the messages to write.
//!
//! Whatever sends waits until there is room, so that a program that stops reading makes nothing grow.

use std::{borrow::Cow, io, sync::Arc};

use serde::Serialize;
use serde_json::{Value as Json, json, value::RawValue};
use tokio::{
    io::{AsyncWrite, AsyncWriteExt as _},
    sync::{mpsc, oneshot, watch},
};
use tokio_util::sync::CancellationToken;

#[cfg(all(feature = "acp", unix))]
use super::failure::Failure;
use super::{
    error::RpcError,
    id::Id,
    memory::Share,
    open::{Open, Refused, Reply},
    rules::Rules,
};
#[cfg(all(feature = "acp", unix))]
use crate::adapter::json;

/// The most messages that wait to be written.
const QUEUED: usize = 16;

/// Why a request has no result.
#[cfg(all(feature = "acp", unix))]
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
    pub(in crate::adapter) open: Open,
    pub(super) rules: &'static Rules,
    out: mpsc::Sender<OutgoingMessage>,
    /// Has at most one entry for each request that was written and each that is queued: none is written while the other side
    /// reads nothing.
    withdrawn: mpsc::UnboundedSender<Withdrawn>,
    closing: CancellationToken,
    end: watch::Sender<Option<End>>,
}

impl Peer {
    /// Returns the other side, and the writer, which writes the messages of this side to it. At most `most_open` requests of
    /// this side are open at once.
    pub(in crate::adapter) fn new(most_open: usize, rules: &'static Rules) -> (Arc<Self>, Writer) {
        let (out, lines) = mpsc::channel(QUEUED);
        let (withdrawn, to_withdraw) = mpsc::unbounded_channel();
        let closing = CancellationToken::new();
        let writer = Writer { lines, withdrawn: to_withdraw, closing: closing.clone(), rules };
        let (open, end) = (Open::new(most_open, rules), watch::Sender::new(None));
        (Arc::new(Self { open, rules, out, withdrawn, closing, end }), writer)
    }

    /// Opens a request. One that is a stream stays open, and an error without an id is not its answer.
    ///
    /// # Errors
    /// Too many requests are open, or the connection has ended.
    pub(in crate::adapter) fn begin(&self, is_stream: bool) -> Result<Request<'_>, Refused> {
        let (id, answer) = self.open.begin(is_stream)?;
        Ok(Request { peer: self, id, answer, is_sent: false, reason: None })
    }

    /// Sends a request, and waits for its result.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the request: the other side is told, and its answer has no effect.
    #[cfg(all(feature = "acp", unix))]
    pub(in crate::adapter) async fn request(
        &self,
        method: &'static str,
        params: Json,
    ) -> Result<Json, Unanswered> {
        let mut request = self.begin(false).map_err(|refused| match refused {
            Refused::TooMany(limit) => Unanswered::TooMany(limit),
            Refused::Ended => Unanswered::Ended,
        })?;
        let unreadable = |reason: String| Failure::of(format!("the answer cannot be read: {reason}"));
        Err(Unanswered::Refused(match request.send(MessageParts::new(method, &params)).await {
            Some(Reply::Result(text)) => match json::value(&text) {
                Ok(result) => return Ok(result),
                Err(error) => unreadable(error.to_string()),
            },
            Some(Reply::Error(failure)) => failure,
            Some(Reply::Unreadable(reason)) => unreadable(reason.to_string()),
            Some(Reply::Lost(reason)) => Failure::of(reason),
            None => return Err(Unanswered::Ended),
        }))
    }

    /// Sends a notification. A side that has gone does not get it.
    #[cfg_attr(not(feature = "acp"), expect(dead_code, reason = "MCP needs to know when it was written"))]
    pub(in crate::adapter) async fn notify(&self, method: &'static str, params: Json) {
        self.tell(MessageParts::new(method, &params)).await;
    }

    /// Sends a notification. Returns `None` if the connection has ended.
    pub(in crate::adapter) async fn tell(&self, message: MessageParts<'_>) -> Option<()> {
        self.out.send(message.line(None)).await.ok()
    }

    /// Answers a request. The share is free once the answer is written.
    pub(in crate::adapter) async fn answer(
        &self,
        id: impl Into<Option<&Id>>,
        answer: Result<impl Serialize, RpcError>,
        share: Option<Share>,
    ) {
        #[derive(Serialize)]
        struct Answer<'a, T> {
            jsonrpc: &'a str,
            id: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            result: Option<T>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<RpcError>,
        }
        let (result, error) = answer.map_or_else(|error| (None, Some(error)), |result| (Some(result), None));
        let answer = Answer { jsonrpc: "2.0", id: id.into().map(Id::raw), result, error };
        let text = serde_json::to_string(&answer).unwrap_or_default(); // the keys of JSON are texts, so it can be written
        let line = OutgoingMessage { _share: share, ..OutgoingMessage::of(text) };
        let _ = self.out.send(line).await; // a side that has gone does not get it
    }

    /// Answers a message with an error.
    pub(in crate::adapter) async fn refuse(&self, id: Option<&Id>, error: RpcError) {
        self.answer(id, Err::<Json, _>(error), None).await;
    }

    /// Returns room for one notification, or `None` if the connection has ended.
    #[cfg_attr(not(feature = "acp"), expect(dead_code, reason = "MCP needs no room in advance"))]
    pub(in crate::adapter) async fn room(&self) -> Option<QueueSlot<'_>> {
        self.out.reserve().await.ok().map(QueueSlot)
    }

    /// Notes that the connection has ended, and ends all requests, also those that follow. The first reason counts.
    pub(in crate::adapter) fn end(&self, end: End) {
        self.end.send_if_modified(|before| {
            let is_first = before.is_none();
            before.get_or_insert(end);
            is_first
        });
        self.open.close();
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

    /// Returns whether the connection has ended.
    #[cfg(all(feature = "mcp", unix))]
    pub(in crate::adapter) fn has_ended(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Closes the stream to the other side once what was sent is written. Nothing more can be sent.
    pub(in crate::adapter) fn close(&self) {
        self.closing.cancel();
    }
}

/// A request or a notification to send.
pub(in crate::adapter) struct MessageParts<'a> {
    method: Cow<'static, str>,
    params: Params<'a>,
    /// What a transport with headers puts into them.
    pub(in crate::adapter) headers: Headers,
    /// Called when the message is written.
    pub(in crate::adapter) written: Option<Written>,
}

/// The parameters of a message.
#[derive(Serialize)]
#[serde(untagged)]
enum Params<'a> {
    None,
    Json(&'a Json),
    #[cfg_attr(not(all(feature = "mcp", unix)), expect(dead_code, reason = "ACP passes nothing on"))]
    Raw(&'a RawValue),
}

impl Params<'_> {
    fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }
}

/// Names and values of headers.
pub(in crate::adapter) type Headers = Vec<(String, String)>;

/// Called when a message is written.
pub(in crate::adapter) type Written = Box<dyn FnOnce() + Send + Sync>;

impl<'a> MessageParts<'a> {
    /// Creates a message. Parameters that are null are left out.
    pub(in crate::adapter) fn new(method: &'static str, params: &'a Json) -> Self {
        let params = if params.is_null() { Params::None } else { Params::Json(params) };
        Self { method: method.into(), params, headers: Headers::new(), written: None }
    }

    /// Creates a message of another program. It must have no line break.
    #[cfg(all(feature = "mcp", unix))]
    pub(in crate::adapter) fn raw(method: &str, params: Option<&'a RawValue>) -> Self {
        let params = params.map_or(Params::None, Params::Raw);
        Self { method: method.to_owned().into(), params, headers: Headers::new(), written: None }
    }

    fn line(self, id: Option<u64>) -> OutgoingMessage {
        let text = text(id, &self.method, &self.params);
        let (method, headers, written) = (Some(self.method), self.headers, self.written);
        OutgoingMessage { id, method, headers, written, ..OutgoingMessage::of(text) }
    }
}

/// Returns the text of a request, or of a notification.
fn text(id: Option<u64>, method: &str, params: &Params<'_>) -> String {
    #[derive(Serialize)]
    struct Parts<'a> {
        jsonrpc: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<u64>,
        method: &'a str,
        #[serde(skip_serializing_if = "Params::is_none")]
        params: &'a Params<'a>,
    }
    // The keys of JSON are texts, so it can be written.
    serde_json::to_string(&Parts { jsonrpc: "2.0", id, method, params }).unwrap_or_default()
}

/// Room for one message.
pub(in crate::adapter) struct QueueSlot<'a>(mpsc::Permit<'a, OutgoingMessage>);

impl QueueSlot<'_> {
    /// Sends a notification.
    #[cfg_attr(not(feature = "acp"), expect(dead_code, reason = "MCP needs no room in advance"))]
    pub(in crate::adapter) fn notify(self, method: &'static str, params: &Json) {
        self.0.send(MessageParts::new(method, params).line(None));
    }
}

/// A request that is open. Dropping it withdraws it: the other side is told, and its answer has no effect.
pub(in crate::adapter) struct Request<'a> {
    peer: &'a Peer,
    id: u64,
    answer: oneshot::Receiver<Reply>,
    is_sent: bool,
    /// Why it is withdrawn.
    reason: Option<String>,
}

impl Request<'_> {
    #[cfg_attr(not(all(feature = "mcp", unix)), expect(dead_code, reason = "ACP has no progress"))]
    pub(in crate::adapter) fn id(&self) -> u64 {
        self.id
    }

    /// Sends the request, and waits for its answer. Returns `None` if the connection has ended.
    ///
    /// # Cancel safety
    /// Safe, but it must not be called again.
    pub(in crate::adapter) async fn send(&mut self, message: MessageParts<'_>) -> Option<Reply> {
        self.peer.out.send(message.line(Some(self.id))).await.ok()?;
        self.is_sent = true;
        (&mut self.answer).await.ok()
    }

    /// Sets why the request is withdrawn, if it is dropped before its answer.
    #[cfg(all(feature = "mcp", unix))]
    pub(in crate::adapter) fn set_reason(&mut self, reason: String) {
        self.reason = Some(reason);
    }

    /// Forgets the request. Another one follows for the same thing: see [`Open::give_up`].
    #[cfg(all(feature = "mcp", unix))]
    pub(in crate::adapter) fn give_up(self) {
        self.peer.open.give_up(self.id);
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if self.peer.open.forget(self.id) && self.is_sent {
            let withdrawn = Withdrawn { id: self.id, reason: self.reason.take() };
            let _ = self.peer.withdrawn.send(withdrawn); // nobody listens after the end
        }
    }
}

/// A message to write. Its share of memory is free once it is written.
#[cfg_attr(not(all(feature = "mcp", unix)), expect(dead_code, reason = "lines need the text alone"))]
pub(in crate::adapter) struct OutgoingMessage {
    pub(in crate::adapter) text: String,
    /// Of a request.
    pub(in crate::adapter) id: Option<u64>,
    /// Of a request or a notification.
    pub(in crate::adapter) method: Option<Cow<'static, str>>,
    pub(in crate::adapter) headers: Headers,
    pub(in crate::adapter) written: Option<Written>,
    _share: Option<Share>,
}

impl OutgoingMessage {
    pub(in crate::adapter) fn of(text: String) -> Self {
        Self { text, id: None, method: None, headers: Headers::new(), written: None, _share: None }
    }
}

/// A request that is no longer needed, and why.
#[derive(Debug)]
pub(in crate::adapter) struct Withdrawn {
    pub(in crate::adapter) id: u64,
    reason: Option<String>,
}

impl Withdrawn {
    /// Returns the notification for it.
    pub(in crate::adapter) fn line(&self, rules: &Rules) -> OutgoingMessage {
        OutgoingMessage::of(text(None, rules.cancel, &Params::Json(&self.params())))
    }

    fn params(&self) -> Json {
        let mut params = json!({"requestId": self.id});
        if let Some(reason) = &self.reason {
            params["reason"] = reason.as_str().into();
        }
        params
    }
}

/// What is to be sent next.
pub(in crate::adapter) enum Outgoing {
    Message(OutgoingMessage),
    Withdrawn(Withdrawn),
}

/// The messages of this side, in their order.
pub(in crate::adapter) struct Writer {
    lines: mpsc::Receiver<OutgoingMessage>,
    withdrawn: mpsc::UnboundedReceiver<Withdrawn>,
    closing: CancellationToken,
    rules: &'static Rules,
}

impl Writer {
    /// Returns what is to be sent next, until the peer is closed. A request that is withdrawn was sent before.
    ///
    /// # Cancel safety
    /// Safe.
    pub(in crate::adapter) async fn next(&mut self) -> Option<Outgoing> {
        loop {
            tokio::select! {
                biased;
                line = self.lines.recv() => return line.map(Outgoing::Message),
                Some(withdrawn) = self.withdrawn.recv() => return Some(Outgoing::Withdrawn(withdrawn)),
                () = self.closing.cancelled(), if !self.lines.is_closed() => self.lines.close(), // what is queued still follows
            }
        }
    }

    /// Writes until the peer is closed, and then closes the stream that the other side reads.
    ///
    /// # Errors
    /// The stream cannot be written to.
    pub(in crate::adapter) async fn write(mut self, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
        while let Some(outgoing) = self.next().await {
            let mut line = match outgoing {
                Outgoing::Message(line) => line,
                Outgoing::Withdrawn(withdrawn) => withdrawn.line(self.rules),
            };
            line.text.push('\n');
            to.write_all(line.text.as_bytes()).await?;
            to.flush().await?;
            if let Some(written) = line.written.take() {
                written();
            }
        }
        to.shutdown().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::{FutureExt as _, poll};
    use tokio::{
        io::{AsyncReadExt as _, duplex},
        task::JoinSet,
    };

    use super::*;
    use crate::adapter::jsonrpc::{memory::Memory, rules::ACP};

    #[tokio::test]
    async fn whatever_sends_waits_while_the_other_side_reads_nothing() {
        let (peer, writer) = Peer::new(1, &ACP);
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
        let (peer, writer) = Peer::new(1, &ACP);
        let (near, mut far) = duplex(16);
        let memory = Memory::new(4 << 10);
        let share = memory.share(4 << 10).await;
        peer.answer(Id::read(b"1").as_ref(), Ok(json!("x".repeat(100))), Some(share)).await;
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

    /// Returns what is to be sent.
    fn queued(writer: &mut Writer) -> Vec<String> {
        let mut sent = Vec::new();
        while let Some(Some(outgoing)) = writer.next().now_or_never() {
            sent.push(match outgoing {
                Outgoing::Message(line) => line.text,
                Outgoing::Withdrawn(withdrawn) => withdrawn.params().to_string(),
            });
        }
        sent
    }

    #[tokio::test]
    async fn request_that_is_dropped_is_withdrawn() {
        let (peer, mut writer) = Peer::new(1, &ACP);
        {
            let mut request = peer.begin(false).unwrap();
            assert!(poll!(pin!(request.send(MessageParts::new("ask", &json!({}))))).is_pending());
        }
        let sent = queued(&mut writer);
        assert!(sent[0].contains(r#""id":1,"method":"ask""#), "{sent:?}");
        assert_eq!(sent[1..], [r#"{"requestId":1}"#]);
        assert!(!peer.open.answered(&Id::read(b"1").unwrap(), Reply::Result("null".to_owned())));
        // One that was never sent is not.
        while poll!(pin!(peer.tell(MessageParts::new("note", &json!({}))))).is_ready() {}
        {
            let mut request = peer.begin(false).unwrap();
            assert!(poll!(pin!(request.send(MessageParts::new("ask", &json!({}))))).is_pending());
        }
        assert_eq!(queued(&mut writer).len(), QUEUED);
    }

    #[tokio::test]
    async fn request_is_withdrawn_after_it_was_written_and_then_its_side_learns_that() {
        let (peer, writer) = Peer::new(1, &ACP);
        let (near, mut far) = duplex(1 << 10);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { writer.write(near).await.unwrap() });
        let (is_written, written) = oneshot::channel();
        let hook: Written = Box::new(move || _ = is_written.send(()));
        {
            let mut request = peer.begin(false).unwrap();
            let (params, id) = (json!({}), request.id());
            let sending =
                request.send(MessageParts { written: Some(hook), ..MessageParts::new("ask", &params) });
            tokio::select! {
                _ = sending => panic!("it is not answered"),
                written = written => assert!(written.is_ok()),
            }
            assert_eq!(id, 1);
        }
        peer.close();
        let mut written = String::new();
        far.read_to_string(&mut written).await.unwrap();
        let withdrawn = r#"{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":1}}"#;
        assert_eq!(written.lines().nth(1), Some(withdrawn));
    }

    #[tokio::test]
    async fn first_reason_for_the_end_counts() {
        let (peer, _writer) = Peer::new(1, &ACP);
        peer.end(End::Failed("broken pipe".into()));
        peer.end(End::Closed);
        assert_eq!(peer.failure().as_deref(), Some("broken pipe"));
        assert_eq!(peer.ended().await, End::Failed("broken pipe".into()));
    }
}
