//! Holds acknowledgements back for a moment: an owner's for the result, which may replace it, an assistant's for a
//! request, which may carry it (`wire.md`, section 5.8).

use std::{collections::VecDeque, time::Duration};

use crate::{
    clock::{Instant, later},
    protocol::session::codec::MAX_CARRIED,
    tool::CallId,
};

/// The limit on acknowledgements to one peer that wait: as many as one caller may have open calls. They are searched
/// linearly.
const MAX_DEFERRED: usize = 64;

/// The longest wait for a result that replaces the acknowledgement of its request, and for a request that carries that of
/// a result.
pub(crate) const ANSWER_SOON: Duration = Duration::from_millis(5);

/// The acknowledgements to one peer that wait.
#[derive(Debug, Default)]
pub(super) struct Deferred(pub(super) VecDeque<Held>);

/// An acknowledgement that waits.
#[derive(Clone, Debug)]
pub(super) struct Held {
    since: Instant,
    pub(super) stanza: i32,
    pub(super) call: CallId,
}

impl Held {
    fn until(&self) -> Instant {
        later(self.since, ANSWER_SOON)
    }

    /// Returns for how long it has waited.
    pub(super) fn time(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.since)
    }
}

impl Deferred {
    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MAX_DEFERRED
    }

    pub(super) fn push(&mut self, now: Instant, stanza: i32, call: CallId) {
        self.0.push_back(Held { since: now, stanza, call });
    }

    /// Returns those that the next request can carry.
    pub(super) fn carried(&self) -> impl ExactSizeIterator<Item = &Held> {
        self.0.iter().take(MAX_CARRIED)
    }

    /// Takes the one that waits for the result of this call.
    pub(super) fn take_of(&mut self, call: &CallId) -> Option<Held> {
        let at = self.0.iter().position(|it| it.call == *call)?;
        self.0.remove(at)
    }

    /// Takes one whose wait is over.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Held> {
        self.0.front().filter(|it| it.until() <= now)?;
        self.0.pop_front()
    }

    /// Returns when the first wait is over.
    pub(super) fn next(&self) -> Option<Instant> {
        self.0.front().map(Held::until)
    }
}
