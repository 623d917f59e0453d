//! Frames that arrive in parts: byte streams, put together by sender and id (`wire.md`, section 5).

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bytes::Bytes;

use super::{Context, Counter, Delivery, Peers, STREAM_REFUSED};
use crate::{
    protocol::session::{
        codec::Malformed,
        timers::{Timer, later},
    },
    transport::{Identity, Peer, STREAM_TOPIC, StreamHeader, StreamPart},
};

/// The longest id of a stream, in bytes: a call's id and two numbers, with room for those of other programs.
const MAX_ID: usize = 256;

/// How often in a second one sender is told that there is no room for a stream.
const REFUSALS_PER_SECOND: u32 = 8;

/// A stream's sender, in its join, and id. Nobody else can change the stream.
type Key = (Peer, Arc<str>);

/// The streams that have begun.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: BTreeMap<Key, Inflow>,
    /// The bytes of all of them.
    bytes: usize,
    senders: BTreeMap<Identity, Sender>,
}

/// The streams of one sender.
#[derive(Clone, Copy, Debug, Default)]
struct Sender {
    open: usize,
    /// The bytes of all of them.
    bytes: usize,
    /// The bytes that they will have by their headers, or have if a header has no length.
    expected: usize,
}

/// A stream that has not ended.
struct Inflow {
    bytes: Vec<u8>,
    /// The longest that it may become, by its header and by what its sender may send.
    limit: usize,
    length: Option<u64>,
    /// The index of the next chunk.
    next: u64,
    began: Instant,
    heard_at: Instant,
}

impl Delivery {
    /// Handles a part of a stream. Returns the frame if it is whole. `is_trusted` says whether its sender may send large frames: it is
    /// the assistant, or owes an answer.
    pub(crate) fn handle_stream(
        &mut self,
        cx: &mut Context,
        peers: &mut Peers,
        from: &Peer,
        part: StreamPart,
        is_trusted: bool,
    ) -> Option<Bytes> {
        match part {
            StreamPart::Header(header) => {
                self.begin_stream(cx, peers, from, header, is_trusted);
                None
            }
            StreamPart::Chunk { id, index, bytes } => {
                self.extend_stream(cx, peers, &(from.clone(), id), index, &bytes);
                None
            }
            StreamPart::Trailer { id, reason } => self.end_stream(cx, peers, &(from.clone(), id), &reason),
        }
    }

    /// Gives up streams of which nothing arrived for too long, and those that take too long as a whole.
    pub(crate) fn expire_streams(&mut self, cx: &mut Context, peers: &mut Peers) {
        let (idle, whole) = (cx.config.times.stream_idle, cx.config.times.stream);
        let (mut silent, mut slow, mut next) = (Vec::new(), Vec::new(), None);
        for (key, it) in &self.streams.open {
            let due = later(it.heard_at, idle).min(later(it.began, whole));
            if due > cx.now {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
            } else if later(it.heard_at, idle) <= cx.now {
                silent.push(key.clone());
            } else {
                slow.push(key.clone());
            }
        }
        for key in silent {
            self.break_stream(cx, peers, &key, "it does not go on");
        }
        for key in slow {
            self.refuse_stream(cx, peers, &key, "it takes too long");
        }
        if let Some(next) = next {
            cx.set_timer(Timer::Streams, next.saturating_duration_since(cx.now));
        }
    }

    /// The connection is back: silence during the outage proves nothing.
    pub(crate) fn forgive_streams(&mut self, now: Instant) {
        self.streams.forgive(now);
    }

    /// Gives up a stream for which there is no room. Its sender may try again.
    ///
    /// A sender is told so a few times a second. It can send one frame at a time, so that an honest one is always told.
    fn refuse_stream(&mut self, cx: &mut Context, peers: &mut Peers, key: &Key, why: &str) {
        let id = key.0.identity();
        self.streams.close(key);
        tracing::debug!(from = %key.0, stream = %key.1, why, "a stream is refused");
        cx.complain(id, Counter::StreamRefused);
        if peers.admits_stream_report(cx, id, REFUSALS_PER_SECOND) {
            self.report_error(cx, peers, id, STREAM_REFUSED, why, Some(key.1.to_string()));
        }
    }

    fn begin_stream(
        &mut self,
        cx: &mut Context,
        peers: &mut Peers,
        from: &Peer,
        header: StreamHeader,
        is_trusted: bool,
    ) {
        let id = from.identity();
        if header.topic != STREAM_TOPIC {
            return; // an app's own: its chunks will find nothing here
        }
        if !peers.may_stream(cx, from) || header.id.len() > MAX_ID {
            return cx.complain(id, Counter::StreamRefused);
        }
        let key = (from.clone(), header.id);
        if self.streams.open.contains_key(&key) {
            return self.break_stream(cx, peers, &key, "it begins twice");
        }
        let caps = &cx.config.caps;
        let sender = self.streams.senders.get(id).copied().unwrap_or_default();
        let share = caps.stream_bytes / 2;
        let frame = if is_trusted { caps.max_frame } else { caps.max_frame_of_others.min(caps.max_frame) };
        let limit = frame.min(share);
        if sender.open >= caps.streams_per_peer {
            return self.refuse_stream(cx, peers, &key, "too many at once");
        }
        if header.length.is_some_and(|length| length > limit as u64) {
            tracing::debug!(%from, length = header.length, limit, "a stream too long is refused");
            cx.complain(id, Counter::StreamRefused);
            return peers.correct(cx, self, id, Malformed::default());
        }
        let expected = header.length.map_or(0, |length| length as usize);
        if sender.expected.saturating_add(expected) > share {
            return self.refuse_stream(cx, peers, &key, "the sender's share is taken");
        }
        let limit = header.length.map_or(limit, |length| length as usize);
        let (length, now) = (header.length, cx.now);
        let inflow = Inflow { bytes: Vec::new(), limit, length, next: 0, began: now, heard_at: now };
        self.streams.begin(key, inflow);
        peers.hear_part(cx, id);
        if !cx.timers.is_set(&Timer::Streams) {
            cx.set_timer(Timer::Streams, cx.config.times.stream_idle.min(cx.config.times.stream));
        }
    }

    fn extend_stream(&mut self, cx: &mut Context, peers: &mut Peers, key: &Key, index: u64, bytes: &[u8]) {
        let Some(inflow) = self.streams.open.get_mut(key) else {
            return cx.count(Counter::StreamUnknown);
        };
        if index < inflow.next {
            return cx.count(Counter::Duplicate);
        }
        if index > inflow.next {
            return self.break_stream(cx, peers, key, "a chunk is missing");
        }
        if inflow.bytes.len() + bytes.len() > inflow.limit {
            return self.break_stream(cx, peers, key, "it is longer than it may be");
        }
        let cap = cx.config.caps.stream_bytes;
        if self.streams.bytes + bytes.len() > cap {
            return self.refuse_stream(cx, peers, key, "all streams together are too many bytes");
        }
        inflow.take(cx.now, bytes);
        let is_open_ended = inflow.length.is_none();
        if self.streams.grow(key.0.identity(), bytes.len(), is_open_ended) > cap / 2 {
            return self.refuse_stream(cx, peers, key, "the sender's share is taken");
        }
        peers.hear_part(cx, key.0.identity());
    }

    fn end_stream(&mut self, cx: &mut Context, peers: &mut Peers, key: &Key, reason: &str) -> Option<Bytes> {
        let Some(inflow) = self.streams.open.get(key) else {
            cx.count(Counter::StreamUnknown);
            return None;
        };
        if !reason.is_empty() {
            self.streams.close(key);
            peers.hear_part(cx, key.0.identity());
            cx.count(Counter::StreamAbandoned);
            return None;
        }
        if inflow.length.is_some_and(|length| length != inflow.bytes.len() as u64) {
            self.break_stream(cx, peers, key, "it is shorter than its header says");
            return None;
        }
        self.streams.close(key)
    }

    fn break_stream(&mut self, cx: &mut Context, peers: &mut Peers, key: &Key, why: &str) {
        self.streams.close(key);
        tracing::debug!(from = %key.0, stream = %key.1, why, "a stream is given up");
        cx.complain(key.0.identity(), Counter::StreamBroken);
        peers.correct(cx, self, key.0.identity(), Malformed::default());
    }
}

impl Streams {
    /// Drops the streams of this identity: its pair of sids has ended.
    pub(super) fn forget(&mut self, id: &Identity) {
        let gone: Vec<_> = self.of(id).cloned().collect();
        for key in gone {
            self.close(&key);
        }
    }

    /// The connection is back: silence during the outage proves nothing.
    pub(super) fn forgive(&mut self, now: Instant) {
        for inflow in self.open.values_mut() {
            (inflow.began, inflow.heard_at) = (now, now);
        }
    }

    fn begin(&mut self, key: (Peer, Arc<str>), inflow: Inflow) {
        let sender = self.senders.entry(key.0.identity().clone()).or_default();
        sender.open += 1;
        sender.expected += inflow.expected();
        self.open.insert(key, inflow);
    }

    /// So many more bytes have arrived. Returns the bytes of all streams of their sender.
    fn grow(&mut self, id: &Identity, bytes: usize, is_open_ended: bool) -> usize {
        self.bytes += bytes;
        let Some(sender) = self.senders.get_mut(id) else { return 0 };
        sender.bytes += bytes;
        sender.expected += if is_open_ended { bytes } else { 0 };
        sender.bytes
    }

    fn of<'a>(&'a self, id: &'a Identity) -> impl Iterator<Item = &'a (Peer, Arc<str>)> {
        self.open.keys().filter(move |(from, _)| from.identity() == id)
    }

    fn close(&mut self, key: &(Peer, Arc<str>)) -> Option<Bytes> {
        let mut inflow = self.open.remove(key)?;
        self.bytes -= inflow.bytes.len();
        if let Some(sender) = self.senders.get_mut(key.0.identity()) {
            sender.open -= 1;
            sender.bytes -= inflow.bytes.len();
            sender.expected -= inflow.expected();
            if sender.open == 0 {
                self.senders.remove(key.0.identity());
            }
        }
        inflow.bytes.shrink_to_fit();
        Some(inflow.bytes.into())
    }
}

impl Inflow {
    /// Its length by its header, or its bytes so far if the header has none.
    fn expected(&self) -> usize {
        self.length.map_or(self.bytes.len(), |length| length as usize)
    }

    /// Memory is taken as bytes arrive, at most twice as much, and never by what the header says.
    fn take(&mut self, now: Instant, bytes: &[u8]) {
        let (len, more) = (self.bytes.len(), bytes.len());
        if self.bytes.capacity() - len < more {
            self.bytes.reserve_exact(len.min(self.limit - len).max(more));
        }
        self.bytes.extend_from_slice(bytes);
        self.next += 1;
        self.heard_at = now;
    }
}

impl std::fmt::Debug for Inflow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inflow")
            .field("bytes", &self.bytes.len())
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}
