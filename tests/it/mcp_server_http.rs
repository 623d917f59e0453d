//! The room's tools as an MCP server over HTTP: raw requests.

use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use toolbridge::{
    Assistant, Client, ToolError,
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
}

impl Served {
    pub(crate) async fn new() -> Self {
        let room = MemoryRoom::new();
        let phone = Client::builder().tool("get_battery", "Battery level", battery);
        let phone = phone.join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        let listener = mcp::serve(assistant.clone()).listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        Self { _room: room, _phone: phone, assistant, listener }
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

#[tokio::test]
async fn session_that_was_opened_is_used_until_it_is_deleted() {
    let served = Served::new().await;
    let opened = initialize(&served).await;
    assert_eq!(opened.message()["result"]["protocolVersion"], "2025-11-25", "{opened:?}");
    let session =
        opened.head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).unwrap().to_owned();
    let bearer = served.bearer();
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Mcp-Session-Id", &session),
        ("MCP-Protocol-Version", "2025-11-25"),
    ];
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"get_battery"}}"#;
    let called = served.send("POST", "/mcp", &headers, call).await;
    assert_eq!(
        called.message()["result"],
        json!({"content": [{"type": "text", "text": "0.8"}], "structuredContent": {"value": 0.8}}),
        "{called:?}"
    );
    let ended = served.send("DELETE", "/mcp", &headers, "").await;
    assert!(ended.status < 300, "{ended:?}");
    assert_eq!(served.send("POST", "/mcp", &headers, call).await.status, 404);
}

#[tokio::test]
async fn session_beyond_64_open_ones_is_refused() {
    let served = Served::new().await;
    for _ in 0..64 {
        assert_eq!(initialize(&served).await.status, 200);
    }
    let refused = initialize(&served).await;
    assert_eq!(refused.status, 500, "{refused:?}");
    assert!(refused.body.contains("64 sessions are open already"), "{refused:?}");
}

#[tokio::test]
async fn server_ends_when_its_assistant_leaves_the_room() {
    let mut served = Served::new().await;
    served.assistant.close().await;
    served.listener.closed().await;
    assert!(TcpStream::connect(served.listener.address()).await.is_err());
}
