//! The life of a server: started, listed, started again when it has ended, and closed.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use super::{
    McpError, Shared,
    call::Cancel,
    connection::{Connection, FIRST_PAUSE, LONGEST_PAUSE, Toolset, list},
};
use crate::SourceHealth;

/// The shortest time between two reads of a list that changes.
const LIST_AGAIN: Duration = Duration::from_secs(1);

/// Runs until the source is closed, or until the first start has failed and somebody has waited for it.
pub(super) async fn run(
    shared: Arc<Shared>,
    mut to_cancel: mpsc::UnboundedReceiver<Cancel>,
    mut first: Option<oneshot::Sender<Result<(), McpError>>>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let start = Instant::now();
        let started = tokio::select! {
            started = start_and_list(&shared) => started,
            () = shared.closing.cancelled() => break,
        };
        let reason = match started {
            Ok((mut connection, tools)) => {
                tracing::info!(server = &*shared.name, tools = tools.tools.len(), "an MCP server is up");
                shared.set(SourceHealth::Up, tools, Some(connection.live.clone()));
                if let Some(first) = first.take() {
                    let _ = first.send(Ok(())); // dropped: then this task is ended, too
                }
                let reason = serve(&shared, &mut connection, &mut to_cancel).await;
                if let Some(reason) = &reason {
                    // Before its calls fail: no further call may reach it.
                    shared.set(down(reason), Toolset::default(), None);
                    connection.live.requests.end(reason);
                }
                connection.close().await;
                match reason {
                    Some(reason) => reason,
                    None => break,
                }
            }
            Err(error) => match first.take() {
                Some(first) => {
                    let _ = first.send(Err(error)); // the caller has gone
                    break;
                }
                None => {
                    shared.state().failure = Some(error.to_string());
                    error.without_stderr()
                }
            },
        };
        if start.elapsed() >= LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tracing::warn!(server = &*shared.name, reason, again_in = ?pause, "an MCP server is down");
        shared.set(down(&reason), Toolset::default(), None);
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.closing.cancelled() => break,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        shared.set(SourceHealth::Starting, Toolset::default(), None);
    }
    shared.set(down("it was closed"), Toolset::default(), None);
    shared.closed.cancel();
}

async fn start_and_list(shared: &Arc<Shared>) -> Result<(Connection, Toolset), McpError> {
    let deadline = Instant::now() + shared.settings.start_limit;
    let mut connection = Connection::start(shared, deadline).await?;
    connection.subscribe(shared).await;
    let live = connection.live.clone();
    let listed = tokio::select! {
        biased;
        listed = list(shared, &live, deadline) => listed,
        error = connection.failed(&shared.name) => Err(error),
    };
    Ok((connection, listed?))
}

/// Serves a connection until it ends, and returns why, or until the source is closed.
async fn serve(
    shared: &Arc<Shared>,
    connection: &mut Connection,
    to_cancel: &mut mpsc::UnboundedReceiver<Cancel>,
) -> Option<String> {
    let (mut listing, mut cancelling) = (JoinSet::new(), JoinSet::new());
    let mut listed = Instant::now();
    let mut has_changed = false;
    loop {
        tokio::select! {
            reason = connection.ended() => return Some(reason),
            () = shared.closing.cancelled() => return None,
            Some((request, reason)) = to_cancel.recv() => {
                // An error: the server has just ended. The task waits while the server does not read.
                cancelling.spawn(async move { _ = request.cancel(Some(reason)).await });
            }
            Some(_) = cancelling.join_next() => {}
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

fn down(reason: &str) -> SourceHealth {
    SourceHealth::Down { reason: reason.into(), since: Instant::now().into_std() }
}
