//! Finds out whether a participant's process has ended, by its socket.
//!
//! A process that is killed says nothing, but the system closes its sockets. Its signaling connection ends, which it also does
//! when a participant loses it and resumes. The difference is the socket for packets: a datagram to a closed one is refused on
//! the same machine.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{net::UdpSocket, time};

/// The number of datagrams that are sent: the system closes the sockets of a process one after the other.
const PROBES: usize = 10;
/// The time between them.
const INTERVAL: Duration = Duration::from_millis(200);
/// The datagram: no protocol of WebRTC begins so ([RFC 7983](https://www.rfc-editor.org/rfc/rfc7983#section-7)).
const PROBE: &[u8] = &[0xff];

/// Returns whether no socket of this machine has this address, within 2 s.
pub(super) async fn is_closed(address: SocketAddr) -> bool {
    // If the system has no socket left, the participant leaves after its timeouts.
    probe(address).await.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

async fn probe(address: SocketAddr) -> io::Result<()> {
    let any = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).await?;
    socket.connect(address).await?;
    for _ in 0..PROBES {
        socket.send(PROBE).await?;
        // The system reports the refusal with the next operation.
        if let Ok(answer) = time::timeout(INTERVAL, socket.recv(&mut [0])).await {
            answer?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_closed_socket_is_closed() {
        let open = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = open.local_addr().unwrap();
        assert!(!is_closed(address).await);
        drop(open);
        assert!(is_closed(address).await);
    }
}
