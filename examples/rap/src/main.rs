//! Runs a toolset that is made with the published crate `rap-protocol`, and calls its tools through a room.
//!
//! `scripts/run-examples rap` builds and runs it.

mod toolset;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::json;
use toolbridge::{
    Assistant, CallError, Client, ToolResult,
    adapter::rap,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
    result::DisplayKind,
};

/// The calls whose time is measured.
const CALLS: usize = 40;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let toolset = toolset::start().await?;
    let room = MemoryRoom::new();
    let tools = rap::toolset(&toolset.url).name("published").await?;
    let client = Client::builder().tools(tools).consent(|_| async { true }).prompt(answer);
    let client = client.join_over(room.client("phone")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    assistant.ready("phone").await?;

    let call = async |tool: &str| {
        let value = assistant.call(tool, json!({"name": "Ada"})).timeout(Duration::from_secs(60)).await?;
        Ok::<_, CallError>(ToolResult::of(&value))
    };
    let text = |result: &ToolResult| result.for_model(10_000).text.into_owned();

    let edited = call("edit").await?;
    ensure!(text(&edited) == "Replaced text in src/main.rs");
    let shown = edited.for_display(&[DisplayKind::Diff, DisplayKind::Text]).context("nothing is shown")?;
    ensure!(shown.kind() == DisplayKind::Diff);
    println!("a diff is shown, and the model reads the text");

    let picture = call("picture").await?;
    let [_, image] = picture.content() else { anyhow::bail!("the image is missing") };
    ensure!(matches!(image.kind(), toolbridge::result::BlockKind::Image(image) if image.size() == 1 << 20));
    println!("an image of 1 MiB arrives");

    ensure!(text(&call("greet").await?) == "Hello, Ada. You chose large.");
    println!("a choice of the person reaches the tool");

    let watched = text(&call("watch").await?);
    ensure!(watched.contains("was cancelled at once"), "{watched}");
    println!("a subscription at a client is cancelled at once");

    match call("fail").await {
        Err(CallError::Tool(error)) => ensure!(error.message() == "Error: the disk is full"),
        other => anyhow::bail!("{other:?}"),
    }
    println!("a failure is a failure");

    let mut times = Vec::new();
    for _ in 0..CALLS {
        // A client takes 50 calls in a second.
        tokio::time::sleep(Duration::from_millis(25)).await;
        let begun = Instant::now();
        call("echo").await?;
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    println!("{CALLS} calls through the room, {} µs in the median", times[CALLS / 2].as_micros());
    client.close().await;
    Ok(())
}

async fn answer(request: PromptRequest) -> Result<PromptAnswer, toolbridge::ToolError> {
    match request.prompt() {
        Prompt::Choose(question) if question.text == "published asks: Which size?" => {
            Ok(PromptAnswer::choice(1))
        }
        _ => Ok(PromptAnswer::cancelled()),
    }
}
