//! A chat model's tool calls: the JSON that most model APIs share.
//!
//! [`definitions`] says what can be called, in the shape of a request's `tools`. [`call`] takes one entry
//! of an answer's `tool_calls`, and resolves to the message that answers it, whatever happens.

use std::{borrow::Cow, future::Future};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    body::Body,
    bridge::Assistant,
    tool::{CallError, ErrorCode, MAX_TOOL_NAME, Offer, ToolError},
};

/// The longest answer that goes to the model, in bytes: more is cut, and says so.
///
/// A model's context is the scarce thing in a conversation, and a tool of somebody else's fills this.
pub const MAX_CONTENT: usize = 32 * 1024;

/// How much of its hash stands at the end of a shortened name, in bytes: two of 128 tools agree in it once in
/// half a million rooms.
const HASH_BYTES: usize = 4;

/// What can be called, as the `tools` of a chat request. A tool that several clients offer stands once.
///
/// Model APIs allow no dot in a name: one is written `__`, and [`call`] reads it back. Where that makes a name
/// longer than the 64 characters that they allow, its end becomes a hash of the whole name, always the same.
pub fn definitions(offers: &[Offer]) -> Vec<Value> {
    let mut seen = Vec::new();
    let mut tools = Vec::new();
    for offer in offers {
        // Two names may look alike to the model; the first stands, as in `call`.
        let name = model_name(offer.tool.name().as_str());
        if seen.contains(&name) {
            continue;
        }
        let any = || json!({"type": "object"});
        let parameters = offer.tool.input_schema().cloned().unwrap_or_else(any);
        tools.push(json!({
            "type": "function",
            "function": {
                "name": name,
                "description": offer.tool.description(),
                "parameters": parameters,
            },
        }));
        seen.push(name);
    }
    tools
}

/// Runs one entry of an answer's `tool_calls`; resolves to the message that answers it.
///
/// A failure is an answer too: the model reads its code and text, and may try again or say so. The call
/// begins when this is called, not when it is awaited; dropping the future cancels it.
pub fn call(assistant: &Assistant, tool_call: &Value) -> impl Future<Output = Value> + Send + 'static {
    let id = tool_call["id"].clone();
    let function = &tool_call["function"];
    let name = function["name"].as_str().unwrap_or_default();
    let offers = assistant.tools();
    let known = offers.iter().map(|offer| offer.tool.name().as_str()).find(|it| model_name(it) == name);
    let started =
        arguments(&function["arguments"]).map(|body| assistant.call(known.unwrap_or(name), body).start());
    async move {
        let result = match started {
            Ok(call) => call.await,
            Err(error) => Err(CallError::Tool(error)),
        };
        json!({"role": "tool", "tool_call_id": id, "content": content(result)})
    }
}

/// What the model reads: the result as JSON, or the failure's code and text.
fn content(result: Result<Body, CallError>) -> String {
    let value = match result {
        Ok(body) => unwrapped(body.to_json()),
        Err(error) => {
            let error = ToolError::from(error);
            json!({"error": {"code": error.code().as_str(), "message": error.message()}})
        }
    };
    cut(value.to_string())
}

/// What is no map travels as `{"value": x}`: the model reads x.
fn unwrapped(result: Value) -> Value {
    match result {
        Value::Object(mut map) if map.len() == 1 && map.contains_key("value") => {
            map.remove("value").unwrap_or_default()
        }
        other => other,
    }
}

fn cut(mut text: String) -> String {
    let whole = text.len();
    if whole > MAX_CONTENT {
        let end = (0..=MAX_CONTENT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or_default();
        text.truncate(end);
        text.push_str(&format!(" … (cut: {end} of {whole} bytes)"));
    }
    text
}

/// Most APIs give the arguments as a JSON text, some as the map itself; none may be an empty text.
fn arguments(written: &Value) -> Result<Body, ToolError> {
    let bad = |reason: String| ToolError::new(ErrorCode::INVALID_PARAMETERS, reason);
    match written {
        Value::Null => Ok(Body::empty()),
        Value::String(text) if text.trim().is_empty() => Ok(Body::empty()),
        Value::String(text) => {
            let value: Value = serde_json::from_str(text)
                .map_err(|error| bad(format!("the arguments are no JSON: {error}")))?;
            Ok(Body::from(value))
        }
        map => Ok(Body::from(map.clone())),
    }
}

/// A tool's name as model APIs allow it: `A–Z a–z 0–9 _ -`, at most as long as ours.
fn model_name(name: &str) -> Cow<'_, str> {
    if !name.contains('.') {
        return Cow::Borrowed(name);
    }
    let mut written = name.replace('.', "__");
    if written.len() > MAX_TOOL_NAME {
        // Cut alone, `….read` and `….write` could become one name.
        let hash = Sha256::digest(name);
        let hash = hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect::<String>();
        written.truncate(MAX_TOOL_NAME - 1 - hash.len());
        written = format!("{written}_{hash}");
    }
    Cow::Owned(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::Tool;

    #[test]
    fn a_tool_of_two_clients_stands_once_and_its_dot_is_hidden() {
        let tool = Tool::new("fs.read".parse().unwrap(), "Reads a file");
        let offers = [Offer::new(tool.clone(), "a".into()), Offer::new(tool, "b".into())];
        let definitions = definitions(&offers);
        assert_eq!(definitions.len(), 1);
        assert_eq!(definitions[0]["function"]["name"], "fs__read");
        let alike = Offer::new(Tool::new("fs__read".parse().unwrap(), ""), "c".into());
        assert_eq!(super::definitions(&[offers[0].clone(), alike]).len(), 1);
    }

    #[test]
    fn a_name_that_grows_too_long_for_a_model_is_shortened_and_read_back() {
        let long = |last: &str| format!("{}{}.{last}", "a.".repeat(20), "b".repeat(15));
        let (read, write) = (long("read"), long("write"));
        assert!(read.parse::<crate::tool::ToolName>().is_ok() && read.len() + 21 > MAX_TOOL_NAME);
        let names = [model_name(&read), model_name(&write)];
        for name in &names {
            assert_eq!(name.len(), MAX_TOOL_NAME);
            assert!(name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_'), "{name}");
        }
        assert_ne!(names[0], names[1]);
        // What a conversation of yesterday calls it is its name today.
        assert_eq!(names[0], format!("{}a_6d7deea4", "a__".repeat(18)));
        let short = "x.".repeat(20) + "y";
        assert_eq!(model_name(&short), "x__".repeat(20) + "y", "61 characters stay as they are");
    }

    #[test]
    fn a_long_answer_is_cut_between_characters() {
        let cut = cut("ä".repeat(MAX_CONTENT));
        assert!(cut.len() < MAX_CONTENT + 64 && cut.ends_with(&format!("of {} bytes)", 2 * MAX_CONTENT)));
    }

    #[test]
    fn a_plain_value_is_read_plainly() {
        let read = |json: Value| content(Ok(Body::from(json)));
        assert_eq!(read(json!({"value": 3})), "3");
        assert_eq!(read(json!({"value": 3, "unit": "m"})), r#"{"value":3,"unit":"m"}"#);
    }

    #[test]
    fn arguments_may_be_text_map_or_nothing() {
        assert_eq!(arguments(&json!("{\"a\":1}")).unwrap().to_json(), json!({"a": 1}));
        assert_eq!(arguments(&json!({"a": 1})).unwrap().to_json(), json!({"a": 1}));
        assert_eq!(arguments(&json!("")).unwrap().to_json(), json!({}));
        assert_eq!(arguments(&json!("{")).unwrap_err().code(), ErrorCode::INVALID_PARAMETERS);
    }
}
