//! Holds frames and messages of RPC that arrived before the server announced their senders.

use std::collections::VecDeque;

use crate::{
    clock::Instant,
    protocol::{
        frame::Message,
        session::{codec::Received, context::Context, stats::Counter, timers::Timer},
    },
    transport::{Identity, Peer, RpcMessage, Sid, StreamPart},
};

/// What an unannounced sender has sent.
#[derive(Debug)]
pub(crate) enum HeldItem {
    Frame(Received),
    /// A message of RPC.
    Rpc(RpcMessage),
    /// A part of a stream with a text of RPC.
    Part(StreamPart),
}

impl HeldItem {
    fn size(&self) -> usize {
        match self {
            Self::Frame(received) => received.size,
            Self::Rpc(message) => message.size(),
            Self::Part(StreamPart::Header(header)) => header.id.len() + header.size(),
            Self::Part(part) => part.id().len() + part.size(),
        }
    }

    fn is_goodbye(&self) -> bool {
        matches!(self, Self::Frame(received) if received.is_goodbye() && matches!(received.message, Message::ControlStop(_)))
    }

    fn is_configuration(&self) -> bool {
        matches!(self, Self::Frame(received) if matches!(received.message, Message::Configuration(_)))
    }
}

/// The frames and messages of RPC of unannounced senders, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct Held {
    items: VecDeque<(Instant, Peer, HeldItem)>,
    bytes: usize,
}

impl Held {
    /// Keeps an item until its sender is announced, for at most [`Times::hold`](crate::protocol::session::Times::hold).
    /// Without space it is dropped and counted.
    pub(super) fn hold(&mut self, cx: &mut Context, from: &Peer, item: HeldItem) {
        // It ends what its sender asked for before. Without space for it, these calls would start after it.
        if item.is_goodbye() {
            self.items.retain(|(_, it, item)| {
                let stays = it != from || item.is_configuration();
                self.bytes -= if stays { 0 } else { item.size() };
                stays
            });
        }
        let caps = &cx.config.caps;
        // By identity and not by join: a participant that rejoins again and again has a sid for each.
        let of_sender = self.items.iter().filter(|(_, it, _)| it.identity() == from.identity()).count();
        let is_full = self.items.len() >= caps.frames.held_frames_of_all
            || of_sender >= caps.frames.held_frames
            || self.bytes + item.size() > caps.frames.held_bytes;
        if is_full {
            return cx.count(Counter::HoldExpired);
        }
        cx.count(Counter::Held);
        self.bytes += item.size();
        self.items.push_back((cx.now, from.clone(), item));
        if !cx.timers.is_set(&Timer::Unannounced) {
            cx.set_timer(Timer::Unannounced, cx.config.times.hold);
        }
    }

    pub(super) fn has_frames_of(&self, id: &Identity) -> bool {
        let is_frame = |item: &HeldItem| matches!(item, HeldItem::Frame(_));
        self.items.iter().any(|(_, from, item)| from.identity() == id && is_frame(item))
    }

    /// Returns whether the header of this stream waits.
    pub(super) fn has_stream(&self, from: &Peer, id: &str) -> bool {
        let is_it = |item: &HeldItem| matches!(item, HeldItem::Part(StreamPart::Header(it)) if *it.id == *id);
        self.items.iter().any(|(_, it, item)| is_it(item) && it == from)
    }

    /// Drops the items that have waited too long.
    pub(super) fn expire(&mut self, cx: &mut Context) {
        let hold = cx.config.times.hold;
        while let Some((since, _, item)) = self.items.front() {
            let waited = cx.now.saturating_duration_since(*since);
            if waited < hold {
                return cx.set_timer(Timer::Unannounced, hold - waited);
            }
            self.bytes -= item.size();
            self.items.pop_front();
            cx.count(Counter::HoldExpired);
        }
    }

    /// Drops the items of a join that has ended.
    pub(super) fn forget(&mut self, who: &Peer) {
        self.items.retain(|(_, from, item)| {
            let stays = from != who;
            self.bytes -= if stays { 0 } else { item.size() };
            stays
        });
    }

    /// Takes the items of a join that is known now. Its Configuration is first, since it was sent first and the others
    /// may have to wait for it.
    pub(super) fn release(&mut self, id: &Identity, sid: &Sid) -> Vec<(Peer, HeldItem)> {
        let (released, kept) = std::mem::take(&mut self.items)
            .into_iter()
            .partition::<VecDeque<_>, _>(|(_, from, _)| from.identity() == id && from.sid() == sid);
        self.items = kept;
        self.bytes = self.items.iter().map(|(_, _, item)| item.size()).sum();
        let (first, rest): (Vec<_>, Vec<_>) = released
            .into_iter()
            .map(|(_, from, item)| (from, item))
            .partition(|(_, item)| item.is_configuration());
        first.into_iter().chain(rest).collect()
    }
}
