//! Reads a message from a frame's body, with all dialects resolved (`wire.md`, section 7).

use bytes::Bytes;

use super::{
    Acknowledgement, Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, RegisteredTool,
    ToolProgress, ToolUseRequest, ToolUseResult, ToolsRegister, ToolsRegisterAck, ViewUpdate,
    dialect::{self, CALL_OF_RESULT, Fields, as_text, expect, required},
};
use crate::{
    tool::{CallId, ErrorCode, Execution, ProgressStatus},
    value::{DecodeError, Value, text_of},
};

impl Frame {
    /// Reads the body according to its type, in any dialect.
    ///
    /// # Errors
    /// If a required field is missing, a field has the wrong type, or two spellings of one field differ. The frame is
    /// then malformed: error code 101, with [`peek_id`](Frame::peek_id) as the `originatingId`. The body of an
    /// unknown type never fails.
    pub fn message(&self) -> Result<Message, DecodeError> {
        let Some(table) = dialect::fields(self.kind()) else {
            return Ok(Message::Other(self.kind().code(), self.body()));
        };
        let Some(body) = self.body_span() else {
            return match self.kind() {
                Kind::HEARTBEAT => Ok(Message::Heartbeat),
                _ => Err(DecodeError::Missing { field: "body" }),
            };
        };
        let fields = Fields::find(self.bytes(), body, table)?;
        Ok(match self.kind() {
            Kind::ERROR => Message::Error(error(&fields)?),
            Kind::TOOL_USE_REQUEST => Message::ToolUseRequest(request(&fields)?),
            Kind::TOOL_USE_RESULT => Message::ToolUseResult(result(&fields)?),
            Kind::ACKNOWLEDGEMENT => Message::Acknowledgement(acknowledgement(&fields)?),
            Kind::CONTROL_STOP => Message::ControlStop(stop(&fields)?),
            Kind::CONFIGURATION => Message::Configuration(configuration(self.bytes(), &fields)?),
            Kind::TOOLS_REGISTER => Message::ToolsRegister(register(self.bytes(), &fields)?),
            Kind::TOOLS_REGISTER_ACK => Message::ToolsRegisterAck(register_ack(&fields)?),
            Kind::TOOL_PROGRESS => Message::ToolProgress(progress(&fields)?),
            Kind::VIEW_UPDATE => Message::ViewUpdate(view_update(&fields)?),
            _ => Message::Heartbeat,
        })
    }

    /// Returns the call that a frame of type 6, 7 or 1000 belongs to, even if the rest of its body is malformed.
    /// Nothing is allocated.
    pub fn peek_id(&self) -> Option<&str> {
        let body = self.body_span()?;
        dialect::call_fields(self.kind()).find_map(|field| {
            let entries = dialect::entries(self.bytes(), body).ok()?.flatten();
            let mut values = entries.filter(|entry| field.is_called(entry.key)).map(|entry| entry.value);
            values.find_map(|value| dialect::text_at(self.bytes(), value).filter(|id| !id.is_empty()))
        })
    }
}

fn error(fields: &Fields<'_>) -> Result<ErrorMessage, DecodeError> {
    Ok(ErrorMessage {
        id: required("id", fields.string("id")?)?,
        conversation_id: required("conversationId", fields.string("conversationId")?)?,
        code: required("code", fields.integer("code")?)?,
        message: required("message", fields.string("message")?)?,
        severity: required("severity", fields.integer("severity")?)?,
        recoverable: required("recoverable", fields.bool("recoverable")?)?,
        originating_id: fields.string("originatingId")?,
    })
}

fn request(fields: &Fields<'_>) -> Result<ToolUseRequest, DecodeError> {
    Ok(ToolUseRequest {
        id: call_id(fields)?,
        tool_name: required("toolName", fields.string("toolName")?)?,
        parameters: fields.body("parameters").unwrap_or_default(),
        execution: execution(fields)?,
        timeout_ms: fields.integer("timeoutMs")?,
        conversation_id: fields.string("conversationId")?,
        message_id: fields.string("messageId")?,
    })
}

/// An unknown value is kept unchanged, so that the refusal (301) can name it.
fn execution(fields: &Fields<'_>) -> Result<Result<Execution, String>, DecodeError> {
    let Some(written) = fields.body("execution") else { return Ok(Err(String::new())) };
    match written.as_str().and_then(Execution::from_text) {
        Some(execution) => Ok(Ok(execution)),
        None => Ok(Err(text_of(written.as_bytes())?)),
    }
}

fn result(fields: &Fields<'_>) -> Result<ToolUseResult, DecodeError> {
    let ids = ResultIds::of(fields)?;
    let failure = Failure::of(fields)?;
    Ok(ToolUseResult {
        id: CallId::known(ids.call),
        success: required("success", fields.bool("success")?)?,
        result: fields.body("result"),
        error_code: failure.code,
        error_message: failure.message,
        conversation_id: fields.string("conversationId")?,
        result_id: ids.own.map(str::to_owned),
    })
}

/// The call of a result, and the result's own id in dialects that have one.
pub(super) struct ResultIds<'a> {
    pub(super) call: &'a str,
    pub(super) own: Option<&'a str>,
    /// Whether `requestId` named the call.
    pub(super) by_request: bool,
    /// Whether `previousId` named the call.
    pub(super) by_previous: bool,
}

impl<'a> ResultIds<'a> {
    pub(super) fn of(fields: &Fields<'a>) -> Result<Self, DecodeError> {
        let [request, id, previous] = CALL_OF_RESULT.map(|name| fields.text(name));
        let (request, id, previous) = (request?, id?, previous?);
        let call = required("id", request.or(id).or(previous))?;
        let own = id.filter(|id| *id != call);
        let named = fields.text("resultId")?;
        if let (Some(own), Some(named)) = (own, named)
            && own != named
        {
            let place = |name| fields.span(name).unwrap_or_default().start as usize;
            return Err(DecodeError::Unlike {
                field: "resultId",
                first: place("id"),
                offset: place("resultId"),
            });
        }
        let by_previous = request.or(id).is_none();
        Ok(Self { call, own: own.or(named), by_request: request.is_some(), by_previous })
    }
}

/// Why a call failed, from `errorCode` and `errorMessage`, or from `error` in any of its forms.
pub(super) struct Failure {
    pub(super) code: Option<ErrorCode>,
    pub(super) message: Option<String>,
}

impl Failure {
    pub(super) fn of(fields: &Fields<'_>) -> Result<Self, DecodeError> {
        let code = fields.text("errorCode")?.map(error_code);
        let message = fields.string("errorMessage")?;
        let Some(error) = fields.body("error") else { return Ok(Self { code, message }) };
        let inner = |key| error.get(key).as_ref().and_then(Value::as_str).map(str::to_owned);
        let (other_code, text) =
            if error.is_map() { (inner("code"), inner("message")) } else { (None, None) };
        let other_code = other_code.as_deref().map(error_code);
        let text = match text {
            Some(text) => text,
            None => text_of(error.as_bytes())?,
        };
        let place = |name| fields.span(name).unwrap_or_default().start as usize;
        let unlike = |field| DecodeError::Unlike { field, first: place(field), offset: place("error") };
        if other_code.is_some() && code.is_some() && other_code != code {
            return Err(unlike("errorCode"));
        }
        if message.as_ref().is_some_and(|message| *message != text) {
            return Err(unlike("errorMessage"));
        }
        Ok(Self { code: code.or(other_code), message: Some(text) })
    }
}

fn error_code(code: &str) -> ErrorCode {
    older_code(code).unwrap_or_else(|| code.into())
}

/// Returns the standard code that this one is in exact upper case, as older programs write the four.
pub(super) fn older_code(code: &str) -> Option<ErrorCode> {
    Some(match code {
        "UNKNOWN_TOOL" => ErrorCode::UNKNOWN_TOOL,
        "TIMEOUT" => ErrorCode::TIMEOUT,
        "EXECUTION_ERROR" => ErrorCode::EXECUTION_ERROR,
        "INVALID_PARAMETERS" => ErrorCode::INVALID_PARAMETERS,
        _ => return None,
    })
}

fn acknowledgement(fields: &Fields<'_>) -> Result<Acknowledgement, DecodeError> {
    Ok(Acknowledgement {
        conversation_id: fields.string("conversationId")?,
        acknowledged_stanza_id: fields.integer("acknowledgedStanzaId")?,
        success: fields.bool("success")?,
        acknowledged_message_id: fields.string("acknowledgedMessageId")?,
        last_seen_stanza_id: fields.integer("lastSeenStanzaId")?,
        notes: fields.string("notes")?,
    })
}

fn stop(fields: &Fields<'_>) -> Result<ControlStop, DecodeError> {
    Ok(ControlStop {
        conversation_id: fields.string("conversationId")?,
        target_id: fields.string("targetId")?,
        reason: fields.string("reason")?,
        stop_type: fields.string("stopType")?,
    })
}

fn configuration(bytes: &Bytes, fields: &Fields<'_>) -> Result<Configuration, DecodeError> {
    let name = |item| expect(bytes, item, "features", "a string", as_text).map(str::to_owned);
    let names = |items: Vec<_>| items.into_iter().map(name).collect::<Result<Vec<_>, _>>();
    let features = fields.list("features")?.map(names).transpose()?;
    Ok(Configuration {
        conversation_id: fields.string("conversationId")?,
        last_sequence_seen: fields.integer("lastSequenceSeen")?,
        client_version: fields.string("clientVersion")?,
        preferred_language: fields.string("preferredLanguage")?,
        device: fields.body("device").map(|device| text_of(device.as_bytes())).transpose()?,
        features,
    })
}

fn register(bytes: &Bytes, fields: &Fields<'_>) -> Result<ToolsRegister, DecodeError> {
    let tools = required("tools", fields.list("tools")?)?;
    let tools = tools.into_iter().map(|tool| {
        let fields = Fields::find(bytes, tool, dialect::TOOL)?;
        Ok(RegisteredTool {
            name: required("name", fields.string("name")?)?,
            description: required("description", fields.string("description")?)?,
            input_schema: fields.body("inputSchema"),
            annotations: fields.map("annotations")?,
        })
    });
    Ok(ToolsRegister { tools: tools.collect::<Result<Vec<_>, DecodeError>>()? })
}

fn register_ack(fields: &Fields<'_>) -> Result<ToolsRegisterAck, DecodeError> {
    Ok(ToolsRegisterAck {
        success: required("success", fields.bool("success")?)?,
        tool_count: required("toolCount", fields.integer("toolCount")?)?,
        error: fields.string("error")?,
    })
}

fn progress(fields: &Fields<'_>) -> Result<ToolProgress, DecodeError> {
    let status = required("status", fields.text("status")?)?;
    Ok(ToolProgress {
        id: call_id(fields)?,
        status: ProgressStatus::from_text(status).ok_or_else(|| DecodeError::Field {
            field: "status",
            offset: fields.span("status").unwrap_or_default().start as usize,
            expected: "`pending`, `in_progress`, `completed` or `failed`",
            found: "another word",
        })?,
        content: fields.body("content"),
        message: fields.string("message")?,
    })
}

fn view_update(fields: &Fields<'_>) -> Result<ViewUpdate, DecodeError> {
    Ok(ViewUpdate {
        view: required("view", fields.string("view")?)?,
        content: fields.body("content").unwrap_or_else(Value::nil),
        text: fields.string("text")?,
    })
}

fn call_id(fields: &Fields<'_>) -> Result<CallId, DecodeError> {
    required("id", fields.text("id")?).map(CallId::known)
}
