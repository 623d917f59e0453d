//! Orders the packets that wait to be sent, within limits. At most one of each priority is being sent.
//!
//! It has no lock, no waker and no clock: the send queue of this crate's participants puts them around it, and the
//! [engine](crate::engine) of participants in other languages needs none.

use std::{collections::VecDeque, mem};

use super::{Capabilities, Lane, Packet};

/// The number of queued packets at which the owner should stop reading events.
pub(crate) const LIMIT: usize = 1_024;

/// The largest number of queued packets.
pub(crate) const CAP: usize = 4 * LIMIT;

/// The largest size of all queued packets, in bytes: two frames of the largest size. A single packet may exceed it.
pub(crate) const CAP_BYTES: usize = 32 * 1024 * 1024;

/// Additional capacity for small packets that overtake, in packets and in bytes, so that a queue full of large packets does not
/// block stops and acknowledgements.
pub(crate) const RESERVE: usize = LIMIT;
pub(crate) const RESERVE_BYTES: usize = 1024 * 1024;

/// A part of the queue. At most one packet of each is sent at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Reliable packets that need not wait for large ones.
    Urgent,
    /// All other reliable packets.
    Ordered,
    /// Lossy packets.
    Lossy,
}

impl Priority {
    pub(crate) const ALL: [Self; 3] = [Self::Urgent, Self::Ordered, Self::Lossy];

    /// The lane of these packets.
    #[cfg(feature = "livekit")]
    pub(crate) fn lane(self) -> Lane {
        if self == Self::Lossy { Lane::Lossy } else { Lane::Reliable }
    }
}

const URGENT: usize = Priority::Urgent as usize;
const ORDERED: usize = Priority::Ordered as usize;
const LOSSY: usize = Priority::Lossy as usize;

/// A packet that is being sent.
#[derive(Debug)]
pub(crate) struct Sending<T> {
    pub(crate) id: u64,
    pub(crate) is_large: bool,
    /// Whether its sender does not want it any more.
    #[cfg_attr(not(feature = "runtime"), expect(dead_code, reason = "only the send queue looks at it"))]
    pub(crate) is_cancelled: bool,
    /// The data that the owner of the queue stores with the packet.
    #[cfg_attr(not(feature = "runtime"), expect(dead_code, reason = "only the send queue keeps anything"))]
    pub(crate) tag: T,
}

/// The packets that are queued or being sent, each with a tag of the queue's owner.
#[derive(Debug)]
pub(crate) struct Outbox<T> {
    /// Indexed by [`Priority`].
    queued: [VecDeque<(Packet, T)>; 3],
    /// Indexed by [`Priority`].
    sending: [Option<Sending<T>>; 3],
    /// The bytes of the queued reliable packets.
    bytes: usize,
    /// The number of large packets that are queued in order.
    large: usize,
    /// The size of a larger packet, which is sent in parts, in bytes.
    max_packet: usize,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self::new(Capabilities::MAX_PACKET)
    }
}

impl<T> Outbox<T> {
    /// Creates an empty queue. A packet of more bytes is sent in parts, between which others can be sent.
    pub(crate) fn new(max_packet: usize) -> Self {
        let (queued, sending) = ([const { VecDeque::new() }; 3], [const { None }; 3]);
        Self { queued, sending, bytes: 0, large: 0, max_packet }
    }

    /// Queues a packet for which there is room.
    pub(crate) fn push(&mut self, packet: Packet, tag: T) {
        let place = match packet.lane {
            Lane::Lossy => LOSSY,
            Lane::Reliable if packet.overtakes && self.has_large() => URGENT,
            Lane::Reliable => ORDERED,
        };
        if place != LOSSY {
            self.bytes += packet.size();
        }
        self.large += usize::from(place == ORDERED && self.is_large(&packet));
        self.queued[place].push_back((packet, tag));
    }

    /// Takes the next packet of this priority, unless one is being sent. Its end is to be reported by [`done`](Self::done). Those
    /// that are not wanted are dropped.
    pub(crate) fn take(
        &mut self,
        priority: Priority,
        mut is_wanted: impl FnMut(&Packet, &T) -> bool,
    ) -> Option<Packet> {
        let place = priority as usize;
        while self.sending[place].is_none() {
            let (packet, tag) = self.queued[place].pop_front()?;
            let is_large = self.is_large(&packet);
            if place != LOSSY {
                self.bytes -= packet.size();
            }
            self.large -= usize::from(place == ORDERED && is_large);
            if !is_large || is_wanted(&packet, &tag) {
                self.sending[place] = Some(Sending { id: packet.id, is_large, is_cancelled: false, tag });
                return Some(packet);
            }
        }
        None
    }

    /// The priorities in the order in which packets should be taken. A reliable packet that can be sent at once precedes a
    /// lossy one, because progress precedes its result.
    pub(crate) fn order(&self) -> [Priority; 3] {
        let sending = self.sending[ORDERED].as_ref().map(|it| it.is_large);
        match sending.or_else(|| self.queued[ORDERED].front().map(|it| self.is_large(&it.0))) {
            Some(true) => [Priority::Urgent, Priority::Lossy, Priority::Ordered],
            _ => Priority::ALL,
        }
    }

    /// Frees the place of the packet that was being sent.
    pub(crate) fn done(&mut self, priority: Priority) -> Option<Sending<T>> {
        self.sending[priority as usize].take()
    }

    /// Keeps the queued packets that `is_kept` accepts. It gets the packet, whether the packet is large, and its tag.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&Packet, bool, &T) -> bool) {
        let max = self.max_packet;
        for queue in &mut self.queued {
            queue.retain(|(packet, tag)| is_kept(packet, packet.is_streamed(max), tag));
        }
        self.bytes = self.queued[..LOSSY].iter().flatten().map(|it| it.0.size()).sum();
        self.large = self.queued[ORDERED].iter().filter(|it| it.0.is_streamed(max)).count();
    }

    /// Takes out all queued packets. Those that are being sent stay.
    pub(crate) fn take_queued(&mut self) -> impl Iterator<Item = (Packet, T)> + use<T> {
        (self.bytes, self.large) = (0, 0);
        mem::take(&mut self.queued).into_iter().flatten()
    }

    /// The bytes of the queued reliable packets.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if a large packet is queued or being sent.
    pub(crate) fn has_large(&self) -> bool {
        self.large > 0 || self.sending[ORDERED].as_ref().is_some_and(|it| it.is_large)
    }

    /// Returns true if there is no room for this packet.
    pub(crate) fn is_full(&self, packet: &Packet) -> bool {
        if packet.lane == Lane::Lossy {
            return self.queued[LOSSY].len() >= CAP;
        }
        let (cap, cap_bytes) = match packet.overtakes && !self.is_large(packet) {
            true => (CAP + RESERVE, CAP_BYTES + RESERVE_BYTES),
            false => (CAP, CAP_BYTES),
        };
        let queued = self.reliable();
        queued >= cap || (self.bytes + packet.size() > cap_bytes && queued > 0)
    }

    fn reliable(&self) -> usize {
        self.queued[ORDERED].len() + self.queued[URGENT].len()
    }

    /// Returns true if a packet is sent in parts, between which others can be sent.
    pub(crate) fn is_large(&self, packet: &Packet) -> bool {
        packet.is_streamed(self.max_packet)
    }
}

/// Methods that only the engine needs.
#[cfg(feature = "vocabulary")]
impl<T> Outbox<T> {
    /// The priority of a packet that is being sent.
    pub(crate) fn priority_of(&self, packet: u64) -> Option<Priority> {
        let is_it = |of: &Priority| self.sending[*of as usize].as_ref().is_some_and(|it| it.id == packet);
        Priority::ALL.into_iter().find(is_it)
    }

    /// Takes out the next packet, whatever is being sent.
    pub(crate) fn pop(&mut self) -> Option<Packet> {
        self.sending = [const { None }; 3];
        let order = self.order();
        order.into_iter().find_map(|priority| self.take(priority, |_, _| true))
    }

    /// Gives up all packets, and returns their ids.
    pub(crate) fn interrupt(&mut self) -> impl Iterator<Item = u64> + use<T> {
        let sending = mem::take(&mut self.sending).into_iter().flatten().map(|it| it.id);
        sending.chain(self.take_queued().map(|it| it.0.id))
    }
}

/// Methods that only the send queue needs, because a transport and an owner watch it.
#[cfg(feature = "runtime")]
impl<T> Outbox<T> {
    /// The packet of this priority that is being sent.
    pub(crate) fn sending(&mut self, priority: Priority) -> Option<&mut Sending<T>> {
        self.sending[priority as usize].as_mut()
    }

    /// The id of the large packet that is being sent, or else of the one that is sent next.
    pub(crate) fn large(&self) -> Option<u64> {
        let sending = self.sending[ORDERED].as_ref().filter(|it| it.is_large && !it.is_cancelled);
        let next = || self.queued[ORDERED].front().filter(|it| self.is_large(&it.0));
        sending.map(|it| it.id).or_else(|| next().map(|it| it.0.id))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queued.iter().all(VecDeque::is_empty) && self.sending.iter().all(Option::is_none)
    }

    /// Returns true if so many packets are queued that the owner should not read more events. Bytes do not count, because the
    /// next event may be a stop.
    pub(crate) fn is_long(&self) -> bool {
        self.reliable() >= LIMIT || self.queued[LOSSY].len() >= LIMIT
    }
}
