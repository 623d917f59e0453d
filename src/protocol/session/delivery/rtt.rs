//! The round-trip time to a peer, and the timeouts derived from it.

use std::time::Duration;

/// The wait before a frame is sent again, until there is a sample.
const FIRST_WAIT: Duration = Duration::from_millis(100);

/// The shortest wait. Below it the clocks and queues of both ends dominate, not the network.
const SHORTEST_WAIT: Duration = Duration::from_millis(20);

/// The longest wait, much shorter than a call's default time limit of 30 s.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// How often the wait is doubled while there is no sample.
const DOUBLINGS: u32 = 4;

/// The smoothed round-trip time to one peer, under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct RoundTrip {
    smoothed: Option<Duration>,
    /// A frame that was sent again gives no sample. Until there is one, each frame that was sent again too early
    /// doubles the wait.
    doubled: u32,
}

impl RoundTrip {
    /// Adds a sample: the time after which a frame that was sent once was acknowledged.
    pub(super) fn sample(&mut self, took: Duration) {
        self.doubled = 0;
        self.smoothed = Some(match self.smoothed {
            None => took,
            Some(before) => (before * 7 + took) / 8,
        });
    }

    /// Notes that the wait was too short: a frame was acknowledged so soon after it was sent again that its first
    /// packet must have arrived, or there is no sample yet.
    pub(super) fn too_short(&mut self) {
        self.doubled = (self.doubled + 1).min(DOUBLINGS);
    }

    /// Returns the time without an acknowledgement after which a frame is sent again: 1.5 round trips.
    pub(super) fn wait(&self) -> Duration {
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
