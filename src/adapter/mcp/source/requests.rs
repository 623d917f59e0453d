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
        atomic::{AtomicU64, Ordering},
    },
};

use rmcp::model::{
    ClientJsonRpcMessage, ClientRequest, CustomRequest, ErrorCode as McpCode, ErrorData, GetExtensions as _,
    GetMeta as _, JsonObject, JsonRpcMessage, ListToolsResult, NumberOrString, ProgressToken, RequestId,
    ServerJsonRpcMessage, ServerRequest, ServerResult, Tool,
};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::log;
use crate::{Progress, ToolContext};

/// The largest document of a result, in bytes: a call's result has the same limit on the wire.
pub(super) const MAX_RESULT: usize = 16 << 20;

/// Stands before the method of a request that passes `rmcp` as it is.
pub(super) const OWN_METHOD: &str = "toolbridge:";

/// The largest message of a server, in bytes: such a result, and half as much for what else stands in its message.
pub(in crate::adapter::mcp) const MAX_MESSAGE: usize = 24 << 20;

/// The largest data of an error, in bytes.
const MAX_DATA: usize = 64 << 10;

/// The longest id of an event, in bytes. A stream whose events have longer ones counts as one that cannot be resumed.
const MAX_EVENT_ID: usize = 1 << 10;

/// What a server answered.
#[derive(Debug)]
pub(super) enum Answer {
    /// The text of the result.
    Result(String),
    /// A JSON-RPC error. The text of its data is kept up to [`MAX_DATA`].
    Error { code: i64, message: String, data: Option<String> },
    /// The result has this many bytes, more than [`MAX_RESULT`].
    TooLarge(usize),
    /// The request was not written.
    NotSent,
    /// The connection has ended, for this reason.
    Ended(Arc<str>),
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
}

/// A request of `rmcp`'s own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Own {
    /// It asks which versions of the protocol the server knows. Older servers do not know the request.
    Discovery,
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

#[derive(Default, Deserialize)]
struct ErrorParts<'a> {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
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
            let is_discovery = matches!(request.request, ClientRequest::DiscoverRequest(_));
            open.own.insert(request.id.clone(), if is_discovery { Own::Discovery } else { Own::Other });
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

    /// Notes why a message could not be sent: `rmcp` reports that it failed, and not why.
    pub(super) fn fail(&self, reason: String) {
        *lock(&self.failure) = Some(reason);
    }

    /// Returns why the last message could not be sent, if that is known.
    pub(super) fn failure(&self) -> Option<String> {
        lock(&self.failure).clone()
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
    /// If the text is not a JSON-RPC message.
    pub(super) fn receive(
        &self,
        server: &str,
        text: &[u8],
    ) -> Result<Option<ServerJsonRpcMessage>, NotAMessage> {
        let parts: Parts<'_> = serde_json::from_slice(text).map_err(|_| NotAMessage)?;
        if parts.jsonrpc.as_deref() != Some("2.0") {
            return Err(NotAMessage);
        }
        match (&parts.method, &parts.id) {
            (Some(method), None) => self.notification(server, method, &parts, text),
            (Some(method), Some(id)) => Ok(Some(request(method, &parts, id.clone(), text)?)),
            (None, Some(id)) => self.answer(id, &parts, text),
            // An error that names no request, because the server could not read it.
            (None, None) => Ok(self.ignore(&self.ignored.stale)),
        }
    }

    fn answer(
        &self,
        id: &RequestId,
        parts: &Parts<'_>,
        text: &[u8],
    ) -> Result<Option<ServerJsonRpcMessage>, NotAMessage> {
        if let Some(own) = lock(&self.open).own.remove(id) {
            let message: ServerJsonRpcMessage = serde_json::from_slice(text).map_err(|_| NotAMessage)?;
            return Ok(Some(match own {
                Own::Discovery => discovered(message, id),
                Own::Other => message,
            }));
        }
        let answer = match (parts.result, parts.error) {
            (Some(result), _) if result.get().len() > MAX_RESULT => Answer::TooLarge(result.get().len()),
            (Some(result), _) => Answer::Result(result.get().to_owned()),
            (None, error) => {
                let error: ErrorParts<'_> =
                    error.and_then(|it| serde_json::from_str(it.get()).ok()).unwrap_or_default();
                let data = error.data.map(RawValue::get).filter(|it| it.len() <= MAX_DATA);
                Answer::Error { code: error.code, message: error.message, data: data.map(str::to_owned) }
            }
        };
        let Some(expected) = lock(&self.open).remove(id) else {
            return Ok(self.ignore(&self.ignored.stale));
        };
        let tools = match &answer {
            Answer::Result(result) if expected.call.is_none() => annotated(result),
            _ => Vec::new(),
        };
        if expected.answer.send(answer).is_err() {
            return Ok(self.ignore(&self.ignored.stale));
        }
        Ok(Some(stand_in(id.clone(), tools)))
    }

    fn notification(
        &self,
        server: &str,
        method: &str,
        parts: &Parts<'_>,
        text: &[u8],
    ) -> Result<Option<ServerJsonRpcMessage>, NotAMessage> {
        match method {
            "notifications/progress" => {
                let progress = parts.params.and_then(|it| serde_json::from_str(it.get()).ok());
                if !progress.is_some_and(|progress| self.progress(progress)) {
                    return Ok(self.ignore(&self.ignored.stale));
                }
                Ok(None)
            }
            "notifications/message" => {
                if let Some(params) = parts.params {
                    log::forward(server, params.get());
                }
                Ok(None)
            }
            // One that cannot be read, such as of a later version, has no effect.
            _ => Ok(serde_json::from_slice(text).ok()),
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
/// not know, and answer requests that are not offered.
fn request(
    method: &str,
    parts: &Parts<'_>,
    id: RequestId,
    text: &[u8],
) -> Result<ServerJsonRpcMessage, NotAMessage> {
    if method == "ping" {
        return serde_json::from_slice(text).map_err(|_| NotAMessage);
    }
    let params = parts.params.and_then(|it| serde_json::from_str(it.get()).ok());
    let request = CustomRequest::new(format!("{OWN_METHOD}{method}"), params);
    Ok(JsonRpcMessage::request(ServerRequest::CustomRequest(request), id))
}

/// Returns the answer to the question for versions. A server that does not know the question may answer anything.
fn discovered(message: ServerJsonRpcMessage, id: &RequestId) -> ServerJsonRpcMessage {
    match message {
        JsonRpcMessage::Response(response) if !matches!(response.result, ServerResult::DiscoverResult(_)) => {
            let error = ErrorData::new(McpCode::METHOD_NOT_FOUND, "no versions in the answer", None);
            JsonRpcMessage::error(error, Some(id.clone()))
        }
        message => message,
    }
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
    if !list.contains(HEADER_KEY) {
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
