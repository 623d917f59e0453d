//! Connects to a relay: resolves its name, opens UDP, TCP or TLS, and splits the stream into frames.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::{Buf, BytesMut};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    net::{TcpSocket, UdpSocket, lookup_host},
    time,
};
use tokio_rustls::TlsConnector;

use super::{
    error::RelayError,
    frame,
    url::{IceUrl, Kind},
};
use crate::livekit::signaling::{dial, tls};

/// The time limit of a name lookup.
const LOOKUP_LIMIT: Duration = Duration::from_secs(4);
/// The number of addresses per name that are tried, one after the other.
const MAX_ADDRESSES: usize = 4;
/// The time limit of connecting to one address, including TLS.
const CONNECT_LIMIT: Duration = Duration::from_secs(4);
/// The size of one read, in bytes.
const READ: usize = 16 * 1024;
/// The size of unwritten data on a stream, in bytes, at which no more datagrams are accepted.
const WAITING: usize = 32 * 1024;

/// A connection to a relay, with its local and remote address.
pub(super) struct RelayConnection {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
}

/// Resolves the relay's name to addresses of the allowed family. IPv4 and IPv6 alternate, since one of them may not work.
pub(crate) async fn resolve(url: &IceUrl, from: Option<IpAddr>) -> Result<Vec<SocketAddr>, RelayError> {
    let not_found = |error: io::Error| RelayError::NotFound(error.to_string());
    let found = time::timeout(LOOKUP_LIMIT, lookup_host((url.host.as_str(), url.port))).await;
    Ok(usable(found.map_err(|_| RelayError::Silent(LOOKUP_LIMIT))?.map_err(not_found)?, from))
}

fn usable(found: impl Iterator<Item = SocketAddr>, from: Option<IpAddr>) -> Vec<SocketAddr> {
    let of_our_family = found.filter(|it| from.is_none_or(|from| from.is_ipv4() == it.is_ipv4()));
    let mut usable = dial::in_turn(of_our_family);
    usable.truncate(MAX_ADDRESSES);
    usable
}

/// Connects to one address of a relay, from the local address `from` if given.
pub(super) async fn open(
    url: &IceUrl,
    remote: SocketAddr,
    from: Option<IpAddr>,
    roots: &[CertificateDer<'static>],
) -> Result<RelayConnection, RelayError> {
    let connected = time::timeout(CONNECT_LIMIT, connect(url, remote, from, roots)).await;
    connected.unwrap_or(Err(RelayError::Silent(CONNECT_LIMIT)))
}

async fn connect(
    url: &IceUrl,
    remote: SocketAddr,
    from: Option<IpAddr>,
    roots: &[CertificateDer<'static>],
) -> Result<RelayConnection, RelayError> {
    let unreachable = |error: io::Error| RelayError::Unreachable(error.to_string());
    if matches!(url.kind, Kind::TurnUdp | Kind::Stun) {
        let any: IpAddr =
            if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((from.unwrap_or(any), 0)).await.map_err(unreachable)?;
        // From here on only datagrams of the relay are received.
        socket.connect(remote).await.map_err(unreachable)?;
        // Until the socket was reported writable, `try_send` fails and the first request would be lost.
        socket.writable().await.map_err(unreachable)?;
        let (local, socket) = (socket.local_addr().map_err(unreachable)?, Arc::new(socket));
        let (reader, writer) = (Reader::Udp(socket.clone()), Writer::Udp(socket));
        return Ok(RelayConnection { reader, writer, local, remote });
    }
    let socket = if remote.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let socket = socket.map_err(unreachable)?;
    if let Some(ip) = from {
        socket.bind(SocketAddr::new(ip, 0)).map_err(unreachable)?;
    }
    let stream = socket.connect(remote).await.map_err(unreachable)?;
    // The stream carries datagrams: none may wait for the next.
    stream.set_nodelay(true).map_err(unreachable)?;
    let local = stream.local_addr().map_err(unreachable)?;
    let stream: Box<dyn Stream> = if url.kind == Kind::TurnTls {
        let failed = |error: &dyn std::error::Error| RelayError::Tls(error.to_string());
        let name = ServerName::try_from(url.host.clone()).map_err(|error| failed(&error))?;
        let config = tls::config(roots).await.map_err(|error| RelayError::Tls(error.to_string()))?;
        let connector = TlsConnector::from(Arc::new(config));
        Box::new(connector.connect(name, stream).await.map_err(|error| failed(&error))?)
    } else {
        Box::new(stream)
    };
    let (reader, writer) = split(stream);
    let writer = Writer::Stream { half: writer, waiting: BytesMut::new(), unflushed: false };
    Ok(RelayConnection { reader: Reader::Stream(reader), writer, local, remote })
}

/// TCP, or TLS on it.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// The receiving half.
pub(super) enum Reader {
    Udp(Arc<UdpSocket>),
    Stream(ReadHalf<Box<dyn Stream>>),
}

impl Reader {
    /// Waits for more data.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(super) async fn read(&mut self, buffer: &mut BytesMut) -> io::Result<()> {
        // A datagram that does not fit the buffer is cut off, so there is room for the largest before the
        // socket is read.
        buffer.reserve(READ);
        match self {
            Self::Udp(socket) => {
                buffer.clear();
                socket.recv_buf(buffer).await?;
            }
            Self::Stream(half) => {
                if half.read_buf(buffer).await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        Ok(())
    }

    /// Splits the next complete frame off the data read.
    pub(super) fn take(&self, buffer: &mut BytesMut) -> Result<Option<BytesMut>, RelayError> {
        match self {
            Self::Udp(_) => Ok((!buffer.is_empty()).then(|| buffer.split())),
            Self::Stream(_) => {
                frame::split(buffer).map_err(|frame::Broken| RelayError::Malformed("on its stream"))
            }
        }
    }

    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }
}

/// The sending half.
pub(super) enum Writer {
    Udp(Arc<UdpSocket>),
    Stream { half: WriteHalf<Box<dyn Stream>>, waiting: BytesMut, unflushed: bool },
}

impl Writer {
    /// Writes a frame, or queues it on a stream. A UDP datagram that the socket does not accept is lost.
    pub(super) fn push(&mut self, frame: &[u8]) {
        match self {
            Self::Udp(socket) => {
                if let Err(error) = socket.try_send(frame) {
                    tracing::trace!(%error, "a datagram to a relay was not sent");
                }
            }
            Self::Stream { waiting, .. } => waiting.extend_from_slice(frame),
        }
    }

    /// Returns true if datagrams can be pushed now.
    pub(super) fn has_room(&self) -> bool {
        match self {
            Self::Udp(_) => true,
            Self::Stream { waiting, .. } => waiting.len() < WAITING,
        }
    }

    /// Returns true if data waits to be written.
    pub(super) fn waits(&self) -> bool {
        match self {
            Self::Udp(_) => false,
            Self::Stream { waiting, unflushed, .. } => *unflushed || !waiting.is_empty(),
        }
    }

    /// Writes the queued data.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if let Self::Stream { half, waiting, unflushed } = self {
            *unflushed = true;
            while waiting.has_remaining() {
                if half.write_buf(waiting).await? == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
            }
            // TLS keeps encrypted bytes that the socket did not take, and only a flush writes them.
            half.flush().await?;
            *unflushed = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_address_families_are_tried() {
        let parse = |text: &str| text.parse::<SocketAddr>().unwrap();
        let found = ["[::1]:1", "[::2]:1", "[::3]:1", "[::4]:1", "[::5]:1", "192.0.2.1:1"].map(parse);
        let all = usable(found.into_iter(), None);
        assert_eq!(all, ["[::1]:1", "192.0.2.1:1", "[::2]:1", "[::3]:1"].map(parse));
        let addresses = usable(found.into_iter(), Some("192.0.2.9".parse().unwrap()));
        assert_eq!(addresses, [parse("192.0.2.1:1")]);
    }
}
