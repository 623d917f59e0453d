//! Times: of day, as the command line shows them, and spans, as it is given them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
pub(super) fn unix_millis() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

/// A time as JSON has it: milliseconds, with three decimals at most.
pub(super) fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Hours, minutes, seconds and milliseconds, in UTC.
pub(super) fn time_of_day() -> String {
    let now = since_1970();
    let seconds = now.as_secs() % 86_400;
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:03}", seconds % 60, now.subsec_millis())
}

#[expect(clippy::disallowed_methods, reason = "the command line shows the time of day")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The longest span that a flag takes: the longest that a call may take.
const LONGEST: Duration = Duration::from_secs(600);

/// What a call may take: the session's own bounds.
pub(super) fn limit(text: &str) -> Result<Duration, String> {
    match span(text)? {
        limit if limit < Duration::from_millis(1) => Err("it must be at least 1ms".to_owned()),
        limit => Ok(limit),
    }
}

/// A span that may be zero.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if span > LONGEST { Err("it must be at most 10m".to_owned()) } else { Ok(span) }
}

/// The longest that something is recorded without a hand on it: 30 days, in seconds.
const LONGEST_RECORDING: Duration = Duration::from_secs(30 * 24 * 3600);

/// How long something goes on by itself.
pub(super) fn length(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("it must be more than 0".to_owned()),
        length if length > LONGEST_RECORDING => Err("it must be at most 30d".to_owned()),
        length => Ok(length),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_bounds() {
        assert_eq!(span("0"), Ok(Duration::ZERO));
        assert_eq!(limit("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(limit("10m"), Ok(LONGEST));
        assert_eq!(length("30d"), Ok(LONGEST_RECORDING));
        assert!(length("0s").is_err() && length("31d").is_err() && length("5").is_err());
        for bad in ["0s", "999us", "601s", "300000000000y", "5", "-1s", ""] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
