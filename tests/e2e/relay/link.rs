//! One way through the relay, and what is wrong with it.

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

/// How long what a rate limit holds back waits at most: a datagram that would wait longer is lost, a stream is read
/// no further.
const MAX_WAIT: Duration = Duration::from_millis(200);

/// Where something is going.
#[derive(Clone, Copy)]
pub(super) enum Direction {
    ToServer,
    FromServer,
}

/// One way through the relay, both directions of it: of datagrams, or of streams.
///
/// A stream loses nothing. What a network loses of it comes later, since TCP says it again: so it has a delay and a
/// jitter, and no loss.
pub(crate) struct Link {
    open: watch::Sender<bool>,
    /// Counts how often all TCP connections were ended.
    severed: watch::Sender<u64>,
    delay_us: AtomicU64,
    jitter_us: AtomicU64,
    /// Bytes a second in each direction; 0 is no limit.
    rate: AtomicU64,
    /// When what comes next in a direction may pass.
    free: Mutex<[Option<Instant>; 2]>,
    to_lose: AtomicU32,
    /// So many of a thousand datagrams are lost, by a chance that is the same each time.
    loss: AtomicU32,
    chance: AtomicU64,
    to_refuse: AtomicU32,
    /// How many TCP connections were taken.
    connections: watch::Sender<usize>,
    /// Counts how often the ways of all datagrams were forgotten.
    rebound: watch::Sender<u64>,
    /// How many datagrams came from the server since then.
    answered: watch::Sender<u64>,
    /// How many datagrams passed before one that had come before them.
    overtaking: AtomicU64,
    /// How many datagrams found no place within the rate.
    crowded_out: AtomicU64,
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
            crowded_out: AtomicU64::new(0),
        }
    }

    /// From now on nothing passes: datagrams are lost, streams wait, and no socket is told.
    pub(crate) fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Everything passes again; streams go on where they were.
    pub(crate) fn restore(&self) {
        self.open.send_replace(true);
    }

    /// Ends all TCP connections. New ones are taken.
    pub(crate) fn sever(&self) {
        self.severed.send_modify(|times| *times += 1);
    }

    /// From now on everything takes this much longer in each direction.
    pub(crate) fn delay(&self, delay: Duration) {
        self.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// From now on everything takes up to this much longer beside that, by chance: datagrams pass each other, pieces of
    /// a stream wait for the one before.
    pub(crate) fn jitter(&self, most: Duration) {
        self.jitter_us.store(most.as_micros() as u64, Ordering::Relaxed);
    }

    /// From now on so many bytes a second pass in each direction; 0 is no limit.
    pub(crate) fn rate(&self, bytes: u64) {
        self.rate.store(bytes, Ordering::Relaxed);
    }

    /// From now on so many of a thousand datagrams are lost, each way.
    pub(crate) fn lose(&self, permille: u32) {
        self.loss.store(permille, Ordering::Relaxed);
    }

    /// The next so many datagrams are lost, whichever way they go.
    pub(crate) fn lose_next(&self, datagrams: u32) {
        self.to_lose.store(datagrams, Ordering::Relaxed);
    }

    /// How many TCP connections were taken, though the way may be cut.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.borrow()
    }

    /// Waits until there were so many.
    pub(crate) async fn until_connections(&self, wanted: usize) {
        let _ = self.connections.subscribe().wait_for(|connections| *connections >= wanted).await;
    }

    /// As a router that forgets: from now on the server hears every participant's datagrams from another port, and
    /// what it sends to the port before is lost.
    pub(crate) fn rebind(&self) {
        self.answered.send_replace(0);
        self.rebound.send_modify(|times| *times += 1);
    }

    /// Waits until a datagram of the server's has passed since then.
    pub(crate) async fn until_heard_from_server(&self) {
        let _ = self.answered.subscribe().wait_for(|answered| *answered > 0).await;
    }

    /// How many datagrams passed before one that had come before them.
    pub(crate) fn overtaking(&self) -> u64 {
        self.overtaking.load(Ordering::Relaxed)
    }

    /// How many datagrams found no place within the rate.
    pub(crate) fn crowded_out(&self) -> u64 {
        self.crowded_out.load(Ordering::Relaxed)
    }
}

/// What the relay asks and tells.
impl Link {
    pub(super) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    pub(super) async fn until_open(&self) {
        // The sender lives in `self`, so it cannot end.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }

    /// When a datagram passes on, if it does.
    pub(super) fn datagram(&self, direction: Direction, size: usize) -> Option<Instant> {
        if !self.is_open()
            || take_one(&self.to_lose)
            || self.chance() % 1_000 < u64::from(self.loss.load(Ordering::Relaxed))
        {
            return None;
        }
        let now = Instant::now();
        if self.free(direction).is_some_and(|free| free > now + MAX_WAIT) {
            self.crowded_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.later(self.passed(direction, size)))
    }

    /// When a piece of a stream passes on.
    pub(super) fn piece(&self, direction: Direction, size: usize) -> Instant {
        self.later(self.passed(direction, size))
    }

    /// Waits until more of a stream may be read.
    pub(super) async fn until_free(&self, direction: Direction) {
        if let Some(free) = self.free(direction) {
            sleep_until(free - MAX_WAIT).await;
        }
    }

    /// The ends of all TCP connections from now on.
    pub(super) fn severed(&self) -> watch::Receiver<u64> {
        self.severed.subscribe()
    }

    /// The moments when the ways of all datagrams are forgotten.
    pub(super) fn rebound(&self) -> watch::Receiver<u64> {
        self.rebound.subscribe()
    }

    /// They are forgotten now.
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

    /// From now on so many connections are refused.
    pub(super) fn refuse_next(&self, connections: u32) {
        self.to_refuse.store(connections, Ordering::Relaxed);
    }

    /// Whether this connection is refused.
    pub(super) fn refuses(&self) -> bool {
        take_one(&self.to_refuse)
    }

    fn free(&self, direction: Direction) -> Option<Instant> {
        self.free.lock().unwrap()[direction as usize].filter(|_| self.rate.load(Ordering::Relaxed) > 0)
    }

    /// When so much has passed in a direction, by the rate alone.
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

    /// The next number of a seeded chance: xorshift.
    fn chance(&self) -> u64 {
        let mut x = self.chance.load(Ordering::Relaxed);
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.chance.store(x, Ordering::Relaxed);
        x
    }
}

/// Whether there was one left.
fn take_one(left: &AtomicU32) -> bool {
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
}
