//! Reads the wall clock, for timestamps in LiveKit messages.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time in seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    u64::try_from(unix_ms() / 1000).unwrap_or(0)
}

/// Returns the time in milliseconds since 1970.
pub(super) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
