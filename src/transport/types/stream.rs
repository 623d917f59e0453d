//! Defines the parts of a LiveKit byte stream, which carries a frame larger than one packet.

use std::{borrow::Cow, fmt, sync::Arc};

use bytes::Bytes;

use super::Packet;

/// The topic of the byte streams that carry frames (`wire.md`, section 5.6).
pub const STREAM_TOPIC: &str = "toolbridge.frame";

/// The payload of one chunk, in bytes. LiveKit's own clients use the same size.
pub const STREAM_CHUNK: usize = 15_000;

/// One part of a byte stream: a header, then chunks, then a trailer, all on the reliable lane.
#[derive(Clone, PartialEq, Eq)]
pub enum StreamPart {
    /// Begins the stream.
    Header(StreamHeader),
    /// Carries a part of the payload.
    Chunk {
        /// The stream's id.
        id: Arc<str>,
        /// The chunk's index, from 0.
        index: u64,
        /// The payload of this chunk.
        bytes: Bytes,
    },
    /// Ends the stream.
    Trailer {
        /// The stream's id.
        id: Arc<str>,
        /// The reason if the stream was aborted; empty if it is complete.
        reason: String,
    },
}

/// The header of a byte stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamHeader {
    /// The stream's id, unique per sender and sid. Another sender may use the same id.
    pub id: Arc<str>,
    /// The topic; [`STREAM_TOPIC`] for frames.
    pub topic: Cow<'static, str>,
    /// The announced payload size in bytes, if known.
    pub length: Option<u64>,
}

impl StreamHeader {
    /// Creates a header.
    pub fn new(
        id: impl Into<Arc<str>>,
        topic: impl Into<Cow<'static, str>>,
        length: impl Into<Option<u64>>,
    ) -> Self {
        Self { id: id.into(), topic: topic.into(), length: length.into() }
    }
}

impl StreamPart {
    /// Returns the id of the stream.
    pub fn id(&self) -> &Arc<str> {
        match self {
            Self::Header(StreamHeader { id, .. }) | Self::Chunk { id, .. } | Self::Trailer { id, .. } => id,
        }
    }

    /// Returns the number of payload bytes in this part.
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

/// An iterator over the stream parts of a packet that is too large to be sent as one. Transports with
/// [`Capabilities::streams`](super::Capabilities::streams) send these parts in order.
#[derive(Clone, Debug)]
pub struct StreamParts {
    id: Arc<str>,
    payload: Bytes,
    /// The number of parts returned so far, including the header.
    taken: u64,
    ended: bool,
}

impl StreamParts {
    /// Creates the parts of this packet.
    pub fn of(packet: &Packet) -> Self {
        Self { id: packet.stream_id(), payload: packet.payload.clone(), taken: 0, ended: false }
    }

    /// Returns the stream's id.
    pub fn id(&self) -> &Arc<str> {
        &self.id
    }

    /// Aborts the stream. Returns the trailer to send, or `None` if the stream has not begun or is complete.
    pub fn abandon(&mut self) -> Option<StreamPart> {
        let begun = self.taken > 0 && !self.ended;
        self.ended = true;
        begun.then(|| StreamPart::Trailer { id: self.id.clone(), reason: ABANDONED.to_owned() })
    }
}

/// The reason in the trailer of a stream that its sender aborted.
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
    fn packet_is_split_into_header_chunks_and_trailer() {
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
    fn aborted_stream_has_a_trailer_with_reason_only_if_it_began() {
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
    fn debug_of_a_part_shows_its_size_but_no_payload() {
        let part = StreamPart::Chunk { id: "s".into(), index: 3, bytes: Bytes::from_static(b"secret") };
        assert_eq!(format!("{part:?}"), r#"Chunk { id: "s", index: 3, bytes: 6 }"#);
    }
}
