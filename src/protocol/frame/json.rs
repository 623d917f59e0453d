//! Converts frames to and from canonical JSON (`wire.md`, section 9), for display and as input of `frame
//! encode`.

use serde_json::{Map, Number, Value};

use super::{
    Frame, Kind, Message, ToolUseResult, dialect,
    dialect::{Fields, MapEntry},
    read::{Failure, ResultIds},
};
use crate::{
    tool::{
        ToolResult,
        public::{public_message, public_value, strip},
    },
    value::{DecodeError, object, parse, scan::Span, to_json, token::Token, write::Write, write_json},
};

impl Frame {
    /// Returns the frame as canonical JSON, with all dialects resolved.
    ///
    /// # Errors
    /// If the body is malformed; see [`message`](Frame::message).
    pub fn to_json(&self) -> Result<Value, DecodeError> {
        self.message()?;
        let mut json = Map::new();
        json.insert("stanzaId".into(), self.stanza_id().into());
        json.insert("conversationId".into(), self.conversation_id().into());
        json.insert("type".into(), self.kind().code().into());
        json.insert("name".into(), self.kind().name().into());
        json.insert("meta".into(), to_json(self.meta_bytes())?);
        json.insert("body".into(), self.body_json()?);
        let extra = self.extra()?;
        if !extra.is_empty() {
            json.insert("extra".into(), object(extra));
        }
        Ok(json.into())
    }

    /// Returns the frame as canonical JSON, without what is for the model alone (`wire.md`, section 3.3): for everybody
    /// who is not the model.
    ///
    /// Blocks for the model alone are removed wherever they are. The result of a call loses what else says the same, as
    /// [`ToolResult::for_clients`](crate::ToolResult::for_clients) does, and so does the message of its failure.
    ///
    /// # Errors
    /// If the body is malformed; see [`message`](Frame::message).
    pub fn to_public_json(&self) -> Result<Value, DecodeError> {
        let message = self.message()?;
        let mut json = self.to_json()?;
        if let Message::ToolUseResult(ToolUseResult { result: Some(result), error_message, .. }) = message
            && !ToolResult::of(&result).hides_nothing()
        {
            json["body"]["result"] = public_value(&result).to_json();
            if let Some(text) = error_message {
                json["body"]["errorMessage"] = public_message(&text, Some(&result)).into();
            }
        }
        strip(&mut json);
        Ok(json)
    }

    /// Parses a frame from canonical JSON and adds nothing.
    ///
    /// `name` may be omitted and must otherwise fit the type; `meta` may be omitted.
    ///
    /// # Errors
    /// If the text is not JSON, has a key that canonical JSON lacks, or does not describe a valid frame.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        let Value::Object(json) = parse(text)? else {
            return Err(DecodeError::json("a frame must be a JSON object"));
        };
        let known = ["stanzaId", "conversationId", "type", "name", "meta", "body", "extra"];
        if let Some(key) = json.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(DecodeError::json(format!(
                "unknown key {key:?}; further keys of a frame belong in \"extra\""
            )));
        }
        check_name(&json)?;
        let mut extra = Vec::new();
        if let Some(json) = json.get("extra") {
            write_json(&mut extra, json, true)?;
        }
        let (count, entries) = match Token::read(&extra, 0) {
            Ok((Token::Map(count), at)) => (count as usize, at),
            _ if extra.is_empty() => (0, 0),
            _ => return Err(DecodeError::json("\"extra\" must be a JSON object")),
        };
        let empty = Value::Object(Map::new());
        let mut out = Vec::with_capacity(text.len());
        out.map(5 + count);
        for key in ["stanzaId", "conversationId", "type", "meta", "body"] {
            let absent = if key == "meta" { &empty } else { &Value::Null };
            out.str(key);
            write_json(&mut out, json.get(key).unwrap_or(absent), true)?;
        }
        out.extend_from_slice(&extra[entries..]);
        Self::decode(out)
    }

    fn body_json(&self) -> Result<Value, DecodeError> {
        let (Some(table), Some(body)) = (dialect::fields(self.kind()), self.body_span()) else {
            // A heartbeat may have no body, and is then shown with an empty one.
            let missing = self.kind() == Kind::HEARTBEAT;
            return if missing { Ok(Map::new().into()) } else { to_json(self.body_bytes()) };
        };
        let fields = Fields::find(self.bytes(), body, table)?;
        let mut pairs = Vec::new();
        let mut result = None;
        if self.kind() == Kind::TOOL_USE_RESULT {
            result = Some((ResultIds::of(&fields)?, Failure::of(&fields)?));
        }
        for field in table {
            let value = match (&result, field.name) {
                (Some((ids, _)), "id") => Some(ids.call.into()),
                (Some((ids, _)), "requestId") => ids.by_request.then(|| ids.call.into()),
                (Some((ids, _)), "resultId") => ids.own.map(Value::from),
                (Some((ids, _)), "previousId") if ids.by_previous => None,
                (Some((_, failure)), "errorCode") => failure.code.as_ref().map(|code| code.as_str().into()),
                (Some((_, failure)), "errorMessage") => failure.message.as_deref().map(Value::from),
                (Some(_), "error") => None,
                (None, "parameters") if fields.span("parameters").is_none() => Some(Map::new().into()),
                (None, "tools") => Some(self.tools(&fields)?),
                _ => fields.span(field.name).map(|span| self.value(span, field.is_integer())).transpose()?,
            };
            pairs.extend(value.map(|value| (field.name.into(), value)));
        }
        self.others(fields.others(body)?, &mut pairs)?;
        Ok(object(pairs))
    }

    fn tools(&self, fields: &Fields<'_>) -> Result<Value, DecodeError> {
        let mut tools = Vec::new();
        for tool in fields.list("tools")?.unwrap_or_default() {
            let fields = Fields::find(self.bytes(), tool, dialect::TOOL)?;
            let mut pairs = Vec::new();
            for field in dialect::TOOL {
                if let Some(span) = fields.span(field.name) {
                    pairs.push((field.name.into(), self.value(span, false)?));
                }
            }
            self.others(fields.others(tool)?, &mut pairs)?;
            tools.push(object(pairs));
        }
        Ok(tools.into())
    }

    fn others(&self, entries: Vec<MapEntry<'_>>, pairs: &mut Vec<(Value, Value)>) -> Result<(), DecodeError> {
        for entry in entries {
            pairs.push((self.value(entry.key_span, false)?, self.value(entry.value, false)?));
        }
        Ok(())
    }

    fn value(&self, span: Span, integer: bool) -> Result<Value, DecodeError> {
        let bytes = span.of(self.as_bytes());
        let whole = Token::read(bytes, 0)?.0.as_integer().and_then(|whole| i64::try_from(whole).ok());
        match whole {
            Some(whole) if integer => Ok(Number::from(whole).into()),
            _ => to_json(bytes),
        }
    }

    /// Returns the envelope's keys that the protocol does not define.
    fn extra(&self) -> Result<Vec<(Value, Value)>, DecodeError> {
        let mut pairs = Vec::new();
        for entry in dialect::entries(self.bytes(), dialect::whole(self.bytes()))? {
            let entry = entry?;
            if dialect::envelope_field(entry.key).is_none() {
                pairs.push((self.value(entry.key_span, false)?, self.value(entry.value, false)?));
            }
        }
        Ok(pairs)
    }
}

fn check_name(json: &Map<String, Value>) -> Result<(), DecodeError> {
    let (Some(name), Some(kind)) = (json.get("name"), json.get("type").and_then(Value::as_u64)) else {
        return Ok(());
    };
    let kind = u16::try_from(kind).map_or(Kind::new(u16::MAX), Kind::new);
    if name != kind.name() {
        return Err(DecodeError::json(format!(
            "type {} is named {:?}, not {name}",
            kind.code(),
            kind.name()
        )));
    }
    Ok(())
}
