//! One MCP host's standard input and output, carried to a server at an address.

use std::time::Duration;

use serde_json::{Value as Json, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, Lines,
        ReadHalf, WriteHalf,
    },
    task::JoinHandle,
};
use toolbridge::{
    Assistant, Client, Event, Progress, ToolContext, ToolError, ToolResult,
    adapter::mcp::{self, AttachError, McpListener},
    memory::MemoryRoom,
};

use crate::mcp_http::{Request, Server, ok};

async fn odd() -> Result<toolbridge::Value, ToolError> {
    let document = json!({"content": [{"type": "hologram", "depth": 0.9}], "own": null});
    Ok(document.into())
}

async fn hang(context: ToolContext) -> Result<(), ToolError> {
    context.progress(Progress::of(1, 2));
    context.cancelled().await;
    Err(ToolError::cancelled())
}

async fn long() -> Result<ToolResult, ToolError> {
    Ok(ToolResult::text("x\ny".repeat(100_000)))
}

/// A host whose server is reached through a bridge.
struct Host {
    room: MemoryRoom,
    phone: Client,
    listener: McpListener,
    bridge: JoinHandle<Result<(), AttachError>>,
    input: WriteHalf<DuplexStream>,
    output: Lines<BufReader<ReadHalf<DuplexStream>>>,
}

impl Host {
    async fn new() -> Self {
        Self::with_token(None).await
    }

    async fn with_token(token: Option<&str>) -> Self {
        let room = MemoryRoom::new();
        let phone = Client::builder()
            .tool("odd", "", odd)
            .tool("hang", "", hang)
            .tool("long", "", long)
            .join_over(room.client("phone"))
            .await
            .unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        let listener = mcp::serve(assistant).listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (output, input) = tokio::io::split(ours);
        let (read, write) = tokio::io::split(theirs);
        let attach = mcp::attach(listener.url()).bearer_token(token.unwrap_or_else(|| listener.token()));
        let bridge = tokio::spawn(attach.over(read, write));
        Self { room, phone, listener, bridge, input, output: BufReader::new(output).lines() }
    }

    async fn send(&mut self, message: Json) {
        self.line(&message.to_string()).await;
    }

    async fn line(&mut self, line: &str) {
        self.input.write_all(line.as_bytes()).await.unwrap();
        self.input.write_all(b"\n").await.unwrap();
    }

    async fn next(&mut self) -> Json {
        let line = self.output.next_line().await.unwrap().expect("the bridge has closed the output");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    async fn ask(&mut self, id: u32, method: &str, params: Json) -> Json {
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).await;
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
        }
    }

    async fn open(&mut self) {
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let answer = self.ask(0, "initialize", params).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
        self.send(json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
    }

    async fn call(&mut self, id: u32, tool: &str) {
        let params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": id}});
        self.send(json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params})).await;
    }

    async fn settled(events: &mut toolbridge::Events) -> Result<(), toolbridge::ErrorCode> {
        loop {
            if let Some(Event::Settled { outcome, .. }) = events.recv().await {
                return outcome;
            }
        }
    }
}

fn modern(mut params: Json) -> Json {
    params["_meta"] = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    params
}

#[tokio::test]
async fn host_lists_and_calls_the_tools_through_the_bridge() {
    let mut host = Host::new().await;
    host.open().await;
    let listed = host.ask(1, "tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 3, "{listed}");
    let odd = host.ask(2, "tools/call", json!({"name": "odd"})).await;
    assert_eq!(odd["result"]["content"], json!([{"type": "hologram", "depth": 0.9}]), "{odd}");
    assert_eq!(odd["result"]["own"], json!(null));
    let long = host.ask(3, "tools/call", json!({"name": "long"})).await;
    assert_eq!(long["result"]["content"][0]["text"].as_str().unwrap().len(), 300_000);
    let unknown = host.ask(4, "no/such", json!({})).await;
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    host.input.shutdown().await.unwrap();
    host.bridge.await.unwrap().unwrap();
}

#[tokio::test]
async fn host_sees_progress_and_changes_and_its_cancellation_stops_the_call() {
    let mut host = Host::new().await;
    let mut events = host.phone.events();
    host.open().await;
    host.ask(1, "tools/list", json!({})).await;
    host.call(2, "hang").await;
    let progress = host.next().await;
    assert_eq!(progress["params"]["total"], 2.0, "{progress}");
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 2}});
    host.send(cancel).await;
    assert_eq!(Host::settled(&mut events).await, Err(toolbridge::ErrorCode::CANCELLED));
    let desk = Client::builder().tool("ring", "", odd).join_over(host.room.client("desk")).await.unwrap();
    let changed = host.next().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed", "{changed}");
    drop(desk);
}

#[tokio::test]
async fn host_of_the_newest_version_needs_no_session() {
    let mut host = Host::new().await;
    let mut events = host.phone.events();
    let odd = host.ask(1, "tools/call", modern(json!({"name": "odd", "arguments": {}}))).await;
    assert_eq!(odd["result"]["resultType"], "complete", "{odd}");
    let params = modern(json!({"name": "hang", "arguments": {}}));
    host.send(json!({"jsonrpc": "2.0", "id": "two", "method": "tools/call", "params": params})).await;
    while !matches!(events.recv().await, Some(Event::Requested { tool, .. }) if tool == "hang") {}
    let cancel =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "two"}});
    host.send(cancel).await;
    loop {
        if let Some(Event::Settled { tool, outcome, .. }) = events.recv().await
            && tool == "hang"
        {
            assert_eq!(outcome, Err(toolbridge::ErrorCode::CANCELLED));
            break;
        }
    }
}

#[tokio::test]
async fn notification_of_a_subscription_names_it_by_the_id_of_the_host() {
    let mut host = Host::new().await;
    assert!(host.ask(1, "tools/list", modern(json!({}))).await.get("result").is_some());
    let params = modern(json!({"notifications": {"toolsListChanged": true}}));
    host.send(json!({"jsonrpc": "2.0", "id": "sub", "method": "subscriptions/listen", "params": params}))
        .await;
    let begun = host.next().await;
    assert_eq!(begun["method"], "notifications/subscriptions/acknowledged", "{begun}");
    assert_eq!(begun["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], "sub", "{begun}");
    host.input.shutdown().await.unwrap();
    host.bridge.await.unwrap().unwrap();
}

#[tokio::test]
async fn line_that_is_no_message_is_skipped_and_a_request_that_cannot_be_read_refused() {
    let mut host = Host::new().await;
    for line in ["{", "[]", "17", r#"{"jsonrpc":"2.0"}"#, ""] {
        host.line(line).await;
    }
    for (line, code) in [
        (r#"{"jsonrpc":"2.0","id":7,"method":"ping","params":{"a":tru}}"#, -32700),
        (r#"{"jsonrpc":"1.0","id":7,"method":"ping"}"#, -32600),
        (&*format!(r#"{{"id":7,"method":"ping","params":"{}"}}"#, "x".repeat(4 << 20)), -32700),
        (&*format!(r#"{{"params":"{}","id":7,"method":"ping"}}"#, "x".repeat(4 << 20)), -32700),
    ] {
        host.line(line).await;
        let refused = host.next().await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(7), &json!(code)), "{refused}");
    }
    host.open().await;
    let odd = host.ask(1, "tools/call", json!({"name": "odd"})).await;
    assert!(odd.get("result").is_some(), "{odd}");
}

#[tokio::test]
async fn request_beyond_64_open_ones_is_refused_as_busy() {
    // It accepts connections, and answers nothing.
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", server.local_addr().unwrap());
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (output, mut input) = tokio::io::split(ours);
    let (read, write) = tokio::io::split(theirs);
    let _bridge = tokio::spawn(mcp::attach(url).over(read, write));
    for id in 1..=65 {
        let ping = json!({"jsonrpc": "2.0", "id": id, "method": "ping"}).to_string() + "\n";
        input.write_all(ping.as_bytes()).await.unwrap();
    }
    let refused = BufReader::new(output).lines().next_line().await.unwrap().unwrap();
    let refused: Json = serde_json::from_str(&refused).unwrap();
    assert_eq!(refused["id"], 65, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("64"), "{refused}");
}

#[tokio::test]
async fn bridge_ends_when_its_server_is_gone_and_says_why_without_the_token() {
    let mut host = Host::with_token(Some("hunter2")).await;
    host.send(json!({"jsonrpc": "2.0", "id": 1, "method": "ping"})).await;
    let refused = host.next().await;
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("HTTP 401: a bearer token is required") && !message.contains("hunter2"),
        "{message}"
    );

    let mut host = Host::new().await;
    host.open().await;
    host.call(1, "hang").await;
    host.next().await; // its progress
    host.listener.close().await;
    loop {
        let message = host.output.next_line().await.unwrap();
        let Some(message) = message else { break };
        let message: Json = serde_json::from_str(&message).unwrap();
        assert!(message["id"] != 1 || message.get("error").is_some(), "{message}");
    }
    let ended = tokio::time::timeout(Duration::from_secs(20), host.bridge).await.unwrap().unwrap();
    assert!(matches!(ended, Err(AttachError::Gone(_))), "{ended:?}");
}

#[tokio::test]
async fn bridge_ends_when_its_host_reads_no_more() {
    let mut host = Host::new().await;
    host.open().await;
    drop(host.output);
    // The other half keeps the pipe open for writing.
    drop(host.input);
    host.bridge.await.unwrap().unwrap();
}

#[tokio::test]
async fn address_without_https_is_refused_before_anything_is_sent() {
    let attach = mcp::attach("http://192.0.2.1/mcp?key=hunter2");
    let refused = attach.over(tokio::io::empty(), tokio::io::sink()).await.unwrap_err();
    assert!(matches!(&refused, AttachError::Address(text) if text.contains("https")), "{refused}");
    assert!(!refused.to_string().contains("hunter2"));
}

/// A bridge to a server whose sessions and answers are those of a function of the request's method and id.
async fn bridged(
    answer: impl Fn(&str, &Json) -> String + Send + 'static,
) -> (WriteHalf<DuplexStream>, Lines<BufReader<ReadHalf<DuplexStream>>>, JoinHandle<Result<(), AttachError>>)
{
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", server.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let mut stream = BufReader::new(server.accept().await.unwrap().0);
            let (mut head, mut body) = (String::new(), Vec::new());
            while !head.ends_with("\r\n\r\n") && stream.read_line(&mut head).await.unwrap() > 0 {}
            let length = head.to_lowercase();
            let length =
                length.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
            body.resize(length.unwrap_or(0), 0);
            stream.read_exact(&mut body).await.unwrap();
            let message: Json = serde_json::from_slice(&body).unwrap_or_default();
            let answer = answer(message["method"].as_str().unwrap_or_default(), &message["id"]);
            let _ = stream.write_all(answer.as_bytes()).await; // the bridge may have gone
        }
    });
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (output, input) = tokio::io::split(ours);
    let (read, write) = tokio::io::split(theirs);
    (input, BufReader::new(output).lines(), tokio::spawn(mcp::attach(url).over(read, write)))
}

fn http(status: &str, more: &str, body: &Json) -> String {
    let body = body.to_string();
    format!(
        "HTTP/1.1 {status}\r\n{more}content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Carries calls to a server, and returns the answers.
async fn carried(server: &Server, calls: usize) -> Vec<Json> {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (output, mut input) = tokio::io::split(ours);
    let (read, write) = tokio::io::split(theirs);
    let bridge = tokio::spawn(mcp::attach(&server.url).over(read, write));
    let mut output = BufReader::new(output).lines();
    let mut answers = Vec::new();
    for id in 0..=calls {
        let method = if id == 0 { "initialize" } else { "tools/call" };
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": {"name": "t"}});
        input.write_all(format!("{request}\n").as_bytes()).await.unwrap();
        answers.push(serde_json::from_str(&output.next_line().await.unwrap().unwrap()).unwrap());
    }
    input.shutdown().await.unwrap();
    bridge.await.unwrap().unwrap();
    answers.split_off(1)
}

#[tokio::test]
async fn answer_that_is_no_message_becomes_an_error_with_its_words() {
    let server = Server::start(|_, calls| match calls {
        1 => ok("application/json", r#"{"error":"the quota is used up"}"#),
        2 => ok("text/plain", "Please log in"),
        3 => ok("application/json", r#"{"message":"slow down"}"#).replacen(
            "200 OK",
            "429 Too Many Requests",
            1,
        ),
        4 => ok("text/event-stream", "data: ping\n\n"),
        _ => ok("text/event-stream", "data: [1]\n\ndata: {\"half\":\n\n"),
    })
    .await;
    let answers = carried(&server, 5).await;
    for (answer, (id, says)) in answers.iter().zip((1..).zip([
        "is not a JSON-RPC message: the quota is used up",
        "nor text/event-stream: Please log in",
        "HTTP 429: slow down",
        "ended its answer early",
        "ended its answer early",
    ])) {
        assert_eq!((&answer["id"], answer["jsonrpc"].as_str()), (&json!(id), Some("2.0")), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(message.contains(says) && !message.contains("hunter2"), "{message}");
    }
}

#[tokio::test]
async fn answer_whose_stream_breaks_is_resumed() {
    let asked = std::sync::Arc::new(std::sync::Mutex::new(Json::Null));
    let pending = std::sync::Arc::clone(&asked);
    let resumed = move |request: &Request| {
        let is_it = request.method == "get" && request.head.contains("last-event-id: 7\r\n");
        let answer =
            || json!({"jsonrpc": "2.0", "id": *pending.lock().unwrap(), "result": {"resumed": 1.50}});
        is_it.then(|| ok("text/event-stream", &format!("data: {}\n\n", answer())))
    };
    let server = Server::answering(json!({}), Duration::ZERO, resumed, move |request, _| {
        asked.lock().unwrap().clone_from(&request.body["id"]);
        ok("text/event-stream", "id: 7\nretry: 1\ndata:\n\n")
    })
    .await;
    assert_eq!(carried(&server, 1).await, [json!({"jsonrpc": "2.0", "id": 1, "result": {"resumed": 1.5}})]);
}

#[tokio::test]
async fn bridge_goes_on_after_a_404_that_answers_its_request() {
    let (mut input, mut output, bridge) = bridged(|method, id| match method {
        "known" => http("200 OK", "", &json!({"jsonrpc": "2.0", "id": id, "result": {}})),
        "unnamed" => http(
            "200 OK",
            "",
            &json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32700, "message": "no parse"}}),
        ),
        // Also to a notification, which nothing answers.
        _ => http(
            "404 Not Found",
            "",
            &json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no such method"}}),
        ),
    })
    .await;
    for (id, method) in [(1, "unknown"), (2, "known"), (3, "unnamed")] {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string();
        let notification = json!({"jsonrpc": "2.0", "method": "notifications/unknown"}).to_string();
        input.write_all(format!("{notification}\n{request}\n").as_bytes()).await.unwrap();
        let answer: Json = serde_json::from_str(&output.next_line().await.unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
        assert_eq!(answer.get("result").is_some(), method == "known", "{answer}");
    }
    input.shutdown().await.unwrap();
    bridge.await.unwrap().unwrap();
}

#[tokio::test]
async fn bridge_ends_with_a_404_that_is_about_its_session() {
    let (mut input, mut output, bridge) = bridged(|method, id| match method {
        "initialize" => {
            http("200 OK", "mcp-session-id: s\r\n", &json!({"jsonrpc": "2.0", "id": id, "result": {}}))
        }
        _ => http(
            "404 Not Found",
            "",
            &json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "no session"}}),
        ),
    })
    .await;
    for (id, method) in [(1, "initialize"), (2, "ping")] {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method}).to_string() + "\n";
        input.write_all(request.as_bytes()).await.unwrap();
        let answer: Json = serde_json::from_str(&output.next_line().await.unwrap().unwrap()).unwrap();
        assert_eq!(answer["id"], id, "{answer}");
    }
    let gone = bridge.await.unwrap().unwrap_err().to_string();
    assert!(gone.contains("its session has expired"), "{gone}");
}
