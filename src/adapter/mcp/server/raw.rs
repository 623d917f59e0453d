//! Carries a result as text past `rmcp`'s types, which drop keys that they do not know and shorten numbers.
//!
//! A handler returns a [`wrapped`] result, whose only content is the text; [`unwrapped`] puts the text in its place in
//! each message that is sent. Every result is wrapped, so a tool cannot imitate a wrapped one.

use rmcp::model::{CallToolResponse, CallToolResult, MetaObject};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

/// The key of the text in the metadata of a wrapped result.
const KEY: &str = "dev.toolbridge/raw";

/// Returns a result that stands for this document.
pub(super) fn wrapped(document: &Map<String, Json>) -> CallToolResponse {
    let text = serde_json::to_string(document).unwrap_or_default();
    let mut result = CallToolResult::success(Vec::new());
    result.meta = Some(MetaObject(Map::from_iter([(KEY.to_owned(), Json::String(text))])));
    result.into()
}

#[derive(Deserialize)]
struct Message {
    id: Json,
    result: Wrapper,
}

#[derive(Deserialize)]
struct Wrapper {
    #[serde(rename = "_meta")]
    meta: Meta,
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "dev.toolbridge/raw")]
    raw: String,
}

/// Returns the message with the document in place of the wrapped result, or `None` if it has no wrapped result.
pub(super) fn unwrapped(message: &str) -> Option<String> {
    if !message.contains(KEY) {
        return None;
    }
    let Message { id, result } = serde_json::from_str(message).ok()?;
    Some(format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{}}}"#, result.meta.raw))
}

#[cfg(test)]
mod tests {
    use rmcp::model::{NumberOrString, ServerJsonRpcMessage};
    use serde_json::json;

    use super::*;

    fn sent(document: &Json) -> Json {
        let result = wrapped(document.as_object().unwrap());
        let message = ServerJsonRpcMessage::response(result.into(), NumberOrString::Number(7));
        let text = serde_json::to_string(&message).unwrap();
        let sent: Json = serde_json::from_str(&unwrapped(&text).unwrap()).unwrap();
        assert_eq!(sent["id"], 7);
        sent["result"].clone()
    }

    #[test]
    fn unknown_blocks_and_keys_are_kept() {
        let document = json!({
            "content": [{"type": "hologram", "x": 0.9}, {"type": "text", "text": "t", "annotations": {"priority": 0.9}}],
            "context_updates": {"a": null},
        });
        assert_eq!(sent(&document), document);
    }

    #[test]
    fn document_that_imitates_a_wrapped_result_stays_as_it_is() {
        let document = json!({"content": [], "_meta": {KEY: "{}"}});
        assert_eq!(sent(&document), document);
    }

    #[test]
    fn other_messages_stay_as_they_are() {
        assert_eq!(unwrapped(r#"{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}"#), None);
        assert_eq!(unwrapped(r#"{"jsonrpc":"2.0","method":"dev.toolbridge/raw"}"#), None);
    }
}
