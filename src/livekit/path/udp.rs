//! Wraps a UDP socket so that it wakes its task only if a datagram has arrived.
//!
//! The system reports a socket as writable again after each datagram that left it, and tokio's own socket is registered for that,
//! too: each datagram sent would wake the process once more. Nothing here waits to write: a datagram that the socket does not
//! accept is lost, as on any network. So on Unix the socket is registered for reading alone.
//!
//! Not for connected sockets: the error that an ICMP reply leaves on them, and that a relay's connection waits for, is no datagram to
//! read, and would not wake the task.

use std::{
    io,
    net::{self, SocketAddr},
    task::{Context, Poll},
};

use registered::Registered;

/// The socket.
#[derive(Debug)]
pub(crate) struct UdpSocket(Registered);

impl UdpSocket {
    /// Opens a socket at this address; port 0 means a free one.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    pub(crate) fn bind(at: SocketAddr) -> io::Result<Self> {
        let socket = net::UdpSocket::bind(at)?;
        socket.set_nonblocking(true)?;
        Registered::new(socket).map(Self)
    }

    /// Returns the address that the socket is bound to.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Polls whether a datagram may have arrived.
    pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_readable(cx)
    }

    /// Receives a datagram, if one has arrived. Returns its size and its sender. What does not fit into the buffer is lost.
    ///
    /// # Errors
    /// `WouldBlock`: none has arrived.
    pub(crate) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.0.try_recv_from(buffer)
    }

    /// Sends a datagram now.
    ///
    /// # Errors
    /// It was not sent, and is not sent later.
    pub(crate) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
        self.0.send_to(datagram, to)
    }
}

#[cfg(unix)]
mod registered {
    use tokio::io::{Interest, unix::AsyncFd};

    use super::{Context, Poll, SocketAddr, io, net};

    #[derive(Debug)]
    pub(crate) struct Registered(AsyncFd<net::UdpSocket>);

    impl Registered {
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe: it asks for what the type of the standard library keeps"
        )]
        pub(crate) fn new(socket: net::UdpSocket) -> io::Result<Self> {
            AsyncFd::with_interest(socket, Interest::READABLE).map(Self)
        }

        pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
            self.0.get_ref().local_addr()
        }

        pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
            // It fails only while the runtime ends.
            self.0.poll_read_ready(cx).map(|_| ())
        }

        pub(crate) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
            self.0.try_io(Interest::READABLE, |socket| socket.recv_from(buffer))
        }

        pub(crate) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
            self.0.get_ref().send_to(datagram, to).map(|_| ())
        }
    }
}

#[cfg(not(unix))]
mod registered {
    use tokio::net::UdpSocket;

    use super::{Context, Poll, SocketAddr, io, net};

    #[derive(Debug)]
    pub(crate) struct Registered(UdpSocket);

    impl Registered {
        pub(crate) fn new(socket: net::UdpSocket) -> io::Result<Self> {
            UdpSocket::from_std(socket).map(Self)
        }

        pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
            self.0.local_addr()
        }

        pub(crate) fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
            self.0.poll_recv_ready(cx).map(|_| ())
        }

        pub(crate) fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
            self.0.try_recv_from(buffer)
        }

        pub(crate) fn send_to(&self, datagram: &[u8], to: SocketAddr) -> io::Result<()> {
            self.0.try_send_to(datagram, to).map(|_| ())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
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
        let waits = Arc::new(AtomicUsize::new(0));
        let (counted, seen) = (Arc::clone(&waits), Arc::clone(&waits));
        let answering = std::thread::spawn(move || {
            for round in 0..ROUNDS {
                let (_, from) = peer.recv_from(&mut [0; 8]).unwrap();
                while seen.load(SeqCst) <= round {
                    std::thread::yield_now(); // until it waits for the answer
                }
                peer.send_to(b"answer", from).unwrap();
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .on_thread_park(move || _ = counted.fetch_add(1, SeqCst))
            .build()
            .unwrap();
        runtime.block_on(async {
            let socket = UdpSocket::bind(ANY.parse().unwrap()).unwrap();
            let mut buffer = [0; 8];
            for _ in 0..ROUNDS {
                socket.send_to(b"question", remote).unwrap();
                while socket.try_recv_from(&mut buffer).is_err() {
                    poll_fn(|cx| socket.poll_readable(cx)).await;
                }
                assert_eq!(&buffer[..6], b"answer");
            }
        });
        answering.join().unwrap();
        assert_eq!(waits.load(SeqCst), ROUNDS);
    }

    #[tokio::test]
    async fn datagram_that_has_not_arrived_is_not_waited_for() {
        let (peer, socket) =
            (net::UdpSocket::bind(ANY).unwrap(), UdpSocket::bind(ANY.parse().unwrap()).unwrap());
        let mut buffer = [0; 8];
        let nothing =
            |read: io::Result<_>| read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        assert!(nothing(socket.try_recv_from(&mut buffer)));
        peer.send_to(b"in", socket.local_addr().unwrap()).unwrap();
        poll_fn(|cx| socket.poll_readable(cx)).await;
        assert_eq!(socket.try_recv_from(&mut buffer).unwrap(), (2, peer.local_addr().unwrap()));
        assert!(nothing(socket.try_recv_from(&mut buffer)));
    }
}
