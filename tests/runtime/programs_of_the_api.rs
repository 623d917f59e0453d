//! Programs that the public API promises to support, written as a user writes tests.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use toolbridge::{
    Assistant, BargeIn, CallError, Client, ConsentRequest, ErrorCode, State, ToolContext, ToolError,
    ToolOptions, Tools, chat, memory,
};

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

type Db = BTreeMap<&'static str, &'static str>;

#[derive(Deserialize, JsonSchema)]
struct Find {
    /// Part of a name
    name: String,
}

async fn find_contact(State(db): State<Arc<Db>>, find: Find) -> Result<String, ToolError> {
    Ok((*db.get(find.name.as_str()).ok_or("nobody of that name")?).to_owned())
}

async fn sleep_an_hour(cx: ToolContext) -> Result<(), ToolError> {
    cx.progress("asleep");
    tokio::time::sleep(secs(3_600)).await;
    Ok(())
}

fn tools() -> Tools<Arc<Db>> {
    Tools::with_state(Arc::new(Db::from([("Ada", "1815")])))
        .tool("find_contact", "Phone number of a contact", find_contact)
        .tool("sleep_an_hour", "Sleeps", sleep_an_hour)
}

#[tokio::test]
async fn arguments_are_checked() {
    let error = tools().call("find_contact", json!({"nam": "Ada"})).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::INVALID_PARAMETERS);
}

#[tokio::test(start_paused = true)] // an hour passes in no time
async fn phone_that_leaves_loses_its_call() -> anyhow::Result<()> {
    let room = memory::MemoryRoom::new();
    let _phone = Client::builder().tools(tools()).join_over(room.client("phone")).await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    let late = assistant.call("sleep_an_hour", ()).timeout(secs(30)).await;
    assert!(matches!(late, Err(CallError::Timeout { .. })), "{late:?}");
    let mut open = assistant.call("sleep_an_hour", ()).start();
    assert!(open.progress().await.is_some()); // it runs: a request that never arrived is not `Lost`
    room.leave("phone"); // also: pause, resume, delay, lose (seeded)
    assert!(matches!(open.await, Err(CallError::Lost { .. })));
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
struct Album {
    album: String,
}

async fn erase_album(erase: Album) -> Result<String, ToolError> {
    Ok(erase.album)
}

/// A person who agrees to erase Rome.
async fn dialog(question: String) -> bool {
    question == r#"assistant wants erase_album: {"album":"Rome"}"#
}

#[tokio::test(start_paused = true)]
async fn question_precedes_a_destructive_tool() -> anyhow::Result<()> {
    let room = memory::MemoryRoom::new();
    let _client = Client::builder()
        .tool("erase_album", "Delete an album", ToolOptions::destructive().on(erase_album))
        .consent(|ask: ConsentRequest| async move {
            dialog(format!("{} wants {}: {}", ask.caller(), ask.tool().name(), ask.arguments().to_json()))
                .await
        })
        .join_over(room.client("phone"))
        .await?;
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
    assistant.call("erase_album", json!({"album": "Rome"})).await?;
    match assistant.call("erase_album", json!({"album": "Paris"})).await {
        Err(CallError::Tool(error)) if error.code() == ErrorCode::PERMISSION_DENIED => Ok(()),
        other => anyhow::bail!("{other:?}"),
    }
}

/// Calls the tool that sleeps for an hour, and then says nothing more.
async fn model(messages: &[Value], tools: Vec<Value>) -> anyhow::Result<Value> {
    let asked = messages.iter().any(|message| message["role"] == "tool");
    let sleep = tools.iter().find(|tool| tool["function"]["name"] == "sleep_an_hour").filter(|_| !asked);
    let calls = sleep.map(|tool| json!([{"id": "1", "function": {"name": tool["function"]["name"]}}]));
    Ok(json!({"role": "assistant", "content": "done", "tool_calls": calls}))
}

#[tokio::test(start_paused = true)]
async fn chat_model_loop_handles_barge_in() -> anyhow::Result<()> {
    let room = memory::MemoryRoom::new();
    let options = ToolOptions::default().barge_in(BargeIn::Report);
    let _phone = Client::builder()
        .tool("sleep_an_hour", "Sleeps", options.on(sleep_an_hour))
        .join_over(room.client("phone"))
        .await?;
    let assistant = Assistant::builder().client("phone").join_over(room.assistant("assistant")).await?;
    let mut events = assistant.events();
    while assistant.tools().is_empty() {
        events.recv().await;
    }
    let barge_in = || tokio::time::sleep(secs(1));
    let mut messages = vec![json!({"role": "system", "content": "Be brief."})];
    for heard in ["Good night", "Good morning"] {
        messages.push(json!({"role": "user", "content": heard}));
        loop {
            messages.extend(assistant.late_results().iter().map(chat::note)); // left running by a barge-in
            let reply = model(&messages, chat::definitions(&assistant.tools())).await?;
            messages.push(reply.clone());
            let turn = assistant.turn();
            let mut calls = JoinSet::new();
            for tool_call in reply["tool_calls"].as_array().into_iter().flatten() {
                calls.spawn(chat::answer(&turn, tool_call)); // resolves to the result message, whatever happens
            }
            if calls.is_empty() {
                break;
            }
            let interrupted = tokio::select! {
                () = collect(&mut calls, &mut messages) => false,
                () = barge_in() => { turn.barge_in(); true }
            };
            collect(&mut calls, &mut messages).await; // a barge-in settles every call at once: none stays open
            if interrupted {
                break;
            }
        }
        tokio::time::sleep(secs(60)).await; // past the call's budget
    }
    let said: Vec<_> = messages.iter().filter_map(|message| message["content"].as_str()).collect();
    assert!(said[3].contains("detached"), "{said:?}");
    assert!(said[5].contains("sleep_an_hour") && said[5].contains("timeout"), "{said:?}");
    Ok(())
}

async fn collect(calls: &mut JoinSet<chat::Answer>, messages: &mut Vec<Value>) {
    while let Some(Ok(answer)) = calls.join_next().await {
        messages.push(answer.message)
    }
}
