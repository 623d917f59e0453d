//! Owns the sockets of a peer connection: UDP on each local address with a route to the server, TCP, and
//! relays.

use std::{
    cell::Cell,
    future::poll_fn,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    task::Poll,
};

use str0m::net::{Protocol, Transmit};

use super::{
    ice_tcp::{IceTcp, Pair, TcpEvent},
    turn::{RelayEvent, Relays, StunClient},
    udp::UdpSocket,
};

/// How many UDP sockets one peer connection opens: one for each local address with a route to the server.
const MAX_UDP: usize = 8;
/// The largest datagram that is read, in bytes; packets on most networks have at most 1,500.
pub(crate) const MAX_DATAGRAM: usize = 2048;

/// The sockets of one peer connection.
#[derive(Debug)]
pub(crate) struct Sockets {
    bind: Option<IpAddr>,
    udp: Vec<Udp>,
    /// The UDP socket that is read next, so that a flood at one does not delay the others.
    turn: Cell<usize>,
    pub(crate) tcp: IceTcp,
    unsent: Cell<bool>,
    pub(crate) relays: Relays,
    pub(crate) stun_client: StunClient,
}

#[derive(Debug)]
struct Udp {
    socket: Arc<UdpSocket>,
    local: SocketAddr,
}

/// What ended a wait for the sockets.
#[derive(Debug)]
pub(crate) enum Readable {
    /// Datagrams may have arrived.
    Udp,
    /// An event of a TCP connection.
    Tcp(TcpEvent),
    /// An event of a relay.
    Relay(RelayEvent),
}

impl Sockets {
    /// Creates an empty set. With `bind`, only that local address is used.
    pub(crate) fn new(bind: Option<IpAddr>) -> Self {
        Self {
            bind,
            udp: Vec::new(),
            turn: Cell::new(0),
            tcp: IceTcp::new(),
            unsent: Cell::new(false),
            relays: Relays::new(bind),
            stun_client: StunClient::default(),
        }
    }

    /// Opens a UDP socket on the local address with a route to `remote`, if there is none yet. Returns its address if it
    /// is new.
    ///
    /// The address comes from the system's routes, not from a list of its interfaces, so a server on loopback is reached
    /// from loopback, and a server behind a VPN through the VPN.
    pub(crate) fn open_udp_towards(&mut self, remote: SocketAddr) -> io::Result<Option<SocketAddr>> {
        let ip = match self.bind {
            Some(ip) if ip.is_ipv4() == remote.is_ipv4() => ip,
            Some(_) => return Ok(None),
            None => route_to(remote)?,
        };
        // One socket for each local address: ICE pairs it with every remote address, and each further pair
        // costs checks.
        if self.udp.len() >= MAX_UDP || self.udp.iter().any(|udp| udp.local.ip() == ip) {
            return Ok(None);
        }
        let socket = Arc::new(UdpSocket::bind(SocketAddr::new(ip, 0))?);
        let local = socket.local_addr()?;
        self.stun_client.ask(&socket, local, remote);
        self.udp.push(Udp { socket, local });
        Ok(Some(local))
    }

    /// Returns whether this machine has lost the local address of the path in use, while another address has a route to
    /// the server. If no path is in use, returns whether all local addresses are lost.
    pub(crate) fn have_moved(&self, used: Option<SocketAddr>, remotes: &[SocketAddr]) -> bool {
        // Binding works only for an address that this machine has. It sends nothing and needs no list of
        // interfaces.
        let stays = |local: IpAddr| std::net::UdpSocket::bind((local, 0)).is_ok();
        let used = used.map(|local| self.relays.reached_from(local).unwrap_or(local).ip());
        let is_gone = match used {
            Some(local) => !stays(local),
            None => {
                let locals = self.udp.iter().map(|udp| udp.local.ip());
                let mut locals = locals.chain(self.tcp.locals()).chain(self.relays.locals()).peekable();
                locals.peek().is_some() && !locals.any(stays)
            }
        };
        self.bind.is_none() && is_gone && remotes.iter().any(|remote| route_to(*remote).is_ok())
    }

    /// Returns whether the system has refused to send since the last call, which means that the path may be gone.
    pub(crate) fn take_unsent(&self) -> bool {
        self.unsent.take()
    }

    /// Closes all sockets. Others are opened as candidates of the server arrive; relays are contacted again at once.
    pub(crate) fn close_all(&mut self) {
        self.udp.clear();
        self.tcp = IceTcp::new();
        self.relays.contact_again();
    }

    /// Returns whether this is the local address of an open socket or relay.
    pub(crate) fn have(&self, local: SocketAddr) -> bool {
        self.has_udp(local) || self.tcp.has(local) || self.relays.gave(local)
    }

    /// Returns whether this is the local address of an open UDP socket, without a relay.
    pub(crate) fn has_udp(&self, local: SocketAddr) -> bool {
        self.udp.iter().any(|udp| udp.local == local)
    }

    /// The address of the first UDP socket.
    #[cfg(test)]
    pub(crate) fn local_udp(&self) -> SocketAddr {
        self.udp[0].local
    }

    /// Returns whether there is no direct path.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.udp.is_empty() && self.tcp.is_idle()
    }

    /// Opens a TCP connection to a passive candidate.
    pub(crate) fn dial_tcp(&mut self, remote: SocketAddr) {
        match self.bind {
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() => {}
            from => self.tcp.dial(remote, from),
        }
    }

    /// Sends a datagram of the stack. It is lost if its socket does not accept it now, as on any network.
    pub(crate) fn transmit(&self, transmit: Transmit) {
        if transmit.proto != Protocol::Udp {
            let pair = Pair { local: transmit.source, remote: transmit.destination };
            return self.tcp.send(pair, transmit.contents.into());
        }
        let Some(udp) = self.udp.iter().find(|udp| udp.local == transmit.source) else {
            return self.relays.send(transmit.source, transmit.destination, transmit.contents.into());
        };
        if let Err(error) = udp.socket.send_to(&transmit.contents, transmit.destination) {
            tracing::trace!(remote = %transmit.destination, %error, "a datagram was not sent");
            // A full queue is temporary, and a refusal is the ICMP reply to an earlier datagram.
            let passing =
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused);
            self.unsent.set(self.unsent.get() || !passing);
        }
    }

    /// Waits until something can be read.
    ///
    /// # Cancel safety
    /// A dropped future loses nothing.
    pub(crate) async fn readable(&mut self) -> Readable {
        let udp = &self.udp;
        let datagrams = poll_fn(|cx| {
            let ready = udp.iter().any(|udp| udp.socket.poll_readable(cx).is_ready());
            if ready { Poll::Ready(()) } else { Poll::Pending }
        });
        tokio::select! {
            () = datagrams => Readable::Udp,
            event = self.tcp.next() => Readable::Tcp(event),
            event = self.relays.next() => Readable::Relay(event),
        }
    }

    /// Receives a datagram, if one has arrived. Returns its size, its sender and the local address that received it.
    pub(crate) fn try_recv_udp(&self, buffer: &mut [u8]) -> Option<(usize, SocketAddr, SocketAddr)> {
        // An error here is the ICMP reply to an earlier datagram (port unreachable); the stack detects that by timeout.
        let (turn, count) = (self.turn.get(), self.udp.len());
        (turn..turn + count).find_map(|turn| {
            let udp = self.udp.get(turn % count)?;
            let (size, from) = udp.socket.try_recv_from(buffer).ok()?;
            self.turn.set((turn + 1) % count);
            Some((size, from, udp.local))
        })
    }
}

/// Returns the local address from which the system would send to `remote`. Nothing is sent.
fn route_to(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr =
        if remote.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let probe = std::net::UdpSocket::bind((any, 0))?;
    probe.connect(remote)?;
    Ok(probe.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOPBACK: &str = "127.0.0.1:9";

    #[tokio::test]
    async fn loopback_is_reached_from_loopback_by_one_socket() {
        let mut sockets = Sockets::new(None);
        let local = sockets.open_udp_towards(LOOPBACK.parse().unwrap()).unwrap().unwrap();
        assert!(local.ip().is_loopback());
        assert_eq!(sockets.open_udp_towards("127.0.0.1:10".parse().unwrap()).unwrap(), None);
    }

    #[tokio::test]
    async fn removed_address_is_detected_if_it_is_used() {
        let mut sockets = Sockets::new(None);
        let (remote, gone) = (LOOPBACK.parse().unwrap(), "192.0.2.1:5000".parse().unwrap());
        assert!(!sockets.have_moved(None, &[remote]), "there is none");
        let local = sockets.open_udp_towards(remote).unwrap().unwrap();
        assert!(!sockets.have_moved(None, &[remote]) && !sockets.have_moved(Some(local), &[remote]));
        assert!(sockets.have_moved(Some(gone), &[remote]), "though another is there");
        assert!(!sockets.have_moved(Some(gone), &[]), "nothing leads to the server");
    }

    #[tokio::test]
    async fn flood_at_one_socket_does_not_delay_another() {
        let mut sockets = Sockets::new(None);
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut open = |remote: &str| sockets.open_udp_towards(remote.parse().unwrap()).unwrap().unwrap();
        let flooded = open(LOOPBACK);
        sockets.bind = Some("127.0.0.2".parse().unwrap());
        let other = sockets.open_udp_towards(LOOPBACK.parse().unwrap()).unwrap().unwrap();
        for _ in 0..9 {
            peer.send_to(b"flood", flooded).unwrap();
        }
        peer.send_to(b"wanted", other).unwrap();
        let mut buffer = [0; MAX_DATAGRAM];
        for _ in 0..2 {
            poll_fn(|cx| sockets.udp[0].socket.poll_readable(cx)).await;
            poll_fn(|cx| sockets.udp[1].socket.poll_readable(cx)).await;
        }
        let heard = [(); 2].map(|()| sockets.try_recv_udp(&mut buffer).unwrap().2);
        assert_eq!(heard, [flooded, other]);
    }

    #[tokio::test]
    async fn bound_address_is_the_only_local_address() {
        let ip: IpAddr = "127.0.0.1".parse().unwrap();
        let mut sockets = Sockets::new(Some(ip));
        assert_eq!(sockets.open_udp_towards("[::1]:9".parse().unwrap()).unwrap(), None);
        assert_eq!(sockets.open_udp_towards("192.0.2.1:9".parse().unwrap()).unwrap().unwrap().ip(), ip);
    }

    #[tokio::test]
    async fn datagrams_are_reported_with_both_addresses() {
        let mut sockets = Sockets::new(None);
        let local = sockets.open_udp_towards(LOOPBACK.parse().unwrap()).unwrap().unwrap();
        let peer = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        peer.send_to(b"hello", local).unwrap();
        let mut buffer = [0; MAX_DATAGRAM];
        let heard = loop {
            assert!(matches!(sockets.readable().await, Readable::Udp));
            if let Some(heard) = sockets.try_recv_udp(&mut buffer) {
                break heard;
            }
        };
        assert_eq!(heard, (5, peer.local_addr().unwrap(), local));
    }
}
