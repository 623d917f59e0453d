//! Sends unacknowledged frames again when a peer returns (`wire.md`, section 5.2).
//!
//! A retransmission is the list of those frames in the order of their stanzas. [`Caps`](crate::protocol::session::Caps)
//! limits how many are in transit at once; the others follow as those are acknowledged.

use std::{collections::VecDeque, time::Duration};

use super::{Context, Delivery, Feature, Purpose, Recipients, Sent};
use crate::{
    clock::Instant,
    protocol::session::{stats::Counter, timers::Timer},
    sorted::SortedMap,
    transport::Identity,
};

/// The shortest time between two retransmissions to one peer. Until then the frames of the first may still be in
/// transit.
const INTERVAL: Duration = Duration::from_millis(900);

/// The frames that are sent again to one peer, under one pair of sids.
#[derive(Debug, Default)]
pub(super) struct Retransmission {
    next: VecDeque<Purpose>,
    /// The bytes of unacknowledged retransmitted frames, by their stanzas.
    in_flight: SortedMap<i32, usize>,
    bytes: usize,
    began: Option<Instant>,
}

/// Whether frames can be sent again to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retransmit {
    /// All unacknowledged frames can.
    Now,
    /// Frames can be sent when a timer is due.
    Later,
    /// Only frames that have never been sent can: the peer acknowledges nothing.
    NeverSent,
}

impl Delivery {
    /// Returns whether a retransmission to this peer can start now.
    pub(crate) fn may_retransmit(
        &mut self,
        cx: &mut Context,
        peers: &impl Recipients,
        id: &Identity,
    ) -> Retransmit {
        // Without acknowledgements every frame would be sent again at each return. Without an instance
        // nothing shows that the peer is still the process that the frames were meant for.
        if !peers.shows_instance(id) || !peers.lists(id, Feature::Ack) {
            return Retransmit::NeverSent;
        }
        let began = self.links.get(id).and_then(|link| link.retransmission.began);
        let since = began.map(|began| cx.now.saturating_duration_since(began));
        match since.and_then(|since| INTERVAL.checked_sub(since)).filter(|wait| !wait.is_zero()) {
            Some(wait) => {
                cx.set_timer(Timer::Replay(id.clone()), wait);
                Retransmit::Later
            }
            None => Retransmit::Now,
        }
    }

    /// Starts a retransmission of all unacknowledged frames, followed by frames that have never been sent.
    pub(crate) fn retransmit(&mut self, cx: &Context, id: &Identity, never_sent: Vec<Purpose>) {
        let mut next = VecDeque::from(self.unacknowledged(id));
        next.extend(never_sent);
        // Frames in flight of an earlier retransmission are on the list again, so its window starts empty.
        self.links.entry(id.clone()).or_default().retransmission =
            Retransmission { next, began: Some(cx.now), ..Retransmission::default() };
    }

    /// Returns the next frame to send again to this peer, if its window has room.
    pub(crate) fn next_retransmission(
        &mut self,
        cx: &Context,
        peers: &impl Recipients,
        id: &Identity,
    ) -> Option<Purpose> {
        if !peers.is_reachable(id) {
            return None;
        }
        let window = &mut self.links.get_mut(id)?.retransmission;
        let (frames, bytes) =
            (cx.config.caps.frames.retransmit_frames, cx.config.caps.frames.retransmit_bytes);
        let is_idle = window.in_flight.is_empty(); // a single frame may exceed the limit
        if !is_idle && (window.in_flight.len() >= frames || window.bytes >= bytes) {
            return None;
        }
        // The purpose is encoded only when it is sent: a request carries the budget that is left then
        // (`wire.md`, section 5.2).
        window.next.pop_front()
    }

    /// Notes that a frame was sent again.
    pub(crate) fn note_retransmitted(&mut self, cx: &mut Context, id: &Identity, sent: &Sent) {
        cx.count(Counter::Retransmitted);
        if let Some(link) = self.links.get_mut(id) {
            link.retransmission.in_flight.insert(sent.stanza, sent.size);
            link.retransmission.bytes += sent.size;
        }
    }

    /// Removes a frame from the window that was acknowledged or is no longer needed. Returns whether the next ones may
    /// be sent.
    pub(crate) fn release_window(&mut self, id: &Identity, stanza: i32) -> bool {
        let Some(link) = self.links.get_mut(id) else { return false };
        let window = &mut link.retransmission;
        let bytes = window.in_flight.remove(&stanza);
        window.bytes -= bytes.unwrap_or(0);
        bytes.is_some()
    }
}
