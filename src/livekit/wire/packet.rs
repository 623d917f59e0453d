//! Converts data packets to and from LiveKit's format.

use bytes::Bytes;
use livekit_protocol::data_stream::{Header, Trailer};
use prost::Message;

use super::{rpc, stream};
use crate::{
    livekit::e2ee::E2eeKeys,
    transport::{Form, Incoming, Lane, Packet, Peer, Sid, TransportEvent, Unreadable},
};

/// LiveKit's `DataPacket`, as far as toolbridge uses it. In contrast to `livekit_protocol`, payloads are [`Bytes`]: a received
/// one is a slice of the message, and one to be sent is shared until it is written.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DataPacket {
    #[prost(string, tag = "4")]
    pub(crate) participant_identity: String,
    #[prost(string, repeated, tag = "5")]
    pub(crate) destination_identities: Vec<String>,
    #[prost(uint32, tag = "16")]
    pub(crate) sequence: u32,
    #[prost(string, tag = "17")]
    pub(crate) participant_sid: String,
    #[prost(oneof = "Value", tags = "2, 10, 11, 12, 13, 14, 15, 18")]
    pub(crate) value: Option<Value>,
}

/// The content of a [`DataPacket`]. Other kinds are read as `None`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Value {
    #[prost(message, tag = "2")]
    User(UserPacket),
    #[prost(message, tag = "10")]
    RpcRequest(rpc::RpcRequest),
    #[prost(message, tag = "11")]
    RpcAck(rpc::RpcAck),
    #[prost(message, tag = "12")]
    RpcResponse(rpc::RpcResponse),
    #[prost(message, tag = "13")]
    StreamHeader(Header),
    #[prost(message, tag = "14")]
    StreamChunk(Chunk),
    #[prost(message, tag = "15")]
    StreamTrailer(Trailer),
    #[prost(message, tag = "18")]
    Encrypted(EncryptedPacket),
}

/// LiveKit's `UserPacket`. It has a nonce, too, which toolbridge never sets: the server drops a packet whose nonce was used before
/// in the room, by any sender.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct UserPacket {
    /// Set by older servers instead of the field in [`DataPacket`].
    #[prost(string, tag = "1")]
    pub(crate) participant_sid: String,
    /// Set by older servers instead of the field in [`DataPacket`].
    #[prost(string, tag = "5")]
    pub(crate) participant_identity: String,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) payload: Bytes,
    #[prost(string, optional, tag = "4")]
    pub(crate) topic: Option<String>,
}

/// LiveKit's `DataStream.Chunk`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Chunk {
    #[prost(string, tag = "1")]
    pub(crate) stream_id: String,
    #[prost(uint64, tag = "2")]
    pub(crate) chunk_index: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) content: Bytes,
    /// Set by older clients if the chunk is encrypted.
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub(crate) iv: Option<Bytes>,
}

/// LiveKit's `EncryptedPacket`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EncryptedPacket {
    /// The algorithm. LiveKit's SDK for browsers does not set it.
    #[prost(int32, tag = "1")]
    pub(crate) encryption_type: i32,
    /// The initialization vector.
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) iv: Bytes,
    #[prost(uint32, tag = "3")]
    pub(crate) key_index: u32,
    /// The content, followed by the authentication tag.
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) encrypted_value: Bytes,
}

/// The largest packet with its envelope: the server reads into 65,535 bytes, and a longer message
/// closes the channel, so LiveKit's own clients stop here.
pub(crate) const MAX_ENCODED: usize = 64_000;

/// Converts a packet that is not sent as a stream to LiveKit's format. The number of a reliable packet is set when it is written.
pub(crate) fn outgoing(packet: Packet, sid: &Sid) -> DataPacket {
    DataPacket {
        // Without the identity: the server writes both, and an identity here would only be overwritten.
        participant_sid: sid.to_string(),
        destination_identities: packet.to.iter().map(ToString::to_string).collect(),
        value: Some(match packet.form {
            Form::Rpc(message) => rpc::written(message),
            Form::Data | Form::Text(_) => Value::User(UserPacket {
                payload: packet.payload,
                topic: (!packet.topic.is_empty()).then(|| packet.topic.into_owned()),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}

/// Returns the largest size that a packet can have once it has its number.
pub(crate) fn encoded_size(packet: &DataPacket) -> usize {
    /// Two bytes of key and five of a 32-bit number.
    const SEQUENCE: usize = 7;
    packet.encoded_len() + SEQUENCE
}

/// A received packet: its number, its sender's sid and its content.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) sequence: u32,
    pub(crate) sid: Sid,
    pub(crate) event: TransportEvent,
}

/// The reason why a message on a data channel is ignored.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Skipped {
    /// It is not a packet.
    Malformed,
    /// It is a packet of another kind: speakers, transcription, a stream of text that carries no remote call.
    OtherKind,
    /// It is a part of a byte stream whose sender the server does not disclose: two senders could use the same id.
    StreamWithoutSender,
}

/// Reads a message. The sender is the one that the server has set. With a key, only encrypted packets are read. One that cannot be
/// read for that reason is an event, so that it is counted.
pub(crate) fn incoming(lane: Lane, bytes: Bytes, key: Option<&E2eeKeys>) -> Result<Heard, Skipped> {
    let size = bytes.len();
    let packet = DataPacket::decode(bytes).map_err(|_| Skipped::Malformed)?;
    let opened = match (packet.value, key) {
        (Some(Value::Encrypted(sealed)), Some(key)) => {
            key.open(&sealed).map_err(|_| Unreadable::Undecryptable)
        }
        (Some(Value::Encrypted(_)), None) => Err(Unreadable::Encrypted),
        (Some(_), Some(_)) => Err(Unreadable::NotEncrypted),
        (value, _) => Ok(value),
    };
    let value = match opened {
        Ok(value) => value,
        Err(why) => {
            let sid = Sid::from(packet.participant_sid);
            let from = Peer::disclosed(packet.participant_identity, sid.clone());
            return Ok(Heard {
                sequence: packet.sequence,
                sid,
                event: TransportEvent::Unreadable { from, why },
            });
        }
    };
    let user = match value {
        // The server cannot write the sender into encrypted content. Anybody with the key could write another one.
        Some(Value::User(user)) if key.is_some() => {
            UserPacket { participant_identity: String::new(), participant_sid: String::new(), ..user }
        }
        Some(Value::User(user)) => user,
        // LiveKit's SDKs send calls on `_reliable` only.
        Some(value @ (Value::RpcRequest(_) | Value::RpcAck(_) | Value::RpcResponse(_)))
            if lane == Lane::Reliable =>
        {
            let message = rpc::read(value, size).ok_or(Skipped::Malformed)?;
            let sid = Sid::from(packet.participant_sid);
            let from = Peer::disclosed(packet.participant_identity, sid.clone());
            let event = TransportEvent::Rpc { from, message };
            return Ok(Heard { sequence: packet.sequence, sid, event });
        }
        // LiveKit's streams are reliable and in order. Parts on `_lossy` would come in any order, and could
        // break a stream of the same id.
        Some(value) if lane == Lane::Reliable => {
            let part = stream::read(value, size).ok_or(Skipped::OtherKind)?;
            let sid = Sid::from(packet.participant_sid);
            let from = Peer::disclosed(packet.participant_identity, sid.clone())
                .ok_or(Skipped::StreamWithoutSender)?;
            let event = TransportEvent::Stream { from, part };
            return Ok(Heard { sequence: packet.sequence, sid, event });
        }
        _ => return Err(Skipped::OtherKind),
    };
    let (user_identity, user_sid) = (user.participant_identity, user.participant_sid);
    // The packet's fields first: newer servers set both, and the user packet's are the deprecated ones.
    let either = |first: String, second: String| if first.is_empty() { second } else { first };
    let sid = Sid::from(either(packet.participant_sid, user_sid));
    let from = Peer::disclosed(either(packet.participant_identity, user_identity), sid.clone());
    let topic = user.topic.unwrap_or_default();
    let event = TransportEvent::Packet(Incoming::new(from, lane, topic, detached(user.payload, size)));
    Ok(Heard { sequence: packet.sequence, sid, event })
}

/// Copies a payload that is less than half of its message of this size: as a slice it would keep the whole message in memory,
/// which is more than queues and tables count.
pub(crate) fn detached(payload: Bytes, size: usize) -> Bytes {
    if payload.len() < size / 2 { Bytes::copy_from_slice(&payload) } else { payload }
}

#[cfg(test)]
mod tests {
    use livekit_protocol::{ChatMessage, data_packet};

    use super::*;
    use crate::livekit::e2ee::E2eeKey;
    use crate::transport::{Identity, StreamPart, TOPIC};

    fn read(lane: Lane, packet: &DataPacket) -> Incoming {
        match incoming(lane, packet.encode_to_vec().into(), None).unwrap().event {
            TransportEvent::Packet(incoming) => incoming,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn stream_part_has_its_sender_and_is_never_lossy() {
        let part = Value::StreamTrailer(Trailer { stream_id: "s".into(), ..Default::default() });
        let packet = DataPacket {
            participant_identity: "phone".into(),
            participant_sid: "PA_1".into(),
            sequence: 7,
            value: Some(part),
            ..Default::default()
        };
        let heard = incoming(Lane::Reliable, packet.encode_to_vec().into(), None).unwrap();
        assert_eq!((heard.sequence, heard.sid), (7, Sid::from("PA_1")));
        let part = StreamPart::Trailer { id: "s".into(), reason: String::new() };
        assert_eq!(heard.event, TransportEvent::Stream { from: Peer::new("phone", "PA_1"), part });
        let lossy = incoming(Lane::Lossy, packet.encode_to_vec().into(), None);
        assert_eq!(lossy.unwrap_err(), Skipped::OtherKind);
    }

    #[test]
    fn packet_round_trips() {
        let sid = Sid::from("PA_1");
        let packet = outgoing(Packet::new([Identity::from("phone")], "hello"), &sid);
        assert_eq!(packet.destination_identities, ["phone"]);
        assert_eq!(packet.sequence, 0);
        let heard = read(Lane::Lossy, &packet);
        assert_eq!(heard.lane, Lane::Lossy);
        assert_eq!(heard.topic, TOPIC);
        assert_eq!(&heard.payload[..], b"hello");
    }

    /// The server drops a packet whose nonce was used before in the room, by any sender.
    #[test]
    fn sec_i9_nonce_that_others_could_use_first_is_never_set() {
        let sid = Sid::from("PA_1");
        let packets = [
            Packet::new([Identity::from("phone")], "hello"),
            Packet::new([Identity::from("phone"), "tv".into()], vec![7; 15_000]),
            Packet::broadcast("to all"),
        ];
        for packet in packets {
            // As it is written on the wire, with its number.
            let mut written = outgoing(packet, &sid);
            written.sequence = 9;
            let read = livekit_protocol::DataPacket::decode(&written.encode_to_vec()[..]).unwrap();
            let Some(data_packet::Value::User(user)) = read.value else { panic!("no packet of a user") };
            assert_eq!(user.nonce, Vec::<u8>::new());
        }
        // Parts of streams have no field for a nonce.
        let mut large = Packet::new([Identity::from("phone")], vec![7; 40_000]);
        large.stream = Some("s".into());
        let mut parts = stream::Outflow::new(&large, &sid);
        while let Some(part) = parts.next() {
            assert!(!matches!(part.value, Some(Value::User(_))));
        }
    }

    #[test]
    fn payload_is_a_slice_of_its_message_unless_that_is_much_larger() {
        let sid = Sid::from("PA_1");
        for (topic, is_slice) in [(10, true), (500, false)] {
            let mut packet = Packet::new([Identity::from("phone")], vec![7; 200]);
            packet.topic = "t".repeat(topic).into();
            let message = Bytes::from(outgoing(packet, &sid).encode_to_vec());
            let range = message.as_ptr_range();
            let TransportEvent::Packet(heard) = incoming(Lane::Lossy, message.clone(), None).unwrap().event
            else {
                panic!("no packet")
            };
            assert_eq!((&*heard.payload, range.contains(&heard.payload.as_ptr())), (&[7; 200][..], is_slice));
        }
    }

    #[test]
    fn packet_is_what_livekit_protocol_makes_of_it() {
        let stamped = livekit_protocol::DataPacket {
            participant_identity: "phone".into(),
            destination_identities: vec!["a".into(), "b".into()],
            sequence: 7,
            participant_sid: "PA_1".into(),
            value: Some(data_packet::Value::StreamChunk(livekit_protocol::data_stream::Chunk {
                stream_id: "s".into(),
                chunk_index: 3,
                content: vec![1, 2],
                #[expect(deprecated, reason = "older clients set it")]
                iv: Some(vec![9]),
                ..Default::default()
            })),
            ..Default::default()
        };
        let bytes = stamped.encode_to_vec();
        let read = DataPacket::decode(&bytes[..]).unwrap();
        assert_eq!(read.encode_to_vec(), bytes);
        let Some(Value::StreamChunk(chunk)) = read.value else { panic!("no chunk") };
        assert_eq!((&*chunk.content, chunk.iv.as_deref()), (&[1, 2][..], Some(&[9][..])));
    }

    #[test]
    fn packet_size_leaves_room_for_the_sequence_number() {
        let mut packet = outgoing(Packet::broadcast("hello"), &Sid::from("PA_1"));
        let size = encoded_size(&packet);
        packet.sequence = u32::MAX;
        assert!(packet.encoded_len() <= size);
    }

    #[test]
    fn older_sender_fields_are_read_if_the_newer_are_missing() {
        let user = UserPacket {
            participant_identity: "old".into(),
            participant_sid: "PA_0".into(),
            ..Default::default()
        };
        let mut packet = DataPacket { value: Some(Value::User(user)), ..Default::default() };
        let from = |packet: &DataPacket| read(Lane::Reliable, packet).from;
        assert_eq!(from(&packet), Some(Peer::new("old", "PA_0")));
        packet.participant_identity = "new".into();
        packet.participant_sid = "PA_1".into();
        assert_eq!(from(&packet), Some(Peer::new("new", "PA_1")));
    }

    #[test]
    fn other_packet_kinds_and_noise_are_distinguished() {
        assert_eq!(incoming(Lane::Reliable, vec![0xff; 9].into(), None).unwrap_err(), Skipped::Malformed);
        let value = Some(data_packet::Value::ChatMessage(ChatMessage::default()));
        let chat = livekit_protocol::DataPacket { value, ..Default::default() };
        assert_eq!(
            incoming(Lane::Reliable, chat.encode_to_vec().into(), None).unwrap_err(),
            Skipped::OtherKind
        );
        assert_eq!(incoming(Lane::Reliable, Bytes::new(), None).unwrap_err(), Skipped::OtherKind);
    }

    #[test]
    fn with_a_key_only_packets_encrypted_with_it_are_read() {
        let (key, sid) = (E2eeKeys::new(E2eeKey::new("secret")), Sid::from("PA_1"));
        let plain = outgoing(Packet::new([Identity::from("phone")], "hello"), &sid);
        let mut sealed = DataPacket { participant_identity: "tv".into(), ..plain.clone() };
        key.seal(&mut sealed).unwrap();
        let read = |packet: &DataPacket, key: Option<&E2eeKeys>| {
            incoming(Lane::Lossy, packet.encode_to_vec().into(), key).map(|heard| heard.event)
        };
        match read(&sealed, Some(&key)).unwrap() {
            TransportEvent::Packet(it) => {
                assert_eq!(
                    (it.from, &*it.topic, &it.payload[..]),
                    (Some(Peer::new("tv", "PA_1")), TOPIC, &b"hello"[..])
                );
            }
            other => panic!("{other:?}"),
        }
        let unreadable =
            |by: &str, why| TransportEvent::Unreadable { from: Some(Peer::new(by, "PA_1")), why };
        assert_eq!(read(&sealed, None).unwrap(), unreadable("tv", Unreadable::Encrypted));
        let plain = DataPacket { participant_identity: "tv".into(), ..plain };
        assert_eq!(read(&plain, Some(&key)).unwrap(), unreadable("tv", Unreadable::NotEncrypted));
        let other = E2eeKeys::new(E2eeKey::new("another"));
        assert_eq!(read(&sealed, Some(&other)).unwrap(), unreadable("tv", Unreadable::Undecryptable));
    }

    /// The server removes the sender of a hidden participant's packet, and cannot see what is inside.
    #[test]
    fn sec_i1_sender_inside_an_encrypted_packet_is_not_believed() {
        let key = E2eeKeys::new(E2eeKey::new("secret"));
        let user = UserPacket {
            participant_identity: "assistant".into(),
            participant_sid: "PA_9".into(),
            payload: Bytes::from_static(b"forged"),
            ..Default::default()
        };
        let mut packet = DataPacket { value: Some(Value::User(user)), ..Default::default() };
        key.seal(&mut packet).unwrap();
        let heard = incoming(Lane::Reliable, packet.encode_to_vec().into(), Some(&key)).unwrap();
        let TransportEvent::Packet(heard) = heard.event else { panic!("no packet") };
        assert_eq!((heard.from, &heard.payload[..]), (None, &b"forged"[..]));
    }

    #[test]
    fn parts_of_encrypted_streams_are_read() {
        let key = E2eeKeys::new(E2eeKey::new("secret"));
        let mut large = Packet::new([Identity::from("phone")], vec![7; 40_000]);
        large.stream = Some("s".into());
        let (mut parts, mut read) = (stream::Outflow::new(&large, &Sid::from("PA_1")), Vec::new());
        while let Some(mut part) = parts.next() {
            part.participant_identity = "tv".into();
            key.seal(&mut part).unwrap();
            let heard = incoming(Lane::Reliable, part.encode_to_vec().into(), Some(&key)).unwrap();
            let TransportEvent::Stream { part, .. } = heard.event else { panic!("no part") };
            read.push(part);
        }
        assert_eq!(read, crate::transport::StreamParts::of(&large).collect::<Vec<_>>());
    }
}
