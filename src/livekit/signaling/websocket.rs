//! Opens the WebSocket of the signaling: custom root certificates, proxies, limits on what arrives, and typed
//! failures.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use bytes::BytesMut;
use livekit_protocol::LeaveRequest;
use rustls::pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf},
    net::TcpStream,
    time,
};
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::{
    dial,
    proxy::{Proxy, ProxyError, port_of},
    refusal::TokenRefusal,
    request::Sent,
    tls,
};
use crate::{
    clock::Spelled,
    livekit::error::NO_TLS,
    net::tls_error::{cause, of_tls},
};

mod frames;
mod limits;
mod message_filter;
mod upgrade;

pub(crate) use frames::Incoming;
pub(crate) use limits::{FrameLimits, Unread};

use frames::{Reader, Writer};

/// The longest signaling frame, in bytes. The first frame lists all participants of the room.
const MAX_FRAME: usize = 16 << 20;

/// The reason why a socket did not open.
#[derive(Debug)]
pub(crate) enum DialFailure {
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
    /// The server opened the socket and sent no response in time.
    Silent,
}

impl DialFailure {
    /// Creates it from an error of a connection, which may be one of TLS: a server that demands a client certificate says
    /// so after the handshake.
    pub(crate) fn of_io(error: io::Error) -> Self {
        if of_tls(&error).is_some() { Self::Tls(error.into()) } else { Self::Unreachable(error) }
    }

    /// Creates an error of the connection that no other error caused.
    pub(crate) fn unreachable(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
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
            Self::Silent => f.write_str("the server sent no response"),
        }
    }
}

/// The connection under a WebSocket: TCP, TLS over it, or TLS through a proxy that uses TLS itself.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

pub(crate) type SocketReader = Reader<ReadHalf<Box<dyn Stream>>>;
pub(crate) type SocketWriter = Writer<WriteHalf<Box<dyn Stream>>>;

/// An open WebSocket.
pub(crate) struct Socket {
    pub(crate) reader: SocketReader,
    pub(crate) writer: SocketWriter,
}

impl Socket {
    /// Creates one over a connection that was upgraded. `early` arrived together with the server's response.
    pub(crate) fn new(stream: Box<dyn Stream>, early: BytesMut) -> Self {
        let (reading, writing) = tokio::io::split(stream);
        Self { reader: Reader::new(reading, early, MAX_FRAME), writer: Writer::new(writing) }
    }
}

/// Opens a WebSocket, with the token in its request.
///
/// # Errors
/// It did not open, or not within the limit.
pub(crate) async fn open(
    url: &Url,
    token: &str,
    roots: &[CertificateDer<'static>],
    limit: Duration,
    sent: &Sent,
) -> Result<Socket, DialFailure> {
    let opened = time::timeout(limit, open_without_limit(url, token, roots, limit, sent)).await;
    opened.unwrap_or_else(|_| Err(DialFailure::unreachable(format!("no answer within {}", Spelled(limit)))))
}

async fn open_without_limit(
    url: &Url,
    token: &str,
    roots: &[CertificateDer<'static>],
    limit: Duration,
    sent: &Sent,
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
    // Inside TLS, because the request contains the token. Of a `wss` connection, a proxy sees only `CONNECT`.
    sent.begin();
    let early = upgrade::upgrade(&mut stream, url, token).await?;
    Ok(Socket::new(stream, early))
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
        // The proxy resolves the server's name, which may be unknown outside of its network.
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
    opened.unwrap_or_else(|_| Err(proxy.failed(format!("no response within {}", Spelled(limit)))))
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

#[cfg(test)]
mod tests;
