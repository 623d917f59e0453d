//! A toolset over the published crate: its tool `play` does what the steps in its arguments say, each of them a list.
//!
//! | step | what the tool does |
//! | --- | --- |
//! | `result TEXT`, `twice TEXT` | sends the result, or sends it twice |
//! | `subscribed TEXT` | sends the result, which starts a subscription |
//! | `event TEXT FINAL` | sends an event of the subscription |
//! | `view TYPE CONTENT` | sends the state of a view |
//! | `image` | sends a result with an image of 1 MiB |
//! | `sign-in URL` | asks the person to sign in |
//! | `hold` | waits for the line `release` on standard input |
//!
//! The argument is the port, 0 for a free one. Each line of standard output is an event.

use std::{error::Error, sync::Arc};

use rap_protocol::{
    CallbackClient as _, PlainCallbackClient, RapCallback, RapInvocation, RapOAuth, RapToolResult,
    RapToolResultContent, ToolDef, ToolsetManifest, send_subscription_event, send_tool_result,
    send_view_update,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let port: u16 = std::env::args().nth(1).ok_or("usage: toolset PORT")?.parse()?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let url = format!("http://{}", listener.local_addr()?);
    println!("{}", json!({"event": "toolset", "url": url}));
    let toolset = Arc::new(Toolset { url, callbacks: PlainCallbackClient::new(), release: Notify::new() });
    let serving = Arc::clone(&toolset);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let toolset = Arc::clone(&serving);
            tokio::spawn(async move { toolset.answer(stream).await });
        }
    });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line == "release" {
            toolset.release.notify_one();
        }
    }
    Ok(())
}

struct Toolset {
    url: String,
    callbacks: PlainCallbackClient,
    release: Notify,
}

impl Toolset {
    /// Reads a request, and answers it before any work.
    async fn answer(self: Arc<Self>, stream: TcpStream) -> std::io::Result<()> {
        let (mut stream, mut head) = (BufReader::new(stream), String::new());
        while !head.ends_with("\r\n\r\n") {
            if stream.read_line(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let length =
            head.to_lowercase().lines().find_map(|it| it.strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        stream.read_exact(&mut body).await?;
        let answer =
            if path.ends_with("/rap-toolset") { json!(self.manifest()).to_string() } else { String::new() };
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
        stream.write_all(format!("{head}{answer}").as_bytes()).await?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        println!("{}", json!({"event": path, "id": body.get("id").or(body.get("tool_call_id"))}));
        if path == "/invoke" {
            // The crate reads this message.
            match serde_json::from_value::<RapInvocation>(body) {
                Ok(invocation) => self.play(&invocation).await,
                Err(error) => println!("{}", json!({"event": "malformed", "error": error.to_string()})),
            }
        }
        Ok(())
    }

    fn manifest(&self) -> ToolsetManifest {
        let play = ToolDef {
            name: "play".to_owned(),
            description: "Does what its steps say".to_owned(),
            input_schema: json!({"type": "object", "properties": {"steps": {"type": "array"}}}),
            annotations: None,
            display_script: None,
        };
        ToolsetManifest {
            name: "published".to_owned(),
            description: None,
            endpoint: format!("{}/invoke", self.url),
            tools: vec![play],
            needs_migration: false,
        }
    }

    async fn play(&self, invocation: &RapInvocation) {
        let (client, url) = (&self.callbacks, &invocation.callback_url);
        let group = || invocation.group_id.clone();
        for step in invocation.arguments["steps"].as_array().into_iter().flatten() {
            let text = step[1].as_str().unwrap_or_default();
            match step[0].as_str().unwrap_or_default() {
                "result" => send_tool_result(client, invocation, text, None, false).await,
                "twice" => {
                    send_tool_result(client, invocation, text, None, false).await;
                    send_tool_result(client, invocation, text, None, false).await;
                }
                "subscribed" => send_tool_result(client, invocation, text, None, true).await,
                "event" => {
                    let (id, is_final) = (invocation.id.clone(), step[2] == true);
                    send_subscription_event(client, url, group(), id, text, false, is_final).await;
                }
                "view" => send_view_update(client, url, group(), text, step[2].clone()).await,
                "image" => {
                    let message = serde_json::to_string(&picture(invocation)).expect("a result is JSON");
                    client.post_json(url, &message).await.expect("the callback is reached");
                }
                "sign-in" => {
                    let message = RapCallback::OAuth(RapOAuth {
                        group_id: group(),
                        id: invocation.id.clone(),
                        call_id: invocation.call_id.clone(),
                        auth_url: text.to_owned(),
                    });
                    let message = serde_json::to_string(&message).expect("a message is JSON");
                    client.post_json(url, &message).await.expect("the callback is reached");
                }
                "hold" => self.release.notified().await,
                other => println!("{}", json!({"event": "unknown step", "step": other})),
            }
        }
    }
}

/// Returns a result with an image: a mebibyte of zeros in base64.
fn picture(invocation: &RapInvocation) -> RapCallback {
    let data = format!("{}==", "A".repeat((1_usize << 20).div_ceil(3) * 4 - 2));
    RapCallback::ToolResult(RapToolResult {
        group_id: invocation.group_id.clone(),
        id: invocation.id.clone(),
        call_id: invocation.call_id.clone(),
        text: None,
        content: Some(vec![
            RapToolResultContent::Text { text: "A picture.".to_owned() },
            RapToolResultContent::Image { data, media_type: "image/png".to_owned() },
        ]),
        display_as: None,
        subscription: None,
    })
}
