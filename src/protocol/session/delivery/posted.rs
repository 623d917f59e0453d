//! Keeps the packets whose frames nobody else keeps, for as long as the transport may report that one was not sent
//! (`wire.md`, section 5.2).

use std::{collections::VecDeque, time::Duration};

use super::purpose::{Purpose, Subject};
use crate::{
    clock::{Instant, later},
    sorted::SortedSet,
    transport::{Identity, Packet},
};

/// The limit on packets that may still be reported as not sent, and on those that wait to be sent again: as many as a
/// driver queues.
const MAX_POSTED: usize = 4096;

/// How long a packet may be reported as not sent. A connection that sends nothing for so long is lost, and has returned
/// its packets.
const KEPT: Duration = Duration::from_secs(30);

/// The limit on the bytes of large packets among them. Acknowledgements and the like are small, and not counted.
const MAX_LARGE_BYTES: usize = 4 * 1024 * 1024;
const LARGE: usize = 1_200;

/// The packets that were sent a moment ago, and those that wait to be sent again.
#[derive(Debug, Default)]
pub(super) struct Posted {
    /// Ordered by their ids.
    sent: Letters,
    waiting: Letters,
}

/// At most [`MAX_POSTED`] packets, of which the large ones have at most [`MAX_LARGE_BYTES`], or are one of any size.
#[derive(Debug, Default)]
struct Letters {
    list: VecDeque<Letter>,
    /// The bytes of all large packets.
    large_bytes: usize,
}

/// A packet that nobody else keeps.
#[derive(Debug)]
pub(super) struct Letter {
    pub(super) packet: Packet,
    pub(super) stanza: i32,
    pub(super) purpose: Purpose,
    at: Instant,
    /// The receiver for which it waits. A packet to the whole room waits for the local identity.
    waits_for: Option<Identity>,
}

impl Letter {
    /// Returns the bytes of a large packet; 0 for a small one.
    fn large_bytes(&self) -> usize {
        Some(self.packet.size()).filter(|size| *size > LARGE).unwrap_or(0)
    }

    /// Returns what a later packet would replace, and its id.
    fn about(&self) -> Option<((&Subject, &[Identity]), u64)> {
        let Purpose::Latest(subject) = &self.purpose else { return None };
        Some(((subject, self.packet.to.as_slice()), self.packet.id))
    }
}

impl Posted {
    /// Keeps a packet that is sent now, unless it is of no use later.
    pub(super) fn note(&mut self, now: Instant, packet: &Packet, stanza: i32, purpose: Purpose) {
        if purpose == Purpose::Never {
            return;
        }
        let is_old = |it: &Letter| later(it.at, KEPT) <= now;
        while self.sent.list.front().is_some_and(is_old) {
            self.sent.remove(0);
        }
        if purpose != Purpose::Once {
            self.waiting.retain(|it| it.purpose != purpose || it.packet.to != packet.to);
        }
        self.sent.push(Letter { packet: packet.clone(), stanza, purpose, at: now, waits_for: None });
    }

    /// Returns the receivers and the stanza of a packet that was sent a moment ago.
    pub(super) fn find(&self, packet: u64) -> Option<(&[Identity], i32)> {
        let it = self.sent.list.get(self.sent.place_of(packet)?)?;
        Some((it.packet.to.as_slice(), it.stanza))
    }

    /// Notes that a packet was not sent. It is sent again later, unless it waits for nobody.
    pub(super) fn unsent(&mut self, packet: u64, waits_for: Option<&Identity>) {
        let letter = self.sent.place_of(packet).and_then(|at| self.sent.remove(at));
        if let Some(letter) = letter.filter(|_| waits_for.is_some()) {
            self.waiting.push(Letter { waits_for: waits_for.cloned(), ..letter });
        }
    }

    /// Takes the packets that wait, in their order: those to this participant first, or all. Leaves out those that a later
    /// one has replaced.
    pub(super) fn take_waiting(&mut self, of: Option<&Identity>) -> VecDeque<Letter> {
        let is_taken = |it: &Letter| of.is_none() || it.packet.to.is_empty() || it.waits_for.as_ref() == of;
        let (mut taken, rest): (VecDeque<_>, _) =
            std::mem::take(&mut self.waiting.list).into_iter().partition(is_taken);
        self.waiting = Letters::of(rest);
        let mut about: Vec<_> = self.sent.list.iter().chain(&taken).filter_map(Letter::about).collect();
        about.sort_unstable();
        let replaced =
            about.windows(2).filter(|it| matches!(it, [(earlier, _), (later, _)] if earlier == later));
        let replaced: SortedSet<_> = replaced.filter_map(|it| it.first().map(|(_, id)| *id)).collect();
        taken.retain(|it| !replaced.contains(&it.packet.id));
        taken
    }

    /// Forgets what was for the whole room.
    pub(super) fn forget_room(&mut self) {
        for letters in [&mut self.sent, &mut self.waiting] {
            letters.retain(|letter| !letter.packet.to.is_empty());
        }
    }

    /// Forgets what was for a participant that has gone, or whose pair of sids has ended.
    pub(super) fn forget(&mut self, id: &Identity) {
        for letters in [&mut self.sent, &mut self.waiting] {
            letters.retain(|letter| {
                let was_for_room = letter.packet.to.is_empty();
                letter.packet.to.retain(|to| to != id);
                was_for_room || !letter.packet.to.is_empty()
            });
        }
    }
}

impl Letters {
    fn of(list: VecDeque<Letter>) -> Self {
        let large_bytes = list.iter().map(Letter::large_bytes).sum();
        Self { list, large_bytes }
    }

    /// Returns the place of a packet, if the packets are ordered by their ids.
    fn place_of(&self, packet: u64) -> Option<usize> {
        self.list.binary_search_by_key(&packet, |it| it.packet.id).ok()
    }

    /// Adds a packet, and forgets the oldest ones beyond the limits.
    fn push(&mut self, letter: Letter) {
        if self.list.len() >= MAX_POSTED {
            self.remove(0);
        }
        let bytes = letter.large_bytes();
        self.list.push_back(letter);
        self.large_bytes += bytes;
        while bytes > 0
            && self.large_bytes > MAX_LARGE_BYTES
            && let Some(at) = self.list.iter().position(|it| it.large_bytes() > 0)
            && at + 1 < self.list.len()
        {
            self.remove(at);
        }
    }

    fn remove(&mut self, at: usize) -> Option<Letter> {
        let letter = self.list.remove(at)?;
        self.large_bytes -= letter.large_bytes();
        Some(letter)
    }

    fn retain(&mut self, keeps: impl FnMut(&mut Letter) -> bool) {
        self.list.retain_mut(keeps);
        *self = Self::of(std::mem::take(&mut self.list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::tests::an_instant;

    fn packet(id: u64, to: &str, size: usize) -> Packet {
        let mut packet = Packet::new([to.into()], vec![0; size]);
        packet.id = id;
        packet
    }

    fn about(what: &str) -> Purpose {
        Purpose::Latest((1, what.into()))
    }

    fn waiting(posted: &mut Posted, of: Option<&str>) -> Vec<u64> {
        posted.take_waiting(of.map(Identity::from).as_ref()).iter().map(|it| it.packet.id).collect()
    }

    #[test]
    fn packet_that_was_not_sent_waits_unless_a_later_one_is_about_the_same() {
        let (mut posted, now) = (Posted::default(), an_instant());
        let purposes = [about("x"), about("y"), Purpose::Once, Purpose::Never, about("x"), Purpose::Once];
        for (id, purpose) in (1..).zip(purposes) {
            posted.note(now, &packet(id, "a", 9), 1, purpose);
        }
        posted.note(now, &packet(7, "b", 9), 1, about("y"));
        for id in 1..=7 {
            posted.unsent(id, Some(&if id == 7 { "b" } else { "a" }.into()));
        }
        assert_eq!(waiting(&mut posted, Some("b")), [7]);
        assert_eq!(waiting(&mut posted, None), [2, 3, 5, 6]);
        assert!(waiting(&mut posted, None).is_empty());
    }

    #[test]
    fn packet_is_replaced_by_one_to_the_same_receivers_only() {
        let (mut posted, now) = (Posted::default(), an_instant());
        posted.note(now, &packet(1, "a", 9), 1, about("x"));
        posted.unsent(1, Some(&"a".into()));
        posted.note(now, &packet(2, "b", 9), 1, about("x"));
        assert_eq!(waiting(&mut posted, Some("a")), [1]);
    }

    #[test]
    fn packet_for_the_room_stays_when_one_participant_goes_and_is_forgotten_with_the_join() {
        let (mut posted, now) = (Posted::default(), an_instant());
        let mut for_room = Packet::broadcast(vec![0; 9]);
        for_room.id = 1;
        posted.note(now, &for_room, 1, Purpose::Once);
        posted.forget(&"a".into());
        assert!(posted.find(1).is_some());
        posted.unsent(1, Some(&"local".into()));
        posted.forget_room();
        assert!(waiting(&mut posted, None).is_empty());
    }

    #[test]
    fn packets_are_kept_for_30_seconds_and_within_limits() {
        let (mut posted, now) = (Posted::default(), an_instant());
        for id in 1..=MAX_POSTED as u64 + 1 {
            posted.note(now, &packet(id, "a", 9), 1, Purpose::Once);
        }
        assert!(posted.find(1).is_none() && posted.find(2).is_some());
        posted.note(now + KEPT, &packet(9_000, "a", 9), 1, Purpose::Once);
        assert!(posted.find(5).is_none() && posted.find(9_000).is_some());
        for id in 9_001..9_006 {
            posted.note(now + KEPT, &packet(id, "a", 1024 * 1024), 1, Purpose::Once);
        }
        let kept: Vec<_> = (9_000..9_006).filter(|id| posted.find(*id).is_some()).collect();
        assert_eq!(kept, [9_000, 9_002, 9_003, 9_004, 9_005], "large ones leave no room for each other");
        posted.forget(&"a".into());
        assert!(posted.find(9_000).is_none());
    }
}
