//! Where planted secrets are looked for.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::path::Path;

use toolbridge::recording::{Entry, Happened, Recorded, Recording};
use tracing::{Dispatch, dispatcher::DefaultGuard};
use tracing_subscriber::EnvFilter;

use crate::captured::Log;

/// Captures what this thread logs, as a filter says, until the guards are dropped.
pub(crate) fn captured(filter: &str) -> (Log, (DefaultGuard, Dispatch)) {
    // While there is one subscriber alone, another test's thread could switch a log statement off for all.
    let second = Dispatch::new(tracing_subscriber::registry());
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_env_filter(EnvFilter::new(filter)).with_ansi(false);
    let here = tracing::subscriber::set_default(subscriber.with_writer(log.clone()).finish());
    (log, (here, second))
}

pub(crate) fn packets(file: &Path) -> Vec<Recorded> {
    let packet = |entry: Entry| match entry.what {
        Happened::Packet(packet) => Some(packet),
        _ => None,
    };
    Recording::open(file).unwrap().entries().filter_map(packet).collect()
}

pub(crate) fn has(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|it| it == text.as_bytes())
}

#[track_caller]
pub(crate) fn assert_free(what: &str, bytes: &[u8], secrets: &[impl AsRef<str>]) {
    for secret in secrets.iter().map(AsRef::as_ref) {
        assert!(!has(bytes, secret), "{secret} is in {what}: {}", String::from_utf8_lossy(bytes));
    }
}
