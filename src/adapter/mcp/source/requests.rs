//! The requests to a server whose answers are taken as text, below `rmcp`'s types.
//!
//! Those types lose what they do not know, and one unknown block fails a whole result. So a request brings an
//! [`Expected`] with it. The transport takes it when it sends the request, and completes it with the text of the
//! answer. `rmcp` gets an empty result in its place, or what it needs to know of a list of tools.

use std::{
    borrow::Cow,
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
        json::{self, head},
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

/// The largest data of an error, in bytes.
const MAX_DATA: usize = 64 << 10;

/// The longest code of an error that is a text, in bytes.
const MAX_CODE: usize = 64;

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

/// A JSON-RPC error. Programs write codes that are texts, and errors that are texts as a whole.
#[derive(Debug, Default)]
pub(super) struct Failure {
    /// The code, if it is a number.
    pub(super) code: Option<i64>,
    /// The code in the server's form.
    pub(super) shown_code: String,
    pub(super) message: String,
    /// The text of its data, up to [`MAX_DATA`].
    pub(super) data: Option<String>,
}

impl Failure {
    fn read(error: Option<&RawValue>) -> Self {
        let Some(error) = error else { return Self::default() };
        let Ok(parts) = serde_json::from_str::<ErrorParts<'_>>(error.get()) else {
            let message = text_of(error).unwrap_or_else(|| error.get().to_owned());
            return Self { message, ..Self::default() };
        };
        let shown_code = parts.code.map(|code| text_of(code).unwrap_or_else(|| code.get().to_owned()));
        Self {
            code: parts.code.and_then(|code| serde_json::from_str(code.get()).ok()),
            shown_code: words::line(prefix(&shown_code.unwrap_or_default(), MAX_CODE)),
            message: parts.message.and_then(text_of).unwrap_or_default(),
            data: parts.data.map(RawValue::get).filter(|it| it.len() <= MAX_DATA).map(str::to_owned),
        }
    }

    /// Returns the server's words, and the code.
    pub(super) fn words(&self) -> String {
        let data = self.data.as_deref().and_then(|data| json::value(data).ok());
        let words = words::of_rpc(&self.message, data.as_ref());
        let words = words.unwrap_or_else(|| "the MCP server gave no reason".to_owned());
        if self.shown_code.is_empty() { words } else { format!("{words} (MCP error {})", self.shown_code) }
    }

    /// Returns the error for `rmcp`.
    fn to_rmcp(&self, id: RequestId) -> ServerJsonRpcMessage {
        let code =
            self.code.and_then(|code| i32::try_from(code).ok()).map_or(McpCode::INTERNAL_ERROR, McpCode);
        JsonRpcMessage::error(ErrorData::new(code, words::line(&self.message), None), Some(id))
    }
}

/// Returns the text of a value that is one.
fn text_of(value: &RawValue) -> Option<String> {
    json::value(value.get()).ok()?.as_str().map(str::to_owned)
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

/// The parts of a message. Nothing below them is read.
#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(default, borrow)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(default)]
    id: Option<NumberOrString>,
    #[serde(default, borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ProgressParts {
    progress_token: ProgressToken,
    progress: f64,
    total: Option<f64>,
    message: Option<String>,
}

#[derive(Deserialize)]
struct ErrorParts<'a> {
    #[serde(default, borrow)]
    code: Option<&'a RawValue>,
    #[serde(default, borrow)]
    message: Option<&'a RawValue>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
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

    /// Reads a message of the server. Returns it if `rmcp` handles it; what `rmcp` need not know is handled here.
    ///
    /// # Errors
    /// If the text is not a JSON-RPC message, and has no id that could be answered.
    pub(super) fn receive(
        &self,
        server: &str,
        text: &[u8],
    ) -> Result<Option<ServerJsonRpcMessage>, NotAMessage> {
        let text = text.strip_prefix("\u{feff}".as_bytes()).unwrap_or(text);
        let unreadable = |reason: String| {
            let message = self.unreadable(text, head::id(text), Answer::Unreadable(reason));
            message.map(Some).ok_or(NotAMessage)
        };
        let parts: Parts<'_> = match serde_json::from_slice(text) {
            Ok(parts) => parts,
            Err(_) if std::str::from_utf8(text).is_err() => return unreadable("it is not UTF-8".to_owned()),
            Err(error) => return unreadable(format!("it is not a JSON-RPC message: {error}")),
        };
        if parts.jsonrpc.as_deref() != Some("2.0") {
            return unreadable("it is not a message of JSON-RPC 2.0".to_owned());
        }
        match (&parts.method, &parts.id) {
            (Some(method), None) => Ok(self.notification(server, method, &parts, text)),
            (Some(method), Some(id)) => Ok(Some(request(method, &parts, id.clone()))),
            (None, Some(id)) => Ok(self.answer(id, &parts)),
            // An error that names no request, because the server could not read it.
            (None, None) => Ok(self.ignore(&self.ignored.stale)),
        }
    }

    /// Ends the request that a message answers which cannot be read, or refuses such a request of the server. Returns the
    /// message for `rmcp`; `None` if nobody waits for it.
    pub(super) fn unreadable(
        &self,
        text: &[u8],
        id: Option<Json>,
        answer: Answer,
    ) -> Option<ServerJsonRpcMessage> {
        let id: RequestId = serde_json::from_value(id?).ok()?;
        let reason = match &answer {
            Answer::TooLarge(size) => format!("it has {size} bytes; the limit is {MAX_MESSAGE}"),
            Answer::Unreadable(reason) => reason.clone(),
            _ => String::new(),
        };
        if head::text(text, "method").is_some() {
            return Some(own_request(UNREADABLE, Some(reason.into()), id));
        }
        let mut open = lock(&self.open);
        let id = open.asked(&id)?;
        match open.own.remove(&id) {
            None => {
                drop(open);
                return self.complete(&id, answer).then(|| stand_in(id, Vec::new()));
            }
            Some(Own::GivenUp) => return self.ignore(&self.ignored.stale),
            Some(_) => {}
        }
        self.fail(format!("its answer cannot be read: {reason}"));
        let failure = Failure { message: reason, ..Failure::default() };
        Some(failure.to_rmcp(id))
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
            return Some(Failure { message, ..Failure::default() }.to_rmcp(own));
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
        let answer = match parts.result {
            Some(result) if result.get().len() > MAX_RESULT => Answer::TooLarge(result.get().len()),
            Some(result) => Answer::Result(result.get().to_owned()),
            None => Answer::Error(Failure::read(parts.error)),
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
        let Some(result) = parts.result else {
            let failure = Failure::read(parts.error);
            if own == Own::Initialize {
                self.fail(format!("it refuses `initialize`: {}", failure.words()));
            }
            return failure.to_rmcp(id);
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
                Failure { message, ..Failure::default() }.to_rmcp(id)
            }
        }
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
                let progress = parts.params.and_then(|it| serde_json::from_str(it.get()).ok());
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
    let text = json::message(result.get().as_bytes()).map_err(|error| format!("cannot be read: {error}"))?;
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
    words::line(prefix(&serde_json::to_string(id).unwrap_or_default(), MAX_CODE))
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
        requests.receive("server", message.to_string().as_bytes()).unwrap_or_default()
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
}
