//! Decodes recorded packets as frames.

use serde_json::Value;

use super::{Entry, Happened};
use super::{
    Recorded, original,
    redactor::is_compressed,
    rpc::{self, RPC_TOPIC, RpcRecord},
};
use crate::{
    protocol::frame::{Frame, Message},
    transport::{STREAM_TOPIC, TOPIC},
    value::{DecodeError, walk::Walk},
};

/// Returns whether packets on this topic are recorded as frames, and not those of another application.
pub(super) fn is_topic_of_frames(topic: &str) -> bool {
    matches!(topic, "" | TOPIC | STREAM_TOPIC | RPC_TOPIC)
}

/// A decoded packet.
#[derive(Clone, Debug)]
pub(crate) enum Decoded {
    /// The topic belongs to another application.
    Foreign,
    /// It should be a frame but is malformed (error code 101).
    Malformed(DecodeError),
    /// It is a compressed frame of this many bytes that was not expanded, perhaps redacted as a whole: its sender had no rights,
    /// or it cannot be expanded.
    Compressed(usize),
    /// A frame.
    Frame(Frame, Message),
}

impl Decoded {
    /// Decodes a packet. Frames use two topics, or none if the sender lacks toolbridge's handshake.
    pub(crate) fn of(packet: &Recorded) -> Self {
        if !is_topic_of_frames(&packet.topic) {
            return Self::Foreign;
        }
        let read = match packet.is_rpc() {
            true => rpc::decode(&packet.payload),
            false => Frame::decode(packet.payload.clone()).and_then(|frame| {
                let message = frame.message()?;
                Ok((frame, message))
            }),
        };
        match read {
            Ok((frame, message)) => Self::Frame(frame, message),
            Err(error) if packet.is_rpc() => Self::Malformed(error),
            Err(_) if is_compressed(&packet.payload) => Self::Compressed(packet.payload.len()),
            Err(error) => match original::compressed(&packet.payload) {
                Some(size) => Self::Compressed(size),
                None => Self::Malformed(error),
            },
        }
    }
}

impl Recorded {
    /// Whether it is a compressed frame that was not expanded.
    pub(crate) fn is_not_expanded(&self) -> bool {
        matches!(Decoded::of(self), Decoded::Compressed(_))
    }
}

impl Decoded {
    /// The original size of the packet, in bytes, before redaction.
    pub(super) fn size(&self, packet: &Recorded) -> usize {
        let size = match self {
            Self::Frame(frame, _) => original::frame_size(frame),
            Self::Malformed(_) => original::whole(&packet.payload),
            Self::Compressed(size) => Some(*size),
            Self::Foreign => None,
        };
        size.unwrap_or(packet.payload.len())
    }
}

impl Entry {
    /// Returns the names of the tools that this entry calls or registers.
    pub fn tool_names(&self) -> Vec<String> {
        let Happened::Packet(packet) = &self.what else { return Vec::new() };
        match Decoded::of(packet) {
            Decoded::Frame(_, Message::ToolUseRequest(request)) => vec![request.tool_name],
            Decoded::Frame(_, Message::ToolsRegister(it)) => {
                it.tools.into_iter().map(|tool| tool.name).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// How many values a frame shown as JSON may have: each takes about 200 bytes during conversion.
const MAX_SHOWN: usize = 200_000;

/// Returns the frame as canonical JSON without what is for the model alone, or why it cannot be shown.
pub(super) fn frame_json(frame: &Frame) -> Result<Value, String> {
    if !can_be_shown(frame.as_bytes()) {
        return Err(format!("it has more than {MAX_SHOWN} values, too many to show as JSON"));
    }
    frame.to_public_json().map_err(|error| error.to_string())
}

/// Whether the value is small enough to be shown as JSON.
pub(super) fn can_be_shown(bytes: &[u8]) -> bool {
    // Each value takes at least a byte.
    if bytes.len() <= MAX_SHOWN {
        return true;
    }
    let mut walk = Walk::value(bytes, 0);
    (0..=MAX_SHOWN).any(|_| !matches!(walk.next(), Ok(Some(_))))
}

/// Returns the name of what a packet carries, for people.
pub(super) fn name_of(packet: &Recorded, frame: &Frame, message: &Message) -> &'static str {
    if packet.is_rpc() { RpcRecord::name(message) } else { frame.kind().name() }
}

/// Returns the id of the call that a message belongs to, if any.
pub(crate) fn call_of(message: &Message) -> Option<&str> {
    match message {
        Message::ToolUseRequest(request) => Some(request.id.as_str()),
        Message::ToolUseResult(result) => Some(result.id.as_str()),
        Message::ToolProgress(progress) => Some(progress.id.as_str()),
        Message::Acknowledgement(ack) => ack.acknowledged_message_id.as_deref(),
        Message::ControlStop(stop) => stop.target_id.as_deref(),
        Message::Error(error) => error.originating_id.as_deref(),
        _ => None,
    }
}
