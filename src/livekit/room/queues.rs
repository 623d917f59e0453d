//! Connects the participant's task with its `LiveKitTransport` handle by queues. They survive reconnects.

use std::{
    future::Future,
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use tokio::sync::{mpsc, oneshot};

use super::{
    inbox::Inbox,
    simulate::Scenario,
    snapshot::{Snapshot, TaskEvent},
};
use crate::transport::{CloseReason, ConnectionState, Sid, TransportEvent, send_queue::SendQueue};

/// A request to leave after flushing. If its sender is dropped, the task leaves without waiting.
pub(crate) struct Leave {
    pub(crate) left: oneshot::Sender<()>,
}

/// The handle's ends of the queues.
pub(crate) struct UserQueues {
    pub(crate) leave: mpsc::Sender<Leave>,
    pub(crate) simulate: mpsc::Sender<Scenario>,
    pub(crate) inbox: Inbox,
}

/// State that the task and the handle share.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// The packets to send.
    pub(crate) queue: SendQueue,
}

/// The state of [`Shared`].
pub(crate) struct State {
    pub(crate) can_publish_data: bool,
    pub(crate) token: String,
}

impl Shared {
    /// Reads or changes the state. The lock is never held across an await.
    pub(crate) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The task's ends of the queues.
pub(crate) struct Queues {
    pub(crate) shared: Arc<Shared>,
    pub(crate) inbox: Inbox,
    /// The state emitted last.
    connection_state: ConnectionState,
    pub(crate) leave: mpsc::Receiver<Leave>,
    pub(crate) simulate: mpsc::Receiver<Scenario>,
    /// Set once the handle has asked to leave.
    pub(crate) leaving: Option<Leaving>,
}

/// A flush in progress before leaving.
pub(crate) struct Leaving {
    pub(crate) left: oneshot::Sender<()>,
    /// The deadline of the flush.
    pub(crate) until: Instant,
}

/// The handle asked to leave or was dropped.
#[derive(Debug)]
pub(crate) struct Left;

impl Queues {
    /// Creates both ends for a participant with this sid.
    pub(crate) fn new(sid: Sid, state: State) -> (Self, UserQueues) {
        let queue = SendQueue::default();
        queue.connect(sid);
        let (leave, leave_queue) = mpsc::channel(1);
        let (simulate, simulate_queue) = mpsc::channel(4);
        let inbox = Inbox::default();
        let queues = Self {
            shared: Arc::new(Shared { state: Mutex::new(state), queue }),
            inbox: inbox.clone(),
            connection_state: ConnectionState::Connected,
            leave: leave_queue,
            simulate: simulate_queue,
            leaving: None,
        };
        (queues, UserQueues { leave, simulate, inbox })
    }

    /// Stops accepting packets and flushes queued ones until the deadline.
    pub(crate) fn begin_to_leave(&mut self, left: oneshot::Sender<()>, until: Instant) {
        self.shared.queue.close(CloseReason::Closed);
        self.leaving = Some(Leaving { left, until });
    }

    /// Emits the connection state if it has changed, within the same connection.
    pub(crate) fn emit_connection_state(&mut self, state: ConnectionState) {
        if mem::replace(&mut self.connection_state, state) != state {
            self.inbox.event(TransportEvent::ConnectionState(state));
        }
    }

    /// Accepts packets again after a rejoin and queues the new snapshot.
    pub(crate) fn resume(&mut self, sid: Sid, can_publish_data: bool, snapshot: Snapshot) {
        self.shared.with(|state| state.can_publish_data = can_publish_data);
        // Before the event: the user may send as soon as it has read that, and the queue refuses the sids of
        // other joins.
        self.shared.queue.connect(sid);
        self.connection_state = ConnectionState::Connected;
        self.inbox.push(TaskEvent::Rejoined(snapshot));
    }

    /// Refuses packets from now on, and fails all queued ones with [`SendError::Interrupted`].
    pub(crate) fn interrupt(&mut self) {
        self.shared.queue.interrupt();
    }

    /// Runs `work` while reconnecting.
    ///
    /// # Errors
    /// [`Left`] if the handle asked to leave; `work` was dropped.
    pub(crate) async fn serve<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Left> {
        tokio::select! {
            done = work => Ok(done),
            asked = self.leave.recv() => {
                if let Some(Leave { left }) = asked {
                    self.begin_to_leave(left, Instant::now());
                }
                Err(Left)
            }
        }
    }

    /// Waits until the inbox has room.
    ///
    /// # Errors
    /// [`Left`] if the handle asked to leave.
    pub(crate) async fn wait_until_read(&mut self) -> Result<(), Left> {
        let inbox = self.inbox.clone();
        self.serve(inbox.has_room()).await
    }

    /// Ends the queues. Pending sends fail now, before all events are read, because the same caller may wait for both.
    /// Returns the sender that reports when the room has been left.
    pub(crate) fn close(mut self, reason: CloseReason) -> Option<oneshot::Sender<()>> {
        self.shared.queue.end(reason.clone());
        self.inbox.event(TransportEvent::Closed(reason));
        self.leaving.take().map(|leaving| leaving.left)
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // Also if the task panicked or its runtime ended, or callers would wait for their packets and events
        // forever.
        self.shared.queue.end_if_open(CloseReason::ConnectionLost("the participant's task ended".into()));
        self.inbox.end();
    }
}

#[cfg(test)]
mod tests;
