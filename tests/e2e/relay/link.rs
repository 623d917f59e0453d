//! One path through the relay, and its faults.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// How long a rate limit delays at most: a datagram that would wait longer is lost, and a stream is not read further.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// The direction of a packet.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    ToServer,
    FromServer,
}

/// One path through the relay, in both directions: of datagrams, or of streams.
///
/// A stream loses nothing. Data that a network loses arrives later, because TCP retransmits it: therefore a stream
/// has a delay and a jitter, but no loss.
pub(crate) struct Link {
    open: watch::Sender<bool>,
    /// Counts how often all TCP connections were closed.
    severed: watch::Sender<u64>,
    delay_us: AtomicU64,
    jitter_us: AtomicU64,
    /// Bytes per second in each direction; 0 is no limit.
    rate: AtomicU64,
    /// When the next packet may pass, per direction.
    free: Mutex<[Option<Instant>; 2]>,
    to_lose: AtomicU32,
    /// How many of a thousand datagrams are lost, by a seeded generator.
    loss: AtomicU32,
    chance: AtomicU64,
    to_refuse: AtomicU32,
    /// How many TCP connections were accepted.
    connections: watch::Sender<usize>,
    /// Counts how often the paths of all datagrams were reset.
    rebound: watch::Sender<u64>,
    /// How many datagrams came from the server since then.
    answered: watch::Sender<u64>,
    /// How many datagrams overtook an earlier one.
    overtaking: AtomicU64,
    /// How many datagrams exceeded the rate.
    over_rate: AtomicU64,
}

impl Link {
    pub(super) fn new() -> Self {
        Self {
            open: watch::Sender::new(true),
            severed: watch::Sender::new(0),
            delay_us: AtomicU64::new(0),
            jitter_us: AtomicU64::new(0),
            rate: AtomicU64::new(0),
            free: Mutex::default(),
            to_lose: AtomicU32::new(0),
            loss: AtomicU32::new(0),
            chance: AtomicU64::new(1),
            to_refuse: AtomicU32::new(0),
            connections: watch::Sender::new(0),
            rebound: watch::Sender::new(0),
            answered: watch::Sender::new(0),
            overtaking: AtomicU64::new(0),
            over_rate: AtomicU64::new(0),
        }
    }

    /// From now on nothing passes: datagrams are lost, streams wait, and no socket is notified.
    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Everything passes again; streams continue where they were.
    pub(crate) fn restore(&self) {
        self.open.send_replace(true);
    }

    /// Closes all TCP connections. New ones are accepted.
    pub(crate) fn sever(&self) {
        self.severed.send_modify(|times| *times += 1);
    }

    /// From now on everything takes this much longer in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// From now on everything randomly takes up to this much longer in addition: datagrams overtake each other,
    /// pieces of a stream wait for the one before.
    pub(crate) fn jitter(&self, most: Duration) {
        self.jitter_us.store(most.as_micros() as u64, Ordering::Relaxed);
    }

    /// From now on this many bytes a second pass in each direction; 0 is no limit.
    pub(crate) fn rate(&self, bytes: u64) {
        self.rate.store(bytes, Ordering::Relaxed);
    }

    /// From now on this many of a thousand datagrams are lost in each direction.
    pub(crate) fn lose(&self, permille: u32) {
        self.loss.store(permille, Ordering::Relaxed);
    }

    /// The next datagrams are lost, in either direction.
    pub(crate) fn lose_next(&self, datagrams: u32) {
        self.to_lose.store(datagrams, Ordering::Relaxed);
    }

    /// Returns how many TCP connections were accepted, even if the path is cut.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Waits until there were this many.
    pub(crate) async fn until_connections(&self, wanted: usize) {
        let _ = self.connections.subscribe().wait_for(|connections| *connections >= wanted).await;
    }

    /// Simulates a NAT that loses its mappings: from now on every participant's datagrams reach the server from
    /// another port, and datagrams to the old port are lost.
    pub(crate) fn rebind(&self) {
        self.answered.send_replace(0);
        self.rebound.send_modify(|times| *times += 1);
    }

    /// Waits until a datagram from the server has passed after that.
    pub(crate) async fn until_heard_from_server(&self) {
        let _ = self.answered.subscribe().wait_for(|answered| *answered > 0).await;
    }

    /// Returns how many datagrams overtook an earlier one.
    pub(crate) fn overtaking(&self) -> u64 {
        self.overtaking.load(Ordering::Relaxed)
    }

    /// Returns how many datagrams exceeded the rate.
    pub(crate) fn over_rate(&self) -> u64 {
        self.over_rate.load(Ordering::Relaxed)
    }
}

/// The relay's side.
impl Link {
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(super) async fn until_open(&self) {
        // The sender lives in `self`, so it cannot end.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    /// Returns when a datagram is forwarded, if it is.
    pub(super) fn datagram(&self, direction: Direction, size: usize) -> Option<Instant> {
        if !self.is_open()
            || take_one(&self.to_lose)
            || self.chance() % 1_000 < u64::from(self.loss.load(Ordering::Relaxed))
        {
            return None;
        }
        let now = Instant::now();
        if self.free(direction).is_some_and(|free| free > now + MAX_WAIT) {
            self.over_rate.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.later(self.passed(direction, size)))
    }

    /// Returns when a piece of a stream is forwarded.
    pub(super) fn piece(&self, direction: Direction, size: usize) -> Instant {
        self.later(self.passed(direction, size))
    }

    /// Waits until more of a stream may be read.
    pub(super) async fn until_free(&self, direction: Direction) {
        if let Some(free) = self.free(direction) {
            sleep_until(free - MAX_WAIT).await;
        }
    }

    /// Notifies that all TCP connections are to be closed.
    pub(super) fn severed(&self) -> watch::Receiver<u64> {
        self.severed.subscribe()
    }

    /// Notifies that the paths of all datagrams are to be reset.
    pub(super) fn rebound(&self) -> watch::Receiver<u64> {
        self.rebound.subscribe()
    }

    /// Records that they were reset.
    pub(super) fn forgotten(&self) {
        self.answered.send_replace(0);
    }

    pub(super) fn answered(&self) {
        self.answered.send_modify(|answered| *answered += 1);
    }

    pub(super) fn connected(&self) {
        self.connections.send_modify(|connections| *connections += 1);
    }

    pub(super) fn was_overtaking(&self) {
        self.overtaking.fetch_add(1, Ordering::Relaxed);
    }

    /// From now on this many connections are refused.
    pub(super) fn refuse_next(&self, connections: u32) {
        self.to_refuse.store(connections, Ordering::Relaxed);
    }

    /// Returns whether this connection is refused.
    pub(super) fn refuses(&self) -> bool {
        take_one(&self.to_refuse)
    }

    fn free(&self, direction: Direction) -> Option<Instant> {
        self.free.lock().unwrap()[direction as usize].filter(|_| self.rate.load(Ordering::Relaxed) > 0)
    }

    /// Returns when this many bytes have passed in a direction, by the rate alone.
    fn passed(&self, direction: Direction, size: usize) -> Instant {
        let (now, rate) = (Instant::now(), self.rate.load(Ordering::Relaxed));
        let free = &mut self.free.lock().unwrap()[direction as usize];
        if rate == 0 {
            *free = None;
            return now;
        }
        let passed =
            free.map_or(now, |free| free.max(now)) + Duration::from_secs_f64(size as f64 / rate as f64);
        *free = Some(passed);
        passed
    }

    fn later(&self, than: Instant) -> Instant {
        let jitter = match self.jitter_us.load(Ordering::Relaxed) {
            0 => 0,
            most => self.chance() % most,
        };
        than + Duration::from_micros(self.delay_us.load(Ordering::Relaxed) + jitter)
    }

    /// The next number of a seeded generator: xorshift.
    fn chance(&self) -> u64 {
        let mut x = self.chance.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.chance.store(x, Ordering::Relaxed);
        x
    }
}

/// Decrements the counter; returns false if it was zero.
fn take_one(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
