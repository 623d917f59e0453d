//! The room's tools as an MCP server, over a byte stream, as its host sees it: raw JSON lines.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokio::{
    io::{
        AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf, duplex, split,
    },
    sync::mpsc,
    task::JoinHandle,
};
use toolbridge::{
    Assistant, Client, Progress, Tool, ToolContext, ToolError, ToolName, ToolOptions, ToolSource, Value,
    adapter::mcp::{self, McpServeError, RoomServer},
    memory::MemoryRoom,
    tools::StopReason,
};

const SECOND: Duration = Duration::from_secs(1);

#[derive(Deserialize, JsonSchema)]
struct Name {
    name: String,
}

#[derive(Serialize)]
struct Greeting {
    greeting: String,
}

async fn greet(of: Name) -> Result<Greeting, ToolError> {
    Ok(Greeting { greeting: format!("Hello, {}", of.name) })
}

async fn battery() -> Result<f64, ToolError> {
    Ok(0.8)
}

async fn fail() -> Result<(), ToolError> {
    Err(ToolError::new("no_such_room", "there is no room").with_partial(Value::from(json!({"rooms": 0}))))
}

async fn count(cx: ToolContext) -> Result<String, ToolError> {
    cx.progress(Progress::of(1, 2).message("half"));
    tokio::time::sleep(SECOND).await;
    cx.progress(Progress::of(2, 2));
    tokio::time::sleep(SECOND).await;
    Ok("counted".to_owned())
}

async fn forever() -> Result<(), ToolError> {
    std::future::pending().await
}

/// A host: it writes lines, and reads what arrives.
pub(crate) struct Host {
    read: BufReader<ReadHalf<DuplexStream>>,
    pub(crate) write: WriteHalf<DuplexStream>,
    pub(crate) server: JoinHandle<Result<(), McpServeError>>,
}

impl Host {
    /// Connects without a handshake.
    pub(crate) fn new(server: RoomServer) -> Self {
        let (near, far) = duplex(1 << 16);
        let (read, write) = split(far);
        let server = tokio::spawn(server.over(read, write));
        let (read, write) = split(near);
        Self { read: BufReader::new(read), write, server }
    }

    /// Connects as a host of protocol version 2025-11-25 does.
    pub(crate) async fn initialized(server: RoomServer) -> Self {
        let mut host = Self::new(server);
        let client = json!({"name": "test", "version": "1"});
        let opened = host
            .ask(
                "initialize",
                json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}),
            )
            .await;
        assert_eq!(opened["result"]["protocolVersion"], "2025-11-25");
        assert_eq!(opened["result"]["capabilities"], json!({"tools": {"listChanged": true}}));
        host.notify("notifications/initialized", json!({})).await;
        host
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.write.write_all(line.as_bytes()).await.unwrap();
        self.write.write_all(b"\n").await.unwrap();
    }

    pub(crate) async fn notify(&mut self, method: &str, params: Json) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string()).await;
    }

    /// Sends a request with this id.
    pub(crate) async fn request(&mut self, id: u32, method: &str, params: Json) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()).await;
    }

    pub(crate) async fn next(&mut self) -> Json {
        serde_json::from_str(&self.line().await).unwrap()
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = tokio::time::timeout(60 * SECOND, self.read.read_line(&mut line)).await;
        assert!(read.expect("a message").unwrap() > 0, "the server closed the connection");
        line
    }

    /// Sends a request and returns the next message.
    pub(crate) async fn ask(&mut self, method: &str, params: Json) -> Json {
        self.request(1, method, params).await;
        self.next().await
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Json) -> Json {
        self.ask("tools/call", json!({"name": tool, "arguments": arguments})).await["result"].take()
    }

    pub(crate) async fn tools(&mut self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({})).await;
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    }
}

fn code(answer: &Json) -> i64 {
    answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{answer}"))
}

fn phone() -> toolbridge::ClientBuilder {
    Client::builder()
        .tool("greet", "Greets a person", greet)
        .tool("get_battery", "Battery level", ToolOptions::default().read_only().on(battery))
        .tool("fail", "Fails", fail)
        .tool("count", "Counts to two", count)
        .tool("forever", "Never ends", forever)
}

async fn assistant(room: &MemoryRoom) -> Assistant {
    Assistant::builder().join_over(room.assistant("a")).await.unwrap()
}

/// A room with a client "phone", and a host of its server.
async fn with_phone() -> (MemoryRoom, Client, Host) {
    let room = MemoryRoom::new();
    let phone = phone().join_over(room.client("phone")).await.unwrap();
    let host = Host::initialized(mcp::serve(assistant(&room).await)).await;
    (room, phone, host)
}

#[tokio::test(start_paused = true)]
async fn first_list_has_the_tools_of_the_clients_that_are_present() {
    let (_room, _phone, mut host) = with_phone().await;
    let listed = host.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<_> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["count", "fail", "forever", "get_battery", "greet"]);
    assert_eq!(tools[4]["description"], "Greets a person");
    assert_eq!(tools[4]["inputSchema"]["properties"]["name"]["type"], "string");
    assert_eq!(tools[4]["inputSchema"]["required"], json!(["name"]));
    assert_eq!(tools[3]["inputSchema"]["type"], "object");
    assert_eq!(tools[3]["annotations"], json!({"readOnlyHint": true, "destructiveHint": false}));
    assert_eq!(tools[4].get("annotations"), None, "nothing is known of the tool's effect");
}

#[tokio::test(start_paused = true)]
async fn map_is_structured_content_too_and_so_is_a_scalar_in_a_map() {
    let (_room, _phone, mut host) = with_phone().await;
    let result = host.call("greet", json!({"name": "Ada"})).await;
    assert_eq!(result["structuredContent"], json!({"greeting": "Hello, Ada"}));
    assert_eq!(result["content"], json!([{"type": "text", "text": r#"{"greeting":"Hello, Ada"}"#}]));
    let level = json!({"content": [{"type": "text", "text": "0.8"}], "structuredContent": {"value": 0.8}});
    assert_eq!(host.call("get_battery", json!({})).await, level);
}

#[tokio::test(start_paused = true)]
async fn failure_is_a_result_with_text_code_and_whether_it_may_have_run() {
    let (_room, _phone, mut host) = with_phone().await;
    let result = host.call("fail", json!({})).await;
    assert_eq!(result["isError"], true);
    assert_eq!(result["content"][0]["text"], "there is no room");
    assert_eq!(result["structuredContent"], json!({"rooms": 0}));
    assert_eq!(
        result["_meta"],
        json!({"dev.toolbridge/errorCode": "no_such_room", "dev.toolbridge/mayHaveRun": true})
    );
    let result = host.call("greet", json!({"name": 5})).await;
    let text = result["content"][0]["text"].as_str().unwrap();
    assert!(text.ends_with(". Correct the arguments, and call again."), "{text}");
    assert_eq!(
        result["_meta"],
        json!({"dev.toolbridge/errorCode": "invalid_parameters", "dev.toolbridge/mayHaveRun": false})
    );
}

#[tokio::test(start_paused = true)]
async fn progress_is_sent_to_a_host_that_gave_a_token_and_increases() {
    let (_room, _phone, mut host) = with_phone().await;
    let called = json!({"name": "count", "arguments": {}, "_meta": {"progressToken": "p"}});
    host.request(7, "tools/call", called).await;
    let expected = [
        json!({"progressToken": "p", "progress": 1.0, "total": 2.0, "message": "half"}),
        json!({"progressToken": "p", "progress": 2.0, "total": 2.0}),
    ];
    for params in expected {
        assert_eq!(
            host.next().await,
            json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
        );
    }
    let answer = host.next().await;
    assert_eq!((&answer["id"], &answer["result"]["content"][0]["text"]), (&json!(7), &json!("counted")));
    assert_eq!(host.call("count", json!({})).await["content"][0]["text"], "counted", "no token, no progress");
}

/// A tool that reports why it was stopped.
struct Watched(mpsc::UnboundedSender<Option<StopReason>>);

impl ToolSource for Watched {
    fn list(&self) -> Vec<Tool> {
        vec![Tool::new("watched".parse().unwrap(), "Waits until it is stopped")]
    }

    async fn execute(&self, _: &ToolName, _: Value, cx: ToolContext) -> Result<Value, ToolError> {
        let _ = self.0.send(None);
        cx.cancelled().await;
        let _ = self.0.send(cx.stopped());
        Err(ToolError::cancelled())
    }
}

/// A host, and what the watched tool reports.
async fn with_watched() -> (MemoryRoom, Client, Host, mpsc::UnboundedReceiver<Option<StopReason>>) {
    let (report, reports) = mpsc::unbounded_channel();
    let room = MemoryRoom::new();
    let client = Client::builder().tools(Watched(report)).join_over(room.client("phone")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant(&room).await)).await;
    host.request(7, "tools/call", json!({"name": "watched"})).await;
    (room, client, host, reports)
}

#[tokio::test(start_paused = true)]
async fn call_that_the_host_cancels_is_stopped_at_the_client_with_a_reason() {
    let (_room, _client, mut host, mut reports) = with_watched().await;
    assert_eq!(reports.recv().await, Some(None));
    host.notify("notifications/cancelled", json!({"requestId": 7, "reason": "the user closed the window"}))
        .await;
    assert_eq!(reports.recv().await, Some(Some(StopReason::Caller)));
    assert_eq!(host.tools().await, ["watched"], "the connection lives");
}

#[tokio::test(start_paused = true)]
async fn cancellation_counts_whatever_its_reason_and_the_form_of_its_id() {
    for params in [json!({"requestId": 7, "reason": 5}), json!({"requestId": 7.0, "reason": {"why": []}})] {
        let (_room, _client, mut host, mut reports) = with_watched().await;
        assert_eq!(reports.recv().await, Some(None));
        host.notify("notifications/cancelled", params.clone()).await;
        let reason = tokio::time::timeout(20 * SECOND, reports.recv()).await;
        assert_eq!(reason, Ok(Some(Some(StopReason::Caller))), "{params}");
    }
}

#[tokio::test(start_paused = true)]
async fn call_of_a_host_that_is_gone_is_stopped_at_the_client() {
    let (_room, _client, host, mut reports) = with_watched().await;
    assert_eq!(reports.recv().await, Some(None));
    let Host { read, write, server } = host;
    drop((read, write));
    assert_eq!(reports.recv().await, Some(Some(StopReason::Caller)));
    assert!(server.await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn bad_input_is_refused_and_the_connection_lives() {
    let (_room, _phone, mut host) = with_phone().await;
    assert_eq!(host.tools().await.len(), 5);
    let deep = format!(
        r#"{{"id":"d","jsonrpc":"2.0","method":"ping","params":{}{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    );
    let long_id = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"ping"}}"#, "x".repeat(300));
    for (line, expected, id) in [
        ("{", -32700, None),
        ("nonsense", -32700, None),
        ("\u{fffd}", -32700, None),
        (r#"{"jsonrpc":"2.0","id":8,"method":"ping","params":{"a":tru}}"#, -32700, Some(json!(8))),
        (r#"{"jsonrpc":"2.0","\u0069d":8,"method":"ping","params":tru}"#, -32700, Some(json!(8))),
        (r#"{"jsonrpc":"2.0","id":[1],"method":"ping"}"#, -32600, None),
        (&*long_id, -32600, None),
        (r#"{"jsonrpc":"2.0","id":9,"result":{"a":tru}}"#, -32700, None),
        (&*deep, -32600, Some(json!("d"))),
        ("[]", -32600, None),
        ("7", -32600, None),
        (r#"{"jsonrpc":"1.0","id":3,"method":"tools/list"}"#, -32600, Some(json!(3))),
        (r#"{"jsonrpc":"2.0","id":"x"}"#, -32600, Some(json!("x"))),
        (
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"greet","arguments":[1]}}"#,
            -32602,
            Some(json!(4)),
        ),
        (
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"name":"greet","arguments":"x"}}"#,
            -32602,
            Some(json!(4)),
        ),
        (
            r#"{"jsonrpc":"2.0","id":4,"method":"tools/call","params":{"arguments":{}}}"#,
            -32602,
            Some(json!(4)),
        ),
        (r#"{"jsonrpc":"2.0","id":4,"method":"tools/call"}"#, -32602, Some(json!(4))),
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"nobody"}}"#,
            -32602,
            Some(json!(5)),
        ),
        (
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":{"cursor":"next"}}"#,
            -32602,
            Some(json!(5)),
        ),
    ] {
        host.send(line).await;
        let answer = host.next().await;
        assert_eq!((code(&answer), answer.get("id")), (expected, id.as_ref()), "{line}: {answer}");
    }
    host.send("").await;
    host.send(r#"{"jsonrpc":"2.0","method":"notifications/unknown"}"#).await;
    host.send(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#).await;
    assert_eq!(host.tools().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn requests_with_one_id_and_with_odd_ids_are_all_answered() {
    let (_room, _phone, mut host) = with_phone().await;
    let call = |name: &str| json!({"name": name, "arguments": {"name": "Ada"}});
    host.request(7, "tools/call", call("count")).await;
    host.request(7, "tools/call", call("greet")).await;
    let answers = [host.next().await, host.next().await];
    assert!(answers.iter().all(|answer| answer["id"] == 7 && answer.get("result").is_some()), "{answers:?}");
    for id in ["7.0", "1.5", "1180591620717411303424", "-1", "\"7\""] {
        host.send(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping"}}"#)).await;
        let line = host.line().await;
        assert!(line.contains(&format!("\"id\":{id},\"result\":{{}}")), "{id}: {line}");
    }
}

#[tokio::test(start_paused = true)]
async fn argument_with_half_of_a_surrogate_pair_is_passed_with_a_replacement() {
    let (_room, _phone, mut host) = with_phone().await;
    let call = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"greet","arguments":{"name":"A\ud83d"}}}"#;
    host.send(call).await;
    let answer = host.next().await;
    assert!(answer["id"] == 7 && answer["result"].to_string().contains("A\u{fffd}"), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn method_that_is_not_offered_is_unknown() {
    let (_room, _phone, mut host) = with_phone().await;
    for (method, params) in [
        ("resources/list", json!({})),
        ("resources/templates/list", json!({})),
        ("resources/read", json!({"uri": "x:y"})),
        ("resources/subscribe", json!({"uri": "x:y"})),
        ("prompts/list", json!({})),
        ("prompts/get", json!({"name": "x"})),
        (
            "completion/complete",
            json!({"ref": {"type": "ref/prompt", "name": "x"}, "argument": {"name": "a", "value": ""}}),
        ),
        ("logging/setLevel", json!({"level": "debug"})),
        ("tasks/get", json!({"taskId": "x"})),
        ("no/such/method", json!({})),
    ] {
        let answer = host.ask(method, params).await;
        assert_eq!(code(&answer), -32601, "{method}: {answer}");
    }
    assert_eq!(host.ask("ping", json!({})).await["result"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn line_over_the_limit_is_skipped_and_refused() {
    let (_room, _phone, mut host) = with_phone().await;
    let long = "x".repeat(4 * 1024 * 1024 + 1);
    host.send(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{long}"}}}}"#))
        .await;
    let answer = host.next().await;
    assert_eq!((code(&answer), &answer["id"]), (-32600, &json!(1)));
    assert!(answer["error"]["message"].as_str().unwrap().contains("4194304"), "{answer}");
    host.send(&format!(r#"{{"params":{{"name":"{long}"}},"id":7,"method":"tools/call","jsonrpc":"2.0"}}"#))
        .await;
    assert_eq!(host.next().await["id"], 7);
    assert_eq!(host.tools().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn host_that_does_not_open_the_connection_as_agreed_gets_errors_until_it_does() {
    let room = MemoryRoom::new();
    let mut host = Host::new(mcp::serve(assistant(&room).await));
    host.notify("notifications/initialized", json!({})).await;
    host.send("{").await;
    assert_eq!(code(&host.next().await), -32700);
    assert_eq!(code(&host.ask("tools/list", json!({})).await), -32602);
    assert_eq!(host.ask("ping", json!({})).await["result"], json!({}));
    host.notify("notifications/cancelled", json!({"requestId": 1})).await;
    host.notify("notifications/unknown", json!({})).await;
    host.send(r#"{"jsonrpc":"2.0","id":99,"result":{}}"#).await;
    let client = json!({"name": "test", "version": "1"});
    let opened = host
        .ask("initialize", json!({"protocolVersion": "1999-01-01", "capabilities": {}, "clientInfo": client}))
        .await;
    assert!(opened["result"]["protocolVersion"].as_str().unwrap() >= "2025-06-18", "{opened}");
    assert!(host.tools().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn change_of_the_tools_is_announced_after_the_host_has_listed_them() {
    let (room, phone, mut host) = with_phone().await;
    assert_eq!(host.tools().await.len(), 5);
    let tv =
        Client::builder().tool("play", "Plays a film", battery).join_over(room.client("tv")).await.unwrap();
    assert_eq!(host.next().await, json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}));
    assert!(host.tools().await.contains(&"play".to_owned()));
    tv.close().await;
    assert_eq!(host.next().await["method"], "notifications/tools/list_changed");
    assert_eq!(host.tools().await.len(), 5);
    drop(phone);
    assert_eq!(host.next().await["method"], "notifications/tools/list_changed");
}

#[tokio::test(start_paused = true)]
async fn tool_of_two_clients_is_listed_once_for_each() {
    let room = MemoryRoom::new();
    let offer = |level: f64| {
        Client::builder().tool("level", "Battery level", move || async move { Ok::<_, ToolError>(level) })
    };
    let _desk = offer(0.5).join_over(room.client("desk")).await.unwrap();
    let _phone = offer(0.8).join_over(room.client("phone")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant(&room).await)).await;
    assert_eq!(host.tools().await, ["desk__level", "phone__level"]);
    assert_eq!(host.call("phone__level", json!({})).await["content"][0]["text"], "0.8");
    assert_eq!(host.call("desk__level", json!({})).await["content"][0]["text"], "0.5");
}

#[tokio::test(start_paused = true)]
async fn denied_tool_is_neither_listed_nor_called() {
    let room = MemoryRoom::new();
    let phone = phone().tool("fs.read", "Reads", battery).tool("fs.erase", "Erases", battery);
    let _phone = phone.join_over(room.client("phone")).await.unwrap();
    let server = mcp::serve(assistant(&room).await).allow("get_*").allow("greet").allow("fs.*");
    let mut host = Host::initialized(server.deny("phone.greet").deny("fs__erase")).await;
    assert_eq!(host.tools().await, ["fs__read", "get_battery"]);
    for tool in ["fs__erase", "greet", "count", "bridge.echo", "bridge.form", "bridge__echo"] {
        let answer = host.ask("tools/call", json!({"name": tool, "arguments": {"name": "x"}})).await;
        assert_eq!(code(&answer), -32602, "{tool}: {answer}");
    }
}

#[tokio::test(start_paused = true)]
async fn common_x7_call_beyond_64_open_ones_is_refused_as_busy() {
    let (_room, _phone, mut host) = with_phone().await;
    assert_eq!(host.tools().await.len(), 5);
    for id in 100..164 {
        host.request(id, "tools/call", json!({"name": "forever"})).await;
    }
    let result = host.call("get_battery", json!({})).await;
    assert!(
        result["content"][0]["text"].as_str().unwrap().starts_with("64 calls are open already. Call again"),
        "{result}"
    );
    assert_eq!(
        result["_meta"],
        json!({"dev.toolbridge/errorCode": "busy", "dev.toolbridge/mayHaveRun": false})
    );
    host.notify("notifications/cancelled", json!({"requestId": 100})).await;
    while host.call("get_battery", json!({})).await["_meta"]["dev.toolbridge/errorCode"] == "busy" {
        tokio::time::sleep(SECOND).await;
    }
}

#[tokio::test(start_paused = true)]
async fn client_of_another_assistant_is_named_with_what_to_do() {
    let room = MemoryRoom::new();
    let _other = Assistant::builder().join_over(room.assistant("other")).await.unwrap();
    let _phone = phone().assistant("other").join_over(room.client("phone")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant(&room).await)).await;
    assert!(host.tools().await.is_empty());
    let answer = host.ask("tools/call", json!({"name": "greet", "arguments": {"name": "Ada"}})).await;
    let result = &answer["result"];
    let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
    assert!(
        text.contains("obeys another assistant") && text.contains("A client obeys one assistant"),
        "{text}"
    );
    assert_eq!(
        result["_meta"],
        json!({"dev.toolbridge/errorCode": "not_bound", "dev.toolbridge/mayHaveRun": false})
    );
}

#[tokio::test(start_paused = true)]
async fn tool_whose_client_reconnects_is_called_when_it_is_back() {
    let (room, phone, mut host) = with_phone().await;
    assert_eq!(host.tools().await.len(), 5);
    phone.close().await;
    assert_eq!(host.next().await["method"], "notifications/tools/list_changed");
    host.request(7, "tools/call", json!({"name": "get_battery"})).await;
    let _phone = self::phone().join_over(room.client("phone")).await.unwrap();
    let answers = [host.next().await, host.next().await];
    let result = answers.iter().find(|it| it["id"] == 7).unwrap();
    assert_eq!(result["result"]["content"][0]["text"], "0.8", "{answers:?}");
}

#[tokio::test(start_paused = true)]
async fn document_of_an_mcp_server_passes_with_unknown_blocks_and_keys() {
    let document = json!({
        "content": [{"type": "hologram", "depth": 0.9}, {"type": "text", "text": "t", "annotations": {"priority": 0.9}}],
        "structuredContent": {"n": 1},
        "context_updates": {"city": null},
    });
    let sent = document.clone();
    let room = MemoryRoom::new();
    let tool = move || {
        let sent = sent.clone();
        async move { Ok::<_, ToolError>(Value::from(sent)) }
    };
    let _phone = Client::builder().tool("show", "Shows", tool).join_over(room.client("phone")).await.unwrap();
    let mut host = Host::initialized(mcp::serve(assistant(&room).await)).await;
    assert_eq!(host.call("show", json!({})).await, document);
}

/// The metadata of a request of protocol version 2026-07-28.
pub(crate) fn meta() -> Json {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

#[tokio::test(start_paused = true)]
async fn host_of_2026_07_28_calls_without_initialize_and_subscribes_to_changes() {
    let room = MemoryRoom::new();
    let _phone = phone().join_over(room.client("phone")).await.unwrap();
    let mut host = Host::new(mcp::serve(assistant(&room).await));
    let discovered = host.ask("server/discover", json!({"_meta": meta()})).await;
    assert!(
        discovered["result"]["supportedVersions"].as_array().unwrap().contains(&json!("2026-07-28")),
        "{discovered}"
    );
    let listed = host.ask("tools/list", json!({"_meta": meta()})).await;
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 5, "{listed}");
    let called =
        host.ask("tools/call", json!({"name": "get_battery", "arguments": {}, "_meta": meta()})).await;
    assert_eq!(called["result"]["content"], json!([{"type": "text", "text": "0.8"}]));
    assert_eq!(called["result"]["resultType"], "complete");
    let filter = json!({"toolsListChanged": true});
    host.request(9, "subscriptions/listen", json!({"notifications": filter, "_meta": meta()})).await;
    let acknowledged = host.next().await;
    assert_eq!(acknowledged["method"], "notifications/subscriptions/acknowledged");
    assert_eq!(acknowledged["params"]["notifications"], filter);
    let _tv =
        Client::builder().tool("play", "Plays a film", battery).join_over(room.client("tv")).await.unwrap();
    let changed = host.next().await;
    assert_eq!(changed["method"], "notifications/tools/list_changed");
    assert_eq!(changed["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 9, "{changed}");
}

#[tokio::test(start_paused = true)]
async fn connection_ends_when_the_assistant_leaves_the_room() {
    let room = MemoryRoom::new();
    let assistant = assistant(&room).await;
    let host = Host::initialized(mcp::serve(assistant.clone())).await;
    assistant.close().await;
    assert!(matches!(host.server.await.unwrap(), Err(McpServeError::Left(_))));
}
