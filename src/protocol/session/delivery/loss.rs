//! Detects whether packets between the local participant and one peer are being lost. As long as they are,
//! each frame of the fast lane is sent twice (`wire.md`, section 5.8).

use std::time::Duration;

use crate::clock::Instant;

/// How long frames are sent twice after the last sign of a loss.
const HOLD: Duration = Duration::from_secs(10);

/// The conclusion from the answer to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The frame was not sent again: round trips are as long as before.
    InTime,
    /// It was sent again, and answered a whole round trip later: a packet was lost, or round trips have become longer.
    Again,
    /// Several frames in a row were sent again: round trips have become longer.
    Late,
    /// Nothing.
    Unclear,
}

/// The signs of loss under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// A frame was sent again, and none has been answered in time since then.
    is_suspected: bool,
    seen_at: Option<Instant>,
    /// The last stanza of which two packets arrived one soon after the other, as an absolute value.
    twice: Option<u32>,
}

impl Loss {
    /// Notes the answer to a frame.
    pub(super) fn answered(&mut self, now: Instant, answered: Answered) {
        match answered {
            Answered::Again => self.is_suspected = true,
            Answered::Late => self.is_suspected = false,
            // A frame that had to be sent again is a loss only if the next one is answered as fast as before.
            // If that is late too, the path has become longer, and doubles would only add to the load.
            Answered::InTime if std::mem::take(&mut self.is_suspected) => self.note(now),
            Answered::InTime | Answered::Unclear => {}
        }
    }

    /// Notes a sign of a loss.
    pub(super) fn note(&mut self, now: Instant) {
        self.seen_at = Some(now);
    }

    /// Returns whether there was a sign of a loss lately.
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        self.seen_at.is_some_and(|at| now.saturating_duration_since(at) < HOLD)
    }

    /// Returns whether there was no sign of a loss lately, nor a frame that had to be sent again.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        !self.is_suspected && !self.is_recent(now)
    }

    /// Notes a frame that the peer has sent twice. Returns the stanza of the one before, if that is lower: the peer sent
    /// the frames between them twice, too.
    pub(super) fn came_twice(&mut self, stanza: u32) -> Option<u32> {
        let before = self.twice.replace(stanza);
        before.filter(|before| *before < stanza)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::tests::an_instant;

    #[test]
    fn sign_of_a_loss_counts_for_ten_seconds() {
        let (mut loss, start) = (Loss::default(), an_instant());
        assert!(!loss.is_recent(start));
        loss.note(start);
        assert!(loss.is_recent(start + HOLD - Duration::from_millis(1)));
        assert!(!loss.is_recent(start + HOLD));
    }

    #[test]
    fn frame_that_was_sent_again_counts_once_the_next_is_in_time() {
        let (mut loss, now) = (Loss::default(), an_instant());
        loss.answered(now, Answered::InTime);
        loss.answered(now, Answered::Again);
        assert!(!loss.is_recent(now));
        loss.answered(now, Answered::Late);
        loss.answered(now, Answered::InTime);
        assert!(!loss.is_recent(now), "round trips have become longer");
        loss.answered(now, Answered::Again);
        loss.answered(now, Answered::InTime);
        assert!(loss.is_recent(now));
    }

    #[test]
    fn frames_between_two_that_came_twice_are_named_once() {
        let mut loss = Loss::default();
        assert_eq!(loss.came_twice(4), None);
        assert_eq!(loss.came_twice(7), Some(4));
        assert_eq!(loss.came_twice(6), None);
    }
}
