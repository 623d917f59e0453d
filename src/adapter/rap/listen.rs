//! An HTTP listener within limits, which serves the routes of an `axum` router.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

/// The most connections that are open at once. Others wait until one of them ends.
const MAX_CONNECTIONS: usize = 256;

/// The longest time that the head of a request may take. It also ends a connection without requests.
const READ_HEAD: Duration = Duration::from_secs(30);

/// How long a listener waits after a connection could not be accepted, for example for lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A listener and the task that serves its connections. Dropping it ends both.
pub(super) struct Listener {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Listener {
    /// Binds the address, and serves the routes there.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(super) async fn start(address: SocketAddr, routes: Router) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let mut task = JoinSet::new();
        task.spawn(accept(listener, routes));
        Ok(Self { address, _task: task })
    }

    /// Returns the address, with the port that the system has chosen for port 0.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, routes: Router) {
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new(); // aborted with this future
    loop {
        // The semaphore is never closed.
        let slot = Arc::clone(&slots).acquire_owned().await.ok();
        match listener.accept().await {
            Ok((stream, _)) => {
                let routes = routes.clone();
                connections.spawn(async move {
                    connection(stream, routes).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "an HTTP connection could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
}

async fn connection(stream: TcpStream, routes: Router) {
    // An answer may be several small packets. Without this option each of them waits for the peer's acknowledgement.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "an HTTP connection cannot send small packets at once");
    }
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(READ_HEAD);
    let served = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await;
    if let Err(error) = served {
        tracing::debug!(%error, "an HTTP connection failed");
    }
}
