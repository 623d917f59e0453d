//! The life of a server: started, listed, started again when it has ended, and closed.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    McpError, Shared,
    connection::Connection,
    list::{Toolset, list},
};
use crate::{
    adapter::source::{self, Life},
    tools::SourceHealth,
};

/// The shortest time between two reads of a list that changes.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// Runs until the source is closed, or until the first start has failed and somebody has waited for it.
pub(super) async fn run(shared: Arc<Shared>, first: Option<oneshot::Sender<Result<(), McpError>>>) {
    let mut server = Server { shared: Arc::clone(&shared) };
    source::run(&mut server, first).await;
    shared.closed.cancel();
}

struct Server {
    shared: Arc<Shared>,
}

impl Life for Server {
    type Connection = (Connection, Toolset);
    type Error = McpError;

    fn closing(&self) -> CancellationToken {
        self.shared.closing.clone()
    }

    async fn start(&mut self) -> Result<(Connection, Toolset), McpError> {
        start_and_list(&self.shared).await
    }

    fn up(&mut self, (connection, tools): &mut (Connection, Toolset)) {
        let tools = std::mem::take(tools);
        tracing::info!(server = &*self.shared.name, tools = tools.tools.len(), "an MCP server is up");
        self.shared.set(SourceHealth::Up, tools, Some(connection.live.clone()));
    }

    async fn serve(&mut self, (connection, _): &mut (Connection, Toolset)) -> String {
        serve(&self.shared, connection).await
    }

    async fn end(&mut self, (connection, _): (Connection, Toolset), reason: Option<&str>) {
        if let Some(reason) = reason {
            connection.tell_end(reason);
        }
        connection.close().await;
    }

    fn failed(&mut self, error: &McpError) -> String {
        self.shared.state().failure = Some(error.to_string());
        error.without_stderr()
    }

    fn note(&mut self, health: SourceHealth) {
        self.shared.set(health, Toolset::default(), None);
    }

    fn warn(&self, reason: &str, again_in: Duration) {
        tracing::warn!(server = &*self.shared.name, reason, ?again_in, "an MCP server is down");
    }
}

async fn start_and_list(shared: &Arc<Shared>) -> Result<(Connection, Toolset), McpError> {
    let deadline = Instant::now() + shared.settings.start_limit;
    let mut connection = Connection::start(shared, deadline).await?;
    connection.subscribe(shared);
    let live = connection.live.clone();
    let listed = tokio::select! {
        biased;
        listed = list(shared, &live, deadline) => listed,
        error = connection.failed(&shared.name) => Err(error),
    };
    match listed {
        Ok(tools) => Ok((connection, tools)),
        Err(error) => {
            connection.abandon().await;
            Err(error)
        }
    }
}

/// Serves a connection until it ends, and returns why.
async fn serve(shared: &Arc<Shared>, connection: &mut Connection) -> String {
    let mut listing = JoinSet::new();
    let mut listed = Instant::now();
    let mut has_changed = false;
    loop {
        tokio::select! {
            reason = connection.ended() => return reason,
            () = shared.list_changed.notified(), if !has_changed => has_changed = true,
            () = sleep_until(listed + LIST_AGAIN), if has_changed && listing.is_empty() => {
                (listed, has_changed) = (Instant::now(), false);
                let (shared, live) = (Arc::clone(shared), connection.live.clone());
                let deadline = listed + shared.settings.start_limit;
                listing.spawn(async move { list(&shared, &live, deadline).await });
            }
            Some(Ok(tools)) = listing.join_next() => match tools {
                Ok(tools) => shared.set(SourceHealth::Up, tools, Some(connection.live.clone())),
                Err(error) => {
                    let reason = error.without_stderr();
                    tracing::warn!(server = &*shared.name, reason, "a changed tool list cannot be read");
                }
            }
        }
    }
}
