//! Keeps a program, or the connection to a server, alive: starts it, starts it again when it has ended, and
//! closes it.

use std::{future::Future, time::Duration};

use tokio::{
    sync::oneshot,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{Pauses, down};
use crate::tools::SourceHealth;

/// How a program, or the connection to a server, is started and ended.
pub(in crate::adapter) trait Life: Send {
    /// The running program.
    type Connection: Send;
    /// Why a start failed.
    type Error: Send;

    /// Cancelled when the source is closed.
    fn closing(&self) -> CancellationToken;

    /// Starts it.
    fn start(&mut self) -> impl Future<Output = Result<Self::Connection, Self::Error>> + Send;

    /// Notes that it is up.
    fn up(&mut self, connection: &mut Self::Connection);

    /// Serves it until it has ended, and returns why.
    fn serve(&mut self, connection: &mut Self::Connection) -> impl Future<Output = String> + Send;

    /// Ends it. `reason` is why it has ended by itself; it was noted before.
    fn end(&mut self, connection: Self::Connection, reason: Option<&str>) -> impl Future<Output = ()> + Send;

    /// Notes why a start failed, and returns the reason as anyone may see it.
    fn failed(&mut self, error: &Self::Error) -> String;

    /// Notes the health of a source without a connection.
    fn note(&mut self, health: SourceHealth);

    /// Logs that it is down, and when it is started again.
    fn warn(&self, reason: &str, again_in: Duration);
}

/// Starts it, and starts it again when it has ended, until the source is closed, or until the first start has failed and
/// somebody has waited for it: `first` learns of that.
pub(in crate::adapter) async fn run<L: Life>(
    life: &mut L,
    mut first: Option<oneshot::Sender<Result<(), L::Error>>>,
) {
    let (mut pauses, closing) = (Pauses::new(), life.closing());
    loop {
        let start = Instant::now();
        let started = tokio::select! {
            started = life.start() => started,
            () = closing.cancelled() => break,
        };
        let reason = match (started, first.take()) {
            (Ok(mut connection), first) => {
                life.up(&mut connection);
                if let Some(first) = first {
                    let _ = first.send(Ok(())); // dropped: then this task is ended, too
                }
                let reason = tokio::select! {
                    reason = life.serve(&mut connection) => Some(reason),
                    () = closing.cancelled() => None,
                };
                if let Some(reason) = &reason {
                    life.note(down(reason)); // before its calls fail: no further call may reach it
                }
                life.end(connection, reason.as_deref()).await;
                match reason {
                    Some(reason) => reason,
                    None => break,
                }
            }
            (Err(error), Some(first)) => {
                let _ = first.send(Err(error)); // the caller has gone
                break;
            }
            (Err(error), None) => life.failed(&error),
        };
        let pause = pauses.after(start.elapsed());
        life.warn(&reason, pause);
        life.note(down(&reason));
        tokio::select! {
            () = sleep(pause) => {}
            () = closing.cancelled() => break,
        }
        life.note(SourceHealth::Starting);
    }
    life.note(down("it was closed"));
}
