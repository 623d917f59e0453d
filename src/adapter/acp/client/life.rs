//! The life of an agent: started, started again when it has ended, and closed.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};

use super::{AcpError, Shared, connection::Connection};
use crate::SourceHealth;

/// The time before the first new start. It doubles with each that fails.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The longest time before a new start. An agent that ran this long is started again after the first pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Runs until the source is closed, or until the first start has failed and somebody has waited for it.
pub(super) async fn run(shared: Arc<Shared>, mut first: Option<oneshot::Sender<Result<(), AcpError>>>) {
    let mut pause = FIRST_PAUSE;
    loop {
        let start = Instant::now();
        let offered = shared.state().offered.clone();
        let started = tokio::select! {
            started = Connection::start(&shared.name, &shared.settings, offered.as_ref()) => started,
            () = shared.closing.cancelled() => break,
        };
        let reason = match started {
            Ok(mut connection) => {
                tracing::info!(agent = &*shared.name, "an agent is up");
                shared.set(SourceHealth::Up, Some(connection.live.clone()));
                if let Some(first) = first.take() {
                    let _ = first.send(Ok(())); // dropped: then this task is ended, too
                }
                let reason = tokio::select! {
                    reason = connection.ended() => Some(reason),
                    () = shared.closing.cancelled() => None,
                };
                if let Some(reason) = &reason {
                    // Before its prompt fails: no further one may reach it.
                    shared.set(down(reason), None);
                }
                connection.tell_end(reason.as_deref().unwrap_or("it was closed"));
                let session = Arc::clone(&connection.live.session);
                connection.close().await;
                session.end_plan();
                let ignored = session.ignored();
                tracing::debug!(
                    agent = &*shared.name,
                    junk = session.junk.junk(),
                    too_long = session.junk.too_long(),
                    late = ignored.late,
                    refused = ignored.refused,
                    foreign = session.foreign(),
                    "what an agent sent without effect"
                );
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
        tracing::warn!(agent = &*shared.name, reason, again_in = ?pause, "an agent is down");
        shared.set(down(&reason), None);
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.closing.cancelled() => break,
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
        shared.set(SourceHealth::Starting, None);
    }
    shared.set(down("it was closed"), None);
    shared.closed.cancel();
}

fn down(reason: &str) -> SourceHealth {
    SourceHealth::Down { reason: reason.into(), since: Instant::now().into_std() }
}
