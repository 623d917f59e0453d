//! Remembers which frames of a peer have arrived on which lane, and when they were answered.

use std::time::Duration;

use crate::{clock::Instant, sorted::SortedMap, transport::Lane};

/// The limit on received frames of one peer whose lane is remembered: those of several seconds of calls.
const MAX_ARRIVALS: usize = 256;

/// How long after the first packet of a frame the others have arrived that will, also on a link of varying delay.
const ALL_HERE: Duration = Duration::from_secs(1);

/// After how many frames in a row that came twice the peer sends each one twice. Some come twice because they were sent
/// again too early, but not as many in a row: the wait becomes longer after three.
const TWICE_IN_A_ROW: u32 = 4;

/// The received frames that need an answer, by the absolute value of their stanzas.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    frames: SortedMap<u32, Arrival>,
    /// The last frame whose packets were counted.
    counted: u32,
    /// How many frames in a row up to it came twice.
    twice: u32,
    /// Whether it came once, after [`TWICE_IN_A_ROW`] that came twice.
    is_single: bool,
}

#[derive(Debug)]
struct Arrival {
    /// The lane on which its last packet arrived.
    by: Lane,
    at: Instant,
    /// The number of its packets that arrived on `_lossy`.
    packets: u32,
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
    /// Notes a received frame that needs an answer. Returns whether a packet of an earlier one was lost: it came once, and
    /// those around it twice. The peer sends at least two in a row once.
    pub(super) fn note(&mut self, now: Instant, stanza: Option<i32>, by: Lane) -> bool {
        let Some(stanza) = stanza.map(i32::unsigned_abs) else { return false };
        if self.frames.len() == MAX_ARRIVALS && !self.frames.contains_key(&stanza) {
            self.frames.pop_first(); // stanzas rise, so the first is the oldest
        }
        let new = || Arrival { by, at: now, packets: 0, answered_at: None };
        let it = self.frames.entry(stanza).or_insert_with(new);
        it.by = by;
        it.packets += u32::from(by == Lane::Lossy);

        let mut is_lost = false;
        let since = self.counted.saturating_add(1);
        let is_whole = |it: &Arrival| now.saturating_duration_since(it.at) >= ALL_HERE;
        for (stanza, it) in self.frames.range(since..).take_while(|(_, it)| is_whole(it)) {
            self.counted = *stanza;
            match it.packets {
                0 => {} // it arrived on `_reliable` only
                1 => self.is_single = std::mem::take(&mut self.twice) >= TWICE_IN_A_ROW,
                _ => {
                    is_lost |= std::mem::take(&mut self.is_single);
                    self.twice = self.twice.saturating_add(1);
                }
            }
        }
        is_lost
    }

    /// Returns the lane on which the last packet of a frame arrived.
    pub(super) fn lane_of(&self, stanza: u32) -> Option<Lane> {
        self.frames.get(&stanza).map(|it| it.by)
    }

    /// Returns how a frame is answered, and notes that it is. `half` is half a round trip.
    pub(super) fn answer(&mut self, now: Instant, stanza: i32, half: Duration) -> Answer {
        let Some(it) = self.frames.get_mut(&stanza.unsigned_abs()) else { return Answer::Now };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::tests::an_instant;

    const MS: Duration = Duration::from_millis(1);

    /// Notes a frame each 10 ms, of which so many packets arrive with the delays of this function. Returns the number of signs.
    fn signs(packets: &[u32], delay: impl Fn(u32, u32) -> Duration) -> usize {
        let (mut arrivals, start) = (Arrivals::default(), an_instant());
        let mut all = Vec::new();
        for (at, packets) in (1..).zip(packets) {
            all.extend((0..*packets).map(|number| (start + MS * 10 * at + delay(at, number), at)));
        }
        all.sort_unstable();
        let count = packets.len() as u32;
        // Later frames, which came on `_reliable`, let time pass.
        let later = (1..200).map(|at| (start + MS * 10 * (count + at), count + at));
        let lossy = all.into_iter().map(|(at, stanza)| (at, stanza, Lane::Lossy));
        let all = lossy.chain(later.map(|(at, stanza)| (at, stanza, Lane::Reliable)));
        all.filter(|(at, stanza, by)| arrivals.note(*at, Some(-(*stanza as i32)), *by)).count()
    }

    #[test]
    fn frame_that_came_once_among_others_that_came_twice_has_lost_a_packet() {
        let soon = |_, number| MS * 5 * number;
        assert_eq!(signs(&[2, 2, 2, 2, 1, 2, 2, 2, 2, 1, 2], soon), 2);
        assert_eq!(signs(&[2, 2, 2, 2, 3, 2, 4, 2, 2], soon), 0, "sent again");
        assert_eq!(signs(&[2, 2, 2, 1, 2, 2, 2], soon), 0, "three may have been sent again too early");
        assert_eq!(signs(&[1, 1, 2, 1, 2, 2, 1, 1], soon), 0, "sent once");
        assert_eq!(signs(&[2, 2, 2, 2, 1, 1, 2, 2, 2, 2, 1], soon), 0, "left out, or sent once from then on");
        assert_eq!(signs(&[2, 2, 2, 2, 0, 2, 2], soon), 0, "it never came on this lane");
    }

    #[test]
    fn packets_may_be_late_and_out_of_order() {
        let varying = |at: u32, number: u32| MS * (at * 7919 % 90 * 10 * number);
        let seldom = |at: u32, number: u32| MS * number * if at.is_multiple_of(7) { 900 } else { 5 };
        assert_eq!((signs(&[2; 100], varying), signs(&[2; 100], seldom)), (0, 0));
    }
}
