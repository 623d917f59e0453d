//! An HTTP listener within limits, which serves the routes of an `axum` router.

use std::{io, net::SocketAddr};

use axum::Router;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use tokio::{net::TcpListener, task::JoinSet};

use crate::adapter::sink::serve;

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
        let routes = TowerToHyperService::new(routes);
        let mut task = JoinSet::new();
        task.spawn(serve(listener, "RAP", move |request| {
            let answered = routes.call(request);
            async move {
                match answered.await {
                    Ok(response) => response,
                    Err(never) => match never {},
                }
            }
        }));
        Ok(Self { address, _task: task })
    }

    /// Returns the address, with the port that the system has chosen for port 0.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}
