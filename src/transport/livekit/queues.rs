//! The queues between the participant's task and its `LiveKitTransport` handle. They survive reconnects.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use tokio::sync::{mpsc, oneshot};

use super::{
    simulate::Scenario,
    snapshot::{Snapshot, TaskEvent},
};
use crate::transport::{
    CloseReason, ConnectionState, Participant, Peer, Sid, StreamPart, TransportEvent, send_queue::SendQueue,
};

/// The capacity of the event channel to the handle.
const EVENT_QUEUE: usize = 256;
/// The size of queued events, in bytes, at which the task stops receiving.
const INBOX_BYTES: usize = 4 << 20;
/// The number of queued events at which the task stops receiving.
const INBOX_EVENTS: usize = 4096;
/// The overhead counted for each queued event, in bytes: its queue slot and reference counters.
const EVENT_BYTES: usize = 256;
/// The size counted for a queued participant without its attributes, in bytes: identity, sid and map entries.
const PARTICIPANT_BYTES: usize = 512;

/// A request to leave after flushing. If its sender is dropped, the task leaves without waiting.
pub(super) struct Leave {
    pub(super) left: oneshot::Sender<()>,
}

/// The handle's ends of the queues.
pub(super) struct UserQueues {
    pub(super) leave: mpsc::Sender<Leave>,
    pub(super) simulate: mpsc::Sender<Scenario>,
    pub(super) events: mpsc::Receiver<TaskEvent>,
}

/// State that the task and the handle share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// The packets to send.
    pub(super) queue: SendQueue,
}

/// The state of [`Shared`].
pub(super) struct State {
    pub(super) can_publish_data: bool,
    pub(super) token: String,
}

impl Shared {
    /// Reads or changes the state. The lock is never held across an await.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The task's ends of the queues.
pub(super) struct Queues {
    pub(super) shared: Arc<Shared>,
    pub(super) inbox: Inbox,
    /// The state emitted last.
    connection_state: ConnectionState,
    pub(super) leave: mpsc::Receiver<Leave>,
    pub(super) simulate: mpsc::Receiver<Scenario>,
    pub(super) events: mpsc::Sender<TaskEvent>,
    /// Set once the handle has asked to leave.
    pub(super) leaving: Option<Leaving>,
}

/// A flush in progress before leaving.
pub(super) struct Leaving {
    pub(super) left: oneshot::Sender<()>,
    /// The deadline of the flush.
    pub(super) until: Instant,
}

/// The handle asked to leave or was dropped.
#[derive(Debug)]
pub(super) struct Left;

impl Queues {
    /// Creates both ends for a participant with this sid.
    pub(super) fn new(sid: Sid, state: State) -> (Self, UserQueues) {
        let queue = SendQueue::default();
        queue.connect(sid);
        let (leave, leave_queue) = mpsc::channel(1);
        let (simulate, simulate_queue) = mpsc::channel(4);
        let (events, events_queue) = mpsc::channel(EVENT_QUEUE);
        let queues = Self {
            shared: Arc::new(Shared { state: Mutex::new(state), queue }),
            inbox: Inbox::default(),
            connection_state: ConnectionState::Connected,
            leave: leave_queue,
            simulate: simulate_queue,
            events,
            leaving: None,
        };
        (queues, UserQueues { leave, simulate, events: events_queue })
    }

    /// Stops accepting packets and flushes queued ones until the deadline.
    pub(super) fn begin_to_leave(&mut self, left: oneshot::Sender<()>, until: Instant) {
        self.shared.queue.close(CloseReason::Closed);
        self.leaving = Some(Leaving { left, until });
    }

    /// Delivers the waiting events for which the handle's channel has room.
    pub(super) fn deliver(&mut self) {
        while !self.inbox.is_empty()
            && let Ok(permit) = self.events.try_reserve()
            && let Some(event) = self.inbox.pop()
        {
            permit.send(event);
        }
    }

    /// Emits the connection state if it has changed, within the same connection.
    pub(super) fn emit_connection_state(&mut self, state: ConnectionState) {
        if mem::replace(&mut self.connection_state, state) != state {
            self.inbox.event(TransportEvent::ConnectionState(state));
        }
    }

    /// Accepts packets again after a rejoin and queues the new snapshot.
    pub(super) fn resume(&mut self, sid: Sid, can_publish_data: bool, snapshot: Snapshot) {
        self.shared.with(|state| state.can_publish_data = can_publish_data);
        self.shared.queue.connect(sid);
        self.connection_state = ConnectionState::Connected;
        self.inbox.push(TaskEvent::Rejoined(snapshot));
    }

    /// Refuses packets from now on, and fails all queued ones with [`SendError::Interrupted`].
    pub(super) fn interrupt(&mut self) {
        self.shared.queue.interrupt();
    }

    /// Runs `work` while reconnecting, and serves the handle meanwhile.
    ///
    /// # Errors
    /// [`Left`] if the handle asked to leave; `work` was dropped.
    pub(super) async fn serve<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Left> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                served = self.serve_once() => served?,
            }
        }
    }

    /// Waits until the inbox has room.
    ///
    /// # Errors
    /// [`Left`] if the handle asked to leave.
    pub(super) async fn wait_until_read(&mut self) -> Result<(), Left> {
        while self.inbox.is_full() {
            self.serve_once().await?;
        }
        Ok(())
    }

    /// Delivers one event. Cancel safe.
    async fn serve_once(&mut self) -> Result<(), Left> {
        let (events, waiting) = (self.events.clone(), !self.inbox.is_empty());
        tokio::select! {
            permit = events.reserve(), if waiting => match permit {
                Ok(permit) => if let Some(event) = self.inbox.pop() { permit.send(event) },
                Err(_) => return Err(Left),
            },
            asked = self.leave.recv() => {
                if let Some(Leave { left }) = asked {
                    self.begin_to_leave(left, Instant::now());
                }
                return Err(Left);
            }
        }
        Ok(())
    }

    /// Ends the queues. Pending sends fail now, before all events are read, because the same caller may wait for both.
    pub(super) fn close(mut self, reason: CloseReason) -> Rest {
        self.shared.queue.end(reason.clone());
        let inbox = mem::take(&mut self.inbox);
        let (events, leaving) = (self.events.clone(), self.leaving.take());
        let mut rest = Rest { inbox, events, leaving };
        rest.inbox.push(TaskEvent::Event(TransportEvent::Closed(reason)));
        rest
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        self.shared.queue.end_if_open(CloseReason::ConnectionLost("the participant's task ended".into()));
    }
}

/// The events left to deliver after the end.
pub(super) struct Rest {
    inbox: Inbox,
    events: mpsc::Sender<TaskEvent>,
    leaving: Option<Leaving>,
}

impl Rest {
    /// Completes a pending leave request and delivers the remaining events.
    pub(super) async fn deliver(mut self) {
        if let Some(Leaving { left, .. }) = self.leaving {
            let _ = left.send(());
        }
        while let Some(event) = self.inbox.pop() {
            if self.events.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// The events that wait for the handle.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: VecDeque<TaskEvent>,
    bytes: usize,
}

impl Inbox {
    pub(super) fn event(&mut self, event: TransportEvent) {
        self.push(TaskEvent::Event(event));
    }

    pub(super) fn push(&mut self, event: TaskEvent) {
        self.bytes += size(&event);
        self.waiting.push_back(event);
    }

    pub(super) fn pop(&mut self) -> Option<TaskEvent> {
        let event = self.waiting.pop_front()?;
        self.bytes -= size(&event);
        Some(event)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns true if the task should stop receiving. One read of the sockets can exceed the limit.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= INBOX_BYTES || self.waiting.len() >= INBOX_EVENTS
    }
}

/// The size of an event, in bytes. All fields whose length remote participants choose are counted.
fn size(event: &TaskEvent) -> usize {
    let carried = match event {
        TaskEvent::Event(TransportEvent::Packet(packet)) => {
            peer_size(&packet.from) + packet.topic.len() + packet.payload.len()
        }
        TaskEvent::Event(TransportEvent::Stream { from, part }) => peer_size(from) + part_size(part),
        TaskEvent::Event(TransportEvent::Joined(who)) | TaskEvent::Local(who) => participant_size(who),
        TaskEvent::Event(TransportEvent::Left(who)) => peer_size(who),
        TaskEvent::Rejoined(snapshot) => snapshot.others().map(participant_size).sum(),
        TaskEvent::Event(_) => 0,
    };
    EVENT_BYTES + carried
}

fn peer_size(who: &Peer) -> usize {
    who.identity().as_str().len() + who.sid().as_str().len()
}

fn part_size(part: &StreamPart) -> usize {
    let more = match part {
        StreamPart::Header(header) => header.topic.len(),
        StreamPart::Chunk { bytes, .. } => bytes.len(),
        StreamPart::Trailer { reason, .. } => reason.len(),
    };
    part.id().len() + more
}

/// Attributes are counted because a participant can change them at any rate, and they can be large.
fn participant_size(who: &Participant) -> usize {
    PARTICIPANT_BYTES + who.attribute_bytes()
}

#[cfg(test)]
mod tests;
