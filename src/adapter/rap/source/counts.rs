//! Counts messages.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many messages of tools did what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RapCounts {
    /// Messages that had an effect.
    pub accepted: u64,
    /// Results of calls that had one already. They had no effect.
    pub duplicates: u64,
    /// Requests with an unknown token, and messages that name another group or call than their token.
    pub unknown: u64,
    /// Messages after the end of their call.
    pub over: u64,
    /// Messages beyond the rate.
    pub too_many: u64,
    /// Late results and last events that the room could not take now. Their tools send them again.
    pub not_now: u64,
    /// Messages that could not be read.
    pub malformed: u64,
    /// Results that came after the time of their call.
    pub late: u64,
    /// Events that came before the result of their call, and were kept. If the call gets a result, they count as accepted or
    /// dropped, too.
    pub early: u64,
    /// Well-formed messages that were not expected: events without a subscription or beyond those that are kept before a
    /// result, questions of a call that has ended, and what only an assistant can report.
    pub dropped: u64,
    /// Cancellations of calls and subscriptions that did not reach the server, because it failed or 1,024 others waited. What
    /// they name may go on.
    pub not_cancelled: u64,
}

/// The counters behind [`RapCounts`].
#[derive(Default)]
pub(super) struct Counters {
    pub(super) accepted: AtomicU64,
    pub(super) duplicates: AtomicU64,
    pub(super) unknown: AtomicU64,
    pub(super) over: AtomicU64,
    pub(super) too_many: AtomicU64,
    pub(super) not_now: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) early: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) not_cancelled: AtomicU64,
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Counters {
    pub(super) fn read(&self) -> RapCounts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RapCounts {
            accepted: of(&self.accepted),
            duplicates: of(&self.duplicates),
            unknown: of(&self.unknown),
            over: of(&self.over),
            too_many: of(&self.too_many),
            not_now: of(&self.not_now),
            malformed: of(&self.malformed),
            late: of(&self.late),
            early: of(&self.early),
            dropped: of(&self.dropped),
            not_cancelled: of(&self.not_cancelled),
        }
    }
}
