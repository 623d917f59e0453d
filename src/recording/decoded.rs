//! A recorded packet, read as the frame that it carries.

use serde_json::Value;

use super::{Entry, Happened};
use super::{Recorded, original};
use crate::{
    protocol::frame::{Frame, Message},
    transport::{STREAM_TOPIC, TOPIC},
    value::{DecodeError, walk::Walk},
};

/// What a recorded packet is to this protocol.
#[derive(Clone, Debug)]
pub(crate) enum Decoded {
    /// It travelled on another topic: somebody else's data.
    Foreign,
    /// It should be a frame, and is malformed (error code 101).
    Malformed(DecodeError),
    /// A frame.
    Frame(Frame, Message),
}

impl Decoded {
    /// Reads a packet. Frames travel on two topics, or, from plain peers, on none.
    pub(crate) fn of(packet: &Recorded) -> Self {
        if !matches!(packet.topic.as_str(), "" | TOPIC | STREAM_TOPIC) {
            return Self::Foreign;
        }
        let read = Frame::decode(packet.payload.clone()).and_then(|frame| {
            let message = frame.message()?;
            Ok((frame, message))
        });
        match read {
            Ok((frame, message)) => Self::Frame(frame, message),
            Err(error) => Self::Malformed(error),
        }
    }
}

impl Decoded {
    /// How large the packet was, in bytes, before something was taken out of it.
    pub(super) fn size(&self, packet: &Recorded) -> usize {
        let size = match self {
            Self::Frame(frame, _) => original::frame_size(frame),
            Self::Malformed(_) => original::whole(&packet.payload),
            Self::Foreign => None,
        };
        size.unwrap_or(packet.payload.len())
    }
}

impl Entry {
    /// The names of the tools that this entry calls or registers.
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

/// How many values a frame may have that is shown as JSON: each takes about 200 bytes on the way.
const MAX_SHOWN: usize = 200_000;

/// The frame as canonical JSON, or why it is not shown so.
pub(super) fn frame_json(frame: &Frame) -> Result<Value, String> {
    if !can_be_shown(frame.as_bytes()) {
        return Err(format!("it has more than {MAX_SHOWN} values, too many to be shown as JSON"));
    }
    frame.to_json().map_err(|error| error.to_string())
}

/// Whether this value has few enough values in it to be shown as JSON.
pub(super) fn can_be_shown(bytes: &[u8]) -> bool {
    // Each of them takes a byte.
    if bytes.len() <= MAX_SHOWN {
        return true;
    }
    let mut walk = Walk::value(bytes, 0);
    (0..=MAX_SHOWN).any(|_| !matches!(walk.next(), Ok(Some(_))))
}

/// The call that a message belongs to, if it names one.
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
