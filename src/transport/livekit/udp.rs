//! A UDP socket that wakes its task only if a datagram has arrived.
//!
//! The system reports a socket as writable again after each datagram that left it, and tokio's own socket is registered for that,
//! too: each datagram sent would wake the process once more. Nothing here waits to write: a datagram that the socket does not
//! accept is lost, as on any network. So on Unix the socket is registered for reading alone.

use std::{
    future::poll_fn,
    io,
    net::{self, SocketAddr},
    task::{Context, Poll},
};

use bytes::BytesMut;

use registered::Registered;

/// The socket.
#[derive(Debug)]
pub(super) struct UdpSocket(Registered);

impl UdpSocket {
    /// Opens a socket at this address; port 0 means a free one. With `remote`, only datagrams of that address are received, and
    /// [`send`](Self::send) sends to it.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub(super) fn bind(at: SocketAddr, remote: Option<SocketAddr>) -> io::Result<Self> {
        let socket = net::UdpSocket::bind(at)?;
        if let Some(remote) = remote {
            socket.connect(remote)?;
        }
        socket.set_nonblocking(true)?;
        Registered::new(socket).map(Self)
    }

    /// Returns the address that the socket is bound to.
    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Ready if a datagram may have arrived.
    pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_readable(cx)
    }

    /// Receives a datagram, if one has arrived. Returns its size and its sender. What does not fit into the buffer is lost.
    ///
    /// # Errors
    /// `WouldBlock`: none has arrived.
    pub(super) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.try_recv_from(buffer)
    }

    /// Waits for the next datagram, and replaces the content of the buffer by it, up to this size.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn recv_buf(&self, buffer: &mut BytesMut, limit: usize) -> io::Result<()> {
        loop {
            poll_fn(|cx| self.poll_readable(cx)).await;
            buffer.resize(limit, 0);
            let read = self.try_recv_from(buffer);
            buffer.truncate(read.as_ref().map_or(0, |(size, _)| *size));
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(|_| ()),
            }
        }
    }

    /// Sends a datagram now.
    ///
    /// # Errors
    /// It was not sent, and is not sent later.
    pub(super) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.send_to(datagram, to)
    }

    /// Sends a datagram to the connected address now.
    ///
    /// # Errors
    /// It was not sent, and is not sent later.
    pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
        self.0.send(datagram)
    }
}

#[cfg(unix)]
mod registered {
    use tokio::io::{Interest, unix::AsyncFd};

    use super::{Context, Poll, SocketAddr, io, net};

    #[derive(Debug)]
    pub(super) struct Registered(AsyncFd<net::UdpSocket>);

    impl Registered {
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe: it asks for what the type of the standard library keeps"
        )]
        pub(super) fn new(socket: net::UdpSocket) -> io::Result<Self> {
            AsyncFd::with_interest(socket, Interest::READABLE).map(Self)
        }

        pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
            self.0.get_ref().local_addr()
        }

        pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
            // It fails only while the runtime ends.
            self.0.poll_read_ready(cx).map(|_| ())
        }

        pub(super) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
            self.0.try_io(Interest::READABLE, |socket| socket.recv_from(buffer))
        }

        pub(super) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
            self.0.get_ref().send_to(datagram, to).map(|_| ())
        }

        pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
            self.0.get_ref().send(datagram).map(|_| ())
        }
    }
}

#[cfg(not(unix))]
mod registered {
    use tokio::net::UdpSocket;

    use super::{Context, Poll, SocketAddr, io, net};

    #[derive(Debug)]
    pub(super) struct Registered(UdpSocket);

    impl Registered {
        pub(super) fn new(socket: net::UdpSocket) -> io::Result<Self> {
            UdpSocket::from_std(socket).map(Self)
        }

        pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
            self.0.local_addr()
        }

        pub(super) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
            self.0.poll_recv_ready(cx).map(|_| ())
        }

        pub(super) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
            self.0.try_recv_from(buffer)
        }

        pub(super) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
            self.0.try_send_to(datagram, to).map(|_| ())
        }

        pub(super) fn send(&self, datagram: &[u8]) -> io::Result<()> {
            self.0.try_send(datagram).map(|_| ())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;

    const ANY: &str = "127.0.0.1:0";

    /// The thread waits once for each answer, and not once more because the datagram before it has left.
    #[test]
    #[cfg(unix)]
    fn datagram_that_has_left_wakes_nobody() {
        const ROUNDS: usize = 100;
        let peer = net::UdpSocket::bind(ANY).unwrap();
        let remote = peer.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            for _ in 0..ROUNDS {
                let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
                peer.send_to(b"answer", from).unwrap();
            }
        });
        let waits = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&waits);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .on_thread_park(move || _ = counted.fetch_add(1, SeqCst))
            .build()
            .unwrap();
        runtime.block_on(async {
            let socket = UdpSocket::bind(ANY.parse().unwrap(), Some(remote)).unwrap();
            let mut buffer = BytesMut::new();
            for _ in 0..ROUNDS {
                socket.send(b"question").unwrap();
                socket.recv_buf(&mut buffer, 8).await.unwrap();
                assert_eq!(buffer, "answer");
            }
        });
        answering.join().unwrap();
        assert!(waits.load(SeqCst) <= ROUNDS, "{waits:?} waits for {ROUNDS} answers");
    }

    #[tokio::test]
    async fn datagram_that_has_not_arrived_is_not_waited_for() {
        let (peer, socket) =
            (net::UdpSocket::bind(ANY).unwrap(), UdpSocket::bind(ANY.parse().unwrap(), None).unwrap());
        let mut buffer = [0; 8];
        let nothing =
            |read: io::Result<_>| read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(nothing(socket.try_recv_from(&mut buffer)));
        peer.send_to(b"in", socket.local_addr().unwrap()).unwrap();
        poll_fn(|cx| socket.poll_readable(cx)).await;
        assert_eq!(socket.try_recv_from(&mut buffer).unwrap(), (2, peer.local_addr().unwrap()));
        assert!(nothing(socket.try_recv_from(&mut buffer)));
    }

    #[tokio::test]
    async fn connected_socket_receives_its_peer_alone() {
        let (peer, stranger) = (net::UdpSocket::bind(ANY).unwrap(), net::UdpSocket::bind(ANY).unwrap());
        let socket = UdpSocket::bind(ANY.parse().unwrap(), Some(peer.local_addr().unwrap())).unwrap();
        let here = socket.local_addr().unwrap();
        stranger.send_to(b"stranger", here).unwrap();
        socket.send(b"hello").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (5, here));
        peer.send_to(b"hi", here).unwrap();
        let mut buffer = BytesMut::from(&b"earlier"[..]);
        socket.recv_buf(&mut buffer, 8).await.unwrap();
        assert_eq!(buffer, "hi");
    }
}
