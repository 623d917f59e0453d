//! A chat model's loop over the tools of both sides. The model is a script and the room is in memory, so that
//! it runs anywhere; a real one differs in `model` and in `join`.

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolbridge::{Assistant, Client, ToolError, adapter::chat, memory};

#[derive(Deserialize, schemars::JsonSchema)]
struct Search {
    query: String,
}

async fn search_web(search: Search) -> Result<Value, ToolError> {
    Ok(json!({"results": [format!("Ten facts about {}", search.query)]}))
}

async fn get_battery() -> Result<f64, ToolError> {
    Ok(0.15)
}

async fn get_location() -> Result<String, ToolError> {
    Err("location is switched off")?
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let room = memory::Room::new();
    let _phone = Client::builder()
        .tool("get_battery", "Battery level, 0 to 1", get_battery)
        .tool("get_location", "Where the phone is", get_location)
        .join_over(room.client("phone"))
        .await?;
    let assistant = Assistant::builder()
        .tool("search_web", "Search the web", search_web) // ours; the clients' tools come and go by themselves
        .join_over(room.assistant("assistant"))
        .await?;
    offered(&assistant, 3).await;

    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    for said in ["How is my battery, and where am I?", "Look up the Colosseum."] {
        println!("user: {said}");
        messages.push(json!({"role": "user", "content": said}));
        loop {
            let reply = model(&messages, &chat::definitions(&assistant.tools()));
            messages.push(reply.clone());
            let mut calls = JoinSet::new();
            for tool_call in reply["tool_calls"].as_array().into_iter().flatten() {
                println!("  calls {}", tool_call["function"]["name"]);
                calls.spawn(chat::call(&assistant, tool_call)); // resolves to the answer message, whatever happens
            }
            if calls.is_empty() {
                println!("assistant: {}", reply["content"]);
                break;
            }
            while let Some(message) = calls.join_next().await {
                messages.push(message?);
            }
        }
    }
    assistant.close().await;
    Ok(())
}

/// Waits until so many tools are on offer: a conversation begins before every app has registered.
async fn offered(assistant: &Assistant, tools: usize) {
    let mut events = assistant.events();
    while assistant.tools().len() < tools && events.recv().await.is_some() {}
}

/// The script: it asks for what the words need, then says what the answers say.
fn model(messages: &[Value], tools: &[Value]) -> Value {
    let turn = messages.iter().rposition(|message| message["role"] == "user").unwrap_or_default();
    let answers: Vec<_> = messages[turn..].iter().filter(|message| message["role"] == "tool").collect();
    if !answers.is_empty() {
        let texts: Vec<_> = answers.iter().filter_map(|answer| answer["content"].as_str()).collect();
        return json!({"role": "assistant", "content": texts.join(" | ")});
    }
    let said = messages[turn]["content"].as_str().unwrap_or_default();
    let wanted = [
        ("battery", "get_battery", "{}"),
        ("where", "get_location", "{}"),
        ("Look up", "search_web", "{\"query\": \"the Colosseum\"}"),
    ];
    let calls: Vec<_> = wanted
        .into_iter()
        .filter(|(word, tool, _)| said.contains(word) && tools.iter().any(|it| it["function"]["name"] == *tool))
        .enumerate()
        .map(|(n, (_, name, arguments))| {
            json!({"id": format!("call_{n}"), "type": "function", "function": {"name": name, "arguments": arguments}})
        })
        .collect();
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}
