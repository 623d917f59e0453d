//! What waits for the transport: in order, but for what may pass large packets.

use std::collections::VecDeque;

use crate::transport::{Capabilities, Lane, Packet};

/// How many packets may wait before no more is read from the transport than is needed to go on.
const LIMIT: usize = 1_024;

/// How many packets may wait at all. What we say of our own accord is not sent beyond it.
const CAP: usize = 4 * LIMIT;

/// How many bytes may wait: two frames of the largest size. One packet always may.
const CAP_BYTES: usize = 32 * 1024 * 1024;

/// What small packets that may pass large ones find beside that, as often and in bytes: a full queue of large ones
/// keeps no stop and no acknowledgement back.
const RESERVE: usize = LIMIT;
const RESERVE_BYTES: usize = 1024 * 1024;

/// Packets that wait.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    ordered: VecDeque<Packet>,
    /// Those that need not wait for large ones.
    urgent: VecDeque<Packet>,
    /// Those of the lossy lane: small ones, which wait for nothing else.
    fast: VecDeque<Packet>,
    /// The bytes of all but `fast`.
    bytes: usize,
    /// How many in `ordered` are large.
    large: usize,
}

impl Outbox {
    /// Takes a packet, or says which one it has no room for. `busy` says that a large one is being sent.
    pub(super) fn push(&mut self, packet: Packet, busy: bool) -> Result<(), u64> {
        if packet.lane == Lane::Lossy {
            if self.fast.len() >= CAP {
                return Err(packet.id);
            }
            self.fast.push_back(packet);
            return Ok(());
        }
        let bytes = self.bytes + packet.payload.len();
        let (cap, cap_bytes) = match packet.overtakes && !is_large(&packet) {
            true => (CAP + RESERVE, CAP_BYTES + RESERVE_BYTES),
            false => (CAP, CAP_BYTES),
        };
        if self.len() >= cap || (bytes > cap_bytes && !self.is_empty()) {
            return Err(packet.id);
        }
        self.bytes = bytes;
        if packet.overtakes && (busy || self.large > 0) {
            self.urgent.push_back(packet);
        } else {
            self.large += usize::from(is_large(&packet));
            self.ordered.push_back(packet);
        }
        Ok(())
    }

    /// The next packet that waits for all before it.
    pub(super) fn next_ordered(&mut self) -> Option<Packet> {
        let packet = self.ordered.pop_front()?;
        self.bytes -= packet.payload.len();
        self.large -= usize::from(is_large(&packet));
        Some(packet)
    }

    /// The next packet that waits for none that is large.
    pub(super) fn next_urgent(&mut self) -> Option<Packet> {
        let packet = self.urgent.pop_front()?;
        self.bytes -= packet.payload.len();
        Some(packet)
    }

    /// The next packet of the lossy lane.
    pub(super) fn next_fast(&mut self) -> Option<Packet> {
        self.fast.pop_front()
    }

    /// What waits for the reliable lane, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Gives up everything; names what it was.
    pub(super) fn take_all(&mut self) -> Vec<u64> {
        let Self { ordered, urgent, fast, .. } = std::mem::take(self);
        ordered.into_iter().chain(urgent).chain(fast).map(|packet| packet.id).collect()
    }

    /// Gives up all that is large.
    pub(super) fn drop_large(&mut self) {
        self.ordered.retain(|packet| !is_large(packet));
        self.large = 0;
        self.bytes = self.ordered.iter().chain(&self.urgent).map(|packet| packet.payload.len()).sum();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.fast.is_empty()
    }

    /// Whether so much waits that nothing more should be read. Bytes do not count: what is read may be a stop.
    pub(super) fn is_long(&self) -> bool {
        self.len() >= LIMIT || self.fast.len() >= LIMIT
    }

    fn len(&self) -> usize {
        self.ordered.len() + self.urgent.len()
    }
}

/// Whether a packet goes in parts, between which others can pass.
pub(super) fn is_large(packet: &Packet) -> bool {
    packet.payload.len() > Capabilities::MAX_PACKET
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(id: u64, size: usize, overtakes: bool) -> Packet {
        let mut packet = Packet::new(["b".into()], vec![0; size]);
        (packet.id, packet.overtakes) = (id, overtakes);
        packet
    }

    #[test]
    fn only_what_is_large_is_overtaken() {
        let mut outbox = Outbox::default();
        outbox.push(packet(1, 10, false), false).unwrap();
        outbox.push(packet(2, 10, true), false).unwrap();
        assert!(outbox.next_urgent().is_none());
        outbox.push(packet(3, 20_000, false), false).unwrap();
        outbox.push(packet(4, 10, true), false).unwrap();
        assert_eq!(outbox.next_urgent().unwrap().id, 4);
        let order: Vec<_> = std::iter::from_fn(|| outbox.next_ordered()).map(|it| it.id).collect();
        assert_eq!(order, [1, 2, 3]);
        outbox.push(packet(5, 10, true), true).unwrap();
        assert_eq!(outbox.next_urgent().unwrap().id, 5);
        assert!(outbox.is_empty() && outbox.bytes == 0);
    }

    #[test]
    fn sec_r4_the_queue_has_caps_and_always_takes_one() {
        let mut outbox = Outbox::default();
        outbox.push(packet(1, CAP_BYTES + 1, false), false).unwrap();
        assert_eq!(outbox.push(packet(2, 1, false), false), Err(2));
        outbox.push(packet(3, 10, true), false).unwrap(); // a stop, say
        assert_eq!(outbox.push(packet(4, RESERVE_BYTES, true), false), Err(4));
        assert_eq!(outbox.next_urgent().unwrap().id, 3);
        assert_eq!(outbox.next_ordered().unwrap().id, 1);
        for id in 0..CAP as u64 {
            assert_eq!(outbox.is_long(), id >= LIMIT as u64);
            outbox.push(packet(id, 0, false), false).unwrap();
        }
        assert_eq!(outbox.push(packet(9, 0, false), false), Err(9));
    }
}
