//! The WebSocket of the signaling: custom root certificates, and typed failures.
//!
//! `livekit-signaling` opens its sockets through one client for the whole process, which accepts no certificates and
//! reports failures as text. Therefore this crate registers its own client; it acts only within [`scope`] (a task-local
//! value holds the join's settings) and passes everything else on.

use std::{
    error::Error,
    fmt,
    future::Future,
    io,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use livekit_net::{
    Header, HttpClient, HttpMethod, HttpResponse, TransportError, WsClient, WsConnectResult, WsConnection,
};
use livekit_protocol::LeaveRequest;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    net::TcpStream,
    sync, time,
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use url::{Host, Url};

use super::{
    dial,
    error::NO_TLS,
    proxy::{Proxy, ProxyError, port_of},
    refusal::TokenRefusal,
    tls,
};
use crate::transport::tls_error::{cause, of_tls};

mod frames;
mod limits;
mod message_filter;
mod process;
mod upgrade;

use frames::{Incoming, Reader, Writer};
use limits::{FrameLimits, Taken};

pub(super) use limits::Unread;
pub(super) use process::register;

/// The longest signaling frame, in bytes. The first frame lists all participants of the room.
const MAX_FRAME: usize = 16 << 20;

/// The status of a normal closure.
const NORMAL: u16 = 1000;

/// The settings of a join's socket, and its state.
#[derive(Debug, Default)]
pub(super) struct Dial {
    roots: Vec<CertificateDer<'static>>,
    resumes: bool,
    unread: Arc<Unread>,
    failure: Mutex<Option<DialFailure>>,
    hung_up: CancellationToken,
}

/// Why a socket did not open.
#[derive(Debug)]
pub(super) enum DialFailure {
    /// The name is unknown, or no server accepts connections there.
    Unreachable(io::Error),
    /// TLS failed.
    Tls(Box<dyn Error + Send + Sync>),
    /// The port does not speak TLS.
    NotTls,
    /// The configured proxy does not connect to the server.
    Proxy(ProxyError),
    /// The server responded with this HTTP status, and with these words.
    Status(u16, String),
    /// The server refused the token (status 401).
    Unauthorized(TokenRefusal),
    /// The server opened the socket, but did not accept the join.
    Refused(LeaveRequest),
    /// The server's response is invalid.
    Unfit(&'static str),
}

impl DialFailure {
    /// Creates it from an error of a connection, which may be one of TLS: a server that demands a client certificate says
    /// so after the handshake.
    fn of_io(error: io::Error) -> Self {
        if of_tls(&error).is_some() { Self::Tls(error.into()) } else { Self::Unreachable(error) }
    }

    /// Creates an error of the connection that no other error caused.
    fn unreachable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Unreachable(io::Error::other(error))
    }
}

impl Error for DialFailure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Unreachable(error) => error.source(),
            Self::Tls(error) => Some(&**error),
            Self::Proxy(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for DialFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(error) => write!(f, "{error}"),
            Self::Tls(error) => write!(f, "TLS: {}", cause(&**error)),
            Self::NotTls => f.write_str(NO_TLS[0]),
            Self::Proxy(error) => write!(f, "{error}"),
            Self::Status(status, _) => write!(f, "status {status}"),
            Self::Unauthorized(reason) => write!(f, "status 401: {reason}"),
            Self::Refused(_) => f.write_str("the server ended the join"),
            Self::Unfit(text) => f.write_str(text),
        }
    }
}

impl Dial {
    /// Creates the settings of a socket that trusts the system's root certificates and these.
    pub(super) fn new(roots: Vec<CertificateDer<'static>>) -> Self {
        Self { roots, ..Self::default() }
    }

    /// Marks the socket as one that resumes a join.
    pub(super) fn resuming(self) -> Self {
        Self { resumes: true, ..self }
    }

    /// Returns the received bytes that were not read yet.
    pub(super) fn unread(&self) -> Arc<Unread> {
        self.unread.clone()
    }

    /// Closes the join's socket, open or not, without a message: a late response must not complete the join.
    pub(super) fn hang_up(&self) {
        self.hung_up.cancel();
    }

    fn fail(&self, failure: DialFailure) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }

    /// Takes the reason why the last attempt of this crate's client failed, if it did.
    pub(super) fn take_failure(&self) -> Option<DialFailure> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

tokio::task_local! {
    static DIAL: Arc<Dial>;
}

/// Runs a join whose sockets are opened as `dial` says.
pub(super) async fn scope<F: Future>(dial: Arc<Dial>, join: F) -> F::Output {
    // The error was reported at the join.
    let _ = register();
    DIAL.scope(dial, join).await
}

/// The process's client. Connections outside a scope belong to other parts of the program.
struct ScopedClient;

#[cfg(not(feature = "livekit-sdk"))]
fn refused() -> TransportError {
    TransportError::Other(
        "toolbridge has registered the WebSocket client of this process; enable its feature `livekit-sdk`"
            .into(),
    )
}

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
            Ok(dial) => dial,
            #[cfg(feature = "livekit-sdk")]
            Err(_) => {
                let native = livekit_net::testing::native_ws_client();
                return native.connect(url.into(), headers, timeout_ms).await;
            }
            #[cfg(not(feature = "livekit-sdk"))]
            Err(_) => return Err(refused()),
        };
        let limit = Duration::from_millis(timeout_ms);
        let opened = tokio::select! {
            opened = open(&url, &headers, &dial.roots, limit) => opened,
            () = time::sleep(limit) => Err(DialFailure::unreachable(format!("no answer within {limit:?}"))),
            () = dial.hung_up.cancelled() => Err(DialFailure::unreachable("given up")),
        };
        match opened {
            Ok(socket) => {
                let connection = WebSocketConnection::new(socket, dial);
                Ok(WsConnectResult { connection: Arc::new(connection) })
            }
            Err(failure) => {
                let error = match &failure {
                    DialFailure::Status(status, _) => TransportError::Http { status: *status },
                    DialFailure::Unauthorized(_) => TransportError::Http { status: 401 },
                    other => TransportError::Connection(other.to_string()),
                };
                dial.fail(failure);
                Err(error)
            }
        }
    }
}

#[async_trait]
impl HttpClient for ScopedClient {
    /// After a failed join the library would ask for the reason over HTTP. The reason is known already, and the request
    /// would send the token again.
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
        #[cfg(feature = "livekit-sdk")]
        return livekit_net::testing::native_http_client().request(method, url, headers, body).await;
        #[cfg(not(feature = "livekit-sdk"))]
        {
            let _ = (method, url, headers, body);
            Err(refused())
        }
    }
}

/// The connection under a WebSocket: TCP, TLS over it, or TLS through a proxy that uses TLS itself.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

type SocketReader = Reader<ReadHalf<Box<dyn Stream>>>;
type SocketWriter = Writer<WriteHalf<Box<dyn Stream>>>;

/// An open WebSocket.
struct Socket {
    reader: SocketReader,
    writer: SocketWriter,
}

async fn open(
    url: &Url,
    headers: &[Header],
    roots: &[CertificateDer<'static>],
    limit: Duration,
) -> Result<Socket, DialFailure> {
    let host = url.host().ok_or_else(|| DialFailure::unreachable("no host"))?;
    let mut stream: Box<dyn Stream> = match Proxy::of_environment(url).await.map_err(DialFailure::Proxy)? {
        Some(proxy) => through(&proxy, url, roots, limit).await.map_err(DialFailure::Proxy)?,
        None => {
            let tcp = reach(&host, port_of(url)).await;
            Box::new(tcp.map_err(DialFailure::Unreachable)?)
        }
    };
    if url.scheme() == "wss" {
        stream = encrypt(&host, stream, roots).await?;
    }
    let early = upgrade::upgrade(&mut stream, url, headers).await?;
    let (reading, writing) = tokio::io::split(stream);
    Ok(Socket { reader: Reader::new(reading, early, MAX_FRAME), writer: Writer::new(writing) })
}

/// Opens a connection through a proxy within four fifths of the time limit, so that a failure names the proxy.
async fn through(
    proxy: &Proxy,
    url: &Url,
    roots: &[CertificateDer<'static>],
    limit: Duration,
) -> Result<Box<dyn Stream>, ProxyError> {
    tracing::debug!(%proxy, "the signaling goes through a proxy");
    let limit = limit * 4 / 5;
    let opened = async {
        let tcp = reach(&proxy.host(), proxy.port()).await.map_err(|error| proxy.failed(error))?;
        let mut stream: Box<dyn Stream> = Box::new(tcp);
        if proxy.is_tls() {
            let encrypted = encrypt(&proxy.host(), stream, roots).await;
            stream = encrypted.map_err(|failure| proxy.failed(failure))?;
        }
        proxy.open(&mut stream, url, limit).await?;
        Ok(stream)
    };
    let opened = time::timeout(limit, opened).await;
    opened.unwrap_or_else(|_| Err(proxy.failed(format!("no response within {limit:?}"))))
}

async fn reach(host: &Host<&str>, port: u16) -> io::Result<TcpStream> {
    match host {
        Host::Domain(name) => dial::connect(name, port).await,
        Host::Ipv4(ip) => dial::connect(&ip.to_string(), port).await,
        Host::Ipv6(ip) => dial::connect(&ip.to_string(), port).await,
    }
}

async fn encrypt(
    host: &Host<&str>,
    stream: Box<dyn Stream>,
    roots: &[CertificateDer<'static>],
) -> Result<Box<dyn Stream>, DialFailure> {
    let connector = TlsConnector::from(Arc::new(tls::config(roots).await.map_err(DialFailure::Tls)?));
    let name = tls::name(host).map_err(|error| DialFailure::Tls(error.into()))?;
    match connector.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) if tls::is_not_tls(&error) => Err(DialFailure::NotTls),
        Err(error) => Err(DialFailure::Tls(error.into())),
    }
}

/// An open socket. The library sends and receives from different tasks.
struct WebSocketConnection {
    writer: sync::Mutex<SocketWriter>,
    reader: sync::Mutex<(SocketReader, FrameLimits)>,
    dial: Arc<Dial>,
}

impl WebSocketConnection {
    fn new(socket: Socket, dial: Arc<Dial>) -> Self {
        let Socket { reader, writer } = socket;
        let limits = FrameLimits::new(dial.resumes, dial.unread());
        Self { writer: sync::Mutex::new(writer), reader: sync::Mutex::new((reader, limits)), dial }
    }

    /// Returns the next binary frame that passes the filter.
    async fn frame(&self) -> Result<Option<Vec<u8>>, TransportError> {
        let mut reader = self.reader.lock().await;
        let (reader, limits) = &mut *reader;
        loop {
            if limits.is_over() {
                return Ok(None);
            }
            // A slow reader slows the server down.
            self.dial.unread.room().await;
            let incoming = reader.next().await.map_err(failed)?;
            match incoming {
                Incoming::Binary(frame) => match limits.take(&frame) {
                    Taken::Frame(frame) => return Ok(Some(frame)),
                    Taken::Nothing => {}
                    Taken::Refusal(frame, leave) => {
                        self.dial.fail(DialFailure::Refused(leave));
                        return Ok(Some(frame));
                    }
                    Taken::Unfit(why) => {
                        self.dial.fail(DialFailure::Unfit(why));
                        return Err(TransportError::Other(why.into()));
                    }
                },
                Incoming::Ping(payload) => self.writer.lock().await.pong(&payload).await.map_err(failed)?,
                Incoming::Nothing => {}
                Incoming::Close(status) => {
                    // A peer that has left needs no reply.
                    let _ = self.writer.lock().await.close(status).await;
                    return Ok(None);
                }
            }
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "results are mapped with it")]
fn failed(error: io::Error) -> TransportError {
    TransportError::Connection(error.to_string())
}

#[async_trait]
impl WsConnection for WebSocketConnection {
    async fn send(&self, frame: Vec<u8>) -> Result<(), TransportError> {
        let send = async { self.writer.lock().await.send(&frame).await };
        tokio::select! {
            sent = send => sent.map_err(failed),
            () = self.dial.hung_up.cancelled() => Err(TransportError::Connection("given up".into())),
        }
    }

    async fn recv(&self) -> Result<Option<Vec<u8>>, TransportError> {
        tokio::select! {
            frame = self.frame() => frame,
            () = self.dial.hung_up.cancelled() => Err(TransportError::Connection("given up".into())),
        }
    }

    async fn close(&self) {
        let close = async { self.writer.lock().await.close(Some(NORMAL)).await };
        tokio::select! {
            biased;
            () = self.dial.hung_up.cancelled() => {}
            // A closed peer cannot be notified.
            _ = close => {}
        }
    }
}

#[cfg(test)]
mod tests;
