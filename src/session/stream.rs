//! Frames that come in parts: byte streams, put together by sender and id (`wire.md`, section 5).

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use bytes::Bytes;

use super::{Counter, Session, Timer, codec};
use crate::link::{Identity, Peer, STREAM_TOPIC, StreamHeader, StreamPart};

/// The longest id of a stream, in bytes: a call's id and two numbers, with room for other makers'.
const MAX_ID: usize = 256;

/// The streams that have begun. Their key is who sends them, in which join: nobody else can touch them.
#[derive(Debug, Default)]
pub(super) struct Streams {
    open: BTreeMap<(Peer, Arc<str>), Inflow>,
    /// The bytes of all of them.
    bytes: usize,
}

/// A stream that has not ended.
struct Inflow {
    bytes: Vec<u8>,
    /// How long it may become: by its header's word, and by what its sender may send.
    limit: usize,
    length: Option<u64>,
    /// The index of the chunk that is due.
    next: u64,
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

    /// Streams of which nothing came for too long are given up.
    pub(super) fn streams_idle(&mut self, now: Instant) {
        let idle = self.config.times.stream_idle;
        let is_idle = |it: &Inflow| now.saturating_duration_since(it.heard_at) >= idle;
        let given_up: Vec<_> =
            self.streams.open.iter().filter(|(_, it)| is_idle(it)).map(|(key, _)| key.clone()).collect();
        for key in given_up {
            self.stream_breaks(now, &key, "it does not go on");
        }
        if let Some(oldest) = self.streams.open.values().map(|it| it.heard_at).min() {
            let waited = now.saturating_duration_since(oldest);
            self.timers.set(now, Timer::Streams, idle.saturating_sub(waited));
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
        let at_once = self.streams.of(id).count();
        let limit = self.frame_limit_from(id);
        if at_once >= self.config.caps.streams_per_peer {
            tracing::debug!(%from, at_once, "a stream too many is refused");
            return self.complain(now, id, Counter::StreamRefused);
        }
        if header.length.is_some_and(|length| length > limit as u64) {
            tracing::debug!(%from, length = header.length, limit, "a stream too long is refused");
            self.complain(now, id, Counter::StreamRefused);
            return self.correct(now, id, codec::Malformed::default());
        }
        let limit = header.length.map_or(limit, |length| length as usize);
        let inflow = Inflow { bytes: Vec::new(), limit, length: header.length, next: 0, heard_at: now };
        self.streams.open.insert(key, inflow);
        self.heard_part(now, id);
        if !self.timers.is_set(&Timer::Streams) {
            self.timers.set(now, Timer::Streams, self.config.times.stream_idle);
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
        if self.streams.bytes + bytes.len() > self.config.caps.stream_bytes {
            self.streams.close(key);
            tracing::debug!(from = %key.0, "no room for a stream");
            return self.complain(now, key.0.identity(), Counter::StreamRefused);
        }
        inflow.take(now, bytes);
        self.streams.bytes += bytes.len();
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
            inflow.heard_at = now;
        }
    }

    fn of<'a>(&'a self, id: &'a Identity) -> impl Iterator<Item = &'a (Peer, Arc<str>)> {
        self.open.keys().filter(move |(from, _)| from.identity() == id)
    }

    fn close(&mut self, key: &(Peer, Arc<str>)) -> Option<Bytes> {
        let mut inflow = self.open.remove(key)?;
        self.bytes -= inflow.bytes.len();
        inflow.bytes.shrink_to_fit();
        Some(inflow.bytes.into())
    }
}

impl Inflow {
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
