//! Converts messages of LiveKit's RPC to the frames that a recording holds for them, and back.
//!
//! A request, an acknowledgement or an answer is recorded as the frame of type 6, 8 or 7 that says the same, on the topic
//! `lk.rpc`. So whatever reads, redacts or checks calls in frames does so for calls by RPC. `meta` holds what frames do not
//! have. The guide (`recording`) describes the fields.

use bytes::Bytes;
use serde_json::Value as Json;

use crate::{
    protocol::{
        frame::{Frame, Message, ToolUseRequest, ToolUseResult},
        rpc::{MAX_STREAM, PING, attribute, code},
    },
    tool::ErrorCode,
    transport::{
        BrokenStream, Compression, Form, Packet, Peer, RPC_RESPONSE_TOPIC, RpcError, RpcMessage, RpcRequest,
        RpcResponse, StreamHeader, StreamKind,
    },
    value::{DecodeError, Value, parse, prefix, token::Token, write::Write},
};

/// The topic of the records of RPC. It is no topic of packets.
pub(crate) const RPC_TOPIC: &str = "lk.rpc";

/// The keys in `meta`.
pub(super) const VERSION: &str = "rpc.version";
pub(super) const CODE: &str = "rpc.code";
pub(super) const PAYLOAD: &str = "rpc.payload";
pub(super) const FAULT: &str = "rpc.fault";

/// How a payload is stored that is not a JSON object.
pub(super) const PAYLOADS: &[&str] = &[VALUE, TEXT, BYTES, NONE];

/// JSON of another kind, under the key `value`.
const VALUE: &str = "value";
/// A text that is not JSON, under the key `value`.
const TEXT: &str = "text";
/// Bytes that are not UTF-8, under the key `value`.
const BYTES: &str = "bytes";
/// An empty payload.
const NONE: &str = "none";

/// Why a payload is missing.
pub(super) const FAULTS: &[&str] = &[ABANDONED, INCOMPLETE, TOO_LONG, TOO_LARGE, INVALID, NOT_EXPANDED];

const ABANDONED: &str = "abandoned";
const INCOMPLETE: &str = "incomplete";
const TOO_LONG: &str = "too_long";
const TOO_LARGE: &str = "too_large";
const INVALID: &str = "invalid";
const NOT_EXPANDED: &str = "not_expanded";

/// A compressed payload is expanded for the file up to this size, in bytes, and above it if that is at most
/// [`EXPANDED_TIMES`] its size in the packets: participants without rights can send payloads, too, and a few bytes could
/// fill the disk.
#[cfg(feature = "deflate")]
const EXPANDED_ANYWAY: usize = 256 * 1024;
#[cfg(feature = "deflate")]
const EXPANDED_TIMES: usize = 64;

/// A message of RPC that is not converted yet. The thread that writes the file converts it.
#[derive(Debug)]
pub(super) enum RpcPart {
    /// A message that has a packet of its own.
    Packet(RpcMessage),
    /// A stream of text: its header, and its payload as it was sent.
    Stream(Box<StreamHeader>, Result<Bytes, BrokenStream>),
}

/// A message of RPC in a recording.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum RpcRecord {
    Request { request: RpcRequest, has_timeout: bool, fault: Option<String> },
    Ack { id: String },
    Response(RpcResponse),
}

/// Why a frame on the topic of RPC is none of RPC.
const KINDS: &str = "a frame on the topic of RPC has type 6, 7 or 8";

impl RpcPart {
    /// Returns what a packet carries, if it is a message of RPC.
    pub(super) fn sent(packet: &Packet) -> Option<Self> {
        match &packet.form {
            Form::Rpc(message) => Some(Self::Packet(message.clone())),
            Form::Text(text) => {
                let mut header = StreamHeader::new("", packet.topic.clone(), text.length);
                (header.kind, header.compression) = (StreamKind::Text, text.compression);
                header.attributes.clone_from(&text.attributes);
                header.is_text().then(|| Self::Stream(Box::new(header), Ok(packet.payload.clone())))
            }
            Form::Data => None,
        }
    }

    /// Whether it is a stream.
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(..))
    }

    /// Returns the id of the request that it is or belongs to.
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Packet(RpcMessage::Request(it)) => &it.id,
            Self::Packet(RpcMessage::Ack { id }) => id,
            Self::Packet(RpcMessage::Response(it)) => &it.id,
            Self::Stream(header, _) => header.attributes.get(attribute::ID).map_or("", String::as_str),
        }
    }

    /// Whether it only asks whether its receiver is alive.
    pub(super) fn is_ping(&self) -> bool {
        matches!(self, Self::Packet(RpcMessage::Request(it)) if it.method == PING)
    }

    /// The sender in the file: none for a call of the server itself, whose identity is the id of the call.
    pub(super) fn sender(&self, from: Option<&Peer>) -> Option<Peer> {
        let is_servers = |from: &&Peer| match self {
            Self::Packet(RpcMessage::Request(it)) => {
                from.sid().is_empty() && from.identity().as_str() == it.id
            }
            _ => false,
        };
        from.filter(|from| !is_servers(from)).cloned()
    }

    /// Returns its size in the packets, in bytes.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Packet(message) => message.size(),
            Self::Stream(header, payload) => header.size() + payload.as_ref().map_or(0, Bytes::len),
        }
    }

    /// Whether it is a request, also one whose payload is missing.
    pub(super) fn is_request(&self) -> bool {
        match self {
            Self::Packet(message) => matches!(message, RpcMessage::Request(_)),
            Self::Stream(header, _) => header.topic != RPC_RESPONSE_TOPIC,
        }
    }

    /// Returns the frame for the file.
    pub(super) fn frame(&self) -> Bytes {
        self.frame_of(None)
    }

    /// Returns the frame for the file of a participant without rights: nothing is expanded, and JSON that would take more than
    /// this many bytes as values is stored as its text.
    pub(super) fn frame_within(&self, most: usize) -> Bytes {
        self.frame_of(Some(most))
    }

    fn frame_of(&self, most: Option<usize>) -> Bytes {
        match self {
            Self::Packet(RpcMessage::Ack { id }) => ack(id),
            Self::Packet(RpcMessage::Request(it)) => {
                let (version, timeout) = (Some(it.version).filter(|version| *version != 0), it.timeout_ms);
                let payload = Payload { bytes: Ok(&it.payload), most };
                request((&it.id, &it.method), version.map(u64::from), Some(timeout.into()), payload)
            }
            Self::Packet(RpcMessage::Response(it)) => match &it.outcome {
                Ok(payload) => result(&it.id, Payload { bytes: Ok(payload), most }),
                Err(error) => failure(&it.id, error, most),
            },
            Self::Stream(header, payload) => {
                let text = |key: &str| header.attributes.get(key).map(String::as_str);
                let number = |key: &str| text(key).and_then(|it| it.parse::<u32>().ok()).map(u64::from);
                let payload = match payload {
                    Ok(_) if most.is_some() && header.compression != Compression::None => Err(NOT_EXPANDED),
                    Ok(payload) => expanded(header, payload),
                    Err(broken) => Err(fault_of(*broken)),
                };
                let bytes = payload.as_ref().map(|it| &**it).map_err(|fault| *fault);
                let payload = Payload { bytes, most };
                let id = text(attribute::ID).unwrap_or_default();
                if header.topic == RPC_RESPONSE_TOPIC {
                    return result(id, payload);
                }
                let method = text(attribute::METHOD).unwrap_or_default();
                request((id, method), number(attribute::VERSION), number(attribute::TIMEOUT), payload)
            }
        }
    }
}

fn fault_of(broken: BrokenStream) -> &'static str {
    match broken {
        BrokenStream::Abandoned => ABANDONED,
        BrokenStream::Incomplete => INCOMPLETE,
        BrokenStream::TooLong => TOO_LONG,
        BrokenStream::TooLarge => TOO_LARGE,
    }
}

/// Returns the payload of a whole stream, or why it has none.
fn expanded(header: &StreamHeader, payload: &Bytes) -> Result<Bytes, &'static str> {
    match (header.compression, header.length) {
        (Compression::None, Some(length)) if length != payload.len() as u64 => Err(INVALID),
        (Compression::None, _) => Ok(payload.clone()),
        (_, Some(length)) if length > MAX_STREAM as u64 => Err(TOO_LARGE),
        #[cfg(feature = "deflate")]
        (Compression::Deflate, Some(length)) => {
            if length as usize > EXPANDED_ANYWAY.max(payload.len().saturating_mul(EXPANDED_TIMES)) {
                return Err(NOT_EXPANDED);
            }
            crate::protocol::deflate::expanded(payload, length as usize).map(Bytes::from).map_err(|_| INVALID)
        }
        _ => Err(INVALID),
    }
}

/// A payload as it is stored: `form` of it in `meta`, and its value in the body.
struct Stored {
    form: Option<&'static str>,
    /// A map, or none.
    value: Option<Vec<u8>>,
}

impl Stored {
    fn of(payload: &[u8], as_json: bool) -> Self {
        let Ok(text) = std::str::from_utf8(payload) else {
            return Self::wrapped(BYTES, |out| out.bin(payload));
        };
        if text.is_empty() {
            return Self { form: Some(NONE), value: None };
        }
        // Canonical JSON has a meaning of its own for keys that begin with `$`.
        let json = if as_json && !text.contains("\"$") { parse(text).ok() } else { None };
        match json {
            Some(json @ Json::Object(_)) => {
                Self { form: None, value: Some(Value::from(&json).as_bytes().to_vec()) }
            }
            Some(json) => Self::wrapped(VALUE, |out| out.extend_from_slice(Value::from(&json).as_bytes())),
            None => Self::wrapped(TEXT, |out| out.str(text)),
        }
    }

    fn wrapped(form: &'static str, write: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut out = Vec::new();
        out.map(1);
        out.str("value");
        write(&mut out);
        Self { form: Some(form), value: Some(out) }
    }
}

/// A payload to store, or why it is missing.
struct Payload<'a> {
    bytes: Result<&'a [u8], &'static str>,
    /// How long the frame may become, if that is limited.
    most: Option<usize>,
}

/// Builds a frame with a payload: as JSON if readers accept it, else as a text, else without it.
fn with_payload(
    Payload { bytes, most }: Payload<'_>,
    build: impl Fn(&Stored, Option<&'static str>) -> Vec<u8>,
) -> Bytes {
    let without = |fault| build(&Stored { form: None, value: None }, Some(fault)).into();
    let payload = match bytes {
        Ok(payload) => payload,
        Err(fault) => return without(fault),
    };
    for as_json in [true, false] {
        let frame = Bytes::from(build(&Stored::of(payload, as_json), None));
        if most.is_none_or(|most| frame.len() <= most) && read(&frame).is_ok() {
            return frame;
        }
    }
    without(TOO_LARGE)
}

fn read(frame: &Bytes) -> Result<(Frame, Message), DecodeError> {
    let frame = Frame::decode(frame.clone())?;
    let message = frame.message()?;
    Ok((frame, message))
}

/// Writes a frame. `body` and `meta` hold pairs of a key and a value.
fn frame(kind: u64, meta: &[(&str, Meta)], body: usize, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    out.map(3);
    out.str("type");
    out.unsigned(kind);
    out.str("meta");
    let known = || meta.iter().filter(|(_, value)| !matches!(value, Meta::Nothing));
    out.map(known().count());
    for (key, value) in known() {
        out.str(key);
        match value {
            Meta::Number(number) => out.unsigned(*number),
            Meta::Word(word) => out.str(word),
            Meta::Nothing => {}
        }
    }
    out.str("body");
    out.map(body);
    write(&mut out);
    out
}

/// A value in `meta`.
enum Meta {
    Number(u64),
    Word(&'static str),
    Nothing,
}

impl From<Option<&'static str>> for Meta {
    fn from(word: Option<&'static str>) -> Self {
        word.map_or(Self::Nothing, Self::Word)
    }
}

fn ack(id: &str) -> Bytes {
    let write = |out: &mut Vec<u8>| pair(out, "acknowledgedMessageId", id);
    frame(8, &[], 1, write).into()
}

fn request(
    (id, method): (&str, &str),
    version: Option<u64>,
    timeout_ms: Option<u64>,
    payload: Payload<'_>,
) -> Bytes {
    with_payload(payload, |stored, fault| {
        let version = version.map_or(Meta::Nothing, Meta::Number);
        let meta = [(VERSION, version), (PAYLOAD, stored.form.into()), (FAULT, fault.into())];
        frame(6, &meta, 4 + usize::from(timeout_ms.is_some()), |out| {
            pair(out, "id", id);
            pair(out, "toolName", method);
            out.str("parameters");
            match &stored.value {
                Some(value) => out.extend_from_slice(value),
                None => out.map(0),
            }
            pair(out, "execution", "client");
            if let Some(timeout) = timeout_ms {
                out.str("timeoutMs");
                out.unsigned(timeout.min(i32::MAX.unsigned_abs().into()));
            }
        })
    })
}

fn result(id: &str, payload: Payload<'_>) -> Bytes {
    with_payload(payload, |stored, fault| {
        let meta = [(PAYLOAD, stored.form.into()), (FAULT, fault.into())];
        frame(7, &meta, 2 + usize::from(stored.value.is_some()), |out| {
            pair(out, "id", id);
            out.str("success");
            out.bool(true);
            if let Some(value) = &stored.value {
                out.str("result");
                out.extend_from_slice(value);
            }
        })
    })
}

fn failure(id: &str, error: &RpcError, most: Option<usize>) -> Bytes {
    with_payload(Payload { bytes: Ok(error.data.as_bytes()), most }, |stored, fault| {
        // Data is optional.
        let form = stored.form.filter(|form| *form != NONE);
        let meta = [(CODE, Meta::Number(error.code.into())), (PAYLOAD, form.into()), (FAULT, fault.into())];
        frame(7, &meta, 4 + usize::from(stored.value.is_some()), |out| {
            pair(out, "id", id);
            out.str("success");
            out.bool(false);
            pair(out, "errorCode", &code_of(error));
            pair(out, "errorMessage", &error.message);
            if let Some(value) = &stored.value {
                out.str("result");
                out.extend_from_slice(value);
            }
        })
    })
}

fn pair(out: &mut Vec<u8>, key: &str, text: &str) {
    out.str(key);
    out.str(text);
}

/// The longest code that is taken from the data of an error, in bytes.
const MAX_CODE: usize = 64;

/// The code that an error stands for: the one in its data, as toolbridge writes it, or that of LiveKit's number.
fn code_of(error: &RpcError) -> String {
    let json = serde_json::from_str::<Json>(&error.data).ok();
    let told = json.as_ref().and_then(|json| json.get("code")).and_then(Json::as_str);
    if let Some(told) = told.filter(|told| !told.is_empty()) {
        return prefix(told, MAX_CODE).to_owned();
    }
    let code = match error.code {
        code::UNSUPPORTED_METHOD | code::UNSUPPORTED_VERSION => ErrorCode::UNKNOWN_TOOL,
        code::RESPONSE_TIMEOUT => ErrorCode::TIMEOUT,
        code::RESPONSE_TOO_LARGE => ErrorCode::RESULT_TOO_LARGE,
        _ => ErrorCode::EXECUTION_ERROR,
    };
    code.as_str().to_owned()
}

impl RpcRecord {
    /// Reads a frame on the topic of RPC.
    pub(crate) fn of(frame: &Frame, message: &Message) -> Option<Self> {
        let form = frame.meta_str(PAYLOAD);
        match message {
            Message::Acknowledgement(it) => Some(Self::Ack { id: it.acknowledged_message_id.clone()? }),
            Message::ToolUseRequest(it) => Some(Self::Request {
                request: RpcRequest {
                    version: frame.meta_get(VERSION).and_then(|it| it.decode().ok()).unwrap_or_default(),
                    ..RpcRequest::new(
                        it.id.as_str(),
                        &*it.tool_name,
                        payload_of(Some(&it.parameters), form),
                        timeout_of(it).unwrap_or_default(),
                    )
                },
                has_timeout: timeout_of(it).is_some(),
                fault: frame.meta_str(FAULT).map(str::to_owned),
            }),
            Message::ToolUseResult(it) => {
                Some(Self::Response(RpcResponse::new(it.id.as_str(), outcome(frame, it, form))))
            }
            _ => None,
        }
    }

    /// The attributes of the stream of a request.
    pub(crate) fn attributes(request: &RpcRequest, has_timeout: bool) -> Vec<(String, String)> {
        let mut all = vec![(attribute::ID, request.id.clone()), (attribute::METHOD, request.method.clone())];
        if has_timeout {
            all.push((attribute::TIMEOUT, request.timeout_ms.to_string()));
        }
        if request.version != 0 {
            all.push((attribute::VERSION, request.version.to_string()));
        }
        all.retain(|(_, value)| !value.is_empty());
        all.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }

    /// Returns the frame that a recording has for this packet, and whether the packet is a stream, if it carries a message of
    /// RPC.
    pub(crate) fn frame_of(packet: &Packet) -> Option<(Bytes, bool)> {
        RpcPart::sent(packet).map(|part| (part.frame(), part.is_stream()))
    }

    /// The name of the kind of a record, for people.
    pub(crate) fn name(message: &Message) -> &'static str {
        match message {
            Message::ToolUseRequest(_) => "RpcRequest",
            Message::ToolUseResult(_) => "RpcResponse",
            _ => "RpcAck",
        }
    }
}

fn timeout_of(request: &ToolUseRequest) -> Option<u32> {
    request.timeout_ms.and_then(|it| u32::try_from(it).ok())
}

fn outcome(frame: &Frame, it: &ToolUseResult, form: Option<&str>) -> Result<Bytes, RpcError> {
    if it.success {
        return Ok(payload_of(it.result.as_ref(), form));
    }
    let code = frame.meta_get(CODE).and_then(|it| it.decode().ok()).unwrap_or(code::APPLICATION);
    let data = it.result.as_ref().map(|data| payload_of(Some(data), form)).unwrap_or_default();
    let message = it.error_message.as_deref().unwrap_or_default();
    Err(RpcError::new(code, message, String::from_utf8_lossy(&data)))
}

/// Returns the payload that is stored in this value.
fn payload_of(stored: Option<&Value>, form: Option<&str>) -> Bytes {
    let Some(stored) = stored.filter(|_| form != Some(NONE)) else { return Bytes::new() };
    let inner = || stored.get("value");
    match form {
        None => stored.to_json_text().into(),
        Some(TEXT) => inner().and_then(|it| it.as_str().map(|it| it.to_owned().into())).unwrap_or_default(),
        Some(BYTES) => inner().and_then(|it| bytes_of(&it)).unwrap_or_default(),
        Some(_) => inner().map(|it| it.to_json_text().into()).unwrap_or_default(),
    }
}

fn bytes_of(value: &Value) -> Option<Bytes> {
    match Token::read(value.as_bytes(), 0).ok()? {
        (Token::Bin(data), _) => Some(Bytes::copy_from_slice(data)),
        _ => None,
    }
}

/// Decodes a record of RPC.
///
/// # Errors
/// If it is not a frame of RPC.
pub(super) fn decode(payload: &Bytes) -> Result<(Frame, Message), DecodeError> {
    let (frame, message) = read(payload)?;
    match &message {
        Message::ToolUseRequest(_) | Message::ToolUseResult(_) => Ok((frame, message)),
        Message::Acknowledgement(it) if it.acknowledged_message_id.is_some() => Ok((frame, message)),
        Message::Acknowledgement(_) => Err(DecodeError::Missing { field: "acknowledgedMessageId" }),
        _ => Err(DecodeError::Type { reason: KINDS.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::RPC_REQUEST_TOPIC;

    fn read_back(part: &RpcPart) -> (Frame, RpcRecord) {
        let (frame, message) = decode(&part.frame()).unwrap();
        let record = RpcRecord::of(&frame, &message).unwrap();
        (frame, record)
    }

    fn request(payload: &[u8]) -> RpcRequest {
        RpcRequest::new("r1", "get_battery", payload.to_vec(), 5_000)
    }

    /// The payload that a recording gives back.
    fn payload(payload: &[u8]) -> (Option<String>, Bytes) {
        let (frame, record) = read_back(&RpcPart::Packet(RpcMessage::Request(request(payload))));
        let RpcRecord::Request { request, fault: None, .. } = record else { panic!("{record:?}") };
        (frame.meta_str(PAYLOAD).map(str::to_owned), request.payload)
    }

    #[test]
    fn payload_is_a_value_if_it_is_json_and_comes_back() {
        let deep = format!("{}1{}", "[".repeat(80), "]".repeat(80));
        for (text, form) in [
            (r#"{"on":true,"list":[1,-2,0.5,null,"x"]}"#, None),
            ("{}", None),
            ("[1,2]", Some(VALUE)),
            ("0.8", Some(VALUE)),
            (r#""sunny""#, Some(VALUE)),
            ("null", Some(VALUE)),
            ("It is on.", Some(TEXT)),
            (" ", Some(TEXT)),
            (r#"{"$bin":"AA=="}"#, Some(TEXT)),
            (r#"{"a":1"#, Some(TEXT)),
            (&deep, Some(TEXT)),
            ("", Some(NONE)),
        ] {
            let (found, back) = payload(text.as_bytes());
            assert_eq!((found.as_deref(), &*back), (form, text.as_bytes()), "{text}");
        }
        assert_eq!(payload(b"\xff\x00"), (Some(BYTES.to_owned()), Bytes::from_static(b"\xff\x00")));
        assert_eq!(payload(b" {\"a\": 1.0} ").1, r#"{"a":1.0}"#, "JSON is written in one way");
    }

    #[test]
    fn messages_come_back_from_their_frames() {
        let (frame, record) = read_back(&RpcPart::Packet(RpcMessage::Request(request(b"{}"))));
        assert_eq!(frame.to_json().unwrap()["body"]["toolName"], "get_battery");
        let expected = RpcRecord::Request { request: request(b"{}"), has_timeout: true, fault: None };
        assert_eq!(record, expected);
        let ack = RpcPart::Packet(RpcMessage::Ack { id: "r1".to_owned() });
        assert_eq!(read_back(&ack).1, RpcRecord::Ack { id: "r1".to_owned() });
        for outcome in [
            Ok(Bytes::from_static(b"0.8")),
            Ok(Bytes::new()),
            Err(RpcError::new(1500, "busy: no", r#"{"code":"busy","message":"no"}"#)),
            Err(RpcError::new(1400, "unsupported", "")),
            Err(RpcError::new(1502, "late", "some text")),
        ] {
            let response = RpcResponse::new("r1", outcome);
            let part = RpcPart::Packet(RpcMessage::Response(response.clone()));
            assert_eq!(read_back(&part).1, RpcRecord::Response(response));
        }
        let code = |number, data: &str| {
            let error = RpcError::new(number, "", data);
            read_back(&RpcPart::Packet(RpcMessage::Response(RpcResponse::new("r", Err(error))))).0
        };
        for (number, data, ours) in [
            (1500, r#"{"code":"out_of_range"}"#, "out_of_range"),
            (1400, "", "unknown_tool"),
            (1502, "{", "timeout"),
            (1503, "", "execution_error"),
        ] {
            assert_eq!(code(number, data).to_json().unwrap()["body"]["errorCode"], ours);
        }
    }

    fn stream(topic: &'static str, length: usize, payload: Result<&[u8], BrokenStream>) -> RpcPart {
        let mut header = StreamHeader::new("s", topic, length as u64);
        header.kind = StreamKind::Text;
        for (key, value) in [
            (attribute::ID, "r2"),
            (attribute::METHOD, "echo"),
            (attribute::TIMEOUT, "0"),
            (attribute::VERSION, "2"),
        ] {
            header.attributes.insert(key.to_owned(), value.to_owned());
        }
        RpcPart::Stream(Box::new(header), payload.map(Bytes::copy_from_slice))
    }

    #[test]
    fn stream_is_a_request_or_an_answer_or_says_why_it_has_no_payload() {
        let (_, record) = read_back(&stream(RPC_REQUEST_TOPIC, 9, Ok(br#"{"n": 21}"#)));
        let mut expected = RpcRequest::new("r2", "echo", r#"{"n":21}"#, 0);
        expected.version = 2;
        assert_eq!(record, RpcRecord::Request { request: expected, has_timeout: true, fault: None });
        let (_, record) = read_back(&stream(RPC_RESPONSE_TOPIC, 2, Ok(b"42")));
        assert_eq!(record, RpcRecord::Response(RpcResponse::new("r2", Ok(Bytes::from_static(b"42")))));
        for (part, why) in [
            (stream(RPC_REQUEST_TOPIC, 3, Ok(b"42")), INVALID),
            (stream(RPC_REQUEST_TOPIC, 3, Err(BrokenStream::Abandoned)), ABANDONED),
            (stream(RPC_REQUEST_TOPIC, 3, Err(BrokenStream::Incomplete)), INCOMPLETE),
            (stream(RPC_REQUEST_TOPIC, 3, Err(BrokenStream::TooLong)), TOO_LONG),
            (stream(RPC_REQUEST_TOPIC, 3, Err(BrokenStream::TooLarge)), TOO_LARGE),
        ] {
            let (frame, record) = read_back(&part);
            assert!(matches!(record, RpcRecord::Request { fault: Some(it), .. } if it == why));
            assert!(FAULTS.contains(&frame.meta_str(FAULT).unwrap()));
        }
    }

    #[cfg(feature = "deflate")]
    #[test]
    fn sec_r3_compressed_payload_is_expanded_within_a_limit() {
        let text = format!(r#"{{"text":"{}"}}"#, (0..9_000).map(|n| n.to_string()).collect::<String>());
        let part = |text: &[u8], length: usize| {
            let small = crate::protocol::deflate::compressed(text).unwrap();
            let RpcPart::Stream(mut header, payload) = stream(RPC_REQUEST_TOPIC, length, Ok(&small)) else {
                panic!()
            };
            header.compression = Compression::Deflate;
            RpcPart::Stream(header, payload)
        };
        let payload_of = |part: &RpcPart| match read_back(part).1 {
            RpcRecord::Request { request, fault: None, .. } => Ok(request.payload),
            RpcRecord::Request { fault: Some(fault), .. } => Err(fault),
            other => panic!("{other:?}"),
        };
        assert_eq!(payload_of(&part(text.as_bytes(), text.len())), Ok(text.clone().into()));
        assert_eq!(payload_of(&part(text.as_bytes(), text.len() - 1)), Err(INVALID.to_owned()));
        let zeros = |size: usize| payload_of(&part(&vec![b'0'; size], size)).map(|it| it.len());
        assert_eq!(zeros(EXPANDED_ANYWAY), Ok(EXPANDED_ANYWAY));
        assert_eq!(zeros(EXPANDED_ANYWAY + 1), Err(NOT_EXPANDED.to_owned()));
        assert_eq!(payload_of(&part(text.as_bytes(), MAX_STREAM + 1)), Err(TOO_LARGE.to_owned()));
    }

    #[cfg(feature = "deflate")]
    #[test]
    fn sec_r7_record_of_a_strangers_request_is_as_long_as_its_packets_at_most() {
        let text = vec![b' '; 250_000];
        let small = crate::protocol::deflate::compressed(&text).unwrap();
        let RpcPart::Stream(mut header, payload) = stream(RPC_REQUEST_TOPIC, text.len(), Ok(&small)) else {
            panic!()
        };
        header.compression = Compression::Deflate;
        // As values, each of these numbers has nine bytes.
        let numbers = format!("[{}1.5]", "1.5,".repeat(10_000));
        for (part, why, form) in [
            (RpcPart::Stream(header, payload), Some(NOT_EXPANDED), None),
            (RpcPart::Packet(RpcMessage::Request(request(numbers.as_bytes()))), None, Some(TEXT)),
            (RpcPart::Packet(RpcMessage::Request(request(b"{}"))), None, None),
        ] {
            let most = part.size() + 256;
            let frame = part.frame_within(most);
            assert!(frame.len() <= most, "{} of {most}", frame.len());
            let (frame, message) = decode(&frame).unwrap();
            assert_eq!((frame.meta_str(FAULT), frame.meta_str(PAYLOAD)), (why, form));
            assert!(matches!(RpcRecord::of(&frame, &message), Some(RpcRecord::Request { .. })));
        }
    }

    #[test]
    fn payload_that_no_frame_can_hold_is_left_out() {
        let large = vec![b'x'; crate::value::Limits::BYTES];
        let (frame, record) = read_back(&stream(RPC_REQUEST_TOPIC, large.len(), Ok(&large)));
        assert!(matches!(record, RpcRecord::Request { fault: Some(it), .. } if it == TOO_LARGE));
        assert!(frame.as_bytes().len() < 1_000);
    }

    #[test]
    fn frame_that_is_none_of_rpc_is_malformed() {
        let frame = |json: &str| Frame::from_json(json).unwrap().into_bytes();
        let text = |json: &str| decode(&frame(json)).unwrap_err().to_string();
        assert_eq!(text(r#"{"type": 72, "body": {}}"#), KINDS);
        let no_id = text(r#"{"type": 8, "body": {"acknowledgedStanzaId": 1, "success": true}}"#);
        assert_eq!(no_id, "`acknowledgedMessageId` is missing");
        assert!(decode(&Bytes::from_static(b"\xc1")).is_err());
        let odd = r#"{"type": 6, "meta": {"rpc.version": "x", "rpc.payload": 7, "rpc.fault": []},
            "body": {"id": "a", "toolName": "t", "parameters": {"value": []}, "execution": "client", "timeoutMs": -1}}"#;
        let (frame, message) = decode(&frame(odd)).unwrap();
        let record = RpcRecord::of(&frame, &message).unwrap();
        assert!(matches!(record, RpcRecord::Request { request, .. } if request.version == 0));
    }
}
