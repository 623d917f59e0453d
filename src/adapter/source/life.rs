//! Keeps a program, or the connection to a server, alive: starts it, starts it again when it has ended, and
//! closes it.

use std::{
    future::Future,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{Pauses, SourceError, down};
use crate::tools::SourceHealth;

/// How a program, or the connection to a server, is started and ended.
pub(in crate::adapter) trait Life: Send + Sync + 'static {
    /// The running program.
    type Connection: Send;
    /// What calls need of it.
    type Live: Clone + Send;

    fn status(&self) -> &Status<Self::Live>;

    /// Starts it.
    fn start(&self) -> impl Future<Output = Result<(Self::Connection, Self::Live), SourceError>> + Send;

    /// Serves it until it has ended, and returns why.
    fn serve(&self, connection: &mut Self::Connection) -> impl Future<Output = SourceError> + Send;

    /// Ends it. `reason` is why it has ended by itself; it was noted before.
    fn end(&self, connection: Self::Connection, reason: Option<&str>) -> impl Future<Output = ()> + Send;

    /// Logs that it is down, and when it is started again.
    fn warn(&self, reason: &str, again_in: Duration);
}

/// Whom the first start is reported to.
pub(in crate::adapter) type First = oneshot::Sender<Result<(), SourceError>>;

/// Begins a life. It ends when the source is closed, when the returned value is dropped, or when the first start has failed and
/// `first` has learned of that.
pub(in crate::adapter) fn keep_alive(life: impl Life, first: Option<First>) -> JoinSet<()> {
    let mut task = JoinSet::new();
    task.spawn(run(life, first));
    task
}

/// Begins a source, and waits until its first start has succeeded or failed.
pub(in crate::adapter) async fn started<S>(
    origin: &str,
    begin: impl FnOnce(Option<First>) -> Result<S, SourceError>,
) -> Result<S, SourceError> {
    let (first, started) = oneshot::channel();
    let source = begin(Some(first))?;
    match started.await {
        Ok(started) => started.map(|()| source),
        Err(_) => Err(SourceError::protocol(origin, "its task has ended")),
    }
}

async fn run(life: impl Life, mut first: Option<First>) {
    let (mut pauses, status) = (Pauses::new(), life.status());
    let closing = &status.closing;
    loop {
        let start = Instant::now();
        let started = tokio::select! {
            started = life.start() => started,
            () = closing.cancelled() => break,
        };
        let error = match (started, first.take()) {
            (Ok((mut connection, live)), first) => {
                status.up(live);
                if let Some(first) = first {
                    let _ = first.send(Ok(())); // dropped: then this task is ended, too
                }
                let error = tokio::select! {
                    error = life.serve(&mut connection) => Some(error),
                    () = closing.cancelled() => None,
                };
                let reason = error.as_ref().map(SourceError::without_stderr);
                if let Some(reason) = &reason {
                    status.set(down(reason), None); // before its calls fail: no further call may reach it
                }
                life.end(connection, reason.as_deref()).await;
                match error {
                    Some(error) => error,
                    None => break,
                }
            }
            (Err(error), Some(first)) => {
                let _ = first.send(Err(error)); // the caller has gone
                break;
            }
            (Err(error), None) => error,
        };
        let (pause, reason) = (pauses.after(start.elapsed()), error.without_stderr());
        life.warn(&reason, pause);
        status.state().failure = Some(error.to_string());
        status.set(down(&reason), None);
        tokio::select! {
            () = sleep(pause) => {}
            () = closing.cancelled() => break,
        }
        status.set(SourceHealth::Starting, None);
    }
    status.set(down("it was closed"), None);
    status.closed.cancel();
}

/// What a source and the task of its life share.
pub(in crate::adapter) struct Status<L> {
    state: Mutex<State<L>>,
    changed: Notify,
    pub(in crate::adapter) closing: CancellationToken,
    closed: CancellationToken,
}

struct State<L> {
    health: SourceHealth,
    live: Option<L>,
    /// Why the last start failed, or it ended, with what it wrote to stderr.
    failure: Option<String>,
}

impl<L: Clone> Status<L> {
    pub(in crate::adapter) fn new() -> Self {
        Self {
            state: Mutex::new(State { health: SourceHealth::Starting, live: None, failure: None }),
            changed: Notify::new(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// Notes that it is up, or that what calls need of it has changed.
    pub(in crate::adapter) fn up(&self, live: L) {
        self.set(SourceHealth::Up, Some(live));
    }

    /// Returns what calls need of it, if it is up.
    pub(in crate::adapter) fn live(&self) -> Option<L> {
        self.state().live.clone()
    }

    pub(in crate::adapter) fn health(&self) -> SourceHealth {
        self.state().health.clone()
    }

    pub(in crate::adapter) fn last_failure(&self) -> Option<String> {
        self.state().failure.clone()
    }

    /// Resolves when its health, or what calls need of it, has changed.
    pub(in crate::adapter) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Closes the source, and waits until its program has ended.
    pub(in crate::adapter) async fn close(&self) {
        self.closing.cancel();
        self.closed.cancelled().await;
    }

    fn set(&self, health: SourceHealth, live: Option<L>) {
        let mut state = self.state();
        state.failure = state.failure.take().filter(|_| live.is_none());
        (state.health, state.live) = (health, live);
        drop(state);
        self.changed.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
