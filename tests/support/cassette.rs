//! An assistant's recording of a phone with a lamp, piece by piece.

use serde_json::{Value as Json, json};
use toolbridge::recording::Entry;

use crate::recording_said::{heard, here, joined, sent};

/// A request for this tool with a timeout of 5 s.
pub(crate) fn asked(ms: u64, stanza: i32, id: &str, tool: &str, parameters: &Json) -> Entry {
    let meta = json!({});
    asked_with(ms, stanza, id, tool, parameters, &meta)
}

pub(crate) fn asked_with(
    ms: u64,
    stanza: i32,
    id: &str,
    tool: &str,
    parameters: &Json,
    meta: &Json,
) -> Entry {
    let body = json!({
        "id": id, "toolName": tool, "parameters": parameters, "execution": "client", "timeoutMs": 5000,
    });
    sent(
        ms,
        "assistant",
        &["phone"],
        &json!({"stanzaId": stanza, "type": 6, "meta": meta, "body": body}).to_string(),
    )
}

/// Its result.
pub(crate) fn answered(ms: u64, stanza: i32, id: &str, result: &Json) -> Entry {
    let body = json!({"id": id, "success": true, "result": result});
    heard(ms, "phone", &json!({"stanzaId": stanza, "type": 7, "body": body}).to_string())
}

/// The phone's registration.
pub(crate) fn offered(ms: u64, tools: &Json) -> Entry {
    heard(ms, "phone", &json!({"stanzaId": 1, "type": 70, "body": {"tools": tools}}).to_string())
}

/// The start of an assistant's recording of a phone with a lamp.
pub(crate) fn beginning() -> Vec<Entry> {
    vec![
        here(1_000, "assistant"),
        joined(1_001, "phone", Some("client")),
        offered(
            1_002,
            &json!([{"name": "lamp", "description": "A lamp", "annotations": {"idempotent": true}}]),
        ),
    ]
}
