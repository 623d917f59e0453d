//! The WebSocket under the signalling: root certificates of one's own, and failures that keep their kind.
//!
//! `livekit-signaling` opens its sockets through one client for the whole process, which takes no
//! certificates and tells failures as text. So ours is registered in its place; it acts only within
//! [`scope`] (a task-local value holds what the join wants) and passes everything else on.

use std::{
    env, fmt,
    future::Future,
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use livekit_net::{
    Header, HttpClient, HttpMethod, HttpResponse, TransportError, WsClient, WsConnectResult, WsConnection,
};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName},
};
use tokio::{net::TcpStream, sync, time};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::{
    MaybeTlsStream, WebSocketStream, client_async_with_config,
    tungstenite::{
        Error as WsError, Message,
        client::IntoClientRequest,
        http::{HeaderName, HeaderValue, Request},
        protocol::WebSocketConfig,
    },
};
use tokio_util::sync::CancellationToken;
use url::{Host, Url};

use super::dial;

/// The longest signalling frame, in bytes: the first one lists the whole room.
const MAX_FRAME: usize = 16 << 20;

/// What a join wants of its socket, and what became of it.
#[derive(Debug, Default)]
pub(super) struct Dial {
    roots: Vec<CertificateDer<'static>>,
    failure: Mutex<Option<DialFailure>>,
    hung_up: CancellationToken,
}

/// Why a socket did not open.
#[derive(Clone, Debug)]
pub(super) enum DialFailure {
    /// The name is unknown, or nobody answers there.
    Unreachable(String),
    /// TLS failed.
    Tls(String),
    /// The server answered with this HTTP status.
    Status(u16),
}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(text) => f.write_str(text),
            Self::Tls(text) => write!(f, "TLS: {text}"),
            Self::Status(status) => write!(f, "status {status}"),
        }
    }
}

impl Dial {
    /// A socket that trusts the system's roots and these.
    pub(super) fn new(roots: Vec<CertificateDer<'static>>) -> Self {
        Self { roots, ..Self::default() }
    }

    /// Ends the join's socket, open or not, without a word: what comes late must not join after all.
    pub(super) fn hang_up(&self) {
        self.hung_up.cancel();
    }

    /// Why the last attempt failed, if one of ours did.
    pub(super) fn failure(&self) -> Option<DialFailure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

tokio::task_local! {
    static DIAL: Arc<Dial>;
}

/// Runs a join whose sockets are opened as `dial` says.
pub(super) async fn scope<F: Future>(dial: Arc<Dial>, join: F) -> F::Output {
    static REGISTERED: OnceLock<()> = OnceLock::new();
    REGISTERED.get_or_init(|| {
        if CryptoProvider::get_default().is_none() {
            // Lost races are fine: whoever was first has set one.
            let _ = ring::default_provider().install_default();
        }
        livekit_net::set_ws_client(Arc::new(ScopedClient));
        livekit_net::set_http_client(Arc::new(ScopedClient));
    });
    DIAL.scope(dial, join).await
}

/// The process's client: ours within a scope, the library's own outside.
struct ScopedClient;

#[async_trait]
impl WsClient for ScopedClient {
    async fn connect(
        &self,
        url: String,
        headers: Vec<Header>,
        timeout_ms: u64,
    ) -> Result<WsConnectResult, TransportError> {
        let url = Url::parse(&url).map_err(|_| TransportError::Other("malformed address".into()))?;
        let dial = match DIAL.try_with(Arc::clone) {
            // Proxies are the library's business; it cannot take our roots through one.
            Ok(dial) if !(dial.roots.is_empty() && has_proxy(&url)) => dial,
            _ => {
                return livekit_net::testing::native_ws_client()
                    .connect(url.into(), headers, timeout_ms)
                    .await;
            }
        };
        let limit = Duration::from_millis(timeout_ms);
        let opened = tokio::select! {
            opened = open(&url, &headers, &dial.roots) => opened,
            () = time::sleep(limit) => Err(DialFailure::Unreachable(format!("no answer within {limit:?}"))),
            () = dial.hung_up.cancelled() => Err(DialFailure::Unreachable("given up".into())),
        };
        match opened {
            Ok(socket) => {
                let connection = Connection::new(socket, dial.hung_up.clone());
                Ok(WsConnectResult { connection: Arc::new(connection) })
            }
            Err(failure) => {
                let error = match &failure {
                    DialFailure::Status(status) => TransportError::Http { status: *status },
                    DialFailure::Unreachable(text) | DialFailure::Tls(text) => {
                        TransportError::Connection(text.clone())
                    }
                };
                *dial.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
                Err(error)
            }
        }
    }
}

#[async_trait]
impl HttpClient for ScopedClient {
    /// A failed join would be asked about once more over HTTP. We know why it failed, and the answer
    /// would repeat the token.
    async fn request(
        &self,
        method: HttpMethod,
        url: String,
        headers: Vec<Header>,
        body: Option<Vec<u8>>,
    ) -> Result<HttpResponse, TransportError> {
        if DIAL.try_with(|_| ()).is_ok() {
            return Err(TransportError::Other("not asked".into()));
        }
        livekit_net::testing::native_http_client().request(method, url, headers, body).await
    }
}

fn has_proxy(url: &Url) -> bool {
    let loopback = match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => true,
    };
    if loopback {
        return false;
    }
    let names =
        if url.scheme() == "wss" { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    names.iter().any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

async fn open(
    url: &Url,
    headers: &[Header],
    roots: &[CertificateDer<'static>],
) -> Result<Socket, DialFailure> {
    let unreachable = |error: io::Error| DialFailure::Unreachable(error.to_string());
    let host = url.host().ok_or_else(|| DialFailure::Unreachable("no host".into()))?;
    let port = url.port_or_known_default().unwrap_or(443);
    let tcp = match &host {
        Host::Domain(name) => dial::connect(name, port).await,
        Host::Ipv4(ip) => dial::connect(&ip.to_string(), port).await,
        Host::Ipv6(ip) => dial::connect(&ip.to_string(), port).await,
    }
    .map_err(unreachable)?;

    let stream = if url.scheme() == "wss" {
        let name = match host {
            Host::Domain(name) => ServerName::try_from(name.to_owned()).map_err(tls_failure)?,
            Host::Ipv4(ip) => ServerName::from(std::net::IpAddr::from(ip)),
            Host::Ipv6(ip) => ServerName::from(std::net::IpAddr::from(ip)),
        };
        let connector = TlsConnector::from(Arc::new(tls_config(roots.to_vec()).await?));
        MaybeTlsStream::Rustls(connector.connect(name, tcp).await.map_err(tls_failure)?)
    } else {
        MaybeTlsStream::Plain(tcp)
    };

    let config = WebSocketConfig::default().max_message_size(Some(MAX_FRAME)).max_frame_size(Some(MAX_FRAME));
    match client_async_with_config(request(url, headers)?, stream, Some(config)).await {
        Ok((socket, _)) => Ok(socket),
        Err(WsError::Http(response)) => Err(DialFailure::Status(response.status().as_u16())),
        Err(error) => Err(DialFailure::Unreachable(error.to_string())),
    }
}

fn request(url: &Url, headers: &[Header]) -> Result<Request<()>, DialFailure> {
    let malformed = |_| DialFailure::Unreachable("the request could not be written".into());
    let mut request =
        url.as_str().into_client_request().map_err(|error| DialFailure::Unreachable(error.to_string()))?;
    for header in headers {
        let name = HeaderName::try_from(&*header.name).map_err(|error| malformed(error.to_string()))?;
        let mut value =
            HeaderValue::try_from(&*header.value).map_err(|error| malformed(error.to_string()))?;
        value.set_sensitive(true);
        request.headers_mut().insert(name, value);
    }
    Ok(request)
}

async fn tls_config(own: Vec<CertificateDer<'static>>) -> Result<ClientConfig, DialFailure> {
    // Reading the system's certificates touches the disk.
    let native =
        tokio::task::spawn_blocking(rustls_native_certs::load_native_certs).await.map_err(tls_failure)?;
    for error in &native.errors {
        tracing::debug!(%error, "a system certificate could not be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(native.certs);
    for root in own {
        roots
            .add(root)
            .map_err(|error| DialFailure::Tls(format!("the given root certificate is unusable: {error}")))?;
    }
    if roots.is_empty() {
        return Err(DialFailure::Tls(
            "this system has no root certificates (package `ca-certificates`)".into(),
        ));
    }
    let provider =
        CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::new(ring::default_provider()));
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    Ok(config.map_err(tls_failure)?.with_root_certificates(roots).with_no_client_auth())
}

fn tls_failure(error: impl std::error::Error) -> DialFailure {
    DialFailure::Tls(error.to_string())
}

/// An open socket. The library sends and receives from different tasks.
struct Connection {
    writer: sync::Mutex<SplitSink<Socket, Message>>,
    reader: sync::Mutex<SplitStream<Socket>>,
    hung_up: CancellationToken,
}

impl Connection {
    fn new(socket: Socket, hung_up: CancellationToken) -> Self {
        let (writer, reader) = socket.split();
        Self { writer: sync::Mutex::new(writer), reader: sync::Mutex::new(reader), hung_up }
    }

    /// The next binary frame.
    async fn frame(&self) -> Result<Option<Vec<u8>>, TransportError> {
        let mut reader = self.reader.lock().await;
        loop {
            match reader.next().await {
                Some(Ok(Message::Binary(frame))) => return Ok(Some(frame.into())),
                // Pings are answered by the WebSocket itself; text means nothing here.
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Text(_) | Message::Frame(_))) => {}
                Some(Ok(Message::Close(_))) | None => return Ok(None),
                Some(Err(error)) => return Err(TransportError::Connection(error.to_string())),
            }
        }
    }
}

#[async_trait]
impl WsConnection for Connection {
    async fn send(&self, frame: Vec<u8>) -> Result<(), TransportError> {
        let sent = self.writer.lock().await.send(Message::Binary(frame.into())).await;
        sent.map_err(|error| TransportError::Connection(error.to_string()))
    }

    async fn recv(&self) -> Result<Option<Vec<u8>>, TransportError> {
        tokio::select! {
            frame = self.frame() => frame,
            () = self.hung_up.cancelled() => Err(TransportError::Connection("given up".into())),
        }
    }

    async fn close(&self) {
        if self.hung_up.is_cancelled() {
            return;
        }
        // A peer that is gone cannot be told.
        let _ = self.writer.lock().await.close().await;
    }
}
