//! The time of day, for what LiveKit dates.

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    u64::try_from(unix_ms() / 1000).unwrap_or(0)
}

/// Milliseconds since 1970.
pub(super) fn unix_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
