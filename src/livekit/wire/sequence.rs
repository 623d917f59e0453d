//! Numbers reliable packets: assigns outgoing sequence numbers and filters duplicates of incoming ones.
//!
//! Within one join LiveKit numbers the reliable packets of each sender from 1; a packet that is sent again after a
//! resume keeps its number. Lossy packets have the number 0.

use std::{
    collections::{HashMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

/// How long a sender's last number is kept after its last packet: longer than any resume takes.
const TTL: Duration = Duration::from_secs(30);
/// The most senders that are remembered: several times LiveKit's usual room size.
const MAX_SENDERS: usize = 4096;
/// How many bytes of delivered packets are kept: about as many as may be in flight.
const MAX_DELIVERED: usize = 128 * 1024;

/// Assigns the numbers of outgoing packets, and keeps the packets that the server may not have processed.
///
/// The data channel retransmits packets that it has not delivered. Delivered packets may still be lost in the server
/// before it processes them: the last of them are kept, to be sent again after a resume.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    last: u32,
    /// Packets that were written and not delivered, with their sizes. Bounded by the limit of bytes in flight.
    on_way: VecDeque<Written>,
    on_way_bytes: usize,
    /// The packets that were delivered last.
    delivered: VecDeque<(u32, Vec<u8>)>,
    delivered_bytes: usize,
    /// How many bytes were unacknowledged at the last check, plus those written since.
    expected: usize,
}

#[derive(Debug)]
enum Written {
    New(u32, Vec<u8>),
    /// Bytes that are not sent again after a resume.
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
    /// Returns the number of the packet that is written next. It may be another packet than the last one that was
    /// tried, because others may overtake it.
    pub(crate) fn next(&self) -> u32 {
        self.last.wrapping_add(1)
    }

    /// Records that the packet with the next number was written.
    pub(crate) fn written(&mut self, packet: Vec<u8>) {
        self.last = self.next();
        self.write(Written::New(self.last, packet));
    }

    /// Records written bytes that are not sent again after a resume: a repeated packet, or one without a number.
    pub(crate) fn written_other(&mut self, size: usize) {
        self.write(Written::Other(size));
    }

    fn write(&mut self, written: Written) {
        self.on_way_bytes += written.len();
        self.expected += written.len();
        self.on_way.push_back(written);
    }

    /// Updates how many bytes the server has not acknowledged; earlier bytes are delivered. Returns whether the
    /// acknowledgement advanced: on a slow path a packet is acknowledged in parts.
    pub(crate) fn handle_unacknowledged(&mut self, bytes: usize) -> bool {
        while let Some(first) = self.on_way.front()
            && self.on_way_bytes - first.len() >= bytes
        {
            // Whole packets only: one whose last bytes are missing is not readable at the server.
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

    /// Returns the delivered packets after the last number that the server has processed, in order.
    pub(crate) fn unheard(&self, heard: u32) -> impl Iterator<Item = &[u8]> {
        self.delivered.iter().filter(move |(number, _)| *number > heard).map(|(_, packet)| &**packet)
    }
}

/// The last received numbers, by the sender's sid.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    heard: HashMap<String, Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    last: u32,
    at: Instant,
}

impl Incoming {
    /// Returns whether a reliable packet is new. One without a number or without a sid always is.
    pub(crate) fn accept(&mut self, now: Instant, sid: &str, sequence: u32) -> bool {
        // Packets of LiveKit's server API and of old clients have no number, so nothing can tell their
        // repetitions.
        if sequence == 0 || sid.is_empty() {
            return true;
        }
        if let Some(heard) = self.heard.get_mut(sid) {
            // As LiveKit's SDKs do. The server delivers a packet again only within a resume, which is over by
            // then.
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

    /// Returns the last number of each sender.
    pub(crate) fn last(&self) -> impl Iterator<Item = (&str, u32)> {
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
    fn repeated_or_older_number_is_dropped_per_sender() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        assert!(heard.accept(now, "PA_1", 1));
        assert!(heard.accept(now, "PA_1", 3), "a gap is accepted");
        assert!(!heard.accept(now, "PA_1", 3));
        assert!(!heard.accept(now, "PA_1", 2));
        assert!(heard.accept(now, "PA_2", 1), "another sender counts for itself");
    }

    #[test]
    fn packet_without_a_number_passes() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        assert!(heard.accept(now, "PA_1", 7));
        assert!(heard.accept(now, "PA_1", 0));
        assert!(heard.accept(now, "", 7));
        assert!(heard.accept(now, "", 7));
    }

    #[test]
    fn silent_sender_is_forgotten() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        assert!(heard.accept(now, "PA_1", 9));
        assert!(!heard.accept(now + TTL, "PA_1", 9));
        assert!(heard.accept(now + TTL + Duration::from_millis(1), "PA_1", 1));
    }

    #[test]
    fn remembered_senders_are_bounded() {
        let (now, mut heard) = (Instant::now(), Incoming::default());
        for n in 0..2 * MAX_SENDERS {
            assert!(heard.accept(now, &format!("PA_{n}"), 1));
        }
        assert!(heard.heard.len() <= MAX_SENDERS);
    }

    #[test]
    fn outgoing_numbers_start_at_one() {
        let mut outgoing = Outgoing::default();
        assert_eq!((outgoing.next(), outgoing.next()), (1, 1));
        outgoing.written(vec![0]);
        assert_eq!(outgoing.next(), 2);
    }

    fn written(sizes: &[usize]) -> Outgoing {
        let mut outgoing = Outgoing::default();
        sizes.iter().for_each(|size| outgoing.written(vec![0; *size]));
        outgoing
    }

    fn unheard(outgoing: &Outgoing, heard: u32) -> Vec<usize> {
        outgoing.unheard(heard).map(<[u8]>::len).collect()
    }

    #[test]
    fn delivered_but_unprocessed_packets_are_kept() {
        let mut outgoing = written(&[3, 5, 2]);
        outgoing.handle_unacknowledged(8);
        assert!(unheard(&outgoing, 0).is_empty(), "the connection itself retransmits undelivered data");
        outgoing.handle_unacknowledged(7);
        assert_eq!(unheard(&outgoing, 0), [3]);
        outgoing.handle_unacknowledged(0);
        assert_eq!((unheard(&outgoing, 0), unheard(&outgoing, 2)), (vec![3, 5, 2], vec![2]));
    }

    #[test]
    fn every_acknowledged_byte_is_progress() {
        let mut outgoing = written(&[15_000]);
        assert!(!outgoing.handle_unacknowledged(15_000));
        assert!(outgoing.handle_unacknowledged(14_000), "a part of a packet");
        assert!(!outgoing.handle_unacknowledged(14_000));
        outgoing.written_other(500);
        assert!(!outgoing.handle_unacknowledged(14_500));
        outgoing.written(vec![0; 100]);
        assert!(outgoing.handle_unacknowledged(14_000), "beside what was written meanwhile");
        assert!(outgoing.handle_unacknowledged(0));
        assert!(!outgoing.handle_unacknowledged(0));
        assert_eq!((unheard(&outgoing, 0), outgoing.on_way_bytes), (vec![15_000, 100], 0));
    }

    #[test]
    fn kept_packets_are_bounded() {
        let mut outgoing = written(&[15_000; 100]);
        outgoing.handle_unacknowledged(0);
        assert_eq!(unheard(&outgoing, 0).len(), MAX_DELIVERED / 15_000);
        assert_eq!(unheard(&outgoing, 99).len(), 1, "the last ones");
    }
}
