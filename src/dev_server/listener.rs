//! Accepts TCP connections. Each carries one request, which becomes a WebSocket or is answered and closed.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use livekit_token::Claims;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, oneshot},
    task::JoinSet,
    time,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use super::{
    access::{Access, Denied},
    clock,
    event_loop::{Joining, ServerInput, SignalSession, WorkerSession},
    grant,
    http::{self, MAX_BODY, Request},
    limits::{self, MAX_NAME, Refusal},
    room::check_config,
    signal,
    twirp::{self, Service, ServiceCall},
    worker,
};
use crate::{
    livekit::AccessKey,
    net::{
        connections::{Connection, HalfOpen, WRITE_LIMIT, WriteLimited},
        host,
    },
};

/// The maximum number of concurrent requests and WebSockets; others are refused.
const MAX_CONNECTIONS: usize = 256;
/// The maximum number of connections without a complete request. Beyond it the oldest is closed, so that idle connections
/// cannot block others.
const MAX_HALF_OPEN: usize = 32;
/// The time that connections have to end after the server stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum size of the rest of a malformed request that is read, in bytes.
const MAX_REST: u64 = 64 * 1024;
/// The pause after a failed `accept`, for example when no socket is available.
const PAUSE: Duration = Duration::from_millis(50);

/// The listener for signaling and API requests.
pub(super) struct Listener {
    pub(super) listener: TcpListener,
    pub(super) key: AccessKey,
    /// Which requests are accepted.
    pub(super) access: Access,
    pub(super) inputs: mpsc::Sender<ServerInput>,
}

/// The state shared by all connections.
struct Shared {
    key: AccessKey,
    access: Access,
    inputs: mpsc::Sender<ServerInput>,
    slots: Arc<Semaphore>,
}

impl Listener {
    /// Accepts connections while `server` runs, and then lets them deliver its last messages.
    pub(super) async fn run(self, server: impl Future<Output = ()>) {
        let Self { listener, key, access, inputs } = self;
        let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let shared = Arc::new(Shared { key, access, inputs, slots });
        let mut connections = JoinSet::new();
        let half_open = HalfOpen::new(MAX_HALF_OPEN);
        let accepting = async {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        connections.spawn(serve(stream, from, half_open.enter(), shared.clone()));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "accepting a connection failed");
                        time::sleep(PAUSE).await;
                    }
                }
                while connections.try_join_next().is_some() {}
            }
        };
        tokio::select! {
            () = accepting => {}
            () = server => {}
        }
        drop(listener);
        let all = async { while connections.join_next().await.is_some() {} };
        // Connections that are still open are aborted.
        let _ = time::timeout(CLOSE_TIMEOUT, all).await;
    }
}

async fn serve(stream: TcpStream, from: SocketAddr, pending: Connection, shared: Arc<Shared>) {
    // The listener is bound to loopback, so a remote peer means a misrouted connection.
    if !host::is_own(from.ip()) || stream.set_nodelay(true).is_err() {
        return;
    }
    let mut stream = WriteLimited::new(stream, WRITE_LIMIT);
    let request = tokio::select! {
        biased;
        request = Request::read(&mut stream) => request,
        () = pending.gave_way() => return,
    };
    drop(pending);
    let slot = shared.slots.clone().try_acquire_owned();
    let handled = match request {
        Ok(request) => handle(&mut stream, &request, slot.is_ok(), &shared).await,
        Err(error) => refuse_malformed(&mut stream, error).await,
    };
    if let Err(error) = handled {
        match error {
            Served::Upgraded(Upgrade::Signal(entry)) => signal::carry(stream, entry, &shared.inputs).await,
            Served::Upgraded(Upgrade::Worker(session)) => {
                worker::carry(stream, session, &shared.inputs).await;
            }
            Served::Failed(error) => tracing::debug!(%from, %error, "a request could not be answered"),
        }
    }
}

type Stream = WriteLimited<TcpStream>;

/// Why a request gets no ordinary response.
enum Served {
    /// The request became a WebSocket.
    Upgraded(Upgrade),
    /// The request could not be read or answered.
    Failed(io::Error),
}

impl From<io::Error> for Served {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// Answers what is not a request, and returns why it is not.
async fn refuse_malformed(stream: &mut Stream, error: io::Error) -> Result<(), Served> {
    if error.kind() == io::ErrorKind::InvalidData {
        let why = format!("this development server does not read the request: {error}");
        http::answer(stream, None, 400, "text/plain", why.as_bytes()).await?;
        http::drain(stream, MAX_REST).await;
    }
    Err(error.into())
}

async fn handle(
    stream: &mut Stream,
    request: &Request,
    has_slot: bool,
    shared: &Shared,
) -> Result<(), Served> {
    let (origin, answer) = match shared.access.check(request) {
        Ok(origin) if !has_slot => (origin, Err(Refusal(503, "the server has too many connections"))),
        Ok(Some(origin)) if is_preflight(request) => {
            return Ok(http::answer_preflight(stream, origin, request).await?);
        }
        Ok(origin) => (origin, respond(request, shared).await),
        Err(Denied { refusal, warning }) => {
            // Sending fails only if the server has ended.
            let _ = shared.inputs.send(ServerInput::Warn(warning)).await;
            (None, Err(refusal))
        }
    };
    let (status, kind, body) = match answer {
        Ok(Response::Plain(text)) => (200, "text/plain", text.as_bytes().to_vec()),
        Ok(Response::Service(answer)) => (answer.status, answer.kind, answer.body),
        Ok(Response::Upgrade(upgrade)) => {
            let accept =
                derive_accept_key(request.header("sec-websocket-key").unwrap_or_default().as_bytes());
            let head = format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            );
            // If this fails, the task of the connection notices and reports the end to the server.
            let _ = stream.write_all(head.as_bytes()).await;
            return Err(Served::Upgraded(upgrade));
        }
        Err(Refusal(status, why)) => (status, "text/plain", why.as_bytes().to_vec()),
    };
    http::answer(stream, origin, status, kind, &body).await?;
    if let Some([_, rest]) = request.too_large {
        http::drain(stream, rest).await;
    }
    Ok(())
}

/// Returns whether a page asks what it may request.
fn is_preflight(request: &Request) -> bool {
    request.method == "OPTIONS" && request.header("access-control-request-method").is_some()
}

enum Response {
    Plain(&'static str),
    Service(twirp::ServiceResponse),
    Upgrade(Upgrade),
}

/// What a connection carries after its request.
enum Upgrade {
    Signal(SignalSession),
    Worker(WorkerSession),
}

const NOT_FOUND: Refusal = Refusal(404, "page not found");

const GONE: Refusal = Refusal(503, "the server is shutting down");

async fn respond(request: &Request, shared: &Shared) -> Result<Response, Refusal> {
    let Shared { key, inputs, .. } = shared;
    if let Some([size, _]) = request.too_large {
        return too_large(request.path(), size);
    }
    let claims = match request.token() {
        Err(()) => return Err(Refusal(401, "invalid authorization header. Must start with Bearer ")),
        Ok(None) => None,
        Ok(Some(token)) => {
            Some(grant::verify(key, &token, clock::unix_seconds()).map_err(|why| Refusal(401, why))?)
        }
    };
    let path = request.path();
    if let Some(target) = twirp::target(path) {
        return call(request, target, claims, inputs).await.map(Response::Service);
    }
    match (request.method.as_str(), path) {
        ("GET", "/") => Ok(Response::Plain("OK")),
        ("GET", "/rtc/validate" | "/rtc/v1/validate") => {
            joining(request, claims).map(|_| Response::Plain("success"))
        }
        ("GET", "/rtc" | "/rtc/v1") if is_upgrade(request) => {
            let who = Box::new(joining(request, claims)?);
            let (reply, entry) = oneshot::channel();
            inputs.send(ServerInput::Join(who, reply)).await.map_err(|_| GONE)?;
            entry.await.map_err(|_| GONE)?.map(|entry| Response::Upgrade(Upgrade::Signal(entry)))
        }
        ("GET", "/agent") if is_upgrade(request) => {
            claims.filter(|claims| claims.video.agent).ok_or(Refusal(401, "permissions denied"))?;
            let (reply, session) = oneshot::channel();
            inputs.send(ServerInput::Worker(reply)).await.map_err(|_| GONE)?;
            session.await.map_err(|_| GONE)?.map(|session| Response::Upgrade(Upgrade::Worker(session)))
        }
        _ => Err(NOT_FOUND),
    }
}

/// Refuses a request whose body exceeds the limit.
fn too_large(path: &str, size: u64) -> Result<Response, Refusal> {
    if twirp::target(path).is_none() {
        return Err(Refusal(413, "the body is too large: the limit is 262144 bytes"));
    }
    let why = format!("the body has {size} bytes, and the limit of this development server is {MAX_BODY}");
    Ok(Response::Service(twirp::ServiceResponse::error(413, "resource_exhausted", &why)))
}

fn bad_route(why: &str) -> twirp::ServiceResponse {
    twirp::ServiceResponse::error(404, "bad_route", why)
}

async fn call(
    request: &Request,
    (service, method): (Service, &str),
    claims: Option<Claims>,
    inputs: &mpsc::Sender<ServerInput>,
) -> Result<twirp::ServiceResponse, Refusal> {
    let kind = request.header("content-type").unwrap_or_default();
    let json = match kind.split(';').next().unwrap_or_default().trim() {
        _ if request.method != "POST" => return Ok(bad_route("a method is called with POST")),
        "application/json" => true,
        "application/protobuf" => false,
        _ => return Ok(bad_route("the Content-Type is application/json or application/protobuf")),
    };
    let grants = claims.map(|claims| claims.video);
    let (method, body) = (method.to_owned(), request.body.clone());
    let call = ServiceCall { service, grants, method, json, body };
    let (reply, answer) = oneshot::channel();
    inputs.send(ServerInput::ServiceCall(call, reply)).await.map_err(|_| GONE)?;
    answer.await.map_err(|_| GONE)
}

fn is_upgrade(request: &Request) -> bool {
    let is = |name: &str, wanted: &str| {
        request
            .header(name)
            .is_some_and(|value| value.split(',').any(|it| it.trim().eq_ignore_ascii_case(wanted)))
    };
    is("upgrade", "websocket") && is("connection", "upgrade") && request.header("sec-websocket-key").is_some()
}

/// Reads the claims and the join request, which older clients spread over the parameters of `/rtc`.
fn joining(request: &Request, claims: Option<Claims>) -> Result<Joining, Refusal> {
    if claims.is_none() {
        return Err(Refusal(401, "permissions denied"));
    }
    let refused = |why| Refusal(400, why);
    let wrapped = request.query("join_request").filter(|text| !text.is_empty());
    // As in livekit-server, a client that sends a join request uses one peer connection.
    let single_peer_connection = wrapped.is_some();
    let join = match wrapped {
        Some(text) => signal::join_request(&text).map_err(refused)?,
        None if request.path().starts_with("/rtc/v1") => return Err(refused("join_request is required")),
        None => signal::older_join_request(|name| request.query(name)).map_err(refused)?,
    };
    let mut claims = check(claims)?;
    let own = &join.participant_attributes;
    if !join.metadata.is_empty() || !own.is_empty() {
        if claims.video.can_update_own_metadata != Some(true) {
            return Err(Refusal(401, "permissions denied"));
        }
        if !join.metadata.is_empty() {
            claims.metadata.clone_from(&join.metadata);
        }
        let set = own.iter().filter(|(_, value)| !value.is_empty());
        claims.attributes.extend(set.map(|(key, value)| (key.clone(), value.clone())));
    }
    limits::check(&claims.metadata, &claims.attributes)?;
    Ok(Joining { claims, request: join, single_peer_connection })
}

/// Checks that the token allows joining.
fn check(claims: Option<Claims>) -> Result<Claims, Refusal> {
    let claims = claims.filter(|it| it.video.room_join).ok_or(Refusal(401, "permissions denied"))?;
    for (text, empty, long) in [
        (&claims.sub, "identity cannot be empty", "identity is too long"),
        (&claims.video.room, "no room name", "room name is too long"),
    ] {
        if text.is_empty() || text.len() > MAX_NAME {
            return Err(Refusal(400, if text.is_empty() { empty } else { long }));
        }
    }
    if let Some(config) = &claims.room_config {
        check_config(config).map_err(|why| Refusal(400, why))?;
    }
    Ok(claims)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use base64::{Engine as _, engine::general_purpose::URL_SAFE};
    use flate2::{Compression as Level, write::GzEncoder};
    use livekit_protocol::{JoinRequest, WrappedJoinRequest, wrapped_join_request::Compression};
    use livekit_token::VideoGrants;
    use prost::Message as _;

    use super::*;

    /// Joins with one attribute of the token and one of the request, and returns the total size.
    async fn asked(of_the_token: usize, asked: usize) -> Result<usize, Refusal> {
        let attribute = |name: &str, size: usize| [(name.to_owned(), "x".repeat(size))].into();
        let join =
            JoinRequest { participant_attributes: attribute("asked0", asked - 6), ..Default::default() };
        let mut gzip = GzEncoder::new(Vec::new(), Level::default());
        gzip.write_all(&join.encode_to_vec()).unwrap();
        let (compression, join_request) = (Compression::Gzip.into(), gzip.finish().unwrap());
        let wrapped = URL_SAFE.encode(WrappedJoinRequest { compression, join_request }.encode_to_vec());
        let text = format!("GET /rtc/v1?join_request={wrapped} HTTP/1.1\r\n\r\n");
        let request = Request::read(&mut text.as_bytes()).await.unwrap();
        let video = VideoGrants {
            room: "kitchen".into(),
            room_join: true,
            can_update_own_metadata: Some(true),
            ..Default::default()
        };
        let attributes = attribute("token0", of_the_token - 6);
        let claims = Claims { sub: "one".into(), video, attributes, ..Default::default() };
        let Joining { claims, .. } = joining(&request, Some(claims))?;
        Ok(claims.attributes.iter().map(|(name, value)| name.len() + value.len()).sum())
    }

    #[tokio::test]
    async fn older_client_joins_with_parameters_in_place_of_a_join_request() {
        let claims = || {
            let video = VideoGrants {
                room: "kitchen".into(),
                room_join: true,
                can_update_own_metadata: Some(true),
                ..Default::default()
            };
            Some(Claims { sub: "one".into(), video, ..Default::default() })
        };
        let attributes = URL_SAFE.encode(r#"{"floor": "2"}"#);
        let text = format!(
            "GET /rtc?sdk=js&client_protocol=1&reconnect=1&sid=PA_1&attributes={attributes} HTTP/1.1\r\n\r\n"
        );
        let request = Request::read(&mut text.as_bytes()).await.unwrap();
        let Joining { claims: claims_of, request: join, single_peer_connection } =
            joining(&request, claims()).unwrap();
        assert!(!single_peer_connection);
        assert_eq!((join.reconnect, &*join.participant_sid), (true, "PA_1"));
        assert_eq!(join.client_info.unwrap().client_protocol, 1);
        assert_eq!(claims_of.attributes["floor"], "2");
        for (path, why) in [
            ("/rtc/v1?sdk=js", "join_request is required"),
            ("/rtc?attributes=x", "cannot decode attributes"),
            ("/rtc?join_request=*", "cannot base64 decode wrapped join request"),
        ] {
            let text = format!("GET {path} HTTP/1.1\r\n\r\n");
            let request = Request::read(&mut text.as_bytes()).await.unwrap();
            assert_eq!(joining(&request, claims()).err(), Some(Refusal(400, why)), "{path}");
        }
    }

    #[tokio::test]
    async fn attributes_of_token_and_request_share_one_limit() {
        const HALF: usize = 32 * 1024;
        assert_eq!(asked(HALF, HALF).await, Ok(2 * HALF));
        let refused = Err(Refusal(400, "attribute size exceeds limits"));
        assert_eq!(asked(HALF, HALF + 1).await, refused);
        assert_eq!(asked(6, 2 * HALF).await, refused);
    }
}
