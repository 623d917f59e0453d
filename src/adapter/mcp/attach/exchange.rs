//! The server: one HTTP request for each message of the host (MCP's "Streamable HTTP").

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, future, stream};
use reqwest::{
    Client, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue},
};
use serde_json::Value as Json;
use sse_stream::SseStream;
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::message::{self, Kind, Message, answers, chosen_version};
use crate::{
    adapter::{
        jsonrpc::error::{INTERNAL, refusal},
        mcp::source::{
            address::Address,
            http::{is_http_sse, streams::Bounded, target},
            requests::MAX_MESSAGE,
        },
        web::public_address::tls,
        words,
    },
    net::tls_error::cause,
};

/// How long a connection may take to be made, and a notification to be accepted.
const LIMIT: Duration = Duration::from_secs(10);

/// The pause before a stream of notifications that has ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const PROTOCOL_VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// Why the server serves no more.
#[derive(Debug)]
pub(super) struct Gone(pub(super) String);

/// What `initialize` has agreed on.
#[derive(Clone, Default)]
struct Session {
    id: Option<HeaderValue>,
    version: Option<String>,
}

pub(super) struct Server {
    client: Client,
    url: String,
    host: String,
    bearer: Option<HeaderValue>,
    session: Mutex<Session>,
}

impl Server {
    /// Returns the server, or says why the token cannot be used.
    pub(super) fn new(address: &Address, bearer: Option<&str>) -> Result<Self, String> {
        let bearer = bearer.map(|token| {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        if bearer == Some(None) {
            return Err("the bearer token has characters that a header cannot have".to_owned());
        }
        let builder = Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(LIMIT)
            .referer(false)
            .tls_backend_preconfigured(tls().map_err(|error| error.to_string())?)
            .dns_resolver(Arc::new(address.resolver()));
        let builder = if address.is_local() { builder.no_proxy() } else { builder };
        let client = builder.build().map_err(|error| error.without_url().to_string())?;
        let (url, host) = (address.url().to_owned(), address.host().to_owned());
        Ok(Self { client, url, host, bearer: bearer.flatten(), session: Mutex::default() })
    }

    /// Sends a request, and passes on what the server says until its answer. `heard` is cancelled when the server has the
    /// request, `given_up` when the host has cancelled it: then it needs no answer.
    pub(super) async fn request(
        &self,
        message: &Message,
        heard: &CancellationToken,
        given_up: &CancellationToken,
        out: &mpsc::Sender<String>,
    ) -> Result<(), Gone> {
        let is_opening = matches!(&message.kind, Kind::Request { method, .. } if method == "initialize");
        let failed = |text: &str| refusal(Some(&message.id), INTERNAL, text).to_string();
        let response = match self.send(self.post(message)).await {
            Ok(response) => response,
            Err(gone) => {
                let _ = out.send(failed(&gone.0)).await;
                return Err(gone);
            }
        };
        if response.status() == StatusCode::NOT_FOUND {
            heard.cancel();
            // A server without a session answers an unknown method so.
            if let Some(text) = self.answer_to(&message.id, response).await {
                let _ = out.send(message::line(&text)).await;
                return Ok(());
            }
            let mut gone = self.not_found();
            if is_opening {
                gone.0 += &self.hint_about_the_transport().await;
            }
            let _ = out.send(failed(&gone.0)).await;
            return Err(gone);
        }
        heard.cancel();
        if is_opening && response.status().is_success() {
            *self.session() = Session { id: response.headers().get(SESSION_ID).cloned(), version: None };
        }
        let mut failure = format!("{} ended the connection before it answered", self.host);
        let mut texts = match media_type(&response) {
            Some(EVENTS) if response.status().is_success() => events(response),
            Some(JSON) => match self.body(response).await {
                Ok(body) => stream::iter([body]).boxed(),
                Err(text) => {
                    failure = text;
                    stream::empty().boxed()
                }
            },
            _ => {
                failure = format!("{} answered with HTTP {}", self.host, response.status().as_u16());
                let is_refused = is_opening && response.status().is_client_error();
                if let Some(said) = self.said(response).await {
                    failure = format!("{failure}: {said}");
                }
                if is_refused {
                    failure += &self.hint_about_the_transport().await;
                }
                stream::empty().boxed()
            }
        };
        let mut is_answered = false;
        while let Some(mut text) = texts.next().await {
            if answers(&text, &message.id) {
                text = message::addressed(text, &message.id);
                is_answered = true;
                if is_opening {
                    self.session().version = chosen_version(&text);
                }
            }
            let _ = out.send(message::line(&text)).await;
        }
        if !is_answered && !given_up.is_cancelled() {
            let _ = out.send(failed(&failure)).await;
        }
        Ok(())
    }

    /// Sends a notification, or the host's answer to a request.
    pub(super) async fn notify(&self, message: &Message) -> Result<(), Gone> {
        let sending = async {
            let response = self.send(self.post(message)).await?;
            let is_unknown = response.status() == StatusCode::NOT_FOUND;
            // Without a session, an error in JSON is about the message: the server does not know it.
            if is_unknown && (self.has_session() || media_type(&response) != Some(JSON)) {
                return Err(self.not_found());
            }
            Ok(()) // nothing answers it
        };
        match timeout(LIMIT, sending).await {
            Ok(sent) => sent,
            Err(_) => Err(Gone(format!("{} does not answer", self.host))),
        }
    }

    /// Passes on what belongs to no request: changes of the list of tools.
    pub(super) async fn listen(self: Arc<Self>, out: mpsc::Sender<String>) -> Result<(), Gone> {
        loop {
            let request = self.with_headers(self.client.get(&self.url).header(ACCEPT, EVENTS), None);
            let response = self.send(request).await?;
            if response.status() == StatusCode::NOT_FOUND && self.has_session() {
                return Err(self.not_found());
            }
            if !response.status().is_success() || media_type(&response) != Some(EVENTS) {
                return Ok(()); // the server has no such stream
            }
            let mut texts = events(response);
            while let Some(text) = texts.next().await {
                let _ = out.send(message::line(&text)).await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Ends the session.
    pub(super) async fn close(&self) {
        if self.has_session() {
            let request = self.with_headers(self.client.delete(&self.url), None);
            let _ = timeout(PAUSE, request.send()).await; // a server may not support it
        }
    }

    fn has_session(&self) -> bool {
        self.session().id.is_some()
    }

    /// Says that the address speaks the transport of the oldest hosts, if it does.
    async fn hint_about_the_transport(&self) -> String {
        let get = self.with_headers(self.client.get(&self.url), None);
        match is_http_sse(get).await {
            true => "; it speaks HTTP+SSE, the transport of MCP before 2025-03-26, which is not supported"
                .to_owned(),
            false => String::new(),
        }
    }

    fn not_found(&self) -> Gone {
        Gone(format!("{} has no such session or path (HTTP 404)", self.host))
    }

    /// Returns the body of a refusal that is an answer to this request.
    async fn answer_to(&self, id: &Json, response: Response) -> Option<String> {
        if media_type(&response) != Some(JSON) {
            return None;
        }
        let text = self.body(response).await.ok()?;
        // An error that names no request is about the session.
        (answers(&text, id) && message::names(&text, id)).then_some(text)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, message: &Message) -> RequestBuilder {
        let mut request = self
            .client
            .post(&self.url)
            .header(ACCEPT, format!("{JSON}, {EVENTS}"))
            .header(CONTENT_TYPE, JSON)
            .body(message.text.clone());
        if let Some(method) = message.method().and_then(|it| HeaderValue::from_str(it).ok())
            && message.version.is_some()
        {
            request = request.header(METHOD, method);
            if let Some(name) = message.name.as_deref().and_then(|it| HeaderValue::from_str(it).ok()) {
                request = request.header(NAME, name);
            }
        }
        self.with_headers(request, message.version.as_deref())
    }

    /// Adds the token and the session. A request that names its protocol version has none.
    fn with_headers(&self, mut request: RequestBuilder, version: Option<&str>) -> RequestBuilder {
        if let Some(bearer) = &self.bearer {
            request = request.header(AUTHORIZATION, bearer);
        }
        let session = self.session().clone();
        if let Some(version) = version.or(session.version.as_deref()) {
            request = request.header(PROTOCOL_VERSION, version);
        }
        match session.id {
            Some(id) if version.is_none() => request.header(SESSION_ID, id),
            _ => request,
        }
    }

    /// Returns what the body of a refusal says, without the token.
    async fn said(&self, response: Response) -> Option<String> {
        let bearer = self.bearer.as_ref().and_then(|it| it.to_str().ok()).and_then(|it| it.split_once(' '));
        let secrets: Vec<&str> = bearer.into_iter().map(|(_, token)| token).collect();
        words::of_response(response, &secrets).await
    }

    /// Sends a request. What 404 means depends on the request.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Gone> {
        let response = request.send().await.map_err(|error| {
            let reason = cause(&error.without_url());
            Gone(format!("{} cannot be reached: {reason}", self.host))
        })?;
        let host = &self.host;
        match response.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Err(Gone(format!("{host} refuses the bearer token (HTTP {})", status.as_u16())))
            }
            status if status.is_redirection() => {
                let to = target(&response);
                Err(Gone(format!(
                    "{host} redirects to {to}, and redirects are not followed; use that address if you trust it"
                )))
            }
            _ => Ok(response),
        }
    }

    async fn body(&self, mut response: Response) -> Result<String, String> {
        let mut body = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if body.len() + chunk.len() > MAX_MESSAGE => {
                    return Err(format!("{} answered with more than {MAX_MESSAGE} bytes", self.host));
                }
                Ok(Some(chunk)) => body.extend_from_slice(&chunk),
                Ok(None) => break,
                Err(_) => return Err(format!("{} ended the connection before it answered", self.host)),
            }
        }
        let body = String::from_utf8(body).ok().filter(|body| body.trim_start().starts_with('{'));
        body.ok_or_else(|| format!("{} answered with something other than a message", self.host))
    }
}

/// Returns the data of each event until the stream ends or breaks.
fn events(response: Response) -> stream::BoxStream<'static, String> {
    let events = SseStream::from_bytes_stream(Bounded::new(response, Arc::default()));
    let data = events.take_while(|event| future::ready(event.is_ok())).filter_map(|event| {
        let data = event.ok().and_then(|event| event.data);
        future::ready(data.filter(|data| !data.trim().is_empty()))
    });
    data.boxed()
}

fn media_type(response: &Response) -> Option<&'static str> {
    let header = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = header.split(';').next().unwrap_or_default().trim();
    [JSON, EVENTS].into_iter().find(|known| essence.eq_ignore_ascii_case(known))
}
