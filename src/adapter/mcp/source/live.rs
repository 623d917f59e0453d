//! Holds what calls need of a connection.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::{Map, Value as Json, json};
use tokio::{sync::watch, time::timeout};

use super::{
    calls::Calls,
    lifecycle::{Protocol, metadata},
};
use crate::{
    Progress, ToolContext,
    adapter::{
        json::DocumentError,
        jsonrpc::{
            failure::Failure,
            open::{Reason, Refused, Reply},
            peer::{Headers, MessageParts, Peer, Request},
        },
    },
    tools::StopReason,
};

/// The largest document of a result, in bytes: a call's result has the same limit on the wire.
pub(super) const MAX_RESULT: usize = 16 << 20;

/// How long the reason for the end of a connection is awaited.
const REASON_GRACE: Duration = Duration::from_secs(2);

/// Why a request has no result.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// A JSON-RPC error.
    Error(Failure),
    /// The answer cannot be read, for this reason.
    Unreadable(String),
    /// The result has this many bytes, more than [`MAX_RESULT`].
    TooLarge(usize),
    /// As many requests as may be open are open already.
    TooMany(usize),
    /// The request has not reached the server.
    NotSent,
    /// The answer does not come, for this reason.
    Lost(String),
    /// The connection has ended, for this reason if it is known.
    Ended(Option<Arc<str>>),
}

/// A connection, as whatever asks the server sees it.
#[derive(Clone)]
pub(super) struct Live {
    pub(super) peer: Arc<Peer>,
    pub(super) calls: Arc<Calls>,
    /// Set when both sides have agreed.
    pub(super) agreed: Arc<OnceLock<Protocol>>,
    /// Whether parameters may have to be sent as headers, too.
    pub(super) has_headers: bool,
    /// Why the connection has ended.
    pub(super) end: watch::Sender<Option<Arc<str>>>,
}

impl Live {
    pub(super) fn new(peer: Arc<Peer>, has_headers: bool) -> Self {
        let (calls, agreed, end) = (Arc::default(), Arc::default(), watch::Sender::new(None));
        Self { peer, calls, agreed, has_headers, end }
    }

    /// Whether the protocol is of version 2026-07-28 or later.
    pub(super) fn is_modern(&self) -> bool {
        self.agreed.get().is_some_and(Protocol::is_modern)
    }

    /// Sends a request that belongs to no call, and returns its result. A stream stays open.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the request.
    pub(super) async fn request(
        &self,
        method: &'static str,
        params: Map<String, Json>,
        is_stream: bool,
    ) -> Result<String, Unanswered> {
        let mut request = self.begin(is_stream)?;
        let params = self.with_metadata(params, None);
        result(request.send(MessageParts::new(method, &params)).await, None)
    }

    /// Sends the request of a call, and returns its result. The call learns when its tool may run, and of its progress.
    ///
    /// # Cancel safety
    /// Dropping the future withdraws the request, with the reason why the call was stopped.
    pub(super) async fn call(
        &self,
        params: Map<String, Json>,
        headers: Headers,
        context: &ToolContext,
    ) -> Result<String, Unanswered> {
        let mut stopped = Stopped { request: self.begin(false)?, context };
        let request = &mut stopped.request;
        let id = request.id();
        let _open = self.calls.begin(id, context);
        let params = self.with_metadata(params, Some(id));
        let is_written = Arc::new(AtomicBool::new(false));
        let (written, started) = (Arc::clone(&is_written), context.clone());
        let mut message = MessageParts::new("tools/call", &params);
        message.headers = headers;
        message.written = Some(Box::new(move || {
            written.store(true, Ordering::Relaxed);
            started.progress(Progress::started());
        }));
        let answer = request.send(message).await;
        if answer.is_none() && !is_written.load(Ordering::Relaxed) {
            return Err(Unanswered::NotSent);
        }
        let end = if answer.is_none() { self.reason().await } else { None };
        result(answer, end)
    }

    fn begin(&self, is_stream: bool) -> Result<Request<'_>, Unanswered> {
        self.peer.begin(is_stream).map_err(|refused| match refused {
            Refused::TooMany(limit) => Unanswered::TooMany(limit),
            Refused::Ended => Unanswered::NotSent,
        })
    }

    /// Returns why the connection has ended, once that is known.
    async fn reason(&self) -> Option<Arc<str>> {
        let mut end = self.end.subscribe();
        let known = timeout(REASON_GRACE, end.wait_for(Option::is_some)).await;
        known.ok().and_then(Result::ok).and_then(|end| end.clone())
    }

    fn with_metadata(&self, mut params: Map<String, Json>, token: Option<u64>) -> Json {
        let protocol = self.agreed.get().filter(|protocol| protocol.is_sessionless);
        let mut meta = protocol.map_or_else(|| json!({}), |protocol| metadata(&protocol.version));
        if let Some(token) = token {
            meta["progressToken"] = token.into();
        }
        if meta.as_object().is_some_and(|meta| !meta.is_empty()) {
            params.insert("_meta".to_owned(), meta);
        }
        Json::Object(params)
    }
}

fn result(answer: Option<Reply>, end: Option<Arc<str>>) -> Result<String, Unanswered> {
    match answer {
        Some(Reply::Result(text)) if text.len() > MAX_RESULT => Err(Unanswered::TooLarge(text.len())),
        Some(Reply::Result(text)) if text == "null" => Err(Unanswered::Error(Failure::default())),
        Some(Reply::Result(text)) => Ok(text),
        Some(Reply::Error(failure)) => Err(Unanswered::Error(failure)),
        Some(Reply::Unreadable(Reason::TooLong { size, .. })) => Err(Unanswered::TooLarge(size)),
        Some(Reply::Unreadable(reason)) => Err(Unanswered::Unreadable(why(&reason))),
        Some(Reply::Lost(reason)) => Err(Unanswered::Lost(reason)),
        None => Err(Unanswered::Ended(end)),
    }
}

/// Says why an answer cannot be read, as the end of a sentence about the server.
pub(in crate::adapter::mcp) fn unreadable(reason: &Reason) -> String {
    match reason {
        Reason::OtherId { .. } => reason.to_string(),
        reason => format!("its answer cannot be read: {}", why(reason)),
    }
}

/// Says what is wrong with an answer.
fn why(reason: &Reason) -> String {
    match reason {
        Reason::Document(DocumentError::NotUtf8 { offset }) => {
            format!("it is not UTF-8, from byte {offset} on")
        }
        Reason::Document(DocumentError::NotJson { reason }) => {
            format!("it is not a JSON-RPC message: {reason}")
        }
        Reason::Shape => "it is not a message of JSON-RPC 2.0".to_owned(),
        reason => reason.to_string(),
    }
}

/// Returns the words of an error of a server, and its code.
pub(super) fn words_of(failure: &Failure) -> String {
    failure.words("the MCP server gave no reason", "MCP error ")
}

/// The request of a call. Dropping it withdraws it with the reason why the call was stopped.
struct Stopped<'a> {
    request: Request<'a>,
    context: &'a ToolContext,
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.request.set_reason(self.context.stopped().unwrap_or(StopReason::Caller).to_string());
    }
}
