//! Calls of MCP tools through a room, compared with the same calls without the room or without MCP.
//!
//! The server is `@modelcontextprotocol/server-everything` as a child process. The hosts write their requests
//! themselves, one at a time, so that they add as little as possible.

use std::{
    path::PathBuf,
    process::Stdio,
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdin, ChildStdout, Command},
};
use toolbridge::{
    Assistant, Client, ToolError, ToolResult, Value,
    adapter::mcp::{self, McpListener},
    livekit::AccessKey,
};

use super::rounds::Rounds;

/// The text of a call, in bytes.
const TEXT: usize = 40;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Message {
    message: String,
}

async fn repeat(message: Message) -> Result<Message, ToolError> {
    Ok(message)
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    ServerDirectly,
    ServerInRoom,
    ToolInRoom,
    HostOverHttp,
    HostOverStdio,
}

impl Row {
    const ALL: [Self; 5] =
        [Self::ServerDirectly, Self::ServerInRoom, Self::ToolInRoom, Self::HostOverHttp, Self::HostOverStdio];

    fn name(self) -> &'static str {
        match self {
            Self::ServerDirectly => "host -> MCP server (stdio)",
            Self::ServerInRoom => "assistant -> room -> client -> MCP server (stdio)",
            Self::ToolInRoom => "assistant -> room -> client's own tool",
            Self::HostOverHttp => "host -> mcp::serve (HTTP) -> room -> client's own tool",
            Self::HostOverStdio => "host -> `toolbridge mcp` (stdio) -> room -> client's own tool",
        }
    }
}

/// Measures all rows, and prints what the adapters add.
pub(super) async fn mcp(url: &str, key: &AccessKey) {
    let (Some(script), Some(program)) = (script_of_everything(), option_env!("CARGO_BIN_EXE_toolbridge"))
    else {
        eprintln!("skipped: MCP (run scripts/parts peers/mcp; the command line must be built)");
        return;
    };
    let mut callers = Callers::start(url, key, &script, program).await;
    let times = Rounds::of(&Row::ALL, async |row, count| callers.calls(row, count).await).await;
    for row in Row::ALL {
        times.report(row, row.name());
    }
    let both = [Row::ServerDirectly, Row::ToolInRoom];
    times.added("client's adapter (second row - first - third)", Row::ServerInRoom, &both);
    times.added("server over HTTP (fourth row - third)", Row::HostOverHttp, &both[1..]);
    times.added("server over stdio (fifth row - third)", Row::HostOverStdio, &both[1..]);
    callers.close().await;
}

/// The participants and hosts of all rows.
struct Callers {
    client: Client,
    assistant: Assistant,
    direct: LineHost,
    http: HttpHost,
    stdio: LineHost,
    other_client: Client,
    _listener: McpListener,
}

impl Callers {
    async fn start(url: &str, key: &AccessKey, script: &str, program: &str) -> Self {
        let room = format!("bench-mcp-{}", std::process::id());
        let other = format!("{room}-stdio");
        let phone = key.client(&room, "phone").sign().expect("a token");
        let brain = key.assistant(&room, "assistant").sign().expect("a token");
        let tools = mcp::stdio(["node", script, "stdio"]).name("everything").await.expect("started");
        let client = builder().tools(tools).consent(|_| async { true });
        let (client, assistant) =
            tokio::join!(client.join(url, &phone), Assistant::builder().client("phone").join(url, &brain));
        let (client, assistant) = (client.expect("joined"), assistant.expect("joined"));
        let listener = mcp::serve(assistant.clone()).listen("127.0.0.1:0".parse().expect("an address")).await;
        let listener = listener.expect("listening");

        let phone = key.client(&other, "phone").sign().expect("a token");
        let other_client = builder().join(url, &phone).await.expect("joined");
        let mut served = Command::new(program);
        served.args(["mcp", "--url", url, "--client", "phone"]);
        served.env("LIVEKIT_TOKEN", key.assistant(&other, "assistant").sign().expect("a token"));
        let mut direct = Command::new("node");
        direct.args([script, "stdio"]);
        Self {
            client,
            direct: LineHost::start(direct).await,
            http: HttpHost::start(&listener).await,
            stdio: LineHost::start(served).await,
            assistant,
            other_client,
            _listener: listener,
        }
    }

    /// Returns how long each call takes, one after the other.
    async fn calls(&mut self, row: Row, count: usize) -> Vec<Duration> {
        let arguments = json!({"message": "x".repeat(TEXT)});
        let value = Value::from(&arguments);
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            let answer = match row {
                Row::ServerDirectly => self.direct.call("echo", &arguments).await,
                Row::ServerInRoom => self.in_room("echo", &value).await,
                Row::ToolInRoom => self.in_room("repeat", &value).await,
                Row::HostOverHttp => self.http.call("repeat", &arguments).await,
                Row::HostOverStdio => self.stdio.call("repeat", &arguments).await,
            };
            times.push(began.elapsed());
            assert!(answer.contains("xxxx"), "{}: {answer}", row.name());
        }
        times
    }

    async fn in_room(&self, tool: &str, arguments: &Value) -> String {
        let value = self.assistant.call(tool, arguments).to("phone").await.expect("a result");
        ToolResult::of(&value).for_model(1_000).text.into_owned()
    }

    async fn close(self) {
        self.assistant.close().await;
        self.client.close().await;
        self.other_client.close().await;
    }
}

fn builder() -> toolbridge::ClientBuilder {
    Client::builder()
        .tool("repeat", "Returns the message", repeat)
        .assistant("assistant")
        .configure(|config| config.caps.requests.calls_per_second = 1_000_000)
}

/// Returns the script of the server, if it is installed.
fn script_of_everything() -> Option<String> {
    let found = std::process::Command::new("scripts/parts").args(["peers/mcp", "find"]).output().ok()?;
    let folder = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
    let script = folder.join("node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    script.is_file().then(|| script.to_string_lossy().into_owned())
}

fn request(id: u64, method: &str, params: &Json) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string()
}

fn initialize() -> String {
    let client = json!({"name": "bench", "version": "1"});
    request(
        0,
        "initialize",
        &json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}),
    )
}

const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;

/// Returns whether a message answers this request.
fn answers(message: &str, id: u64) -> bool {
    serde_json::from_str::<Json>(message).is_ok_and(|it| it["id"] == id)
}

/// A host of a server that is a child process.
struct LineHost {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    id: u64,
    _child: Child,
}

impl LineHost {
    async fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().expect("started");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let mut host = Self { input, output, id: 0, _child: child };
        host.exchange(&initialize()).await;
        host.input.write_all(format!("{INITIALIZED}\n").as_bytes()).await.expect("written");
        host
    }

    async fn call(&mut self, tool: &str, arguments: &Json) -> String {
        self.id += 1;
        self.exchange(&request(self.id, "tools/call", &json!({"name": tool, "arguments": arguments}))).await
    }

    async fn exchange(&mut self, request: &str) -> String {
        self.input.write_all(format!("{request}\n").as_bytes()).await.expect("written");
        loop {
            let line = self.output.next_line().await.expect("read").expect("the server runs");
            if answers(&line, self.id) {
                return line;
            }
        }
    }
}

/// A host over HTTP, with one connection that it keeps.
struct HttpHost {
    stream: BufReader<TcpStream>,
    headers: String,
    id: u64,
}

impl HttpHost {
    async fn start(listener: &McpListener) -> Self {
        let stream = TcpStream::connect(listener.address()).await.expect("connected");
        stream.set_nodelay(true).expect("set");
        let headers = format!(
            "Host: {}\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n",
            listener.address(),
            listener.token()
        );
        let mut host = Self { stream: BufReader::new(stream), headers, id: 0 };
        let (head, _) = host.post(&initialize()).await;
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session");
        host.headers += &format!("Mcp-Session-Id: {session}\r\nMcp-Protocol-Version: 2025-11-25\r\n");
        host.post(INITIALIZED).await;
        host
    }

    async fn call(&mut self, tool: &str, arguments: &Json) -> String {
        self.id += 1;
        let request = request(self.id, "tools/call", &json!({"name": tool, "arguments": arguments}));
        let (head, body) = self.post(&request).await;
        let mut messages = body.lines().filter_map(|line| line.strip_prefix("data:"));
        messages.find(|it| answers(it, self.id)).unwrap_or_else(|| panic!("{head}{body}")).to_owned()
    }

    /// Sends a request, and returns the head and the body of the response once it is complete.
    async fn post(&mut self, body: &str) -> (String, String) {
        let text =
            format!("POST /mcp HTTP/1.1\r\n{}Content-Length: {}\r\n\r\n{body}", self.headers, body.len());
        self.stream.write_all(text.as_bytes()).await.expect("written");
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(
                self.stream.read_line(&mut head).await.expect("read"),
                0,
                "the server is there: {head}"
            );
        }
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        let mut body = Vec::new();
        if header("transfer-encoding") == Some("chunked") {
            while self.read_chunk(&mut body).await > 0 {}
        } else {
            body.resize(header("content-length").map_or(0, |it| it.parse().expect("a number")), 0);
            self.stream.read_exact(&mut body).await.expect("read");
        }
        (head, String::from_utf8(body).expect("UTF-8"))
    }

    /// Appends a chunk, and returns its size. The last one has 0 bytes.
    async fn read_chunk(&mut self, body: &mut Vec<u8>) -> usize {
        let mut size = String::new();
        self.stream.read_line(&mut size).await.expect("read");
        let size = usize::from_str_radix(size.trim(), 16).expect("a size");
        let end = body.len() + size;
        body.resize(end + 2, 0);
        self.stream.read_exact(&mut body[end - size..]).await.expect("read");
        body.truncate(end);
        size
    }
}
