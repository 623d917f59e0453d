//! The room's tools as an MCP server over HTTP: raw requests.

use std::{sync::Arc, time::Duration};

use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Notify,
};
use toolbridge::{
    Assistant, Client, ToolError, ToolOptions,
    adapter::mcp::{self, McpListener},
    memory::MemoryRoom,
};

async fn battery() -> Result<f64, ToolError> {
    Ok(0.8)
}

pub(crate) struct Served {
    _room: MemoryRoom,
    _phone: Client,
    assistant: Assistant,
    pub(crate) listener: McpListener,
    /// The tool `wait` has started.
    started: Arc<Notify>,
}

impl Served {
    pub(crate) async fn new() -> Self {
        let room = MemoryRoom::new();
        let started = Arc::new(Notify::new());
        let wait = {
            let started = Arc::clone(&started);
            move || {
                started.notify_one();
                async {
                    tokio::time::sleep(Duration::from_secs(400)).await;
                    Ok::<_, ToolError>("waited")
                }
            }
        };
        let wait = ToolOptions::default().patience(Duration::from_secs(600)).on(wait);
        let phone = Client::builder()
            .tool("get_battery", "Battery level", battery)
            .tool("wait", "Takes 400 s, and reports no progress", wait)
            .join_over(room.client("phone"))
            .await
            .unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        let listener = mcp::serve(assistant.clone()).listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        Self { _room: room, _phone: phone, assistant, listener, started }
    }

    /// Sends a request with these headers in addition to those of every host, and returns status, head and body.
    async fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut all = vec![
            ("Host", "localhost"),
            ("Connection", "close"),
            ("Content-Type", "application/json"),
            ("Accept", "application/json, text/event-stream"),
        ];
        all.retain(|(name, _)| !headers.iter().any(|(it, _)| it == name));
        all.extend(headers.iter().filter(|(_, value)| !value.is_empty()));
        let head: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let is_chunked = headers.iter().any(|(name, _)| *name == "Transfer-Encoding");
        let length = if is_chunked { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        let request = format!("{method} {path} HTTP/1.1\r\n{head}{length}\r\n{body}");
        let mut stream = TcpStream::connect(self.listener.address()).await.unwrap();
        // The server may answer, and close, before it has read everything.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    /// Sends a message as a host of 2026-07-28 does, with the token.
    pub(crate) async fn ask(&self, method: &str, mut params: Json) -> Json {
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let name = params["name"].as_str().unwrap_or_default().to_owned();
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let bearer = self.bearer();
        let headers = [
            ("Authorization", bearer.as_str()),
            ("MCP-Protocol-Version", "2026-07-28"),
            ("Mcp-Method", method),
            ("Mcp-Name", &name),
        ];
        let answer = self.send("POST", "/mcp", &headers, &body).await;
        answer.message()
    }

    fn bearer(&self) -> String {
        format!("Bearer {}", self.listener.token())
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    body: String,
}

impl Answer {
    /// Returns the last message of a JSON body or an event stream.
    fn message(&self) -> Json {
        let lines = self.body.lines().map(|line| line.strip_prefix("data:").unwrap_or(line).trim());
        let message = lines.filter_map(|line| serde_json::from_str(line).ok()).rfind(Json::is_object);
        message.unwrap_or_else(|| panic!("{self:?}"))
    }
}

const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

#[tokio::test]
async fn sec_a1_request_without_the_token_is_refused() {
    let served = Served::new().await;
    for authorization in ["", "Bearer ", "Bearer wrong", "Basic Og==", served.listener.token()] {
        let answer = served.send("POST", "/mcp", &[("Authorization", authorization)], PING).await;
        assert_eq!(answer.status, 401, "{answer:?}");
        assert!(answer.head.contains("www-authenticate: bearer"), "{answer:?}");
    }
    let answer = served.send("POST", "/", &[("Authorization", &served.bearer())], PING).await;
    assert_eq!(answer.status, 404);
}

#[tokio::test]
async fn silent_connections_keep_no_host_out() {
    let served = Served::new().await;
    let session = initialize(&served).await.session();
    let mut stream = served.stream(&session).await;
    let mut silent = Vec::new();
    for _ in 0..256 {
        silent.push(TcpStream::connect(served.listener.address()).await.unwrap());
    }
    let answer = served.ask("tools/call", json!({"name": "get_battery", "arguments": {}})).await;
    assert_eq!(answer["result"]["content"][0]["text"], "0.8", "{answer}");
    assert_eq!(silent[0].read(&mut [0; 1]).await.unwrap(), 0, "the oldest one gave way");
    // The open stream of the session still is.
    let mut rest = [0; 1];
    assert_eq!(stream.read(&mut rest).await.unwrap(), 1);
}

#[tokio::test]
async fn sec_a1_request_of_a_web_page_or_for_another_host_is_refused() {
    let served = Served::new().await;
    let bearer = served.bearer();
    for origin in ["https://evil.example", "http://localhost.evil.example", "null"] {
        let answer =
            served.send("POST", "/mcp", &[("Authorization", &bearer), ("Origin", origin)], PING).await;
        assert_eq!(answer.status, 403, "{answer:?}");
    }
    let answer =
        served.send("POST", "/mcp", &[("Authorization", &bearer), ("Host", "evil.example")], PING).await;
    assert_eq!(answer.status, 403, "{answer:?}");
}

#[tokio::test]
async fn bad_body_is_refused_and_the_server_lives() {
    let served = Served::new().await;
    let bearer = served.bearer();
    for (body, code) in
        [("{", -32700), ("", -32700), ("[]", -32600), (r#"{"jsonrpc":"2.0","id":"x"}"#, -32600)]
    {
        let answer = served.send("POST", "/mcp", &[("Authorization", &bearer)], body).await;
        assert_eq!(
            (answer.status, answer.message()["error"]["code"].as_i64()),
            (400, Some(code)),
            "{answer:?}"
        );
    }
    let listed = served.ask("tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "get_battery", "{listed}");
}

#[tokio::test]
async fn sec_a1_body_of_5_mib_is_refused_and_the_server_lives() {
    let served = Served::new().await;
    let bearer = served.bearer();
    let headers = [("Authorization", bearer.as_str())];
    let long = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "x".repeat(5 << 20));
    assert_eq!(served.send("POST", "/mcp", &headers, &long).await.status, 413);
    // Without an announced length, too.
    let chunks = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let chunked = [headers[0], ("Transfer-Encoding", "chunked")];
    assert_eq!(served.send("POST", "/mcp", &chunked, &chunks).await.status, 413);
    let listed = served.ask("tools/list", json!({})).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "get_battery", "{listed}");
}

#[tokio::test]
async fn call_without_a_session_returns_its_document() {
    let served = Served::new().await;
    let called = served.ask("tools/call", json!({"name": "get_battery", "arguments": {}})).await;
    assert_eq!(
        called["result"],
        json!({"content": [{"type": "text", "text": "0.8"}], "structuredContent": {"value": 0.8}, "resultType": "complete"})
    );
    let unknown = served.ask("tools/call", json!({"name": "fly", "arguments": {}})).await;
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");
}

/// Opens a session and returns the answer.
pub(crate) async fn initialize(served: &Served) -> Answer {
    let client = json!({"name": "test", "version": "1"});
    let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string();
    served.send("POST", "/mcp", &[("Authorization", &served.bearer())], &body).await
}

impl Answer {
    fn session(&self) -> String {
        let id = self.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: "));
        id.unwrap_or_else(|| panic!("{self:?}")).to_owned()
    }
}

impl Served {
    /// Sends a request in a session.
    async fn in_session(&self, session: &str, method: &str, body: &str) -> Answer {
        let bearer = self.bearer();
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Mcp-Session-Id", session),
            ("MCP-Protocol-Version", "2025-11-25"),
        ];
        self.send(method, "/mcp", &headers, body).await
    }

    /// Opens the stream of a session, on which the server sends notifications.
    async fn stream(&self, session: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.listener.address()).await.unwrap();
        let request = format!(
            "GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: {}\r\nAccept: text/event-stream\r\n\
             Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: 2025-11-25\r\n\r\n",
            self.bearer()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        stream
    }
}

/// Calls a tool.
fn call(tool: &str) -> String {
    json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool}}).to_string()
}

/// Lets this time pass for all timers, however fast the machine is.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn session_that_was_opened_is_used_until_it_is_deleted() {
    let served = Served::new().await;
    let opened = initialize(&served).await;
    assert_eq!(opened.message()["result"]["protocolVersion"], "2025-11-25", "{opened:?}");
    let session = opened.session();
    let called = served.in_session(&session, "POST", &call("get_battery")).await;
    assert_eq!(
        called.message()["result"],
        json!({"content": [{"type": "text", "text": "0.8"}], "structuredContent": {"value": 0.8}}),
        "{called:?}"
    );
    let ended = served.in_session(&session, "DELETE", "").await;
    assert_eq!(ended.status, 204, "{ended:?}");
    assert_eq!(served.in_session(&session, "POST", &call("get_battery")).await.status, 404);
}

#[tokio::test]
async fn session_that_is_idle_for_hours_stays_open() {
    let served = Served::new().await;
    let session = initialize(&served).await.session();
    pass(Duration::from_secs(5 * 3600)).await;
    assert_eq!(served.in_session(&session, "POST", PING).await.status, 200);
}

#[tokio::test]
async fn call_that_reports_nothing_for_minutes_is_answered() {
    let served = Served::new().await;
    let session = initialize(&served).await.session();
    let body = call("wait");
    let waits = async {
        served.started.notified().await;
        pass(Duration::from_secs(350)).await;
        pass(Duration::from_secs(60)).await;
    };
    let (called, ()) = tokio::join!(served.in_session(&session, "POST", &body), waits);
    assert!(called.body.contains("waited"), "{called:?}");
}

#[tokio::test]
async fn request_with_the_id_of_an_open_one_is_refused_and_the_open_one_answered() {
    let served = Served::new().await;
    let session = initialize(&served).await.session();
    let (body, equal) = (call("wait"), call("get_battery"));
    let waits = async {
        served.started.notified().await;
        let refused = served.in_session(&session, "POST", &equal).await;
        assert_eq!(refused.status, 500, "{refused:?}");
        assert!(refused.body.contains("a request with this id is open already"), "{refused:?}");
        pass(Duration::from_secs(401)).await;
    };
    let (called, ()) = tokio::join!(served.in_session(&session, "POST", &body), waits);
    assert!(called.body.contains("waited"), "{called:?}");
    assert_eq!(served.in_session(&session, "POST", &equal).await.status, 200, "the id is free again");
}

#[tokio::test]
async fn longest_idle_session_ends_when_another_one_is_opened_beyond_64() {
    let served = Served::new().await;
    let mut sessions = Vec::new();
    for _ in 0..64 {
        sessions.push(initialize(&served).await.session());
    }
    assert_eq!(served.in_session(&sessions[0], "POST", PING).await.status, 200);
    let stream = served.stream(&sessions[1]).await;
    sessions.push(initialize(&served).await.session());
    for (n, session) in sessions.iter().enumerate() {
        let expected = if n == 2 { 404 } else { 200 };
        assert_eq!(served.in_session(session, "POST", PING).await.status, expected, "{n}");
    }
    drop(stream);
}

#[tokio::test]
async fn session_beyond_64_with_an_open_stream_is_refused() {
    let served = Served::new().await;
    let mut streams = Vec::new();
    for _ in 0..64 {
        let session = initialize(&served).await.session();
        streams.push(served.stream(&session).await);
    }
    let refused = initialize(&served).await;
    assert_eq!(refused.status, 500, "{refused:?}");
    assert!(refused.body.contains("64 sessions are open already"), "{refused:?}");
    streams.pop();
    // The server finds out that the stream has ended.
    let mut statuses = Vec::new();
    while statuses.last() != Some(&200) && statuses.len() < 1_000 {
        statuses.push(initialize(&served).await.status);
    }
    assert_eq!(statuses.last(), Some(&200));
}

#[tokio::test]
async fn server_ends_when_its_assistant_leaves_the_room() {
    let mut served = Served::new().await;
    served.assistant.close().await;
    served.listener.closed().await;
    assert!(TcpStream::connect(served.listener.address()).await.is_err());
}
