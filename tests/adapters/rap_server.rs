//! The room's tools as a RAP toolset: raw requests, and a runtime that is a list of callbacks.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::{Notify, mpsc},
    task::JoinSet,
};
use toolbridge::{
    Assistant, AssistantBuilder, Client, ClientBuilder, ToolError, ToolOptions, ToolResult,
    adapter::rap::{self, RapListener, RapServeError},
    memory::MemoryRoom,
    recording::{RecorderOptions, Recording, Redact, calls, report},
    result::{ContentBlock, Diff, Display, DisplayContent, Media},
};

use crate::{arguments, folder::Folder, rap_source::silent, secrets::assert_free};

/// What came back of a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

/// Sends a request, and returns what came back.
pub(crate) async fn send(url: &str, method: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let head: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{head}Content-Length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(host).await.unwrap();
    // The server may answer, and close, before it has read everything.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json; charset=utf-8")];

/// A runtime: its callback answers each post with the next status, or with 200.
pub(crate) struct Runtime {
    pub(crate) url: String,
    posts: mpsc::UnboundedReceiver<Json>,
    _serving: JoinSet<()>,
}

impl Runtime {
    pub(crate) async fn new() -> Self {
        Self::answering(&[]).await
    }

    pub(crate) async fn answering(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/cb/planted-token?planted-query", listener.local_addr().unwrap());
        let (seen, posts) = mpsc::unbounded_channel();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let (mut answered, mut connections) = (0, JoinSet::new());
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let status = statuses.get(answered).copied().unwrap_or(200);
                answered += 1;
                connections.spawn(take(stream, status, seen.clone()));
            }
        });
        Self { url, posts, _serving: serving }
    }

    /// Returns the next message that was posted.
    pub(crate) async fn next(&mut self) -> Json {
        let post = tokio::time::timeout(Duration::from_secs(30), self.posts.recv());
        post.await.expect("no callback").unwrap()
    }

    pub(crate) fn is_silent(&mut self) -> bool {
        self.posts.try_recv().is_err()
    }
}

/// Reads a request, and answers it.
async fn take(mut stream: TcpStream, status: u16, seen: mpsc::UnboundedSender<Json>) {
    let mut read = Vec::new();
    let (head, length) = loop {
        let mut part = [0; 64 * 1024];
        match stream.read(&mut part).await {
            Ok(0) | Err(_) => return,
            Ok(bytes) => read.extend_from_slice(&part[..bytes]),
        }
        let Some(end) = read.windows(4).position(|it| it == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length =
            head.split("content-length: ").nth(1).and_then(|rest| rest.lines().next()).unwrap_or("0");
        let length = end + 4 + length.parse::<usize>().unwrap();
        if read.len() >= length {
            break (head, end + 4);
        }
    };
    // A test that waits for a message sees a request to another address in its place.
    let is_callback = head.starts_with("post /cb/planted-token?planted-query http/1.1");
    let is_plain = head.contains("content-type: application/json")
        && !head.contains("authorization")
        && !head.contains("referer");
    let message = match serde_json::from_slice(&read[length..]) {
        Ok(message) if is_callback && is_plain => message,
        _ => json!({"unexpected": head}),
    };
    let answer = format!(
        "HTTP/1.1 {status} x\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = seen.send(message);
}

/// A room with a client, and its toolset.
pub(crate) struct Served {
    room: MemoryRoom,
    phone: Client,
    assistant: Assistant,
    pub(crate) listener: RapListener,
}

impl Served {
    pub(crate) async fn new(phone: ClientBuilder) -> Self {
        Self::by(Assistant::builder(), phone).await
    }

    async fn by(assistant: AssistantBuilder, phone: ClientBuilder) -> Self {
        let room = MemoryRoom::new();
        let phone = phone.join_over(room.client("phone-7f3a")).await.unwrap();
        let assistant = assistant.join_over(room.assistant("agent-91cc")).await.unwrap();
        assistant.ready("phone-7f3a").await.unwrap();
        let toolset =
            rap::serve(assistant.clone()).allow_callback("127.0.0.1".parse().unwrap()).deny("hidden");
        let listener = toolset.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        Self { room, phone, assistant, listener }
    }

    pub(crate) async fn post(&self, route: &str, body: &Json) -> Answer {
        send(&format!("{}{route}", self.listener.url()), "POST", &JSON, &body.to_string()).await
    }

    /// Calls a tool, and returns the status.
    async fn invoke(&self, runtime: &Runtime, id: &str, operation: &str, arguments: Json) -> u16 {
        self.post("/invoke", &invocation(runtime, id, operation, arguments)).await.status
    }

    /// Calls a tool, and returns what was posted.
    async fn called(&self, runtime: &mut Runtime, operation: &str, arguments: Json) -> Json {
        assert_eq!(self.invoke(runtime, "c", operation, arguments).await, 200);
        let message = runtime.next().await;
        assert_eq!(
            (&message["type"], &message["group_id"]),
            (&json!("tool_result"), &json!("g")),
            "{message}"
        );
        message
    }

    async fn text(&self, runtime: &mut Runtime, id: &str, operation: &str, arguments: Json) -> String {
        assert_eq!(self.invoke(runtime, id, operation, arguments).await, 200);
        let message = runtime.next().await;
        assert_eq!(message["id"], id, "{message}");
        message["text"].as_str().unwrap().to_owned()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "callers write the arguments in place")]
pub(crate) fn invocation(runtime: &Runtime, id: &str, operation: &str, arguments: Json) -> Json {
    json!({"operation": operation, "arguments": arguments, "id": id, "group_id": "g", "callback_url": runtime.url})
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Volume {
    volume: u8,
}

async fn ring(given: Volume) -> Result<String, ToolError> {
    Ok(format!("rings at {}", given.volume))
}

async fn panics() -> Result<(), ToolError> {
    panic!("planted-panic")
}

async fn internal() -> Result<(), ToolError> {
    Err(std::io::Error::other("/home/me/planted-path"))?
}

async fn never() -> Result<(), ToolError> {
    std::future::pending().await
}

fn phone() -> ClientBuilder {
    let short = ToolOptions::default().patience(Duration::from_millis(200));
    Client::builder()
        .tool("ring", "Rings", ring)
        .tool("lamp.dim", "", ToolOptions::default().read_only().on(ring))
        .tool("panics", "Panics", panics)
        .tool("internal", "Fails", internal)
        .tool("short", "Takes too long", short.on(never))
        .tool("hidden", "Is not offered", never)
}

#[tokio::test]
async fn manifest_lists_the_tools_of_the_room_under_a_secret_path() {
    let served = Served::new(phone()).await;
    let base = served.listener.url().to_owned();
    let secret = base.rsplit('/').next().unwrap();
    assert_eq!(secret.len(), 22, "128 bits");
    let well_known = format!("{base}/.well-known/rap-toolset");
    let answer = send(&well_known, "GET", &[], "").await;
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: application/json"), "{answer:?}");
    let body = &answer.body[answer.body.find('{').unwrap()..=answer.body.rfind('}').unwrap()]; // it may come in a chunk
    let manifest: Json = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&manifest["name"], &manifest["endpoint"]),
        (&json!("toolbridge"), &json!(format!("{base}/invoke")))
    );
    let tools = manifest["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["internal", "lamp__dim", "panics", "ring", "short"]);
    assert_eq!(
        (&tools[1]["description"], &tools[1]["annotations"]),
        (&json!("lamp.dim"), &json!({"readOnly": true}))
    );
    assert_eq!(tools[3]["inputSchema"]["required"], json!(["volume"]));
    assert!(!answer.body.contains("phone-7f3a") && !answer.body.contains("agent-91cc"));
    // Without the secret there is nothing, and nothing else is offered.
    let (origin, _) = base.split_at(base.len() - 22);
    for url in [
        format!("{origin}{}/invoke", "A".repeat(22)),
        format!("{origin}{secret}x/invoke"),
        format!("{origin}{}/invoke", &secret[1..]),
        format!("{}/.well-known/rap-toolset", origin.trim_end_matches("/rap/")),
        format!("{base}/migrate"),
        format!("{base}/invoke/"),
        base.clone(),
    ] {
        assert_eq!(send(&url, "POST", &JSON, "{}").await.status, 404, "{url}");
    }
    assert_eq!(send(&well_known, "POST", &JSON, "{}").await.status, 405);
    let answer = send(&format!("{base}/invoke"), "GET", &[], "").await;
    assert!(answer.status == 405 && answer.head.contains("allow: post"), "{answer:?}");
    assert_eq!(
        send(&format!("{base}/invoke"), "POST", &[("Content-Type", "text/plain")], "{}").await.status,
        415
    );
    assert_eq!(send(&format!("{base}/invoke"), "POST", &JSON, &" ".repeat(5 << 20)).await.status, 413);
}

#[tokio::test]
async fn silent_connections_keep_no_runtime_out() {
    let served = Served::new(phone()).await;
    let mut silent = silent(served.listener.url()).await;
    let well_known = format!("{}/.well-known/rap-toolset", served.listener.url());
    assert_eq!(send(&well_known, "GET", &[], "").await.status, 200);
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0, "the oldest one gave way");
}

#[tokio::test]
async fn toolset_without_a_tool_is_not_ready() {
    let room = MemoryRoom::new();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let listener = rap::serve(assistant).listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let answer = send(&format!("{}/.well-known/rap-toolset", listener.url()), "GET", &[], "").await;
    assert!(answer.status == 503 && answer.head.contains("retry-after"), "{answer:?}");
}

#[tokio::test]
async fn rap_r3_call_id_is_echoed_as_it_came() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::new().await);
    for (id, call_id) in [("1", Some(json!("fc_1"))), ("2", Some(json!(null))), ("3", None)] {
        let mut call = invocation(&runtime, id, "ring", json!({"volume": 3}));
        call.as_object_mut().unwrap().extend(call_id.clone().map(|call_id| ("call_id".to_owned(), call_id)));
        assert_eq!(served.post("/invoke", &call).await.status, 200);
        let message = runtime.next().await;
        assert_eq!(
            (message.get("call_id"), &message["text"]),
            (call_id.as_ref(), &json!("rings at 3")),
            "{message}"
        );
    }
}

#[tokio::test]
async fn rap_r15_call_is_accepted_before_any_work_and_its_faults_come_by_callback() {
    let go = Arc::new(Notify::new());
    let starts = Arc::clone(&go);
    let held = move || {
        let starts = Arc::clone(&starts);
        async move {
            starts.notified().await;
            Ok::<_, ToolError>("held")
        }
    };
    let served = Served::new(phone().tool("held", "Waits for the test", held)).await;
    let mut runtime = Runtime::new().await;
    // The tool works until the test ends it, and the call is accepted before that.
    assert_eq!(served.invoke(&runtime, "0", "held", json!({})).await, 200);
    assert!(runtime.is_silent());
    go.notify_one();
    assert_eq!(runtime.next().await["text"], "held");
    for (n, (operation, arguments, expected)) in [
        ("nothing", json!({}), "no app offers a tool named \"nothing\""),
        ("hidden", json!({}), "no app offers"),
        ("lamp.dim", json!({"volume": 1}), "no app offers"),
        ("ring", json!({"volume": "loud"}), "Correct the arguments"),
        ("ring", json!([1]), "the arguments cannot be sent: `arguments` must be a map. Nothing ran"),
    ]
    .into_iter()
    .enumerate()
    {
        let text = served.text(&mut runtime, &format!("c{n}"), operation, arguments).await;
        assert!(text.starts_with("Error: ") && text.contains(expected), "{text}");
    }
    let mut nameless = invocation(&runtime, "n", "", json!({}));
    nameless["operation"] = json!(5);
    assert_eq!(served.post("/invoke", &nameless).await.status, 200);
    assert!(runtime.next().await["text"].as_str().unwrap().starts_with("Error: the call names no tool"));
    // What cannot be answered by a callback is refused.
    let answer = served.post("/invoke", &json!({"operation": "ring", "id": "c", "group_id": "g"})).await;
    assert!(answer.status == 400 && answer.body.contains("callback_url"), "{answer:?}");
    assert!(runtime.is_silent());
}

#[tokio::test]
async fn arguments_in_all_forms_are_read_in_one_way() {
    async fn echo(given: serde_json::Map<String, Json>) -> Result<Json, ToolError> {
        Ok(given.into())
    }
    let mut runtime = Runtime::new().await;
    let served = Served::new(Client::builder().tool("echo", "", echo)).await;
    for (n, (written, meant)) in arguments::forms().enumerate() {
        let text = served.text(&mut runtime, &format!("c{n}"), "echo", written.clone()).await;
        assert_eq!(serde_json::from_str::<Json>(&text).unwrap(), meant, "{written}");
    }
    for (n, written) in arguments::others().enumerate() {
        let text = served.text(&mut runtime, &format!("o{n}"), "echo", written).await;
        assert!(
            text.starts_with("Error: the arguments cannot be sent") && text.contains("Nothing ran"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn rap_r11_every_call_ends_in_a_result() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::new().await);
    for (operation, arguments) in [
        ("ring", json!({"volume": 3})),
        ("ring", json!(null)),
        ("panics", json!({})),
        ("internal", json!({})),
        ("short", json!({})),
        ("nothing", json!({})),
    ] {
        let text =
            served.text(&mut runtime, &format!("{operation}{arguments}"), operation, arguments.clone()).await;
        assert_eq!(text.starts_with("Error: "), arguments["volume"].is_null(), "{operation}: {text}");
    }
    // The client leaves during the call.
    assert_eq!(served.invoke(&runtime, "left", "short", json!({})).await, 200);
    served.phone.close().await;
    assert!(runtime.next().await["text"].as_str().unwrap().starts_with("Error: "));
}

#[tokio::test]
async fn rap_r10_failure_begins_with_error_says_what_to_do_and_has_no_internals() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::new().await);
    for (operation, expected) in [
        ("panics", "Error: the tool crashed. Call again later, or tell the user."),
        ("internal", "Error: the tool failed. Call again later, or tell the user."),
        ("short", "Error: no result came within 0.2 s. It may have run: find out before you call it again."),
    ] {
        let text = served.text(&mut runtime, operation, operation, json!({})).await;
        assert_eq!(text, expected);
    }
    let text = served.text(&mut runtime, "bad", "ring", json!({"volume": -1})).await;
    assert!(text.ends_with("Correct the arguments, and call again."), "{text}");
    assert!(!text.contains(".rs") && !text.contains("planted"), "{text}");
}

#[tokio::test]
async fn call_that_is_sent_again_runs_once() {
    let runs = Arc::new(AtomicUsize::new(0));
    let (counter, release) = (Arc::clone(&runs), Arc::new(Notify::new()));
    let wait = Arc::clone(&release);
    let count = move || {
        let (counter, wait) = (Arc::clone(&counter), Arc::clone(&wait));
        async move {
            wait.notified().await;
            Ok::<_, ToolError>(counter.fetch_add(1, Ordering::SeqCst))
        }
    };
    let served = Served::new(Client::builder().tool("count", "Counts", count)).await;
    let mut runtime = Runtime::new().await;
    let call = invocation(&runtime, "c", "count", json!({}));
    for _ in 0..5 {
        assert_eq!(served.post("/invoke", &call).await.status, 200);
    }
    release.notify_one();
    assert_eq!(runtime.next().await["text"], "0");
    // After its end, and with another callback.
    let mut other = Runtime::new().await;
    assert_eq!(served.invoke(&other, "c", "count", json!({})).await, 200);
    release.notify_one();
    assert_eq!(served.invoke(&runtime, "d", "count", json!({})).await, 200);
    assert_eq!(runtime.next().await["text"], "1");
    assert!(other.is_silent() && runtime.is_silent());
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn rap_r19_notices_are_answered_whatever_they_name_and_stop_what_they_name() {
    let started = Arc::new(Notify::new());
    let stopped = Arc::new(AtomicUsize::new(0));
    struct Stopped(Arc<AtomicUsize>);
    impl Drop for Stopped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let wait = {
        let (started, stopped) = (Arc::clone(&started), Arc::clone(&stopped));
        move || {
            let (started, stopped) = (Arc::clone(&started), Stopped(Arc::clone(&stopped)));
            async move {
                started.notify_one();
                let _stopped = stopped;
                std::future::pending::<Result<(), ToolError>>().await
            }
        }
    };
    let served = Served::new(Client::builder().tool("wait", "Waits", wait)).await;
    let mut runtime = Runtime::new().await;
    for body in [
        json!({"thread_id": "unknown", "tool_call_id": "c"}),
        json!({"thread_id": "g", "tool_call_id": "unknown"}),
        json!({"thread_id": 5}),
        json!([]),
    ] {
        for route in ["/cancel_tool_call", "/close_thread"] {
            assert_eq!(served.post(route, &body).await.status, 200, "{body}");
        }
    }
    for (id, route, notice) in [
        ("a", "/cancel_tool_call", json!({"thread_id": "g", "tool_call_id": "a"})),
        ("b", "/close_thread", json!({"thread_id": "g"})),
    ] {
        assert_eq!(served.invoke(&runtime, id, "wait", json!({})).await, 200);
        started.notified().await;
        assert_eq!(served.post(route, &notice).await.status, 200);
        let message = runtime.next().await;
        assert_eq!(message["id"], id);
        assert!(message["text"].as_str().unwrap().starts_with("Error: the call was cancelled"), "{message}");
        // Again, after its end.
        assert_eq!(served.post(route, &notice).await.status, 200);
    }
    served.phone.close().await;
    assert_eq!(stopped.load(Ordering::SeqCst), 2, "both tools were stopped");
    assert!(runtime.is_silent());
}

async fn rich() -> Result<ToolResult, ToolError> {
    let patch = "--- a.rs\n+++ a.rs\n@@ -1 +1 @@\n-a\n+b\n";
    let diff = toolbridge_diff("a.rs", patch);
    Ok(ToolResult::text("Replaced one line in a.rs, and here is a lot of text for the model.\n".repeat(20))
        .with_display(Display::new(DisplayContent::Text("edit_file a.rs — 1 change".into())))
        .with_display(Display::new(DisplayContent::Diff(diff))))
}

fn toolbridge_diff(path: &str, patch: &str) -> Diff {
    with!(Diff::default(), path = path.into(), patch = Some(patch.into()))
}

#[tokio::test]
async fn rap_r7_rich_segments_come_first_and_a_short_text_last() {
    let served = Served::new(phone().tool("rich", "Edits", rich)).await;
    let mut runtime = Runtime::new().await;
    let message = served.called(&mut runtime, "rich", json!({})).await;
    let kinds: Vec<_> =
        message["display_as"].as_array().unwrap().iter().map(|it| it["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["diff", "text"]);
    assert_eq!(message["display_as"][1]["content"], "edit_file a.rs — 1 change");
    assert!(message["text"].as_str().unwrap().len() > 1_000);
    let short = served.text(&mut runtime, "s", "ring", json!({"volume": 3})).await;
    assert_eq!(short, "rings at 3");
}

#[tokio::test]
async fn rap_r27_structured_data_is_json_in_the_text() {
    let phone = Client::builder()
        .tool("map", "A map", async || Ok::<_, ToolError>(BTreeMap::from([("level", 0.8)])))
        .tool("list", "A list", async || Ok::<_, ToolError>(vec![1, 2]));
    let served = Served::new(phone).await;
    let mut runtime = Runtime::new().await;
    assert_eq!(served.text(&mut runtime, "1", "map", json!({})).await, r#"{"level":0.8}"#);
    assert_eq!(served.text(&mut runtime, "2", "list", json!({})).await, "[1,2]");
}

#[tokio::test]
async fn rap_r29_no_message_has_internal_identifiers() {
    let served = Served::new(phone().tool("rich", "Edits", rich)).await;
    let mut runtime = Runtime::new().await;
    let keys = ["call_id", "content", "display_as", "group_id", "id", "text", "type"];
    for (n, operation) in ["rich", "ring", "panics", "short", "nothing", "gone"].into_iter().enumerate() {
        let mut call = invocation(&runtime, &n.to_string(), operation, json!({"volume": 1}));
        call["user_id"] = json!("planted-user");
        call["thread_ancestors"] = json!(["planted-root"]);
        if operation == "gone" {
            served.phone.clone().close().await;
            call["operation"] = json!("ring");
        }
        assert_eq!(served.post("/invoke", &call).await.status, 200);
        let message = runtime.next().await;
        assert!(message.as_object().unwrap().keys().all(|key| keys.contains(&key.as_str())), "{message}");
        let text = message.to_string();
        for internal in
            ["planted", "phone-7f3a", "agent-91cc", "bridge.", "/rap/", &served.listener.url()[30..]]
        {
            assert!(!text.contains(internal), "{internal}: {text}");
        }
    }
}

#[tokio::test]
async fn rap_r13_no_credential_is_in_a_result_a_log_or_debug_output() {
    let folder = Folder::new();
    let file = folder.file("rap.mcap");
    let recorded = Assistant::builder().record(&file);
    let recorded = recorded.record_options(RecorderOptions::default().redact(Redact::nothing()));
    let served = Served::by(recorded, phone()).await;
    let mut runtime = Runtime::answering(&[404]).await;
    let secret = served.listener.url().rsplit('/').next().unwrap().to_owned();
    let (log, _guard) = crate::captured::logged_at(tracing::Level::TRACE);
    let message = served.called(&mut runtime, "ring", json!({"volume": 3})).await.to_string();
    // Refused callbacks are logged, too.
    let mut call = invocation(&runtime, "d", "ring", json!({"volume": 3}));
    call["callback_url"] = json!("http://10.0.0.7/planted-path?planted-query");
    let refused = served.post("/invoke", &call).await.body;
    let debug = format!("{:?} {:?}", served.listener, rap::serve(served.assistant.clone()));
    assert!(refused.contains("10.0.0.7"), "{refused}");
    let Served { room, phone, assistant, listener } = served;
    listener.close().await;
    assistant.close().await;
    phone.close().await;
    drop(room);
    let entries = || Recording::open(&file).unwrap().entries();
    let page = report(entries(), &calls(entries()).calls, "planted");
    assert!(page.contains("ring"), "the call is recorded");
    let recording = fs::read(&file).unwrap();
    let planted = [&*secret, "planted-token", "planted-query", "planted-path"];
    for (what, text) in [("result", message), ("answer", refused), ("debug", debug), ("log", log.text())] {
        assert_free(what, text.as_bytes(), &planted);
    }
    assert_free("the recording", &recording, &planted);
    assert_free("the report", page.as_bytes(), &planted);
}

#[tokio::test]
async fn rap_r17_result_is_posted_again_after_a_failure_of_the_runtime() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::answering(&[503]).await);
    let first = served.called(&mut runtime, "ring", json!({"volume": 3})).await;
    assert_eq!(runtime.next().await, first, "the same message, a second later");
    assert!(runtime.is_silent());
}

#[tokio::test]
async fn sec_a2_callback_on_a_private_network_is_refused_and_the_tool_does_not_run() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&runs);
    let count = move || {
        counter.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, ToolError>(()) }
    };
    let room = MemoryRoom::new();
    let _phone =
        Client::builder().tool("count", "Counts", count).join_over(room.client("phone")).await.unwrap();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let listener = rap::serve(assistant).listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let mut runtime = Runtime::new().await;
    let port = runtime.url.split([':', '/']).nth(4).unwrap().to_owned();
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::ffff:169.254.169.254]", "2130706433"] {
        for scheme in ["http", "https"] {
            let mut call = invocation(&runtime, host, "count", json!({}));
            call["callback_url"] = json!(format!("{scheme}://{host}:{port}/cb/planted-token?planted-query"));
            let answer = send(&format!("{}/invoke", listener.url()), "POST", &JSON, &call.to_string()).await;
            assert!(answer.status == 400 && answer.body.contains("private network"), "{answer:?}");
            assert!(!answer.body.contains("planted"), "{answer:?}");
        }
    }
    assert!(runtime.is_silent());
    assert_eq!(runs.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn sec_a2_redirect_of_a_callback_is_not_followed() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::answering(&[302, 307]).await);
    for id in ["1", "2"] {
        assert_eq!(served.text(&mut runtime, id, "ring", json!({"volume": 3})).await, "rings at 3");
    }
    // Each result was posted once.
    assert_eq!(served.text(&mut runtime, "3", "ring", json!({"volume": 3})).await, "rings at 3");
    assert!(runtime.is_silent());
}

#[tokio::test]
async fn closing_delivers_what_is_open_and_ends() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::answering(&[503; 9]).await);
    // One call runs, and the result of another one is refused again and again.
    assert_eq!(served.invoke(&runtime, "refused", "ring", json!({"volume": 1})).await, 200);
    assert_eq!(runtime.next().await["id"], "refused");
    let listener = served.listener;
    let url = format!("{}/invoke", listener.url());
    let call = json!({"operation": "short", "arguments": {}, "id": "open", "group_id": "g", "callback_url": runtime.url});
    assert_eq!(send(&url, "POST", &JSON, &call.to_string()).await.status, 200);
    tokio::time::timeout(Duration::from_secs(20), listener.close()).await.unwrap();
    let last = loop {
        let message = runtime.next().await;
        if message["id"] == "open" {
            break message;
        }
    };
    assert!(last["text"].as_str().unwrap().starts_with("Error: "), "{last}");
    assert!(TcpStream::connect(url.split('/').nth(2).unwrap()).await.is_err());
    drop((served.room, served.assistant));
}

#[tokio::test]
async fn closing_sends_a_result_again_that_was_not_received() {
    let (served, mut runtime) = (Served::new(phone()).await, Runtime::answering(&[503]).await);
    assert_eq!(served.invoke(&runtime, "c", "ring", json!({"volume": 1})).await, 200);
    let first = runtime.next().await;
    served.listener.close().await;
    assert_eq!(runtime.next().await, first);
    assert!(runtime.is_silent());
}

#[tokio::test]
async fn image_of_a_mebibyte_is_delivered() {
    let image = async || {
        let image = Media::encode(&vec![7; 1 << 20], "image/png");
        Ok::<_, ToolError>(ToolResult::text("a picture").with_block(ContentBlock::image(image)))
    };
    let served = Served::new(Client::builder().tool("shoot", "Takes a picture", image)).await;
    let mut runtime = Runtime::new().await;
    let message = served.called(&mut runtime, "shoot", json!({})).await;
    assert_eq!(message["text"], "a picture\n[image: image/png, 1048576 bytes]");
    assert_eq!(message["content"][0], json!({"type": "text", "text": "a picture"}));
    assert_eq!(message["content"][1]["data"].as_str().unwrap().len(), (1_usize << 20).div_ceil(3) * 4);
    assert_eq!(message["content"][1]["mediaType"], "image/png");
}

#[tokio::test]
async fn options_of_a_toolset_are_checked() {
    let room = MemoryRoom::new();
    let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
    let listen = async |toolset: rap::RoomToolset| toolset.listen("127.0.0.1:0".parse().unwrap()).await;
    let serve = || rap::serve(assistant.clone());
    assert!(matches!(listen(serve().name("")).await, Err(RapServeError::Name { length: 0, limit: 128 })));
    assert!(matches!(listen(serve().public_url("x")).await, Err(RapServeError::PublicUrl { .. })));
    let listener = listen(serve().public_url("https://tools.example.com/home/")).await.unwrap();
    assert!(listener.url().starts_with("https://tools.example.com/home/rap/"), "{}", listener.url());
}

#[tokio::test]
async fn call_beyond_the_open_ones_is_refused_and_can_be_sent_again() {
    let served = Served::new(phone()).await;
    // Nobody answers these callbacks, so each call stays open.
    let mute = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/cb/planted-token?planted-query", mute.local_addr().unwrap());
    let call = |id: usize| json!({"operation": "nothing", "id": id.to_string(), "group_id": "mute", "callback_url": url});
    for id in 0..256 {
        assert_eq!(served.post("/invoke", &call(id)).await.status, 200, "{id}");
    }
    let answer = served.post("/invoke", &call(256)).await;
    assert!(answer.status == 503 && answer.head.contains("retry-after"), "{answer:?}");
    assert_eq!(served.post("/invoke", &call(0)).await.status, 200, "it is known");
    // The runtime gives them up.
    assert_eq!(served.post("/close_thread", &json!({"thread_id": "mute"})).await.status, 200);
    let mut runtime = Runtime::new().await;
    let mut sent = invocation(&runtime, "c", "ring", json!({"volume": 3}));
    sent["group_id"] = json!("g");
    while served.post("/invoke", &sent).await.status == 503 {
        tokio::task::yield_now().await;
    }
    assert_eq!(runtime.next().await["text"], "rings at 3");
}
