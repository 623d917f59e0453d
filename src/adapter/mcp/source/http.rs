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
use tokio::{
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use super::lifecycle::{DISCOVER, INITIALIZE, INITIALIZED, Protocol};
use crate::adapter::{
    jsonrpc::{
        error::{INVALID_PARAMS, METHOD_NOT_FOUND},
        failure::Failure,
        inbox::{Inbox, Incoming, Read},
        message::Parts,
        open::{Reason, Reply},
        peer::{End, Headers, Outgoing, OutgoingMessage, Peer, Writer, Written},
        rules::MCP,
    },
    web::{
        client::{HttpClient, media_type},
        outgoing::{HttpError, after},
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

/// The shortest and the longest pause, in milliseconds, before a stream is opened again.
const RETRY: [u64; 2] = [250, 60_000];

/// The first pause, in milliseconds, if the server sets none.
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

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

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
    #[error("the answer is not a JSON-RPC message{}", after(.0))]
    NotAMessage(Option<String>),
    #[error("its answer {what} {JSON} nor {EVENTS}{}", after(.said))]
    OtherType { what: String, said: Option<String> },
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

    /// Whether a stream may be opened later.
    fn may_pass(&self) -> bool {
        match self {
            Self::Http(HttpError::Status { status, .. }) => *status == 429 || *status >= 500,
            Self::Http(HttpError::Broken { .. }) => true,
            _ => false,
        }
    }
}

/// Takes the requests and notifications of a server.
pub(in crate::adapter::mcp) trait Incomings: Send + Sync + 'static {
    fn incoming(&self, message: Incoming) -> impl Future<Output = ()> + Send;
}

/// The connection to one server.
pub(in crate::adapter::mcp) struct Http<I> {
    client: HttpClient,
    peer: Arc<Peer>,
    inbox: Inbox,
    incomings: I,
    agreed: Arc<OnceLock<Protocol>>,
    session: OnceLock<HeaderValue>,
    posts: Semaphore,
    /// Whether an event has begun and not ended.
    is_within_event: Arc<AtomicBool>,
}

impl<I: Incomings> Http<I> {
    pub(in crate::adapter::mcp) fn new(
        client: HttpClient,
        peer: Arc<Peer>,
        inbox: Inbox,
        incomings: I,
        agreed: Arc<OnceLock<Protocol>>,
        is_within_event: Arc<AtomicBool>,
    ) -> Self {
        let (session, posts) = (OnceLock::new(), Semaphore::new(MAX_POSTS));
        Self { client, peer, inbox, incomings, agreed, session, posts, is_within_event }
    }

    /// Sends what is to be sent until the peer is closed, and then ends the session.
    ///
    /// # Cancel safety
    /// Dropping the future ends all requests.
    pub(in crate::adapter::mcp) async fn run(self, mut writer: Writer) {
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
                Some(Outgoing::Message(line)) => match (line.id, line.method.as_deref()) {
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
        let method = line.method.clone();
        let method = method.as_deref();
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
                match self.peer.open.has(id) {
                    true => {
                        Err(Failed::NotAMessage(self.client.said_in(&body[..body.len().min(MAX_REFUSAL)])))
                    }
                    false => Ok(()),
                }
            }
            _ => Err(self.other_type(response).await),
        }
    }

    /// Returns the failure of an answer of another type, with its words.
    async fn other_type(&self, response: Response) -> Failed {
        let what = match media_type(&response) {
            Some(found) => format!("is {}, and neither", words::line(&found)),
            None => "has no content type, and is neither".to_owned(),
        };
        Failed::OtherType { what, said: self.client.said(response).await }
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
        let refusal = Refusal::read(&body);
        if method == Some(DISCOVER) && status.is_client_error() {
            // A server without this request refuses it in many ways, and may not name it.
            let error = refusal.error.unwrap_or_else(|| Failure::of(format!("HTTP {}", status.as_u16())));
            self.peer.open.end(id, Reply::Error(error));
            return Ok(());
        }
        if method != Some(INITIALIZE) && self.session.get().is_some() && refusal.is_of_session(status, id) {
            return Err(Failed::Expired);
        }
        // An error without an id has no more words than the refusal.
        if refusal.named.is_some() {
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
    async fn events(&self, id: u64, events: Events) -> Result<(), Failed> {
        let (mut resume, mut opened) = (Resume::default(), Ok::<_, Failed>(events));
        loop {
            match opened {
                Ok(mut events) => {
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
                }
                Err(failed) if failed.may_pass() => {}
                Err(failed) => return Err(Failed::NotResumed(Box::new(self.of_stream(failed)))),
            }
            sleep(resume.pause()).await;
            opened = self.get(&resume).await;
        }
    }

    /// Returns why a stream that was open is not opened again.
    fn of_stream(&self, failed: Failed) -> Failed {
        match failed {
            Failed::Http(HttpError::Status { status: 404, .. }) if self.session.get().is_some() => {
                Failed::Expired
            }
            other => other,
        }
    }

    /// Takes what belongs to no request: changes of the list of tools, and questions to the person.
    async fn listen(self: Arc<Self>) {
        let (mut resume, mut was_open) = (Resume::default(), false);
        loop {
            match self.get(&resume).await {
                Ok(mut events) => {
                    was_open = true;
                    let _ = self.read(&mut events, None, &mut resume).await;
                }
                Err(Failed::Http(HttpError::Unreachable { .. })) => {}
                Err(failed) if failed.may_pass() => {}
                // A server without such a stream refuses.
                Err(failed) => match self.of_stream(failed) {
                    Failed::Expired if was_open => {
                        return self.peer.end(End::Failed(Failed::Expired.to_string().into()));
                    }
                    _ => return,
                },
            }
            sleep(resume.pause()).await;
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
            resume.retry = event.retry.or(resume.retry);
            if let Some(id) = event.id {
                let is_usable = !id.is_empty() && id.len() <= MAX_EVENT_ID;
                resume.last = HeaderValue::from_str(&id).ok().filter(|_| is_usable);
            }
            let has_data = !event.data.trim_ascii().is_empty();
            if has_data || event.retry.is_some() {
                resume.in_vain = 0;
            }
            if has_data {
                self.receive(&event.data, of).await;
            }
            if of.is_some_and(|id| !self.peer.open.has(id)) {
                break;
            }
        }
        Ok(())
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
            _ => Err(self.other_type(response).await),
        }
    }

    fn opened(&self, response: Response) -> Events {
        Events::new(response, MCP.max_line).telling(Arc::clone(&self.is_within_event))
    }

    async fn receive(&self, text: &[u8], of: Option<u64>) {
        match self.inbox.read(&self.peer.open, text, of) {
            Read::Incoming(message) => self.incomings.incoming(message).await,
            Read::Refused(None, _) | Read::Done | Read::Junk => {}
            Read::Refused(id, error) => self.peer.refuse(id.as_ref(), error).await,
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
        if !matches!(line.method.as_deref(), Some(DISCOVER | INITIALIZE)) {
            request = self.with_headers(request);
            if let Some(method) =
                line.method.as_deref().filter(|_| self.agreed.get().is_some_and(Protocol::is_modern))
            {
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

/// An answer with another status than a success.
#[derive(Default)]
struct Refusal {
    /// The id that it names.
    named: Option<String>,
    error: Option<Failure>,
}

impl Refusal {
    fn read(body: &[u8]) -> Self {
        let parts = Some(body).filter(|body| body.len() <= MAX_REFUSAL);
        let Some(parts) = parts.and_then(|body| serde_json::from_slice::<Parts<'_>>(body).ok()) else {
            return Self::default();
        };
        let named = parts.id.map(|id| id.get().to_owned());
        Self { named, error: parts.error.map(Failure::read) }
    }

    /// Whether it is about the session, and not about the request: MCP says so with 404, and servers with 400 and a text.
    fn is_of_session(&self, status: StatusCode, request: u64) -> bool {
        let error = self.error.as_ref();
        // Servers repeat the id for an expired session, too.
        let is_of_request = self.named.as_ref() == Some(&request.to_string())
            && matches!(error.and_then(|error| error.code), Some(METHOD_NOT_FOUND | INVALID_PARAMS));
        let names_it = || error.is_some_and(|it| it.message.to_ascii_lowercase().contains("session"));
        !is_of_request && (status == StatusCode::NOT_FOUND || status == StatusCode::BAD_REQUEST && names_it())
    }
}

/// Where and when a stream is opened again.
#[derive(Default)]
struct Resume {
    /// The id of the last event.
    last: Option<HeaderValue>,
    /// The time that the server has set, in milliseconds.
    retry: Option<u64>,
    /// How often it was opened since the server has said anything.
    in_vain: u32,
}

impl Resume {
    /// Returns the pause before the stream is opened again, however it has ended. It doubles while the server says nothing.
    fn pause(&mut self) -> Duration {
        let first = self.retry.unwrap_or(DEFAULT_RETRY).max(RETRY[0]);
        let pause = first.saturating_mul(1 << self.in_vain.min(16)).min(RETRY[1]);
        self.in_vain = self.in_vain.saturating_add(1);
        Duration::from_millis(pause)
    }
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

/// Returns whether a GET of this address opens the stream of HTTP+SSE: its first event names where to post messages
/// ([MCP of 2024-11-05](https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse)).
async fn is_http_sse(get: RequestBuilder) -> bool {
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
        for (asked, expected) in [
            (None, [1_000, 2_000, 4_000]),
            (Some(0), [250, 500, 1_000]),
            (Some(500), [500, 1_000, 2_000]),
            (Some(u64::MAX), [60_000; 3]),
        ] {
            let mut resume = Resume { retry: asked, ..Resume::default() };
            assert_eq!(expected.map(|_| resume.pause()), expected.map(Duration::from_millis));
        }
        let mut resume = Resume { in_vain: u32::MAX - 1, ..Resume::default() };
        assert_eq!(resume.pause(), Duration::from_secs(60));
    }
}
