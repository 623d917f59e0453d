//! An MCP server at an address, as a source: what it may answer over HTTP. The servers here misbehave;
//! `tests/e2e/mcp.rs` has a real one.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::FutureExt as _;
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpListener,
    task::JoinSet,
};
use toolbridge::{
    ErrorCode, Outcome, Progress, ToolContext, ToolResult, ToolSource as _, Value,
    adapter::mcp::{self, McpTools},
    tools::SourceHealth,
};

/// One HTTP request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The headers, in lower case.
    pub(crate) head: String,
    pub(crate) body: Json,
}

impl Request {
    fn rpc(&self) -> &str {
        self.body["method"].as_str().unwrap_or_default()
    }

    pub(crate) fn answer(&self, result: &Json) -> String {
        ok(
            "application/json",
            &json!({"jsonrpc": "2.0", "id": self.body["id"], "result": result}).to_string(),
        )
    }
}

pub(crate) fn ok(kind: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nmcp-session-id: s1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

pub(crate) fn status(line: &str, more: &str) -> String {
    format!("HTTP/1.1 {line}\r\n{more}content-length: 0\r\nconnection: close\r\n\r\n")
}

/// A server whose calls are answered by a function. It does the rest as a server of 2025-11-25.
pub(crate) struct Server {
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Request>>>,
    _serving: JoinSet<()>,
}

impl Server {
    pub(crate) async fn start(call: impl Fn(&Request, usize) -> String + Send + Sync + 'static) -> Self {
        Self::listing(json!({"tools": [{"name": "t"}]}), Duration::ZERO, call).await
    }

    /// Starts a server that answers each request for its list with this page, after this time.
    async fn listing(
        page: Json,
        after: Duration,
        call: impl Fn(&Request, usize) -> String + Send + Sync + 'static,
    ) -> Self {
        Self::answering(page, after, |_| None, call).await
    }

    /// Starts a server that answers other messages than calls by a function, too, if that has an answer.
    pub(crate) async fn answering(
        page: Json,
        after: Duration,
        other: impl Fn(&Request) -> Option<String> + Send + Sync + 'static,
        call: impl Fn(&Request, usize) -> String + Send + Sync + 'static,
    ) -> Self {
        let (page, other) = (Arc::new(page), Arc::new(other));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp?key=hunter2", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (requests, call) = (Arc::clone(&seen), Arc::new(call));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (requests, call) = (Arc::clone(&requests), Arc::clone(&call));
                let (page, other) = (Arc::clone(&page), Arc::clone(&other));
                connections.spawn(async move {
                    let mut stream = BufReader::new(stream);
                    let Some(request) = read(&mut stream).await else { return };
                    let calls = {
                        let mut requests = requests.lock().unwrap();
                        requests.push(request.clone());
                        requests.iter().filter(|it| it.rpc() == "tools/call").count()
                    };
                    let own = other(&request);
                    let answer = match (request.method.as_str(), request.rpc()) {
                        _ if own.is_some() => own.unwrap_or_default(),
                        ("post", "tools/call") => call(&request, calls),
                        ("post", "initialize") => request.answer(&json!({
                            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                            "serverInfo": {"name": "fake", "version": "1"},
                        })),
                        ("post", "tools/list") => {
                            tokio::time::sleep(after).await;
                            request.answer(&page)
                        }
                        ("post", "server/discover") => status("400 Bad Request", ""),
                        ("post", _) => status("202 Accepted", ""),
                        _ => status("405 Method Not Allowed", ""),
                    };
                    let _ = stream.write_all(answer.as_bytes()).await; // the client may have gone
                });
            }
        });
        Self { url, seen, _serving: serving }
    }

    fn count(&self, rpc: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|it| it.rpc() == rpc).count()
    }
}

async fn read(stream: &mut BufReader<tokio::net::TcpStream>) -> Option<Request> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).await.ok()?;
    let method = head.split(' ').next()?.to_owned();
    Some(Request { method, head, body: serde_json::from_slice(&body).unwrap_or_default() })
}

async fn call(tools: &McpTools) -> Outcome {
    let context = ToolContext::new("caller", Duration::from_secs(60));
    tools.execute(&"t".parse().unwrap(), Value::empty(), context).await
}

async fn error(tools: &McpTools) -> String {
    let error = call(tools).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::EXECUTION_ERROR);
    error.message().to_owned()
}

async fn refused(answer: String) -> String {
    let server = Server::start(|_, _| String::new()).await;
    // Only the first request matters.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp?key=hunter2", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        loop {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let _ = read(&mut stream).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    drop(server);
    mcp::http(url).name("far").await.unwrap_err().to_string()
}

#[tokio::test(start_paused = true)]
async fn start_limit_covers_all_pages_of_the_list() {
    let page = json!({"tools": [{"name": "t"}], "nextCursor": "more"});
    let server = Server::listing(page, Duration::from_secs(25), |_, _| String::new()).await;
    let start = tokio::time::Instant::now();
    let error = mcp::http(&server.url).name("slow").await.unwrap_err().to_string();
    assert_eq!(error, "MCP server \"slow\": it did not list all its tools within 60 s");
    assert!(start.elapsed() <= Duration::from_secs(61), "{:?}", start.elapsed());
}

#[tokio::test]
async fn document_is_kept_byte_for_byte_in_json_and_in_events() {
    let document = r#"{"content":[{"type":"hologram","x": 1.50 }],"priority": 0.9}"#;
    let server = Server::start(move |request, calls| {
        let body = format!(r#"{{"jsonrpc":"2.0","id":{},"result":{document}}}"#, request.body["id"]);
        match calls {
            1 => ok("application/json; charset=utf-8", &body),
            _ => ok("text/event-stream", &format!(": hello\n\nevent: message\ndata: {body}\n\n")),
        }
    });
    let server = server.await;
    let tools = mcp::http(&server.url).bearer_token("abc").await.unwrap();
    for _ in 0..2 {
        assert_eq!(ToolResult::of(&call(&tools).await.unwrap()).native().unwrap().json(), document);
    }
    tools.close().await;
    let seen = server.seen.lock().unwrap().clone();
    assert!(seen.iter().all(|it| it.head.contains("authorization: bearer abc\r\n")));
    assert_eq!(seen.last().unwrap().method, "delete", "the session is not ended");
}

#[tokio::test]
async fn sec_a2_redirect_is_refused_and_names_the_host_alone() {
    for (code, host) in [
        ("301 Moved Permanently", "169.254.169.254"),
        ("302 Found", "[::ffff:169.254.169.254]"),
        ("303 See Other", "metadata.google.internal"),
        ("307 Temporary Redirect", "[::ffff:a9fe:a9fe]"),
        ("308 Permanent Redirect", "localhost"),
    ] {
        let redirect = format!("location: http://{host}/latest/meta-data?token=hunter2\r\n");
        let error = refused(status(code, &redirect)).await;
        let shown = host.replace("169.254.169.254]", "a9fe:a9fe]");
        let shown = format!("redirects to {shown}, and redirects are not followed");
        assert!(error.contains(&shown), "{error}");
        assert!(!error.contains("hunter2") && !error.contains("meta-data"), "{error}");
    }
}

#[tokio::test]
async fn sec_a2_redirect_gets_no_request_and_no_token() {
    let target = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let location = format!("location: http://{}/mcp\r\n", target.local_addr().unwrap());
    let server = Server::start(move |_, _| status("302 Found", &location)).await;
    let tools = mcp::http(&server.url).bearer_token("hunter2").name("far").await.unwrap();
    tokio::select! {
        _ = target.accept() => panic!("the redirect was followed"),
        error = error(&tools) => assert!(error.contains("redirects to http://127.0.0.1:"), "{error}"),
    }
    tools.close().await;
    assert!(target.accept().now_or_never().is_none(), "the redirect was followed");
}

#[tokio::test]
async fn redirect_to_another_path_says_how_it_differs() {
    let error = refused(status("307 Temporary Redirect", "location: /mcp/\r\n")).await;
    assert!(error.contains("redirects to the same path with a slash at its end"), "{error}");
    let error = refused(status("302 Found", "location: /login?token=hunter2\r\n")).await;
    assert!(error.contains("redirects to another path of the same host"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
}

#[tokio::test]
async fn server_of_the_older_transport_is_recognized() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/sse", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut open = Vec::new();
        loop {
            let mut stream = BufReader::new(listener.accept().await.unwrap().0);
            let Some(request) = read(&mut stream).await else { continue };
            let answer = match &*request.method {
                "get" => "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\nevent: endpoint\ndata: /messages?id=hunter2\n\n".to_owned(),
                _ => status("405 Method Not Allowed", ""),
            };
            let _ = stream.write_all(answer.as_bytes()).await; // the client may have gone
            open.push(stream); // the stream of events does not end
        }
    });
    let error = mcp::http(&url).name("old").await.unwrap_err().to_string();
    assert!(error.contains("speaks HTTP+SSE") && error.contains("streamable HTTP"), "{error}");
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let (output, mut input) = tokio::io::split(ours);
    let (from, to) = tokio::io::split(theirs);
    let _bridge = tokio::spawn(mcp::attach(&url).over(from, to));
    input.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\"}\n").await.unwrap();
    let answer = BufReader::new(output).lines().next_line().await.unwrap().unwrap();
    assert!(answer.contains("speaks HTTP+SSE") && !answer.contains("hunter2"), "{answer}");
}

#[tokio::test]
async fn missing_token_is_named_with_what_to_set() {
    let error = refused(status("401 Unauthorized", "www-authenticate: Bearer\r\n")).await;
    assert!(
        error.contains("requires authorization (HTTP 401); set a valid bearer token (`bearer_env`"),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
    let challenge = "www-authenticate: Bearer realm=\"mcp\", error=\"invalid_token\", error_description=\"it expired, at noon\"\r\n";
    let error = refused(status("401 Unauthorized", challenge)).await;
    assert!(error.contains("(HTTP 401: it expired, at noon)"), "{error}");
    let error =
        refused(status("403 Forbidden", "www-authenticate: Bearer error=insufficient_scope\r\n")).await;
    assert!(error.contains("(HTTP 403: insufficient_scope)"), "{error}");
    let unset = mcp::http("https://mcp.example.com/")
        .bearer_env("TOOLBRIDGE_TEST_UNSET")
        .await
        .unwrap_err()
        .to_string();
    assert!(unset.contains("TOOLBRIDGE_TEST_UNSET"), "{unset}");
    let plain = mcp::http("http://mcp.example.com/").await.unwrap_err().to_string();
    assert!(plain.contains("plain http"), "{plain}");
}

#[tokio::test]
async fn server_that_is_no_mcp_server_is_an_error() {
    let error = refused(ok("text/html", "<html>hunter2</html>")).await;
    assert!(
        !error.contains("hunter2") && error.contains("text/html") || error.contains("content type"),
        "{error}"
    );
    let error = refused(status("500 Internal Server Error", "")).await;
    assert!(error.contains("HTTP 500"), "{error}");
}

#[tokio::test]
async fn expired_session_is_opened_again_and_the_call_is_not_repeated() {
    let server = Server::start(|request, calls| match calls {
        1 => status("404 Not Found", ""),
        _ => request.answer(&json!({"content": []})),
    });
    check_renewal(&server.await).await;
}

#[tokio::test]
async fn expired_session_whose_error_repeats_the_id_is_opened_again() {
    for (line, code, text) in [
        ("404 Not Found", -32001, "Session not found"),
        ("404 Not Found", -32600, "no"),
        ("400 Bad Request", -32000, "Bad Request: No valid session ID provided"),
    ] {
        let server = Server::start(move |request, calls| match calls {
            1 => {
                let error = json!({"code": code, "message": text});
                let refusal = json!({"jsonrpc": "2.0", "id": request.body["id"], "error": error});
                ok("application/json", &refusal.to_string()).replace("200 OK", line)
            }
            _ => request.answer(&json!({"content": []})),
        });
        check_renewal(&server.await).await;
    }
}

/// Servers answer a method that they do not know so.
#[tokio::test]
async fn error_that_names_its_request_with_404_fails_the_call_alone() {
    let server = Server::start(|request, _| {
        let refusal = json!({"jsonrpc": "2.0", "id": request.body["id"], "error": {"code": -32601, "message": "not this method"}});
        ok("application/json", &refusal.to_string()).replace("200 OK", "404 Not Found")
    })
    .await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    for _ in 0..2 {
        let error = call(&tools).await.unwrap_err();
        assert!(error.message().contains("not this method"), "{error:?}");
    }
    assert_eq!((server.count("initialize"), server.count("tools/call")), (1, 2));
}

/// Checks that the first call finds its session expired, is not repeated, and the second one has a new session.
async fn check_renewal(server: &Server) {
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    assert_eq!(error(&tools).await, "the MCP server \"far\" does not answer: its session has expired");
    while tools.health() != SourceHealth::Up || server.count("initialize") < 2 {
        tools.changed().await;
    }
    assert_eq!(server.count("tools/call"), 1, "the call was repeated");
    assert!(call(&tools).await.is_ok());
}

#[tokio::test]
async fn session_that_a_server_refuses_with_400_is_opened_again() {
    let server = Server::start(|request, calls| match calls {
        1 => {
            let refusal =
                r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"No valid session ID"},"id":null}"#;
            ok("application/json", refusal).replace("200 OK", "400 Bad Request")
        }
        _ => request.answer(&json!({"content": []})),
    });
    check_renewal(&server.await).await;
}

#[tokio::test]
async fn call_whose_answer_cannot_be_resumed_fails_at_once() {
    let server = Server::start(|request, calls| match calls {
        1 => ok("text/event-stream", "id: 1\nretry: 1\ndata:\n\n"), // it refuses the GET that follows
        _ => request.answer(&json!({"content": []})),
    });
    let server = server.await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    let error = error(&tools).await;
    assert!(error.contains("its answer cannot be resumed"), "{error}");
    assert!(call(&tools).await.is_ok());
}

#[tokio::test]
async fn answer_that_ends_early_fails_its_call_alone() {
    let server = Server::start(|request, calls| match calls {
        1 => ok("text/event-stream", ": nothing\n\n"),
        2 => status("503 Service Unavailable", ""),
        3 => ok("application/json", "{\"half\":"),
        _ => request.answer(&json!({"content": []})),
    });
    let server = server.await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    assert!(error(&tools).await.ends_with("it ended its answer early"));
    assert!(error(&tools).await.contains("HTTP 503"));
    assert!(error(&tools).await.contains("is not a JSON-RPC message"));
    assert!(call(&tools).await.is_ok());
    assert_eq!((server.count("initialize"), server.count("tools/call")), (1, 4));
}

#[tokio::test]
async fn call_that_is_answered_without_a_message_fails_at_once() {
    let server = Server::start(|_, calls| match calls {
        1 => status("202 Accepted", ""),
        2 => status("204 No Content", ""),
        3 => ok(
            "application/json",
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"no parse"}}"#,
        ),
        _ => ok("application/json", r#"[{"jsonrpc":"2.0","id":null,"error":{}}]"#),
    });
    let server = server.await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    for says in [
        "answered the request with HTTP 202 and without a message",
        "answered the request with HTTP 204 and without a message",
        "no parse (MCP error -32700)",
        "cannot be read: batches are not supported",
    ] {
        let error = error(&tools).await;
        assert!(error.ends_with(says), "{error}");
    }
}

#[tokio::test]
async fn answer_that_is_no_message_keeps_its_words() {
    let server = Server::start(|_, calls| match calls {
        1 => ok("application/json", r#"{"error":"the quota is used up"}"#),
        2 => ok("text/plain", "Please log in"),
        3 => ok("text/html", "<p>hunter2"),
        4 => ok("application/json", ""),
        _ => ok("text/plain", "cannot read /mcp?key=hunter2"),
    });
    let server = server.await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    for says in [
        "the answer is not a JSON-RPC message: the quota is used up",
        "its answer is text/plain, and neither application/json nor text/event-stream: Please log in",
        "its answer is text/html, and neither application/json nor text/event-stream",
        "the answer is not a JSON-RPC message",
        "nor text/event-stream: cannot read …?…",
    ] {
        let error = error(&tools).await;
        assert!(error.ends_with(says), "{error}");
    }
}

#[tokio::test]
async fn call_that_reaches_no_server_has_not_started() {
    let server = Server::start(|request, _| request.answer(&json!({"content": []}))).await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    drop(server);
    let started = Arc::new(Mutex::new(Vec::new()));
    let report = Arc::clone(&started);
    let context = ToolContext::new("caller", Duration::from_secs(60))
        .with_progress(move |it: Progress| report.lock().unwrap().push(it));
    let error = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap_err();
    assert_eq!(error.message(), "the MCP server \"far\" is not running");
    assert_eq!(*started.lock().unwrap(), []);
    while !matches!(tools.health(), SourceHealth::Down { .. }) {
        tools.changed().await;
    }
    assert!(tools.list().is_empty());
}

#[tokio::test]
async fn last_event_needs_no_blank_line_at_the_end_of_its_stream() {
    let server = Server::start(|request, _| {
        let answer = json!({"jsonrpc": "2.0", "id": request.body["id"], "result": {"content": [{"type": "text", "text": "ok"}]}});
        ok("text/event-stream", &format!("event: message\ndata: {answer}\n"))
    })
    .await;
    let tools = mcp::http(&server.url).name("fake").await.unwrap();
    let context = ToolContext::new("caller", Duration::from_secs(60));
    let value = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap();
    assert_eq!(ToolResult::of(&value).for_model(100).text, "ok");
}

#[tokio::test]
async fn refusal_over_http_keeps_the_words_of_the_server_without_the_address() {
    for (kind, body, says) in [
        ("text/plain", "the quota is used up", "HTTP 429: the quota is used up"),
        ("application/json", r#"{"detail": "no license"}"#, "HTTP 429: no license"),
        ("text/plain", "cannot post /mcp?key=hunter2", "HTTP 429: cannot post …?…"),
        ("text/html", "<p>no", "HTTP 429"),
    ] {
        let server =
            Server::start(move |_, _| ok(kind, body).replacen("200 OK", "429 Too Many Requests", 1)).await;
        let tools = mcp::http(&server.url).name("fake").await.unwrap();
        let context = ToolContext::new("caller", Duration::from_secs(60));
        let error = tools.execute(&"t".parse().unwrap(), Value::empty(), context).await.unwrap_err();
        assert!(error.message().ends_with(says), "{error}");
    }
}

/// Returns the text of the answer to the call with this id.
fn answer_to(id: &Json) -> String {
    json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": "done"}]}}).to_string()
}

#[tokio::test]
async fn stream_is_resumed_after_its_last_event_until_the_call_is_answered() {
    let id = Arc::new(Mutex::new(Json::Null));
    let asked = Arc::clone(&id);
    let resumed = move |request: &Request| {
        let after = |event: &str| request.head.contains(&format!("last-event-id: {event}\r\n"));
        match &*request.method {
            "get" if after("7") => Some(ok("text/event-stream", "id: 8\n\n")),
            "get" if after("8") => {
                Some(ok("text/event-stream", &format!("id: 9\ndata: {}\n\n", answer_to(&id.lock().unwrap()))))
            }
            _ => None,
        }
    };
    let page = json!({"tools": [{"name": "t"}]});
    let server = Server::answering(page, Duration::ZERO, resumed, move |request, _| {
        asked.lock().unwrap().clone_from(&request.body["id"]);
        ok("text/event-stream", "id: 7\nretry: 1\ndata:\n\n")
    })
    .await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    assert_eq!(ToolResult::of(&call(&tools).await.unwrap()).for_model(100).text, "done");
    let seen = server.seen.lock().unwrap();
    let gets: Vec<_> = seen.iter().filter(|it| it.head.contains("last-event-id")).collect();
    assert_eq!(gets.len(), 2);
    assert!(gets.iter().all(|it| it.head.contains("mcp-session-id: s1\r\n")), "{gets:?}");
    assert!(gets.iter().all(|it| it.head.contains("mcp-protocol-version: 2025-11-25\r\n")), "{gets:?}");
}

/// A stream of events that breaks after its first event, or ends in order.
fn broken(event: &str, is_broken: bool) -> String {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nmcp-session-id: s1\r\ntransfer-encoding: chunked";
    let end = if is_broken { "50\r\nabc" } else { "0\r\n\r\n" };
    format!("{head}\r\n\r\n{:x}\r\n{event}\r\n{end}", event.len())
}

#[tokio::test(start_paused = true)]
async fn stream_that_ends_again_and_again_is_opened_with_growing_pauses() {
    let page = json!({"tools": [{"name": "t"}]});
    for answer in [
        broken("id: 1\ndata: \n\n", true),
        broken("id: 1\ndata: \n\n", false),
        status("503 Service Unavailable", ""),
    ] {
        let (other, posted) = (answer.clone(), broken("id: 1\ndata: \n\n", true));
        let gets = move |request: &Request| (request.method == "get").then(|| other.clone());
        let server = Server::answering(page.clone(), Duration::ZERO, gets, move |_, _| posted.clone()).await;
        let tools = mcp::http(&server.url).name("far").await.unwrap();
        // The stream of the session, and that of a call.
        let minutes = Duration::from_secs(600);
        assert!(tokio::time::timeout(minutes, call(&tools)).await.is_err(), "the call has ended");
        let count = server.seen.lock().unwrap().iter().filter(|it| it.method == "get").count();
        assert!((10..=40).contains(&count), "{count} streams were opened: {answer}");
    }
}

#[tokio::test]
async fn stream_of_an_expired_session_renews_it() {
    let gets = std::sync::atomic::AtomicUsize::new(0);
    let stream = move |request: &Request| {
        let is_first =
            request.method == "get" && gets.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        match request.method.as_str() {
            "get" if is_first => Some(ok("text/event-stream", "retry: 1\n\n")),
            "get" => Some(status("404 Not Found", "")),
            _ => None,
        }
    };
    let page = json!({"tools": [{"name": "t"}]});
    let server = Server::answering(page, Duration::ZERO, stream, |_, _| String::new()).await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    while tools.health() != SourceHealth::Up || server.count("initialize") < 2 {
        tools.changed().await;
    }
}

#[tokio::test]
async fn change_that_belongs_to_no_request_is_taken_from_a_stream_of_its_own() {
    let changed = r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#;
    let stream = move |request: &Request| {
        (request.method == "get").then(|| ok("text/event-stream", &format!("data: {changed}\n\n")))
    };
    let page = json!({"tools": [{"name": "t"}]});
    let server = Server::answering(page, Duration::ZERO, stream, |_, _| String::new()).await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    while server.count("tools/list") < 2 {
        tools.changed().await;
    }
}

/// Stops a call once it has started, over a stream that does not answer it. Returns the server, and what it got of that.
async fn stopped(is_modern: bool) -> (Server, Option<Json>) {
    let (cancelled, mut was_cancelled) = tokio::sync::mpsc::unbounded_channel();
    let (called, mut was_called) = tokio::sync::mpsc::unbounded_channel();
    let other = move |request: &Request| match request.rpc() {
        "server/discover" if is_modern => Some(request.answer(&json!({"supportedVersions": ["2026-07-28"]}))),
        "subscriptions/listen" => Some(ok("text/event-stream", "id: 1\nretry: 60000\n\n")),
        "notifications/cancelled" => {
            cancelled.send(request.body["params"].clone()).unwrap();
            Some(status("202 Accepted", ""))
        }
        _ => None,
    };
    let page = json!({"tools": [{"name": "t"}]});
    let server = Server::answering(page, Duration::ZERO, other, move |request, calls| match calls {
        1 => {
            called.send(()).unwrap();
            ok("text/event-stream", "id: 1\nretry: 60000\n\n")
        }
        _ => request.answer(&json!({"content": []})),
    })
    .await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    let token = toolbridge::CancellationToken::new();
    let context = ToolContext::new("caller", Duration::from_secs(60)).with_cancellation(token.clone());
    let tool = "t".parse().unwrap();
    let stop = async {
        was_called.recv().await.unwrap();
        token.cancel();
    };
    let (outcome, ()) = tokio::join!(tools.execute(&tool, Value::empty(), context), stop);
    assert_eq!(outcome.unwrap_err().code(), ErrorCode::CANCELLED);
    let params = if is_modern { None } else { was_cancelled.recv().await };
    assert!(call(&tools).await.is_ok());
    (server, params.or_else(|| was_cancelled.try_recv().ok()))
}

#[tokio::test]
async fn stop_tells_a_server_with_a_session_and_ends_the_connection_of_others() {
    let (server, params) = stopped(false).await;
    let params = params.unwrap();
    let id =
        server.seen.lock().unwrap().iter().find(|it| it.rpc() == "tools/call").unwrap().body["id"].clone();
    assert_eq!(params, json!({"requestId": id, "reason": "the caller no longer needs the call"}));
    let (_server, params) = stopped(true).await;
    assert_eq!(params, None);
}

#[tokio::test]
async fn request_of_the_newest_version_says_in_its_head_and_its_metadata_what_it_is() {
    let discovered = |request: &Request| match request.rpc() {
        "server/discover" => Some(request.answer(&json!({"supportedVersions": ["2026-07-28"]}))),
        _ => None,
    };
    let schema = |header: &str| json!({"type": "object", "properties": {"city": {"type": "string", "x-mcp-header": header}}});
    let page = json!({"tools": [
        {"name": "t", "inputSchema": schema("City")}, {"name": "wrong", "inputSchema": schema("a b")},
    ]});
    let server = Server::answering(page, Duration::ZERO, discovered, |request, _| {
        request.answer(&json!({"content": []}))
    })
    .await;
    let tools = mcp::http(&server.url).name("far").await.unwrap();
    assert_eq!(tools.list().len(), 1);
    assert!(
        tools.notes()[0].starts_with("wrong is not offered: `x-mcp-header` of `city`"),
        "{:?}",
        tools.notes()
    );
    let context = ToolContext::new("caller", Duration::from_secs(60));
    let arguments = Value::encode(&json!({"city": "Köln"})).unwrap();
    tools.execute(&"t".parse().unwrap(), arguments, context).await.unwrap();
    tools.close().await;
    let seen = server.seen.lock().unwrap();
    assert!(seen.iter().all(|it| it.method == "post" && !it.head.contains("mcp-session-id")), "{seen:?}");
    assert!(seen.iter().all(|it| it.rpc() != "initialize" && it.rpc() != "notifications/initialized"));
    for request in seen.iter() {
        let method = request.rpc().to_lowercase();
        for header in [format!("mcp-method: {method}"), "mcp-protocol-version: 2026-07-28".to_owned()] {
            assert!(request.head.contains(&format!("{header}\r\n")), "{header}: {request:?}");
        }
        let meta = &request.body["params"]["_meta"];
        assert_eq!(meta["io.modelcontextprotocol/protocolVersion"], "2026-07-28", "{request:?}");
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"]["name"], "toolbridge", "{request:?}");
    }
    let call = seen.iter().find(|it| it.rpc() == "tools/call").unwrap();
    assert!(call.head.contains("mcp-name: t\r\n"), "{call:?}");
    assert!(call.head.contains("mcp-param-city: =?base64?s8o2bg4=?=\r\n"), "{call:?}");
}
