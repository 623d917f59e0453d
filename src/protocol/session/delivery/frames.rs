//! Keeps one record for each unacknowledged frame.
//!
//! A record states the [`Purpose`] of its frame. Acknowledgements, unsent packets, refused streams and retransmissions find
//! the record by the frame's stanza or its last packet. Records are kept when the sids change; the sender of a frame
//! removes its record.

use std::time::Duration;

use super::{Delivery, MAX_REFUSALS, flight::Unsent, purpose::Purpose};
use crate::{
    protocol::session::{SendFailure, codec, context::Context},
    sorted::SortedMap,
    tool::CallId,
    transport::{Identity, Lane},
};

/// A packet that was not sent. No later packet has carried its frame.
#[derive(Debug)]
pub(crate) struct NotSent {
    pub(crate) to: Identity,
    pub(crate) stanza: i32,
    pub(crate) purpose: Purpose,
    /// Whether it is certain that no packet of the frame was ever sent.
    pub(crate) was_never_sent: bool,
}

/// All unacknowledged frames. A stanza is never used twice, so its absolute value identifies the frame.
#[derive(Debug, Default)]
pub(super) struct Frames {
    by_peer: SortedMap<Identity, SortedMap<u32, Frame>>,
    by_packet: SortedMap<u64, (Identity, i32)>,
}

#[derive(Debug)]
struct Frame {
    purpose: Purpose,
    /// The last packet that carried it.
    packet: u64,
    /// How often the frame was output and not reported as unsent.
    left: u32,
    /// Whether its last packet was sent on the fast lane, where several packets have one id. `left` counts those before.
    is_fast: bool,
    /// How often its peer refused its stream.
    refusals: u32,
    /// Whether its last packet was not sent, so that it must be sent again.
    is_unsent: bool,
}

impl Frames {
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert_eq!(self.by_packet.len(), self.by_peer.values().map(SortedMap::len).sum::<usize>());
        self.by_packet.len()
    }

    /// Returns whether an acknowledgement that names this call may refer to the frame of this stanza. That of a view names
    /// none.
    pub(super) fn may_mean(&self, to: &Identity, stanza: i32, named: Option<&str>) -> bool {
        let purpose = self.frame(to, stanza).map(|frame| &frame.purpose);
        let is_named = |purpose: &Purpose| purpose.call().is_none_or(|call| codec::may_mean(named, call));
        purpose.is_none_or(|it| is_named(it) && (*it != Purpose::View || named.is_none()))
    }

    /// Returns whether this is the result of this call. The stanza is an absolute value.
    pub(super) fn is_result_of(&self, to: &Identity, stanza: u32, call: Option<&CallId>) -> bool {
        let frame = self.by_peer.get(to).and_then(|frames| frames.get(&stanza));
        frame.is_some_and(|it| matches!(&it.purpose, Purpose::Result(its) if Some(its) == call))
    }

    /// Returns the absolute stanzas of the results for this peer.
    pub(super) fn results_to(&self, to: &Identity) -> Vec<u32> {
        let frames = self.by_peer.get(to).into_iter().flatten();
        let results = frames.filter(|(_, frame)| matches!(frame.purpose, Purpose::Result(_)));
        results.map(|(stanza, _)| *stanza).collect()
    }

    fn frame(&self, to: &Identity, stanza: i32) -> Option<&Frame> {
        self.by_peer.get(to)?.get(&stanza.unsigned_abs())
    }

    fn frame_mut(&mut self, to: &Identity, stanza: i32) -> Option<&mut Frame> {
        self.by_peer.get_mut(to)?.get_mut(&stanza.unsigned_abs())
    }

    fn of_peer(&self, id: &Identity) -> impl Iterator<Item = &Frame> {
        self.by_peer.get(id).into_iter().flat_map(SortedMap::values)
    }

    /// Records a frame that its peer must acknowledge. It is sent in this packet, or sent again under its stanza.
    pub(super) fn note(&mut self, to: &Identity, stanza: i32, packet: u64, is_fast: bool, purpose: Purpose) {
        self.by_packet.insert(packet, (to.clone(), stanza));
        let frames = self.by_peer.entry(to.clone()).or_default();
        if let Some(frame) = frames.get_mut(&stanza.unsigned_abs()) {
            self.by_packet.remove(&frame.packet);
            frame.packet = packet;
            frame.is_fast = is_fast;
            frame.left += 1;
            frame.is_unsent = false;
            return;
        }
        let frame = Frame { purpose, packet, left: 1, is_fast, refusals: 0, is_unsent: false };
        frames.insert(stanza.unsigned_abs(), frame);
    }

    fn remove(&mut self, to: &Identity, stanza: i32) -> Option<Frame> {
        let frames = self.by_peer.get_mut(to)?;
        let frame = frames.remove(&stanza.unsigned_abs())?;
        if frames.is_empty() {
            self.by_peer.remove(to);
        }
        self.by_packet.remove(&frame.packet);
        Some(frame)
    }

    fn remove_all(&mut self, to: &Identity) {
        for (_, frame) in self.by_peer.remove(to).into_iter().flatten() {
            self.by_packet.remove(&frame.packet);
        }
    }
}

/// What an acknowledgement says.
#[must_use]
pub(crate) struct Acknowledged {
    /// The purpose of the acknowledged frame, if it was awaited.
    pub(crate) purpose: Option<Purpose>,
    /// Whether the next frames of a retransmission may be sent.
    pub(crate) has_room: bool,
}

impl Delivery {
    /// Returns whether an acknowledgement may mean a frame of this run: the stanza was used, and not for another call.
    pub(crate) fn may_have_sent(&self, to: &Identity, stanza: i32, named: Option<&str>) -> bool {
        stanza.unsigned_abs() <= self.last_stanza() && self.frames.may_mean(to, stanza, named)
    }

    /// Handles a peer's acknowledgement, which may name a call.
    pub(crate) fn acknowledged(&mut self, by: &Identity, stanza: i32, named: Option<&str>) -> Acknowledged {
        // A program that restarts counts its stanzas from 1 again. A late acknowledgement for the earlier run
        // can carry the stanza of a frame of this one, which its receiver does not have (`wire.md`, section
        // 5.2).
        if !self.frames.may_mean(by, stanza, named) {
            return Acknowledged { purpose: None, has_room: false };
        }
        let purpose = self.frames.remove(by, stanza).map(|frame| frame.purpose);
        Acknowledged { purpose, has_room: self.release_window(by, stanza) }
    }

    /// Notes that a frame was answered other than by its acknowledgement, so it has arrived. Its answer was held for `held`.
    pub(crate) fn answered(&mut self, cx: &Context, by: &Identity, stanza: i32, lane: Lane, held: Duration) {
        if let Some(link) = self.links.get_mut(by) {
            link.lane.arrived(cx.now, stanza, lane, held);
        }
    }

    /// Stops sending this frame again on the fast lane.
    pub(crate) fn stop_repeating(&mut self, to: &Identity, stanza: i32) {
        if let Some(link) = self.links.get_mut(to) {
            link.lane.flight.forget(stanza);
        }
    }

    /// Stops sending a frame that is no longer needed. Returns whether its window has room for another one.
    pub(crate) fn withdraw_frame(&mut self, to: &Identity, stanza: i32) -> bool {
        self.stop_repeating(to, stanza);
        if let Some(frame) = self.frames.remove(to, stanza) {
            self.withdraw(frame.packet);
        }
        self.release_window(to, stanza)
    }

    /// Forgets a frame, which may still be in transit. Returns whether its window has room for another one.
    pub(crate) fn forget_frame(&mut self, to: &Identity, stanza: i32) -> bool {
        self.frames.remove(to, stanza);
        self.release_window(to, stanza)
    }

    /// Forgets all frames to a peer that acknowledges nothing any more.
    pub(crate) fn forget_frames(&mut self, to: &Identity) {
        self.frames.remove_all(to);
    }

    /// Returns whether no packet with this frame was sent.
    pub(crate) fn was_never_sent(&self, to: &Identity, stanza: i32) -> bool {
        self.frames.frame(to, stanza).is_some_and(|frame| frame.left == 0)
    }

    /// Returns whether the last packet of a frame was not sent.
    pub(crate) fn is_unsent(&self, to: &Identity, stanza: i32) -> bool {
        self.frames.frame(to, stanza).is_some_and(|frame| frame.is_unsent)
    }

    /// Returns whether a frame was sent as a large packet, which may still be in transit.
    pub(crate) fn is_large(&self, to: &Identity, stanza: i32) -> bool {
        self.frames.frame(to, stanza).is_some_and(|frame| self.is_large_to(frame.packet, to))
    }

    /// Returns the requests whose last packet was not sent, in the order of their stanzas.
    pub(crate) fn requests_unsent(&self, to: &Identity) -> Vec<CallId> {
        self.calls_to(to, |frame| frame.is_unsent && matches!(frame.purpose, Purpose::Request(_)))
    }

    /// Returns the calls of the claims to this peer whose last packet was not sent, in the order of their stanzas.
    pub(crate) fn claims_unsent(&self, to: &Identity) -> Vec<CallId> {
        self.calls_to(to, |frame| frame.is_unsent && matches!(frame.purpose, Purpose::Claim(_)))
    }

    /// Returns the purposes of the frames that this peer has not acknowledged, in the order of their stanzas.
    pub(crate) fn unacknowledged(&self, id: &Identity) -> Vec<Purpose> {
        // A client keeps its `StopRequest` itself and sends it under the new pair, and so do the views.
        let is_sent_again = |purpose: &Purpose| {
            matches!(purpose, Purpose::Request(_) | Purpose::Stop(_) | Purpose::Result(_) | Purpose::Claim(_))
        };
        let purposes = self.frames.of_peer(id).map(|frame| &frame.purpose);
        purposes.filter(|purpose| is_sent_again(purpose)).cloned().collect()
    }

    /// Handles an unsent packet. Returns `None` if another packet carries its frame, or if the frame is no longer
    /// needed. A request or claim keeps its record.
    pub(crate) fn unsent(&mut self, cx: &mut Context, packet: u64, why: &SendFailure) -> Option<NotSent> {
        let kept = self.frames.by_packet.get(&packet).cloned();
        let is_kept = kept.is_some();
        let (to, stanza) = kept.or_else(|| {
            let (to, stanza) = self.posted.find(packet)?;
            // What was for the room waits under the local identity, and the others under their first receiver.
            Some((to.first().unwrap_or_else(|| cx.local.identity()).clone(), stanza))
        })?;
        let link = self.links.get_mut(&to);
        let on_lane =
            link.map_or(Unsent::Unknown, |link| link.lane.flight.unsent(cx.now, stanza, packet, why));
        if on_lane != Unsent::Unknown {
            self.set_lane_timer(cx, &to);
        }
        if on_lane == Unsent::Covered {
            return None;
        }
        if !is_kept {
            let waits = !matches!(why, SendFailure::TooLarge { .. });
            self.posted.unsent(packet, Some(&to).filter(|_| waits));
            return waits.then_some(NotSent { to, stanza, purpose: Purpose::Once, was_never_sent: false });
        }
        let frame = self.frames.frame_mut(&to, stanza)?;
        // The lane may have forgotten a frame whose packets are still out, when its pair was reset. Then
        // `Unknown` does not prove that nothing left.
        let is_proven = on_lane == Unsent::Proven || !frame.is_fast;
        let was_never_sent = is_proven && frame.left == 1;
        if is_proven && *why == SendFailure::Interrupted {
            frame.left = frame.left.saturating_sub(1);
        }
        frame.is_unsent = true;
        let purpose = frame.purpose.clone();
        // A request or claim that had been sent before must be found again when the transport has room.
        // Without its record its call could only time out. The other frames are found from the calls and
        // results that keep them.
        if !matches!(purpose, Purpose::Request(_) | Purpose::Claim(_)) {
            self.frames.remove(&to, stanza);
        }
        Some(NotSent { to, stanza, purpose, was_never_sent })
    }

    /// Returns stanza and purpose of the frame to this peer whose last packet this is.
    pub(crate) fn frame_in(&self, packet: u64, to: &Identity) -> Option<(i32, Purpose)> {
        let (_, stanza) = self.frames.by_packet.get(&packet).filter(|(peer, _)| peer == to)?;
        Some((*stanza, self.frames.frame(to, *stanza)?.purpose.clone()))
    }

    /// Counts a peer's refusal of a frame's stream. Returns the number of refusals.
    pub(crate) fn count_refusal(&mut self, by: &Identity, stanza: i32) -> u32 {
        let frame = self.frames.frame_mut(by, stanza);
        frame.map_or(MAX_REFUSALS, |frame| {
            frame.refusals = frame.refusals.saturating_add(1);
            frame.refusals
        })
    }

    fn calls_to(&self, to: &Identity, which: impl Fn(&Frame) -> bool) -> Vec<CallId> {
        let frames = self.frames.of_peer(to).filter(|frame| which(frame));
        frames.filter_map(|frame| frame.purpose.call().cloned()).collect()
    }
}
