//! What is found on the way to a server: names, connections, TLS, HTTP. It is judged elsewhere.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use rustls::ClientConfig;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
    task::JoinSet,
    time,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use url::{Host, Url};

use crate::room::{
    proxy::{Proxy, ProxyError, port_of},
    tls,
};

pub(super) mod certificate;
pub(super) mod http;

/// How many addresses of one name are tried.
const MAX_ADDRESSES: usize = 16;

/// Why a name gave no address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NameFault {
    /// The system's answer.
    Unknown(String),
    /// No answer in time.
    Silent,
}

/// Why no connection was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConnectFault {
    /// A machine is there, and nobody listens at that port.
    Refused,
    /// No answer in time.
    Silent,
    /// There is no way to that address from here.
    NoWay,
    /// Anything else.
    Other(String),
}

/// What was found of an encrypted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Encrypted {
    /// As people write it: `TLS 1.3`.
    pub(super) version: &'static str,
    /// How many certificates the server sent.
    pub(super) chain: usize,
    /// Until when its own is valid, in seconds since 1970.
    pub(super) until: Option<i64>,
}

/// Why there is no encrypted connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TlsFault {
    /// Its certificate's time is over; since when, in seconds since 1970.
    Expired(Option<i64>),
    /// Its certificate is not valid yet.
    NotYet,
    /// Nobody whom we trust has signed it.
    UnknownIssuer,
    /// It is for other names.
    OtherName(Vec<String>),
    /// Another fault of the certificate.
    Certificate(String),
    /// What answers there speaks something else.
    NotTls,
    /// The connection ended, or nothing came.
    Ended(String),
    /// The way to it failed.
    Way(WayFault),
}

/// Why a further connection to a server that was reached could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WayFault {
    /// TCP.
    Connect(ConnectFault),
    /// The proxy did not open it.
    Proxy(ProxyError),
    /// No trust could be set up here.
    Trust(String),
}

/// Anything that bytes go through.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// The way to a server: straight, or through a proxy.
pub(super) struct Line {
    pub(super) url: Url,
    pub(super) proxy: Option<Proxy>,
    /// Where connections go: the first address that answered.
    pub(super) address: Option<SocketAddr>,
    /// Whom we trust, for `wss`.
    pub(super) trust: Option<Arc<ClientConfig>>,
    pub(super) limit: Duration,
}

impl Line {
    /// Whose name is looked up first: the proxy's, if there is one.
    pub(super) fn first(&self) -> (Host<&str>, u16) {
        let proxy = self.proxy.as_ref().map(|proxy| (proxy.host(), proxy.port()));
        proxy.unwrap_or_else(|| (self.host(), port_of(&self.url)))
    }

    /// The server's name or address.
    pub(super) fn host(&self) -> Host<&str> {
        self.url.host().unwrap_or(Host::Domain(""))
    }

    /// A connection to the server, not encrypted yet.
    async fn reach(&self) -> Result<Box<dyn Stream>, WayFault> {
        let address = self.address.ok_or(WayFault::Connect(ConnectFault::NoWay))?;
        let tcp = connect(address, self.limit).await.map_err(WayFault::Connect)?;
        let Some(proxy) = &self.proxy else { return Ok(Box::new(tcp)) };
        let mut stream: Box<dyn Stream> = Box::new(tcp);
        if proxy.is_tls() {
            let fail = |reason: String| WayFault::Proxy(proxy.failed(reason));
            let trust = self.trust.clone().ok_or_else(|| fail("no trust could be set up".into()))?;
            let name = tls::name(&proxy.host()).map_err(fail)?;
            let connected = TlsConnector::from(trust).connect(name, stream).await;
            stream = Box::new(connected.map_err(|error| fail(error.to_string()))?);
        }
        proxy.open(&mut stream, &self.url, self.limit).await.map_err(WayFault::Proxy)?;
        Ok(stream)
    }

    /// That the server is reached at all: through a proxy this is a finding of its own.
    pub(super) async fn is_reached(&self) -> Result<(), WayFault> {
        self.reach().await.map(drop)
    }

    /// An encrypted connection, and what it is like.
    pub(super) async fn encrypt(&self) -> Result<(TlsStream<Box<dyn Stream>>, Encrypted), TlsFault> {
        let stream = self.reach().await.map_err(TlsFault::Way)?;
        let trust = self.trust.clone().ok_or_else(|| TlsFault::Ended("no trust could be set up".into()))?;
        let name = tls::name(&self.host()).map_err(TlsFault::Certificate)?;
        let connecting = TlsConnector::from(trust).connect(name, stream);
        let stream = match time::timeout(self.limit, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(tls_fault(&error)),
            Err(_) => return Err(TlsFault::Ended(format!("nothing came within {:?}", self.limit))),
        };
        let session = stream.get_ref().1;
        let chain = session.peer_certificates().unwrap_or_default();
        let found = Encrypted {
            version: match session.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLS 1.3",
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
                _ => "TLS",
            },
            chain: chain.len(),
            until: chain.first().and_then(|leaf| certificate::valid_until(leaf)),
        };
        Ok((stream, found))
    }

    /// A connection as the scheme wants it. It worked a moment ago, so little is said if it does not now.
    async fn open(&self) -> Result<Box<dyn Stream>, String> {
        let way = |fault| match fault {
            WayFault::Connect(ConnectFault::Refused) => "it was refused".to_owned(),
            WayFault::Connect(ConnectFault::Other(system)) => system,
            WayFault::Connect(_) => "nobody answered".to_owned(),
            WayFault::Proxy(error) => format!("the proxy {}: {}", error.proxy, error.reason),
            WayFault::Trust(reason) => reason,
        };
        if !is_encrypted(&self.url) {
            return self.reach().await.map_err(way);
        }
        match self.encrypt().await {
            Ok((stream, _)) => Ok(Box::new(stream)),
            Err(TlsFault::Way(fault)) => Err(way(fault)),
            Err(_) => Err("it could not be encrypted".to_owned()),
        }
    }
}

/// Whether the address asks for TLS.
pub(super) fn is_encrypted(url: &Url) -> bool {
    matches!(url.scheme(), "wss" | "https")
}

/// The addresses of a name, as the system knows them.
pub(super) async fn addresses(
    host: &Host<&str>,
    port: u16,
    limit: Duration,
) -> Result<Vec<SocketAddr>, NameFault> {
    let name = match host {
        Host::Ipv4(ip) => return Ok(vec![SocketAddr::new(IpAddr::V4(*ip), port)]),
        Host::Ipv6(ip) => return Ok(vec![SocketAddr::new(IpAddr::V6(*ip), port)]),
        Host::Domain(name) => *name,
    };
    match time::timeout(limit, lookup_host((name, port))).await {
        Err(_) => Err(NameFault::Silent),
        Ok(Err(error)) => Err(NameFault::Unknown(error.to_string())),
        Ok(Ok(found)) => {
            let mut addresses = Vec::new();
            for address in found.take(MAX_ADDRESSES) {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
            Ok(addresses)
        }
    }
}

/// Which of these addresses take a connection: all are tried at once.
pub(super) async fn connect_each(
    addresses: &[SocketAddr],
    limit: Duration,
) -> Vec<(SocketAddr, Result<(), ConnectFault>)> {
    let mut open = JoinSet::new();
    for (at, address) in addresses.iter().copied().enumerate() {
        open.spawn(async move { (at, address, connect(address, limit).await.map(drop)) });
    }
    let mut tried = Vec::new();
    while let Some(Ok(found)) = open.join_next().await {
        tried.push(found);
    }
    tried.sort_by_key(|(at, ..)| *at);
    tried.into_iter().map(|(_, address, result)| (address, result)).collect()
}

async fn connect(address: SocketAddr, limit: Duration) -> Result<TcpStream, ConnectFault> {
    match time::timeout(limit, TcpStream::connect(address)).await {
        Err(_) => Err(ConnectFault::Silent),
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused => ConnectFault::Refused,
            io::ErrorKind::TimedOut => ConnectFault::Silent,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => ConnectFault::NoWay,
            io::ErrorKind::AddrNotAvailable => ConnectFault::NoWay,
            _ => ConnectFault::Other(error.to_string()),
        }),
    }
}

fn tls_fault(error: &io::Error) -> TlsFault {
    use rustls::{CertificateError, Error};
    let seconds = |time: rustls::pki_types::UnixTime| i64::try_from(time.as_secs()).ok();
    let Some(fault) = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) else {
        return TlsFault::Ended(error.to_string());
    };
    match fault {
        Error::InvalidCertificate(fault) => match fault {
            CertificateError::Expired => TlsFault::Expired(None),
            CertificateError::ExpiredContext { not_after, .. } => TlsFault::Expired(seconds(*not_after)),
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => TlsFault::NotYet,
            CertificateError::UnknownIssuer => TlsFault::UnknownIssuer,
            CertificateError::NotValidForName => TlsFault::OtherName(Vec::new()),
            CertificateError::NotValidForNameContext { presented, .. } => {
                TlsFault::OtherName(presented.clone())
            }
            other => TlsFault::Certificate(other.to_string()),
        },
        Error::InvalidMessage(_) => TlsFault::NotTls,
        other => TlsFault::Ended(other.to_string()),
    }
}
