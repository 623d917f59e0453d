//! Serves over HTTP ("Streamable HTTP").

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use bytes::Bytes;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body, Incoming},
    header,
};
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{handler::Handler, lines::MAX_MESSAGE, read::parsed};
use crate::adapter::{
    jsonrpc::error::{INVALID_REQUEST, refusal},
    sink::Room,
    web::{
        secret::Token,
        server::{BoxError, READ, Reply, Whole, is_too_long, reachable, serve, text},
    },
};

mod body;
mod sessions;

use body::unwrapping;
use sessions::Sessions;

/// The path of the server.
const PATH: &str = "/mcp";

/// The origins of web pages that may send requests: those of this machine, which need the token too.
const ORIGINS: [&str; 3] = ["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"];

/// An MCP server that listens for HTTP connections: see [`RoomServer::listen`](super::RoomServer::listen). Dropping it ends
/// all connections and cancels their calls.
pub struct McpListener {
    address: SocketAddr,
    token: Arc<Token>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl McpListener {
    /// Returns the URL of the server, such as `http://127.0.0.1:40123/mcp`. If it listens on all addresses, this is the
    /// URL for this machine, and other machines need a name of [`RoomServer::host`](super::RoomServer::host).
    pub fn url(&self) -> String {
        url(self.address)
    }

    /// Returns the bearer token. Whoever has it can call the tools.
    pub fn token(&self) -> &str {
        self.token.as_str()
    }

    /// Returns the address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Resolves when the server has ended because its assistant left the room.
    ///
    /// # Cancel safety
    /// Safe: dropping it loses nothing, and it can be called again.
    pub async fn closed(&mut self) {
        self.tasks.join_next().await;
    }

    /// Ends all connections and cancels their calls.
    ///
    /// # Cancel safety
    /// Once polled, the server ends even if the future is dropped.
    pub async fn close(mut self) {
        self.stop.cancel();
        self.tasks.join_next().await;
    }
}

impl Drop for McpListener {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for McpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpListener").field("address", &self.address).finish_non_exhaustive()
    }
}

pub(super) async fn listen(
    shared: Arc<Room>,
    address: SocketAddr,
    hosts: Vec<String>,
) -> io::Result<McpListener> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let (token, stop) = (Arc::new(Token::random()?), CancellationToken::new());
    let server = Server::new(
        Arc::clone(&shared),
        Arc::clone(&token),
        allowed_hosts(address.ip(), hosts),
        stop.clone(),
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(accept(listener, server, shared, stop.clone()));
    Ok(McpListener { address, token, stop, tasks })
}

fn url(address: SocketAddr) -> String {
    format!("http://{}{PATH}", reachable(address))
}

/// Returns the host names of requests that are answered. A page of a browser can resolve its own name to this machine,
/// and is refused for that name.
fn allowed_hosts(address: IpAddr, mut hosts: Vec<String>) -> Vec<String> {
    hosts.extend(["localhost", "127.0.0.1", "::1"].map(str::to_owned));
    if !address.is_unspecified() {
        hosts.push(address.to_string());
    }
    hosts
}

/// Accepts connections until the server stops or the assistant leaves.
async fn accept(listener: TcpListener, server: Server, shared: Arc<Room>, stop: CancellationToken) {
    let answer = move |request| {
        let server = server.clone();
        async move { server.answer(request).await }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = shared.assistant().closed() => stop.cancel(), // ends the sessions
        () = serve(listener, "MCP", answer) => {}
    }
}

#[derive(Clone)]
struct Server {
    mcp: StreamableHttpService<Handler, Sessions>,
    token: Arc<Token>,
}

impl Server {
    fn new(shared: Arc<Room>, token: Arc<Token>, hosts: Vec<String>, stop: CancellationToken) -> Self {
        let config = StreamableHttpServerConfig::default()
            .with_allowed_hosts(hosts)
            .enforce_origin_validation()
            .with_allowed_origins(ORIGINS)
            .with_max_request_body_bytes(MAX_MESSAGE)
            .with_cancellation_token(stop);
        let handler = move || Ok(Handler::new(Arc::clone(&shared), CancellationToken::new()));
        Self { mcp: StreamableHttpService::new(handler, Arc::default(), config), token }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Reply> {
        let authorization = request.headers().get(header::AUTHORIZATION);
        if !authorization.is_some_and(|it| self.token.is_in(it.as_bytes())) {
            let mut refused = text(StatusCode::UNAUTHORIZED, "a bearer token is required");
            let scheme = header::HeaderValue::from_static("Bearer");
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
            return refused;
        }
        if request.uri().path() != PATH {
            return text(StatusCode::NOT_FOUND, "the server's path is /mcp");
        }
        let ends_session = request.method() == Method::DELETE;
        match read(request).await {
            Ok(request) => {
                let mut answer = self.mcp.handle(request).await.map(unwrapping);
                // `rmcp` says 202, which the official SDK for Python takes for a failure.
                if ends_session && answer.status() == StatusCode::ACCEPTED {
                    *answer.status_mut() = StatusCode::NO_CONTENT;
                }
                answer
            }
            Err(refused) => refused,
        }
    }
}

/// Reads the body of a request, and refuses one that is not a message.
async fn read<B>(request: Request<B>) -> Result<Request<Whole>, Response<Reply>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    let (mut head, body) = request.into_parts();
    // `rmcp` keeps the head with the request, and may log it.
    head.headers.remove(header::AUTHORIZATION);
    let body = match tokio::time::timeout(READ, Whole::read(body, MAX_MESSAGE)).await {
        Ok(Ok(body)) => body,
        Ok(Err(error)) if is_too_long(&error) => {
            let limit = format!("the body exceeds {MAX_MESSAGE} bytes");
            return Err(text(StatusCode::PAYLOAD_TOO_LARGE, &limit));
        }
        Ok(Err(_)) => return Err(text(StatusCode::BAD_REQUEST, "the body could not be read")),
        Err(_) => return Err(text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
    };
    if head.method != Method::POST {
        return Ok(Request::from_parts(head, body));
    }
    match parsed(body.bytes(), None) {
        Ok((_, None)) => Ok(Request::from_parts(head, body)),
        Ok((_, Some(repaired))) => {
            head.headers.remove(header::CONTENT_LENGTH);
            Ok(Request::from_parts(head, Whole::from(repaired)))
        }
        Err(error) => {
            let error = error.unwrap_or_else(|| refusal(None, INVALID_REQUEST, "not a notification"));
            let mut refused = text(StatusCode::BAD_REQUEST, &error);
            let json = header::HeaderValue::from_static("application/json");
            refused.headers_mut().insert(header::CONTENT_TYPE, json);
            Err(refused)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_of_a_server_on_all_addresses_is_one_that_it_answers() {
        for (address, expected) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080/mcp"),
            ("[::]:8080", "http://[::1]:8080/mcp"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080/mcp"),
            ("192.0.2.7:8080", "http://192.0.2.7:8080/mcp"),
        ] {
            assert_eq!(url(address.parse().unwrap()), expected);
        }
    }

    /// A body without an end.
    struct Endless;

    impl Body for Endless {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }

    async fn body(bytes: Vec<u8>) -> Whole {
        Whole::read(text(StatusCode::OK, &String::from_utf8(bytes).unwrap()).into_body(), usize::MAX)
            .await
            .unwrap()
    }

    #[tokio::test]
    async fn sec_p3_authorization_does_not_reach_the_protocols_crate() {
        let message = br#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#.to_vec();
        let request =
            Request::post("/mcp").header("Authorization", "Bearer hunter2").body(body(message).await);
        let Ok(request) = read(request.unwrap()).await else { panic!("it is a message") };
        assert!(!request.headers().contains_key("authorization"));
    }

    #[tokio::test]
    async fn body_above_4_mib_is_refused() {
        let request = Request::post("/mcp").body(body(vec![b' '; MAX_MESSAGE + 1]).await).unwrap();
        let Err(refused) = read(request).await else { panic!("it was read") };
        assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_does_not_arrive_is_given_up() {
        let reading = read(Request::post("/mcp").body(Endless).unwrap());
        let Ok(Err(refused)) = tokio::time::timeout(2 * READ, reading).await else {
            panic!("it waits for ever")
        };
        assert_eq!(refused.status(), StatusCode::REQUEST_TIMEOUT);
    }

    #[test]
    fn sec_a1_only_names_of_this_machine_are_answered() {
        let names = |address: &str| allowed_hosts(address.parse().unwrap(), vec!["lamp.lan".to_owned()]);
        assert_eq!(names("0.0.0.0"), ["lamp.lan", "localhost", "127.0.0.1", "::1"]);
        assert_eq!(names("192.0.2.7").last().unwrap(), "192.0.2.7");
    }
}
