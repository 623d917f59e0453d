//! The connection to a server at an address: streamable HTTP.
//!
//! `rmcp` keeps sessions and streams; this is the HTTP client below it. Its own client parses answers into types that
//! lose data, and follows redirects.

use std::{
    collections::HashMap,
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use reqwest::{
    Body, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue},
};
use rmcp::{
    model::{
        ClientJsonRpcMessage, ClientRequest, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage,
    },
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use sse_stream::{Sse, SseStream};

pub(in crate::adapter::mcp) mod streams;

use self::streams::{Bounded, OpenStream};
use super::{
    address::Address,
    requests::{Answer, MAX_MESSAGE, Requests},
};
use crate::{
    adapter::{
        jsonrpc::{head::Head, id::restored},
        web::public_address::tls,
        words,
    },
    net::{redirect, tls_error::cause},
};

/// The shortest and the longest time, in milliseconds, that a server may set before its stream is opened again.
const RETRY: [u64; 2] = [250, 60_000];

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// How many bytes of a stream are read to find out whether it is that of HTTP+SSE.
const FIRST_EVENT: usize = 1024;

/// How long the first event of such a stream may take.
const FIRST_EVENT_LIMIT: Duration = Duration::from_secs(2);

/// The largest body of a refusal that is read for its reason, in bytes.
const MAX_REFUSAL: usize = 64 << 10;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

type Events = stream::BoxStream<'static, Result<Sse, SseError>>;
type Failure = StreamableHttpError<HttpError>;

/// Why an HTTP request failed. It names the host alone: a path and a query may hold secrets.
#[derive(Debug, thiserror::Error)]
pub(super) enum HttpError {
    #[error("{host} cannot be reached: {reason}")]
    Unreachable { host: Arc<str>, reason: String },
    #[error("{host} requires authorization (HTTP {status}{}); set a bearer token with `bearer_env`", after(.said))]
    Unauthorized { host: Arc<str>, status: u16, said: Option<String> },
    #[error(
        "{host} speaks HTTP+SSE, the transport of MCP before 2025-03-26, which is not supported; use an address at which it \
         speaks streamable HTTP (often /mcp in place of /sse), or a bridge"
    )]
    OldTransport { host: Arc<str> },
    #[error("{host} redirects to {to}, and redirects are not followed; use that address if you trust it")]
    Redirect { host: Arc<str>, to: String },
    #[error("{host} answered the request with HTTP {status} and without a message")]
    NoMessage { host: Arc<str>, status: u16 },
    #[error("{host} answered with HTTP {status}{}", after(.said))]
    Status { host: Arc<str>, status: u16, said: Option<String> },
    #[error("{host} answered with more than {MAX_MESSAGE} bytes")]
    TooLarge { host: Arc<str> },
    #[error("{host} ended the connection before it answered")]
    Broken { host: Arc<str> },
    #[error("the client cannot be set up: {0}")]
    Setup(String),
}

/// Returns the server's words, for the end of a sentence.
fn after(said: &Option<String>) -> String {
    said.as_ref().map(|said| format!(": {said}")).unwrap_or_default()
}

/// The HTTP client of one server.
#[derive(Clone)]
pub(super) struct HttpClient {
    client: reqwest::Client,
    server: Arc<str>,
    host: Arc<str>,
    bearer: Option<HeaderValue>,
    requests: Arc<Requests>,
}

impl HttpClient {
    pub(super) fn new(
        server: Arc<str>,
        address: &Address,
        bearer: Option<&str>,
        requests: Arc<Requests>,
    ) -> Result<Self, HttpError> {
        let setup = |error: &dyn fmt::Display| HttpError::Setup(error.to_string());
        let builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .referer(false)
            .tls_backend_preconfigured(tls().map_err(|error| setup(&error))?)
            .dns_resolver(Arc::new(address.resolver()));
        let builder = if address.is_local() { builder.no_proxy() } else { builder };
        let bearer = bearer.map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
            value.set_sensitive(true);
            Ok(value)
        });
        let bearer = bearer.transpose().map_err(|_: reqwest::header::InvalidHeaderValue| {
            HttpError::Setup("the bearer token has characters that a header cannot have".to_owned())
        })?;
        let client = builder.build().map_err(|error| setup(&error.without_url()))?;
        Ok(Self { client, server, host: address.host().into(), bearer, requests })
    }

    fn with_headers(
        &self,
        mut request: RequestBuilder,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> RequestBuilder {
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(bearer) = &self.bearer {
            request = request.header(reqwest::header::AUTHORIZATION, bearer);
        }
        match session {
            Some(session) => request.header(SESSION_ID, session),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let response = request.send().await.map_err(|error| {
            let is_connecting = error.is_connect();
            let reason = cause(&error.without_url());
            let host = Arc::clone(&self.host);
            if is_connecting { HttpError::Unreachable { host, reason } } else { HttpError::Broken { host } }
        });
        let response = response.map_err(StreamableHttpError::Client)?;
        self.check(response).await
    }

    /// Returns what the body of a refusal says, without the token.
    async fn said(&self, response: Response) -> Option<String> {
        let secrets: Vec<&str> = self.token().into_iter().collect();
        words::of_response(response, &secrets).await
    }

    /// Returns the bearer token.
    fn token(&self) -> Option<&str> {
        let (_, token) = self.bearer.as_ref()?.to_str().ok()?.split_once(' ')?;
        Some(token)
    }

    /// Refuses redirects, and answers that demand a token.
    async fn check(&self, response: Response) -> Result<Response, Failure> {
        let (status, host) = (response.status(), Arc::clone(&self.host));
        let error = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                HttpError::Unauthorized { host, status: status.as_u16(), said: self.said(response).await }
            }
            _ if status.is_redirection() => HttpError::Redirect { host, to: target(&response) },
            _ => return Ok(response),
        };
        Err(StreamableHttpError::Client(error))
    }

    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let id = match message {
            JsonRpcMessage::Request(request) => Some(request.id.clone()),
            _ => None,
        };
        let body = serde_json::to_string(message)?;
        let body = restored(&body).into_owned();
        let announced =
            Announced { body: Some(body.into()), id: id.clone(), requests: Arc::clone(&self.requests) };
        let request =
            self.client.post(uri).header(ACCEPT, format!("{JSON}, {EVENTS}")).header(CONTENT_TYPE, JSON);
        let request = self.with_headers(request, session, headers).body(Body::wrap(announced));
        let response = self.send(request).await?;
        let status = response.status();
        let answer_session =
            response.headers().get(SESSION_ID).and_then(|it| it.to_str().ok()).map(str::to_owned);
        if !status.is_success() {
            return self.refused(uri, message, status, response, answer_session, session.is_some()).await;
        }
        let Some(id) = id else {
            return Ok(StreamableHttpPostResponse::Accepted); // nothing answers it
        };
        if status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT {
            let (host, status) = (Arc::clone(&self.host), status.as_u16());
            return Err(StreamableHttpError::Client(HttpError::NoMessage { host, status }));
        }
        match media_type(&response) {
            Some(EVENTS) => {
                Ok(StreamableHttpPostResponse::Sse(self.events(response, Some(id)), answer_session))
            }
            Some(JSON) => {
                let body = self.body(response).await?;
                match self.requests.receive(&self.server, &body, Some(&id)) {
                    Ok(Some(message)) => Ok(StreamableHttpPostResponse::Json(message, answer_session)),
                    _ => Err(StreamableHttpError::UnexpectedServerResponse(
                        "the answer is not a JSON-RPC message".into(),
                    )),
                }
            }
            other => Err(StreamableHttpError::UnexpectedContentType(other.map(str::to_owned))),
        }
    }

    /// Handles an answer that reports an error: a JSON-RPC error, or only a status.
    async fn refused(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        status: StatusCode,
        response: Response,
        session: Option<String>,
        is_sent_in_session: bool,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let (mut body, mut said) = (Vec::new(), None);
        if media_type(&response) == Some(JSON) {
            let url = response.url().clone();
            body = self.body(response).await?;
            let secrets: Vec<&str> =
                [Some(url.path()), url.query(), self.token()].into_iter().flatten().collect();
            said = words::of_body(&body[..body.len().min(MAX_REFUSAL)], &secrets);
        } else if status != StatusCode::NOT_FOUND && status != StatusCode::METHOD_NOT_ALLOWED {
            said = self.said(response).await;
        }
        let is_discovery = match message {
            JsonRpcMessage::Request(request)
                if matches!(request.request, ClientRequest::DiscoverRequest(_)) =>
            {
                Some(request.id.clone())
            }
            _ => None,
        };
        if let Some(id) = is_discovery.filter(|_| status.is_client_error()) {
            // A server without this request refuses it in many ways. It may not name the request, so the id is set here.
            self.requests.forget_own(&id);
            let small = Some(&body).filter(|body| body.len() <= MAX_REFUSAL);
            let error = match small.and_then(|body| serde_json::from_slice(body).ok()) {
                Some(ServerJsonRpcMessage::Error(error)) => error.error,
                _ => ErrorData::invalid_request(format!("HTTP {}", status.as_u16()), None),
            };
            return Ok(StreamableHttpPostResponse::Json(JsonRpcMessage::error(error, Some(id)), None));
        }
        let is_small = body.len() <= MAX_REFUSAL;
        let is_expired = match status {
            // An answer to the request itself: the server does not know its method.
            StatusCode::NOT_FOUND => !(is_small && is_error_of(message, &body)),
            StatusCode::BAD_REQUEST => is_small && names_no_request_but_session(&body),
            _ => false,
        };
        if is_expired && is_sent_in_session {
            return Err(StreamableHttpError::SessionExpired);
        }
        // An error without an id has no more words than the refusal.
        if Head::of(&body).id().is_some()
            && let Ok(Some(message)) = self.requests.receive(&self.server, &body, None)
        {
            return Ok(StreamableHttpPostResponse::Json(message, session));
        }
        let host = Arc::clone(&self.host);
        let is_opening = matches!(message, JsonRpcMessage::Request(request) if matches!(request.request, ClientRequest::InitializeRequest(_)));
        if is_opening
            && status.is_client_error()
            && is_http_sse(self.with_headers(self.client.get(uri), None, HashMap::new())).await
        {
            return Err(StreamableHttpError::Client(HttpError::OldTransport { host }));
        }
        Err(StreamableHttpError::Client(HttpError::Status { host, status: status.as_u16(), said }))
    }

    async fn body(&self, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        loop {
            let host = || Arc::clone(&self.host);
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > MAX_MESSAGE => {
                    return Err(StreamableHttpError::Client(HttpError::TooLarge { host: host() }));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => return Ok(body),
                Err(_) => return Err(StreamableHttpError::Client(HttpError::Broken { host: host() })),
            }
        }
    }

    /// Returns the events of a response. `id` is the request that it answers.
    fn events(&self, response: Response, id: Option<RequestId>) -> Events {
        let bytes = Bounded::new(response, Arc::clone(&self.requests.is_within_event));
        let (requests, server) = (Arc::clone(&self.requests), Arc::clone(&self.server));
        let mut open = OpenStream::new(Arc::clone(&requests), id.clone());
        let events = SseStream::from_bytes_stream(bytes).map(move |event| {
            let mut event = event?;
            event.retry = event.retry.map(retry);
            open.note(&event);
            if let Some(data) = event.data.take().filter(|data| !data.is_empty()) {
                match requests.receive(&server, data.as_bytes(), id.as_ref()) {
                    Ok(message) => {
                        event.data = message.and_then(|message| serde_json::to_string(&message).ok())
                    }
                    Err(_) => _ = requests.ignored.junk.fetch_add(1, Ordering::Relaxed),
                }
            }
            Ok(event)
        });
        events.boxed()
    }

    async fn open_stream(&self, request: RequestBuilder, id: Option<RequestId>) -> Result<Events, Failure> {
        let response = self.send(request).await?;
        let status = response.status();
        match media_type(&response) {
            _ if status == StatusCode::METHOD_NOT_ALLOWED => {
                Err(StreamableHttpError::ServerDoesNotSupportSse)
            }
            Some(EVENTS) if status.is_success() => Ok(self.events(response, id)),
            other if status.is_success() => {
                Err(StreamableHttpError::UnexpectedContentType(other.map(str::to_owned)))
            }
            _ => {
                let (host, said) = (Arc::clone(&self.host), self.said(response).await);
                Err(StreamableHttpError::Client(HttpError::Status { host, status: status.as_u16(), said }))
            }
        }
    }

    /// Completes the request whose stream could not be resumed. `rmcp` tries again after a connection that broke.
    fn not_resumed(&self, id: Option<&RequestId>, failure: &Failure) {
        let (Some(id), false) =
            (id, matches!(failure, StreamableHttpError::Client(HttpError::Broken { .. })))
        else {
            return;
        };
        self.requests
            .complete(id, Answer::Ended(format!("its answer cannot be resumed: {}", plain(failure)).into()));
        if matches!(failure, StreamableHttpError::Client(HttpError::Unreachable { .. })) {
            self.requests.disconnect();
        }
    }

    /// Completes the request of a message that could not be sent, and notes a server that is gone.
    fn failed(&self, message: &ClientJsonRpcMessage, failure: &Failure) {
        self.requests.fail(plain(failure));
        let (answer, is_gone) = match failure {
            StreamableHttpError::Client(HttpError::Unreachable { .. }) => (Answer::NotSent, true),
            StreamableHttpError::SessionExpired => (Answer::Ended("its session has expired".into()), true),
            StreamableHttpError::Client(HttpError::TooLarge { .. }) => (Answer::TooLarge(MAX_MESSAGE), false),
            other => (Answer::Ended(plain(other).into()), false),
        };
        if let JsonRpcMessage::Request(request) = message {
            self.requests.complete(&request.id, answer);
        }
        if is_gone {
            self.requests.disconnect();
        }
    }
}

impl StreamableHttpClient for HttpClient {
    type Error = HttpError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        self.requests.register(&message);
        let posted = self.post(&uri, &message, session_id.as_deref(), custom_headers).await;
        posted.inspect_err(|failure| self.failed(&message, failure))
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Events, Failure> {
        // The request that the stream answers, if it resumes one.
        let id = last_event_id.as_deref().and_then(|event| self.requests.of_event(event));
        let request = self.client.get(uri.as_ref()).header(ACCEPT, EVENTS);
        let mut request = self.with_headers(request, session_id.as_deref(), custom_headers);
        if let Some(event) = last_event_id {
            request = request.header(LAST_EVENT_ID, event);
        }
        let opened = self.open_stream(request, id.clone()).await;
        opened.inspect_err(|failure| self.not_resumed(id.as_ref(), failure))
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        let request = self.with_headers(self.client.delete(uri.as_ref()), Some(&session_id), custom_headers);
        self.send(request).await.map(drop) // a server may not support it
    }
}

/// The body of a request. It notes when the body is written: before that, the server does not run the call.
struct Announced {
    body: Option<Bytes>,
    id: Option<RequestId>,
    requests: Arc<Requests>,
}

impl http_body::Body for Announced {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if let Some(id) = self.id.take() {
            self.requests.sent(&id);
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

/// Returns the time, in milliseconds, after which a stream is opened again whose server asks for this time.
fn retry(asked: u64) -> u64 {
    asked.clamp(RETRY[0], RETRY[1])
}

/// Describes a failure. The texts of `rmcp` name its types.
fn plain(failure: &Failure) -> String {
    match failure {
        StreamableHttpError::Client(error) => error.to_string(),
        StreamableHttpError::UnexpectedServerResponse(text) => text.to_string(),
        StreamableHttpError::UnexpectedContentType(Some(found)) => {
            format!("its answer is {found}, and neither {JSON} nor {EVENTS}")
        }
        StreamableHttpError::UnexpectedContentType(None) => {
            format!("its answer has no content type, or neither {JSON} nor {EVENTS}")
        }
        StreamableHttpError::SessionExpired => "its session has expired".to_owned(),
        StreamableHttpError::Sse(_) => "its event stream broke".to_owned(),
        StreamableHttpError::Deserialize(error) => format!("its answer cannot be read: {error}"),
        other => other.to_string(),
    }
}

fn media_type(response: &Response) -> Option<&'static str> {
    let header = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = header.split(';').next().unwrap_or_default().trim();
    [JSON, EVENTS].into_iter().find(|known| essence.eq_ignore_ascii_case(known))
}

/// Whether a refusal is a JSON-RPC error that names this request.
fn is_error_of(message: &ClientJsonRpcMessage, body: &[u8]) -> bool {
    let JsonRpcMessage::Request(request) = message else { return false };
    let Ok(refusal) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let id = serde_json::to_value(&request.id).unwrap_or_default();
    refusal["error"].is_object() && !id.is_null() && refusal["id"] == id
}

/// Whether a refusal is about the session: some servers answer 400 where the protocol says 404. It is an error that names
/// no request.
fn names_no_request_but_session(body: &[u8]) -> bool {
    let Ok(refusal) = serde_json::from_slice::<serde_json::Value>(body) else { return false };
    let message = refusal["error"]["message"].as_str().unwrap_or_default();
    refusal["id"].is_null() && message.to_ascii_lowercase().contains("session")
}

/// Describes where a redirect leads to.
pub(in crate::adapter) fn target(response: &Response) -> String {
    let location = response.headers().get(reqwest::header::LOCATION).and_then(|it| it.to_str().ok());
    location.map_or_else(|| "another address".to_owned(), |it| redirect::describe(response.url(), it))
}

/// Returns whether a GET of this address opens the stream of HTTP+SSE: its first event names where to post messages
/// ([MCP of 2024-11-05](https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse)).
pub(in crate::adapter::mcp) async fn is_http_sse(get: RequestBuilder) -> bool {
    let asked = async {
        let mut response = get.header(ACCEPT, EVENTS).send().await.ok()?;
        if !response.status().is_success() || media_type(&response) != Some(EVENTS) {
            return None;
        }
        let mut begun = Vec::new();
        while begun.len() < FIRST_EVENT && !begun.contains(&b'\n') {
            begun.extend_from_slice(&response.chunk().await.ok()??);
        }
        let line = begun.split(|byte| *byte == b'\n').next()?;
        let name = str::from_utf8(line).ok()?.trim_start_matches('\u{feff}').strip_prefix("event:")?;
        Some(name.trim() == "endpoint")
    };
    tokio::time::timeout(FIRST_EVENT_LIMIT, asked).await.ok().flatten().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::adapter::web::public_address::{PROXY, passes_with_proxy};

    fn client(url: &str, bearer: Option<&str>) -> HttpClient {
        let address = Address::read(url).unwrap();
        HttpClient::new("server".into(), &address, bearer, Arc::default()).unwrap()
    }

    #[test]
    fn sec_p3_bearer_token_is_in_no_debug_output() {
        let client = client("https://mcp.example.com/", Some("hunter2"));
        assert!(client.bearer.is_some());
        let request =
            client.with_headers(client.client.post("https://mcp.example.com/"), None, HashMap::new());
        let request = request.build().unwrap();
        assert_eq!(request.headers()["authorization"], "Bearer hunter2");
        assert!(!format!("{:?} {request:?}", client.bearer).contains("hunter2"));
    }

    #[test]
    fn stream_is_not_opened_again_at_once() {
        for (asked, expected) in [(0, 250), (500, 500), (u64::MAX, 60_000)] {
            assert_eq!(retry(asked), expected);
        }
    }

    #[tokio::test]
    async fn sec_a2_server_of_this_machine_is_reached_through_no_proxy() {
        if std::env::var_os(PROXY).is_none() {
            let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", proxy.local_addr().unwrap());
            let name = "adapter::mcp::source::http::tests::sec_a2_server_of_this_machine_is_reached_through_no_proxy";
            let passed = tokio::task::spawn_blocking(move || passes_with_proxy(name, &url)).await.unwrap();
            assert!(passed, "the request did not reach the server");
            return;
        }
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", server.local_addr().unwrap());
        let client = client(&url, None).client;
        tokio::select! {
            accepted = server.accept() => assert!(accepted.is_ok()),
            () = tokio::time::sleep(Duration::from_secs(10)) => panic!("the proxy got the request"),
            _ = client.get(&url).send() => panic!("the proxy got the request"),
        }
    }
}
