//! A LiveKit byte stream, part by part: how a frame travels that is larger than one packet.

use std::{borrow::Cow, fmt, sync::Arc};

use bytes::Bytes;

use super::Packet;

/// The topic of the byte streams that carry frames (`wire.md`, section 5).
pub const STREAM_TOPIC: &str = "toolbridge.frame";

/// The payload of one part, in bytes: what LiveKit's own clients put into a chunk.
pub const STREAM_CHUNK: usize = 15_000;

/// One part of a byte stream. Its parts come in this order, all on the reliable lane.
#[derive(Clone, PartialEq, Eq)]
pub enum StreamPart {
    /// It begins.
    Header(StreamHeader),
    /// It goes on.
    Chunk {
        /// The stream's id.
        id: Arc<str>,
        /// Counts the chunks of this stream from 0.
        index: u64,
        /// The bytes.
        bytes: Bytes,
    },
    /// It ends.
    Trailer {
        /// The stream's id.
        id: Arc<str>,
        /// Why it ends before it is whole; empty if it is whole.
        reason: String,
    },
}

/// What a stream says of itself when it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamHeader {
    /// The stream's id: unique among those of its sender, in its join. Another sender may use the same.
    pub id: Arc<str>,
    /// The topic; [`STREAM_TOPIC`] for frames.
    pub topic: Cow<'static, str>,
    /// How many bytes it says that follow, if it says so.
    pub length: Option<u64>,
}

impl StreamHeader {
    /// The beginning of a stream on this topic.
    pub fn new(
        id: impl Into<Arc<str>>,
        topic: impl Into<Cow<'static, str>>,
        length: impl Into<Option<u64>>,
    ) -> Self {
        Self { id: id.into(), topic: topic.into(), length: length.into() }
    }
}

impl StreamPart {
    /// The id of the stream that it is a part of.
    pub fn id(&self) -> &Arc<str> {
        match self {
            Self::Header(StreamHeader { id, .. }) | Self::Chunk { id, .. } | Self::Trailer { id, .. } => id,
        }
    }

    /// How many bytes of payload it has.
    pub fn size(&self) -> usize {
        match self {
            Self::Chunk { bytes, .. } => bytes.len(),
            Self::Header(_) | Self::Trailer { .. } => 0,
        }
    }
}

impl fmt::Debug for StreamPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(header) => fmt::Debug::fmt(header, f),
            Self::Chunk { id, index, bytes } => f
                .debug_struct("Chunk")
                .field("id", id)
                .field("index", index)
                .field("bytes", &bytes.len())
                .finish(),
            Self::Trailer { id, reason } => {
                f.debug_struct("Trailer").field("id", id).field("reason", reason).finish()
            }
        }
    }
}

/// The parts of a packet that is too large to be one, in their order. A transport that has streams sends them so.
#[derive(Clone, Debug)]
pub struct StreamParts {
    id: Arc<str>,
    payload: Bytes,
    /// How many parts were taken: the header is the first.
    taken: u64,
    ended: bool,
}

impl StreamParts {
    /// The parts of this packet.
    pub fn of(packet: &Packet) -> Self {
        Self { id: packet.stream_id(), payload: packet.payload.clone(), taken: 0, ended: false }
    }

    /// The stream's id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Ends the stream early: the trailer that tells so, unless nothing was taken or all of it.
    pub fn abandon(&mut self) -> Option<StreamPart> {
        let begun = self.taken > 0 && !self.ended;
        self.ended = true;
        begun.then(|| StreamPart::Trailer { id: self.id.clone(), reason: ABANDONED.to_owned() })
    }
}

/// The reason in the trailer of a stream that its sender ended before it was whole.
const ABANDONED: &str = "abandoned";

impl Iterator for StreamParts {
    type Item = StreamPart;

    fn next(&mut self) -> Option<StreamPart> {
        if self.ended {
            return None;
        }
        let id = self.id.clone();
        let part = match self.taken.checked_sub(1) {
            None => StreamPart::Header(StreamHeader::new(id, STREAM_TOPIC, self.payload.len() as u64)),
            Some(index) if !self.payload.is_empty() => {
                let bytes = self.payload.split_to(STREAM_CHUNK.min(self.payload.len()));
                StreamPart::Chunk { id, index, bytes }
            }
            Some(_) => {
                self.ended = true;
                StreamPart::Trailer { id, reason: String::new() }
            }
        };
        self.taken += 1;
        Some(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(size: usize) -> Packet {
        Packet::new(["b".into()], vec![7; size])
    }

    #[test]
    fn a_frame_is_a_header_its_chunks_and_a_trailer() {
        let parts: Vec<_> = StreamParts::of(&packet(2 * STREAM_CHUNK + 1)).collect();
        let [StreamPart::Header(header), chunks @ .., StreamPart::Trailer { reason, .. }] = &parts[..] else {
            panic!("{parts:?}")
        };
        assert_eq!((&*header.topic, header.length, &**reason), (STREAM_TOPIC, Some(30_001), ""));
        let sizes: Vec<_> = chunks.iter().map(StreamPart::size).collect();
        assert_eq!(sizes, [STREAM_CHUNK, STREAM_CHUNK, 1]);
        let in_order = chunks.iter().enumerate().all(
            |(n, chunk)| matches!(chunk, StreamPart::Chunk { id, index, .. } if *index == n as u64 && *id == header.id),
        );
        assert!(in_order, "{chunks:?}");
    }

    #[test]
    fn an_abandoned_stream_ends_with_a_reason_and_only_if_it_began() {
        assert_eq!(StreamParts::of(&packet(20_000)).abandon(), None);
        let mut parts = StreamParts::of(&packet(20_000));
        parts.next();
        assert!(matches!(parts.abandon(), Some(StreamPart::Trailer { reason, .. }) if !reason.is_empty()));
        assert_eq!((parts.next(), parts.abandon()), (None, None));
        let mut whole = StreamParts::of(&packet(20_000));
        while whole.next().is_some() {}
        assert_eq!(whole.abandon(), None);
    }

    #[test]
    fn a_part_shows_its_length_and_not_its_bytes() {
        let part = StreamPart::Chunk { id: "s".into(), index: 3, bytes: Bytes::from_static(b"secret") };
        assert_eq!(format!("{part:?}"), r#"Chunk { id: "s", index: 3, bytes: 6 }"#);
    }
}
