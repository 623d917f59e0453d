//! Sequence numbers of reliable packets: ours counted up, others' heard once.
//!
//! Within one join LiveKit numbers the reliable packets of each sender from 1; a packet that was sent
//! again after a resume carries its old number. Lossy packets carry 0.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// How long a sender's last number is kept after its last packet: longer than any resume takes.
const TTL: Duration = Duration::from_secs(30);
/// How many senders are remembered: a room of LiveKit's usual size, several times over.
const MAX_SENDERS: usize = 4096;

/// The numbers that we give, and what carries those that the server may not have.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    last: u32,
    /// What was written and not acknowledged. What may be on its way has a cap, and so has this.
    kept: VecDeque<(u32, Vec<u8>)>,
    bytes: usize,
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
        self.bytes += packet.len();
        self.kept.push_back((self.last, packet));
    }

    /// So many bytes wait for the server's acknowledgement: what came before them is there. Whether that is news.
    pub(super) fn handle_unacknowledged(&mut self, bytes: usize) -> bool {
        let before = self.kept.len();
        while let Some((_, first)) = self.kept.front()
            && self.bytes - first.len() >= bytes
        {
            self.bytes -= first.len();
            self.kept.pop_front();
        }
        self.kept.len() < before
    }

    /// What lies beyond the last number that the server has heard, in order.
    pub(super) fn beyond(&self, heard: u32) -> impl Iterator<Item = &[u8]> {
        self.kept.iter().filter(move |(number, _)| *number > heard).map(|(_, packet)| &**packet)
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

    #[test]
    fn what_was_written_is_kept_until_it_is_acknowledged() {
        let mut ours = Outgoing::default();
        for size in [3, 5, 2] {
            ours.written(vec![0; size]);
        }
        let sizes = |ours: &Outgoing, heard| ours.beyond(heard).map(<[u8]>::len).collect::<Vec<_>>();
        assert!(!ours.handle_unacknowledged(10), "nothing is there");
        assert!(!ours.handle_unacknowledged(8), "the first is there in part");
        assert_eq!(sizes(&ours, 0), [3, 5, 2]);
        assert!(ours.handle_unacknowledged(7));
        assert_eq!((sizes(&ours, 0), sizes(&ours, 2)), (vec![5, 2], vec![2]));
        assert!(ours.handle_unacknowledged(0));
        assert_eq!((sizes(&ours, 0), ours.bytes), (vec![], 0));
    }
}
