//! Calls of a RAP tool through a room, compared with the same calls without the room or without RAP.
//!
//! The tool is a process of its own. It answers an invocation with status 200, and posts the result over a connection that
//! it keeps.

use std::{
    collections::{HashMap, hash_map::Entry},
    env,
    process::Stdio,
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    sync::{mpsc, oneshot},
};
use toolbridge::{
    Assistant, Client, ToolError, ToolResult, Value,
    adapter::rap::{self, RapListener},
    livekit::AccessKey,
};

use super::{
    http::{self, Connection},
    rounds::Rounds,
};

/// The text of a call, in bytes.
const TEXT: usize = 40;

#[derive(Deserialize, Serialize, JsonSchema)]
pub(super) struct Message {
    message: String,
}

pub(super) async fn repeat(message: Message) -> Result<Message, ToolError> {
    Ok(message)
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    ToolDirectly,
    ToolInRoom,
    OwnTool,
    RuntimeInRoom,
}

impl Row {
    const ALL: [Self; 4] = [Self::ToolDirectly, Self::ToolInRoom, Self::OwnTool, Self::RuntimeInRoom];

    fn name(self) -> &'static str {
        match self {
            Self::ToolDirectly => "runtime -> RAP tool",
            Self::ToolInRoom => "assistant -> room -> client -> RAP tool",
            Self::OwnTool => "assistant -> room -> client's own tool",
            Self::RuntimeInRoom => "runtime -> rap::serve -> room -> client's own tool",
        }
    }
}

/// Measures all rows, and prints what the room and the adapters add.
pub(super) async fn rap(url: &str, key: &AccessKey) {
    let mut callers = Callers::start(url, key).await;
    let times = Rounds::of(&Row::ALL, async |row, count| callers.calls(row, count).await).await;
    for row in Row::ALL {
        times.report(row, row.name());
    }
    times.added("room with both its ends (second row - first)", Row::ToolInRoom, &[Row::ToolDirectly]);
    times.added(
        "client's adapter (second row - first - third)",
        Row::ToolInRoom,
        &[Row::ToolDirectly, Row::OwnTool],
    );
    times.added("server (fourth row - third)", Row::RuntimeInRoom, &[Row::OwnTool]);
    callers.client.close().await;
    callers.assistant.close().await;
}

struct Callers {
    client: Client,
    assistant: Assistant,
    tool: ToolProcess,
    to_tool: Connection,
    to_room: Connection,
    runtime: Runtime,
    listener: RapListener,
}

impl Callers {
    async fn start(url: &str, key: &AccessKey) -> Self {
        let room = format!("bench-rap-{}", std::process::id());
        let phone = key.client(&room, "phone").sign().expect("a token");
        let brain = key.assistant(&room, "assistant").sign().expect("a token");
        let (tool, runtime) = (ToolProcess::start().await, Runtime::start().await);
        let tools = rap::toolset(&tool.url).name("bench").await.expect("its manifest");
        let client = Client::builder()
            .tools(tools)
            .tool("own", "Returns the message", repeat)
            .assistant("assistant")
            .consent(|_| async { true })
            .configure(|config| config.caps.requests.calls_per_second = 1_000_000);
        let (client, assistant) =
            tokio::join!(client.join(url, &phone), Assistant::builder().client("phone").join(url, &brain));
        let (client, assistant) = (client.expect("joined"), assistant.expect("joined"));
        let callback = http::split(&runtime.url).0.parse().expect("a host");
        let served = rap::serve(assistant.clone()).allow_callback(callback);
        let listener = served.listen("127.0.0.1:0".parse().expect("an address")).await.expect("listening");
        let (to_tool, to_room) = (Connection::to(&tool.url).await, Connection::to(listener.url()).await);
        Self { client, assistant, tool, to_tool, to_room, runtime, listener }
    }

    /// Returns how long each call takes, one after the other.
    async fn calls(&mut self, row: Row, count: usize) -> Vec<Duration> {
        let arguments = json!({"message": "x".repeat(TEXT)});
        let value = Value::from(&arguments);
        let (tool, room) = (format!("{}/invoke", self.tool.url), format!("{}/invoke", self.listener.url()));
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let began = Instant::now();
            let answer = match row {
                Row::ToolDirectly => self.runtime.call(&mut self.to_tool, &tool, "repeat", &arguments).await,
                Row::RuntimeInRoom => self.runtime.call(&mut self.to_room, &room, "own", &arguments).await,
                Row::ToolInRoom => in_room(&self.assistant, "repeat", &value).await,
                Row::OwnTool => in_room(&self.assistant, "own", &value).await,
            };
            times.push(began.elapsed());
            assert!(answer.contains("xxxx"), "{}: {answer}", row.name());
        }
        times
    }
}

async fn in_room(assistant: &Assistant, tool: &str, arguments: &Value) -> String {
    let value = assistant.call(tool, arguments).to("phone").await.expect("a result");
    ToolResult::of(&value).for_model(1_000).text.into_owned()
}

/// The model's side of RAP: it invokes tools, and waits for their results.
struct Runtime {
    url: String,
    open: Open,
    count: u64,
}

/// Who waits for the result of a call.
type Open = Arc<Mutex<HashMap<String, oneshot::Sender<String>>>>;

impl Runtime {
    async fn start() -> Self {
        let open = Open::default();
        let waiting = Arc::clone(&open);
        let address = http::serve(move |_, body| {
            let message: Json = serde_json::from_slice(&body).expect("JSON");
            let call = waiting.lock().expect("open").remove(message["id"].as_str().expect("an id"));
            let _ = call.expect("a call").send(message["text"].to_string());
            String::new()
        });
        Self { url: format!("http://{}", address.await), open, count: 0 }
    }

    async fn call(&mut self, to: &mut Connection, url: &str, tool: &str, arguments: &Json) -> String {
        self.count += 1;
        let id = format!("call-{}", self.count);
        let (result, waiting) = oneshot::channel();
        self.open.lock().expect("open").insert(id.clone(), result);
        let invocation = json!({
            "operation": tool, "arguments": arguments, "id": id, "call_id": null, "group_id": "group",
            "callback_url": format!("{}/{id}", self.url),
        });
        assert_eq!(to.post(url, &invocation.to_string()).await, 200);
        waiting.await.expect("a result")
    }
}

/// The process of the tool.
pub(super) struct ToolProcess {
    pub(super) url: String,
    _child: Child,
}

impl ToolProcess {
    pub(super) async fn start() -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env("TOOLBRIDGE_BENCH_ROLE", "tool").stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let url = lines.next_line().await.expect("read").expect("a URL");
        Self { url, _child: child }
    }
}

/// Runs the tools of a toolset: `repeat`, and `subscribe`, which posts so many events, at a rate.
pub(super) fn tool() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (posts, mut waiting) = mpsc::unbounded_channel::<(String, Json)>();
        let own = Arc::new(OnceLock::<String>::new());
        let url = Arc::clone(&own);
        let address = http::serve(move |path, body| match path {
            "/.well-known/rap-toolset" => manifest(own.get().expect("set before it is told")).to_string(),
            "/invoke" => {
                let invocation: Json = serde_json::from_slice(&body).expect("JSON");
                let posts = posts.clone();
                tokio::spawn(async move { run(&invocation, &posts).await });
                String::new()
            }
            _ => String::new(),
        })
        .await;
        println!("{}", url.get_or_init(|| format!("http://{address}")));
        let mut connections = HashMap::new();
        while let Some((url, message)) = waiting.recv().await {
            let to = match connections.entry(http::split(&url).0.to_owned()) {
                Entry::Occupied(to) => to.into_mut(),
                Entry::Vacant(none) => none.insert(Connection::to(&url).await),
            };
            to.post(&url, &message.to_string()).await;
        }
    });
}

fn manifest(url: &str) -> Json {
    let tool = |name| json!({"name": name, "description": "", "inputSchema": {"type": "object"}});
    json!({"name": "bench", "endpoint": format!("{url}/invoke"), "tools": [tool("repeat"), tool("subscribe")]})
}

async fn run(invocation: &Json, posts: &mpsc::UnboundedSender<(String, Json)>) {
    let url = invocation["callback_url"].as_str().expect("a URL").to_owned();
    let (group, id) = (&invocation["group_id"], &invocation["id"]);
    let arguments = &invocation["arguments"];
    let is_subscription = invocation["operation"] == "subscribe";
    let result = json!({
        "type": "tool_result", "group_id": group, "id": id, "subscription": is_subscription,
        "text": arguments["message"].as_str().unwrap_or("subscribed"),
    });
    let _ = posts.send((url.clone(), result));
    if is_subscription {
        let (count, rate) = (arguments["events"].as_u64().expect("events"), arguments["rate"].as_u64());
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate.expect("a rate") as u32);
        for n in 0..count {
            ticks.tick().await;
            let event = json!({
                "type": "subscription_event", "group_id": group, "tool_call_id": id, "final": n + 1 == count,
                "text": format!("Event {n} {}", "x".repeat(TEXT)),
            });
            let _ = posts.send((url.clone(), event));
        }
    }
}
