//! States what frames are for, which decides what becomes of a packet that was not sent or not acknowledged (`wire.md`,
//! section 5.2).

use crate::{protocol::frame::Message, tool::CallId};

/// The purpose of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The request of an open call.
    Request(CallId),
    /// The stop of a settled call.
    Stop(CallId),
    /// The result of a request.
    Result(CallId),
    /// The claim of an `either` call.
    Claim(CallId),
    /// A client's request that its assistant stops calls.
    StopRequest,
    /// A state of a view.
    View,
    /// What nobody else keeps. Its packet is sent again if it was not sent.
    Once,
    /// As `Once`, unless a later packet to the same receivers is about the same.
    Latest(Subject),
    /// What is of no use later.
    Never,
}

/// What a frame is about, and replaces: its type and its call or view.
pub(super) type Subject = (u16, Box<str>);

impl Purpose {
    /// Returns the purpose of a frame that nobody else keeps.
    pub(super) fn of(message: &Message) -> Self {
        let latest = |about: &str| Self::Latest((message.kind().code(), about.into()));
        match message {
            // A late one would change back what a later one has changed.
            Message::Configuration(_) | Message::ToolsRegister(_) => latest(""),
            Message::ToolsRegisterAck(_) => latest(""),
            Message::ToolProgress(progress) => latest(progress.id.as_str()),
            Message::ViewUpdate(view) => latest(&view.view),
            // Nothing follows a goodbye, and a heartbeat is followed by the next.
            Message::ControlStop(stop) if stop.stop_type.is_some() => Self::Never,
            Message::Heartbeat => Self::Never,
            Message::Acknowledgement(_) | Message::Error(_) | Message::ToolUseRequest(_) => Self::Once,
            Message::ToolUseResult(_) | Message::ControlStop(_) | Message::Other(..) => Self::Once,
        }
    }

    /// Returns whether its frame has a record until it is acknowledged.
    pub(super) fn has_record(&self) -> bool {
        !matches!(self, Self::Once | Self::Latest(_) | Self::Never)
    }

    /// Returns the call of a frame that has a record.
    pub(super) fn call(&self) -> Option<&CallId> {
        match self {
            Self::Request(call) | Self::Stop(call) | Self::Result(call) | Self::Claim(call) => Some(call),
            _ => None,
        }
    }
}

/// Returns whether a frame may be sent to a participant before the handshake with it.
pub(super) fn is_of_handshake(message: &Message) -> bool {
    matches!(message, Message::Configuration(_) | Message::ToolsRegister(_) | Message::ToolsRegisterAck(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{protocol::frame::ToolProgress, tool::ProgressStatus};

    #[test]
    fn progress_replaces_that_of_its_call_only() {
        let of = |call: &str| {
            let call = call.parse().unwrap();
            Purpose::of(&Message::ToolProgress(ToolProgress::new(call, ProgressStatus::InProgress)))
        };
        assert_eq!(of("c1"), of("c1"));
        assert_ne!(of("c1"), of("c2"));
    }
}
