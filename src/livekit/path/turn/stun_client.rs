//! Asks STUN servers for the reflexive addresses of local sockets, as seen from outside a NAT ([RFC
//! 8489](https://www.rfc-editor.org/rfc/rfc8489)).
//!
//! The LiveKit server usually learns the client's address from the first packet. A server behind its own firewall
//! receives that packet only after it has sent one itself: for such a server the reflexive address is sent as a
//! candidate, if it is known in time. Nothing waits for it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use livekit_protocol::IceServer;
use tokio::{task::JoinSet, time};

use super::{
    MAX_URLS, connection,
    stun::{Class, Message, Method, Transaction, Writer, attribute},
    url::{IceUrl, Kind},
};
use crate::livekit::path::udp::UdpSocket;

/// The most servers that are asked.
const MAX_SERVERS: usize = 2;
/// The most local sockets that are queried.
const MAX_SOCKETS: usize = 8;
/// When a query is sent (again), each time relative to the one before. A later response would be useless to a join.
const ASK_AFTER: [Duration; 3] = [Duration::ZERO, Duration::from_millis(500), Duration::from_millis(1000)];

/// The queries of one peer connection. Dropping it ends them.
#[derive(Debug, Default)]
pub(crate) struct StunClient {
    servers: Vec<IceUrl>,
    open: Vec<Question>,
    asked: usize,
    tasks: JoinSet<()>,
}

/// A local socket whose reflexive address is queried.
#[derive(Debug)]
struct Question {
    local: SocketAddr,
    transaction: Transaction,
}

impl StunClient {
    /// Sets the servers to ask. A relay over UDP answers such queries too.
    pub(crate) fn use_servers(&mut self, servers: &[IceServer]) {
        let urls = servers.iter().flat_map(|server| &server.urls).take(MAX_URLS);
        let urls = urls.filter_map(|text| IceUrl::parse(text));
        let urls = urls.filter(|url| matches!(url.kind, Kind::Stun | Kind::TurnUdp));
        self.servers = urls.take(MAX_SERVERS).collect();
    }

    /// Queries the reflexive address of the socket that is to reach this address, if the two can differ: on one
    /// machine and in one private network they do not, and no third party needs to learn about this client.
    pub(crate) fn ask(&mut self, socket: &Arc<UdpSocket>, local: SocketAddr, remote: SocketAddr) {
        if is_public(remote.ip()) && !is_public(local.ip()) {
            self.begin(socket, local);
        }
    }

    fn begin(&mut self, socket: &Arc<UdpSocket>, local: SocketAddr) {
        let mut transaction = Transaction::default();
        if self.servers.is_empty() || self.asked >= MAX_SOCKETS || getrandom::fill(&mut transaction).is_err()
        {
            return;
        }
        self.asked += 1;
        self.open.push(Question { local, transaction });
        for server in self.servers.clone() {
            let (socket, family) = (socket.clone(), local.ip());
            self.tasks.spawn(async move {
                let found = connection::resolve(&server, Some(family)).await;
                let Some(to) = found.ok().and_then(|found| found.into_iter().next()) else {
                    return tracing::debug!(%server, "a STUN server was not found");
                };
                let question = Writer::new(Class::Request, Method::Binding, transaction).finish();
                for wait in ASK_AFTER {
                    time::sleep(wait).await;
                    // A lost query is repeated.
                    let _ = socket.send_to(&question, to);
                }
            });
        }
    }

    /// Inspects a datagram that arrived at a local socket; returns the reflexive address if it is the response.
    pub(crate) fn hear(&mut self, local: SocketAddr, datagram: &[u8]) -> Option<SocketAddr> {
        if self.open.is_empty() {
            return None;
        }
        let answer = Message::read(datagram)?;
        if (answer.class, answer.method) != (Class::Success, Method::Binding) {
            return None;
        }
        // Anybody can send to this socket. The random transaction id proves that the response is to this
        // query.
        let is_its = |it: &Question| it.local == local && it.transaction == answer.transaction();
        let at = self.open.iter().position(is_its)?;
        let mapped = answer.address(attribute::XOR_MAPPED_ADDRESS)?;
        self.open.swap_remove(at);
        if self.open.is_empty() {
            self.tasks.abort_all();
        }
        Some(mapped)
    }
}

/// Returns whether an address is a public one of the Internet.
fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [first, second, ..] = ip.octets();
            // 100.64.0.0/10 is behind a provider's NAT.
            let is_shared = first == 100 && second & 0xc0 == 64;
            !(is_shared || ip.is_private() || ip.is_loopback() || ip.is_link_local() || is_none(ip))
        }
        IpAddr::V6(ip) => ip.segments()[0] & 0xe000 == 0x2000 && !is_documentation(ip),
    }
}

fn is_none(ip: Ipv4Addr) -> bool {
    ip.octets()[0] == 0 || ip.is_multicast() || ip.is_broadcast() || ip.is_documentation()
}

fn is_documentation(ip: Ipv6Addr) -> bool {
    ip.segments()[..2] == [0x2001, 0xdb8]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(urls: &[String]) -> Vec<IceServer> {
        vec![IceServer { urls: urls.to_vec(), ..Default::default() }]
    }

    fn socket() -> Arc<UdpSocket> {
        Arc::new(UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap())
    }

    #[tokio::test]
    async fn reflexive_address_is_queried_and_reported_once() {
        let stun = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let socket = socket();
        let local = socket.local_addr().unwrap();
        let mut stun_client = StunClient::default();
        stun_client.use_servers(&servers(&[format!("stun:{}", stun.local_addr().unwrap())]));
        stun_client.begin(&socket, local);
        let mut buffer = [0; 100];
        let (size, from) = stun.recv_from(&mut buffer).await.unwrap();
        assert_eq!(from, local, "asked from the socket that is asked for");
        let question = Message::read(&buffer[..size]).unwrap();
        assert_eq!((question.class, question.method), (Class::Request, Method::Binding));

        let mapped = "203.0.113.7:4000".parse().unwrap();
        let answer = |transaction| {
            let answer = Writer::new(Class::Success, Method::Binding, transaction);
            answer.address(attribute::XOR_MAPPED_ADDRESS, mapped).finish()
        };
        let other = "127.0.0.1:1".parse().unwrap();
        let true_one = answer(question.transaction());
        assert_eq!(stun_client.hear(local, &answer([1; 12])), None, "a response without a request");
        assert_eq!(stun_client.hear(other, &true_one), None, "of another socket");
        assert_eq!(stun_client.hear(local, b"not even a message"), None);
        assert_eq!(stun_client.hear(local, &true_one), Some(mapped));
        assert_eq!(stun_client.hear(local, &true_one), None, "once is enough");
    }

    #[tokio::test]
    async fn path_without_nat_is_not_queried() {
        let socket = socket();
        let mut stun_client = StunClient::default();
        stun_client
            .use_servers(&servers(&["stun:127.0.0.1:9".into(), "turn:127.0.0.1:9?transport=tcp".into()]));
        assert_eq!(stun_client.servers.len(), 1);
        for (local, remote) in [
            ("127.0.0.1:1", "127.0.0.1:2"),
            ("192.168.1.2:1", "192.168.1.3:2"),
            ("10.0.0.1:1", "100.64.0.1:2"),
            ("198.41.0.4:1", "1.1.1.1:2"),
            ("[fd00::1]:1", "[fd00::2]:2"),
            ("[2a00::1]:1", "[2606::1]:2"),
        ] {
            stun_client.ask(&socket, local.parse().unwrap(), remote.parse().unwrap());
            assert_eq!(stun_client.asked, 0, "{local} {remote}");
        }
        for _ in 0..2 * MAX_SOCKETS {
            stun_client.ask(&socket, "192.168.1.2:1".parse().unwrap(), "1.1.1.1:2".parse().unwrap());
        }
        assert_eq!(stun_client.asked, MAX_SOCKETS);
    }
}
