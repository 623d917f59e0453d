//! A LiveKit-compatible server inside the process, for development and tests. It listens on loopback only.
//!
//! It supports data channels but no media, and stores nothing. Clients that offer media, as LiveKit's SDKs do, get an answer
//! with inactive media. Each participant has one peer connection. Older SDKs, which join at `/rtc` with two, are told
//! that theirs is the primary one, and the other is never used.
//!
//! Workers of livekit-agents can wait for jobs there, as with livekit-server: a room that opens gets the agent of a worker
//! without a name, or those that its token, `CreateRoom` or `CreateDispatch` name.
//!
//! As far as a toolbridge participant can observe, it behaves like livekit-server, with three differences. It
//! announces a new participant at once and a departure after 500 ms, where livekit-server may take 3 s. If 32 MiB are
//! queued for a slow participant, it asks that participant to rejoin, where livekit-server drops packets. It warns of tokens
//! with different rights for one identity, and asks a connection that resumes with such a token to rejoin, where
//! livekit-server gives it the rights of the participant that it resumes. Workers see two more: a worker that registers also
//! gets the open rooms whose agent is missing, and an agent that is killed with its worker is replaced after 2 s.
//!
//! ```
//! use toolbridge::{Assistant, Client, ToolError, dev_server::DevServer};
//!
//! async fn get_battery() -> Result<f32, ToolError> {
//!     Ok(0.8)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> anyhow::Result<()> {
//! let server = DevServer::start().await?;
//! let client = Client::builder().tool("get_battery", "Battery level, 0 to 1", get_battery);
//! let _client = client.join(&server.url(), &server.key().client("kitchen", "phone").sign()?).await?;
//!
//! let token = server.key().assistant("kitchen", "assistant").sign()?;
//! let assistant = Assistant::builder().join(&server.url(), &token).await?;
//! let level: f32 = assistant.call("get_battery", ()).await?.decode()?;
//! assert_eq!(level, 0.8);
//! server.close().await;
//! # Ok(())
//! # }
//! ```

// `room` and `agents` hold the state without I/O; `event_loop` is the task around it; `listener`, `http` and `twirp` accept
// requests that `access` allows; `signal` and `worker` carry the messages of a `web_socket`; `peer` is the peer connection of
// one participant, and `sdp` its offers.

#![expect(clippy::disallowed_methods, reason = "the server has its own clock and ends its tasks itself")]

use std::{
    fmt, io,
    net::{Ipv4Addr, SocketAddr},
};

use rustix::net::sockopt::set_socket_recv_buffer_size;
use tokio::{
    net::{TcpListener, UdpSocket},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;

mod access;
mod agents;
mod clock;
mod event_loop;
mod faults;
mod grant;
mod http;
mod ice_tcp;
mod limits;
mod listener;
mod packet;
mod peer;
mod room;
mod sdp;
mod signal;
#[cfg(test)]
mod tests;
mod twirp;
mod web_socket;
mod worker;

use access::Access;
use event_loop::{Server, Sockets, Warn};
use ice_tcp::IceTcp;
use listener::Listener;

use crate::livekit::AccessKey;

/// The receive buffer of the UDP socket, in bytes, if the system allows it: all participants share the socket.
const RECEIVE_BUFFER: usize = 4 * 1024 * 1024;
/// The reported server version: the livekit-server version whose behavior it follows.
const VERSION: &str = "1.13.5";

/// The API key of a server that was given none, as `livekit-server --dev` has it.
const API_KEY: &str = "devkey";

/// The length of the random secret of a server that was given none.
const SECRET: usize = 43;

/// A running server. Dropping it stops it without notifying participants.
#[derive(Debug)]
pub struct DevServer {
    address: SocketAddr,
    key: AccessKey,
    stop: CancellationToken,
    task: JoinHandle<()>,
    #[cfg(test)]
    inputs: mpsc::Sender<event_loop::ServerInput>,
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on 127.0.0.1:{port} for {what}: {source}")]
pub struct StartError {
    port: u16,
    what: &'static str,
    source: io::Error,
}

impl StartError {
    /// Returns whether another program uses the port.
    pub fn is_taken(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }
}

/// Why an origin cannot be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidOrigin(&'static str);

/// Sets up a [`DevServer`].
#[derive(Default)]
#[must_use]
pub struct DevServerBuilder {
    port: u16,
    key: Option<AccessKey>,
    access: Access,
    warn: Option<Warn>,
}

impl fmt::Debug for DevServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, key, access, warn: _ } = self;
        let mut it = f.debug_struct("DevServerBuilder");
        it.field("port", port).field("key", key).field("access", access).finish_non_exhaustive()
    }
}

impl DevServerBuilder {
    /// Sets the port for signaling. The next two are for packets over TCP and UDP, as with `livekit-server --dev`.
    /// Default: 0, three free ports. At most 65,533.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Sets the key that signs tokens. Default: `devkey` with a random secret.
    pub fn key(mut self, key: AccessKey) -> Self {
        self.key = Some(key);
        self
    }

    /// Accepts requests that are addressed to this host name or address, in addition to those of this machine. Other
    /// requests are refused, so that no web page can reach the server by a name that leads to this machine. Web pages of this
    /// host, with any port, may use the server as well.
    pub fn allow_host(mut self, host: impl Into<String>) -> Self {
        self.access.hosts.push(host.into());
        self
    }

    /// Accepts requests of web pages and apps with this origin, in addition to pages of this machine: `https://app.example`,
    /// `file://`, `chrome-extension://ID`. `SCHEME://*` accepts all of an app's scheme, such as `vscode-webview://*`. `null` is
    /// the origin of `file:` pages, and of frames that any web page can make.
    ///
    /// # Errors
    /// It is no origin, or it would accept all web pages, as `*` and `https://*` would.
    pub fn allow_origin(mut self, origin: impl Into<String>) -> Result<Self, InvalidOrigin> {
        let origin = origin.into();
        access::check_origin(&origin).map_err(InvalidOrigin)?;
        self.access.origins.push(origin);
        Ok(self)
    }

    /// Sets what gets the warnings for developers, for example of two tokens with different rights for one identity. It must
    /// not block. Default: they are logged.
    pub fn on_warning(mut self, warn: impl Fn(&str) + Send + 'static) -> Self {
        self.warn = Some(Box::new(warn));
        self
    }

    /// Starts the server on 127.0.0.1.
    ///
    /// # Errors
    /// A port cannot be opened.
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn start(self) -> Result<DevServer, StartError> {
        let Self { port, key, access, warn } = self;
        let key = key.unwrap_or_else(|| AccessKey::new(API_KEY, nanoid::nanoid!(SECRET)));
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
        let warn = warn.unwrap_or_else(|| Box::new(|text| tracing::warn!("{text}")));
        let server = Server::new(key.clone(), sockets, queue, warn);
        let accepting = Listener { listener, key: key.clone(), access, inputs: inputs.clone() };
        let task = tokio::spawn(accepting.run(server.run(stop.clone())));
        Ok(DevServer {
            address,
            key,
            stop,
            task,
            #[cfg(test)]
            inputs,
        })
    }
}

impl DevServer {
    /// Starts a server on free ports, with a random secret.
    ///
    /// # Errors
    /// A port cannot be opened.
    ///
    /// # Cancel safety
    /// Dropping the future starts nothing.
    pub async fn start() -> Result<Self, StartError> {
        Self::builder().start().await
    }

    /// Sets up a server.
    pub fn builder() -> DevServerBuilder {
        DevServerBuilder::default()
    }

    /// Returns the URL to join.
    pub fn url(&self) -> String {
        format!("ws://{}", self.address)
    }

    /// Returns the key that signs tokens for this server.
    pub fn key(&self) -> &AccessKey {
        &self.key
    }

    /// Waits until the server ends by itself, which only a bug causes, and returns the reason. Do not call it or
    /// [`close`](Self::close) after that.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn failed(&mut self) -> String {
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
    ///
    /// # Cancel safety
    /// Dropping the future stops the server at once.
    pub async fn close(mut self) {
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
