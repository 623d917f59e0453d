//! The connection to a server at an address: streamable HTTP. Each message of this side is one POST. Its answer, and what
//! the server sends before, come in the body of the response: as one JSON text, or as a stream of events, which is opened
//! again where it broke.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use reqwest::{
    Body, Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue},
};
use serde_json::Value as Json;
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{
    handler::Handler,
    lifecycle::{DISCOVER, INITIALIZE, INITIALIZED, Protocol},
};
use crate::adapter::{
    jsonrpc::{
        failure::Failure,
        inbox::{Inbox, Read},
        message::Parts,
        open::{Reason, Reply},
        peer::{End, Headers, Outgoing, OutgoingMessage, Peer, Writer, Written},
        rules::MCP,
    },
    web::{
        client::{HttpClient, media_type},
        outgoing::HttpError,
        sse::{EventError, Events},
    },
    words,
};

/// The most requests that are being sent at once, or whose answer is one text.
const MAX_POSTS: usize = 64;

/// The most notifications and answers that are being sent at once.
const MAX_NOTES: usize = 8;

/// How long a notification or an answer may take to be accepted.
const NOTE_LIMIT: Duration = Duration::from_secs(10);

/// How long the end of a session may take.
const END_LIMIT: Duration = Duration::from_secs(1);

/// The shortest and the longest time, in milliseconds, that a server may set before its stream is opened again.
const RETRY: [u64; 2] = [250, 60_000];

/// The time, in milliseconds, before a stream is opened again if the server sets none.
const DEFAULT_RETRY: u64 = 1_000;

/// How long the rest of a stream is read after the answer, so that the next request can use its connection.
const REST: Duration = Duration::from_millis(50);

/// The longest id of an event, in bytes. A stream whose events have longer ones counts as one that cannot be resumed.
const MAX_EVENT_ID: usize = 1 << 10;

/// How many bytes of a stream are read to find out whether it is that of HTTP+SSE.
const FIRST_EVENT: usize = 1024;

/// How long the first event of such a stream may take.
const FIRST_EVENT_LIMIT: Duration = Duration::from_secs(2);

/// The largest body of a refusal that is read for its reason, in bytes.
const MAX_REFUSAL: usize = 64 << 10;

pub(in crate::adapter::mcp) const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
pub(in crate::adapter::mcp) const PROTOCOL_VERSION: HeaderName =
    HeaderName::from_static("mcp-protocol-version");
pub(in crate::adapter::mcp) const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
pub(in crate::adapter::mcp) const JSON: &str = "application/json";
pub(in crate::adapter::mcp) const EVENTS: &str = "text/event-stream";

/// Why a message has no answer.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error(
        "{0} speaks HTTP+SSE, the transport of MCP before 2025-03-26, which is not supported; use an address at which it \
         speaks streamable HTTP (often /mcp in place of /sse), or a bridge"
    )]
    OldTransport(Arc<str>),
    #[error("{0} answered the request with HTTP {1} and without a message")]
    NoMessage(Arc<str>, u16),
    #[error("{0} did not accept a message within {limit} s", limit = NOTE_LIMIT.as_secs())]
    NotAccepted(Arc<str>),
    #[error("the answer is not a JSON-RPC message")]
    NotAMessage,
    #[error("its answer is {0}, and neither {JSON} nor {EVENTS}")]
    OtherType(String),
    #[error("its answer has no content type, and is neither {JSON} nor {EVENTS}")]
    NoType,
    #[error("its session has expired")]
    Expired,
    #[error("it ended its answer early")]
    EndedEarly,
    #[error("an event has more than {0} bytes")]
    LargeEvent(usize),
    #[error("its answer cannot be resumed: {0}")]
    NotResumed(#[source] Box<Failed>),
}

impl Failed {
    /// Whether the server is gone: each further message would fail, too.
    fn is_end(&self) -> bool {
        match self {
            Self::Http(HttpError::Unreachable { .. }) | Self::Expired => true,
            Self::NotResumed(failed) => failed.is_end(),
            _ => false,
        }
    }
}

/// The connection to one server.
pub(super) struct Http {
    client: HttpClient,
    peer: Arc<Peer>,
    inbox: Inbox,
    handler: Handler,
    agreed: Arc<OnceLock<Protocol>>,
    session: OnceLock<HeaderValue>,
    posts: Semaphore,
    /// Whether an event has begun and not ended.
    is_within_event: Arc<AtomicBool>,
}

impl Http {
    pub(super) fn new(
        client: HttpClient,
        peer: Arc<Peer>,
        inbox: Inbox,
        handler: Handler,
        agreed: Arc<OnceLock<Protocol>>,
        is_within_event: Arc<AtomicBool>,
    ) -> Self {
        let (session, posts) = (OnceLock::new(), Semaphore::new(MAX_POSTS));
        Self { client, peer, inbox, handler, agreed, session, posts, is_within_event }
    }

    /// Sends what is to be sent until the peer is closed, and then ends the session.
    ///
    /// # Cancel safety
    /// Dropping the future ends all requests.
    pub(super) async fn run(self, mut writer: Writer) {
        let http = Arc::new(self);
        let mut open: BTreeMap<u64, AbortHandle> = BTreeMap::new();
        let (mut requests, mut notes, mut stream) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        loop {
            let outgoing = tokio::select! {
                outgoing = writer.next(), if notes.len() < MAX_NOTES => outgoing,
                Some(ended) = requests.join_next() => {
                    match ended {
                        Ok(id) => _ = open.remove(&id),
                        Err(_) => open.retain(|_, task| !task.is_finished()), // it was withdrawn, or has panicked
                    }
                    continue;
                }
                Some(_) = notes.join_next() => continue,
            };
            match outgoing {
                None => break,
                Some(Outgoing::Message(line)) => match (line.id, line.method) {
                    (Some(id), _) => {
                        open.insert(id, requests.spawn(Arc::clone(&http).request(id, line)));
                    }
                    // What follows needs it.
                    (None, Some(INITIALIZED)) => {
                        if let Err(failed) = http.note(line).await {
                            http.peer.end(End::Failed(failed.to_string().into()));
                        }
                        if http.session.get().is_some() {
                            stream.spawn(Arc::clone(&http).listen());
                        }
                    }
                    (None, _) => _ = notes.spawn(Arc::clone(&http).note_or_end(line)),
                },
                Some(Outgoing::Withdrawn(withdrawn)) => {
                    if let Some(task) = open.remove(&withdrawn.id) {
                        task.abort();
                    }
                    // Without a session, the end of its connection is the end of a request.
                    if http.agreed.get().is_some_and(|protocol| !protocol.is_sessionless) {
                        notes.spawn(Arc::clone(&http).note_or_end(withdrawn.line(&MCP)));
                    }
                }
            }
        }
        requests.shutdown().await;
        stream.shutdown().await;
        let ending = async {
            while notes.join_next().await.is_some() {}
            if http.session.get().is_some() {
                let request = http.with_headers(http.client.request(Method::DELETE));
                let _ = http.client.send(request).await; // a server may not support it
            }
        };
        let _ = timeout(END_LIMIT, ending).await;
    }

    /// Sends a request, and handles what the server says until its answer. Returns its id.
    async fn request(self: Arc<Self>, id: u64, line: OutgoingMessage) -> u64 {
        let _ended = Ended { peer: &self.peer, id };
        if let Err(failed) = self.exchange(id, line).await {
            let answer = match &failed {
                // It ends with the connection, and has not reached the server.
                Failed::Http(HttpError::Unreachable { .. }) => None,
                Failed::Http(HttpError::TooLarge { limit, .. }) | Failed::LargeEvent(limit) => {
                    Some(Reply::Unreadable(Reason::TooLong { size: *limit, limit: *limit }))
                }
                failed => Some(Reply::Lost(failed.to_string())),
            };
            if let Some(answer) = answer {
                self.peer.open.end(id, answer);
            }
            if failed.is_end() {
                self.peer.end(End::Failed(failed.to_string().into()));
            }
        }
        id
    }

    async fn exchange(&self, id: u64, line: OutgoingMessage) -> Result<(), Failed> {
        let place = self.posts.acquire().await.ok(); // it is never closed
        let method = line.method;
        let response = self.post(line).await?;
        let status = response.status();
        if !status.is_success() {
            return self.refused(id, method, response).await;
        }
        if method == Some(INITIALIZE)
            && let Some(session) = response.headers().get(SESSION_ID)
        {
            let _ = self.session.set(session.clone()); // there is one `initialize`
        }
        if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT {
            return Err(Failed::NoMessage(self.client.host(), status.as_u16()));
        }
        match media_type(&response).as_deref() {
            Some(EVENTS) => {
                drop(place);
                self.events(id, self.opened(response)).await
            }
            Some(JSON) => {
                let body = self.client.body(response, MCP.max_line).await?;
                self.receive(&body, Some(id)).await;
                if self.peer.open.has(id) { Err(Failed::NotAMessage) } else { Ok(()) }
            }
            other => Err(other_type(other)),
        }
    }

    /// Handles an answer that reports an error: a JSON-RPC error, or only a status.
    async fn refused(&self, id: u64, method: Option<&str>, response: Response) -> Result<(), Failed> {
        let status = response.status();
        let (mut body, mut said) = (Vec::new(), None);
        if media_type(&response).as_deref() == Some(JSON) {
            body = self.client.body(response, MCP.max_line).await?;
            said = self.client.said_in(&body[..body.len().min(MAX_REFUSAL)]);
        } else if status != StatusCode::NOT_FOUND && status != StatusCode::METHOD_NOT_ALLOWED {
            said = self.client.said(response).await;
        }
        let refusal = Some(&body).filter(|body| body.len() <= MAX_REFUSAL);
        let refusal = refusal.and_then(|body| serde_json::from_slice::<Parts<'_>>(body).ok());
        let error = refusal.as_ref().and_then(|refusal| refusal.error).map(Failure::read);
        if method == Some(DISCOVER) && status.is_client_error() {
            // A server without this request refuses it in many ways, and may not name it.
            let error = error.unwrap_or_else(|| Failure::of(format!("HTTP {}", status.as_u16())));
            self.peer.open.end(id, Reply::Error(error));
            return Ok(());
        }
        let named = refusal.as_ref().and_then(|refusal| refusal.id).map(|id| id.get().to_owned());
        let is_expired = match (status, &error) {
            // An answer to the request itself: the server does not know its method.
            (StatusCode::NOT_FOUND, Some(_)) => named != Some(id.to_string()),
            (StatusCode::NOT_FOUND, None) => true,
            // Some servers answer so where the protocol says 404.
            (StatusCode::BAD_REQUEST, Some(error)) => {
                named.is_none() && error.message.to_ascii_lowercase().contains("session")
            }
            _ => false,
        };
        if is_expired && method != Some(INITIALIZE) && self.session.get().is_some() {
            return Err(Failed::Expired);
        }
        // An error without an id has no more words than the refusal.
        if named.is_some() {
            self.receive(&body, None).await;
            if !self.peer.open.has(id) {
                return Ok(());
            }
        }
        if method == Some(INITIALIZE)
            && status.is_client_error()
            && is_http_sse(self.with_headers(self.client.request(Method::GET))).await
        {
            return Err(Failed::OldTransport(self.client.host()));
        }
        let (host, status) = (self.client.host(), status.as_u16());
        Err(HttpError::Status { host, status, said }.into())
    }

    /// Handles the events that answer a request, and opens their stream again until the answer has come.
    async fn events(&self, id: u64, mut events: Events) -> Result<(), Failed> {
        let mut resume = Resume::default();
        loop {
            let read = self.read(&mut events, Some(id), &mut resume).await;
            if !self.peer.open.has(id) {
                let rest = async { while let Ok(Some(_)) = events.next().await {} };
                let _ = timeout(REST, rest).await;
                return Ok(());
            }
            if let Err(EventError::TooLarge(limit)) = read {
                return Err(Failed::LargeEvent(limit));
            }
            if resume.last.is_none() {
                return Err(Failed::EndedEarly);
            }
            let may_pass = |failed: &Failed| matches!(failed, Failed::Http(HttpError::Broken { .. }));
            events = self
                .reopened(&resume, read.is_err(), may_pass)
                .await
                .map_err(|failed| Failed::NotResumed(Box::new(failed)))?;
        }
    }

    /// Takes what belongs to no request: changes of the list of tools, and questions to the person.
    async fn listen(self: Arc<Self>) {
        let mut resume = Resume::default();
        // A server without such a stream refuses.
        let Ok(mut events) = self.get(&resume).await else { return };
        let may_pass = |failed: &Failed| match failed {
            Failed::Http(HttpError::Broken { .. } | HttpError::Unreachable { .. }) => true,
            Failed::Http(HttpError::Status { status, .. }) => *status >= 500,
            _ => false,
        };
        loop {
            let read = self.read(&mut events, None, &mut resume).await;
            if matches!(read, Err(EventError::TooLarge(_))) {
                return;
            }
            match self.reopened(&resume, read.is_err(), may_pass).await {
                Ok(opened) => events = opened,
                Err(_) => return,
            }
        }
    }

    /// Handles events until their stream ends, or the request that they answer is answered.
    async fn read(
        &self,
        events: &mut Events,
        of: Option<u64>,
        resume: &mut Resume,
    ) -> Result<(), EventError> {
        while let Some(event) = events.next().await? {
            resume.retry = event.retry.map(retry).or(resume.retry);
            if let Some(id) = event.id {
                let is_usable = !id.is_empty() && id.len() <= MAX_EVENT_ID;
                resume.last = HeaderValue::from_str(&id).ok().filter(|_| is_usable);
            }
            if !event.data.trim_ascii().is_empty() {
                self.receive(&event.data, of).await;
            }
            if of.is_some_and(|id| !self.peer.open.has(id)) {
                break;
            }
        }
        Ok(())
    }

    /// Opens a stream again that has ended: at once if it broke, else after the time that the server has set. Failures that
    /// may pass are followed by further attempts.
    async fn reopened(
        &self,
        resume: &Resume,
        is_broken: bool,
        may_pass: impl Fn(&Failed) -> bool,
    ) -> Result<Events, Failed> {
        let mut pause = resume.retry.unwrap_or(DEFAULT_RETRY);
        if !is_broken {
            sleep(Duration::from_millis(pause)).await;
        }
        loop {
            match self.get(resume).await {
                Err(failed) if may_pass(&failed) => {
                    sleep(Duration::from_millis(pause)).await;
                    pause = retry(pause.saturating_mul(2));
                }
                opened => return opened,
            }
        }
    }

    async fn get(&self, resume: &Resume) -> Result<Events, Failed> {
        let mut request = self.with_headers(self.client.request(Method::GET)).header(ACCEPT, EVENTS);
        if let Some(last) = &resume.last {
            request = request.header(LAST_EVENT_ID, last);
        }
        let response = self.client.send(request).await?;
        match media_type(&response).as_deref() {
            _ if !response.status().is_success() => Err(self.client.status_error(response).await.into()),
            Some(EVENTS) => Ok(self.opened(response)),
            other => Err(other_type(other)),
        }
    }

    fn opened(&self, response: Response) -> Events {
        Events::new(response, MCP.max_line).telling(Arc::clone(&self.is_within_event))
    }

    async fn receive(&self, text: &[u8], of: Option<u64>) {
        match self.inbox.read(&self.peer.open, text, of) {
            Read::Incoming(message) => self.handler.incoming(message).await,
            Read::Refused(Json::Null, _) | Read::Done | Read::Junk => {}
            Read::Refused(id, error) => self.peer.answer(&id, Err(error), None).await,
        }
    }

    /// Sends a notification or an answer. If the server is gone, the connection ends.
    async fn note_or_end(self: Arc<Self>, line: OutgoingMessage) {
        match self.note(line).await {
            Ok(()) => {}
            Err(failed) if failed.is_end() => self.peer.end(End::Failed(failed.to_string().into())),
            Err(_) => {
                tracing::debug!(host = &*self.client.host(), "an MCP server has not accepted a message")
            }
        }
    }

    async fn note(&self, line: OutgoingMessage) -> Result<(), Failed> {
        let sent = async {
            let response = self.post(line).await?;
            match response.status() {
                status if status.is_success() => Ok(()),
                StatusCode::NOT_FOUND if self.session.get().is_some() => Err(Failed::Expired),
                _ => Err(self.client.status_error(response).await.into()),
            }
        };
        timeout(NOTE_LIMIT, sent).await.unwrap_or_else(|_| Err(Failed::NotAccepted(self.client.host())))
    }

    async fn post(&self, line: OutgoingMessage) -> Result<Response, Failed> {
        let mut request = self
            .client
            .request(Method::POST)
            .header(ACCEPT, format!("{JSON}, {EVENTS}"))
            .header(CONTENT_TYPE, JSON);
        request = with(request, &line.headers);
        // The first messages say themselves which version they have.
        if !matches!(line.method, Some(DISCOVER | INITIALIZE)) {
            request = self.with_headers(request);
            if let Some(method) = line.method.filter(|_| self.agreed.get().is_some_and(Protocol::is_modern)) {
                request = request.header(METHOD, method);
            }
        }
        let body = Announced { body: Some(line.text.into()), written: line.written };
        Ok(self.client.send(request.body(Body::wrap(body))).await?)
    }

    /// Adds the version and the session.
    fn with_headers(&self, mut request: RequestBuilder) -> RequestBuilder {
        let version = self.agreed.get().and_then(|it| HeaderValue::from_str(&it.version).ok());
        if let Some(version) = version {
            request = request.header(PROTOCOL_VERSION, version);
        }
        match self.session.get() {
            Some(session) => request.header(SESSION_ID, session),
            None => request,
        }
    }
}

/// Ends a request when its task ends, also in a panic.
struct Ended<'a> {
    peer: &'a Peer,
    id: u64,
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.peer.open.end(self.id, Reply::Lost(Failed::EndedEarly.to_string()));
    }
}

/// Where a stream is resumed.
#[derive(Default)]
struct Resume {
    /// The id of the last event.
    last: Option<HeaderValue>,
    /// The time that the server has set, in milliseconds.
    retry: Option<u64>,
}

/// The body of a request. It tells when it is written: before that, the server does not run the call.
struct Announced {
    body: Option<Bytes>,
    written: Option<Written>,
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if let Some(written) = self.written.take() {
            written();
        }
        Poll::Ready(self.body.take().map(|body| Ok(http_body::Frame::data(body))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_none()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.body.as_ref().map_or(0, Bytes::len) as u64)
    }
}

/// Adds headers. What a header cannot hold is left out.
fn with(mut request: RequestBuilder, headers: &Headers) -> RequestBuilder {
    for (name, value) in headers {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            request = request.header(name, value);
        }
    }
    request
}

fn other_type(found: Option<&str>) -> Failed {
    found.map_or(Failed::NoType, |found| Failed::OtherType(words::line(found)))
}

/// Returns the time, in milliseconds, after which a stream is opened again whose server asks for this time.
fn retry(asked: u64) -> u64 {
    asked.clamp(RETRY[0], RETRY[1])
}

/// Returns whether a GET of this address opens the stream of HTTP+SSE: its first event names where to post messages
/// ([MCP of 2024-11-05](https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse)).
pub(in crate::adapter::mcp) async fn is_http_sse(get: RequestBuilder) -> bool {
    let asked = async {
        let response = get.header(ACCEPT, EVENTS).send().await.ok()?;
        if !response.status().is_success() || media_type(&response).as_deref() != Some(EVENTS) {
            return None;
        }
        let event = Events::new(response, FIRST_EVENT).next().await.ok()??;
        Some(event.kind?.trim() == "endpoint")
    };
    timeout(FIRST_EVENT_LIMIT, asked).await.ok().flatten().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_not_opened_again_at_once() {
        for (asked, expected) in [(0, 250), (500, 500), (u64::MAX, 60_000)] {
            assert_eq!(retry(asked), expected);
        }
    }
}
