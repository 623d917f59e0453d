//! Takes each step of connecting to a server alone: name, TCP, proxy, TLS and HTTP, as a join does.

use std::{
    error::Error,
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

use crate::{
    clock::Spelled,
    livekit::{
        ConnectError, ConnectOptions,
        signaling::{
            address::ServerUrl,
            proxy::{Proxy, ProxyError, port_of},
            tls,
        },
    },
    net::tls_error::{certificate, in_dns, in_words},
};

mod certificate;
mod http;

pub(super) use http::{HttpAnswer, HttpFault, unix_seconds};

/// How many addresses of one name are tried.
const MAX_ADDRESSES: usize = 16;

/// The reason why a name could not be resolved.
#[derive(Clone, Debug)]
pub(super) enum NameFault {
    /// The resolver's answer.
    Unknown(String),
    /// The resolver did not answer in time.
    Silent,
}

/// The reason why no TCP connection was made.
#[derive(Clone, Debug)]
pub(super) enum ConnectFault {
    /// A machine answered, and nothing listens at that port.
    Refused,
    /// Nothing answered in time.
    Silent,
    /// This machine has no route to the address.
    NoRoute,
    /// Anything else.
    Other(String),
}

/// An encrypted connection.
#[derive(Clone, Debug)]
pub(super) struct Encrypted {
    /// The version as people write it: `TLS 1.3`.
    pub(super) version: &'static str,
    /// The end of the validity of the server's own certificate, in seconds since 1970.
    pub(super) until: Option<i64>,
}

/// The reason why there is no encrypted connection.
#[derive(Clone, Debug)]
pub(super) enum TlsFault {
    /// The certificate has expired; when, in seconds since 1970.
    Expired(Option<i64>),
    /// The certificate is not valid yet.
    NotYet,
    /// No trusted authority has signed the certificate.
    UnknownIssuer,
    /// The certificate is for these names.
    OtherName(Vec<String>),
    /// Another fault of the certificate.
    Certificate(String),
    /// The port does not speak TLS.
    NotTls,
    /// The connection ended, or nothing came.
    Ended(String),
    /// A step before TLS failed.
    Route(RouteFault),
}

/// The reason why another connection to a server that was reached before failed.
#[derive(Clone, Debug)]
pub(super) enum RouteFault {
    /// TCP.
    Connect(ConnectFault),
    /// The proxy did not open the connection.
    Proxy(ProxyError),
    /// The trusted root certificates could not be loaded.
    Trust(String),
}

/// A connection: TCP, TLS, or either through a proxy.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A probe of one server. It keeps only the address that answered first.
pub(super) struct Probe {
    /// The server's URL.
    pub(super) url: Url,
    proxy: Option<Proxy>,
    fault: Option<RouteFault>,
    address: Option<SocketAddr>,
    /// The trusted roots. `None` if nothing is encrypted.
    trust: Option<Arc<ClientConfig>>,
    limit: Duration,
}

impl Probe {
    /// Creates a probe of the server at this address. It uses the proxy that the environment names, and the root
    /// certificates and the time limit of the options.
    pub(super) async fn new(url: &str, options: &ConnectOptions) -> Result<Self, ConnectError> {
        let url = ServerUrl::parse(url)?.into_url();
        let (proxy, mut fault) = match Proxy::of_environment(&url).await {
            Ok(proxy) => (proxy, None),
            Err(error) => (None, Some(RouteFault::Proxy(error))),
        };
        let trusts = is_encrypted(&url) || proxy.as_ref().is_some_and(Proxy::is_tls);
        let trust = match trusts {
            true => match tls::config(&options.roots).await {
                Ok(trust) => Some(Arc::new(trust)),
                Err(error) => {
                    fault.get_or_insert(RouteFault::Trust(error.to_string()));
                    None
                }
            },
            false => None,
        };
        Ok(Self { url, proxy, fault, address: None, trust, limit: options.join_timeout })
    }

    /// Returns host, port and environment variable of the proxy, if one is used.
    pub(super) fn proxy(&self) -> Option<String> {
        self.proxy.as_ref().map(ToString::to_string)
    }

    /// Returns the host that is connected to first, the proxy's or the server's, and whether it is an address
    /// already.
    pub(super) fn first_host(&self) -> (String, bool) {
        let (host, _) = self.first();
        (host.to_string(), !matches!(host, Host::Domain(_)))
    }

    fn first(&self) -> (Host<&str>, u16) {
        let proxy = self.proxy.as_ref().map(|proxy| (proxy.host(), proxy.port()));
        proxy.unwrap_or_else(|| (self.server(), port_of(&self.url)))
    }

    /// Returns the server's host.
    pub(super) fn server(&self) -> Host<&str> {
        self.url.host().unwrap_or(Host::Domain(""))
    }

    /// Returns the fault of the environment, if it sets a proxy that cannot be used.
    pub(super) fn proxy_fault(&self) -> Option<&RouteFault> {
        self.fault.as_ref().filter(|fault| matches!(fault, RouteFault::Proxy(_)))
    }

    /// Resolves the first host with the system's resolver.
    pub(super) async fn resolve(&self) -> Result<Vec<SocketAddr>, NameFault> {
        let (host, port) = self.first();
        let name = match host {
            Host::Ipv4(ip) => return Ok(vec![SocketAddr::new(IpAddr::V4(ip), port)]),
            Host::Ipv6(ip) => return Ok(vec![SocketAddr::new(IpAddr::V6(ip), port)]),
            Host::Domain(name) => name,
        };
        let found = time::timeout(self.limit, lookup_host((name, port))).await;
        let found = found.map_err(|_| NameFault::Silent)?;
        let mut addresses = Vec::new();
        for address in found.map_err(|error| NameFault::Unknown(error.to_string()))?.take(MAX_ADDRESSES) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(addresses)
    }

    /// Connects to all of these addresses at once, and keeps the first that answers for the steps that follow.
    pub(super) async fn connect(
        &mut self,
        addresses: &[SocketAddr],
    ) -> Vec<(SocketAddr, Result<(), ConnectFault>)> {
        let (limit, mut open) = (self.limit, JoinSet::new());
        for (at, address) in addresses.iter().copied().enumerate() {
            open.spawn(async move { (at, (address, connect(address, limit).await.map(drop))) });
        }
        let mut tried = Vec::new();
        while let Some(Ok(found)) = open.join_next().await {
            tried.push(found);
        }
        tried.sort_by_key(|(at, _)| *at);
        let tried: Vec<_> = tried.into_iter().map(|(_, found)| found).collect();
        self.address = tried.iter().find(|(_, result)| result.is_ok()).map(|(address, _)| *address);
        tried
    }

    /// Checks that the server is reached; without a proxy that is a further TCP connection.
    pub(super) async fn reach(&self) -> Result<(), RouteFault> {
        self.dial().await.map(drop)
    }

    /// Opens an encrypted connection.
    pub(super) async fn encrypt(&self) -> Result<Encrypted, TlsFault> {
        self.handshake().await.map(|(_, found)| found)
    }

    /// Opens a connection to the server, not encrypted yet.
    async fn dial(&self) -> Result<Box<dyn Stream>, RouteFault> {
        if let Some(fault) = &self.fault {
            return Err(fault.clone());
        }
        let address = self.address.ok_or(RouteFault::Connect(ConnectFault::NoRoute))?;
        let tcp = connect(address, self.limit).await.map_err(RouteFault::Connect)?;
        let Some(proxy) = &self.proxy else { return Ok(Box::new(tcp)) };
        let mut stream: Box<dyn Stream> = Box::new(tcp);
        if proxy.is_tls() {
            let fail = |error: Box<dyn Error + Send + Sync>| RouteFault::Proxy(proxy.failed(error));
            let trust = self.trust.clone().ok_or_else(|| fail("no trust could be set up".into()))?;
            let name = tls::name(&proxy.host()).map_err(|error| fail(error.into()))?;
            let connected = TlsConnector::from(trust).connect(name, stream).await;
            stream = Box::new(connected.map_err(|error| fail(error.into()))?);
        }
        proxy.open(&mut stream, &self.url, self.limit).await.map_err(RouteFault::Proxy)?;
        Ok(stream)
    }

    async fn handshake(&self) -> Result<(TlsStream<Box<dyn Stream>>, Encrypted), TlsFault> {
        let stream = self.dial().await.map_err(TlsFault::Route)?;
        let trust = self.trust.clone().ok_or_else(|| TlsFault::Ended("no trust could be set up".into()))?;
        let name = tls::name(&self.server()).map_err(|error| TlsFault::Certificate(error.to_string()))?;
        let connecting = TlsConnector::from(trust).connect(name, stream);
        let stream = match time::timeout(self.limit, connecting).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return Err(tls_fault(&error)),
            Err(_) => return Err(TlsFault::Ended(format!("nothing came within {}", Spelled(self.limit)))),
        };
        let session = stream.get_ref().1;
        let chain = session.peer_certificates().unwrap_or_default();
        let found = Encrypted {
            version: match session.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => "TLS 1.3",
                Some(rustls::ProtocolVersion::TLSv1_2) => "TLS 1.2",
                _ => "TLS",
            },
            until: chain.first().and_then(|leaf| certificate::valid_until(leaf)),
        };
        Ok((stream, found))
    }

    /// Opens a connection, encrypted if the scheme demands it. The same worked in an earlier step, so a
    /// failure is described briefly.
    async fn open(&self) -> Result<Box<dyn Stream>, String> {
        let way = |fault| match fault {
            RouteFault::Connect(ConnectFault::Refused) => "it was refused".to_owned(),
            RouteFault::Connect(ConnectFault::Other(system)) => system,
            RouteFault::Connect(_) => "nobody answered".to_owned(),
            RouteFault::Proxy(error) => format!("the {error}"),
            RouteFault::Trust(reason) => reason,
        };
        if !is_encrypted(&self.url) {
            return self.dial().await.map_err(way);
        }
        match self.handshake().await {
            Ok((stream, _)) => Ok(Box::new(stream)),
            Err(TlsFault::Route(fault)) => Err(way(fault)),
            Err(_) => Err("it could not be encrypted".to_owned()),
        }
    }
}

/// Returns whether the address asks for TLS.
pub(super) fn is_encrypted(url: &Url) -> bool {
    matches!(url.scheme(), "wss" | "https")
}

async fn connect(address: SocketAddr, limit: Duration) -> Result<TcpStream, ConnectFault> {
    match time::timeout(limit, TcpStream::connect(address)).await {
        Err(_) => Err(ConnectFault::Silent),
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => Err(match error.kind() {
            io::ErrorKind::ConnectionRefused => ConnectFault::Refused,
            io::ErrorKind::TimedOut => ConnectFault::Silent,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::HostUnreachable => ConnectFault::NoRoute,
            io::ErrorKind::AddrNotAvailable => ConnectFault::NoRoute,
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
                TlsFault::OtherName(presented.iter().map(|name| in_dns(name).to_owned()).collect())
            }
            other => TlsFault::Certificate(certificate(other)),
        },
        Error::InvalidMessage(_) => TlsFault::NotTls,
        other => TlsFault::Ended(in_words(other)),
    }
}
