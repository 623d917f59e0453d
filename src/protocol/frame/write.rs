//! Writes a message as a frame, in the one dialect that is written (`wire.md`, section 7).

use bytes::Bytes;

use super::{
    Acknowledgement, Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, Meta, RegisteredTool,
    ToolProgress, ToolUseRequest, ToolUseResult, ToolsRegisterAck, ViewUpdate,
};
use crate::{
    tool::{ErrorCode, ToolError},
    value::{EncodeError, Limits, Value, scan::measure, write::Write},
};

impl Frame {
    /// Creates a frame with this message: the five keys in their order, without absent optional fields, and with the
    /// copies that older peers read (`requestId`, `conversationId`, `messageId`).
    ///
    /// A result that is not a map is written as `{"value": …}`.
    ///
    /// # Errors
    /// If the frame would exceed the default [`Limits`] or break the wire contract: parameters that are not a map, a
    /// stanza of −2³¹, a stanza of 0 on any type but 8.
    pub fn write(
        stanza_id: i32,
        conversation_id: &str,
        meta: &Meta,
        message: &Message,
    ) -> Result<Bytes, EncodeError> {
        let mut out = Vec::with_capacity(HEADER + largest_part(message));
        let kind = message.kind();
        header(&mut out, stanza_id, conversation_id, meta, kind)?;
        message_body(&mut out, conversation_id, message)?;
        // Texts and bodies are already valid, and the keys here are fixed; only their sum may exceed a limit.
        measure(&out, &Limits::default())?;
        Ok(out.into())
    }

    /// Creates a frame around a finished body: writes a header and copies the body into a buffer that is cleared
    /// first and can be reused.
    ///
    /// The body is not checked: it must be one valid value, such as a decoded frame's body.
    ///
    /// # Errors
    /// If the frame would be larger than the default limit, or as [`write`](Frame::write) for the stanza.
    pub fn relay(
        out: &mut Vec<u8>,
        stanza_id: i32,
        conversation_id: &str,
        meta: &Meta,
        kind: Kind,
        body: &[u8],
    ) -> Result<(), EncodeError> {
        out.clear();
        header(out, stanza_id, conversation_id, meta, kind)?;
        let size = out.len() + body.len();
        if size > Limits::BYTES {
            return Err(EncodeError::TooLarge { size, limit: Limits::BYTES });
        }
        out.extend_from_slice(body);
        Ok(())
    }
}

/// Initial capacity for everything except a message's data, in bytes, so that most frames are written without
/// reallocation.
const HEADER: usize = 384;

/// Returns the length of the data that a message carries.
fn largest_part(message: &Message) -> usize {
    match message {
        Message::ToolUseRequest(request) => request.parameters.as_bytes().len(),
        Message::ToolUseResult(result) => result.result.as_ref().map_or(0, |body| body.as_bytes().len()),
        Message::Other(_, body) => body.as_bytes().len(),
        _ => 0,
    }
}

fn header(
    out: &mut Vec<u8>,
    stanza_id: i32,
    conversation_id: &str,
    meta: &Meta,
    kind: Kind,
) -> Result<(), EncodeError> {
    if stanza_id == i32::MIN {
        return Err(EncodeError::Field { field: "stanzaId", reason: "it has no absolute value" });
    }
    if stanza_id == 0 && kind != Kind::ACKNOWLEDGEMENT {
        return Err(EncodeError::Field { field: "stanzaId", reason: "0 is for acknowledgements only" });
    }
    out.map(5);
    out.str("stanzaId");
    out.signed(stanza_id.into());
    out.str("conversationId");
    out.str(conversation_id);
    out.str("type");
    out.unsigned(kind.code().into());
    out.str("meta");
    meta.write(out)?;
    out.str("body");
    Ok(())
}

fn message_body(out: &mut Vec<u8>, room: &str, message: &Message) -> Result<(), EncodeError> {
    if let Message::Other(_, body) = message {
        out.extend_from_slice(body.as_bytes());
        return Ok(());
    }
    let mut map = MapWriter::new(out);
    match message {
        Message::Error(error) => write_error(&mut map, room, error),
        Message::ToolUseRequest(request) => write_request(&mut map, room, request)?,
        Message::ToolUseResult(result) => write_result(&mut map, room, result),
        Message::Acknowledgement(ack) => write_acknowledgement(&mut map, room, ack),
        Message::ControlStop(stop) => write_stop(&mut map, room, stop),
        Message::Configuration(configuration) => write_configuration(&mut map, room, configuration),
        Message::ToolsRegister(register) => write_tools(&mut map, &register.tools)?,
        Message::ToolsRegisterAck(ack) => write_register_ack(&mut map, ack),
        Message::ToolProgress(progress) => write_progress(&mut map, progress),
        Message::ViewUpdate(view) => write_view(&mut map, view),
        Message::Heartbeat | Message::Other(..) => {}
    }
    Ok(())
}

fn write_error(map: &mut MapWriter<'_>, room: &str, error: &ErrorMessage) {
    let conversation = if error.conversation_id.is_empty() { room } else { &error.conversation_id };
    map.text("id", &error.id);
    map.text("conversationId", conversation);
    map.integer("code", Some(error.code));
    map.text("message", &error.message);
    map.integer("severity", Some(error.severity));
    map.bool("recoverable", Some(error.recoverable));
    map.maybe("originatingId", error.originating_id.as_deref());
}

fn write_request(map: &mut MapWriter<'_>, room: &str, request: &ToolUseRequest) -> Result<(), EncodeError> {
    map.text("id", request.id.as_str());
    map.text("toolName", &request.tool_name);
    if request.parameters.is_nil() {
        map.body("parameters", Some(&Value::empty()));
    } else if request.parameters.is_map() {
        map.body("parameters", Some(&request.parameters));
    } else {
        return Err(EncodeError::NotAMap { field: "parameters" });
    }
    match &request.execution {
        Ok(execution) => map.text("execution", execution.as_str()),
        Err(_) => {
            let reason = "it must be `server`, `client` or `either`";
            return Err(EncodeError::Field { field: "execution", reason });
        }
    }
    map.integer("timeoutMs", request.timeout_ms);
    map.conversation(request.conversation_id.as_deref(), room);
    // Some clients need a text here. A call that was not caused by a message of the assistant uses its own id.
    map.text("messageId", request.message_id.as_deref().unwrap_or(request.id.as_str()));
    Ok(())
}

fn write_result(map: &mut MapWriter<'_>, room: &str, result: &ToolUseResult) {
    map.text("id", result.id.as_str());
    map.bool("success", Some(result.success));
    match &result.result {
        Some(body) if body.is_map() => map.body("result", Some(body)),
        Some(body) => map.wrapped("result", body),
        None => {}
    }
    let failed = !result.success;
    let code = result.error_code.as_ref().map(ErrorCode::as_str);
    let code = code.or_else(|| failed.then_some("execution_error"));
    map.maybe("errorCode", code);
    let message = result.error_message.as_deref();
    map.maybe("errorMessage", message.or_else(|| failed.then_some(ToolError::LOCAL_MESSAGE)));
    map.text("requestId", result.id.as_str());
    map.conversation(result.conversation_id.as_deref(), room);
}

fn write_acknowledgement(map: &mut MapWriter<'_>, room: &str, ack: &Acknowledgement) {
    map.conversation(ack.conversation_id.as_deref(), room);
    map.integer("acknowledgedStanzaId", ack.acknowledged_stanza_id);
    map.bool("success", ack.success);
    map.maybe("acknowledgedMessageId", ack.acknowledged_message_id.as_deref());
    map.integer("lastSeenStanzaId", ack.last_seen_stanza_id);
    map.maybe("notes", ack.notes.as_deref());
}

fn write_stop(map: &mut MapWriter<'_>, room: &str, stop: &ControlStop) {
    map.conversation(stop.conversation_id.as_deref(), room);
    map.maybe("targetId", stop.target_id.as_deref());
    map.maybe("reason", stop.reason.as_deref());
    map.maybe("stopType", stop.stop_type.as_deref());
}

fn write_configuration(map: &mut MapWriter<'_>, room: &str, configuration: &Configuration) {
    map.conversation(configuration.conversation_id.as_deref(), room);
    map.integer("lastSequenceSeen", configuration.last_sequence_seen);
    map.maybe("clientVersion", configuration.client_version.as_deref());
    map.maybe("preferredLanguage", configuration.preferred_language.as_deref());
    map.maybe("device", configuration.device.as_deref());
    if let Some(features) = &configuration.features {
        let out = map.key("features");
        out.array(features.len());
        for feature in features {
            out.str(feature);
        }
    }
}

fn write_tools(map: &mut MapWriter<'_>, tools: &[RegisteredTool]) -> Result<(), EncodeError> {
    let out = map.key("tools");
    out.array(tools.len());
    for tool in tools {
        if tool.annotations.as_ref().is_some_and(|annotations| !annotations.is_map()) {
            return Err(EncodeError::NotAMap { field: "annotations" });
        }
        let mut entry = MapWriter::new(out);
        entry.text("name", &tool.name);
        entry.text("description", &tool.description);
        entry.body("inputSchema", tool.input_schema.as_ref());
        entry.body("annotations", tool.annotations.as_ref());
    }
    Ok(())
}

fn write_register_ack(map: &mut MapWriter<'_>, ack: &ToolsRegisterAck) {
    map.bool("success", Some(ack.success));
    map.integer("toolCount", Some(ack.tool_count));
    map.maybe("error", ack.error.as_deref());
}

fn write_progress(map: &mut MapWriter<'_>, progress: &ToolProgress) {
    map.text("id", progress.id.as_str());
    map.text("status", progress.status.as_str());
    map.body("content", progress.content.as_ref());
    map.maybe("message", progress.message.as_deref());
}

fn write_view(map: &mut MapWriter<'_>, view: &ViewUpdate) {
    map.text("view", &view.view);
    map.body("content", Some(&view.content));
    map.maybe("text", view.text.as_deref());
}

/// A map of at most 15 entries, counted while they are written.
struct MapWriter<'a> {
    out: &'a mut Vec<u8>,
    head: usize,
}

impl<'a> MapWriter<'a> {
    fn new(out: &'a mut Vec<u8>) -> Self {
        let head = out.len();
        out.map(0);
        Self { out, head }
    }

    fn key(&mut self, name: &str) -> &mut Vec<u8> {
        self.out[self.head] += 1;
        self.out.str(name);
        self.out
    }

    fn text(&mut self, name: &str, text: &str) {
        self.key(name).str(text);
    }

    fn maybe(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn integer(&mut self, name: &str, value: Option<i32>) {
        if let Some(value) = value {
            self.key(name).signed(value.into());
        }
    }

    fn bool(&mut self, name: &str, value: Option<bool>) {
        if let Some(value) = value {
            self.key(name).bool(value);
        }
    }

    fn body(&mut self, name: &str, body: Option<&Value>) {
        if let Some(body) = body {
            self.key(name).extend_from_slice(body.as_bytes());
        }
    }

    fn wrapped(&mut self, name: &str, body: &Value) {
        let out = self.key(name);
        out.map(1);
        out.str("value");
        out.extend_from_slice(body.as_bytes());
    }

    /// Writes the room's name: the message's own, otherwise the envelope's, otherwise none.
    fn conversation(&mut self, own: Option<&str>, room: &str) {
        self.maybe("conversationId", own.or_else(|| (!room.is_empty()).then_some(room)));
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::{tool::CallId, value::DecodeError};

    fn write(parameters: Value) -> Result<Bytes, EncodeError> {
        Frame::write(-1, "room", &Meta::new(), &request(parameters, "tool"))
    }

    fn request(parameters: Value, tool: &str) -> Message {
        Message::ToolUseRequest(ToolUseRequest {
            id: CallId::known("id"),
            tool_name: tool.into(),
            parameters,
            execution: Ok(crate::tool::Execution::Client),
            timeout_ms: None,
            conversation_id: None,
            message_id: None,
        })
    }

    #[test]
    fn valid_parts_may_exceed_a_limit_together() {
        let deep = |levels: usize| Value::from((0..levels).fold(json!({}), |inner, _| json!({"a": inner})));
        // The envelope and its body enclose the parameters.
        assert!(Frame::decode(write(deep(61)).unwrap()).is_ok());
        for levels in [62, 63, 1000] {
            let refused = write(deep(levels));
            assert!(matches!(refused, Err(EncodeError::Invalid(DecodeError::TooDeep { .. }))), "{levels}");
        }
        let many = |count: usize| Value::from(json!({"a": vec![0; count]}));
        assert!(Frame::decode(write(many(999_900)).unwrap()).is_ok());
        let refused = write(many(999_999));
        assert!(matches!(refused, Err(EncodeError::Invalid(DecodeError::TooManyValues { .. }))));
        let large = write(Value::from(json!({"a": "x".repeat(Limits::BYTES)})));
        assert!(matches!(large, Err(EncodeError::TooLarge { .. })));
    }

    fn json() -> impl Strategy<Value = Json> {
        let leaf = prop_oneof![
            Just(Json::Null),
            any::<i64>().prop_map(Json::from),
            any::<f64>().prop_map(Json::from),
            ".{0,40}".prop_map(Json::from),
        ];
        leaf.prop_recursive(4, 40, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..20).prop_map(Json::from),
                prop::collection::btree_map(".{0,12}", inner, 0..40)
                    .prop_map(|map| Json::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn written_bytes_are_valid(value in json(), name in ".{0,300}", room in ".{0,40}", key in ".{0,12}") {
            let meta = Meta::new().with_text(&key, &name).with_body("value", value.clone().into());
            let messages = [
                request(json!({"value": value}).into(), &name),
                Message::ToolUseResult(ToolUseResult {
                    id: CallId::known("id"),
                    success: true,
                    result: Some(value.clone().into()),
                    error_code: None,
                    error_message: Some(name.clone()),
                    conversation_id: Some(room.clone()),
                    result_id: None,
                }),
                Message::Other(5, value.into()),
            ];
            for message in messages {
                if let Ok(bytes) = Frame::write(7, &room, &meta, &message) {
                    prop_assert!(Frame::decode(bytes).is_ok());
                }
            }
        }
    }
}
