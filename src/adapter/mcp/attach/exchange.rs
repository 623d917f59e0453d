//! The server: one HTTP request for each message of the host (MCP's "Streamable HTTP").

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use reqwest::{
    Method, RequestBuilder, Response, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue},
};
use tokio::{
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::message::{self, HostMessage, Kind, answers, chosen_version};
use crate::adapter::{
    jsonrpc::{
        error::{INTERNAL, refusal},
        id::Id,
        rules::MCP,
    },
    mcp::source::{
        address::Address,
        http::{EVENTS, JSON, METHOD, PROTOCOL_VERSION, SESSION_ID, is_http_sse},
    },
    web::{
        client::{HttpClient, media_type},
        outgoing::HttpError,
        sse::Events,
    },
};

/// How long a notification may take to be accepted.
const LIMIT: Duration = Duration::from_secs(10);

/// The pause before a stream of notifications that has ended is opened again.
const PAUSE: Duration = Duration::from_secs(1);

const NAME: HeaderName = HeaderName::from_static("mcp-name");

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
    client: HttpClient,
    session: Mutex<Session>,
}

/// What a response has, as texts.
enum Texts {
    Events(Box<Events>),
    One(String),
}

impl Server {
    /// Returns the server, or says why the token cannot be used.
    pub(super) fn new(address: &Address, bearer: Option<&str>) -> Result<Self, String> {
        Ok(Self { client: address.client(bearer)?, session: Mutex::default() })
    }

    /// Sends a request, and passes on what the server says until its answer. `heard` is cancelled when the server has the
    /// request, `given_up` when the host has cancelled it: then it needs no answer.
    pub(super) async fn request(
        &self,
        message: &HostMessage,
        heard: &CancellationToken,
        given_up: &CancellationToken,
        out: &mpsc::Sender<String>,
    ) -> Result<(), Gone> {
        let is_opening = matches!(&message.kind, Kind::Request { method, .. } if method == "initialize");
        let failed = |text: &str| refusal(message.id.as_ref(), INTERNAL, text);
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
            if let Some(text) = self.answer_to(message.id.as_ref(), response).await {
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
        let mut failure = format!("{} ended the connection before it answered", self.client.host());
        let mut texts = match media_type(&response).as_deref() {
            Some(EVENTS) if response.status().is_success() => Some(events(response)),
            Some(JSON) => match self.body(response).await {
                Ok(body) => Some(Texts::One(body)),
                Err(text) => {
                    failure = text;
                    None
                }
            },
            _ => {
                let is_refused = is_opening && response.status().is_client_error();
                failure = self.client.status_error(response).await.to_string();
                if is_refused {
                    failure += &self.hint_about_the_transport().await;
                }
                None
            }
        };
        let mut is_answered = false;
        while let Some(mut text) = next(&mut texts).await {
            if answers(&text, message.id.as_ref()) {
                text = message::addressed(text, message.id.as_ref());
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
    pub(super) async fn notify(&self, message: &HostMessage) -> Result<(), Gone> {
        let sending = async {
            let response = self.send(self.post(message)).await?;
            let is_unknown = response.status() == StatusCode::NOT_FOUND;
            // Without a session, an error in JSON is about the message: the server does not know it.
            if is_unknown && (self.has_session() || media_type(&response).as_deref() != Some(JSON)) {
                return Err(self.not_found());
            }
            Ok(()) // nothing answers it
        };
        match timeout(LIMIT, sending).await {
            Ok(sent) => sent,
            Err(_) => Err(Gone(format!("{} does not answer", self.client.host()))),
        }
    }

    /// Passes on what belongs to no request: changes of the list of tools.
    pub(super) async fn listen(self: Arc<Self>, out: mpsc::Sender<String>) -> Result<(), Gone> {
        loop {
            let request = self.with_headers(self.client.request(Method::GET).header(ACCEPT, EVENTS), None);
            let response = self.send(request).await?;
            if response.status() == StatusCode::NOT_FOUND && self.has_session() {
                return Err(self.not_found());
            }
            if !response.status().is_success() || media_type(&response).as_deref() != Some(EVENTS) {
                return Ok(()); // the server has no such stream
            }
            let mut texts = Some(events(response));
            while let Some(text) = next(&mut texts).await {
                let _ = out.send(message::line(&text)).await;
            }
            sleep(PAUSE).await;
        }
    }

    /// Ends the session.
    pub(super) async fn close(&self) {
        if self.has_session() {
            let request = self.with_headers(self.client.request(Method::DELETE), None);
            let _ = timeout(PAUSE, request.send()).await; // a server may not support it
        }
    }

    fn has_session(&self) -> bool {
        self.session().id.is_some()
    }

    /// Says that the address speaks the transport of the oldest hosts, if it does.
    async fn hint_about_the_transport(&self) -> String {
        let get = self.with_headers(self.client.request(Method::GET), None);
        match is_http_sse(get).await {
            true => "; it speaks HTTP+SSE, the transport of MCP before 2025-03-26, which is not supported"
                .to_owned(),
            false => String::new(),
        }
    }

    fn not_found(&self) -> Gone {
        Gone(format!("{} has no such session or path (HTTP 404)", self.client.host()))
    }

    /// Returns the body of a refusal that is an answer to this request.
    async fn answer_to(&self, id: Option<&Id>, response: Response) -> Option<String> {
        if media_type(&response).as_deref() != Some(JSON) {
            return None;
        }
        let text = self.body(response).await.ok()?;
        // An error that names no request is about the session.
        (answers(&text, id) && message::names(&text, id)).then_some(text)
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn post(&self, message: &HostMessage) -> RequestBuilder {
        let mut request = self
            .client
            .request(Method::POST)
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

    /// Adds the session. A request that names its protocol version has none.
    fn with_headers(&self, mut request: RequestBuilder, version: Option<&str>) -> RequestBuilder {
        let session = self.session().clone();
        if let Some(version) = version.or(session.version.as_deref()) {
            request = request.header(PROTOCOL_VERSION, version);
        }
        match session.id {
            Some(id) if version.is_none() => request.header(SESSION_ID, id),
            _ => request,
        }
    }

    /// Sends a request. What 404 means depends on the request.
    async fn send(&self, request: RequestBuilder) -> Result<Response, Gone> {
        self.client.send(request).await.map_err(|error| {
            Gone(match error {
                HttpError::Broken { host, reason } => format!("{host} cannot be reached: {reason}"),
                HttpError::Unauthorized { host, status, .. } => {
                    format!("{host} refuses the bearer token (HTTP {status})")
                }
                error => error.to_string(),
            })
        })
    }

    async fn body(&self, response: Response) -> Result<String, String> {
        let body = self.client.body(response, MCP.max_line).await.map_err(|error| error.to_string())?;
        let body = String::from_utf8(body).ok().filter(|body| body.trim_start().starts_with('{'));
        body.ok_or_else(|| format!("{} answered with something other than a message", self.client.host()))
    }
}

fn events(response: Response) -> Texts {
    Texts::Events(Box::new(Events::new(response, MCP.max_line)))
}

/// Returns the next text. A stream that ends or breaks has no other.
async fn next(texts: &mut Option<Texts>) -> Option<String> {
    match texts.take()? {
        Texts::One(text) => Some(text),
        Texts::Events(mut events) => loop {
            let event = events.next().await.ok()??;
            let text = String::from_utf8_lossy(&event.data);
            if !text.trim().is_empty() {
                let text = text.into_owned();
                *texts = Some(Texts::Events(events));
                return Some(text);
            }
        },
    }
}
