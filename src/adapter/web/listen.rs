//! Listens for HTTP, within limits.

use std::{io, net::SocketAddr};

use hyper::{Request, Response, body::Incoming};
use tokio::{net::TcpListener, task::JoinSet};

use super::server::{Reply, serve};

/// A listener and the task that serves its connections. Dropping it ends both.
pub(in crate::adapter) struct Listener {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Listener {
    /// Binds the address, and answers the requests there.
    ///
    /// # Errors
    /// The address cannot be bound.
    pub(in crate::adapter) async fn start<A, F>(address: SocketAddr, answer: A) -> io::Result<Self>
    where
        A: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
        F: Future<Output = Response<Reply>> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let mut task = JoinSet::new();
        task.spawn(serve(listener, "RAP", answer));
        Ok(Self { address, _task: task })
    }

    /// Returns the address, with the port that the system has chosen for port 0.
    pub(in crate::adapter) fn address(&self) -> SocketAddr {
        self.address
    }
}
