//! Queues the events until the handle's user reads them. They survive reconnects and the end of the task.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
};

use tokio::task::coop;

use super::snapshot::TaskEvent;
use crate::transport::{Participant, Peer, StreamPart, TransportEvent};

/// The size of queued events, in bytes, at which the task stops receiving.
const MAX_BYTES: usize = 4 << 20;
/// The number of queued events at which the task stops receiving.
const MAX_EVENTS: usize = 4096;
/// The overhead counted for each queued event, in bytes: its queue slot and reference counters.
const EVENT_BYTES: usize = 256;
/// The size counted for a queued participant without its attributes, in bytes: identity, sid and map entries.
const PARTICIPANT_BYTES: usize = 512;

/// The inbox. The task adds events, the handle takes them. Clones refer to the same inbox.
#[derive(Clone, Default)]
pub(crate) struct Inbox(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<TaskEvent>,
    bytes: usize,
    /// True if no event follows those that wait.
    has_ended: bool,
    /// Wakes the handle's user, who waits for an event.
    reader: Option<Waker>,
    /// Wakes the task, which waits for room.
    task: Option<Waker>,
}

impl State {
    fn is_full(&self) -> bool {
        self.bytes >= MAX_BYTES || self.waiting.len() >= MAX_EVENTS
    }
}

impl Inbox {
    pub(crate) fn event(&self, event: TransportEvent) {
        self.push(TaskEvent::Event(event));
    }

    pub(crate) fn push(&self, event: TaskEvent) {
        let mut state = self.lock();
        // Nothing is refused here. The task stops reading while the inbox is full, so that no event between
        // two others is missing.
        state.bytes += size(&event);
        state.waiting.push_back(event);
        wake(state, |state| &mut state.reader);
    }

    /// Adds no more events.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.has_ended = true;
        wake(state, |state| &mut state.reader);
    }

    /// Returns true if the task should stop receiving. One read of the sockets can exceed the limit.
    pub(crate) fn is_full(&self) -> bool {
        self.lock().is_full()
    }

    /// Waits until the inbox is not full. Cancel safe.
    pub(crate) async fn has_room(&self) {
        poll_fn(|cx| {
            let mut state = self.lock();
            if !state.is_full() {
                return Poll::Ready(());
            }
            state.task = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Takes the next event. Returns `None` after the last one. Cancel safe.
    pub(crate) async fn next(&self) -> Option<TaskEvent> {
        let next = poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(event) = state.waiting.pop_front() {
                state.bytes -= size(&event);
                if !state.is_full() {
                    wake(state, |state| &mut state.task);
                }
                return Poll::Ready(Some(event));
            }
            if state.has_ended {
                return Poll::Ready(None);
            }
            if !state.reader.as_ref().is_some_and(|reader| reader.will_wake(cx.waker())) {
                state.reader = Some(cx.waker().clone());
            }
            Poll::Pending
        });
        // A full inbox never makes its reader wait. Without tokio's budget, a loop that reads it would keep
        // its thread from all other tasks.
        coop::cooperative(next).await
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Unlocks the state and wakes the waiting tasks.
fn wake(mut state: MutexGuard<'_, State>, waker: impl FnOnce(&mut State) -> &mut Option<Waker>) {
    let waker = waker(&mut state).take();
    // A task that is woken on another thread would wait for the lock first.
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Returns the size of an event, in bytes. All fields whose length remote participants choose are counted.
fn size(event: &TaskEvent) -> usize {
    let carried = match event {
        TaskEvent::Event(TransportEvent::Packet(packet)) => {
            packet.from.as_ref().map_or(0, peer_size) + packet.topic.len() + packet.payload.len()
        }
        TaskEvent::Event(TransportEvent::Stream { from, part }) => peer_size(from) + part_size(part),
        TaskEvent::Event(TransportEvent::Unreadable { from, .. }) => from.as_ref().map_or(0, peer_size),
        TaskEvent::Event(TransportEvent::Rpc { from, message }) => {
            from.as_ref().map_or(0, peer_size) + message.size()
        }
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
        StreamPart::Header(header) => header.size(),
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
mod tests {
    use std::{pin::pin, task::Context};

    use super::*;
    use crate::{
        livekit::room::snapshot::Snapshot,
        transport::{ConnectionState, Incoming, Lane, StreamHeader},
    };

    fn packet(size: usize) -> TaskEvent {
        let from = Peer::new("a", "PA_1");
        TaskEvent::Event(TransportEvent::Packet(Incoming::new(from, Lane::Reliable, "", vec![0; size])))
    }

    async fn empty(inbox: &Inbox) {
        inbox.end();
        while inbox.next().await.is_some() {}
        assert_eq!(inbox.lock().bytes, 0);
    }

    fn count(inbox: &Inbox) -> usize {
        inbox.lock().waiting.len()
    }

    #[tokio::test]
    async fn inbox_is_full_by_bytes_or_by_number_and_empties_again() {
        let inbox = Inbox::default();
        inbox.push(packet(MAX_BYTES - 2 * EVENT_BYTES));
        assert!(!inbox.is_full());
        inbox.push(packet(0));
        assert!(inbox.is_full());
        empty(&inbox).await;
        for _ in 0..MAX_EVENTS {
            assert!(!inbox.is_full());
            inbox.event(TransportEvent::ConnectionState(ConnectionState::Connected));
        }
        assert!(inbox.is_full());
    }

    #[tokio::test]
    async fn task_waits_for_room_and_reader_for_an_event() {
        let inbox = Inbox::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut next = pin!(inbox.next());
        assert!(next.as_mut().poll(&mut cx).is_pending());
        for _ in 0..MAX_EVENTS {
            inbox.push(packet(0));
        }
        let mut room = pin!(inbox.has_room());
        assert!(room.as_mut().poll(&mut cx).is_pending());
        assert!(next.await.is_some());
        room.await;
        empty(&inbox).await;
    }

    #[tokio::test]
    async fn long_field_of_a_stream_part_fills_the_inbox() {
        const LONG: usize = 60_000;
        let long = || "x".repeat(LONG);
        let peer = Peer::new("a", "PA_1");
        for (from, part) in [
            (peer.clone(), StreamPart::Header(StreamHeader::new("s", long(), None))),
            (peer.clone(), StreamPart::Header(StreamHeader::new(long(), "", None))),
            (peer.clone(), StreamPart::Trailer { id: "s".into(), reason: long() }),
            (peer, StreamPart::Chunk { id: "s".into(), index: 0, bytes: vec![0; LONG].into() }),
            (Peer::new(long(), ""), StreamPart::Trailer { id: "s".into(), reason: String::new() }),
        ] {
            let inbox = Inbox::default();
            while !inbox.is_full() {
                inbox.event(TransportEvent::Stream { from: from.clone(), part: part.clone() });
            }
            assert!(count(&inbox) <= MAX_BYTES / LONG + 1, "{}", count(&inbox));
            empty(&inbox).await;
        }
    }

    #[test]
    fn unread_rejoins_fill_the_inbox_by_their_participants() {
        let crowd = (0..1000).map(|n| Participant::new(format!("p{n}"), "PA")).collect();
        let snapshot = Snapshot::new(String::new(), Participant::new("me", "PA"), crowd);
        let inbox = Inbox::default();
        while !inbox.is_full() {
            inbox.push(TaskEvent::Rejoined(snapshot.clone()));
        }
        assert!(count(&inbox) < 10, "{}", count(&inbox));
    }

    #[tokio::test]
    async fn attribute_changes_fill_the_inbox_by_their_size() {
        let who = Participant::new("p", "PA_2").attributes([("notes", "x".repeat(64 * 1024))]);
        let inbox = Inbox::default();
        while !inbox.is_full() {
            inbox.event(TransportEvent::Joined(who.clone()));
        }
        assert!(count(&inbox) < 70, "{}", count(&inbox));
        empty(&inbox).await;
    }
}
