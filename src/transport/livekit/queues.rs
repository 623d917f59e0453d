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
    backlog::{Backlog, Queued},
    packet::DataPacket,
    simulate::Scenario,
    snapshot::{Snapshot, TaskEvent},
    stream::{self, Outflow},
};
use crate::transport::{
    CloseReason, ConnectionState, Lane, Participant, Peer, SendError, Sid, StreamPart, TransportEvent,
};

/// The number of packets per lane that wait behind the one being written.
const LANE_QUEUE: usize = 32;
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

/// An outgoing packet and the sender of its result. It may only be sent in the connection whose sid it carries.
pub(super) struct Outgoing {
    pub(super) packet: DataPacket,
    /// The remaining parts, if the packet is a part of a byte stream.
    pub(super) rest: Option<Outflow>,
    pub(super) written: oneshot::Sender<Result<(), SendError>>,
    /// Counts the packet in the backlog until it is written.
    pub(super) waits: Queued,
}

impl Outgoing {
    /// Sends the result. The caller may have dropped its future.
    fn answer(self, result: Result<(), SendError>) {
        let Self { written, waits, .. } = self;
        drop(waits);
        let _ = written.send(result);
    }
}

/// A request to leave after flushing. If its sender is dropped, the task leaves without waiting.
pub(super) struct Leave {
    pub(super) left: oneshot::Sender<()>,
}

/// The handle's ends of the queues.
pub(super) struct UserQueues {
    /// Reliable packets that may be sent between the parts of byte streams.
    pub(super) urgent: mpsc::Sender<Outgoing>,
    pub(super) reliable: mpsc::Sender<Outgoing>,
    pub(super) lossy: mpsc::Sender<Outgoing>,
    pub(super) leave: mpsc::Sender<Leave>,
    pub(super) simulate: mpsc::Sender<Scenario>,
    pub(super) events: mpsc::Receiver<TaskEvent>,
}

/// State that the task and the handle share.
pub(super) struct Shared {
    state: Mutex<State>,
    /// The bytes queued or unacknowledged on the reliable lane.
    pub(super) backlog: Backlog,
}

/// The state of [`Shared`].
pub(super) struct State {
    /// The local sid of the current connection; none while reconnecting.
    pub(super) sid: Option<Sid>,
    pub(super) can_publish_data: bool,
    pub(super) token: String,
    pub(super) closed: Option<CloseReason>,
}

impl Shared {
    /// Reads or changes the state. The lock is never held across an await.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the error for packets sent after the connection has ended.
    pub(super) fn closed(&self) -> SendError {
        let reason = self.with(|state| state.closed.clone());
        SendError::Closed(
            reason.unwrap_or_else(|| CloseReason::ConnectionLost("the participant's task ended".into())),
        )
    }
}

/// The task's ends of the queues.
pub(super) struct Queues {
    pub(super) shared: Arc<Shared>,
    /// In order of priority.
    pub(super) lanes: Lanes,
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
    /// Creates both ends.
    pub(super) fn new(state: State) -> (Self, UserQueues) {
        let (urgent, urgent_queue) = mpsc::channel(LANE_QUEUE);
        let (reliable, reliable_queue) = mpsc::channel(LANE_QUEUE);
        let (lossy, lossy_queue) = mpsc::channel(LANE_QUEUE);
        let (leave, leave_queue) = mpsc::channel(1);
        let (simulate, simulate_queue) = mpsc::channel(4);
        let (events, events_queue) = mpsc::channel(EVENT_QUEUE);
        let queues = Self {
            shared: Arc::new(Shared { state: Mutex::new(state), backlog: Backlog::default() }),
            lanes: [
                LaneQueue::new(Lane::Lossy, lossy_queue),
                LaneQueue::new(Lane::Reliable, urgent_queue),
                LaneQueue::new(Lane::Reliable, reliable_queue),
            ],
            inbox: Inbox::default(),
            connection_state: ConnectionState::Connected,
            leave: leave_queue,
            simulate: simulate_queue,
            events,
            leaving: None,
        };
        (queues, UserQueues { urgent, reliable, lossy, leave, simulate, events: events_queue })
    }

    /// Stops accepting packets and flushes queued ones until the deadline.
    pub(super) fn begin_to_leave(&mut self, left: oneshot::Sender<()>, until: Instant) {
        self.shared.with(|state| state.closed = Some(CloseReason::Closed));
        for lane in &mut self.lanes {
            lane.queue.close();
        }
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
        self.shared.with(|state| {
            state.sid = Some(sid);
            state.can_publish_data = can_publish_data;
        });
        self.connection_state = ConnectionState::Connected;
        self.inbox.push(TaskEvent::Rejoined(snapshot));
    }

    /// Refuses packets from now on, and fails all queued ones with [`SendError::Interrupted`].
    pub(super) fn interrupt(&mut self) {
        self.shared.with(|state| state.sid = None);
        self.shared.backlog.set_unacknowledged(0);
        for lane in &mut self.lanes {
            lane.done(Err(SendError::Interrupted));
            while let Ok(outgoing) = lane.queue.try_recv() {
                outgoing.answer(Err(SendError::Interrupted));
            }
        }
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

    /// Delivers one event, or fails one packet, since there is no connection. Cancel safe.
    async fn serve_once(&mut self) -> Result<(), Left> {
        let (events, waiting) = (self.events.clone(), !self.inbox.is_empty());
        let [lossy, urgent, reliable] = &mut self.lanes;
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
            Some(outgoing) = urgent.queue.recv() => outgoing.answer(Err(SendError::Interrupted)),
            Some(outgoing) = reliable.queue.recv() => outgoing.answer(Err(SendError::Interrupted)),
            Some(outgoing) = lossy.queue.recv() => outgoing.answer(Err(SendError::Interrupted)),
        }
        Ok(())
    }

    /// Ends the queues. Pending sends fail now, before all events are read, because the same caller may wait for both.
    pub(super) fn close(self, reason: CloseReason) -> Rest {
        self.shared.with(|state| {
            state.sid = None;
            state.closed = Some(reason.clone());
        });
        let Self { mut inbox, events, leaving, .. } = self;
        inbox.push(TaskEvent::Event(TransportEvent::Closed(reason)));
        Rest { inbox, events, leaving }
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

/// The queues of the lossy lane, of urgent reliable packets, and of all other reliable packets.
pub(super) type Lanes = [LaneQueue; 3];

/// The queue of one lane and the packet being written.
pub(super) struct LaneQueue {
    pub(super) lane: Lane,
    pub(super) queue: mpsc::Receiver<Outgoing>,
    pub(super) next: Option<Outgoing>,
    ended: bool,
}

impl LaneQueue {
    fn new(lane: Lane, queue: mpsc::Receiver<Outgoing>) -> Self {
        Self { lane, queue, next: None, ended: false }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.next.is_none() && !self.ended
    }

    pub(super) fn is_done(&self) -> bool {
        self.next.is_none() && self.ended
    }

    pub(super) fn take(&mut self, more: Option<Outgoing>) {
        self.ended = more.is_none();
        self.next = more;
    }

    /// Continues after a write: with the next part of the byte stream, or with an empty slot.
    pub(super) fn go_on(&mut self) {
        let Some(Outgoing { packet, rest, .. }) = &mut self.next else { return };
        match rest.as_mut().and_then(Outflow::next) {
            Some(part) => *packet = part,
            None => self.done(Ok(())),
        }
    }

    /// Aborts a byte stream whose caller has dropped its future. Receivers of its header get a trailer.
    pub(super) fn abandon_unwanted(&mut self) {
        let Some(Outgoing { packet, rest, written, .. }) = &mut self.next else { return };
        if let Some(stream) = rest.as_mut().filter(|_| written.is_closed()) {
            match stream.abandon() {
                Some(trailer) if !stream::is_header(packet) => *packet = trailer,
                Some(_) => self.next = None, // the header was not written yet
                None => {}                   // only the trailer is left
            }
        }
    }

    pub(super) fn done(&mut self, result: Result<(), SendError>) {
        if let Some(outgoing) = self.next.take() {
            outgoing.answer(result);
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
