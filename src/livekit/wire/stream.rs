//! Converts byte streams to and from LiveKit's format.
//!
//! This module only creates and reads parts; they are assembled where their senders are known.

use std::collections::HashMap;

use livekit_protocol::data_stream::{ByteHeader, CompressionType, Header, Trailer, header::ContentHeader};

use super::packet::{Chunk, DataPacket, Value, detached};
use crate::transport::{Packet, STREAM_CHUNK, Sid, StreamHeader, StreamPart, StreamParts};

/// The MIME type of a frame, as the header states it.
const MIME_TYPE: &str = "application/msgpack";

/// A packet that is sent as a stream, part by part.
#[derive(Debug)]
pub(crate) struct Outflow {
    parts: StreamParts,
    sid: String,
    to: Vec<String>,
}

impl Outflow {
    pub(crate) fn new(packet: &Packet, sid: &Sid) -> Self {
        let to = packet.to.iter().map(ToString::to_string).collect();
        Self { parts: StreamParts::of(packet), sid: sid.to_string(), to }
    }

    /// Returns the next part. Its number is set when it is written.
    pub(crate) fn next(&mut self) -> Option<DataPacket> {
        let part = self.parts.next()?;
        Some(self.packet(part))
    }

    /// Abandons the stream. Returns the trailer for its receivers, if they got its beginning.
    pub(crate) fn abandon(&mut self) -> Option<DataPacket> {
        let part = self.parts.abandon()?;
        Some(self.packet(part))
    }

    /// Returns a part of the largest possible size: a full chunk.
    pub(crate) fn largest(&self) -> DataPacket {
        let id = self.parts.id().clone();
        // Integers are written in as few bytes as they need, so the largest index makes the largest chunk.
        self.packet(StreamPart::Chunk { id, index: u64::MAX, bytes: vec![0; STREAM_CHUNK].into() })
    }

    fn packet(&self, part: StreamPart) -> DataPacket {
        DataPacket {
            participant_sid: self.sid.clone(),
            destination_identities: self.to.clone(),
            value: Some(written(part)),
            ..Default::default()
        }
    }
}

fn written(part: StreamPart) -> Value {
    match part {
        StreamPart::Header(header) => Value::StreamHeader(Header {
            stream_id: header.id.to_string(),
            topic: header.topic.into_owned(),
            mime_type: MIME_TYPE.to_owned(),
            total_length: header.length,
            content_header: Some(ContentHeader::ByteHeader(ByteHeader { name: header.id.to_string() })),
            ..Default::default()
        }),
        StreamPart::Chunk { id, index, bytes } => Value::StreamChunk(Chunk {
            stream_id: id.to_string(),
            chunk_index: index,
            content: bytes,
            ..Default::default()
        }),
        StreamPart::Trailer { id, reason } => {
            Value::StreamTrailer(Trailer { stream_id: id.to_string(), reason, attributes: HashMap::new() })
        }
    }
}

/// Reads a part, from a message of this size. Returns `None` for streams that carry no frames: those of text, those that
/// are compressed or encrypted, and those whose content is in the header.
pub(crate) fn read(value: Value, size: usize) -> Option<StreamPart> {
    match value {
        Value::StreamHeader(header) => {
            let is_text = !matches!(header.content_header, Some(ContentHeader::ByteHeader(_)));
            if is_text
                || header.compression != CompressionType::None as i32
                || header.inline_content.is_some()
            {
                return None;
            }
            let part = StreamHeader::new(header.stream_id, header.topic, header.total_length);
            Some(StreamPart::Header(part))
        }
        Value::StreamChunk(chunk) => {
            let is_encrypted = chunk.iv.is_some_and(|iv| !iv.is_empty());
            (!is_encrypted).then(|| StreamPart::Chunk {
                id: chunk.stream_id.into(),
                index: chunk.chunk_index,
                bytes: detached(chunk.content, size),
            })
        }
        Value::StreamTrailer(trailer) => {
            Some(StreamPart::Trailer { id: trailer.stream_id.into(), reason: trailer.reason })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::data_stream::TextHeader;
    use prost::Message;

    use super::*;
    use crate::livekit::wire::packet::{MAX_ENCODED, encoded_size};

    fn outflow(size: usize) -> Outflow {
        Outflow::new(&Packet::new(["phone".into()], vec![7; size]), &Sid::from("PA_1"))
    }

    #[test]
    fn written_message_reads_back() {
        let mut stream = outflow(20_000);
        let ours: Vec<_> = stream.parts.clone().collect();
        let mut read_again = Vec::new();
        while let Some(packet) = stream.next() {
            assert_eq!(
                (&packet.destination_identities[..], &*packet.participant_sid),
                (&["phone".to_owned()][..], "PA_1")
            );
            let packet = DataPacket::decode(&packet.encode_to_vec()[..]).unwrap();
            read_again.push(read(packet.value.unwrap(), 0).unwrap());
        }
        assert_eq!(read_again, ours);
        assert_eq!(ours.len(), 4);
    }

    #[test]
    fn stream_parts_respect_the_chunk_size() {
        let mut stream = outflow(2 * STREAM_CHUNK);
        let largest = encoded_size(&stream.largest());
        assert!(largest < MAX_ENCODED, "{largest}");
        while let Some(part) = stream.next() {
            assert!(encoded_size(&part) <= largest);
        }
    }

    #[test]
    fn abandoned_stream_is_reported_if_it_began() {
        assert!(outflow(20_000).abandon().is_none());
        let mut stream = outflow(20_000);
        stream.next();
        let Some(Value::StreamTrailer(trailer)) = stream.abandon().and_then(|packet| packet.value) else {
            panic!("no trailer")
        };
        assert!(!trailer.reason.is_empty());
        assert!(stream.next().is_none());
    }

    #[test]
    fn text_compressed_encrypted_and_inlined_streams_carry_no_frames() {
        let bytes = || Header {
            content_header: Some(ContentHeader::ByteHeader(ByteHeader::default())),
            ..Default::default()
        };
        assert!(read(Value::StreamHeader(bytes()), 0).is_some());
        let text = Some(ContentHeader::TextHeader(TextHeader::default()));
        for header in [
            Header { content_header: text, ..bytes() },
            Header { content_header: None, ..bytes() },
            Header { compression: CompressionType::DeflateRaw as i32, ..bytes() },
            Header { inline_content: Some(Vec::new()), ..bytes() },
        ] {
            assert_eq!(read(Value::StreamHeader(header), 0), None);
        }
        let encrypted = Chunk { iv: Some(vec![1].into()), ..Default::default() };
        assert_eq!(read(Value::StreamChunk(encrypted), 0), None);
    }
}
