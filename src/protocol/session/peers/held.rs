//! Holds frames and messages of RPC that arrived before the server announced their senders, and frames that arrived before
//! their senders' Configurations.

use std::collections::VecDeque;

use crate::{
    clock::Instant,
    protocol::{
        frame::Message,
        session::{Caps, codec::Received, context::Context, stats::Counter, timers::Timer},
    },
    transport::{Identity, Peer, RPC_RESPONSE_TOPIC, RpcMessage, StreamPart},
};

/// What a sender has sent that cannot be handled yet.
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

    fn message(&self) -> Option<&Message> {
        if let Self::Frame(received) = self { Some(&received.message) } else { None }
    }
}

/// The frames and messages of RPC of senders that are not known enough, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Held {
    items: VecDeque<Entry>,
    bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Entry {
    since: Instant,
    from: Peer,
    item: HeldItem,
    share: Share,
}

/// Items that have limits of their own. A sender's requests must not keep out what ends them, or what ends the local calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    Stop,
    /// An answer by RPC that is awaited. Only its owner knows the id of its request, and sends it once.
    Answer,
    Other,
}

impl Share {
    /// Returns the most items of one identity and of all.
    fn limits(self, caps: &Caps) -> (usize, usize) {
        match self {
            Self::Answer => (caps.calls.open_per_peer, usize::MAX),
            Self::Stop | Self::Other => (caps.frames.held_frames, caps.frames.held_frames_of_all),
        }
    }
}

impl Held {
    /// Keeps an item until its sender is known, for at most [`Times::hold`](crate::protocol::session::Times::hold), after which
    /// this timer drops it. Without space it is dropped and counted.
    pub(crate) fn hold(&mut self, cx: &mut Context, from: &Peer, item: HeldItem, timer: Timer) {
        // It ends what its sender asked for before, also if the sender turns out to be a plain peer, whose goodbye has no effect.
        if matches!(&item, HeldItem::Frame(received) if received.is_goodbye()) {
            let is_request = |it: &HeldItem| matches!(it.message(), Some(Message::ToolUseRequest(_)));
            self.drop_items(|it| it.from == *from && is_request(&it.item));
        }
        let share = self.share_of(from, &item);
        if !self.has_room(&cx.config.caps, from, share, item.size()) {
            return cx.count(Counter::HoldExpired);
        }
        cx.count(Counter::Held);
        self.bytes += item.size();
        self.items.push_back(Entry { since: cx.now, from: from.clone(), item, share });
        cx.set_timer(timer, cx.config.times.hold);
    }

    fn has_room(&self, caps: &Caps, from: &Peer, share: Share, size: usize) -> bool {
        let (most, most_of_all) = share.limits(caps);
        let alike = || self.items.iter().filter(|it| it.share == share);
        // By identity and not by join: a participant that rejoins again and again has a sid for each.
        alike().count() < most_of_all
            && alike().filter(|it| it.from.identity() == from.identity()).count() < most
            && (share == Share::Stop || self.bytes + size <= caps.frames.held_bytes)
    }

    fn share_of(&self, from: &Peer, item: &HeldItem) -> Share {
        let is_answer = match item {
            HeldItem::Frame(received) if received.is_small_stop() => return Share::Stop,
            HeldItem::Frame(_) => false,
            HeldItem::Rpc(message) => matches!(message, RpcMessage::Response(_)),
            HeldItem::Part(StreamPart::Header(header)) => header.topic == RPC_RESPONSE_TOPIC,
            HeldItem::Part(part) => {
                self.header_of(from, part.id()).is_some_and(|it| it.share == Share::Answer)
            }
        };
        if is_answer { Share::Answer } else { Share::Other }
    }

    pub(crate) fn has_frames_of(&self, id: &Identity) -> bool {
        self.items.iter().any(|it| it.from.identity() == id && matches!(it.item, HeldItem::Frame(_)))
    }

    /// Returns the header of this stream if it waits.
    pub(crate) fn header_of(&self, from: &Peer, id: &str) -> Option<&Entry> {
        let is_it = |item: &HeldItem| matches!(item, HeldItem::Part(StreamPart::Header(it)) if *it.id == *id);
        self.items.iter().find(|it| is_it(&it.item) && it.from == *from)
    }

    /// Drops the items that have waited too long. This timer drops the next ones.
    pub(crate) fn expire(&mut self, cx: &mut Context, timer: Timer) {
        let hold = cx.config.times.hold;
        while let Some(first) = self.items.front() {
            let waited = cx.now.saturating_duration_since(first.since);
            if waited < hold {
                return cx.set_timer(timer, hold - waited);
            }
            self.bytes -= first.item.size();
            self.items.pop_front();
            cx.count(Counter::HoldExpired);
        }
    }

    /// Drops the items of a join that has ended.
    pub(super) fn forget(&mut self, who: &Peer) {
        self.drop_items(|it| it.from == *who);
    }

    /// Drops all items of this sender.
    pub(super) fn forget_all(&mut self, id: &Identity) {
        self.drop_items(|it| it.from.identity() == id);
    }

    /// Returns whether a frame of this sender waits that is no result.
    pub(super) fn has_speech_of(&self, id: &Identity) -> bool {
        let is_result = |item: &HeldItem| matches!(item.message(), Some(Message::ToolUseResult(_)));
        self.items.iter().any(|it| it.from.identity() == id && !is_result(&it.item))
    }

    fn drop_items(&mut self, is_dropped: impl Fn(&Entry) -> bool) {
        self.items.retain(|it| {
            let stays = !is_dropped(it);
            self.bytes -= if stays { 0 } else { it.item.size() };
            stays
        });
    }

    /// Takes the items of a join that is known now. Its Configuration is first, since it was sent first and the others
    /// may have to wait for it. Stops of calls follow, so that no tool starts whose stop has arrived.
    pub(crate) fn release(&mut self, who: &Peer) -> Vec<(Peer, HeldItem)> {
        let (released, kept) =
            std::mem::take(&mut self.items).into_iter().partition::<VecDeque<_>, _>(|it| it.from == *who);
        self.items = kept;
        self.bytes = self.items.iter().map(|it| it.item.size()).sum();
        let mut released: Vec<_> = released.into_iter().map(|it| (it.from, it.item)).collect();
        released.sort_by_key(|(_, item)| match item.message() {
            Some(Message::Configuration(_)) => 0,
            Some(Message::ControlStop(stop)) if stop.target_id.is_some() => 1,
            _ => 2,
        });
        released
    }
}
