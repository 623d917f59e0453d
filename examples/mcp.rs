//! The tools of an MCP server in a room: `cargo run --example mcp -- npx -y @modelcontextprotocol/server-everything`

use toolbridge::{Assistant, Client, ToolResult, ToolSource as _, adapter::mcp, memory::MemoryRoom};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let command: Vec<String> = std::env::args().skip(1).collect();
    let tools = mcp::stdio(command).await?;
    println!("the server offers {} tools", tools.list().len());

    let room = MemoryRoom::new();
    let client = Client::builder().tools(tools).consent(|_| async { true });
    let client = client.join_over(room.client("desktop")).await?;

    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    let value = assistant.call("get-sum", serde_json::json!({"a": 2, "b": 3})).await?;
    println!("the model reads: {}", ToolResult::of(&value).for_model(1024).text);

    client.close().await; // ends the server, too
    Ok(())
}
