//! Calls and results at the MCP server of a room, where they are unusual.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::io::AsyncWriteExt as _;
use toolbridge::{
    Assistant, Client, ErrorCode, Progress, ToolContext, ToolError, Value,
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
async fn host_reads_why_a_tool_is_missing() {
    let (_room, _phone, assistant) = with_tool(|| Ok(json!(1).into())).await;
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    let answer = host.ask("tools/call", json!({"name": "shwo"})).await;
    let text = answer["error"]["message"].as_str().unwrap();
    assert!(text.contains("\"shwo\"") && text.ends_with("did you mean show?"), "the similar name: {text}");
}

#[tokio::test(start_paused = true)]
async fn tool_that_fails_as_if_it_were_unknown_is_a_failed_call() {
    let error = || ToolError::new(ErrorCode::UNKNOWN_TOOL, "the server knows no tool of this name");
    let (_room, _phone, assistant) = with_tool(move || Err(error())).await;
    let mut host = Host::initialized(mcp::serve(assistant)).await;
    let answer = host.ask("tools/call", json!({"name": "show"})).await;
    let result = &answer["result"];
    assert_eq!(result["isError"], true, "{answer}");
    assert_eq!(
        result["_meta"],
        json!({"dev.toolbridge/errorCode": "unknown_tool", "dev.toolbridge/mayHaveRun": true})
    );
}

/// Reports progress twice, with a second before each and one after.
async fn count(cx: ToolContext) -> Result<String, ToolError> {
    for done in 1..=2 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cx.progress(Progress::of(done, 2));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok("counted".to_owned())
}

#[tokio::test(start_paused = true)]
async fn call_that_reports_progress_after_the_host_closed_its_side_is_answered() {
    let room = MemoryRoom::new();
    let _phone =
        Client::builder().tool("count", "Counts", count).join_over(room.client("phone")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant(&room).await)).await;
    host.request(7, "tools/call", json!({"name": "count", "_meta": {"progressToken": "p"}})).await;
    assert_eq!(host.next().await["params"]["progress"], 1.0);
    host.write.shutdown().await.unwrap();
    let answer = host.next().await;
    assert_eq!(answer["result"]["content"][0]["text"], "counted", "{answer}");
    assert!(host.server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn call_that_is_cancelled_before_its_tool_is_found_is_not_made() {
    let room = MemoryRoom::new();
    let assistant = assistant(&room).await;
    let mut host = Host::initialized(mcp::serve(assistant.clone())).await;
    host.request(7, "tools/call", json!({"name": "count"})).await;
    host.notify("notifications/cancelled", json!({"requestId": 7})).await;
    assert_eq!(host.ask("ping", json!({})).await["result"], json!({}));
    let _phone =
        Client::builder().tool("count", "Counts", count).join_over(room.client("phone")).await.unwrap();
    assert_eq!(host.tools().await, ["count"]);
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(assistant.calls().is_empty(), "{:?}", assistant.calls());
}
