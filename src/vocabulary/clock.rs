//! Converts milliseconds since the driver's zero point to the core's instants and back.

use std::time::Duration;

use super::form::Malformed;
use crate::clock::Instant;

/// The latest time, in microseconds: the largest whole number that JavaScript holds exactly. It is after 285 years.
const LATEST: u64 = (1 << 53) - 1;

const MICROS: f64 = 1_000.0;

/// How long before the zero point the core may calculate. In a browser, an instant cannot be before its origin, and
/// elsewhere it can: with this margin both give the same results.
const MARGIN: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The driver's zero point.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    #[cfg(all(target_family = "wasm", target_os = "unknown"))]
    pub fn begin() -> Self {
        Self(Instant::after_start(MARGIN))
    }

    #[cfg(not(all(target_family = "wasm", target_os = "unknown")))]
    #[expect(
        clippy::disallowed_methods,
        reason = "any instant can be the zero point; no time is read from it"
    )]
    pub fn begin() -> Self {
        Self(Instant::now() + MARGIN)
    }

    /// Returns the instant of an input.
    pub fn instant(self, at: f64) -> Result<Instant, Malformed> {
        Ok(self.0 + duration(at).map_err(|error| error.of("atMs"))?)
    }

    /// Returns the time of an instant, in milliseconds, rounded up to microseconds.
    pub fn time(self, instant: Instant) -> f64 {
        let nanos = instant.saturating_duration_since(self.0).as_nanos();
        to_millis(nanos.div_ceil(1_000))
    }
}

/// Returns the duration of this many milliseconds.
pub fn duration(millis: f64) -> Result<Duration, Malformed> {
    let micros = (millis * MICROS).round();
    if (0.0..=LATEST as f64).contains(&micros) {
        Ok(Duration::from_micros(micros as u64))
    } else {
        Err(Malformed::new("is not a time: use 0 to 9007199254740 milliseconds"))
    }
}

/// Returns a duration in milliseconds.
pub fn millis(duration: Duration) -> f64 {
    to_millis(duration.as_micros())
}

/// Returns the microseconds of a time that was checked or is the core's.
pub fn micros(millis: f64) -> u64 {
    ((millis * MICROS).round() as u64).min(LATEST)
}

fn to_millis(micros: u128) -> f64 {
    micros.min(u128::from(LATEST)) as f64 / MICROS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_count_in_whole_microseconds() {
        let clock = Clock::begin();
        for micros in [0, 1, 999, 1_000, 1_234_567, 86_400_000_001, LATEST] {
            let at = micros as f64 / MICROS;
            assert_eq!(clock.time(clock.instant(at).unwrap()), at, "{micros}");
        }
        assert_eq!(duration(0.000_4).unwrap(), Duration::ZERO);
        assert_eq!(duration(0.000_6).unwrap(), Duration::from_micros(1));
        let later = clock.instant(1.0).unwrap() + Duration::from_nanos(1);
        assert_eq!(clock.time(later), 1.001, "a deadline is rounded up");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for millis in [-1.0, -0.001, f64::NAN, f64::INFINITY, f64::MAX, LATEST as f64] {
            assert!(duration(millis).is_err(), "{millis}");
        }
        assert_eq!(millis(Duration::MAX), LATEST as f64 / MICROS);
    }
}
