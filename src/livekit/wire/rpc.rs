//! Converts the messages of LiveKit's RPC to and from LiveKit's format.

use bytes::Bytes;
use prost::Message;

use super::packet::{Value, detached};
use crate::transport;

/// LiveKit's `RpcRequest`. The payload is not checked to be UTF-8 here: its callee answers one that is not.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcRequest {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
    #[prost(string, tag = "2")]
    pub(crate) method: String,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) payload: Bytes,
    #[prost(uint32, tag = "4")]
    pub(crate) response_timeout_ms: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) version: u32,
    /// No SDK sets it.
    #[prost(bytes = "bytes", tag = "6")]
    pub(crate) compressed_payload: Bytes,
}

/// LiveKit's `RpcAck`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcAck {
    #[prost(string, tag = "1")]
    pub(crate) request_id: String,
}

/// LiveKit's `RpcResponse`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcResponse {
    #[prost(string, tag = "1")]
    pub(crate) request_id: String,
    #[prost(oneof = "Outcome", tags = "2, 3, 4")]
    pub(crate) outcome: Option<Outcome>,
}

/// The content of an [`RpcResponse`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum Outcome {
    #[prost(bytes = "bytes", tag = "2")]
    Payload(Bytes),
    #[prost(message, tag = "3")]
    Error(RpcError),
    /// No SDK sets it.
    #[prost(bytes = "bytes", tag = "4")]
    Compressed(Bytes),
}

/// LiveKit's `RpcError`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RpcError {
    #[prost(uint32, tag = "1")]
    pub(crate) code: u32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
    #[prost(string, tag = "3")]
    pub(crate) data: String,
}

/// Returns the content of a packet with this message.
pub(super) fn written(message: transport::RpcMessage) -> Value {
    match message {
        transport::RpcMessage::Request(it) => Value::RpcRequest(RpcRequest {
            id: it.id,
            method: it.method,
            payload: it.payload,
            response_timeout_ms: it.timeout_ms,
            version: it.version,
            compressed_payload: Bytes::new(),
        }),
        transport::RpcMessage::Ack { id } => Value::RpcAck(RpcAck { request_id: id }),
        transport::RpcMessage::Response(it) => Value::RpcResponse(RpcResponse {
            request_id: it.id,
            outcome: Some(match it.outcome {
                Ok(payload) => Outcome::Payload(payload),
                Err(transport::RpcError { code, message, data }) => {
                    Outcome::Error(RpcError { code, message, data })
                }
            }),
        }),
    }
}

/// Reads a message, from a packet of this size. Returns `None` for other content and for compressed payloads, which no SDK
/// sends.
pub(super) fn read(value: Value, size: usize) -> Option<transport::RpcMessage> {
    Some(match value {
        Value::RpcRequest(it) if it.compressed_payload.is_empty() => {
            let payload = detached(it.payload, size);
            let mut request = transport::RpcRequest::new(it.id, it.method, payload, it.response_timeout_ms);
            request.version = it.version;
            transport::RpcMessage::Request(request)
        }
        Value::RpcAck(it) => transport::RpcMessage::Ack { id: it.request_id },
        Value::RpcResponse(it) => {
            let outcome = match it.outcome {
                Some(Outcome::Payload(payload)) => Ok(detached(payload, size)),
                Some(Outcome::Error(it)) => Err(transport::RpcError::new(it.code, it.message, it.data)),
                // An empty text is not written.
                None => Ok(Bytes::new()),
                Some(Outcome::Compressed(_)) => return None,
            };
            transport::RpcMessage::Response(transport::RpcResponse::new(it.request_id, outcome))
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use livekit_protocol::{data_packet, rpc_response};

    use super::*;
    use crate::{
        livekit::wire::packet::{DataPacket, incoming, outgoing},
        transport::{Lane, Packet, Peer, RpcMessage, TransportEvent},
    };

    fn messages() -> Vec<(RpcMessage, data_packet::Value)> {
        let mut request = transport::RpcRequest::new("r1", "getBattery", r#"{"unit": "%"}"#, 15_000);
        request.version = 1;
        let response = |outcome| RpcMessage::Response(transport::RpcResponse::new("r1", outcome));
        let theirs = |value| {
            data_packet::Value::RpcResponse(livekit_protocol::RpcResponse {
                request_id: "r1".into(),
                value: Some(value),
            })
        };
        vec![
            (
                RpcMessage::Request(request),
                data_packet::Value::RpcRequest(livekit_protocol::RpcRequest {
                    id: "r1".into(),
                    method: "getBattery".into(),
                    payload: r#"{"unit": "%"}"#.into(),
                    response_timeout_ms: 15_000,
                    version: 1,
                    ..Default::default()
                }),
            ),
            (
                RpcMessage::Ack { id: "r1".into() },
                data_packet::Value::RpcAck(livekit_protocol::RpcAck { request_id: "r1".into() }),
            ),
            (response(Ok("0.8".into())), theirs(rpc_response::Value::Payload("0.8".into()))),
            (
                response(Err(transport::RpcError::new(1500, "failed", "{}"))),
                theirs(rpc_response::Value::Error(livekit_protocol::RpcError {
                    code: 1500,
                    message: "failed".into(),
                    data: "{}".into(),
                })),
            ),
        ]
    }

    #[test]
    fn message_is_what_livekit_protocol_makes_of_it_and_is_read_back() {
        for (message, value) in messages() {
            let mut packet = outgoing(Packet::rpc("caller".into(), message.clone()), &"PA_1".into());
            packet.participant_identity = "phone".into();
            let theirs = livekit_protocol::DataPacket {
                participant_identity: "phone".into(),
                participant_sid: "PA_1".into(),
                destination_identities: vec!["caller".into()],
                value: Some(value),
                ..Default::default()
            };
            let bytes = Bytes::from(packet.encode_to_vec());
            assert_eq!(bytes, theirs.encode_to_vec(), "{message:?}");
            let heard = incoming(Lane::Reliable, bytes.clone(), None).unwrap();
            let from = Some(Peer::new("phone", "PA_1"));
            assert_eq!(heard.event, TransportEvent::Rpc { from, message });
            assert!(incoming(Lane::Lossy, bytes, None).is_err());
        }
    }

    #[test]
    fn compressed_payloads_are_not_read() {
        let request = RpcRequest { compressed_payload: "x".into(), ..Default::default() };
        assert_eq!(read(Value::RpcRequest(request), 0), None);
        let response = RpcResponse { outcome: Some(Outcome::Compressed("x".into())), ..Default::default() };
        assert_eq!(read(Value::RpcResponse(response), 0), None);
    }

    #[test]
    fn payload_that_is_not_utf_8_is_passed_on() {
        let request = RpcRequest { id: "r".into(), payload: vec![0xff].into(), ..Default::default() };
        let packet = DataPacket { value: Some(Value::RpcRequest(request)), ..Default::default() };
        let heard = incoming(Lane::Reliable, packet.encode_to_vec().into(), None).unwrap();
        let TransportEvent::Rpc { from: None, message: RpcMessage::Request(read) } = heard.event else {
            panic!("no request")
        };
        assert_eq!((&*read.payload, read.version), (&[0xff][..], 0));
    }
}
