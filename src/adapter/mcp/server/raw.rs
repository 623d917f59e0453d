//! Carries a result as text past `rmcp`'s types, which drop keys that they do not know and shorten numbers.
//!
//! A handler returns a [`wrapped`] result, whose only content is the text. Over standard input and output [`opened`] takes
//! it out before `rmcp` writes it. `rmcp`'s HTTP server has no such place, so there [`unwrapped`] does so with what is
//! sent. Every result is wrapped, so a tool cannot imitate a wrapped one. A host never gets a wrapped result: it would read
//! an empty success.

use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult, CustomResult, MetaObject, ServerResult},
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value as Json, value::RawValue};

use crate::adapter::jsonrpc::{
    error::{INTERNAL, refusal},
    head::Head,
};

/// The key of the text in the metadata of a wrapped result.
const KEY: &str = "dev.toolbridge/raw";

/// What a host gets in place of a result that cannot be taken out.
const LOST: &str = "the tool has run, and its result could not be written";

/// Returns a result that stands for this document.
pub(super) fn wrapped(document: &Map<String, Json>) -> CallToolResponse {
    let text = serde_json::to_string(document).unwrap_or_default();
    let mut result = CallToolResult::success(Vec::new());
    result.meta = Some(MetaObject(Map::from_iter([(KEY.to_owned(), Json::String(text))])));
    result.into()
}

/// Returns a result with the document in place of a wrapped one.
///
/// # Errors
/// A result of a call is not wrapped.
pub(super) fn opened(result: ServerResult) -> Result<ServerResult, ErrorData> {
    let ServerResult::CallToolResult(result) = result else { return Ok(result) };
    let text = result.meta.as_ref().and_then(|meta| meta.0.get(KEY)?.as_str());
    match text.and_then(|text| serde_json::from_str(text).ok()) {
        Some(document) => Ok(ServerResult::CustomResult(CustomResult(Json::Object(document)))),
        None => {
            tracing::error!("a result for an MCP host could not be taken out of its wrapper");
            Err(ErrorData::internal_error(LOST, None))
        }
    }
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default, borrow)]
    id: Option<&'a RawValue>,
    #[serde(default)]
    result: Option<Wrapper>,
}

#[derive(Deserialize)]
struct Wrapper {
    #[serde(rename = "_meta")]
    meta: Option<Map<String, Json>>,
}

/// Returns the message with the document in place of a wrapped result, or `None` if it has no wrapped result. If the document
/// cannot be taken out, the message is an error.
pub(super) fn unwrapped(message: &str) -> Option<String> {
    if !message.contains(KEY) {
        return None;
    }
    let lost = || {
        tracing::error!("a result for an MCP host could not be taken out of its wrapper");
        Some(refusal(Head::of(message.as_bytes()).id().as_ref(), INTERNAL, LOST))
    };
    let Ok(Message { id, result }) = serde_json::from_str(message) else { return lost() };
    let raw = result.and_then(|result| result.meta?.remove(KEY))?;
    let raw =
        raw.as_str().filter(|raw| raw.starts_with('{') && serde_json::from_str::<IgnoredAny>(raw).is_ok());
    let (Some(raw), Some(id)) = (raw, id) else { return lost() };
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{raw}}}"#))
}

#[cfg(test)]
mod tests {
    use rmcp::model::{EmptyResult, NumberOrString, ServerJsonRpcMessage};
    use serde_json::json;

    use super::*;

    fn result(document: &Json) -> ServerResult {
        wrapped(document.as_object().unwrap()).into()
    }

    /// Returns what a host gets over HTTP, and over standard input and output.
    fn sent(document: &Json) -> [Json; 2] {
        let message = |result| {
            serde_json::to_string(&ServerJsonRpcMessage::response(result, NumberOrString::Number(7))).unwrap()
        };
        let texts =
            [unwrapped(&message(result(document))).unwrap(), message(opened(result(document)).unwrap())];
        texts.map(|text| {
            let mut sent: Json = serde_json::from_str(&text).unwrap();
            assert_eq!(sent["id"], 7);
            sent["result"].take()
        })
    }

    #[test]
    fn unknown_blocks_and_keys_are_kept() {
        let document = json!({
            "content": [{"type": "hologram", "x": 0.9}, {"type": "text", "text": "t", "annotations": {"priority": 0.9}}],
            "context_updates": {"a": null},
        });
        assert_eq!(sent(&document), [document.clone(), document]);
    }

    #[test]
    fn document_that_imitates_a_wrapped_result_stays_as_it_is() {
        let document = json!({"content": [], "_meta": {KEY: "{}"}});
        assert_eq!(sent(&document), [document.clone(), document]);
    }

    #[test]
    fn other_messages_stay_as_they_are() {
        for message in [
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#,
            r#"{"jsonrpc":"2.0","method":"dev.toolbridge/raw"}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[{"description":"dev.toolbridge/raw"}]}}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"dev.toolbridge/raw"}}"#,
        ] {
            assert_eq!(unwrapped(message), None, "{message}");
        }
        assert!(matches!(
            opened(ServerResult::EmptyResult(EmptyResult {})),
            Ok(ServerResult::EmptyResult(_))
        ));
    }

    #[test]
    fn result_that_cannot_be_taken_out_is_an_error_and_never_an_empty_success() {
        for message in [
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"_meta":{"dev.toolbridge/raw":7}}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"_meta":{"dev.toolbridge/raw":"{"}}}"#,
            r#"{"jsonrpc":"2.0","id":7,"result":{"content":[],"_meta":{"dev.toolbridge/raw":"{}"#,
        ] {
            let sent: Json = serde_json::from_str(&unwrapped(message).unwrap()).unwrap();
            assert_eq!((&sent["id"], &sent["error"]["message"]), (&json!(7), &json!(LOST)), "{message}");
            assert_eq!(sent.get("result"), None);
        }
        let error = opened(CallToolResult::success(Vec::new()).into()).unwrap_err();
        assert_eq!(error.message, LOST);
    }
}
