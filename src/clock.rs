//! The instants that the core is given. It never reads a clock: whoever drives it does.
//!
//! In a browser, which has no clock that std can read, an instant counts from a point that the driver chooses.

#[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
pub use std::time::Instant;

#[cfg(all(target_family = "wasm", target_os = "unknown"))]
pub use counted::Instant;

use std::{fmt, time::Duration};

/// Thirty years, effectively never. Every clock can represent it.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// Returns the time after this duration. If the clock cannot represent it, a time far in the future is returned.
pub(crate) fn later(now: Instant, after: Duration) -> Instant {
    now.checked_add(after).unwrap_or_else(|| now + FAR)
}

/// A duration as messages show it: in milliseconds below a second, otherwise in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spelled(pub(crate) Duration);

impl fmt::Display for Spelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 < Duration::from_secs(1) {
            true => write!(f, "{} ms", milliseconds(self.0)),
            false => write!(f, "{} s", self.0.as_secs_f64()),
        }
    }
}

/// Returns a duration in milliseconds, for messages about limits that are set in milliseconds.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e6
}

/// Compiled for tests, too, so that they show what no test on the other target can.
#[cfg(any(test, all(target_family = "wasm", target_os = "unknown")))]
#[cfg_attr(test, allow(dead_code, unreachable_pub, reason = "it is public on the other target"))]
mod counted {
    use std::{
        ops::{Add, AddAssign, Sub, SubAssign},
        time::Duration,
    };

    /// A point in time: the time since a point that the driver chooses, such as the start of the page.
    ///
    /// It has the methods of std's `Instant` that the core uses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct Instant(Duration);

    impl Instant {
        /// Returns the instant this long after the driver's point.
        pub const fn after_start(since: Duration) -> Self {
            Self(since)
        }

        /// Returns the time since the driver's point.
        pub const fn since_start(self) -> Duration {
            self.0
        }

        /// Returns the time since an earlier instant, or zero if that one is later.
        pub fn duration_since(self, earlier: Self) -> Duration {
            self.saturating_duration_since(earlier)
        }

        /// Returns the time since an earlier instant, or zero if that one is later.
        pub fn saturating_duration_since(self, earlier: Self) -> Duration {
            self.0.saturating_sub(earlier.0)
        }

        /// Returns the time since an earlier instant, or `None` if that one is later.
        pub fn checked_duration_since(self, earlier: Self) -> Option<Duration> {
            self.0.checked_sub(earlier.0)
        }

        /// Returns the instant this much later, unless there is none.
        pub fn checked_add(self, time: Duration) -> Option<Self> {
            self.0.checked_add(time).map(Self)
        }

        /// Returns the instant this much earlier, unless that is before the driver's point.
        pub fn checked_sub(self, time: Duration) -> Option<Self> {
            self.0.checked_sub(time).map(Self)
        }
    }

    impl Add<Duration> for Instant {
        type Output = Self;

        /// # Panics
        /// As with std's `Instant`, if there is no such instant: after more than 500 billion years.
        fn add(self, time: Duration) -> Self {
            Self(self.0 + time)
        }
    }

    impl AddAssign<Duration> for Instant {
        fn add_assign(&mut self, time: Duration) {
            *self = *self + time;
        }
    }

    impl Sub<Duration> for Instant {
        type Output = Self;

        /// The driver's point, if the result would be before it: std's `Instant` can be before the start of the process.
        fn sub(self, time: Duration) -> Self {
            Self(self.0.saturating_sub(time))
        }
    }

    impl SubAssign<Duration> for Instant {
        fn sub_assign(&mut self, time: Duration) {
            *self = *self - time;
        }
    }

    impl Sub for Instant {
        type Output = Duration;

        fn sub(self, earlier: Self) -> Duration {
            self.saturating_duration_since(earlier)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Spelled, counted::Instant, milliseconds};

    #[test]
    fn durations_are_shown_in_milliseconds_or_seconds() {
        let shown = |time: f64| Spelled(Duration::from_secs_f64(time)).to_string();
        assert_eq!([0.0, 0.000_1, 0.3].map(shown), ["0 ms", "0.1 ms", "300 ms"]);
        assert_eq!([1.0, 2.8, 600.0].map(shown), ["1 s", "2.8 s", "600 s"]);
        assert_eq!(milliseconds(Duration::from_secs(601)).to_string(), "601000");
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the instants of std are what the others are compared with"
    )]
    fn counted_instant_counts_as_the_one_of_std_does() {
        let second = Duration::from_secs(1);
        let std = std::time::Instant::now() + 5 * second; // std's may not be able to go further back
        let counted = Instant::after_start(5 * second);
        assert_eq!((counted + second) - counted, (std + second) - std);
        assert_eq!((counted - second).duration_since(counted), (std - second).duration_since(std));
        assert_eq!(
            counted.saturating_duration_since(counted - 2 * second),
            std.saturating_duration_since(std - 2 * second)
        );
        assert_eq!(counted.checked_duration_since(counted + second), None);
        assert_eq!(std.checked_duration_since(std + second), None);
        assert_eq!(counted.checked_add(Duration::MAX), None);
        assert_eq!(std.checked_add(Duration::MAX), None);
        assert_eq!(counted.checked_sub(6 * second), None);
        assert!(counted < counted + second);
        let mut moved = counted;
        moved += second;
        moved -= 2 * second;
        assert_eq!(moved.since_start(), 4 * second);
    }
}
