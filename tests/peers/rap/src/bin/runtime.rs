//! A runtime over the published crate: it loads a toolset, and does what the lines of standard input say.
//!
//! `{"call": {"operation", "arguments", "id", "group_id", "call_id"}}` calls a tool; with `"callback_url"` the result goes
//! elsewhere. `{"cancel": [group, id]}` and `{"close": group}` send notices. `{"listen": null}` begins to answer callbacks.
//! Each line of standard output is an event.

use std::{collections::HashMap, error::Error};

use rap_client::{
    callback_server::{bind_callback_listener, start_callback_server_on},
    http::{HttpClient as _, InMemoryToolsetCache, SimpleHttpClient},
    notifier::RapNotifier,
    toolset_loader::ToolsetLoader,
};
use rap_protocol::{RapInvocation, ThreadId, ToolCallId};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};

fn print(event: Value) {
    println!("{event}");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let base = std::env::args().nth(1).ok_or("usage: runtime URL")?;
    let client = SimpleHttpClient::new();
    let loader = ToolsetLoader::new(client.clone(), InMemoryToolsetCache::default());
    let loaded = loader.load_toolsets(&[base.clone()], &ThreadId::from("session")).await?;
    let toolset = loaded.into_iter().next().ok_or("no toolset")?.manifest;
    let names: Vec<_> = toolset.tools.iter().map(|tool| &tool.name).collect();
    print(
        json!({"event": "toolset", "name": toolset.name, "tools": names, "migrates": toolset.needs_migration}),
    );
    let (listener, callback_url) = bind_callback_listener().await?;
    let mut listener = Some(listener);
    let notifier = RapNotifier::new(vec![base], client.clone());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let commands: HashMap<String, Value> = serde_json::from_str(&line)?;
        for (command, given) in commands {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            match command.as_str() {
                "call" => {
                    let mut invocation = json!({"callback_url": callback_url, "call_id": null});
                    for (key, value) in given.as_object().into_iter().flatten() {
                        invocation[key] = value.clone();
                    }
                    // The crate writes this message.
                    let invocation: RapInvocation = serde_json::from_value(invocation)?;
                    let body = serde_json::to_string(&invocation)?;
                    let status = client.post(&toolset.endpoint, &body).await?;
                    print(json!({"event": "answered", "id": invocation.id, "status": status}));
                }
                "cancel" => {
                    let (group, id) = (ThreadId::from(text(&given[0])), ToolCallId::from(text(&given[1])));
                    notifier.notify_tool_cancelled(&group, &id).await;
                    print(json!({"event": "noticed"}));
                }
                "close" => {
                    notifier.notify_thread_closed(&ThreadId::from(text(&given))).await;
                    print(json!({"event": "noticed"}));
                }
                "listen" => {
                    if let Some(listener) = listener.take() {
                        start_callback_server_on(listener, |message| async move {
                            let mut message = json!(message);
                            // Of an image its length, so that lines stay short.
                            for item in message["content"].as_array_mut().into_iter().flatten() {
                                if let Some(data) = item["data"].as_str() {
                                    item["data"] = data.len().into();
                                }
                            }
                            print(json!({"event": "callback", "message": message}));
                        });
                    }
                }
                other => return Err(format!("unknown command {other:?}").into()),
            }
        }
    }
    Ok(())
}
