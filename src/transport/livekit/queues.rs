//! Where the room's task and its user meet: the queues between them, which outlive any one join.

use std::{
    collections::VecDeque,
    future::Future,
    mem,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use livekit_protocol::DataPacket;
use tokio::sync::{mpsc, oneshot};

use super::{
    backlog::{Backlog, Queued},
    simulate::Scenario,
    snapshot::{Snapshot, TaskEvent},
    stream::{self, Outflow},
};
use crate::transport::{
    CloseReason, ConnectionState, Lane, Participant, Peer, SendError, Sid, StreamPart, TransportEvent,
};

/// How many packets of one lane wait to be written, beyond the one that is.
const LANE_QUEUE: usize = 32;
/// How many events wait for the user in the channel to it.
const EVENT_QUEUE: usize = 256;
/// How many bytes wait for the user before the sender is slowed down.
const INBOX_BYTES: usize = 4 << 20;
/// How many events wait for the user before the sender is slowed down.
const INBOX_EVENTS: usize = 4096;
/// What each event that waits counts, in bytes, beside what it carries: its place, and the counters of its texts.
const EVENT_BYTES: usize = 256;
/// What a participant that waits counts, in bytes, beside its attributes: its identity, its sid, their places.
const PARTICIPANT_BYTES: usize = 512;

/// A packet on its way out, and who waits for it. It is of the join whose sid it carries, and of no other.
pub(super) struct Outgoing {
    pub(super) packet: DataPacket,
    /// What follows it, if it is a part of a stream.
    pub(super) rest: Option<Outflow>,
    pub(super) written: oneshot::Sender<Result<(), SendError>>,
    /// It counts as waiting until it is written.
    pub(super) waits: Queued,
}

impl Outgoing {
    /// Whoever asked may have gone away.
    fn answer(self, result: Result<(), SendError>) {
        let Self { written, waits, .. } = self;
        drop(waits);
        let _ = written.send(result);
    }
}

/// What the user asks of the task. Dropping the sender means: leave, without waiting.
pub(super) struct Leave {
    pub(super) left: oneshot::Sender<()>,
}

/// The user's ends of the queues.
pub(super) struct UserQueues {
    /// What passes between the parts of streams.
    pub(super) urgent: mpsc::Sender<Outgoing>,
    pub(super) reliable: mpsc::Sender<Outgoing>,
    pub(super) lossy: mpsc::Sender<Outgoing>,
    pub(super) leave: mpsc::Sender<Leave>,
    pub(super) simulate: mpsc::Sender<Scenario>,
    pub(super) events: mpsc::Receiver<TaskEvent>,
}

/// What both sides look at any time.
pub(super) struct Shared {
    state: Mutex<State>,
    /// What waits on the reliable lane.
    pub(super) backlog: Backlog,
}

/// The state of [`Shared`].
pub(super) struct State {
    /// The join that packets can be handed to; none while there is none.
    pub(super) sid: Option<Sid>,
    pub(super) can_publish_data: bool,
    pub(super) token: String,
    pub(super) closed: Option<CloseReason>,
}

impl Shared {
    /// Looks at it or changes it; never across an await.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Why nothing can be sent any more.
    pub(super) fn closed(&self) -> SendError {
        let reason = self.with(|state| state.closed.clone());
        SendError::Closed(
            reason.unwrap_or_else(|| CloseReason::ConnectionLost("the room's task ended".into())),
        )
    }
}

/// The task's side of it.
pub(super) struct Queues {
    pub(super) shared: Arc<Shared>,
    /// In the order in which they are served.
    pub(super) lanes: Lanes,
    pub(super) inbox: Inbox,
    /// What the user was told last.
    connection_state: ConnectionState,
    pub(super) leave: mpsc::Receiver<Leave>,
    pub(super) simulate: mpsc::Receiver<Scenario>,
    pub(super) events: mpsc::Sender<TaskEvent>,
    /// The user has asked to leave in order.
    pub(super) leaving: Option<Leaving>,
}

/// An orderly end under way.
pub(super) struct Leaving {
    pub(super) left: oneshot::Sender<()>,
    /// How long it waits for what was handed over.
    pub(super) until: Instant,
}

/// The user wants to leave.
#[derive(Debug)]
pub(super) struct Left;

impl Queues {
    /// The two sides.
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

    /// The user wants to leave: nothing more can be handed over, and what was is flushed until then.
    pub(super) fn begin_to_leave(&mut self, left: oneshot::Sender<()>, until: Instant) {
        self.shared.with(|state| state.closed = Some(CloseReason::Closed));
        for lane in &mut self.lanes {
            lane.queue.close();
        }
        self.leaving = Some(Leaving { left, until });
    }

    /// Packets cannot pass now, or can again in the same join. Told once.
    pub(super) fn emit_connection_state(&mut self, state: ConnectionState) {
        if mem::replace(&mut self.connection_state, state) != state {
            self.inbox.tell(TransportEvent::ConnectionState(state));
        }
    }

    /// There is a join again, in which packets can be sent.
    pub(super) fn resume(&mut self, sid: Sid, can_publish_data: bool, snapshot: Snapshot) {
        self.shared.with(|state| {
            state.sid = Some(sid);
            state.can_publish_data = can_publish_data;
        });
        self.connection_state = ConnectionState::Connected;
        self.inbox.push(TaskEvent::Rejoined(snapshot));
    }

    /// There is no join any more: what waits for one is told, and whatever comes is refused.
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

    /// Does something that needs no join, and serves the user meanwhile.
    ///
    /// # Errors
    /// The user wants to leave; the work was dropped.
    pub(super) async fn serve<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Left> {
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done),
                served = self.serve_once() => served?,
            }
        }
    }

    /// Waits until the user has read enough for more to come.
    ///
    /// # Errors
    /// The user wants to leave.
    pub(super) async fn wait_until_read(&mut self) -> Result<(), Left> {
        while self.inbox.is_full() {
            self.serve_once().await?;
        }
        Ok(())
    }

    /// Gives the user one event, or takes one packet, which cannot go anywhere. A dropped future loses nothing.
    async fn serve_once(&mut self) -> Result<(), Left> {
        let (events, waiting) = (self.events.clone(), !self.inbox.is_empty());
        let [lossy, urgent, reliable] = &mut self.lanes;
        tokio::select! {
            permit = events.reserve(), if waiting => match permit {
                Ok(permit) => if let Some(told) = self.inbox.pop() { permit.send(told) },
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

    /// The end: from now on nothing can be sent, and everybody who waits for that hears of it, before all
    /// events are read. It may be the same one that reads them.
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

/// What is left to be read.
pub(super) struct Rest {
    inbox: Inbox,
    events: mpsc::Sender<TaskEvent>,
    leaving: Option<Leaving>,
}

impl Rest {
    /// Tells whoever waits that we have left, and the reader all that is left to tell.
    pub(super) async fn tell(mut self) {
        if let Some(Leaving { left, .. }) = self.leaving {
            let _ = left.send(());
        }
        while let Some(told) = self.inbox.pop() {
            if self.events.send(told).await.is_err() {
                return;
            }
        }
    }
}

/// The lossy lane, what passes between the parts of streams on the reliable one, and the rest of that.
pub(super) type Lanes = [LaneQueue; 3];

/// The packets of one lane: those that wait, and the one that is being written.
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

    /// What was being written is written: the next part of its stream follows, or nothing.
    pub(super) fn go_on(&mut self) {
        let Some(Outgoing { packet, rest, .. }) = &mut self.next else { return };
        match rest.as_mut().and_then(Outflow::next) {
            Some(part) => *packet = part,
            None => self.done(Ok(())),
        }
    }

    /// Nobody waits for the rest of a stream: its end is told to those who heard its beginning.
    pub(super) fn abandon_unwanted(&mut self) {
        let Some(Outgoing { packet, rest, written, .. }) = &mut self.next else { return };
        if let Some(stream) = rest.as_mut().filter(|_| written.is_closed()) {
            match stream.abandon() {
                Some(trailer) if !stream::is_header(packet) => *packet = trailer,
                Some(_) => self.next = None, // not even its header was written
                None => {}                   // all but the last part was
            }
        }
    }

    pub(super) fn done(&mut self, result: Result<(), SendError>) {
        if let Some(outgoing) = self.next.take() {
            outgoing.answer(result);
        }
    }
}

/// What waits for the user.
#[derive(Default)]
pub(super) struct Inbox {
    waiting: VecDeque<TaskEvent>,
    bytes: usize,
}

impl Inbox {
    pub(super) fn tell(&mut self, event: TransportEvent) {
        self.push(TaskEvent::Event(event));
    }

    pub(super) fn push(&mut self, told: TaskEvent) {
        self.bytes += size(&told);
        self.waiting.push_back(told);
    }

    pub(super) fn pop(&mut self) -> Option<TaskEvent> {
        let told = self.waiting.pop_front()?;
        self.bytes -= size(&told);
        Some(told)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Beyond this the network's own brakes are used, so what one reading brings at most is on top.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= INBOX_BYTES || self.waiting.len() >= INBOX_EVENTS
    }
}

/// All that others decide the length of counts, whatever it is called.
fn size(told: &TaskEvent) -> usize {
    let carried = match told {
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

/// A participant may change its attributes as often as it likes, and they may be large.
fn participant_size(who: &Participant) -> usize {
    PARTICIPANT_BYTES + who.attribute_bytes()
}

#[cfg(test)]
mod tests;
