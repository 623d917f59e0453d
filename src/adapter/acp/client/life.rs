//! Keeps an agent alive: starts it, starts it again when it has ended, and closes it.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{AcpError, Shared, connection::Connection};
use crate::{
    adapter::source::{self, Life},
    tools::SourceHealth,
};

/// Runs until the source is closed, or until the first start has failed and somebody has waited for it.
pub(super) async fn run(shared: Arc<Shared>, first: Option<oneshot::Sender<Result<(), AcpError>>>) {
    source::run(&mut Agent(Arc::clone(&shared)), first).await;
    shared.closed.cancel();
}

struct Agent(Arc<Shared>);

impl Life for Agent {
    type Connection = Connection;
    type Error = AcpError;

    fn closing(&self) -> CancellationToken {
        self.0.closing.clone()
    }

    async fn start(&mut self) -> Result<Connection, AcpError> {
        let offered = self.0.state().offered.clone();
        Connection::start(&self.0.name, &self.0.settings, offered.as_ref()).await
    }

    fn up(&mut self, connection: &mut Connection) {
        tracing::info!(agent = &*self.0.name, "an agent is up");
        self.0.set(SourceHealth::Up, Some(connection.live.clone()));
    }

    async fn serve(&mut self, connection: &mut Connection) -> String {
        connection.ended().await
    }

    async fn end(&mut self, connection: Connection, reason: Option<&str>) {
        connection.tell_end(reason.unwrap_or("it was closed"));
        let session = Arc::clone(&connection.live.session);
        connection.close().await;
        session.end_plan();
        let ignored = session.ignored();
        tracing::debug!(
            agent = &*self.0.name,
            junk = session.junk.junk(),
            too_long = session.junk.too_long(),
            late = ignored.late,
            refused = ignored.refused,
            foreign = session.foreign(),
            "what an agent sent without effect"
        );
    }

    fn failed(&mut self, error: &AcpError) -> String {
        self.0.state().failure = Some(error.to_string());
        error.without_stderr()
    }

    fn note(&mut self, health: SourceHealth) {
        self.0.set(health, None);
    }

    fn warn(&self, reason: &str, again_in: Duration) {
        tracing::warn!(agent = &*self.0.name, reason, ?again_in, "an agent is down");
    }
}
