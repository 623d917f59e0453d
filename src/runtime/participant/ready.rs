//! Waits until a client's tools are known.

use std::{
    fmt,
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use super::{Handle, now};
use crate::{
    clock::later,
    protocol::session::Readiness,
    tool::{NotOffered, Tool, not_offered::not_bound},
    transport::{CloseReason, Identity},
};

/// The default time limit. Announcements take up to 3 s in each direction.
const WAIT: Duration = Duration::from_secs(10);

/// How long before the end a client that shook hands and has not registered is pinged.
const PROBE: Duration = Duration::from_secs(1);

/// A wait for one client, which starts when it is awaited: see [`Assistant::ready`](crate::Assistant::ready).
#[must_use = "the wait begins when it is awaited"]
pub struct Ready {
    handle: Arc<Handle>,
    client: Identity,
    limit: Duration,
}

impl Ready {
    pub(super) fn new(handle: Arc<Handle>, client: Identity) -> Self {
        Self { handle, client, limit: WAIT }
    }

    /// Sets the time limit. Default: 10 s.
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    async fn wait(self) -> Result<Vec<Tool>, ReadyError> {
        let shared = &self.handle.0;
        let end = later(now(), self.limit);
        let mut changes = shared.registrations.subscribe();
        let mut closed = shared.closed.subscribe();
        let _expected = Expected::new(&self.handle, &self.client);
        loop {
            changes.borrow_and_update();
            let closed_by = closed.borrow_and_update().clone();
            if let Some(reason) = closed_by {
                return Err(ReadyError::Closed(reason));
            }
            let readiness = shared.lock().session.readiness(&self.client);
            let is_over = now() >= end;
            match readiness {
                Readiness::Ready(tools) => return Ok(tools),
                Readiness::Never(why) => return Err(self.not_ready(why)),
                Readiness::Silent if is_over => return Ok(Vec::new()),
                Readiness::NotYet(why) if is_over => return Err(self.not_ready(why)),
                Readiness::NotBound if is_over => {
                    return Err(ReadyError::NotBound { client: self.client.clone() });
                }
                Readiness::Silent | Readiness::NotYet(_) | Readiness::NotBound => {}
            }
            let probe = end.checked_sub(PROBE).filter(|at| now() < *at);
            tokio::select! {
                changed = changes.changed() => if changed.is_err() {
                    return Err(ReadyError::Closed(CloseReason::Closed));
                },
                _ = closed.changed() => {}
                () = tokio::time::sleep_until(probe.unwrap_or(end).into()) => {
                    shared.lock().session.probe_client(now(), &self.client);
                    shared.wake.notify_one();
                }
            }
        }
    }

    fn not_ready(&self, why: NotOffered) -> ReadyError {
        ReadyError::NotReady { client: self.client.clone(), why, waited: self.limit }
    }
}

impl IntoFuture for Ready {
    type Output = Result<Vec<Tool>, ReadyError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.wait())
    }
}

impl fmt::Debug for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ready")
            .field("client", &self.client)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// Makes the session expect the participant as long as this lives.
struct Expected<'a> {
    handle: &'a Handle,
    client: &'a Identity,
}

impl<'a> Expected<'a> {
    fn new(handle: &'a Handle, client: &'a Identity) -> Self {
        handle.0.lock().session.expect_client(now(), client);
        handle.0.wake.notify_one();
        Self { handle, client }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        if let Some(mut inner) = self.handle.0.lock_to_drop() {
            inner.session.stop_expecting(self.client);
        }
    }
}

/// Why a client's tools are not known: [`Assistant::ready`](crate::Assistant::ready).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReadyError {
    /// The client did not become ready in time.
    #[error("{}; waited {} ms", why.explain(""), waited.as_millis())]
    NotReady {
        /// The client.
        client: Identity,
        /// The reason.
        why: NotOffered,
        /// How long it was waited for.
        waited: Duration,
    },
    /// The client is bound to another assistant, or to none because there are several.
    #[error("{}", not_bound(client))]
    NotBound {
        /// The client.
        client: Identity,
    },
    /// This assistant is no longer in the room.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}
