//! A batch of calls in the form of agent-air: results as they come, then all of them in the order of the requests.
//!
//! ```sh
//! cargo run --example agent_air
//! ```

use toolbridge::{
    Assistant, Client, ToolError, ToolResult,
    adapter::agent_air::{Batch, ContentType, DisplayConfig, Document},
    memory::MemoryRoom,
};

async fn read_file() -> Result<ToolResult, ToolError> {
    let display = DisplayConfig::new("main.rs", ContentType::Code("rust".into())).with_collapsed(true);
    Ok(Document::new("fn main() {}").with_display(display).to_result())
}

async fn write_file() -> Result<String, ToolError> {
    Err("permission denied: cannot write to /etc/shadow")?
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let room = MemoryRoom::new();
    let client =
        Client::builder().tool("read_file", "Reads", read_file).tool("write_file", "Writes", write_file);
    let _client = client.join_over(room.client("desk")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;

    let calls = Batch::builder().call("c1", "write_file", ()).call("c2", "read_file", ());
    let mut batch = calls.start(&assistant)?;
    while let Some(result) = batch.next().await {
        println!("{} {:?}: {:?}", result.call_id(), result.status(), result.document().short_text());
    }
    println!("{}", batch.finish().await.document().json());
    Ok(())
}
