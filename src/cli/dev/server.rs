//! An embedded LiveKit-compatible server for development and tests, on loopback only.
//!
//! It supports data channels but no media, and stores nothing. Clients that offer media, as LiveKit's SDKs do, get an answer
//! with inactive media. Each participant has one peer connection. Older SDKs, which join at `/rtc` with two, are told
//! that theirs is the primary one, and the other is never used.
//!
//! As far as a toolbridge participant can observe, it behaves like livekit-server, with two differences. It
//! announces a new participant at once and a departure after 500 ms, where livekit-server may take 3 s. If 32 MiB are
//! queued for a slow participant, it asks that participant to rejoin, where livekit-server drops packets.
//!
//! `room` holds the state without I/O; `event_loop` is the task around it; `listener`, `http`, `signal` and `twirp` accept
//! requests; `peer` is the peer connection of one participant, and `sdp` its offers.

#![expect(clippy::disallowed_methods, reason = "the server has its own clock and ends its tasks itself")]

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

mod clock;
mod event_loop;
mod faults;
mod grant;
mod http;
mod ice_tcp;
mod listener;
mod packet;
mod peer;
mod room;
mod sdp;
mod signal;
#[cfg(test)]
mod tests;
mod twirp;

pub(crate) use grant::Key;

use event_loop::{Server, Sockets};
use ice_tcp::IceTcp;
use listener::Listener;

/// The receive buffer of the UDP socket, in bytes, if the system allows it: all participants share the socket.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// The reported server version: the livekit-server version whose behavior it follows.
const VERSION: &str = "1.13.5";

/// A running server. Dropping it stops it without notifying participants.
#[derive(Debug)]
pub(crate) struct DevServer {
    address: SocketAddr,
    key: Key,
    stop: CancellationToken,
    task: JoinHandle<()>,
    #[cfg(test)]
    inputs: mpsc::Sender<event_loop::ServerInput>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on 127.0.0.1:{port} for {what}: {source}")]
pub(crate) struct StartError {
    port: u16,
    what: &'static str,
    source: io::Error,
}

impl StartError {
    /// Returns whether another program uses the port.
    pub(crate) fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

impl DevServer {
    /// Starts the server on this port of 127.0.0.1, and on the next two for packets over TCP and UDP, as
    /// `livekit-server --dev` does. Port 0 picks three free ports.
    ///
    /// Requests must be addressed to a name of this machine or to one of `names`.
    ///
    /// # Errors
    /// A port cannot be opened.
    pub(crate) async fn start(port: u16, key: Key, names: Vec<String>) -> Result<Self, StartError> {
        let ports = match port {
            0 => [0; 3],
            port => [0, 1, 2].map(|n| port.saturating_add(n)),
        };
        let at = |n: usize| (Ipv4Addr::LOCALHOST, ports[n]);
        const WHAT: [&str; 3] = ["signaling", "packets over TCP", "packets over UDP"];
        let failed = |n: usize| move |source| StartError { port: ports[n], what: WHAT[n], source };
        let listener = TcpListener::bind(at(0)).await.map_err(failed(0))?;
        let tcp = TcpListener::bind(at(1)).await.map_err(failed(1))?;
        let udp = UdpSocket::bind(at(2)).await.map_err(failed(2))?;
        // All participants send to this socket. A packet that does not fit is lost, and each loss costs about a second.
        if let Err(error) = set_socket_recv_buffer_size(&udp, RECEIVE_BUFFER) {
            tracing::debug!(%error, "the UDP receive buffer could not be enlarged");
        }
        let address = listener.local_addr().map_err(failed(0))?;
        let addresses = [udp.local_addr().map_err(failed(2))?, tcp.local_addr().map_err(failed(1))?];
        let (inputs, queue) = mpsc::channel(event_loop::MAX_INPUTS);
        let stop = CancellationToken::new();
        let sockets = Sockets { udp, tcp: IceTcp::new(tcp), addresses };
        let server = Server::new(key.clone(), sockets, queue);
        let accepting = Listener { listener, key: key.clone(), names, inputs: inputs.clone() };
        let task = tokio::spawn(accepting.run(server.run(stop.clone())));
        Ok(Self {
            address,
            key,
            stop,
            task,
            #[cfg(test)]
            inputs,
        })
    }

    /// Returns the URL to join.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Returns the key that signs tokens for this server.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Waits until the server ends by itself, which only a bug causes, and returns the reason. Do not call `close` after it.
    pub(crate) async fn failed(&mut self) -> String {
        match (&mut self.task).await {
            Ok(()) => "its task ended".to_owned(),
            Err(error) => match error.try_into_panic().map(|panic| panic.downcast::<String>()) {
                Ok(Ok(message)) => *message,
                Ok(Err(other)) => {
                    other.downcast_ref::<&str>().map_or_else(|| "a panic".to_owned(), |it| (*it).to_owned())
                }
                Err(error) => error.to_string(),
            },
        }
    }

    /// Disconnects all participants and stops, within about a second.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        // Only the end of the task matters, not its result.
        let _ = (&mut self.task).await;
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
