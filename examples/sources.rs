//! Functions and programs as tool sources, and a loop that runs the tools of any source: it reads lines of the form
//! "NAME JSON" from stdin.
//!
//! ```sh
//! echo 'shout {"text": "hello"}' | cargo run --example sources
//! ```

use std::time::Duration;

use serde::Deserialize;
use toolbridge::{
    Assistant, Client, ToolContext, ToolError, ToolSource, Value, memory, programs::ProgramTools,
};

#[derive(Deserialize, schemars::JsonSchema)]
struct Shout {
    text: String,
}

async fn shout(shout: Shout) -> Result<String, ToolError> {
    Ok(shout.text.to_uppercase())
}

async fn repl(tools: impl ToolSource) -> anyhow::Result<()> {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let (name, json) = line.split_once(' ').unwrap_or((&line, "{}"));
        let cx = ToolContext::new("terminal", Duration::from_secs(30));
        println!(
            "{:?}",
            tools.execute(&name.parse()?, Value::from_json(json)?, cx).await.map(|it| it.to_json())
        );
    }
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let room = memory::MemoryRoom::new();
    let programs = ProgramTools::from_file("examples/tools.toml")?;
    let client = Client::builder()
        .tool("shout", "Upper case", shout)
        .tools(programs)
        .join_over(room.client("desk"))
        .await?;
    repl(Assistant::builder().join_over(room.assistant("assistant")).await?).await?;
    client.close().await;
    Ok(())
}
