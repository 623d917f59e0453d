//! Remembers which frames of a peer have arrived on which lane, and when they were answered.

use std::time::Duration;

use crate::{clock::Instant, sorted::SortedMap, transport::Lane};

/// The limit on received frames of one peer whose lane is remembered: those of several seconds of calls.
const MAX_ARRIVALS: usize = 256;

/// The received frames that need an answer, by the absolute value of their stanzas.
#[derive(Debug, Default)]
pub(super) struct Arrivals(SortedMap<u32, Arrival>);

#[derive(Debug)]
struct Arrival {
    /// The lane on which its last packet arrived.
    by: Lane,
    answered_at: Option<Instant>,
}

/// How a frame is answered that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// At once.
    Now,
    /// Not again: it was answered so lately that it was repeated before that could arrive.
    Not,
    /// Its first answer, which may wait.
    First,
    /// Again, by its result if that is in flight.
    Again,
}

impl Arrivals {
    /// Notes a received frame that needs an answer.
    pub(super) fn note(&mut self, stanza: Option<i32>, by: Lane) {
        let Some(stanza) = stanza.map(i32::unsigned_abs) else { return };
        if let Some(it) = self.0.get_mut(&stanza) {
            it.by = by;
            return;
        }
        if self.0.len() == MAX_ARRIVALS {
            self.0.pop_first(); // stanzas rise, so the first is the oldest
        }
        self.0.insert(stanza, Arrival { by, answered_at: None });
    }

    /// Returns the lane on which the last packet of a frame arrived.
    pub(super) fn lane_of(&self, stanza: u32) -> Option<Lane> {
        self.0.get(&stanza).map(|it| it.by)
    }

    /// Returns how a frame is answered, and notes that it is. `half` is half a round trip.
    pub(super) fn answer(&mut self, now: Instant, stanza: i32, half: Duration) -> Answer {
        let Some(it) = self.0.get_mut(&stanza.unsigned_abs()) else { return Answer::Now };
        let is_recent = |at: Instant| now.saturating_duration_since(at) < half;
        let answer = match it.answered_at {
            // A frame that arrived on `_reliable` is not repeated by a short timer, so its acknowledgement is not
            // deferred or left to a repetition.
            _ if it.by == Lane::Reliable => Answer::Now,
            Some(at) if is_recent(at) => return Answer::Not,
            Some(_) => Answer::Again,
            None => Answer::First,
        };
        it.answered_at = Some(now);
        answer
    }
}
