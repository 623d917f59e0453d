//! Converts byte streams to and from LiveKit's format.
//!
//! This module only creates and reads parts; they are assembled where their senders are known.

use std::collections::HashMap;

use bytes::Bytes;
use livekit_protocol::data_stream::{
    ByteHeader, CompressionType, Header, TextHeader, Trailer, header::ContentHeader,
};

use super::packet::{Chunk, DataPacket, Value, detached};
use crate::transport::{
    Compression, Packet, RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC, STREAM_CHUNK, STREAM_SHA256, Sid,
    StreamHeader, StreamKind, StreamPart, StreamParts,
};

/// The MIME type of a frame, as the header states it.
const MIME_TYPE: &str = "application/msgpack";

/// The MIME type of a request or result of RPC.
const TEXT_MIME_TYPE: &str = "text/plain";

/// The largest number of attributes of a header: RPC has four.
const ATTRIBUTES: usize = 32;

/// The largest size of the attributes of a header, in bytes.
const ATTRIBUTES_SIZE: usize = 4 * 1024;

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
            mime_type: match header.kind {
                StreamKind::Bytes => MIME_TYPE.to_owned(),
                StreamKind::Text => TEXT_MIME_TYPE.to_owned(),
            },
            total_length: header.length,
            attributes: header.attributes.into_iter().collect(),
            inline_content: header.inline.map(Vec::from),
            compression: match header.compression {
                Compression::Deflate => CompressionType::DeflateRaw.into(),
                Compression::None | Compression::Other => CompressionType::None.into(),
            },
            content_header: Some(match header.kind {
                StreamKind::Bytes => ContentHeader::ByteHeader(ByteHeader { name: header.id.to_string() }),
                StreamKind::Text => ContentHeader::TextHeader(TextHeader::default()),
            }),
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

/// Reads a part, from a message of this size. Returns `None` for streams that carry neither frames nor RPC: other streams of
/// text, and byte streams that are compressed or encrypted or whose content is in the header.
pub(crate) fn read(value: Value, size: usize) -> Option<StreamPart> {
    match value {
        Value::StreamHeader(header) => {
            let kind = match header.content_header {
                Some(ContentHeader::ByteHeader(_)) => StreamKind::Bytes,
                Some(ContentHeader::TextHeader(_)) => StreamKind::Text,
                None => return None,
            };
            let size_of = |(key, value): (&String, &String)| key.len() + value.len();
            let attributes = header.attributes.iter().map(size_of).sum::<usize>();
            let is_read = match kind {
                StreamKind::Bytes => {
                    header.compression == CompressionType::None as i32 && header.inline_content.is_none()
                }
                StreamKind::Text => {
                    [RPC_REQUEST_TOPIC, RPC_RESPONSE_TOPIC].contains(&&*header.topic)
                        && header.attributes.len() <= ATTRIBUTES
                        && attributes <= ATTRIBUTES_SIZE
                }
            };
            if !is_read {
                return None;
            }
            let mut part = StreamHeader::new(header.stream_id, header.topic, header.total_length);
            if kind == StreamKind::Bytes {
                // Nothing else is read of it.
                part.attributes =
                    header.attributes.into_iter().filter(|(key, _)| key == STREAM_SHA256).collect();
            } else {
                part.kind = kind;
                part.attributes = header.attributes.into_iter().collect();
                part.inline = header.inline_content.map(Bytes::from);
                part.compression = match CompressionType::try_from(header.compression) {
                    Ok(CompressionType::None) => Compression::None,
                    Ok(CompressionType::DeflateRaw) => Compression::Deflate,
                    Err(_) => Compression::Other,
                };
            }
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
    use prost::Message;

    use super::*;
    use crate::{
        livekit::wire::packet::{MAX_ENCODED, encoded_size},
        transport::TextStream,
    };

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
        assert!(matches!(&ours[0], StreamPart::Header(it) if it.attributes[STREAM_SHA256].len() == 64));
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
    fn stream_of_text_is_what_livekit_protocol_makes_of_it_and_is_read_back() {
        for (inline, compression) in [(true, Compression::None), (false, Compression::Deflate)] {
            let mut stream = TextStream::new(40_000);
            (stream.inline, stream.compression) = (inline, compression);
            stream.attributes.insert("lk.rpc_request_id".into(), "r1".into());
            let mut packet = Packet::text("phone".into(), RPC_RESPONSE_TOPIC, vec![b'7'; 20_000], stream);
            packet.stream = Some("s".into());
            let mut parts = Outflow::new(&packet, &Sid::from("PA_1"));
            let bytes = parts.next().unwrap().encode_to_vec();
            let theirs = livekit_protocol::DataPacket::decode(&bytes[..]).unwrap();
            let Some(livekit_protocol::data_packet::Value::StreamHeader(header)) = theirs.value else {
                panic!("no header")
            };
            assert!(matches!(header.content_header, Some(ContentHeader::TextHeader(_))));
            assert_eq!((&*header.topic, &*header.mime_type), ("lk.rpc_response", "text/plain"));
            assert_eq!((header.total_length, &*header.attributes["lk.rpc_request_id"]), (Some(40_000), "r1"));
            assert_eq!(header.compression, i32::from(compression == Compression::Deflate));
            assert_eq!(header.inline_content.map(|it| it.len()), inline.then_some(20_000));
            let ours = DataPacket::decode(&bytes[..]).unwrap();
            let Some(StreamPart::Header(read)) = read(ours.value.unwrap(), 0) else { panic!("not read") };
            assert_eq!((read.kind, read.compression), (StreamKind::Text, compression));
            assert_eq!(
                (read.inline.map(|it| it.len()), read.attributes.len()),
                (inline.then_some(20_000), 1)
            );
            let rest = std::iter::from_fn(|| parts.next()).count();
            assert_eq!(rest, if inline { 0 } else { 3 }, "two chunks and a trailer");
        }
    }

    #[test]
    fn other_streams_of_text_and_those_with_too_many_attributes_are_not_read() {
        let header = |topic: &str, count: usize, size: usize| Header {
            topic: topic.into(),
            attributes: (0..count).map(|n| (n.to_string(), "v".repeat(size))).collect(),
            content_header: Some(ContentHeader::TextHeader(TextHeader::default())),
            ..Default::default()
        };
        for (topic, count, size, is_read) in [
            (RPC_REQUEST_TOPIC, 32, 10, true),
            (RPC_RESPONSE_TOPIC, 4, 1_000, true),
            (RPC_REQUEST_TOPIC, 33, 10, false),
            (RPC_REQUEST_TOPIC, 4, 1_100, false),
            ("lk.chat", 0, 0, false),
        ] {
            let part = read(Value::StreamHeader(header(topic, count, size)), 0);
            assert_eq!(part.is_some(), is_read, "{topic} {count} {size}");
        }
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
