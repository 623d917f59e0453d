//! A result of watsonx Orchestrate with a form. A person at the client fills it in, and the answer calls the tool that it names.

use serde_json::json;
use toolbridge::adapter::{mcp::CallToolResult, orchestrate::Form, orchestrate::Submission};
use toolbridge::{
    Assistant, Client, ToolError, ToolResult,
    memory::MemoryRoom,
    prompt::{Prompt, PromptAnswer, PromptRequest},
};

async fn find_flight() -> Result<ToolResult, ToolError> {
    let event = json!({"tool": "book_flight", "parameters": {}, "map_input_to": "day"});
    let widget = json!({"type": "datetime", "collection_type": "date", "on_event": event});
    let document = json!({"content": [], "_meta": {"com.ibm.orchestrate/widget": widget}}).to_string();
    Ok(CallToolResult::read(&document).map_err(ToolError::internal)?.result)
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Order {
    day: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let room = MemoryRoom::new();
    let client = Client::builder()
        .tool("find_flight", "", find_flight)
        .tool("book_flight", "", async |Order { day }| Ok::<_, ToolError>(format!("booked for {day}")))
        .prompt(|_: PromptRequest| async { Ok(PromptAnswer::submitted(&json!({"day": "2026-03-05"}))?) });
    let _client = client.join_over(room.client("desk")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    let tools = assistant.ready("desk").await?;
    let result = ToolResult::of(&assistant.call("find_flight", ()).await?);
    let form = result.widget().and_then(Form::of).ok_or_else(|| anyhow::anyhow!("there is no form"))?;
    let answer = assistant.call("bridge.form", Prompt::from(form.prompt()?).parameters()?).await?;
    let callable = |name: &str| tools.iter().map(|it| it.name()).find(|it| it.as_str() == name).cloned();
    let Submission::Call { tool, arguments } = form.submit(&answer.decode()?, callable)? else {
        return Ok(());
    };
    println!("{}", assistant.call(tool.as_str(), arguments).await?.decode::<String>()?);
    Ok(())
}
