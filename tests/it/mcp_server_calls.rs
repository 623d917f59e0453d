//! Calls and results at the MCP server of a room, where they are unusual.

use serde_json::{Value as Json, json};
use toolbridge::{
    Assistant, Client, ErrorCode, ToolError, Value,
    adapter::mcp::{self, CallToolResult},
    memory::MemoryRoom,
};

use crate::mcp_server::{Host, meta};

async fn assistant(room: &MemoryRoom) -> Assistant {
    Assistant::builder().join_over(room.assistant("a")).await.unwrap()
}

/// A room in which a client offers one tool, `show`, and its assistant.
async fn with_tool(
    outcome: impl Fn() -> Result<Value, ToolError> + Clone + Send + Sync + 'static,
) -> (MemoryRoom, Client, Assistant) {
    let room = MemoryRoom::new();
    let show = move || std::future::ready(outcome());
    let phone = Client::builder().tool("show", "Shows", show).join_over(room.client("phone")).await.unwrap();
    let assistant = assistant(&room).await;
    (room, phone, assistant)
}

/// What hosts of 2025-11-25 and of 2026-07-28 read if a tool returns this.
async fn shown(value: Value) -> [Json; 2] {
    let (_room, _phone, assistant) = with_tool(move || Ok(value.clone())).await;
    let mut old = Host::initialized(mcp::serve(assistant.clone())).await;
    let mut new = Host::new(mcp::serve(assistant));
    let called = json!({"name": "show", "arguments": {}, "_meta": meta()});
    let mut shown = [old.call("show", json!({})).await, new.ask("tools/call", called).await["result"].take()];
    assert_eq!(shown[1]["resultType"], "complete");
    shown[1].as_object_mut().unwrap().remove("resultType");
    shown
}

#[tokio::test(start_paused = true)]
async fn strings_and_nulls_in_a_document_become_what_the_protocol_allows() {
    let given = json!({
        "content": ["a", {"type": "text", "text": "b", "annotations": null, "_meta": null}],
        "_meta": null,
        "isError": null,
    });
    let fitted = json!({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]});
    assert_eq!(shown(given.into()).await, [fitted.clone(), fitted]);
}

#[tokio::test(start_paused = true)]
async fn document_without_content_gets_a_text_of_it() {
    let document = r#"{"structuredContent": {"n": 1}, "context_updates": {"city": "Berlin"}}"#;
    let fitted = json!({
        "content": [{"type": "text", "text": r#"{"n":1}"#}],
        "structuredContent": {"n": 1},
        "context_updates": {"city": "Berlin"},
    });
    let value = CallToolResult::read(document).unwrap().result.to_value();
    assert_eq!(shown(value).await, [fitted.clone(), fitted]);
}

#[tokio::test(start_paused = true)]
async fn structured_list_reaches_a_host_that_accepts_only_objects() {
    let document = json!({"content": [], "structuredContent": [1, 2]});
    let value = CallToolResult::read(&document.to_string()).unwrap().result.to_value();
    let fitted =
        json!({"content": [{"type": "text", "text": "[1,2]"}], "structuredContent": {"value": [1, 2]}});
    assert_eq!(shown(value).await, [fitted, document]);
}

#[tokio::test(start_paused = true)]
async fn tool_that_fails_as_if_it_were_unknown_is_a_failed_call() {
    let error = || ToolError::new(ErrorCode::UNKNOWN_TOOL, "the server knows no tool of this name");
    let (_room, _phone, assistant) = with_tool(move || Err(error())).await;
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    let answer = host.ask("tools/call", json!({"name": "show"})).await;
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    assert_eq!(result["_meta"], json!({"toolbridge/code": "unknown_tool", "toolbridge/mayHaveRun": true}));
}
