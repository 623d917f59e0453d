//! Detects whether packets between the local participant and one peer are being lost. As long as they are,
//! each frame of the fast lane is sent twice (`wire.md`, section 5.8).

use std::time::Duration;

use crate::clock::{Instant, later};

/// How long frames are sent twice after the first sign of a loss.
const HOLD: Duration = Duration::from_secs(10);

/// By how much that time grows if losses go on. Between two such times some frames are late, so they should be few.
const GROWTH: u32 = 4;

/// The longest time for which they are sent twice after a sign.
const LONGEST_HOLD: Duration = Duration::from_secs(160);

/// After how many frames that were sent once and answered in time a loss is a single one. Before that at least one of 100
/// is lost, and frames are sent twice for [`GROWTH`] times as long as the last time.
const CALM: u32 = 100;

/// The conclusion from the answer to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// The frame was not sent again: round trips are as long as before.
    InTime,
    /// It was sent again, and answered a whole round trip after the first wait: a packet was lost, or round trips have
    /// become longer.
    Again,
    /// Several frames in a row were sent again: round trips have become longer.
    Late,
    /// Nothing.
    Unclear,
}

/// The signs of loss under one pair of sids.
///
/// A frame that its sender had to send again is one, and a frame of the peer's of which one of two packets is missing
/// ([`Arrivals::note`](super::arrivals::Arrivals::note)).
#[derive(Debug, Default)]
pub(super) struct Loss {
    /// A frame was sent again, and none has been answered in time since then.
    is_suspected: bool,
    until: Option<Instant>,
    hold: Duration,
    /// How many frames were answered in time since frames were last sent twice.
    calm: u32,
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
            Answered::InTime if !self.is_recent(now) => self.calm = self.calm.saturating_add(1),
            Answered::InTime | Answered::Unclear => {}
        }
    }

    /// Notes a sign of a loss.
    pub(super) fn note(&mut self, now: Instant) {
        // The peer may send too little to show that losses go on. Then they are seen only between the times in which frames are
        // sent twice, and make the next one longer.
        let goes_on = self.until.is_some() && self.calm < CALM;
        if !self.is_recent(now) {
            self.hold = if goes_on { (self.hold * GROWTH).min(LONGEST_HOLD) } else { HOLD };
        }
        self.until = Some(later(now, self.hold));
        self.calm = 0;
    }

    /// Returns whether frames are sent twice, because there was a sign of a loss lately.
    pub(super) fn is_recent(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Returns whether there was no sign of a loss lately, nor a frame that had to be sent again.
    pub(super) fn is_quiet(&self, now: Instant) -> bool {
        !self.is_suspected && !self.is_recent(now)
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
    fn losses_that_go_on_count_for_longer_each_time_and_a_single_one_for_ten_seconds() {
        let (mut loss, mut now) = (Loss::default(), an_instant());
        let mut next_after = |frames: u32| {
            for _ in 0..frames {
                loss.answered(now, Answered::InTime);
            }
            loss.answered(now, Answered::Again);
            loss.answered(now, Answered::InTime);
            let began = now;
            while loss.is_recent(now) {
                loss.answered(now, Answered::InTime);
                now += Duration::from_secs(1);
            }
            (now - began).as_secs()
        };
        let holds: Vec<_> = [200, 99, 0, 50, 50, 50, 100, 99].map(&mut next_after).to_vec();
        assert_eq!(holds, [10, 40, 160, 160, 160, 160, 10, 40]);
    }
}
