//! Queues the items to be written, within bounds. Filling it never blocks.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    error::Error,
    mem,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{Direction, Moment, RoomEvent, rpc::RpcPart};
use crate::transport::{Identity, Lane, Peer};

/// How many events are accepted beyond the entry limit, so that a flood of packets does not displace joins and
/// leaves.
const EVENT_RESERVE: usize = 1_024;

/// The interval and number of polls before the writer thread sleeps. Waking a sleeping thread costs the caller
/// several microseconds, so polling keeps that to once a call instead of once a frame.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const POLLS_BEFORE_SLEEP: u32 = 50;

/// The longest sleep without a wake-up.
const SLEEP: Duration = Duration::from_secs(1);

/// The size that each entry counts for in addition to its payload, in bytes.
const ENTRY_BYTES: usize = 256;

/// The ticket of an item that was not queued.
pub(super) const NO_TICKET: u64 = 0;

/// An item to be written.
#[derive(Debug)]
pub(super) enum Item {
    Packet(Moment, QueuedPacket),
    Event(Moment, RoomEvent),
    /// The packet with this ticket was not sent.
    Unsent(Moment, u64, String),
}

/// A packet in the queue.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) direction: Direction,
    pub(super) from: Option<Peer>,
    pub(super) to: Vec<Identity>,
    pub(super) topic: Cow<'static, str>,
    pub(super) lane: Lane,
    pub(super) stream: bool,
    /// Whether the frame was compressed, although the content is not.
    pub(super) compressed: bool,
    /// Whether it is of or to a participant without rights, so that nothing in it is expanded.
    pub(super) is_strangers: bool,
    pub(super) content: Content,
    /// Identifies the packet in case sending fails. Assigned by the queue.
    pub(super) ticket: u64,
}

/// What a packet carries.
#[derive(Debug)]
pub(super) enum Content {
    /// The bytes to record.
    Payload(Bytes),
    /// A message of RPC, of which a frame is made for the file.
    Rpc(RpcPart),
}

impl Content {
    /// Its size in the packets, in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Payload(payload) => payload.len(),
            Self::Rpc(part) => part.size(),
        }
    }
}

/// The items that the writer thread takes at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Tools whose data is secret from these items on.
    pub(super) hidden: BTreeSet<String>,
    pub(super) items: VecDeque<Item>,
    /// How many packets were dropped after these items.
    pub(super) unrecorded: u64,
    /// The queue is closed and nothing follows.
    pub(super) last: bool,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Queue {
    entries: usize,
    bytes: usize,
    state: Mutex<State>,
    /// Notifies the writer thread of new items or of the close.
    filled: Condvar,
    /// The writer thread sleeps although items are queued.
    to_wake: AtomicBool,
    /// Notifies those that wait for the end.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Hidden tools that the writer thread has not yet taken. They are not in the queue, since a full queue must not
    /// lose them.
    hidden: BTreeSet<String>,
    waiting: VecDeque<Item>,
    tickets: u64,
    /// Of queued items and those being written.
    entries: usize,
    bytes: usize,
    /// Not yet recorded in the file.
    unrecorded: u64,
    unrecorded_in_all: u64,
    left_out: u64,
    recorded: u64,
    /// The writer thread is waiting.
    idle: bool,
    closed: bool,
    /// The last handle was dropped before anything was queued.
    is_unused: bool,
    /// Everything that will be written is in the live file.
    drained: bool,
    done: bool,
    failed: Option<Arc<dyn Error + Send + Sync>>,
}

/// The recorder's counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderStats {
    /// Packets in the file.
    pub recorded: u64,
    /// Packets not in the file: the queue was full, the file had too many channels, or the recording had stopped.
    pub unrecorded: u64,
    /// Packets of and to participants without rights that were left out, because a limit was reached: see
    /// [`RecorderOptions::strangers`](super::RecorderOptions::strangers).
    pub left_out: u64,
    /// Why the recording stopped early, for example because the disk is full.
    pub failed: Option<String>,
}

impl Queue {
    pub(super) fn new(entries: usize, bytes: usize) -> Self {
        let state = Mutex::default();
        let (filled, ended) = (Condvar::new(), Condvar::new());
        Self { entries, bytes, state, filled, to_wake: AtomicBool::new(false), ended }
    }

    /// Queues an item if there is room, and counts it otherwise. Returns the ticket that identifies a packet. The
    /// caller [wakes](Queue::wake) the thread once it has no urgent work left.
    pub(super) fn push(&self, mut item: Item) -> u64 {
        let (more, size) = match &item {
            Item::Packet(_, packet) => (0, ENTRY_BYTES + packet.content.size()),
            Item::Event(..) | Item::Unsent(..) => (EVENT_RESERVE, ENTRY_BYTES),
        };
        let mut state = self.lock();
        let fits = state.entries < self.entries.saturating_add(more)
            && (more > 0 || state.bytes.saturating_add(size) <= self.bytes);
        if state.closed || !fits {
            if matches!(item, Item::Packet(..)) {
                state.lose(1);
            }
            return NO_TICKET;
        }
        state.tickets += 1;
        let ticket = state.tickets;
        if let Item::Packet(_, packet) = &mut item {
            packet.ticket = ticket;
        }
        state.entries += 1;
        state.bytes += size;
        state.waiting.push_back(item);
        if mem::take(&mut state.idle) {
            self.to_wake.store(true, Ordering::Relaxed);
        }
        ticket
    }

    /// Marks the data of this tool as secret from now on.
    pub(super) fn hide(&self, tool: &str) {
        self.lock().hidden.insert(tool.to_owned());
    }

    /// Wakes the writer thread if it sleeps and items are queued.
    pub(super) fn wake(&self) {
        if self.to_wake.load(Ordering::Relaxed) && self.to_wake.swap(false, Ordering::Relaxed) {
            self.filled.notify_one();
        }
    }

    /// Reports what was written and waits for more.
    pub(super) fn take(&self, batch: &mut Batch, written: u64) {
        let mut state = self.lock();
        state.recorded += written;
        state.bytes = state.bytes.saturating_sub(mem::take(&mut batch.bytes));
        state.entries = state.waiting.len();
        let mut looked = 0;
        while state.waiting.is_empty() && state.unrecorded == 0 && !state.closed {
            if looked < POLLS_BEFORE_SLEEP {
                looked += 1;
                (state, _) =
                    self.filled.wait_timeout(state, POLL_INTERVAL).unwrap_or_else(PoisonError::into_inner);
            } else {
                state.idle = true;
                (state, _) = self.filled.wait_timeout(state, SLEEP).unwrap_or_else(PoisonError::into_inner);
            }
        }
        state.idle = false;
        batch.hidden = mem::take(&mut state.hidden);
        batch.items.clear();
        mem::swap(&mut batch.items, &mut state.waiting);
        batch.bytes = state.bytes;
        batch.unrecorded = mem::take(&mut state.unrecorded);
        batch.last = state.closed;
    }

    /// Returns and resets the number of packets that could not be recorded.
    pub(super) fn take_unrecorded(&self) -> u64 {
        mem::take(&mut self.lock().unrecorded)
    }

    /// Counts a packet of or to a participant without rights that was left out.
    pub(super) fn leave_out(&self) {
        self.lock().left_out += 1;
    }

    /// Counts packets that were taken but could not be written.
    pub(super) fn lose(&self, packets: u64) {
        self.lock().lose(packets);
    }

    /// Closes the queue because its last handle was dropped. Returns true if nothing was ever queued: there is no recording then.
    pub(super) fn abandon(&self) -> bool {
        let mut state = self.lock();
        state.is_unused = !state.closed && state.tickets == 0 && state.unrecorded_in_all == 0;
        let is_unused = state.is_unused;
        drop(state);
        self.close();
        is_unused
    }

    /// Returns true if nothing was queued before the last handle was dropped.
    pub(super) fn is_unused(&self) -> bool {
        self.lock().is_unused
    }

    /// Closes the queue: nothing more is accepted.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// Reports that the live file is complete.
    pub(super) fn drained(&self, written: u64) {
        let mut state = self.lock();
        state.recorded += written;
        state.drained = true;
        self.ended.notify_all();
    }

    /// Reports an error: the queue is closed and its items are lost.
    pub(super) fn fail(&self, error: impl Into<Box<dyn Error + Send + Sync>>) {
        let mut state = self.lock();
        state.closed = true;
        state.failed.get_or_insert_with(|| error.into().into());
        let waiting = mem::take(&mut state.waiting);
        let lost = waiting.iter().filter(|item| matches!(item, Item::Packet(..))).count();
        state.lose(lost as u64);
    }

    /// Reports that the writer thread has ended.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        (state.closed, state.drained, state.done) = (true, true, true);
        self.ended.notify_all();
    }

    /// Waits for the end of the writer thread and returns its error.
    pub(super) fn wait(&self) -> Result<(), Arc<dyn Error + Send + Sync>> {
        let mut state = self.lock();
        while !state.done {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until the live file is complete, at most for `limit`.
    pub(super) fn wait_drained(&self, limit: Duration) {
        let state = self.lock();
        drop(self.ended.wait_timeout_while(state, limit, |state| !state.drained));
    }

    /// Waits for the end of the writer thread, at most for `limit`.
    pub(super) fn wait_ended(&self, limit: Duration) {
        let state = self.lock();
        drop(self.ended.wait_timeout_while(state, limit, |state| !state.done));
    }

    pub(super) fn stats(&self) -> RecorderStats {
        let state = self.lock();
        let (recorded, unrecorded, left_out) = (state.recorded, state.unrecorded_in_all, state.left_out);
        let failed = state.failed.as_ref().map(ToString::to_string);
        RecorderStats { recorded, unrecorded, left_out, failed }
    }

    /// No critical section can panic, so a poisoned lock is safe to use.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lose(&mut self, packets: u64) {
        self.unrecorded += packets;
        self.unrecorded_in_all += packets;
    }
}
