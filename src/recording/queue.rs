//! What waits to be written: bounded, and never waited for by who fills it.

use std::{
    borrow::Cow,
    collections::{BTreeSet, VecDeque},
    mem,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;

use super::{Direction, Moment, RoomEvent};
use crate::transport::{Identity, Lane, Peer};

/// How many events find a place beyond the entries that are allowed: who joined and left must not be lost to a flood of
/// packets.
const EVENTS_MORE: usize = 1_024;

/// How long the thread that writes looks again by itself, and how often, before it sleeps: to be woken costs the one who
/// wakes it several microseconds, so that a call does so once and not with each frame.
const LOOK: Duration = Duration::from_millis(2);
const LOOKS: u32 = 50;

/// How long it sleeps if nobody wakes it.
const SLEEP: Duration = Duration::from_secs(1);

/// What an entry counts for beside its payload, in bytes.
const ENTRY_BYTES: usize = 256;

/// The ticket of what found no place.
pub(super) const NO_TICKET: u64 = 0;

/// One thing to be written.
#[derive(Debug)]
pub(super) enum Item {
    Packet(Moment, QueuedPacket),
    Event(Moment, RoomEvent),
    /// The packet of this ticket did not leave.
    Unsent(Moment, u64, String),
}

/// A packet, as the recorder is told of it.
#[derive(Debug)]
pub(super) struct QueuedPacket {
    pub(super) direction: Direction,
    pub(super) from: Peer,
    pub(super) to: Vec<Identity>,
    pub(super) topic: Cow<'static, str>,
    pub(super) lane: Lane,
    pub(super) stream: bool,
    pub(super) payload: Bytes,
    /// Names it, should it not leave. The queue gives it.
    pub(super) ticket: u64,
}

/// What is taken at once.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Tools that are secret from these items on.
    pub(super) hidden: BTreeSet<String>,
    pub(super) items: VecDeque<Item>,
    /// How many packets found no place behind these.
    pub(super) unrecorded: u64,
    /// Nothing follows.
    pub(super) last: bool,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Queue {
    entries: usize,
    bytes: usize,
    state: Mutex<State>,
    /// For the thread that writes: something waits, or nothing more comes.
    filled: Condvar,
    /// It sleeps, and something waits.
    to_wake: AtomicBool,
    /// For whoever waits for the end.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Tools that the thread was not told of yet: not in the queue, since a full one must not lose them.
    hidden: BTreeSet<String>,
    waiting: VecDeque<Item>,
    tickets: u64,
    /// Of what waits and what is just being written.
    entries: usize,
    bytes: usize,
    /// Not yet said in the file.
    unrecorded: u64,
    unrecorded_in_all: u64,
    recorded: u64,
    /// The thread waits.
    idle: bool,
    closed: bool,
    /// All that was to be written is in the live file, or never will be.
    drained: bool,
    done: bool,
    failed: Option<String>,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderStats {
    /// Packets that are in the file.
    pub recorded: u64,
    /// Packets that are not: the queue was full, there were too many channels, or the recording had stopped.
    pub unrecorded: u64,
    /// Why the recording stopped before its end, as when the disk is full.
    pub failed: Option<String>,
}

impl Queue {
    pub(super) fn new(entries: usize, bytes: usize) -> Self {
        let state = Mutex::default();
        let (filled, ended) = (Condvar::new(), Condvar::new());
        Self { entries, bytes, state, filled, to_wake: AtomicBool::new(false), ended }
    }

    /// Puts something in if there is room, and counts it if not. Gives the ticket by which a packet is named. Whoever
    /// does so [wakes](Queue::wake) the thread when nothing is in a hurry any more.
    pub(super) fn push(&self, mut item: Item) -> u64 {
        let (more, size) = match &item {
            Item::Packet(_, packet) => (0, ENTRY_BYTES + packet.payload.len()),
            Item::Event(..) | Item::Unsent(..) => (EVENTS_MORE, ENTRY_BYTES),
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

    /// What goes to this tool and comes from it is secret from here on.
    pub(super) fn hide(&self, tool: &str) {
        self.lock().hidden.insert(tool.to_owned());
    }

    /// Wakes the thread if it sleeps and something waits.
    pub(super) fn wake(&self) {
        if self.to_wake.load(Ordering::Relaxed) && self.to_wake.swap(false, Ordering::Relaxed) {
            self.filled.notify_one();
        }
    }

    /// Gives back what was written and waits for more.
    pub(super) fn take(&self, batch: &mut Batch, written: u64) {
        let mut state = self.lock();
        state.recorded += written;
        state.bytes = state.bytes.saturating_sub(mem::take(&mut batch.bytes));
        state.entries = state.waiting.len();
        let mut looked = 0;
        while state.waiting.is_empty() && state.unrecorded == 0 && !state.closed {
            if looked < LOOKS {
                looked += 1;
                (state, _) = self.filled.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
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

    /// How many packets could not be recorded since this was last asked.
    pub(super) fn take_unrecorded(&self) -> u64 {
        mem::take(&mut self.lock().unrecorded)
    }

    /// Packets that were taken and could not be written.
    pub(super) fn lose(&self, packets: u64) {
        self.lock().lose(packets);
    }

    /// Nothing more is taken.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_one();
    }

    /// The live file has all that it will have.
    pub(super) fn drained(&self, written: u64) {
        let mut state = self.lock();
        state.recorded += written;
        state.drained = true;
        self.ended.notify_all();
    }

    /// It failed: nothing more is taken, and what waits is lost.
    pub(super) fn fail(&self, reason: String) {
        let mut state = self.lock();
        state.closed = true;
        state.failed.get_or_insert(reason);
        let waiting = mem::take(&mut state.waiting);
        let lost = waiting.iter().filter(|item| matches!(item, Item::Packet(..))).count();
        state.lose(lost as u64);
    }

    /// The thread has ended.
    pub(super) fn end(&self) {
        let mut state = self.lock();
        (state.closed, state.drained, state.done) = (true, true, true);
        self.ended.notify_all();
    }

    /// Waits for the thread's end, and says what went wrong.
    pub(super) fn wait(&self) -> Result<(), String> {
        let mut state = self.lock();
        while !state.done {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until the live file has all, so long at most.
    pub(super) fn wait_drained(&self, limit: Duration) {
        let state = self.lock();
        drop(self.ended.wait_timeout_while(state, limit, |state| !state.drained));
    }

    pub(super) fn stats(&self) -> RecorderStats {
        let state = self.lock();
        let (recorded, unrecorded) = (state.recorded, state.unrecorded_in_all);
        RecorderStats { recorded, unrecorded, failed: state.failed.clone() }
    }

    /// No step under the lock can panic half-way.
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
