//! A runtime over the published crate: it loads a toolset, and does what the lines of standard input say.
//!
//! `{"call": {"operation", "arguments", "id", "group_id", "call_id"}}` calls a tool; with `"callback_url"` the result goes
//! elsewhere. `{"cancel": [group, id]}` and `{"close": group}` send notices. `{"listen": null}` begins to answer callbacks,
//! and `{"channel": null}` those of another URL, by the crate's channel.
//! `{"refuse": N}` opens another callback, which answers 503 to N posts and then 200.
//! Each line of standard output is an event.

use std::{collections::HashMap, error::Error};

use rap_client::{
    callback_server::{bind_callback_listener, start_callback_channel, start_callback_server_on},
    http::{HttpClient as _, InMemoryToolsetCache, SimpleHttpClient},
    notifier::RapNotifier,
    toolset_loader::ToolsetLoader,
};
use rap_protocol::{RapCallback, RapInvocation, ThreadId, ToolCallId};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
};

fn print(event: Value) {
    println!("{event}");
}

/// Prints a message that has come. Of an image its length, so that lines stay short.
fn show(message: &RapCallback) {
    let mut message = json!(message);
    for item in message["content"].as_array_mut().into_iter().flatten() {
        if let Some(data) = item["data"].as_str() {
            item["data"] = data.len().into();
        }
    }
    print(json!({"event": "callback", "message": message}));
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
                        start_callback_server_on(listener, |message| async move { show(&message) });
                    }
                }
                "channel" => {
                    let (url, mut messages) = start_callback_channel().await?;
                    print(json!({"event": "channel", "url": url}));
                    tokio::spawn(async move {
                        while let Some(message) = messages.recv().await {
                            show(&message);
                        }
                    });
                }
                "refuse" => {
                    let listener = TcpListener::bind("127.0.0.1:0").await?;
                    let url = format!("http://{}/refusing", listener.local_addr()?);
                    tokio::spawn(refuse(listener, given.as_u64().unwrap_or_default()));
                    print(json!({"event": "refusing", "url": url}));
                }
                other => return Err(format!("unknown command {other:?}").into()),
            }
        }
    }
    Ok(())
}

/// Answers 503 to so many posts, and then 200. Each message is read by the crate's type.
async fn refuse(listener: TcpListener, count: u64) -> std::io::Result<()> {
    for n in 0.. {
        let mut stream = BufReader::new(listener.accept().await?.0);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await? > 0 {}
        let length =
            head.to_lowercase().lines().find_map(|it| it.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await?;
        let is_message = serde_json::from_slice::<RapCallback>(&body).is_ok();
        let status = if n < count { 503 } else { 200 };
        let answer = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await?;
        print(json!({"event": "posted", "status": status, "is_message": is_message}));
    }
    Ok(())
}
