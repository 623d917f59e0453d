//! Converts the requests of LiveKit's RPC to calls, and outcomes to its answers; and calls to its requests, and its answers to
//! outcomes.
//!
//! A payload of RPC is a text. Here it is a JSON object of arguments in a request, and JSON or a text in an answer.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use serde_json::json;

use crate::{
    protocol::frame::{ToolUseRequest, ToolUseResult},
    tool::{CallId, ErrorCode, Execution, ToolError, ToolResult},
    transport::{Peer, RpcError, RpcRequest, StreamHeader},
    value::{Value, ends, prefix, without_mark},
};

/// Whether the crate is built with LiveKit's RPC. Where this is asked first, the compiler removes the rest.
pub(crate) const IS_BUILT: bool = cfg!(feature = "rpc");

/// The largest payload of a request or an answer of version 1, and the largest data of an error, in bytes.
pub(crate) const MAX_PAYLOAD: usize = 15_360;

/// The largest payload of a stream, in bytes: a request or an answer of version 2, or a large answer of version 1.
pub(crate) const MAX_STREAM: usize = 16 << 20;

/// The longest payload that is sent in the header of a stream, in bytes. LiveKit's SDKs send a header of up to 15,000 bytes: this
/// leaves room for its ids, its attributes and the receiver.
pub(crate) const MAX_INLINE: usize = 14_000;

/// The time that a caller adds for the network to the timeout that it sends, in milliseconds: LiveKit's Rust core sends 7 s
/// less than it waits.
const LATENCY_MS: u64 = 7_000;

/// The timeout of a request that has none, in milliseconds: LiveKit's default.
const DEFAULT_TIMEOUT_MS: u32 = 15_000;

/// The longest message of an error, in bytes.
pub(crate) const MAX_MESSAGE: usize = 256;

/// The room for the text of a failure in the data of an error, in bytes. JSON can make it six times as long.
const MAX_TEXT: usize = 2 * 1024;

/// The names of methods that LiveKit keeps for itself begin with this.
const RESERVED: &str = "lk.";

/// The method that shows whether a participant is alive. Nobody has it: each answer shows that.
pub(crate) const PING: &str = "toolbridge.ping";

/// The attributes of the streams of text that carry requests and results.
pub(crate) mod attribute {
    pub(crate) const ID: &str = "lk.rpc_request_id";
    pub(crate) const METHOD: &str = "lk.rpc_request_method";
    pub(crate) const TIMEOUT: &str = "lk.rpc_request_response_timeout_ms";
    pub(crate) const VERSION: &str = "lk.rpc_request_version";
}

/// The codes of LiveKit's RPC, as its SDKs define them.
pub(crate) mod code {
    /// The callee has no such method.
    pub(crate) const UNSUPPORTED_METHOD: u32 = 1400;
    /// The payload of the request is too large for the version.
    pub(crate) const REQUEST_TOO_LARGE: u32 = 1402;
    /// The callee does not have this version.
    pub(crate) const UNSUPPORTED_VERSION: u32 = 1404;
    /// The method failed.
    pub(crate) const APPLICATION: u32 = 1500;
    /// The method took too long.
    pub(crate) const RESPONSE_TIMEOUT: u32 = 1502;
    /// The callee has left.
    pub(crate) const RECIPIENT_GONE: u32 = 1503;
    /// The payload of the answer is too large for the version.
    pub(crate) const RESPONSE_TOO_LARGE: u32 = 1504;
}

/// A request without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RpcCall {
    /// The caller in the join that the packet states.
    pub(crate) caller: Peer,
    pub(crate) id: String,
    /// Empty if it is missing.
    pub(crate) method: String,
    timeout_ms: Option<u32>,
    version: Option<u32>,
    pub(crate) form: RequestForm,
    /// The bytes of the payload, as announced; the most that it may have if they are not.
    pub(crate) size: usize,
}

/// How a request was sent, which decides how its result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestForm {
    /// In one packet: version 1.
    Packet,
    /// As a stream of text: version 2.
    Stream,
}

impl RpcCall {
    pub(crate) fn of_packet(caller: &Peer, request: &RpcRequest) -> Self {
        Self {
            caller: caller.clone(),
            id: request.id.clone(),
            method: request.method.clone(),
            timeout_ms: Some(request.timeout_ms),
            version: Some(request.version).filter(|version| *version != 0),
            form: RequestForm::Packet,
            size: request.payload.len(),
        }
    }

    pub(crate) fn of_stream(caller: &Peer, header: &StreamHeader) -> Self {
        let text = |key| header.attributes.get(key).map(String::as_str);
        let inline = header.inline.as_ref().map_or(MAX_STREAM, Bytes::len);
        Self {
            caller: caller.clone(),
            id: text(attribute::ID).unwrap_or_default().to_owned(),
            method: text(attribute::METHOD).unwrap_or_default().to_owned(),
            timeout_ms: text(attribute::TIMEOUT).and_then(|it| it.parse().ok()),
            version: text(attribute::VERSION).and_then(|it| it.parse().ok()),
            form: RequestForm::Stream,
            size: header.length.map_or(inline, |length| usize::try_from(length).unwrap_or(usize::MAX)),
        }
    }

    /// Returns whether it is a call of the server itself (`PerformRpc`).
    pub(crate) fn is_of_server(&self) -> bool {
        self.caller.sid().is_empty() && self.caller.identity().as_str() == self.id
    }

    /// Returns the request that the call makes, with this payload.
    ///
    /// # Errors
    /// `invalid_parameters`, with the place of the fault as far as it is known.
    pub(crate) fn request(&self, payload: &[u8], longest: Duration) -> Result<ToolUseRequest, ToolError> {
        let (id, parameters) = (self.key(), arguments(payload)?);
        let mut request = ToolUseRequest::new(id, &*self.method, parameters, Ok(Execution::Client));
        let asked = self.timeout_ms.filter(|asked| *asked > 0).unwrap_or(DEFAULT_TIMEOUT_MS);
        let limit = (u128::from(asked) + u128::from(LATENCY_MS)).min(longest.as_millis());
        request.timeout_ms = Some(i32::try_from(limit).unwrap_or(i32::MAX));
        Ok(request)
    }

    /// Returns the id of the call.
    pub(crate) fn key(&self) -> CallId {
        CallId::known(&*self.id)
    }

    /// Returns whether the caller only wants to know whether this participant is alive.
    pub(crate) fn is_ping(&self) -> bool {
        self.method == PING
    }

    /// Checks everything but the payload.
    ///
    /// # Errors
    /// The answer to a request that lacks something, or has another version.
    pub(crate) fn check(&self) -> Result<(), RpcError> {
        let own = match self.form {
            RequestForm::Packet => 1,
            RequestForm::Stream => 2,
        };
        let missing = match self.version {
            Some(version) if version != own => {
                let text = format!("version {version} of RPC is not supported");
                return Err(RpcError::new(code::UNSUPPORTED_VERSION, text, ""));
            }
            None => "version",
            _ if self.method.is_empty() => "method",
            _ if self.timeout_ms.is_none() => "response timeout",
            _ => return Ok(()),
        };
        Err(error(&ErrorCode::INVALID_PARAMETERS, &format!("the request has no {missing}"), false))
    }
}

/// Returns whether LiveKit keeps the methods of this name for itself.
pub(crate) fn is_reserved(method: &str) -> bool {
    method.starts_with(RESERVED)
}

/// What an answer by RPC means for a call.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The tool ran.
    Success(Value),
    /// The tool failed, and may have run.
    Failure(ToolError),
    /// The callee has no such tool. Nothing ran.
    Declined,
    /// The request was larger than the callee takes. Nothing ran.
    TooLarge,
    /// The tool took too long.
    Timeout,
    /// The callee has left.
    Lost,
}

impl Reply {
    /// Reads the payload of an answer: a JSON object or array, or a text. If `is_json`, it is any JSON, and a text that is none
    /// is a failure.
    pub(crate) fn of_payload(payload: &[u8], is_json: bool) -> Self {
        let Ok(text) = std::str::from_utf8(payload) else {
            return Self::Failure("the answer is not UTF-8".into());
        };
        if payload.len() > MAX_STREAM {
            let text = format!("the result has {} bytes; the limit is {MAX_STREAM}", payload.len());
            return Self::Failure(ToolError::new(ErrorCode::RESULT_TOO_LARGE, text));
        }
        match read(text, is_json) {
            Some(value) => Self::Success(value),
            None if is_json => Self::Failure("the answer is not JSON".into()),
            None => Self::Success(Value::from(json!({"value": text}))),
        }
    }

    /// Reads an error.
    pub(crate) fn of_error(error: &RpcError) -> Self {
        let text = match prefix(&error.message, MAX_MESSAGE) {
            "" => format!("RPC error {}", error.code),
            text => text.to_owned(),
        };
        let failure = |code| Self::Failure(ToolError::new(code, &text).of_rpc(error.code));
        match error.code {
            code::UNSUPPORTED_METHOD | code::UNSUPPORTED_VERSION => Self::Declined,
            code::REQUEST_TOO_LARGE => Self::TooLarge,
            code::RESPONSE_TIMEOUT => Self::Timeout,
            code::RECIPIENT_GONE => Self::Lost,
            code::RESPONSE_TOO_LARGE => failure(ErrorCode::RESULT_TOO_LARGE),
            _ if error.data.is_empty() => failure(ErrorCode::EXECUTION_ERROR),
            _ => {
                let data = prefix(&error.data, MAX_PAYLOAD);
                let partial = read(data, false).unwrap_or_else(|| Value::from(json!({"value": data})));
                Self::Failure(ToolError::from(text).of_rpc(error.code).with_partial(partial))
            }
        }
    }
}

/// Returns the attributes of the stream with a request of version 2.
pub(crate) fn request_attributes(id: &str, method: &str, timeout_ms: u32) -> BTreeMap<String, String> {
    let attribute = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    BTreeMap::from([
        attribute(attribute::ID, id),
        attribute(attribute::METHOD, method),
        attribute(attribute::TIMEOUT, &timeout_ms.to_string()),
        attribute(attribute::VERSION, "2"),
    ])
}

/// Returns the id of the request that a stream answers, or an empty one.
pub(crate) fn answered_id(header: &StreamHeader) -> &str {
    header.attributes.get(attribute::ID).map_or("", String::as_str)
}

/// Returns the answer to a request for a method that is not offered to its caller.
pub(crate) fn unsupported(method: &str) -> RpcError {
    RpcError::new(code::UNSUPPORTED_METHOD, format!("method {:?} is not supported", prefix(method, 64)), "")
}

/// Reads the payload of a request: the JSON of [arguments](Value::into_arguments), or nothing.
///
/// # Errors
/// `invalid_parameters`, with the place of the fault as far as it is known.
pub(crate) fn arguments(payload: &[u8]) -> Result<Value, ToolError> {
    let refuse = |what: String| Err(ToolError::new(ErrorCode::INVALID_PARAMETERS, what));
    if payload.len() > MAX_STREAM {
        return refuse(format!("the payload has {} bytes; the limit is {MAX_STREAM}", payload.len()));
    }
    let text = match std::str::from_utf8(payload) {
        Ok(text) if text.trim().is_empty() => return Ok(Value::empty()),
        Ok(text) => text,
        Err(error) => return refuse(format!("the payload is not UTF-8 at byte {}", error.valid_up_to())),
    };
    match Value::from_plain_json(text).map(Value::into_arguments) {
        Ok(Ok(arguments)) => Ok(arguments),
        Ok(Err(error)) => refuse(format!("the payload is no arguments: {error}")),
        Err(error) => refuse(format!("the payload is not JSON: {error}")),
    }
}

/// Returns the answer to a request, for either version. `began` states that the tool had started, whatever its code says.
pub(crate) fn answer(result: &ToolUseResult, began: bool) -> Result<Bytes, RpcError> {
    let empty = Value::empty();
    if result.success {
        return Ok(payload_of(result.result.as_ref().unwrap_or(&empty)).into());
    }
    let code = result.error_code.clone().unwrap_or(ErrorCode::EXECUTION_ERROR);
    Err(error(&code, result.error_message.as_deref().unwrap_or_default(), began))
}

/// Returns the error for a failure with this code of ours. `began` states that the tool had started.
pub(crate) fn error(code: &ErrorCode, message: &str, began: bool) -> RpcError {
    let number = match code {
        // It says that nothing ran, and that the tool does not exist: callers do not ask for it again.
        it if *it == ErrorCode::UNKNOWN_TOOL && !began => code::UNSUPPORTED_METHOD,
        // A call is cancelled because its caller has left, or by the assistant at a barge-in.
        it if [ErrorCode::TIMEOUT, ErrorCode::CANCELLED].contains(it) => code::RESPONSE_TIMEOUT,
        it if *it == ErrorCode::RESULT_TOO_LARGE => code::RESPONSE_TOO_LARGE,
        _ => code::APPLICATION,
    };
    let shown = match number {
        code::APPLICATION => format!("{}: {message}", code.as_str()),
        _ => message.to_owned(),
    };
    let data = json!({"code": prefix(code.as_str(), MAX_MESSAGE), "message": ends(message, MAX_TEXT)});
    RpcError::new(number, ends(&shown, MAX_MESSAGE), data.to_string())
}

/// Returns the text of a result: what the model reads of one that says so, otherwise its JSON, without the key that a value
/// has in a frame.
fn payload_of(value: &Value) -> String {
    let result = ToolResult::of(value);
    if result.is_plain() {
        return value.lone().as_ref().unwrap_or(value).to_json_text();
    }
    result.for_model(MAX_STREAM).text.into_owned()
}

/// The bytes of a map before the value of its only key `value`.
const ONE_VALUE: &[u8] = b"\x81\xa5value";

/// Reads a JSON text, in which names like `$bin` have no special meaning: an object or an array, or with `any` other values, too.
/// A text of digits is a post code or the number of a parcel, and not a number. Like the result in a frame, a value that is not a
/// map is that of the key `value`.
fn read(text: &str, any: bool) -> Option<Value> {
    let first = without_mark(text).trim_start().bytes().next();
    (any || matches!(first, Some(b'{' | b'['))).then_some(())?;
    let value = Value::from_plain_json(text).ok()?;
    if value.is_map() { Some(value) } else { Value::from_bytes([ONE_VALUE, value.as_bytes()].concat()).ok() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::CallId;

    fn success(value: Value) -> ToolUseResult {
        let mut result = ToolUseResult::new(CallId::known("c"), true);
        result.result = Some(value);
        result
    }

    fn failure(code: &str, message: &str) -> ToolUseResult {
        let mut result = ToolUseResult::new(CallId::known("c"), false);
        (result.error_code, result.error_message) = (Some(code.into()), Some(message.to_owned()));
        result
    }

    fn code_of(reply: Reply) -> String {
        match reply {
            Reply::Failure(error) => error.code().as_str().to_owned(),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn payload_is_the_json_of_arguments_or_nothing() {
        let read = arguments(br#" {"on": true, "$bin": "AA=="} "#).unwrap();
        assert_eq!(read, Value::from(json!({"on": true, "$bin": "AA=="})));
        for nothing in [&b""[..], b" \n", b"null", b"[]", b"\"{}\""] {
            assert_eq!(arguments(nothing).unwrap(), Value::empty());
        }
        for (payload, why) in [
            (&b"[1]"[..], "must be a map"),
            (b"\"text\"", "a text that is not JSON"),
            (b"{\"on\": }", "not JSON"),
            (b"{} {}", "not JSON"),
            (b"{\"a\": \"\xff\"}", "not UTF-8 at byte 7"),
        ] {
            let error = arguments(payload).unwrap_err();
            assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
            assert!(error.message().contains(why), "{error}");
        }
        let deep = "{\"a\":".repeat(200) + "1" + &"}".repeat(200);
        assert_eq!(arguments(deep.as_bytes()).unwrap_err().code(), ErrorCode::INVALID_PARAMETERS);
    }

    #[test]
    fn payload_of_a_request_is_read_back() {
        for json in [json!({}), json!({"on": true, "level": 0.5, "name": "Küche \u{1}\""})] {
            let payload = Value::from(&json).to_json_text();
            assert_eq!(arguments(payload.as_bytes()).unwrap(), Value::from(&json));
        }
    }

    #[test]
    fn answer_is_the_json_of_the_value_or_the_text_for_the_model() {
        for (value, text) in [
            (json!({"value": 0.8}), "0.8"),
            (json!({"value": "sunny"}), "\"sunny\""),
            (json!({"value": null}), "null"),
            (json!({"level": 0.8, "charging": true}), r#"{"level":0.8,"charging":true}"#),
            (json!({}), "{}"),
        ] {
            assert_eq!(answer(&success(Value::from(&value)), true), Ok(Bytes::from(text)), "{value}");
        }
        let result =
            ToolResult::text("It is on.").with_person_text("On.").with_structured(json!({"on": true}));
        let payload = answer(&success(result.to_value()), true).unwrap();
        let payload = std::str::from_utf8(&payload).unwrap();
        assert!(payload.contains("It is on.") && !payload.contains("On."), "{payload}");
        assert_eq!(answer(&ToolUseResult::new(CallId::known("c"), true), true), Ok(Bytes::from("{}")));
    }

    #[test]
    fn failure_has_livekits_code_and_ours_in_its_data() {
        for (ours, theirs) in [
            ("unknown_tool", 1400),
            ("timeout", 1502),
            ("cancelled", 1502),
            ("result_too_large", 1504),
            ("execution_error", 1500),
            ("invalid_parameters", 1500),
            ("permission_denied", 1500),
            ("busy", 1500),
            ("own_code", 1500),
        ] {
            let error = answer(&failure(ours, "why"), false).unwrap_err();
            assert_eq!(
                (error.code, &*error.data),
                (theirs, &*json!({"code": ours, "message": "why"}).to_string())
            );
            assert_eq!(error.message.starts_with(ours), theirs == 1500, "{}", error.message);
        }
        let error = answer(&failure(&"c".repeat(5_000), &"\u{1}ü".repeat(50_000)), true).unwrap_err();
        assert!(
            error.message.len() <= MAX_MESSAGE && error.data.len() <= MAX_PAYLOAD,
            "{}",
            error.data.len()
        );
        let json: serde_json::Value = serde_json::from_str(&error.data).unwrap();
        assert!(json["message"].is_string());
        // The last line of a program says why it failed.
        let errors =
            format!("the program ended with status 3: …{}the lamp is broken", "reading\n".repeat(400));
        let error = answer(&failure("lamp_failed", &errors), true).unwrap_err();
        let json: serde_json::Value = serde_json::from_str(&error.data).unwrap();
        for text in [&*error.message, json["message"].as_str().unwrap()] {
            assert!(
                text.contains("the program ended with") && text.ends_with("the lamp is broken"),
                "{text}"
            );
        }
    }

    #[test]
    fn payload_of_an_answer_is_a_value_or_its_text() {
        for (payload, value) in [
            ("0.8", json!({"value": "0.8"})),
            ("null", json!({"value": "null"})),
            ("[0.8]", json!({"value": [0.8]})),
            (r#"{"$float": "NaN"}"#, json!({"$float": "NaN"})),
            ("at home", json!({"value": "at home"})),
            ("", json!({"value": ""})),
        ] {
            match Reply::of_payload(payload.as_bytes(), false) {
                Reply::Success(read) => assert_eq!(read, Value::from(&value)),
                other => panic!("{payload}: {other:?}"),
            }
        }
        assert_eq!(code_of(Reply::of_payload(b"at home", true)), "execution_error");
        assert_eq!(code_of(Reply::of_payload(b"\xff", false)), "execution_error");
        assert_eq!(code_of(Reply::of_payload(&vec![b' '; MAX_STREAM + 1], false)), "result_too_large");
    }

    #[test]
    fn each_code_has_its_outcome() {
        for (code, outcome) in [
            (1400, "Declined"),
            (1404, "Declined"),
            (1402, "TooLarge"),
            (1502, "Timeout"),
            (1503, "Lost"),
            (1504, "result_too_large"),
            (1505, "execution_error"),
            (1500, "execution_error"),
            (1501, "execution_error"),
            (7, "execution_error"),
        ] {
            assert_eq!(code_of(Reply::of_error(&RpcError::new(code, "why", ""))), outcome, "{code}");
        }
    }

    #[test]
    fn data_of_an_error_is_the_partial_result() {
        for (data, partial) in
            [(r#"{"left": 2}"#, json!({"left": 2})), ("two left", json!({"value": "two left"}))]
        {
            match Reply::of_error(&RpcError::new(101, "", data)) {
                Reply::Failure(error) => {
                    assert_eq!(
                        (error.message(), error.partial(), error.rpc_code()),
                        ("RPC error 101", Some(&Value::from(&partial)), Some(101))
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        let long = RpcError::new(1500, "ü".repeat(1_000), "x".repeat(100_000));
        let Reply::Failure(error) = Reply::of_error(&long) else { panic!("no failure") };
        assert!(error.message().len() <= MAX_MESSAGE);
        assert!(error.partial().unwrap().as_bytes().len() <= MAX_PAYLOAD + 16);
    }
}
