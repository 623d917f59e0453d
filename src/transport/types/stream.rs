//! Defines the parts of a LiveKit stream: a byte stream carries a frame larger than one packet, a stream of text a request
//! or a result of LiveKit's RPC.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;

use super::{
    Form, Packet, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC,
    stream_hash::{STREAM_SHA256, sha256},
};

/// The topic of the byte streams that carry frames (`wire.md`, section 5.6).
pub const STREAM_TOPIC: &str = "toolbridge.frame";

/// The payload of one chunk, in bytes. LiveKit's own clients use the same size.
pub const STREAM_CHUNK: usize = 15_000;

/// One part of a stream: a header, then chunks, then a trailer, all on the reliable lane.
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

/// The header of a stream.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamHeader {
    /// The stream's id, unique per sender and sid. Another sender may use the same id.
    pub id: Arc<str>,
    /// The topic; [`STREAM_TOPIC`] for frames.
    pub topic: Cow<'static, str>,
    /// The announced payload size in bytes, if known. Of a compressed stream it is the size before compression.
    pub length: Option<u64>,
    /// Whether it carries bytes or text. Default: bytes.
    pub kind: StreamKind,
    /// Its attributes: at most 32, with at most 4 KiB. Default: none. A transport passes on at least [`STREAM_SHA256`], in
    /// both directions, and none of a trailer.
    pub attributes: BTreeMap<String, String>,
    /// The whole payload, if no chunk follows. Default: none.
    pub inline: Option<Bytes>,
    /// How the payload is compressed. Default: not at all.
    pub compression: Compression,
}

/// What a stream carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum StreamKind {
    /// Bytes.
    #[default]
    Bytes,
    /// Text in UTF-8.
    Text,
}

/// How the payload of a stream is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Compression {
    /// It is not compressed.
    #[default]
    None,
    /// It is one raw deflate stream (RFC 1951).
    Deflate,
    /// It is compressed in a way that toolbridge does not read.
    Other,
}

/// How a packet is sent as a stream of text.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TextStream {
    /// The attributes of its header. Default: none.
    pub attributes: BTreeMap<String, String>,
    /// The size of the text before compression, in bytes.
    pub length: u64,
    /// How the packet's payload is compressed. Default: not at all.
    pub compression: Compression,
    /// Whether the header carries the payload, and no chunk follows. Default: no.
    pub inline: bool,
}

impl TextStream {
    /// Creates a stream of a text of this many bytes, in chunks.
    pub fn new(length: usize) -> Self {
        Self { length: length as u64, ..Self::default() }
    }
}

impl StreamHeader {
    /// Creates a header.
    pub fn new(
        id: impl Into<Arc<str>>,
        topic: impl Into<Cow<'static, str>>,
        length: impl Into<Option<u64>>,
    ) -> Self {
        Self {
            id: id.into(),
            topic: topic.into(),
            length: length.into(),
            kind: StreamKind::Bytes,
            attributes: BTreeMap::new(),
            inline: None,
            compression: Compression::None,
        }
    }

    /// Returns true if the stream carries a frame.
    pub(crate) fn is_frame(&self) -> bool {
        self.topic == STREAM_TOPIC
            && self.kind == StreamKind::Bytes
            && self.inline.is_none()
            && self.compression == Compression::None
    }

    /// Returns true if the stream carries a request or a result of LiveKit's RPC.
    pub(crate) fn is_text(&self) -> bool {
        self.kind == StreamKind::Text && [RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC].contains(&&*self.topic)
    }

    /// Returns the bytes of its texts and of its payload.
    pub(crate) fn size(&self) -> usize {
        let attributes = self.attributes.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>();
        self.topic.len() + attributes + self.inline.as_ref().map_or(0, Bytes::len)
    }
}

impl fmt::Debug for StreamHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHeader")
            .field("id", &self.id)
            .field("topic", &self.topic)
            .field("length", &self.length)
            .field("kind", &self.kind)
            .field("attributes", &self.attributes.len())
            .field("inline", &self.inline.as_ref().map(Bytes::len))
            .field("compression", &self.compression)
            .finish()
    }
}

impl fmt::Debug for TextStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextStream")
            .field("attributes", &self.attributes.len())
            .field("length", &self.length)
            .field("compression", &self.compression)
            .field("inline", &self.inline)
            .finish()
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
            Self::Header(header) => header.inline.as_ref().map_or(0, Bytes::len),
            Self::Trailer { .. } => 0,
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

/// An iterator over the stream parts of a packet that is too large to be sent as one, or is a stream of text. Transports
/// with [`Capabilities::streams`](super::Capabilities::streams) send these parts in order.
#[derive(Clone, Debug)]
pub struct StreamParts {
    id: Arc<str>,
    /// Taken with the header.
    text: Option<(Cow<'static, str>, TextStream)>,
    payload: Bytes,
    /// Whether chunks end between characters.
    is_text: bool,
    /// The number of parts returned so far, including the header.
    taken: u64,
    ended: bool,
}

impl StreamParts {
    /// Creates the parts of this packet.
    pub fn of(packet: &Packet) -> Self {
        let text = match &packet.form {
            Form::Text(text) => Some((packet.topic.clone(), text.clone())),
            Form::Data | Form::Rpc(_) => None,
        };
        let is_text = text.as_ref().is_some_and(|(_, text)| text.compression == Compression::None);
        let payload = packet.payload.clone();
        Self { id: packet.stream_id(), text, payload, is_text, taken: 0, ended: false }
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

impl StreamParts {
    fn header(&mut self) -> StreamHeader {
        let Some((topic, text)) = self.text.take() else {
            return StreamHeader {
                attributes: BTreeMap::from([(STREAM_SHA256.to_owned(), sha256(&self.payload))]),
                ..StreamHeader::new(self.id.clone(), STREAM_TOPIC, self.payload.len() as u64)
            };
        };
        // A stream whose header has the payload has neither chunks nor a trailer.
        self.ended = text.inline;
        StreamHeader {
            kind: StreamKind::Text,
            attributes: text.attributes,
            inline: text.inline.then(|| std::mem::take(&mut self.payload)),
            compression: text.compression,
            ..StreamHeader::new(self.id.clone(), topic, text.length)
        }
    }

    /// Returns the length of the next chunk.
    fn chunk_length(&self) -> usize {
        let most = STREAM_CHUNK.min(self.payload.len());
        // LiveKit's SDKs read the text of each chunk by itself.
        let is_inside = |at: &usize| self.payload.get(*at).is_some_and(|byte| byte & 0xc0 == 0x80);
        match self.is_text {
            true => {
                (most.saturating_sub(3)..=most).rev().find(|at| *at > 0 && !is_inside(at)).unwrap_or(most)
            }
            false => most,
        }
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
            None => StreamPart::Header(self.header()),
            Some(index) if !self.payload.is_empty() => {
                let bytes = self.payload.split_to(self.chunk_length());
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
        assert_eq!(header.attributes[STREAM_SHA256], sha256(&[7; 30_001]));
        let sizes: Vec<_> = chunks.iter().map(StreamPart::size).collect();
        assert_eq!(sizes, [STREAM_CHUNK, STREAM_CHUNK, 1]);
        let in_order = chunks.iter().enumerate().all(
            |(n, chunk)| matches!(chunk, StreamPart::Chunk { id, index, .. } if *index == n as u64 && *id == header.id),
        );
        assert!(in_order, "{chunks:?}");
    }

    #[test]
    fn chunks_of_text_end_between_characters() {
        let text = format!("x{}", "ü€".repeat(10_000));
        let of = |stream| {
            let packet = Packet::text("b".into(), "t", text.clone(), stream);
            StreamParts::of(&packet).collect::<Vec<_>>()
        };
        let parts = of(TextStream::new(text.len()));
        let mut whole = String::new();
        for part in &parts {
            if let StreamPart::Chunk { bytes, .. } = part {
                assert!(bytes.len() > STREAM_CHUNK - 3 || parts.len() == 6);
                whole.push_str(std::str::from_utf8(bytes).unwrap());
            }
        }
        assert_eq!(whole, text);
        let inline = of(TextStream { inline: true, ..TextStream::new(text.len()) });
        let [StreamPart::Header(header)] = &inline[..] else { panic!("{inline:?}") };
        assert_eq!((header.kind, header.inline.as_deref()), (StreamKind::Text, Some(text.as_bytes())));
        // Not the text, but its compression, is cut.
        let compressed = of(TextStream { compression: Compression::Deflate, ..TextStream::new(1 << 20) });
        assert_eq!(compressed[1].size(), STREAM_CHUNK);
        assert!(matches!(&compressed[0], StreamPart::Header(it) if it.length == Some(1 << 20)));
        // Bytes that are no text are cut anywhere.
        let noise = Packet::text("b".into(), "t", vec![0x80; 20_000], TextStream::new(20_000));
        assert_eq!(StreamParts::of(&noise).map(|part| part.size()).sum::<usize>(), 20_000);
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
