//! A conversation: a chat model's tool calls and their results as messages.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use serde_json::{Value, json};
use toolbridge::{Assistant, Client, State, ToolError, Tools, chat, memory::MemoryRoom};

/// A tool that works only once the user has enabled it.
#[derive(Clone, Default)]
struct Location(Arc<AtomicBool>);

async fn get_location(State(location): State<Location>) -> Result<String, ToolError> {
    if location.0.load(Ordering::SeqCst) { Ok("Rome".to_owned()) } else { Err("location is switched off")? }
}

fn asks(name: &str, arguments: &str) -> Value {
    json!({"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// The model of this conversation: it calls, reads a failure, asks the user, and calls again.
fn model(messages: &[Value], location: &Location) -> Value {
    let last = &messages[messages.len() - 1];
    let content = last["content"].as_str().unwrap();
    match last["role"].as_str().unwrap() {
        "user" => json!({"role": "assistant", "content": null, "tool_calls": [asks("get_location", "{}")]}),
        _ if content.contains("location is switched off") => {
            // The user enables the tool when asked.
            location.0.store(true, Ordering::SeqCst);
            json!({"role": "assistant", "content": null, "tool_calls": [asks("get_location", "")]})
        }
        _ => {
            let answer: Value = serde_json::from_str(content).unwrap();
            json!({"role": "assistant", "content": format!("You are in {}.", answer["result"])})
        }
    }
}

#[tokio::test(start_paused = true)]
async fn protocol_a14_model_reads_the_failure_and_calls_again() {
    let (room, location) = (MemoryRoom::new(), Location::default());
    let tools = Tools::with_state(location.clone()).tool("get_location", "Where the phone is", get_location);
    let _phone = Client::builder().tools(tools).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    let mut messages = vec![json!({"role": "user", "content": "Where am I?"})];
    let answer = loop {
        let reply = model(&messages, &location);
        messages.push(reply.clone());
        let Some(calls) = reply["tool_calls"].as_array() else { break reply };
        for tool_call in calls {
            messages.push(chat::answer(&assistant, tool_call).await.message);
        }
    };
    assert_eq!(answer["content"], r#"You are in "Rome"."#);
    let failure: Value = serde_json::from_str(messages[2]["content"].as_str().unwrap()).unwrap();
    let error = json!({"code": "execution_error", "message": "location is switched off"});
    assert_eq!(failure, json!({"tool": "get_location", "from": "phone", "error": error}));
    assert_eq!(messages[2]["tool_call_id"], "call_1");
}

#[tokio::test(start_paused = true)]
async fn every_tool_call_of_a_model_has_a_result_whatever_it_wrote() {
    let room = MemoryRoom::new();
    let _phone = Client::builder().join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.unwrap();
    for (odd, code) in [
        (asks("no_such_tool", "{}"), "unknown_tool"),
        (asks("not a name", "{}"), "unknown_tool"),
        (asks("bridge.permission", "{}"), "unknown_tool"),
        (asks("bridge__permission", "{}"), "unknown_tool"),
        (asks("get_location", "{"), "invalid_parameters"),
        (asks("get_location", "[1]"), "invalid_parameters"),
        (json!({}), "unknown_tool"),
        (json!(null), "unknown_tool"),
    ] {
        let answer = chat::answer(&assistant, &odd).await.message;
        let content: Value = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
        assert_eq!(content["error"]["code"], code, "{odd}");
    }
}

#[tokio::test(start_paused = true)]
async fn tool_with_a_long_dotted_name_is_called_by_its_model_name() {
    async fn where_am_i() -> Result<&'static str, ToolError> {
        Ok("Rome")
    }
    let room = MemoryRoom::new();
    let name = format!("{}{}", "maps.".repeat(12), "find");
    let client = Client::builder().tool(&name, "Where the phone is", where_am_i);
    let _phone = client.join_over(room.client("phone")).await.unwrap();
    let assistant =
        Assistant::builder().client("phone").join_over(room.assistant("assistant")).await.unwrap();
    assistant.call(&name, ()).await.unwrap(); // the tool is registered by now
    let written = chat::definitions(&assistant.tools())[0]["function"]["name"].as_str().unwrap().to_owned();
    assert!(name.len() == 64 && written.len() == 64 && !written.contains('.'), "{written}");
    let answer = chat::answer(&assistant, &asks(&written, "{}")).await.message;
    let content: Value = serde_json::from_str(answer["content"].as_str().unwrap()).unwrap();
    assert_eq!((&content["tool"], &content["result"]), (&json!(name), &json!("Rome")));
}
