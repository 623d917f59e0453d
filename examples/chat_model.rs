//! A chat model's loop over the tools of both sides, with a user who interrupts. The model is a script and the
//! room is in memory, so that it runs anywhere; a real one differs in `model`, `barge_in` and `join`.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolbridge::{Assistant, BargeIn, Client, Event, ToolError, ToolOptions, chat, memory};

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

/// Takes a while, and continues when the user interrupts.
async fn export_album() -> Result<String, ToolError> {
    tokio::time::sleep(Duration::from_millis(300)).await;
    Ok("3 photos".to_owned())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let room = memory::MemoryRoom::new();
    let _phone = Client::builder()
        .tool("get_battery", "Battery level, 0 to 1", get_battery)
        .tool("get_location", "Where the phone is", get_location)
        .tool(
            "export_album",
            "Copy an album to the cloud",
            ToolOptions::default().barge_in(BargeIn::Report).on(export_album),
        )
        .join_over(room.client("phone"))
        .await?;
    let assistant = Assistant::builder()
        .tool("search_web", "Search the web", search_web) // the assistant's own; clients register theirs
        .join_over(room.assistant("assistant"))
        .await?;
    offered(&assistant, 4).await;
    let mut events = assistant.events();

    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    let script = [
        "How is my battery, and where am I?",
        "Look up the Colosseum.",
        "Copy the album Rome to the cloud.",
        "And my battery?",
    ];
    for said in script {
        println!("user: {said}");
        messages.push(json!({"role": "user", "content": said}));
        loop {
            messages.extend(assistant.late_results().iter().map(chat::note)); // calls that continued after a barge-in
            let reply = model(&messages, &chat::definitions(&assistant.tools()));
            messages.push(reply.clone());
            let turn = assistant.turn();
            let mut calls = JoinSet::new();
            for tool_call in reply["tool_calls"].as_array().into_iter().flatten() {
                println!("  calls {}", tool_call["function"]["name"]);
                calls.spawn(chat::answer(&turn, tool_call)); // resolves to an answer, also after a failure
            }
            if calls.is_empty() {
                println!("assistant: {}", reply["content"]);
                break;
            }
            let mut answers = Vec::new();
            let interrupted = tokio::select! {
                () = collect(&mut calls, &mut answers) => false,
                () = barge_in(said) => { turn.barge_in(); true }
            };
            collect(&mut calls, &mut answers).await; // a barge-in settles every open call at once
            messages.extend(answers.iter().map(|answer| answer.message.clone()));
            messages.extend(answers.iter().filter_map(|answer| answer.context.clone()));
            for spoken in answers.iter().filter_map(|answer| answer.spoken.as_deref()) {
                println!("assistant, exactly: {spoken}");
            }
            if interrupted {
                println!("  (the user interrupts)");
                while !matches!(events.recv().await, None | Some(Event::LateResult { .. })) {}
                break;
            }
            if !answers.iter().any(|answer| answer.needs_model) {
                break;
            }
        }
    }
    assistant.close().await;
    Ok(())
}

async fn collect(calls: &mut JoinSet<chat::Answer>, answers: &mut Vec<chat::Answer>) {
    while let Some(Ok(answer)) = calls.join_next().await {
        answers.push(answer);
    }
}

/// Interrupts the assistant if it copies photos.
async fn barge_in(said: &str) {
    if !said.starts_with("Copy") {
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

/// Waits for this many tools: apps register them after the assistant has joined.
async fn offered(assistant: &Assistant, tools: usize) {
    let mut events = assistant.events();
    while assistant.tools().len() < tools && events.recv().await.is_some() {}
}

/// The scripted model: it calls the tools that the user's words suggest, then repeats their answers.
fn model(messages: &[Value], tools: &[Value]) -> Value {
    let is_said = |message: &Value| message["role"] == "user";
    let note = messages.last().filter(|last| is_said(last) && is_said(&messages[messages.len() - 2]));
    if let Some(note) = note {
        let said = note["content"].as_str().unwrap_or_default();
        return json!({"role": "assistant", "content": format!("By the way: {said}")});
    }
    let turn = messages.iter().rposition(is_said).unwrap_or_default();
    let answers: Vec<_> = messages[turn..].iter().filter(|message| message["role"] == "tool").collect();
    if !answers.is_empty() {
        let texts: Vec<_> = answers.iter().filter_map(|answer| answer["content"].as_str()).collect();
        return json!({"role": "assistant", "content": texts.join(" | ")});
    }
    let said = messages[turn]["content"].as_str().unwrap_or_default();
    let wanted = [
        ("battery", "get_battery", "{}"),
        ("where", "get_location", "{}"),
        ("Copy", "export_album", "{}"),
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
