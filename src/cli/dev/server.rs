//! A small LiveKit-compatible server inside the process: for our own participants, for development and tests, on loopback only.
//!
//! It carries data and no media, speaks the newer signalling alone (`/rtc/v1`, one peer connection), and keeps nothing.
//! What a participant of ours can tell apart it does as livekit-server does it, with two differences: it tells at once
//! who comes, and after 500 ms who has left, where the real one may take 3 s; and whoever reads so slowly that 32 MiB
//! wait for it is asked to join anew, where the real one drops packets.
//!
//! `room` is state alone; `server` is the one task around it; `listener`, `http`, `signal` and `twirp` are the ways in, `peer` is
//! one connection of a participant.

#![expect(clippy::disallowed_methods, reason = "the server owns its clock and ends its tasks itself")]

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
mod signal;
#[cfg(test)]
mod tests;
mod twirp;

pub(crate) use grant::Key;

use event_loop::{Server, Sockets};
use ice_tcp::IceTcp;
use listener::Listener;

/// How many bytes of datagrams wait to be read, if the system allows it: several participants' at once.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// What it calls itself: of the version that it follows.
const VERSION: &str = "1.13.5";

/// A running server. Dropping it ends it without a goodbye.
#[derive(Debug)]
pub(crate) struct DevServer {
    address: SocketAddr,
    key: Key,
    stop: CancellationToken,
    task: JoinHandle<()>,
    #[cfg(test)]
    inputs: mpsc::Sender<event_loop::ServerInput>,
}

/// Why it did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on 127.0.0.1:{port} for {what}: {source}")]
pub(crate) struct StartError {
    port: u16,
    what: &'static str,
    source: io::Error,
}

impl StartError {
    /// Whether somebody else has the port.
    pub(crate) fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

impl DevServer {
    /// Starts it on this port of 127.0.0.1, and on the two that follow for packets over TCP and over UDP, as LiveKit's
    /// own development server does. With port 0 all three are any.
    ///
    /// Requests must be addressed to a name of this machine, or to one of `names`.
    ///
    /// # Errors
    /// A port is not to be had.
    pub(crate) async fn start(port: u16, key: Key, names: Vec<String>) -> Result<Self, StartError> {
        let ports = match port {
            0 => [0; 3],
            port => [0, 1, 2].map(|n| port.saturating_add(n)),
        };
        let at = |n: usize| (Ipv4Addr::LOCALHOST, ports[n]);
        const WHAT: [&str; 3] = ["signalling", "packets over TCP", "packets over UDP"];
        let failed = |n: usize| move |source| StartError { port: ports[n], what: WHAT[n], source };
        let listener = TcpListener::bind(at(0)).await.map_err(failed(0))?;
        let tcp = TcpListener::bind(at(1)).await.map_err(failed(1))?;
        let udp = UdpSocket::bind(at(2)).await.map_err(failed(2))?;
        // All participants send to this one; what does not fit is lost, and lost packets cost a second each.
        if let Err(error) = set_socket_recv_buffer_size(&udp, RECEIVE_BUFFER) {
            tracing::debug!(%error, "the UDP socket keeps its small buffer");
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

    /// The address to join.
    pub(crate) fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Its key, to make tokens with.
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Puts everybody out and ends, in about a second at most.
    pub(crate) async fn close(mut self) {
        self.stop.cancel();
        // Its end is all that we wait for.
        let _ = (&mut self.task).await;
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
