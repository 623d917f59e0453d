//! Sequence numbers of reliable packets: ours counted up, others' heard once.
//!
//! Within one join LiveKit numbers the reliable packets of each sender from 1; a packet that was sent
//! again after a resume carries its old number. Lossy packets carry 0.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

/// How long a sender's last number is kept after its last packet: longer than any resume takes.
const TTL: Duration = Duration::from_secs(30);
/// How many senders are remembered: a room of LiveKit's usual size, several times over.
const MAX_SENDERS: usize = 4096;
/// How much is kept of what was delivered, in bytes: about as much as may be on its way.
const MAX_DELIVERED: usize = 128 * 1024;

/// The numbers that we give, and what carries those that the server may not have.
///
/// What the connection has not delivered it delivers by itself. What it has may still be lost at the server before it
/// was heard there: the last of it is kept, to be said again after a resume.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    last: u32,
    /// What was written and not delivered, and its size. What may be on its way has a cap, and so has this.
    on_way: VecDeque<Written>,
    on_way_bytes: usize,
    /// What was delivered last, and its size.
    delivered: VecDeque<(u32, Vec<u8>)>,
    delivered_bytes: usize,
    /// How much waited to be acknowledged when it was looked at last, and what was written since.
    expected: usize,
}

#[derive(Debug)]
enum Written {
    New(u32, Vec<u8>),
    /// So many bytes that are not to be said again.
    Other(usize),
}

impl Written {
    fn len(&self) -> usize {
        match self {
            Self::New(_, packet) => packet.len(),
            Self::Other(size) => *size,
        }
    }
}

impl Outgoing {
    /// The number of the packet that is written next. It may be another than the one that was tried last: others
    /// may pass it.
    pub(super) fn next(&self) -> u32 {
        self.last.wrapping_add(1)
    }

    /// The packet with the next number was written.
    pub(super) fn written(&mut self, packet: Vec<u8>) {
        self.last = self.next();
        self.write(Written::New(self.last, packet));
    }

    /// So many bytes were written that are not to be said again: a packet that was there before, or one without a number.
    pub(super) fn written_other(&mut self, size: usize) {
        self.write(Written::Other(size));
    }

    fn write(&mut self, written: Written) {
        self.on_way_bytes += written.len();
        self.expected += written.len();
        self.on_way.push_back(written);
    }

    /// So many bytes wait for the server's acknowledgement: what came before them is there. Whether any of it is news:
    /// on a slow way a packet is acknowledged piece by piece.
    pub(super) fn handle_unacknowledged(&mut self, bytes: usize) -> bool {
        while let Some(first) = self.on_way.front()
            && self.on_way_bytes - first.len() >= bytes
        {
            self.on_way_bytes -= first.len();
            if let Some(Written::New(number, packet)) = self.on_way.pop_front() {
                self.delivered_bytes += packet.len();
                self.delivered.push_back((number, packet));
            }
        }
        while self.delivered_bytes > MAX_DELIVERED
            && let Some((_, first)) = self.delivered.pop_front()
        {
            self.delivered_bytes -= first.len();
        }
        mem::replace(&mut self.expected, bytes) > bytes
    }

    /// What was delivered beyond the last number that the server has heard, in order.
    pub(super) fn unheard(&self, heard: u32) -> impl Iterator<Item = &[u8]> {
        self.delivered.iter().filter(move |(number, _)| *number > heard).map(|(_, packet)| &**packet)
    }
}

/// The numbers that we have heard, by the sender's sid.
#[derive(Debug, Default)]
pub(super) struct Incoming {
    heard: HashMap<String, Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    last: u32,
    at: Instant,
}

impl Incoming {
    /// Whether a reliable packet is new. One without a number or without a sid always is.
    pub(super) fn accept(&mut self, now: Instant, sid: &str, sequence: u32) -> bool {
        if sequence == 0 || sid.is_empty() {
            return true;
        }
        if let Some(heard) = self.heard.get_mut(sid) {
            let fresh = sequence > heard.last || now.duration_since(heard.at) > TTL;
            if fresh {
                *heard = Heard { last: sequence, at: now };
            }
            return fresh;
        }
        self.make_room(now);
        self.heard.insert(sid.to_owned(), Heard { last: sequence, at: now });
        true
    }

    /// The last number of each sender.
    pub(super) fn last(&self) -> impl Iterator<Item = (&str, u32)> {
        self.heard.iter().map(|(sid, heard)| (&**sid, heard.last))
    }

    fn make_room(&mut self, now: Instant) {
        if self.heard.len() < MAX_SENDERS {
            return;
        }
        self.heard.retain(|_, heard| now.duration_since(heard.at) <= TTL);
        if self.heard.len() >= MAX_SENDERS {
            let oldest = self.heard.iter().min_by_key(|(_, heard)| heard.at).map(|(sid, _)| sid.clone());
            oldest.map(|sid| self.heard.remove(&sid));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_or_older_number_is_dropped_per_sender() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        assert!(heard.accept(now, "PA_1", 1));
        assert!(heard.accept(now, "PA_1", 3), "a gap is not ours to judge");
        assert!(!heard.accept(now, "PA_1", 3));
        assert!(!heard.accept(now, "PA_1", 2));
        assert!(heard.accept(now, "PA_2", 1), "another sender counts for itself");
    }

    #[test]
    fn what_carries_no_number_passes() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        assert!(heard.accept(now, "PA_1", 7));
        assert!(heard.accept(now, "PA_1", 0));
        assert!(heard.accept(now, "", 7));
        assert!(heard.accept(now, "", 7));
    }

    #[test]
    fn a_silent_sender_is_forgotten() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        assert!(heard.accept(now, "PA_1", 9));
        assert!(!heard.accept(now + TTL, "PA_1", 9));
        assert!(heard.accept(now + TTL + Duration::from_millis(1), "PA_1", 1));
    }

    #[test]
    fn the_memory_has_a_cap() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        for n in 0..2 * MAX_SENDERS {
            assert!(heard.accept(now, &format!("PA_{n}"), 1));
        }
        assert!(heard.heard.len() <= MAX_SENDERS);
    }

    #[test]
    fn ours_start_at_one() {
        let mut ours = Outgoing::default();
        assert_eq!((ours.next(), ours.next()), (1, 1));
        ours.written(vec![0]);
        assert_eq!(ours.next(), 2);
    }

    fn written(sizes: &[usize]) -> Outgoing {
        let mut ours = Outgoing::default();
        sizes.iter().for_each(|size| ours.written(vec![0; *size]));
        ours
    }

    fn unheard(ours: &Outgoing, heard: u32) -> Vec<usize> {
        ours.unheard(heard).map(<[u8]>::len).collect()
    }

    #[test]
    fn what_was_delivered_and_not_heard_is_known() {
        let mut ours = written(&[3, 5, 2]);
        ours.handle_unacknowledged(8);
        assert!(unheard(&ours, 0).is_empty(), "the connection sees to what it has not delivered");
        ours.handle_unacknowledged(7);
        assert_eq!(unheard(&ours, 0), [3]);
        ours.handle_unacknowledged(0);
        assert_eq!((unheard(&ours, 0), unheard(&ours, 2)), (vec![3, 5, 2], vec![2]));
    }

    #[test]
    fn every_byte_that_is_acknowledged_is_news() {
        let mut ours = written(&[15_000]);
        assert!(!ours.handle_unacknowledged(15_000));
        assert!(ours.handle_unacknowledged(14_000), "a part of a packet");
        assert!(!ours.handle_unacknowledged(14_000));
        ours.written_other(500);
        assert!(!ours.handle_unacknowledged(14_500));
        ours.written(vec![0; 100]);
        assert!(ours.handle_unacknowledged(14_000), "beside what was written meanwhile");
        assert!(ours.handle_unacknowledged(0));
        assert!(!ours.handle_unacknowledged(0));
        assert_eq!((unheard(&ours, 0), ours.on_way_bytes), (vec![15_000, 100], 0));
    }

    #[test]
    fn what_is_kept_has_a_cap() {
        let mut ours = written(&[15_000; 100]);
        ours.handle_unacknowledged(0);
        assert_eq!(unheard(&ours, 0).len(), MAX_DELIVERED / 15_000);
        assert_eq!(unheard(&ours, 99).len(), 1, "the last ones");
    }
}
