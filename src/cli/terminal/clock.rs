//! Formats times of day and parses durations.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use toolbridge::livekit::Token;

/// Returns the time in milliseconds since 1970.
pub(in crate::cli) fn unix_millis() -> u64 {
    u64::try_from(since_1970().as_millis()).unwrap_or(u64::MAX)
}

/// Returns a duration in milliseconds for JSON, with at most three decimals.
pub(in crate::cli) fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Formats the time of day in UTC, with milliseconds.
pub(in crate::cli) fn time_of_day() -> String {
    let now = since_1970();
    let seconds = now.as_secs() % 86_400;
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{:03}", seconds % 60, now.subsec_millis())
}

#[expect(clippy::disallowed_methods, reason = "the command line shows the time of day")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// The maximum duration of an option: the maximum time limit of a call.
const LONGEST: Duration = Duration::from_secs(600);

/// Parses a time limit of a call, with the session's bounds.
pub(in crate::cli) fn limit(text: &str) -> Result<Duration, String> {
    match span(text)? {
        limit if limit < Duration::from_millis(1) => Err("it must be at least 1ms".to_owned()),
        limit => Ok(limit),
    }
}

/// Parses a duration, which may be zero.
pub(in crate::cli) fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if span > LONGEST { Err("it must be at most 10m".to_owned()) } else { Ok(span) }
}

/// The maximum value of `record --for` and of `--rejoin-limit`: 30 days, in seconds.
const THIRTY_DAYS: Duration = Duration::from_secs(30 * 24 * 3600);

/// Parses the time after which nobody tries to rejoin any more. It may be zero.
pub(in crate::cli) fn rejoin_limit(text: &str) -> Result<Duration, String> {
    let limit = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if limit > THIRTY_DAYS { Err("it must be at most 30d".to_owned()) } else { Ok(limit) }
}

/// Parses the length of a recording.
pub(in crate::cli) fn length(text: &str) -> Result<Duration, String> {
    match rejoin_limit(text)? {
        Duration::ZERO => Err("it must be more than 0".to_owned()),
        length => Ok(length),
    }
}

/// Parses the lifetime of a token.
pub(in crate::cli) fn validity(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text).map_err(|error| error.to_string())? {
        Duration::ZERO => Err("it must be more than 0".to_owned()),
        time if time > Token::MAX_TTL => {
            Err(format!("it must be at most {}", humantime::format_duration(Token::MAX_TTL)))
        }
        time => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_bounds() {
        assert_eq!(span("0"), Ok(Duration::ZERO));
        assert_eq!(limit("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(limit("10m"), Ok(LONGEST));
        assert_eq!(length("30d"), Ok(THIRTY_DAYS));
        assert_eq!((rejoin_limit("0s"), rejoin_limit("30d")), (Ok(Duration::ZERO), Ok(THIRTY_DAYS)));
        assert!(rejoin_limit("31d").is_err() && rejoin_limit("-1s").is_err());
        assert_eq!(validity("1day"), Ok(Token::MAX_TTL));
        assert_eq!(validity("25h"), Err("it must be at most 1day".to_owned()));
        assert!(validity("0s").is_err());
        assert!(length("0s").is_err() && length("31d").is_err() && length("5").is_err());
        for bad in ["0s", "999us", "601s", "300000000000y", "5", "-1s", ""] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }
}
