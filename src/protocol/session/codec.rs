//! The one place where the session meets bytes.

use bytes::Bytes;

use crate::{
    protocol::frame::{Acknowledgement, Frame, Kind, Message, Meta, ToolUseResult},
    tool::{CallId, Outcome},
    transport::Lane,
    value::{EncodeError, Value},
};

/// Names our instance to the peer that is sent it.
const INSTANCE: &str = "bridge.instance";
/// Says whether the other's Configuration came under this pair of sids.
const HEARD: &str = "bridge.heard";
/// Names the owner's instance that a request is for.
const TO: &str = "bridge.to";
/// Says of an answer that its tool had begun, whatever the code says.
const BEGAN: &str = "bridge.began";
/// Makes a stop a goodbye.
const BYE: &str = "bridge.bye";

/// The longest instance that is remembered, in bytes; ours has 32.
const MAX_INSTANCE: usize = 128;

/// A frame that came, with its message read.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) frame: Frame,
    pub(super) message: Message,
    /// The size of its packet in bytes.
    pub(super) size: usize,
    /// The lane on which it came.
    pub(super) lane: Lane,
}

/// What can still be said of a packet that is no frame, or no proper one.
#[derive(Debug, Default)]
pub(super) struct Malformed {
    /// Its type, if that could be read.
    pub(super) kind: Option<Kind>,
    /// The id in its body, if that could be read.
    pub(super) id: Option<String>,
}

pub(super) fn decode(payload: Bytes) -> Result<Received, Malformed> {
    let size = payload.len();
    let frame = Frame::decode(payload).map_err(|_| Malformed::default())?;
    match frame.message() {
        Ok(message) => Ok(Received { message, size, lane: Lane::Reliable, frame }),
        Err(_) => Err(Malformed { kind: Some(frame.kind()), id: frame.peek_id().map(str::to_owned) }),
    }
}

pub(super) fn encode(
    stanza: i32,
    conversation: &str,
    meta: &Meta,
    message: &Message,
) -> Result<Bytes, EncodeError> {
    Frame::write(stanza, conversation, meta, message)
}

impl Received {
    pub(super) fn stanza(&self) -> Option<i32> {
        self.frame.stanza_id()
    }

    /// The room that the envelope names, if it names one.
    pub(super) fn conversation(&self) -> Option<&str> {
        self.frame.conversation_id().filter(|name| !name.is_empty())
    }

    /// The instance that the request is for.
    pub(super) fn addressed_to(&self) -> Option<&str> {
        self.frame.meta_str(TO)
    }

    /// The sender's instance.
    pub(super) fn instance(&self) -> Option<&str> {
        self.frame.meta_str(INSTANCE).filter(|text| !text.is_empty() && text.len() <= MAX_INSTANCE)
    }

    /// Whether the sender has heard our Configuration.
    pub(super) fn has_heard_us(&self) -> bool {
        self.frame.meta_bool(HEARD)
    }

    /// Whether an answer says that its tool had begun.
    pub(super) fn has_begun(&self) -> bool {
        self.frame.meta_bool(BEGAN)
    }

    pub(super) fn is_goodbye(&self) -> bool {
        self.frame.meta_bool(BYE)
    }
}

impl Acknowledgement {
    /// The note that makes an acknowledgement a claim (`wire.md`, section 4).
    pub(super) const CLAIM: &str = "claim";

    pub(super) fn is_claim(&self) -> bool {
        self.notes.as_deref() == Some(Self::CLAIM)
    }
}

/// The `meta` of a Configuration.
pub(super) fn greeting(instance: &str, heard: bool) -> Meta {
    Meta::new().with_text(INSTANCE, instance).with_bool(HEARD, heard)
}

/// The `meta` of a goodbye.
pub(super) fn goodbye() -> Meta {
    Meta::new().with_bool(BYE, true)
}

/// The `meta` of an answer whose code would prove that nothing ran, of a tool that had begun.
pub(super) fn begun() -> Meta {
    Meta::new().with_bool(BEGAN, true)
}

/// An application's `meta`, for the owner's instance of this address.
pub(super) fn addressed(meta: &Meta, address: &str) -> Meta {
    meta.clone().with_text(TO, address)
}

/// Whether an acknowledgement that names this call, or none, can be of `call`.
pub(super) fn may_mean(named: Option<&str>, call: &CallId) -> bool {
    named.is_none_or(|named| named == call.as_str())
}

/// Whether a value is a MessagePack map: fixmap, map16 or map32.
pub(super) fn is_map(value: &Value) -> bool {
    matches!(value.as_bytes().first(), Some(0x80..=0x8f | 0xde | 0xdf))
}

/// A result as it travels.
pub(super) fn result_message(room: &str, call: &CallId, outcome: Outcome) -> Message {
    let mut result = ToolUseResult {
        id: call.clone(),
        success: outcome.is_ok(),
        result: None,
        error_code: None,
        error_message: None,
        conversation_id: Some(room.to_owned()),
        result_id: None,
    };
    match outcome {
        Ok(body) => result.result = Some(body),
        Err(error) => {
            result.error_code = Some(error.code());
            result.error_message = Some(error.message().to_owned());
            result.result = error.partial().cloned();
        }
    }
    Message::ToolUseResult(result)
}

/// The largest length up to `limit` at which the text can be cut.
pub(super) fn floor_char(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
