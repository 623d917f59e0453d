//! Keeps the frames in transit to one peer on `_lossy`, and decides when each is sent again.

use std::time::Duration;

use bytes::Bytes;

use super::{loss::Answered, rtt::RoundTrip};
use crate::{
    clock::{Instant, later},
    protocol::session::{Counter, SendFailure as Why},
    sorted::SortedMap,
    transport::Lane,
};

/// The limit on frames in transit to one peer, each below 1,200 B. Further frames are sent only on the reliable lane.
pub(super) const MAX_FLYING: usize = 256;

/// How often a frame is sent again on `_lossy`: after 1, 3, 7 and 15 times the first wait. Before the first
/// sample that is 100 ms, so the last one is sent after 1.5 s. The claim window of 2 s depends on that
/// (`wire.md`, section 4.8). A schedule with a second retry before the reliable copy was tried and given up,
/// because the simulation did not come to rest with it.
const RETRIES: u32 = 4;

/// The interval at which a held copy is reconsidered. A reported backlog triggers it earlier.
const RECONSIDERED_EVERY: Duration = Duration::from_millis(20);

/// The interval between forced copies. After the last retry of a frame its copy is sent whatever waits on `_reliable`,
/// but only one per interval. So each frame arrives in the end, and the copies cannot overload the connection.
const FORCED_EVERY: Duration = Duration::from_millis(100);

/// The frames in transit to one peer, by the absolute value of their stanza.
#[derive(Debug, Default)]
pub(super) struct Flight {
    frames: SortedMap<u32, Flying>,
    forced_at: Option<Instant>,
}

/// A frame in transit.
#[derive(Debug)]
pub(super) struct Flying {
    payload: Bytes,
    /// The id that all its packets have.
    packet: u64,
    begun_at: Instant,
    sent_at: Instant,
    retries: u32,
    /// Whether it was sent more than once, by its own timer or in answer to a repeated request.
    repeated: bool,
    /// Whether the local connection was lost or the process suspended since it was sent.
    was_interrupted: bool,
    wait: Duration,
    again_at: Option<Instant>,
    /// When the packet that was sent last is sent once more.
    double_at: Option<Instant>,
    /// When that was done.
    doubled_at: Option<Instant>,
    copy: ReliableCopy,
    /// The number of its packets that were output and not reported as unsent.
    out: u32,
}

/// The copy of a frame on `_reliable`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReliableCopy {
    /// The copy may be sent at this time.
    At(Instant),
    /// The copy was due, but too many bytes waited on `_reliable`. It is reconsidered at this time.
    Held(Instant),
    Sent,
}

/// A packet of a frame that is due.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) lane: Lane,
    /// What counts such packets.
    pub(super) counter: Counter,
    pub(super) packet: u64,
    pub(super) payload: Bytes,
}

/// The effect of an unsent packet on its frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unsent {
    /// The packet belongs to none of these frames, or to one that may have arrived and is sent no more.
    Unknown,
    /// Another packet of the frame was sent or will be, so the frame may arrive.
    Covered,
    /// No packet of the frame has left this process.
    Proven,
}

impl Flight {
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() >= MAX_FLYING
    }

    pub(super) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Adds a frame that was sent once. With a spacing, it is sent a second time after that.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        trip: &RoundTrip,
        spacing: Option<Duration>,
        stanza: i32,
        packet: u64,
        payload: Bytes,
    ) {
        let wait = trip.wait();
        let frame = Flying {
            payload,
            packet,
            begun_at: now,
            sent_at: now,
            retries: 0,
            repeated: false,
            was_interrupted: false,
            wait,
            again_at: Some(later(now, wait)),
            double_at: spacing.map(|spacing| later(now, spacing)),
            doubled_at: None,
            copy: ReliableCopy::At(later(now, trip.patience())),
            out: 1,
        };
        self.frames.insert(stanza.unsigned_abs(), frame);
    }

    /// Removes a frame that has arrived. The time is a round-trip sample only if the frame was not sent again and the answer
    /// arrived on the lossy lane. The answer was held for `held`.
    pub(super) fn arrived(
        &mut self,
        now: Instant,
        stanza: i32,
        by: Lane,
        held: Duration,
        trip: &mut RoundTrip,
    ) -> Answered {
        let frame = self.frames.remove(&stanza.unsigned_abs());
        frame.map_or(Answered::Unclear, |frame| frame.measure(now, by, held, trip))
    }

    /// Takes the times of the frames in transit for no samples, because of an outage or a suspension.
    pub(super) fn interrupt(&mut self) {
        for frame in self.frames.values_mut() {
            frame.was_interrupted = true;
        }
    }

    /// Stops sending a frame again.
    pub(super) fn forget(&mut self, stanza: i32) {
        self.frames.remove(&stanza.unsigned_abs());
    }

    /// Returns the stanzas of the frames in transit, as absolute values.
    pub(super) fn stanzas(&self) -> impl Iterator<Item = u32> {
        self.frames.keys().copied()
    }

    /// Returns a frame to send once more, in answer to a repeated request.
    pub(super) fn repeat(&mut self, now: Instant, stanza: u32, half: Duration) -> Option<Due> {
        let frame = self.frames.get_mut(&stanza)?;
        if now.saturating_duration_since(frame.sent_at) < half {
            return None;
        }
        frame.repeated = true;
        frame.again_at = frame.again_at.map(|_| later(now, frame.wait));
        Some(frame.again(now))
    }

    /// Returns the packets to send now: doubles, retries, which are doubled after the spacing if there is one, and copies as
    /// long as `reliable_has_room` returns true for their bytes.
    pub(super) fn due(
        &mut self,
        now: Instant,
        spacing: Option<Duration>,
        mut reliable_has_room: impl FnMut(usize) -> bool,
    ) -> Vec<Due> {
        let mut due = Vec::new();
        for frame in self.frames.values_mut() {
            if frame.double_at.is_some_and(|at| at <= now) {
                frame.double_at = None;
                due.push(frame.double(now));
            }
            if frame.again_at.is_some_and(|at| at <= now) {
                frame.repeated = true;
                frame.retries += 1;
                frame.wait = frame.wait.saturating_mul(2);
                due.push(frame.again(now));
                frame.again_at = Some(later(now, frame.wait));
                frame.double_at = spacing.map(|spacing| later(now, spacing));
            }
            if frame.retries >= RETRIES {
                frame.again_at = None;
            }
            let may = match frame.copy {
                ReliableCopy::At(at) => at <= now,
                ReliableCopy::Held(_) => true,
                ReliableCopy::Sent => false,
            };
            if !may {
                continue;
            }
            // `wait` was doubled with the last retry, so this is one more wait after it: the retry could have
            // been answered by now.
            let at_its_end = frame.again_at.is_none()
                && now.saturating_duration_since(frame.sent_at) >= frame.wait
                && self.forced_at.is_none_or(|at| now.saturating_duration_since(at) >= FORCED_EVERY);
            if reliable_has_room(frame.payload.len()) {
                due.push(frame.copy());
            } else if at_its_end {
                self.forced_at = Some(now);
                due.push(frame.copy());
            } else {
                frame.copy = ReliableCopy::Held(later(now, RECONSIDERED_EVERY));
            }
        }
        due
    }

    /// Returns the reliable copy of a frame that has none yet, whatever waits on that lane.
    pub(super) fn last_copy(&mut self, stanza: u32) -> Option<Due> {
        let frame = self.frames.get_mut(&stanza).filter(|frame| frame.copy != ReliableCopy::Sent)?;
        Some(frame.copy())
    }

    /// Returns the time at which the next packet is due.
    pub(super) fn next(&self) -> Option<Instant> {
        let of = |frame: &Flying| {
            let copy = match frame.copy {
                ReliableCopy::At(at) | ReliableCopy::Held(at) => Some(at),
                ReliableCopy::Sent => None,
            };
            [frame.again_at, frame.double_at, copy].into_iter().flatten().min()
        };
        self.frames.values().filter_map(of).min()
    }

    /// Returns the number of held copies.
    pub(super) fn held(&self) -> usize {
        self.frames.values().filter(|frame| matches!(frame.copy, ReliableCopy::Held(_))).count()
    }

    /// Handles a packet that was not sent.
    pub(super) fn unsent(&mut self, now: Instant, stanza: i32, packet: u64, why: &Why) -> Unsent {
        let frame = self.frames.get_mut(&stanza.unsigned_abs()).filter(|frame| frame.packet == packet);
        let Some(frame) = frame else { return Unsent::Unknown };
        frame.out = frame.out.saturating_sub(1);
        let may_go_soon = matches!(why, Why::QueueFull | Why::Interrupted);
        let has_copy = frame.copy == ReliableCopy::Sent;
        // One unsent packet says nothing about the others of its frame: the copy found no room on
        // `_reliable`, and the packet before it on `_lossy` may have arrived. A call that was reported as
        // never sent because of the copy could already be running.
        if frame.out > 0 && (may_go_soon || !has_copy) {
            if has_copy {
                frame.copy = ReliableCopy::At(later(now, FORCED_EVERY)); // the packet may have been the forced copy
            }
            return Unsent::Covered;
        }
        let was_sent = frame.out > 0;
        // No other packet of the frame will be sent either.
        let for_good = matches!(why, Why::NotAllowed | Why::Closed | Why::Interrupted);
        if for_good || has_copy {
            self.forget(stanza);
            return if was_sent { Unsent::Unknown } else { Unsent::Proven };
        }
        frame.copy = ReliableCopy::At(now); // the transport did not accept it on `_lossy`
        Unsent::Covered
    }
}

impl Flying {
    fn measure(&self, now: Instant, by: Lane, held: Duration, trip: &mut RoundTrip) -> Answered {
        let since = |at: Instant| {
            let took = now.saturating_duration_since(at);
            took.checked_sub(held).unwrap_or(took) // it cannot have been held for longer
        };
        let took = since(self.sent_at);
        // An answer on `_reliable` may have waited for SCTP's timer or behind a large frame. That is not the
        // path's round trip.
        if by != Lane::Lossy || self.was_interrupted {
            return Answered::Unclear;
        }
        if !self.repeated {
            // Either packet may have been answered.
            let since_double = self.doubled_at.map(since);
            trip.sample(since_double.map_or(took, |other| trip.likelier(took, other)));
            return Answered::InTime;
        }
        // The answer may be to an earlier packet of the frame, so its time is no sample (Karn's rule, RFC
        // 6298, section 3). It can still show that the wait was too short.
        if !trip.is_known() || took < trip.half() {
            trip.too_short();
        }
        if trip.late(since(self.begun_at)) {
            return Answered::Late;
        }
        // Not since it was sent again: that may have been in answer to a request that was repeated too early.
        let after_wait = since(self.begun_at).saturating_sub(self.wait / (1 << self.retries));
        if trip.may_be_whole(after_wait) { Answered::Again } else { Answered::Unclear }
    }

    fn double(&mut self, now: Instant) -> Due {
        self.doubled_at = Some(now);
        self.out += 1;
        self.packet_on(Lane::Lossy, Counter::FastDoubles)
    }

    fn again(&mut self, now: Instant) -> Due {
        self.sent_at = now;
        self.out += 1;
        self.packet_on(Lane::Lossy, Counter::FastRetries)
    }

    fn copy(&mut self) -> Due {
        self.copy = ReliableCopy::Sent;
        self.out += 1;
        self.packet_on(Lane::Reliable, Counter::FastCopies)
    }

    fn packet_on(&self, lane: Lane, counter: Counter) -> Due {
        Due { lane, counter, packet: self.packet, payload: self.payload.clone() }
    }
}
