//! Frames that come in parts: byte streams, put together by sender and id (`wire.md`, section 5).

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bytes::Bytes;

use super::{Counter, Session, Timer, codec, size::NO_ROOM, timers::later};
use crate::transport::{Identity, Peer, STREAM_TOPIC, StreamHeader, StreamPart};

/// The longest id of a stream, in bytes: a call's id and two numbers, with room for other makers'.
const MAX_ID: usize = 256;

/// How often in a second one sender is told that there is no room for a stream.
const TURNED_AWAY_PER_SECOND: u32 = 8;

/// The streams that have begun. Their key is who sends them, in which join: nobody else can touch them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: BTreeMap<(Peer, Arc<str>), Inflow>,
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
    /// The bytes that they will have by their headers, or have where the header says nothing.
    expected: usize,
}

/// A stream that has not ended.
struct Inflow {
    bytes: Vec<u8>,
    /// How long it may become: by its header's word, and by what its sender may send.
    limit: usize,
    length: Option<u64>,
    /// The index of the chunk that is due.
    next: u64,
    began: Instant,
    heard_at: Instant,
}

impl Session {
    /// A part of a stream came.
    pub(super) fn stream_part(&mut self, now: Instant, from: &Peer, part: StreamPart) {
        match part {
            StreamPart::Header(header) => self.stream_begins(now, from, header),
            StreamPart::Chunk { id, index, bytes } => {
                self.stream_goes_on(now, &(from.clone(), id), index, &bytes)
            }
            StreamPart::Trailer { id, reason } => self.stream_ends(now, &(from.clone(), id), &reason),
        }
    }

    /// Streams of which nothing came for too long are given up, and so are those that take too long as a whole.
    pub(super) fn streams_due(&mut self, now: Instant) {
        let (idle, whole) = (self.config.times.stream_idle, self.config.times.stream);
        let (mut silent, mut slow, mut next) = (Vec::new(), Vec::new(), None);
        for (key, it) in &self.streams.open {
            let due = later(it.heard_at, idle).min(later(it.began, whole));
            if due > now {
                next = Some(next.map_or(due, |next: Instant| next.min(due)));
            } else if later(it.heard_at, idle) <= now {
                silent.push(key.clone());
            } else {
                slow.push(key.clone());
            }
        }
        for key in silent {
            self.stream_breaks(now, &key, "it does not go on");
        }
        for key in slow {
            self.turn_away(now, &key, "it takes too long");
        }
        if let Some(next) = next {
            self.timers.set(now, Timer::Streams, next.saturating_duration_since(now));
        }
    }

    /// There is no room for a stream: it is given up, and its sender may try again.
    ///
    /// A sender is told so a few times a second. It can send one frame at a time, so that an honest one is always told.
    fn turn_away(&mut self, now: Instant, key: &(Peer, Arc<str>), why: &str) {
        let id = key.0.identity();
        self.streams.close(key);
        tracing::debug!(from = %key.0, stream = %key.1, why, "a stream is turned away");
        self.complain(now, id, Counter::StreamRefused);
        let told =
            self.peers.get_mut(id).is_some_and(|it| it.turned_away.admits(now, TURNED_AWAY_PER_SECOND));
        if told {
            self.say_error(id, NO_ROOM, why, Some(key.1.to_string()));
        }
    }

    fn stream_begins(&mut self, now: Instant, from: &Peer, header: StreamHeader) {
        let id = from.identity();
        if header.topic != STREAM_TOPIC {
            return; // an app's own: its chunks will find nothing here
        }
        if !self.may_stream(from) || header.id.len() > MAX_ID {
            return self.complain(now, id, Counter::StreamRefused);
        }
        let key = (from.clone(), header.id);
        if self.streams.open.contains_key(&key) {
            return self.stream_breaks(now, &key, "it begins twice");
        }
        let sender = self.streams.senders.get(id).copied().unwrap_or_default();
        let share = self.config.caps.stream_bytes / 2;
        let limit = self.frame_limit_from(id).min(share);
        if sender.open >= self.config.caps.streams_per_peer {
            return self.turn_away(now, &key, "too many at once");
        }
        if header.length.is_some_and(|length| length > limit as u64) {
            tracing::debug!(%from, length = header.length, limit, "a stream too long is refused");
            self.complain(now, id, Counter::StreamRefused);
            return self.correct(now, id, codec::Malformed::default());
        }
        let expected = header.length.map_or(0, |length| length as usize);
        if sender.expected.saturating_add(expected) > share {
            return self.turn_away(now, &key, "the sender's share is taken");
        }
        let limit = header.length.map_or(limit, |length| length as usize);
        let inflow =
            Inflow { bytes: Vec::new(), limit, length: header.length, next: 0, began: now, heard_at: now };
        self.streams.begin(key, inflow);
        self.heard_part(now, id);
        if !self.timers.is_set(&Timer::Streams) {
            let times = &self.config.times;
            self.timers.set(now, Timer::Streams, times.stream_idle.min(times.stream));
        }
    }

    fn stream_goes_on(&mut self, now: Instant, key: &(Peer, Arc<str>), index: u64, bytes: &[u8]) {
        let Some(inflow) = self.streams.open.get_mut(key) else {
            return self.stats.add(Counter::StreamStray, 1);
        };
        if index < inflow.next {
            return self.stats.add(Counter::Duplicate, 1);
        }
        if index > inflow.next {
            return self.stream_breaks(now, key, "a chunk is missing");
        }
        if inflow.bytes.len() + bytes.len() > inflow.limit {
            return self.stream_breaks(now, key, "it is longer than it may be");
        }
        let cap = self.config.caps.stream_bytes;
        if self.streams.bytes + bytes.len() > cap {
            return self.turn_away(now, key, "all streams together are too many bytes");
        }
        inflow.take(now, bytes);
        let is_open_ended = inflow.length.is_none();
        if self.streams.grow(key.0.identity(), bytes.len(), is_open_ended) > cap / 2 {
            return self.turn_away(now, key, "the sender's share is taken");
        }
        self.heard_part(now, key.0.identity());
    }

    fn stream_ends(&mut self, now: Instant, key: &(Peer, Arc<str>), reason: &str) {
        let Some(inflow) = self.streams.open.get(key) else {
            return self.stats.add(Counter::StreamStray, 1);
        };
        if !reason.is_empty() {
            self.streams.close(key);
            self.heard_part(now, key.0.identity());
            return self.stats.add(Counter::StreamAbandoned, 1);
        }
        if inflow.length.is_some_and(|length| length != inflow.bytes.len() as u64) {
            return self.stream_breaks(now, key, "it is shorter than it said");
        }
        let Some(frame) = self.streams.close(key) else { return };
        self.stats.add(Counter::FramesIn, 1);
        self.stats.add(Counter::BytesIn, frame.len());
        match codec::decode_whole(frame) {
            Ok(incoming) => self.accept(now, &key.0, incoming),
            Err(what) => self.malformed(now, key.0.identity(), what),
        }
    }

    fn stream_breaks(&mut self, now: Instant, key: &(Peer, Arc<str>), why: &str) {
        self.streams.close(key);
        tracing::debug!(from = %key.0, stream = %key.1, why, "a stream is given up");
        self.complain(now, key.0.identity(), Counter::StreamBroken);
        self.correct(now, key.0.identity(), codec::Malformed::default());
    }

    /// Whether a frame of this sender can come as a stream: a known peer of ours, where the room says it is.
    fn may_stream(&self, from: &Peer) -> bool {
        let id = from.identity();
        let is_known = |remote: &super::peer::Remote| {
            let is_where_it_says =
                remote.sid() == Some(from.sid()) || (from.sid().is_empty() && remote.is_here());
            is_where_it_says && !remote.pair.left && self.is_counterpart(id, remote)
        };
        !id.is_empty() && id != self.local.identity() && self.peers.get(id).is_some_and(is_known)
    }

    /// The largest frame that is taken from it: much from our assistant or who owes us an answer, else little.
    fn frame_limit_from(&self, id: &Identity) -> usize {
        let caps = &self.config.caps;
        let trusted = if self.is_client() {
            // Whoever may stream is a candidate.
            self.bound.as_ref().is_none_or(|bound| bound == id)
        } else {
            self.places_at(id) > 0 || self.past.remembers(id)
        };
        if trusted { caps.max_frame } else { caps.max_frame_of_others.min(caps.max_frame) }
    }

    /// Who sends a part is alive, however long the frame takes.
    fn heard_part(&mut self, now: Instant, id: &Identity) {
        if let Some(remote) = self.peers.get_mut(id) {
            remote.heard_at = now;
        }
    }
}

impl Streams {
    /// Nothing more is expected of this identity under the sids that it and we had.
    pub(super) fn forget(&mut self, id: &Identity) {
        let gone: Vec<_> = self.of(id).cloned().collect();
        for key in gone {
            self.close(&key);
        }
    }

    /// We were cut off: that nothing came meanwhile proves nothing.
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

    /// So many bytes more have come. Returns the bytes of all streams of their sender.
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
    /// How long it will be, by its header, or is, where the header does not say.
    fn expected(&self) -> usize {
        self.length.map_or(self.bytes.len(), |length| length as usize)
    }

    /// Memory is taken as bytes come, at most twice as much: never by the header's word.
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
