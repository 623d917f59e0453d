//! Holds frames that arrived before the server announced their senders.

use std::collections::VecDeque;

use crate::{
    clock::Instant,
    protocol::{
        frame::Message,
        session::{codec::Received, context::Context, stats::Counter, timers::Timer},
    },
    transport::{Identity, Peer, Sid},
};

/// The frames of unannounced senders, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    frames: VecDeque<(Instant, Peer, Received)>,
    bytes: usize,
}

impl Held {
    /// Keeps a frame until its sender is announced, for at most [`Times::hold`](crate::protocol::session::Times::hold).
    /// Without space it is dropped and counted.
    pub(super) fn hold(&mut self, cx: &mut Context, from: &Peer, incoming: Received) {
        let caps = &cx.config.caps;
        // By identity and not by join: a participant that rejoins again and again has a sid for each.
        let of_sender = self.frames.iter().filter(|(_, it, _)| it.identity() == from.identity()).count();
        let is_full = self.frames.len() >= caps.frames.held_frames_of_all
            || of_sender >= caps.frames.held_frames
            || self.bytes + incoming.size > caps.frames.held_bytes;
        if is_full {
            return cx.count(Counter::HoldExpired);
        }
        cx.count(Counter::Held);
        self.bytes += incoming.size;
        self.frames.push_back((cx.now, from.clone(), incoming));
        if !cx.timers.is_set(&Timer::Unannounced) {
            cx.set_timer(Timer::Unannounced, cx.config.times.hold);
        }
    }

    pub(super) fn has_frames_of(&self, id: &Identity) -> bool {
        self.frames.iter().any(|(_, from, _)| from.identity() == id)
    }

    /// Drops the frames that have waited too long.
    pub(super) fn expire(&mut self, cx: &mut Context) {
        let hold = cx.config.times.hold;
        while let Some((since, _, incoming)) = self.frames.front() {
            let waited = cx.now.saturating_duration_since(*since);
            if waited < hold {
                return cx.set_timer(Timer::Unannounced, hold - waited);
            }
            self.bytes -= incoming.size;
            self.frames.pop_front();
            cx.count(Counter::HoldExpired);
        }
    }

    /// Drops the frames of a join that has ended.
    pub(super) fn forget(&mut self, who: &Peer) {
        self.frames.retain(|(_, from, incoming)| {
            let stays = from != who;
            self.bytes -= if stays { 0 } else { incoming.size };
            stays
        });
    }

    /// Takes the frames of a join that is known now. Its Configuration is first, since it was sent first and the others
    /// may have to wait for it.
    pub(super) fn release(&mut self, id: &Identity, sid: &Sid) -> Vec<(Peer, Received)> {
        let (released, kept) = std::mem::take(&mut self.frames)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, from, _)| from.identity() == id && from.sid() == sid);
        self.frames = kept;
        self.bytes = self.frames.iter().map(|(_, _, incoming)| incoming.size).sum();
        let (first, rest): (Vec<_>, Vec<_>) = released
            .into_iter()
            .map(|(_, from, incoming)| (from, incoming))
            .partition(|(_, incoming)| matches!(incoming.message, Message::Configuration(_)));
        first.into_iter().chain(rest).collect()
    }
}
