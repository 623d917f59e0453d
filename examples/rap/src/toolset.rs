//! A toolset: its manifest, its endpoint, and its tools.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    extract::State,
    routing::{get, post},
};
use rap_protocol::{
    CallbackClient as _, DiffContent, DisplaySegment, PlainCallbackClient, RapCallback, RapInvocation,
    RapToolResult, RapToolResultContent, ToolDef, ToolsetManifest, send_tool_result, send_user_choice,
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

pub(crate) struct Toolset {
    pub(crate) url: String,
}

struct Shared {
    url: String,
    callbacks: PlainCallbackClient,
    /// The call that waits for a choice.
    choosing: Mutex<Option<RapInvocation>>,
}

pub(crate) async fn start() -> anyhow::Result<Toolset> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let shared =
        Shared { url: url.clone(), callbacks: PlainCallbackClient::new(), choosing: Mutex::default() };
    let routes = Router::new()
        .route("/.well-known/rap-toolset", get(manifest))
        .route("/invoke", post(invoke))
        .route("/choice", post(chosen))
        .route("/cancel_tool_call", post(async || ()))
        .route("/close_thread", post(async || ()))
        .with_state(Arc::new(shared));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Ok(Toolset { url })
}

async fn manifest(State(shared): State<Arc<Shared>>) -> Json<ToolsetManifest> {
    let tools = ["echo", "edit", "picture", "greet", "watch", "fail"].map(|name| ToolDef {
        name: name.to_owned(),
        description: format!("The tool {name}"),
        input_schema: json!({"type": "object", "properties": {"name": {"type": "string"}}}),
        annotations: None,
        display_script: None,
    });
    Json(ToolsetManifest {
        name: "published-crate".to_owned(),
        description: None,
        endpoint: format!("{}/invoke", shared.url),
        tools: tools.into(),
        needs_migration: false,
    })
}

async fn invoke(State(shared): State<Arc<Shared>>, Json(invocation): Json<RapInvocation>) {
    tokio::spawn(async move { shared.run(invocation).await });
}

async fn chosen(State(shared): State<Arc<Shared>>, Json(answer): Json<Value>) {
    let Some(invocation) = shared.choosing.lock().unwrap().take() else { return };
    let sizes = ["small", "large"];
    let size = answer["selected"].as_u64().and_then(|at| sizes.get(usize::try_from(at).ok()?));
    let name = invocation.arguments["name"].as_str().unwrap_or_default();
    let text = format!("Hello, {name}. You chose {}.", size.unwrap_or(&"nothing"));
    send_tool_result(&shared.callbacks, &invocation, &text, None, false).await;
}

impl Shared {
    async fn run(&self, invocation: RapInvocation) {
        let client = &self.callbacks;
        match invocation.operation.as_str() {
            "edit" => {
                let patch = "--- src/main.rs\n+++ src/main.rs\n@@ -1 +1 @@\n-a\n+b\n".to_owned();
                let diff = DisplaySegment::Diff(DiffContent { path: "src/main.rs".to_owned(), patch });
                let display = vec![diff, DisplaySegment::Text("one insertion".to_owned())];
                send_tool_result(client, &invocation, "Replaced text in src/main.rs", Some(display), false)
                    .await;
            }
            "picture" => {
                let result = RapCallback::ToolResult(RapToolResult {
                    group_id: invocation.group_id.clone(),
                    id: invocation.id.clone(),
                    call_id: invocation.call_id.clone(),
                    text: None,
                    content: Some(vec![
                        RapToolResultContent::Text { text: "A picture.".to_owned() },
                        RapToolResultContent::Image {
                            // A mebibyte of zeros in base64.
                            data: format!("{}==", "A".repeat((1_usize << 20).div_ceil(3) * 4 - 2)),
                            media_type: "image/png".to_owned(),
                        },
                    ]),
                    display_as: None,
                    subscription: None,
                });
                let body = serde_json::to_string(&result).expect("a result is JSON");
                // The same twice, as after a lost acknowledgement.
                for _ in 0..2 {
                    client.post_json(&invocation.callback_url, &body).await.expect("the callback is reached");
                }
            }
            "greet" => {
                let url = format!("{}/choice", self.url);
                let choices = ["small", "large"].map(str::to_owned).into();
                let (question, invoked) = ("Which size?", &invocation);
                // It waits before the question is asked, because the answer may come at once.
                let copy: RapInvocation =
                    serde_json::from_value(serde_json::to_value(invoked).expect("it was JSON"))
                        .expect("it was read");
                *self.choosing.lock().unwrap() = Some(copy);
                send_user_choice(client, invoked, question, choices, 0, &url).await;
            }
            "watch" => send_tool_result(client, &invocation, "Subscribed.", None, true).await,
            "fail" => send_tool_result(client, &invocation, "Error: the disk is full", None, false).await,
            _ => send_tool_result(client, &invocation, &invocation.arguments.to_string(), None, false).await,
        }
    }
}
