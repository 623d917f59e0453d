//! Records the messages of LiveKit's RPC as the frames that they mean (`wire.md`, section 10): a request as type 6, an
//! acknowledgement as type 8, an answer as type 7. So everything that reads, checks or redacts frames reads them, too. They
//! have a topic of their own.

use bytes::Bytes;

use super::Direction;
use crate::{
    protocol::{
        frame::{Acknowledgement, Frame, Message, Meta, ToolUseRequest, ToolUseResult},
        rpc::{self, Reply, RpcCall},
    },
    tool::{CallId, ErrorCode, Execution, ToolError},
    transport::{Compression, Peer, RPC_REQUEST_TOPIC, RpcError, RpcMessage, RpcResponse, StreamHeader},
    value::Value,
};

/// The topic of these frames in a recording. No packet in a room has it.
pub(crate) const TOPIC: &str = "lk.rpc";

/// The stanza of these frames: RPC has none, and a frame needs one.
const STANZA: i32 = 1;

/// The version of the request, in a frame's `meta`.
const VERSION: &str = "rpc.version";

/// The code of an error, in a frame's `meta`.
const CODE: &str = "rpc.code";

/// A message or a text of RPC, as it was sent or received.
#[derive(Clone, Debug)]
pub(super) enum RpcRecord {
    Message(RpcMessage),
    /// A whole stream of text: its header without the payload, and the payload as it travelled.
    Text(Box<StreamHeader>, Bytes),
}

impl RpcRecord {
    /// Returns its bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Message(message) => message.size(),
            Self::Text(header, payload) => header.size() + payload.len(),
        }
    }

    /// Returns the id of the request that it is or belongs to.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Message(RpcMessage::Request(it)) => &it.id,
            Self::Message(RpcMessage::Ack { id }) => id,
            Self::Message(RpcMessage::Response(it)) => &it.id,
            Self::Text(header, _) => rpc::answered_id(header),
        }
    }

    /// Returns whether it is a request that only asks whether its receiver is alive.
    pub(super) fn is_ping(&self) -> bool {
        matches!(self, Self::Message(RpcMessage::Request(it)) if it.method == rpc::PING)
    }

    /// Returns the frame that it means.
    pub(super) fn frame(&self, direction: Direction, room: &str) -> Bytes {
        let (meta, message) = match self {
            Self::Message(RpcMessage::Request(it)) => {
                let caller = Peer::new("", "");
                request(&RpcCall::of_packet(&caller, it), &Ok(it.payload.clone()), "1", direction)
            }
            Self::Message(RpcMessage::Ack { id }) => {
                let acknowledgement = Acknowledgement {
                    acknowledged_message_id: Some(call_of(id, direction == Direction::Heard).to_owned()),
                    acknowledged_stanza_id: Some(STANZA),
                    success: Some(true),
                    ..Acknowledgement::default()
                };
                (Meta::new(), Message::Acknowledgement(acknowledgement))
            }
            Self::Message(RpcMessage::Response(RpcResponse { id, outcome })) => {
                answer(id, outcome, direction)
            }
            Self::Text(header, payload) => {
                let payload = whole(header, payload);
                if header.topic == RPC_REQUEST_TOPIC {
                    request(&RpcCall::of_stream(&Peer::new("", ""), header), &payload, "2", direction)
                } else {
                    let unread = |why: String| RpcError::new(rpc::code::APPLICATION, why, "");
                    answer(rpc::answered_id(header), &payload.map_err(unread), direction)
                }
            }
        };
        let written = Frame::write(STANZA, room, &meta, &message);
        // What does not fit into a frame is recorded without its data.
        written.or_else(|_| Frame::write(STANZA, room, &meta, &without_data(message))).unwrap_or_default()
    }
}

/// Returns the payload of a stream as it was before compression.
fn whole(header: &StreamHeader, payload: &Bytes) -> Result<Bytes, String> {
    match (header.compression, header.length) {
        (Compression::None, _) => Ok(payload.clone()),
        #[cfg(feature = "deflate")]
        (Compression::Deflate, Some(length)) if length <= rpc::MAX_STREAM as u64 => {
            let expanded = crate::protocol::deflate::expanded(payload, length as usize);
            expanded.map(Bytes::from).map_err(|why| format!("the payload cannot be expanded: {why}"))
        }
        _ => Err("the payload is compressed".to_owned()),
    }
}

fn request(
    call: &RpcCall,
    payload: &Result<Bytes, String>,
    version: &str,
    direction: Direction,
) -> (Meta, Message) {
    let text = |bytes: &[u8]| Value::from(serde_json::json!({"value": String::from_utf8_lossy(bytes)}));
    let parameters = match payload {
        Ok(payload) => rpc::arguments(payload).unwrap_or_else(|_| text(payload)),
        Err(why) => text(why.as_bytes()),
    };
    let id = CallId::known(call_of(&call.id, direction == Direction::Sent));
    let mut request = ToolUseRequest::new(id, &*call.method, parameters, Ok(Execution::Client));
    request.timeout_ms = call.asked_ms().and_then(|asked| i32::try_from(asked).ok());
    (Meta::new().with_text(VERSION, version), Message::ToolUseRequest(request))
}

fn answer(id: &str, outcome: &Result<Bytes, RpcError>, direction: Direction) -> (Meta, Message) {
    let id = CallId::known(call_of(id, direction == Direction::Heard));
    let mut meta = Meta::new();
    let reply = match outcome {
        Ok(payload) => Reply::of_payload(payload, false),
        Err(error) => {
            meta.set_text(CODE, &error.code.to_string());
            Reply::of_error(error)
        }
    };
    let failure = |code, text: &str| ToolError::new(code, text);
    let failed = match reply {
        Reply::Success(value) => {
            let mut result = ToolUseResult::new(id, true);
            result.result = Some(value);
            return (meta, Message::ToolUseResult(result));
        }
        // A client's own file says what its tool said.
        Reply::Failure(error) if direction == Direction::Sent => sent_failure(outcome).unwrap_or(error),
        Reply::Failure(error) => error,
        Reply::Declined => failure(ErrorCode::UNKNOWN_TOOL, "no such method"),
        Reply::TooLarge => failure("too_large".into(), "the request is too large"),
        Reply::Timeout => failure(ErrorCode::TIMEOUT, "the method took too long"),
        Reply::Lost => failure(ErrorCode::LOST, "the owner has left"),
    };
    let mut result = ToolUseResult::new(id, false);
    result.error_code = Some(failed.code());
    result.error_message = Some(failed.message().to_owned());
    result.result = failed.partial().cloned();
    (meta, Message::ToolUseResult(result))
}

/// Returns the failure that a client of toolbridge has put into the data of an error.
fn sent_failure(outcome: &Result<Bytes, RpcError>) -> Option<ToolError> {
    let error = outcome.as_ref().err()?;
    let data: serde_json::Value = serde_json::from_str(&error.data).ok()?;
    Some(ToolError::new(ErrorCode::from(data["code"].as_str()?), data["message"].as_str()?))
}

/// Returns the id of the call. An assistant that sends a request again appends a number to its id (`wire.md`, section
/// 10.2).
fn call_of(id: &str, is_own: bool) -> &str {
    let again = id.rsplit_once('.').filter(|(_, times)| !times.is_empty() && times.parse::<u32>().is_ok());
    again.filter(|_| is_own).map_or(id, |(call, _)| call)
}

/// Returns a message without its arguments or result.
fn without_data(message: Message) -> Message {
    match message {
        Message::ToolUseRequest(request) => {
            Message::ToolUseRequest(ToolUseRequest { parameters: Value::empty(), ..request })
        }
        Message::ToolUseResult(result) => Message::ToolUseResult(ToolUseResult { result: None, ..result }),
        other => other,
    }
}
