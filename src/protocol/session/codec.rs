//! Decodes received packets and builds the session's messages.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    protocol::frame::{Acknowledgement, Frame, Kind, Message, Meta, ToolUseResult},
    tool::{CallId, Outcome, ToolName},
    transport::Lane,
    value::{Value, prefix},
};

/// The end of the message of a call that was refused as `busy`.
pub(super) const NOTHING_RAN: &str = "; nothing ran";

/// Names the sender's instance.
const INSTANCE: &str = "bridge.instance";
/// Proves to the receiver that the sender is that instance, in this join.
const PROOF: &str = "bridge.proof";
/// States whether the peer's Configuration has arrived under this pair of sids.
const HEARD: &str = "bridge.heard";
/// Names the owner's instance that a request is for.
const TO: &str = "bridge.to";
/// Lists the results that a request acknowledges: stanzas and how long their acknowledgements were held, in milliseconds.
const ACKS: &str = "bridge.acks";
/// States how long an acknowledgement was held, in milliseconds.
const HELD: &str = "bridge.held";
/// States that an answer's tool had started, whatever its code implies.
const BEGAN: &str = "bridge.began";
/// Names the tools that the sender of a registration has and does not offer, with the reasons.
const LEFT_OUT: &str = "bridge.leftOut";
/// States that the sender, a client, has not bound the receiver.
const UNBOUND: &str = "bridge.unbound";
/// Makes a stop a goodbye.
const BYE: &str = "bridge.bye";

/// The most results that a request acknowledges. Twice as many are read (`wire.md`, section 5.8).
pub(super) const MAX_CARRIED: usize = 8;

/// The largest stop that is small, in bytes: one with an id and a reason of usual length.
const MAX_SMALL_STOP: usize = 1_024;

/// The longest instance that is remembered, in bytes. The local one has 32.
const MAX_INSTANCE: usize = 128;

/// The most tools that a registration names as left out.
const MAX_LEFT_OUT: usize = 64;

/// The longest reason why a tool is left out, in bytes.
const MAX_LEFT_OUT_REASON: usize = 200;

/// The most bytes about tools that are left out: a small part of a packet.
const MAX_LEFT_OUT_BYTES: usize = 4 * 1024;

/// Returns the `meta` of a registration whose sender does not offer these of its tools. Those beyond the limits are not
/// named.
pub(super) fn left_out_meta<'a>(left_out: impl Iterator<Item = (&'a ToolName, &'a str)>) -> Meta {
    let (mut named, mut bytes) = (Vec::new(), 0);
    for (name, why) in left_out.take(MAX_LEFT_OUT) {
        let why = prefix(why, MAX_LEFT_OUT_REASON);
        bytes += name.as_str().len() + why.len();
        if bytes > MAX_LEFT_OUT_BYTES {
            break;
        }
        named.push([name.as_str(), why]);
    }
    let mut meta = Meta::default();
    if !named.is_empty() {
        let _ = meta.set(LEFT_OUT, named); // texts can be encoded
    }
    meta
}

/// A received frame with its decoded message.
#[derive(Clone, Debug)]
pub(super) struct Received {
    pub(super) frame: Frame,
    pub(super) message: Message,
    /// The size of its packet, in bytes.
    pub(super) size: usize,
    /// The lane on which it arrived.
    pub(super) lane: Lane,
}

/// The readable parts of a packet that is not a valid frame.
#[derive(Debug, Default)]
pub(super) struct Malformed {
    /// The frame's type, if it could be read.
    pub(super) kind: Option<Kind>,
    /// The id in the frame's body, if it could be read.
    pub(super) id: Option<String>,
    /// What is wrong with it.
    pub(super) why: String,
}

impl Malformed {
    pub(super) fn because(why: impl Into<String>) -> Self {
        Self { why: why.into(), ..Self::default() }
    }
}

pub(super) fn decode(payload: Bytes) -> Result<Received, Malformed> {
    let size = payload.len();
    let frame = Frame::decode(payload).map_err(|error| Malformed::because(error.to_string()))?;
    match frame.message() {
        Ok(message) => Ok(Received { message, size, lane: Lane::Reliable, frame }),
        Err(error) => {
            let id = frame.peek_id().map(str::to_owned);
            Err(Malformed { kind: Some(frame.kind()), id, ..Malformed::because(error.to_string()) })
        }
    }
}

impl Received {
    pub(super) fn stanza(&self) -> Option<i32> {
        self.frame.stanza_id()
    }

    /// Returns the id of the call that the message is about. A peer chooses it, and the answers to the message repeat it.
    pub(super) fn call_id(&self) -> Option<&str> {
        match &self.message {
            Message::ToolUseRequest(it) => Some(it.id.as_str()),
            Message::ToolUseResult(it) => Some(it.id.as_str()),
            Message::ToolProgress(it) => Some(it.id.as_str()),
            Message::ControlStop(it) => it.target_id.as_deref(),
            Message::Acknowledgement(it) => it.acknowledged_message_id.as_deref(),
            _ => None,
        }
    }

    /// Returns the room that the envelope names, if any.
    pub(super) fn conversation(&self) -> Option<&str> {
        self.frame.conversation_id().filter(|name| !name.is_empty())
    }

    /// Returns the instance that the request is for.
    pub(super) fn addressed_to(&self) -> Option<&str> {
        self.frame.meta_str(TO)
    }

    /// Returns the stanzas of the results that the request acknowledges, and how long their acknowledgements were held.
    pub(super) fn carried(&self) -> Vec<(i32, Duration)> {
        let list = self.frame.meta_get(ACKS);
        let pairs = list.iter().filter_map(Value::elements).flatten().take(2 * MAX_CARRIED);
        let pair = |pair: Value| {
            let mut parts = pair.elements()?;
            Some((parts.next()?.as_integer()?, Duration::from_millis(parts.next()?.as_integer()?)))
        };
        pairs.filter_map(pair).collect()
    }

    /// Returns how long an acknowledgement was held.
    pub(super) fn held(&self) -> Duration {
        let held = self.frame.meta_get(HELD).and_then(|it| it.as_integer());
        Duration::from_millis(held.unwrap_or(0))
    }

    /// Returns the sender's instance.
    pub(super) fn instance(&self) -> Option<&str> {
        self.frame.meta_str(INSTANCE).filter(|text| !text.is_empty() && text.len() <= MAX_INSTANCE)
    }

    /// Returns the proof that the sender is the instance that it shows.
    pub(super) fn proof(&self) -> Option<&str> {
        self.frame.meta_str(PROOF)
    }

    /// Returns the tools that the sender of a registration has and does not offer, with the reasons.
    pub(super) fn left_out(&self) -> Vec<(Box<str>, Box<str>)> {
        // Other implementations may write more than this one does. Twice the local limit is read (`wire.md`,
        // section 4.7).
        let named = self.frame.meta_get(LEFT_OUT).filter(|it| it.as_bytes().len() <= 2 * MAX_LEFT_OUT_BYTES);
        let Some(named) = named.and_then(|it| pairs_of_texts(&it)) else { return Vec::new() };
        let named = named.into_iter().take(MAX_LEFT_OUT);
        named.map(|(name, why)| (name, prefix(&why, MAX_LEFT_OUT_REASON).into())).collect()
    }

    /// Returns whether the sender has received the local Configuration.
    pub(super) fn has_received_configuration(&self) -> bool {
        self.frame.meta_bool(HEARD)
    }

    /// Returns whether an answer states that its tool had started.
    pub(super) fn has_begun(&self) -> bool {
        self.frame.meta_bool(BEGAN)
    }

    /// Returns whether a client states that it has not bound the local participant: in a registration that it withdraws,
    /// or in a refusal.
    pub(super) fn is_of_unbound(&self) -> bool {
        self.frame.meta_bool(UNBOUND)
    }

    /// Returns whether a stop is a goodbye.
    pub(super) fn has_goodbye_mark(&self) -> bool {
        self.frame.meta_bool(BYE)
    }

    pub(super) fn is_goodbye(&self) -> bool {
        self.has_goodbye_mark() && matches!(self.message, Message::ControlStop(_))
    }

    /// Returns whether this is a stop of usual size. While it waits, it does not count against the room for other frames.
    pub(super) fn is_small_stop(&self) -> bool {
        self.size <= MAX_SMALL_STOP && matches!(self.message, Message::ControlStop(_))
    }
}

/// Reads a list of pairs of texts. If a part of it is anything else, there is none.
fn pairs_of_texts(value: &Value) -> Option<Vec<(Box<str>, Box<str>)>> {
    let text = |value: Value| value.as_text().map(Box::from);
    let pair = |pair: Value| {
        let mut parts = pair.elements()?;
        let pair = (text(parts.next()?)?, text(parts.next()?)?);
        parts.next().is_none().then_some(pair)
    };
    let pairs = |list: &Value| list.elements()?.map(pair).collect::<Option<Vec<_>>>();
    pairs(value).or_else(|| pairs(&value.lone()?))
}

impl Acknowledgement {
    /// The note that makes an acknowledgement a claim (`wire.md`, section 4).
    pub(super) const CLAIM: &str = "claim";

    pub(super) fn is_claim(&self) -> bool {
        self.notes.as_deref() == Some(Self::CLAIM)
    }
}

/// Returns the `meta` of a Configuration.
pub(super) fn greeting(instance: &str, proof: Option<&str>, heard: bool) -> Meta {
    let meta = Meta::new().with_text(INSTANCE, instance).with_bool(HEARD, heard);
    match proof {
        Some(proof) => meta.with_text(PROOF, proof),
        None => meta,
    }
}

/// Returns the `meta` of a goodbye.
pub(super) fn goodbye() -> Meta {
    Meta::new().with_bool(BYE, true)
}

/// Returns the `meta` of an answer whose tool had started although its code otherwise proves that nothing ran.
pub(super) fn begun() -> Meta {
    Meta::new().with_bool(BEGAN, true)
}

/// Returns the `meta` of a frame to a participant that the client has not bound.
pub(super) fn unbound() -> Meta {
    Meta::new().with_bool(UNBOUND, true)
}

/// Returns an application's `meta` with the address of the owner's instance.
pub(super) fn addressed(meta: &Meta, address: &str) -> Meta {
    meta.clone().with_text(TO, address)
}

/// Returns the `meta` of a request that acknowledges the results of these stanzas.
pub(super) fn carrying(meta: &Meta, stanzas: impl Iterator<Item = (i32, Duration)>) -> Meta {
    let mut meta = meta.clone();
    let carried: Vec<(i32, u64)> = stanzas.map(|(stanza, held)| (stanza, whole_millis(held))).collect();
    let _ = meta.set(ACKS, carried); // numbers can be encoded
    meta
}

/// Returns the `meta` of an acknowledgement that was held for this long.
pub(super) fn held(held: Duration) -> Meta {
    let mut meta = Meta::default();
    let _ = meta.set(HELD, whole_millis(held)); // numbers can be encoded
    meta
}

fn whole_millis(time: Duration) -> u64 {
    u64::try_from((time + Duration::from_micros(500)).as_millis()).unwrap_or(u64::MAX)
}

/// Returns whether an acknowledgement that names this call, or none, may refer to `call`.
pub(super) fn may_mean(named: Option<&str>, call: &CallId) -> bool {
    named.is_none_or(|named| named == call.as_str())
}

/// Builds the message of a result.
pub(super) fn result_message(room: &str, call: &CallId, outcome: Outcome) -> Message {
    let mut result = ToolUseResult::new(call.clone(), outcome.is_ok());
    result.conversation_id = Some(room.to_owned());
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pairs_of_texts_are_those_that_decode_reads() {
        let lists = [
            json!([]),
            json!([["a", "b"], ["c", ""]]),
            json!([["a", "b"], ["c"]]),
            json!([["a", "b", "c"]]),
            json!([["a", 1]]),
            json!(["a", "b"]),
            json!({"a": "b"}),
            json!("a"),
        ];
        let wrapped = lists.iter().map(|list| json!({"value": list}));
        let mut values: Vec<Value> = lists.iter().cloned().chain(wrapped).map(Value::from).collect();
        for bytes in [
            &[0x91, 0x92, 0xc4, 1, b'a', 0xc4, 1, 0xff][..],
            &[0x91, 0x92, 0xc4, 1, b'a', 0xa1, b'b'],
            &[0xc4, 0],
        ] {
            values.push(Value::from_bytes(bytes.to_vec()).unwrap());
        }
        for value in values {
            let expected: Vec<(Box<str>, Box<str>)> = value.decode().unwrap_or_default();
            assert_eq!(pairs_of_texts(&value).unwrap_or_default(), expected, "{}", value.to_json_text());
        }
    }
}
