//! Measures the round-trip time to a peer, and derives timeouts from it.

use std::time::Duration;

/// The wait before a frame is sent again, until there is a sample.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The shortest wait. Below it the clocks and queues of both ends dominate, not the network.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);

/// The longest wait, much shorter than a call's default time limit of 30 s.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// The shortest time between the two packets of a frame that is sent twice.
const SHORTEST_SPACING: Duration = Duration::from_millis(5);

/// How much longer than the shortest round trip one may be that does not come from a full link, besides half of it.
const NOISE: Duration = Duration::from_millis(10);

/// By which part of the difference a longer sample raises the shortest round trip, which so follows a longer path.
const FLOOR_RISE: u32 = 256;

/// After how many frames in a row that were all sent again the round trip itself must have become longer.
const LATE_IN_A_ROW: u32 = 3;

/// How often the wait is doubled while there is no sample.
const DOUBLINGS: u32 = 4;

/// The smoothed round-trip time to one peer, under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<Duration>,
    /// The mean deviation of the samples.
    deviation: Duration,
    /// The shortest of the last samples.
    floor: Duration,
    /// How many frames have been sent again since the last sample.
    late: u32,
    /// A frame that was sent again gives no sample. Until there is one, each frame that was sent again too early
    /// doubles the wait.
    doubled: u32,
}

impl RoundTrip {
    /// Adds a sample: the time after which a frame that was sent once was acknowledged.
    pub(super) fn sample(&mut self, took: Duration) {
        self.late = 0;
        self.add(took);
    }

    fn add(&mut self, took: Duration) {
        self.doubled = 0;
        let Some(before) = self.smoothed else {
            (self.smoothed, self.deviation, self.floor) = (Some(took), took / 2, took);
            return;
        };
        // The weights of TCP (RFC 6298, section 2.3).
        self.smoothed = Some((before * 7 + took) / 8);
        self.deviation = (self.deviation * 3 + before.abs_diff(took)) / 4;
        let above = took.saturating_sub(self.floor);
        self.floor = if above.is_zero() { took } else { self.floor + above / FLOOR_RISE };
    }

    /// Notes that a frame was sent again and answered this long after its first packet. Returns true after several in a row:
    /// then packets are late rather than lost, and the times are samples.
    pub(super) fn late(&mut self, took: Duration) -> bool {
        self.late = self.late.saturating_add(1);
        // A frame that was sent again gives no sample. On a path that has become longer than the wait every
        // frame is sent again, so without this rule the wait would never grow.
        let is_late = self.is_known() && self.late >= LATE_IN_A_ROW;
        if is_late {
            self.add(took);
        }
        is_late
    }

    /// Returns the one of two times that is nearer to a round trip.
    pub(super) fn likelier(&self, one: Duration, other: Duration) -> Duration {
        let smoothed = self.smoothed.unwrap_or(one);
        if other.abs_diff(smoothed) < one.abs_diff(smoothed) { other } else { one }
    }

    /// Notes that the wait was too short: a frame was acknowledged so soon after it was sent again that its first
    /// packet must have arrived, or there is no sample yet.
    pub(super) fn too_short(&mut self) {
        self.doubled = (self.doubled + 1).min(DOUBLINGS);
    }

    /// Returns the time without an acknowledgement after which a frame is sent again: 1.5 round trips.
    pub(super) fn wait(&self) -> Duration {
        // Shorter than TCP would wait, which is at least 1 s (RFC 6298, section 2.4): a frame that is sent
        // once too often costs one datagram, and the caller waits for a late one.
        let wait = self.smoothed.map_or(FIRST_WAIT, |smoothed| (smoothed * 3 / 2).max(SHORTEST_WAIT));
        (wait * (1 << self.doubled)).min(LONGEST_WAIT)
    }

    /// Returns the time after which a reliable copy may be sent: 2 round trips, always after the first retry.
    pub(super) fn patience(&self) -> Duration {
        self.wait() * 4 / 3
    }

    /// Returns half a round trip. A frame repeated sooner was sent before the local answer could arrive.
    pub(super) fn half(&self) -> Duration {
        self.smoothed.unwrap_or(FIRST_WAIT * 2 / 3) / 2
    }

    pub(super) fn is_known(&self) -> bool {
        self.smoothed.is_some()
    }

    /// Returns the time between the two packets of a frame that is sent twice: one burst of losses, which lasts about as long as
    /// round trips vary, should not take both. At most a quarter of a round trip.
    pub(super) fn spacing(&self) -> Duration {
        (self.deviation * 2).min(self.smoothed.unwrap_or_default() / 4).max(SHORTEST_SPACING)
    }

    /// Returns whether an answer always takes longer than the time between two packets of a frame.
    pub(super) fn is_long(&self) -> bool {
        self.is_known() && self.floor > self.spacing() * 2
    }

    /// Returns whether a packet can have been sent and answered in this time.
    pub(super) fn may_be_whole(&self, took: Duration) -> bool {
        self.is_known() && took >= self.floor * 7 / 8
    }

    /// Returns whether round trips have become so long that a queue grows on the way.
    pub(super) fn is_rising(&self) -> bool {
        self.smoothed.is_some_and(|smoothed| smoothed > self.floor * 3 / 2 + NOISE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn wait_is_one_and_a_half_round_trips() {
        let mut trip = RoundTrip::default();
        assert_eq!((trip.wait(), trip.half()), (100 * MS, FIRST_WAIT / 3));
        trip.sample(40 * MS);
        assert_eq!((trip.wait(), trip.patience(), trip.half()), (60 * MS, 80 * MS, 20 * MS));
        trip.sample(120 * MS);
        assert_eq!(trip.wait(), 75 * MS);
    }

    #[test]
    fn wait_is_between_20_ms_and_3_s() {
        let mut trip = RoundTrip::default();
        trip.sample(MS);
        assert_eq!(trip.wait(), SHORTEST_WAIT);
        trip.sample(Duration::from_secs(60));
        assert_eq!(trip.wait(), LONGEST_WAIT);
    }

    #[test]
    fn frames_that_are_all_late_are_samples() {
        let mut trip = RoundTrip::default();
        trip.sample(40 * MS);
        assert!(!trip.late(120 * MS) && !trip.late(120 * MS));
        assert_eq!(trip.wait(), 60 * MS);
        assert!(trip.late(120 * MS));
        assert_eq!(trip.wait(), 75 * MS);
        trip.sample(40 * MS);
        assert!(!trip.late(120 * MS));
    }

    #[test]
    fn spacing_follows_the_deviation_within_limits() {
        let mut trip = RoundTrip::default();
        assert_eq!(trip.spacing(), SHORTEST_SPACING);
        trip.sample(80 * MS);
        assert_eq!(trip.spacing(), 20 * MS, "a quarter of a round trip");
        for _ in 0..50 {
            trip.sample(80 * MS);
        }
        assert_eq!(trip.spacing(), SHORTEST_SPACING);
        for at in 0..50 {
            trip.sample(if at % 2 == 0 { 76 * MS } else { 84 * MS });
        }
        assert!(trip.spacing() > 7 * MS && trip.spacing() < 10 * MS, "{:?}", trip.spacing());
    }

    #[test]
    fn growing_queue_is_told_from_a_longer_path() {
        let mut trip = RoundTrip::default();
        for _ in 0..20 {
            trip.sample(40 * MS);
        }
        assert!(!trip.is_rising() && trip.may_be_whole(36 * MS) && !trip.may_be_whole(30 * MS));
        for _ in 0..20 {
            trip.sample(120 * MS);
        }
        assert!(trip.is_rising());
        for _ in 0..600 {
            trip.sample(120 * MS);
        }
        assert!(!trip.is_rising(), "it stays that long, so no queue grows");
        trip.sample(40 * MS);
        assert!(trip.may_be_whole(36 * MS));
    }

    #[test]
    fn wait_doubles_until_there_is_a_sample() {
        let mut trip = RoundTrip::default();
        trip.too_short();
        trip.too_short();
        assert_eq!(trip.wait(), 400 * MS);
        for _ in 0..100 {
            trip.too_short();
        }
        assert_eq!(trip.wait(), 1_600 * MS);
        trip.sample(300 * MS);
        assert_eq!(trip.wait(), 450 * MS);
    }
}
