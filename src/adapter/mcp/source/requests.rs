//! The requests to a server whose answers are taken as text, below `rmcp`'s types.
//!
//! Those types lose what they do not know, and one unknown block fails a whole result. So a request brings an
//! [`Expected`] with it. The transport takes it when it sends the request, and completes it with the text of the
//! answer. `rmcp` gets an empty result in its place, or what it needs to know of a list of tools.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, CustomRequest, ErrorCode as McpCode, ErrorData, GetExtensions as _,
    GetMeta as _, JsonObject, JsonRpcMessage, ListToolsResult, NumberOrString, PingRequest, ProgressToken,
    RequestId, ServerJsonRpcMessage, ServerRequest, ServerResult, Tool,
};
use serde::Deserialize;
use serde_json::{Value as Json, value::RawValue};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{elicitation::ELICITATION, log};
use crate::{
    Progress, ToolContext,
    adapter::{
        json,
        jsonrpc::{
            failure::Failure,
            head::{Head, MAX_ID, as_id},
            id::carried,
            message::Parts,
        },
        words,
    },
    value::prefix,
};

/// The largest document of a result, in bytes: a call's result has the same limit on the wire.
pub(super) const MAX_RESULT: usize = 16 << 20;

/// Stands before the method of a request that passes `rmcp` as it is.
pub(super) const OWN_METHOD: &str = "toolbridge:";

/// The largest message of a server, in bytes: such a result, and half as much for what else stands in its message.
pub(in crate::adapter::mcp) const MAX_MESSAGE: usize = 24 << 20;

/// The longest id of a message in a failure, in bytes.
const MAX_SHOWN_ID: usize = 64;

/// The largest answer to a request of `rmcp`'s own, in bytes: what a server says of itself. `rmcp` builds all of it.
const MAX_OWN: usize = 1 << 20;

/// The largest parameters of a question to the person, in bytes: a form.
const MAX_QUESTION: usize = 256 << 10;

/// The largest notification that `rmcp` gets, in bytes: those that it knows are small.
const MAX_NOTIFICATION: usize = 64 << 10;

/// The longest method of a request that is not offered, in bytes.
const MAX_METHOD: usize = 128;

/// The method of a request that stands for one that cannot be read. Its parameters are the reason, a text.
pub(super) const UNREADABLE: &str = "unreadable";

/// The notifications that `rmcp` needs. Others have no effect, and are not read.
const NOTIFICATIONS: [&str; 3] = [
    "notifications/cancelled",
    "notifications/subscriptions/acknowledged",
    "notifications/tools/list_changed",
];

/// The longest id of an event, in bytes. A stream whose events have longer ones counts as one that cannot be resumed.
const MAX_EVENT_ID: usize = 1 << 10;

/// What is wrong with a batch.
const BATCH: &str = "it is a JSON-RPC batch, which MCP does not have since version 2025-06-18";

/// How far into a text that starts as a list a batch is looked for, in bytes. Other programs begin a line of their logs so.
const MAX_BATCH_START: usize = 1 << 10;

/// What a server answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// The text of the result.
    Result(String),
    /// A JSON-RPC error.
    Error(Failure),
    /// The answer cannot be read, for this reason.
    Unreadable(String),
    /// The result has this many bytes, more than [`MAX_RESULT`].
    TooLarge(usize),
    /// The request was not written.
    NotSent,
    /// The connection has ended, for this reason.
    Ended(Arc<str>),
}

impl Answer {
    /// Says what is wrong with an answer that is no result.
    fn words(&self) -> String {
        match self {
            Self::Error(failure) => words_of(failure),
            Self::Unreadable(reason) => reason.clone(),
            Self::TooLarge(size) => format!("it has {size} bytes; the limit is {MAX_MESSAGE}"),
            Self::Ended(reason) => reason.to_string(),
            Self::Result(_) | Self::NotSent => String::new(),
        }
    }
}

/// Returns the words of an error of a server, and its code.
pub(super) fn words_of(failure: &Failure) -> String {
    failure.words("the MCP server gave no reason", "MCP error ")
}

/// Returns an error of a server for `rmcp`.
fn to_rmcp(failure: &Failure, id: RequestId) -> ServerJsonRpcMessage {
    let code =
        failure.code.and_then(|code| i32::try_from(code).ok()).map_or(McpCode::INTERNAL_ERROR, McpCode);
    JsonRpcMessage::error(ErrorData::new(code, words::line(&failure.message), None), Some(id))
}

/// What waits for the answer of a request.
pub(super) struct Expected {
    answer: oneshot::Sender<Answer>,
    /// The call that the request belongs to.
    call: Option<ToolContext>,
    /// The progress that was reported last.
    progress: f64,
}

/// Brings an [`Expected`] to the transport in the extensions of its request, which must be `Clone`.
#[derive(Clone)]
pub(super) struct Handover(Arc<Mutex<Option<Expected>>>);

impl Handover {
    /// Creates the handover of a request, and the receiver of its answer. The call gets the progress.
    pub(super) fn new(call: Option<ToolContext>) -> (Self, oneshot::Receiver<Answer>) {
        let (answer, answered) = oneshot::channel();
        let expected = Expected { answer, call, progress: f64::NEG_INFINITY };
        (Self(Arc::new(Mutex::new(Some(expected)))), answered)
    }
}

/// What a server sent that has no effect.
#[derive(Debug, Default)]
pub(super) struct Ignored {
    /// Lines that are not JSON-RPC messages.
    pub(super) junk: AtomicU64,
    /// Lines over the limit.
    pub(super) too_long: AtomicU64,
    /// Answers and progress of requests that are unknown or have ended, and progress that goes back.
    pub(super) stale: AtomicU64,
}

impl Ignored {
    pub(super) fn total(&self) -> u64 {
        [&self.junk, &self.too_long, &self.stale].iter().map(|it| it.load(Ordering::Relaxed)).sum()
    }
}

/// The open requests of one connection.
#[derive(Default)]
pub(super) struct Requests {
    open: Mutex<Open>,
    disconnected: CancellationToken,
    /// The server has closed its output or its input.
    has_ended: AtomicBool,
    /// An event stream has stopped within an event.
    pub(super) is_within_event: Arc<AtomicBool>,
    failure: Mutex<Option<String>>,
    pub(super) ignored: Ignored,
}

#[derive(Default)]
struct Open {
    expected: HashMap<RequestId, Expected>,
    tokens: HashMap<ProgressToken, RequestId>,
    /// The last event of each stream that can be resumed, by the request that the stream answers.
    events: HashMap<RequestId, String>,
    /// Requests of `rmcp`'s own, whose answers it reads.
    own: HashMap<RequestId, Own>,
    /// The calls in the order in which they were sent, for questions that name no call.
    calls: Vec<(RequestId, ToolContext)>,
    ended: Option<Arc<str>>,
    /// An answer has named a request that was open.
    has_matched: bool,
}

/// A request of `rmcp`'s own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    /// It asks which versions of the protocol the server knows. Older servers do not know the request.
    Discovery,
    /// A discovery without an answer: `rmcp` takes the server for an older one, and has asked it to initialize.
    GivenUp,
    Initialize,
    Other,
}

/// Returns the id of a message, if there is one.
///
/// # Errors
/// What is wrong with it.
fn id_of(parts: &Parts<'_>) -> Result<Option<RequestId>, String> {
    let Some(id) = parts.id else { return Ok(None) };
    let read = as_id(id.get().as_bytes()).and_then(|id| serde_json::from_value(carried(id)).ok());
    read.map(Some).ok_or_else(|| format!("its id is not a number or a text of at most {MAX_ID} bytes"))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProgressParts {
    progress_token: ProgressToken,
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

impl Requests {
    /// Registers a request before it is sent.
    pub(super) fn register(&self, message: &ClientJsonRpcMessage) {
        let JsonRpcMessage::Request(request) = message else { return };
        let mut open = lock(&self.open);
        let handover = request.request.extensions().get::<Handover>();
        let Some(expected) = handover.and_then(|it| lock(&it.0).take()) else {
            let own = match request.request {
                ClientRequest::DiscoverRequest(_) => Own::Discovery,
                ClientRequest::InitializeRequest(_) => Own::Initialize,
                _ => Own::Other,
            };
            if own == Own::Initialize {
                let discoveries = open.own.values_mut().filter(|own| **own == Own::Discovery);
                discoveries.for_each(|own| *own = Own::GivenUp);
            }
            open.own.insert(request.id.clone(), own);
            return;
        };
        if let Some(reason) = &open.ended {
            return drop(expected.answer.send(Answer::Ended(Arc::clone(reason))));
        }
        if let Some(token) = request.request.get_meta().get_progress_token() {
            open.tokens.insert(token, request.id.clone());
        }
        if let Some(call) = &expected.call {
            open.calls.push((request.id.clone(), call.clone()));
        }
        open.expected.insert(request.id.clone(), expected);
    }

    /// Notes that a request was written: its tool may run from now on.
    pub(super) fn sent(&self, id: &RequestId) {
        let open = lock(&self.open);
        if let Some(call) = open.expected.get(id).and_then(|expected| expected.call.as_ref()) {
            call.progress(Progress::started());
        }
    }

    /// Completes a request.
    pub(super) fn complete(&self, id: &RequestId, answer: Answer) -> bool {
        let expected = lock(&self.open).remove(id);
        expected.is_some_and(|expected| expected.answer.send(answer).is_ok())
    }

    /// Forgets a request of `rmcp`'s own that was answered without a message.
    pub(super) fn forget_own(&self, id: &RequestId) {
        lock(&self.open).own.remove(id);
    }

    /// Forgets a request whose caller has gone. A later answer is ignored.
    pub(super) fn forget(&self, id: &RequestId) {
        lock(&self.open).remove(id);
    }

    /// Notes the last event of the stream that answers a request.
    pub(super) fn note_event(&self, id: &RequestId, event: &str) {
        let mut open = lock(&self.open);
        if event.len() <= MAX_EVENT_ID && open.expected.contains_key(id) {
            open.events.insert(id.clone(), event.to_owned());
        }
    }

    /// Whether the stream that answers a request can be resumed.
    pub(super) fn has_event(&self, id: &RequestId) -> bool {
        lock(&self.open).events.contains_key(id)
    }

    /// Returns the request that a stream with this last event answers.
    pub(super) fn of_event(&self, event: &str) -> Option<RequestId> {
        let open = lock(&self.open);
        open.events.iter().find(|(_, last)| *last == event).map(|(id, _)| id.clone())
    }

    /// Ends all open requests, and those that follow.
    pub(super) fn end(&self, reason: &str) {
        let reason: Arc<str> = reason.into();
        let ended = {
            let mut open = lock(&self.open);
            std::mem::replace(&mut *open, Open { ended: Some(Arc::clone(&reason)), ..Open::default() })
        };
        for expected in ended.expected.into_values() {
            let _ = expected.answer.send(Answer::Ended(Arc::clone(&reason))); // its caller may have gone
        }
    }

    /// Notes why the server cannot be used: `rmcp` reports that it failed, and not why.
    pub(super) fn fail(&self, reason: String) {
        *lock(&self.failure) = Some(reason);
    }

    /// Returns why the server cannot be used, if that is known.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
    }

    /// Notes that the server has closed its output or its input.
    pub(super) fn note_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether the server has closed its output or its input, before toolbridge closed the connection.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Notes that nothing more is read from the server.
    pub(super) fn disconnect(&self) {
        self.disconnected.cancel();
    }

    /// Resolves when nothing more is read from the server.
    pub(super) async fn disconnected(&self) {
        self.disconnected.cancelled().await;
    }

    /// Returns the call that was sent last and has not ended: a question that names no call is asked on its behalf.
    pub(super) fn latest_call(&self) -> Option<ToolContext> {
        lock(&self.open).calls.last().map(|(_, call)| call.clone())
    }

    /// Reads a message of the server. Returns it if `rmcp` handles it; what `rmcp` need not know is handled here. `of` is
    /// the request that the text answers, if the transport knows that.
    ///
    /// # Errors
    /// If the text is not a JSON-RPC message, and has no id that could be answered.
    pub(super) fn receive(
        &self,
        server: &str,
        text: &[u8],
        of: Option<&RequestId>,
    ) -> Result<Option<ServerJsonRpcMessage>, NotAMessage> {
        let text = crate::value::bytes_without_mark(text);
        let unreadable = |reason: String| {
            let message = self.unreadable(Head::of(text), Answer::Unreadable(reason));
            message.map(Some).ok_or(NotAMessage)
        };
        if is_batch(text) {
            return Ok(self.batch(server, text, of));
        }
        let parts: Parts<'_> = match serde_json::from_slice(text) {
            Ok(parts) => parts,
            Err(_) if std::str::from_utf8(text).is_err() => return unreadable("it is not UTF-8".to_owned()),
            Err(error) => return unreadable(format!("it is not a JSON-RPC message: {error}")),
        };
        if parts.jsonrpc.as_deref() != Some("2.0") {
            return unreadable("it is not a message of JSON-RPC 2.0".to_owned());
        }
        let id = match id_of(&parts) {
            Ok(id) => id,
            Err(reason) => return unreadable(reason),
        };
        match (&parts.method, id) {
            (Some(method), None) => Ok(self.notification(server, method, &parts, text)),
            (Some(method), Some(id)) => Ok(Some(request(method, &parts, id))),
            (None, Some(id)) => Ok(self.answer(&id, &parts)),
            (None, None) => Ok(match not_null(parts.error) {
                Some(error) => self.unnamed(server, Answer::Error(Failure::read(error)), of),
                None => self.ignore(&self.ignored.stale),
            }),
        }
    }

    /// Refuses a batch: the requests that it answers fail. Returns the message for `rmcp`.
    fn batch(&self, server: &str, text: &[u8], of: Option<&RequestId>) -> Option<ServerJsonRpcMessage> {
        tracing::warn!(server, bytes = text.len(), "an MCP server wrote a batch, which is refused");
        let answer = || Answer::Unreadable(BATCH.to_owned());
        let text = str::from_utf8(text).ok().filter(|text| json::measure(text).is_ok());
        let parts = text.and_then(|text| serde_json::from_str::<Vec<Parts<'_>>>(text).ok());
        let Some(parts) = parts else { return self.unnamed(server, answer(), of) };
        let answers = || parts.iter().filter(|part| part.method.is_none());
        if answers().any(|part| part.id.is_none()) {
            return self.unnamed(server, answer(), of);
        }
        let asked = |part: &Parts<'_>| lock(&self.open).asked(&id_of(part).ok()??);
        let ended: Vec<_> = answers().filter_map(asked).filter_map(|id| self.settle(id, answer())).collect();
        ended.into_iter().next()
    }

    /// Takes an error without an id, or such a batch, for the answer to the only request that is open. Of several, none can be
    /// told.
    fn unnamed(&self, server: &str, answer: Answer, of: Option<&RequestId>) -> Option<ServerJsonRpcMessage> {
        let (meant, calls) = {
            let open = lock(&self.open);
            (of.cloned().or_else(|| open.only()), open.calls.clone())
        };
        if let Some(id) = meant {
            return self.settle(id, answer);
        }
        let words = answer.words();
        tracing::warn!(server, words, "an MCP server reports an error that names no request");
        for (_, call) in calls {
            call.warn(&format!("the MCP server {server:?} reports an error that names no request: {words}"));
        }
        self.ignore(&self.ignored.stale)
    }

    /// Ends an open request with an answer that is no result. Returns the message for `rmcp`; `None` if nobody waits for it.
    fn settle(&self, id: RequestId, answer: Answer) -> Option<ServerJsonRpcMessage> {
        let own = lock(&self.open).own.remove(&id);
        match (own, answer) {
            (None, answer) => self.complete(&id, answer).then(|| stand_in(id, Vec::new())),
            (Some(Own::GivenUp), _) => self.ignore(&self.ignored.stale),
            (Some(Own::Discovery), Answer::Error(_)) => Some(not_discovered(id)),
            (Some(own), Answer::Error(failure)) => Some(self.refused(own, &failure, id)),
            (Some(_), answer) => {
                let message = answer.words();
                self.fail(format!("its answer cannot be read: {message}"));
                Some(to_rmcp(&Failure::of(message), id))
            }
        }
    }

    /// Ends the request that a message answers which cannot be read, or refuses such a request of the server. Returns the
    /// message for `rmcp`; `None` if nobody waits for it.
    pub(super) fn unreadable(&self, head: Head<'_>, answer: Answer) -> Option<ServerJsonRpcMessage> {
        let id: RequestId = serde_json::from_value(carried(head.id()?)).ok()?;
        if head.has_method() {
            return Some(own_request(UNREADABLE, Some(answer.words().into()), id));
        }
        let id = lock(&self.open).asked(&id)?;
        self.settle(id, answer)
    }

    fn answer(&self, id: &RequestId, parts: &Parts<'_>) -> Option<ServerJsonRpcMessage> {
        let mut open = lock(&self.open);
        let Some(id) = open.asked(id) else {
            // Nothing else was answered, so nothing will be.
            let mut waiting = open.own.iter().filter(|(_, own)| **own != Own::GivenUp);
            let own = waiting.next().filter(|_| !open.has_matched).map(|(id, _)| id.clone());
            let Some(own) = own else { return self.ignore(&self.ignored.stale) };
            open.own.remove(&own);
            let message = format!("it answers with ids that were not asked ({} for {own})", shown(id));
            self.fail(message.clone());
            return Some(to_rmcp(&Failure::of(message), own));
        };
        open.has_matched = true;
        if let Some(own) = open.own.remove(&id) {
            drop(open);
            return match own {
                Own::GivenUp => self.ignore(&self.ignored.stale),
                own => Some(self.own_answer(own, id, parts)),
            };
        }
        let expected = open.remove(&id)?;
        drop(open);
        let answer = match not_null(parts.result) {
            Some(result) if result.get().len() > MAX_RESULT => Answer::TooLarge(result.get().len()),
            Some(result) => Answer::Result(result.get().to_owned()),
            None => Answer::Error(parts.error.map(Failure::read).unwrap_or_default()),
        };
        let tools = match &answer {
            Answer::Result(result) if expected.call.is_none() => annotated(result),
            _ => Vec::new(),
        };
        if expected.answer.send(answer).is_err() {
            return self.ignore(&self.ignored.stale);
        }
        Some(stand_in(id, tools))
    }

    /// Returns the answer to a request of `rmcp`'s own. Of the message, `rmcp` gets no more than the result.
    fn own_answer(&self, own: Own, id: RequestId, parts: &Parts<'_>) -> ServerJsonRpcMessage {
        let Some(result) = not_null(parts.result) else {
            let failure = parts.error.map(Failure::read).unwrap_or_default();
            return self.refused(own, &failure, id);
        };
        let read = own_result(own, result).and_then(|text| {
            let number = serde_json::to_string(&id).unwrap_or_default();
            let text = format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{text}}}"#);
            serde_json::from_str(&text).map_err(|error| format!("cannot be read: {error}"))
        });
        match read {
            Ok(message) if own == Own::Discovery => discovered(message, &id),
            Ok(message) => message,
            Err(_) if own == Own::Discovery => not_discovered(id),
            Err(reason) => {
                let method = if own == Own::Initialize { " to `initialize`" } else { "" };
                let message = words::line(&format!("its answer{method} {reason}"));
                self.fail(message.clone());
                to_rmcp(&Failure::of(message), id)
            }
        }
    }

    /// Returns the error that the server answers to a request of `rmcp`'s own.
    fn refused(&self, own: Own, failure: &Failure, id: RequestId) -> ServerJsonRpcMessage {
        if own == Own::Initialize {
            self.fail(format!("it refuses `initialize`: {}", words_of(failure)));
        }
        to_rmcp(failure, id)
    }

    fn notification(
        &self,
        server: &str,
        method: &str,
        parts: &Parts<'_>,
        text: &[u8],
    ) -> Option<ServerJsonRpcMessage> {
        match method {
            "notifications/progress" => {
                let params = parts.params.filter(|it| it.get().len() <= MAX_NOTIFICATION);
                let progress = params.and_then(|it| serde_json::from_str(it.get()).ok());
                if !progress.is_some_and(|progress| self.progress(progress)) {
                    return self.ignore(&self.ignored.stale);
                }
                None
            }
            "notifications/message" => {
                if let Some(params) = parts.params {
                    log::forward(server, params.get());
                }
                None
            }
            // One that cannot be read, such as of a later version, has no effect.
            _ if NOTIFICATIONS.contains(&method) && text.len() <= MAX_NOTIFICATION => {
                serde_json::from_slice(text).ok()
            }
            _ => None,
        }
    }

    /// Reports progress to its call. Returns whether it had an effect.
    fn progress(&self, progress: ProgressParts) -> bool {
        let mut open = lock(&self.open);
        let Some(id) = open.tokens.get(&progress.progress_token).cloned() else { return false };
        let Some(expected) = open.expected.get_mut(&id) else { return false };
        if progress.progress <= expected.progress {
            return false; // it must increase
        }
        expected.progress = progress.progress;
        let Some(call) = &expected.call else { return false };
        let report = match progress.total {
            Some(total) => Progress::of(progress.progress, total),
            None => Progress::so_far(progress.progress),
        };
        call.progress(match progress.message {
            Some(message) => report.message(message),
            None => report,
        });
        true
    }

    fn ignore(&self, counter: &AtomicU64) -> Option<ServerJsonRpcMessage> {
        counter.fetch_add(1, Ordering::Relaxed);
        None
    }
}

impl Open {
    /// Returns the open request that an answer names. Some servers write the number of a request as a text.
    fn asked(&self, id: &RequestId) -> Option<RequestId> {
        let is_open = |id: &RequestId| self.expected.contains_key(id) || self.own.contains_key(id);
        let number = match id {
            NumberOrString::String(text) => text.trim().parse().ok().map(NumberOrString::Number),
            NumberOrString::Number(_) => None,
        };
        [Some(id.clone()), number].into_iter().flatten().find(is_open)
    }

    /// Returns the request that an answer without an id can mean: the only one that is open. A subscription stays open, and
    /// does not count.
    fn only(&self) -> Option<RequestId> {
        let own = |wanted: Own| self.own.iter().find(|(_, own)| **own == wanted).map(|(id, _)| id);
        // A server that starts slowly answers the discovery first.
        if let (Some(given_up), Some(_)) = (own(Own::GivenUp), own(Own::Initialize)) {
            return Some(given_up.clone());
        }
        let own = [own(Own::Discovery), own(Own::Initialize)].into_iter().flatten();
        let mut open = self.expected.keys().chain(own);
        open.next().filter(|_| open.next().is_none()).cloned()
    }

    fn remove(&mut self, id: &RequestId) -> Option<Expected> {
        let expected = self.expected.remove(id)?;
        self.calls.retain(|(other, _)| other != id);
        self.tokens.retain(|_, of| of != id);
        self.events.remove(id);
        Some(expected)
    }
}

/// The text is not a JSON-RPC message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotAMessage;

/// Returns a member that says something.
fn not_null(member: Option<&RawValue>) -> Option<&RawValue> {
    member.filter(|it| it.get() != "null")
}

/// Returns whether a text is a batch of messages.
fn is_batch(text: &[u8]) -> bool {
    let start = &text[..text.len().min(MAX_BATCH_START)];
    start.trim_ascii_start().starts_with(b"[") && start.windows(9).any(|it| it == b"\"jsonrpc\"")
}

/// A request of the server. All but a ping pass `rmcp` as they are: its own types refuse questions whose schemas they do
/// not know, and answer requests that are not offered. Parameters that nobody reads are dropped.
fn request(method: &str, parts: &Parts<'_>, id: RequestId) -> ServerJsonRpcMessage {
    if method == "ping" {
        return JsonRpcMessage::request(ServerRequest::PingRequest(PingRequest::default()), id);
    }
    if method != ELICITATION {
        return own_request(prefix(method, MAX_METHOD), None, id);
    }
    let params = parts.params.map_or("null", RawValue::get);
    if params.len() > MAX_QUESTION {
        let reason = format!("its parameters have {} bytes; the limit is {MAX_QUESTION}", params.len());
        return own_request(UNREADABLE, Some(reason.into()), id);
    }
    match json::value(params) {
        Ok(params) => own_request(method, Some(params), id),
        Err(error) => own_request(UNREADABLE, Some(error.to_string().into()), id),
    }
}

fn own_request(method: &str, params: Option<Json>, id: RequestId) -> ServerJsonRpcMessage {
    let request = CustomRequest::new(format!("{OWN_METHOD}{method}"), params);
    JsonRpcMessage::request(ServerRequest::CustomRequest(request), id)
}

/// Returns the text of a result that `rmcp` reads, or what is wrong with it, as the end of a sentence.
fn own_result(own: Own, result: &RawValue) -> Result<String, String> {
    let size = result.get().len();
    if size > MAX_OWN {
        return Err(format!("has {size} bytes; the limit is {MAX_OWN}"));
    }
    let text = json::checked(result.get()).map_err(|error| format!("cannot be read: {error}"))?;
    if own == Own::Initialize {
        let result: Json = serde_json::from_str(&text).map_err(|error| format!("cannot be read: {error}"))?;
        let lacks =
            INITIALIZE.iter().find(|(pointer, is_right)| !result.pointer(pointer).is_some_and(is_right));
        if let Some((pointer, _)) = lacks {
            let name = pointer.trim_start_matches('/').replace('/', ".");
            let how = if result.pointer(pointer).is_some() { "has another type of" } else { "lacks" };
            return Err(format!("{how} `{name}`"));
        }
    }
    Ok(text.into_owned())
}

/// Whether a value has the type that the protocol demands.
type IsRight = fn(&Json) -> bool;

/// What the answer to `initialize` must have.
const INITIALIZE: [(&str, IsRight); 5] = [
    ("/protocolVersion", Json::is_string),
    ("/capabilities", Json::is_object),
    ("/serverInfo", Json::is_object),
    ("/serverInfo/name", Json::is_string),
    ("/serverInfo/version", Json::is_string),
];

/// Returns an id as JSON.
fn shown(id: &RequestId) -> String {
    words::line(prefix(&serde_json::to_string(id).unwrap_or_default(), MAX_SHOWN_ID))
}

/// Returns the answer to the question for versions. A server that does not know the question may answer anything.
fn discovered(message: ServerJsonRpcMessage, id: &RequestId) -> ServerJsonRpcMessage {
    match message {
        JsonRpcMessage::Response(response) if !matches!(response.result, ServerResult::DiscoverResult(_)) => {
            not_discovered(id.clone())
        }
        message => message,
    }
}

fn not_discovered(id: RequestId) -> ServerJsonRpcMessage {
    let error = ErrorData::new(McpCode::METHOD_NOT_FOUND, "no versions in the answer", None);
    JsonRpcMessage::error(error, Some(id))
}

/// The key of a parameter's schema that names an HTTP header for it.
pub(super) const HEADER_KEY: &str = "x-mcp-header";

#[derive(Deserialize)]
struct Tools<'a> {
    #[serde(borrow)]
    tools: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Annotated {
    name: String,
    input_schema: JsonObject,
}

/// Returns the tools of a list whose parameters are sent as HTTP headers, too. `rmcp` sends these.
fn annotated(list: &str) -> Vec<Tool> {
    if !list.contains(HEADER_KEY) || json::measure(list).is_err() {
        return Vec::new();
    }
    let tools = serde_json::from_str::<Tools<'_>>(list).map(|it| it.tools).unwrap_or_default();
    let annotated = tools.into_iter().filter(|text| text.get().contains(HEADER_KEY));
    let read = annotated.filter_map(|text| serde_json::from_str::<Annotated>(text.get()).ok());
    read.map(|tool| Tool::new_with_raw(tool.name, None, tool.input_schema)).collect()
}

/// The message that `rmcp` gets in place of an answer.
pub(super) fn stand_in(id: RequestId, tools: Vec<Tool>) -> ServerJsonRpcMessage {
    let result = match tools.is_empty() {
        true => ServerResult::empty(()),
        false => ServerResult::ListToolsResult(ListToolsResult::with_all_items(tools)),
    };
    JsonRpcMessage::response(result, id)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sent(requests: &Requests, message: &Json) {
        requests.register(&serde_json::from_value(message.clone()).unwrap());
    }

    fn received(requests: &Requests, message: &Json) -> Option<ServerJsonRpcMessage> {
        requests.receive("server", message.to_string().as_bytes(), None).unwrap_or_default()
    }

    /// The answer arrives when its stream ends, after `rmcp` has gone on as with an older server.
    #[test]
    fn answer_to_a_discovery_that_was_given_up_is_ignored() {
        let requests = Requests::default();
        sent(&requests, &json!({"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {}}));
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"},
        });
        sent(&requests, &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}));
        let unknown = json!({"code": -32601, "message": "no"});
        let late = received(&requests, &json!({"jsonrpc": "2.0", "id": 0, "error": unknown}));
        assert!(late.is_none(), "{late:?}");
        let result = json!({
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"},
        });
        let answer = received(&requests, &json!({"jsonrpc": "2.0", "id": 1, "result": result}));
        assert!(matches!(answer, Some(JsonRpcMessage::Response(_))), "{answer:?}");
        assert!(requests.failure().is_none());
    }

    fn call(requests: &Requests, id: i64) -> oneshot::Receiver<Answer> {
        let (handover, answered) = Handover::new(None);
        let expected = lock(&handover.0).take().unwrap();
        lock(&requests.open).expected.insert(NumberOrString::Number(id), expected);
        answered
    }

    #[test]
    fn error_without_an_id_is_the_answer_to_the_only_request() {
        let requests = Requests::default();
        let mut answered = call(&requests, 7);
        let error = json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no"}});
        assert!(matches!(received(&requests, &error), Some(JsonRpcMessage::Response(_))));
        assert_eq!(answered.try_recv().unwrap().words(), "no (MCP error -32700)");
        let mut several = [call(&requests, 8), call(&requests, 9)];
        assert!(received(&requests, &error).is_none());
        assert!(several.iter_mut().all(|it| it.try_recv().is_err()), "none of them can be told");
        let text = error.to_string();
        let of = NumberOrString::Number(9);
        assert!(requests.receive("server", text.as_bytes(), Some(&of)).unwrap().is_some());
        assert!(several[1].try_recv().is_ok() && several[0].try_recv().is_err());
    }

    #[test]
    fn error_without_an_id_fails_the_start() {
        let requests = Requests::default();
        sent(&requests, &json!({"jsonrpc": "2.0", "id": 0, "method": "server/discover", "params": {}}));
        let error = json!({"jsonrpc": "2.0", "error": {"code": -32700, "message": "no"}});
        let Some(JsonRpcMessage::Error(refused)) = received(&requests, &error) else { panic!("no answer") };
        assert_eq!(refused.error.code, McpCode::METHOD_NOT_FOUND, "it is asked to initialize next");
        let params = json!({
            "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"},
        });
        sent(&requests, &json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}));
        assert!(matches!(received(&requests, &error), Some(JsonRpcMessage::Error(_))));
        assert_eq!(requests.failure().unwrap(), "it refuses `initialize`: no (MCP error -32700)");
    }

    #[test]
    fn batch_ends_the_requests_that_it_answers() {
        let requests = Requests::default();
        let mut answered = [call(&requests, 7), call(&requests, 8), call(&requests, 9)];
        let part = |id: i64| json!({"jsonrpc": "2.0", "id": id, "result": {}});
        assert!(received(&requests, &json!([part(7), part(8)])).is_some());
        for it in &mut answered[..2] {
            assert_eq!(it.try_recv().unwrap().words(), BATCH);
        }
        let notice = json!([{"jsonrpc": "2.0", "method": "notifications/progress"}]);
        assert!(received(&requests, &notice).is_none());
        assert!(answered[2].try_recv().is_err());
        let many = format!(r#"[{{"jsonrpc":"2.0","id":9,"result":[{}0]}}]"#, "0,".repeat(300_000));
        assert!(requests.receive("server", many.as_bytes(), None).unwrap().is_some());
        assert_eq!(answered[2].try_recv().unwrap().words(), BATCH);
        assert!(requests.receive("server", b"[info] ready", None).is_err());
    }

    #[test]
    fn first_words_of_an_error_are_its_message() {
        for (error, says) in [
            (json!({"code": 7, "message": "", "cause": "no quota"}), "no quota (MCP error 7)"),
            (json!({"code": 7, "message": " ", "data": {"detail": "no quota"}}), "no quota (MCP error 7)"),
            (json!(["no", "quota"]), r#"["no","quota"]"#),
            (json!({}), "the MCP server gave no reason"),
        ] {
            let raw = serde_json::value::to_raw_value(&error).unwrap();
            assert_eq!(words_of(&Failure::read(&raw)), says, "{error}");
        }
    }

    #[test]
    fn request_whose_id_no_crate_holds_keeps_it() {
        let requests = Requests::default();
        for (id, carried) in [
            ("1.5", "dev.toolbridge/id:1.5"),
            ("18446744073709551615", "dev.toolbridge/id:18446744073709551615"),
        ] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"roots/list"}}"#);
            let Ok(Some(JsonRpcMessage::Request(request))) =
                requests.receive("server", text.as_bytes(), None)
            else {
                panic!("no request")
            };
            assert_eq!(request.id, NumberOrString::String(carried.into()));
        }
        let long = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"roots/list"}}"#, "x".repeat(MAX_ID));
        assert_eq!(requests.receive("server", long.as_bytes(), None).unwrap_err(), NotAMessage);
    }
}
