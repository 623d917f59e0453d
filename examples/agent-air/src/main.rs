//! A batch of agent-air's runtime that runs the tools of a room, which is in memory here.
//!
//! ```sh
//! cargo run
//! ```

use std::{collections::HashMap, sync::Arc};

use agent_air_runtime::controller::{
    Executable, PermissionRegistry, ToolBatchResult, ToolExecutor, ToolRegistry, ToolRequest,
    ToolResult as AirResult, ToolResultStatus, TurnId,
};
use anyhow::{Context, ensure};
use serde_json::{Value as Json, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use toolbridge::{
    Assistant, Client, ToolError,
    adapter::agent_air::{BatchDocument, CallDocument, Document},
    memory::MemoryRoom,
};

mod bridge_tool;

use bridge_tool::BridgeTool;

async fn get_battery() -> Result<f64, ToolError> {
    Ok(0.8)
}

async fn get_location() -> Result<String, ToolError> {
    Err("location is switched off")?
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let room = MemoryRoom::new();
    let client = Client::builder().tool("battery.level", "Battery level, 0 to 1", get_battery);
    let client = client.tool("get_location", "Where the phone is", get_location);
    let client = client.join_over(room.client("phone")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    assistant.ready("phone").await?;

    let registry = Arc::new(ToolRegistry::new());
    for tool in BridgeTool::all(assistant.by_owner()) {
        println!("offered to the model: {}", tool.name());
        registry.register(Arc::new(tool)).await?;
    }
    let batch = run_batch(registry, &["get_location", "battery__level", "no_such_tool"]).await?;
    let document = BatchDocument::new(batch.results.iter().map(document_of));
    println!("{}", document.json());

    let statuses: Vec<_> = batch.results.iter().map(|it| it.status).collect();
    let expected = [ToolResultStatus::Error, ToolResultStatus::Success, ToolResultStatus::Error];
    ensure!(statuses == expected, "{statuses:?}");
    ensure!(document.results[0].result.output() == "location is switched off");
    ensure!(document.results[1].result.output() == "0.8");
    ensure!(BatchDocument::read(&document.json())? == document);
    client.close().await;
    println!("3 results in the order of the requests");
    Ok(())
}

/// Runs one call of each tool at once, as the runtime does for a model.
async fn run_batch(registry: Arc<ToolRegistry>, tools: &[&str]) -> anyhow::Result<ToolBatchResult> {
    let (events, _) = mpsc::channel(16); // permissions: these tools need none of the runtime
    let (results, mut early) = mpsc::channel(16);
    let (batches, mut batch) = mpsc::channel(1);
    let permissions = Arc::new(PermissionRegistry::new(events));
    let executor = ToolExecutor::new(registry, permissions, results, batches);
    let request = |(n, tool): (usize, &&str)| ToolRequest {
        tool_use_id: format!("call_{n}"),
        tool_name: (*tool).to_owned(),
        input: HashMap::new(),
    };
    let requests = tools.iter().enumerate().map(request).collect();
    executor.execute_batch(1, Some(TurnId::new_assistant_turn(1)), requests, CancellationToken::new()).await;
    for _ in tools {
        let result = early.recv().await.context("the executor has ended")?;
        println!("early: {} {}", result.tool_use_id, result.status);
    }
    batch.recv().await.context("the executor has ended")
}

/// Writes a result of the runtime as a document. What the page does not have becomes additional fields.
fn document_of(result: &AirResult) -> CallDocument {
    let is_error = result.status != ToolResultStatus::Success;
    let output = if is_error { result.error.as_deref().unwrap_or_default() } else { &result.content };
    let document = Document::new(output)
        .with_error(is_error)
        .with_field("tool_name", result.tool_name.as_str())
        .with_field("status", result.status.to_string())
        .with_field("turn_id", result.turn_id.as_ref().map_or(Json::Null, |id| json!(id.to_string())))
        .with_field("compact_summary", result.compact_summary.as_deref().map_or(Json::Null, Json::from));
    CallDocument::new(result.tool_use_id.as_str(), document)
}
