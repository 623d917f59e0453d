//! Remembers outgoing large packets, which a driver may still drop (`wire.md`, section 5.6).

use std::{collections::VecDeque, time::Duration};

use crate::{
    protocol::frame::Message,
    sorted::{SortedMap, SortedSet},
    transport::Identity,
};

/// The limit on remembered large packets: as many as a driver queues.
const MAX_LARGE: usize = 4096;

/// The number of refusals after which a frame is dropped.
pub(crate) const MAX_REFUSALS: u32 = 8;

/// The wait after the first refusal. It doubles with each refusal, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(250);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// The code of an error (type 1) that refuses a stream, for lack of space or because another participant has changed it.
pub(crate) const STREAM_REFUSED: i32 = 504;

/// The large packets that were output. Sending one may take a long time.
#[derive(Debug, Default)]
pub(super) struct Large {
    /// Ordered by their rising ids.
    out: VecDeque<Outgoing>,
    /// The last packet of each frame, by its receivers and its stanza.
    last: SortedMap<(Vec<Identity>, i32), u64>,
    withdrawn: SortedSet<u64>,
}

#[derive(Debug)]
struct Outgoing {
    packet: u64,
    to: Vec<Identity>,
    stanza: i32,
}

impl super::Delivery {
    /// Withdraws the packet of a frame that is no longer needed.
    pub(crate) fn withdraw(&mut self, packet: u64) {
        self.large.withdraw(packet);
    }

    /// Returns whether this large packet was sent to this peer only.
    pub(crate) fn is_large_to(&self, packet: u64, id: &Identity) -> bool {
        self.large.is_to(packet, id)
    }
}

/// Returns the wait before a frame is sent again after this many refusals.
pub(crate) fn wait_after_refusals(times: u32) -> Duration {
    FIRST_WAIT.saturating_mul(1 << times.saturating_sub(1).min(16)).min(LONGEST_WAIT)
}

impl Large {
    pub(super) fn note(&mut self, packet: u64, to: &[Identity], stanza: i32) {
        if self.out.len() == MAX_LARGE
            && let Some(oldest) = self.out.pop_front()
        {
            self.withdrawn.remove(&oldest.packet);
            let frame = (oldest.to, oldest.stanza);
            if self.last.get(&frame) == Some(&oldest.packet) {
                self.last.remove(&frame);
            }
        }
        // Only the last packet of a frame is sent, since the receiver may have dropped the earlier one.
        self.withdrawn.extend(self.last.insert((to.to_vec(), stanza), packet));
        self.out.push_back(Outgoing { packet, to: to.to_vec(), stanza });
    }

    /// Returns whether this packet was sent to this peer only.
    pub(super) fn is_to(&self, packet: u64, id: &Identity) -> bool {
        let at = self.out.binary_search_by_key(&packet, |it| it.packet);
        let out = at.ok().and_then(|at| self.out.get(at));
        out.is_some_and(|it| it.to.as_slice() == std::slice::from_ref(id))
    }

    pub(super) fn wants(&self, packet: u64) -> bool {
        !self.withdrawn.contains(&packet)
    }

    /// Drops the packet if it is remembered.
    pub(super) fn withdraw(&mut self, packet: u64) {
        if self.out.binary_search_by_key(&packet, |it| it.packet).is_ok() {
            self.withdrawn.insert(packet);
        }
    }

    pub(super) fn withdraw_all_to(&mut self, id: &Identity) {
        let to = vec![id.clone()];
        // Packets with further receivers are not in this range: the others still read them.
        let theirs = self.last.range((to.clone(), i32::MIN)..=(to, i32::MAX));
        self.withdrawn.extend(theirs.map(|(_, packet)| *packet));
    }
}

/// Returns the first part of a stream's id: its call, or its kind.
pub(super) fn subject(message: &Message) -> &str {
    match message {
        Message::ToolUseRequest(request) => request.id.as_str(),
        Message::ToolUseResult(result) => result.id.as_str(),
        Message::ToolsRegister(_) => "tools",
        _ => "frame",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_packets_are_remembered_up_to_the_limit() {
        let mut large = Large::default();
        for packet in 1..=MAX_LARGE as u64 + 1 {
            large.note(packet, &["a".into()], packet as i32);
        }
        for packet in [1, 2, MAX_LARGE as u64 + 1] {
            large.withdraw(packet);
        }
        assert!(large.wants(1), "the oldest is forgotten");
        assert!(!large.wants(2) && !large.wants(MAX_LARGE as u64 + 1));
        large.note(MAX_LARGE as u64 + 2, &["b".into()], 1);
        assert!(!large.withdrawn.contains(&2), "and so is that it was withdrawn");
        large.withdraw_all_to(&"b".into());
        assert_eq!(large.withdrawn.len(), 2);
    }

    #[test]
    fn retransmitted_frame_withdraws_its_earlier_packet() {
        let mut large = Large::default();
        large.note(1, &["a".into()], -7);
        large.note(2, &["b".into()], -7);
        large.note(3, &["a".into()], -7);
        assert!(large.withdrawn.iter().eq([&1]));
    }
}
