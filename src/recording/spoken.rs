//! A recorded packet, read as the frame that it carries.

use super::Recorded;
use crate::{
    body::DecodeError,
    link::{STREAM_TOPIC, TOPIC},
    wire::{Frame, Message},
};

/// What a recorded packet is to this protocol.
#[derive(Clone, Debug)]
pub(crate) enum Spoken {
    /// It travelled on another topic: somebody else's data.
    Foreign,
    /// It should be a frame, and is malformed (error code 101).
    Malformed(DecodeError),
    /// A frame.
    Frame(Frame, Message),
}

impl Spoken {
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
