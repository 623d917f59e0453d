//! Keeps a server alive: starts it, lists its tools, starts it again when it has ended, and closes it.

use std::{sync::Arc, time::Duration};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};

use super::{Shared, Up, connection::Connection, list::list};
use crate::adapter::source::{
    SourceError,
    life::{Life, Status},
};

/// The shortest time between two reads of a list that changes.
const LIST_AGAIN: Duration = Duration::from_secs(1);

impl Life for Arc<Shared> {
    type Connection = Connection;
    type Live = Up;

    fn status(&self) -> &Status<Up> {
        &self.status
    }

    async fn start(&self) -> Result<(Connection, Up), SourceError> {
        let deadline = Instant::now() + self.settings.start_limit;
        let mut connection = Connection::start(self, deadline).await?;
        connection.subscribe(self);
        let live = connection.live.clone();
        let listed = tokio::select! {
            biased;
            listed = list(self, &live, deadline) => listed,
            error = connection.failed(&self.name) => Err(error),
        };
        match listed {
            Ok(tools) => {
                tracing::info!(server = &*self.name, tools = tools.tools.len(), "an MCP server is up");
                Ok((connection, Up { live, tools: tools.into() }))
            }
            Err(error) => {
                connection.abandon().await;
                Err(error)
            }
        }
    }

    async fn serve(&self, connection: &mut Connection) -> SourceError {
        serve(self, connection).await
    }

    async fn end(&self, connection: Connection, reason: Option<&str>) {
        if let Some(reason) = reason {
            connection.tell_end(reason);
        }
        connection.close().await;
    }

    fn warn(&self, reason: &str, again_in: Duration) {
        tracing::warn!(server = &*self.name, reason, ?again_in, "an MCP server is down");
    }
}

/// Serves a connection until it ends, and returns why.
async fn serve(shared: &Arc<Shared>, connection: &mut Connection) -> SourceError {
    let mut listing = JoinSet::new();
    let mut listed = Instant::now();
    let mut has_changed = false;
    loop {
        tokio::select! {
            error = connection.failed(&shared.name) => return error,
            () = shared.list_changed.notified(), if !has_changed => has_changed = true,
            () = sleep_until(listed + LIST_AGAIN), if has_changed && listing.is_empty() => {
                (listed, has_changed) = (Instant::now(), false);
                let (shared, live) = (Arc::clone(shared), connection.live.clone());
                let deadline = listed + shared.settings.start_limit;
                listing.spawn(async move { list(&shared, &live, deadline).await });
            }
            Some(Ok(tools)) = listing.join_next() => match tools {
                Ok(tools) => shared.status.up(Up { live: connection.live.clone(), tools: tools.into() }),
                Err(error) => {
                    let reason = error.without_stderr();
                    tracing::warn!(server = &*shared.name, reason, "a changed tool list cannot be read");
                }
            }
        }
    }
}
