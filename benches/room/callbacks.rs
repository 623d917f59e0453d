//! What callbacks of RAP tools cost their runtime, and what a flood of them does to other calls. There is no room server
//! in these figures.

use std::{
    env,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    task::JoinSet,
};
use toolbridge::{
    Assistant, Client, ToolContext, ToolName, ToolSource as _, Value,
    adapter::rap::{self, RapCounts, RapTools},
    memory::MemoryRoom,
};

use super::{
    compare::cpu,
    http::{self, Connection},
    rap::{ToolProcess, repeat},
    rounds::Rounds,
    short::scaled,
};

/// The callbacks of a second, and for how many seconds they come.
const PER_SECOND: u64 = 1_000;
const SECONDS: usize = 10;

/// The subscriptions whose events are the callbacks: one call may post 200 messages a second.
const SUBSCRIPTIONS: u64 = 10;

/// The posts of a flood in a second, over so many connections.
const FLOOD: u64 = 10_000;
const CONNECTIONS: u64 = 4;

fn seconds() -> u64 {
    scaled(SECONDS) as u64
}

pub(super) async fn callbacks() {
    results().await;
    events().await;
    Flooded::start().await.measure().await;
}

/// Calls of a tool, without a room: each is an invocation that is sent and a callback that comes.
async fn results() {
    let tool = ToolProcess::start().await;
    let tools = Arc::new(rap::toolset(&tool.url).name("bench").await.expect("its manifest"));
    call(&tools).await;
    let before = cpu(std::process::id());
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / PER_SECOND as u32);
    let (mut calls, began) = (JoinSet::new(), Instant::now());
    for _ in 0..PER_SECOND * seconds() {
        ticks.tick().await;
        let tools = Arc::clone(&tools);
        calls.spawn(async move { call(&tools).await });
        while calls.try_join_next().is_some() {}
    }
    while calls.join_next().await.is_some() {}
    print("calls with a callback each", began.elapsed(), before);
}

async fn call(tools: &RapTools) {
    let name: ToolName = "repeat".parse().expect("a name");
    let arguments = Value::from(json!({"message": "x".repeat(40)}));
    let context = ToolContext::new("bench", Duration::from_secs(60));
    tools.execute(&name, arguments, context).await.expect("a result");
}

/// Events of subscriptions of an assistant, which reports at most 50 a second.
async fn events() {
    let tool = ToolProcess::start().await;
    let tools = Arc::new(rap::toolset(&tool.url).name("bench").await.expect("its manifest"));
    let room = MemoryRoom::new();
    let phone = Client::builder().join_over(room.client("phone")).await.expect("joined");
    let assistant = Assistant::builder().tools(Arc::clone(&tools)).consent(|_| async { true });
    let assistant = assistant.join_over(room.assistant("assistant")).await.expect("joined");
    assistant.ready("phone").await.expect("ready");
    let before = cpu(std::process::id());
    let (events, rate) = (PER_SECOND * seconds() / SUBSCRIPTIONS, PER_SECOND / SUBSCRIPTIONS);
    let began = Instant::now();
    for _ in 0..SUBSCRIPTIONS {
        assistant.call("subscribe", json!({"events": events, "rate": rate})).await.expect("subscribed");
    }
    let mut read = 0;
    // The last event of a subscription may be refused, so that its tool would send it again. This one does not.
    let taken = |counts: RapCounts| counts.accepted + counts.dropped + counts.not_now;
    while taken(tools.counts()) < PER_SECOND * seconds() + SUBSCRIPTIONS {
        tokio::time::sleep(Duration::from_millis(20)).await;
        read += assistant.late_results().len();
    }
    print("events of 10 subscriptions", began.elapsed(), before);
    println!("  {} were reported, and the model got {read}: {:?}", assistant.calls().len(), tools.counts());
    assistant.close().await;
    phone.close().await;
}

fn print(what: &str, took: Duration, before: Duration) {
    let count = (PER_SECOND * seconds()) as f64;
    let used = (cpu(std::process::id()) - before).as_secs_f64() * 1e3 / count;
    println!(
        "{what} (n = {count}): {:.0} a second, {used:.3} ms of CPU for each",
        count / took.as_secs_f64()
    );
}

/// What is compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Row {
    Quiet,
    QuietInRoom,
    Flooded,
    FloodedInRoom,
}

impl Row {
    const ALL: [Self; 4] = [Self::Quiet, Self::QuietInRoom, Self::Flooded, Self::FloodedInRoom];

    fn name(self) -> &'static str {
        match self {
            Self::Quiet => "RAP call",
            Self::QuietInRoom => "call of a client's own tool",
            Self::Flooded => "RAP call during the flood",
            Self::FloodedInRoom => "call of a client's own tool during the flood",
        }
    }
}

/// Calls of an assistant while a process floods the address of its callbacks.
struct Flooded {
    tools: RapTools,
    assistant: Assistant,
    _phone: Client,
    _tool: ToolProcess,
    flood: FloodProcess,
}

impl Flooded {
    async fn start() -> Self {
        let tool = ToolProcess::start().await;
        let port = free_port();
        let tools = rap::toolset(&tool.url).name("bench").callback(format!("127.0.0.1:{port}"));
        let tools = tools.await.expect("its manifest");
        let room = MemoryRoom::new();
        let phone = Client::builder()
            .tool("own", "", repeat)
            .configure(|config| config.caps.requests.calls_per_second = 1_000_000)
            .join_over(room.client("phone"))
            .await
            .expect("joined");
        let assistant = Assistant::builder().join_over(room.assistant("assistant")).await.expect("joined");
        assistant.ready("phone").await.expect("ready");
        let flood = FloodProcess::start(port).await;
        Self { tools, assistant, _phone: phone, _tool: tool, flood }
    }

    async fn measure(mut self) {
        let times = Rounds::of(&Row::ALL, async |row, count| {
            let is_flooded = matches!(row, Row::Flooded | Row::FloodedInRoom);
            self.flood.set(is_flooded).await;
            let mut times = Vec::new();
            for _ in 0..count {
                let began = Instant::now();
                match row {
                    Row::Quiet | Row::Flooded => call(&self.tools).await,
                    _ => {
                        self.assistant.call("own", json!({"message": "x"})).await.expect("a result");
                    }
                }
                times.push(began.elapsed());
            }
            times
        })
        .await;
        for row in Row::ALL {
            times.report(row, row.name());
        }
        for (quiet, flooded) in [(Row::Quiet, Row::Flooded), (Row::QuietInRoom, Row::FloodedInRoom)] {
            let quotient = |part| times.share(flooded, part) / times.share(quiet, part);
            println!("  {}: p50 {:.2} x, p99 {:.2} x", flooded.name(), quotient(0.5), quotient(0.99));
        }
        println!("  the flood: {}", self.flood.end().await);
        println!("  {:?}", self.tools.counts());
        self.assistant.close().await;
    }
}

/// Returns a port that was free just now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    listener.local_addr().expect("an address").port()
}

/// The process that floods an address.
struct FloodProcess {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    _child: Child,
}

impl FloodProcess {
    async fn start(port: u16) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env("TOOLBRIDGE_BENCH_ROLE", "flood").env("BENCH_PORT", port.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().expect("started");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { input, output, _child: child }
    }

    /// Starts or stops the flood, and waits until it has.
    async fn set(&mut self, is_on: bool) {
        self.input.write_all(if is_on { b"on\n" } else { b"off\n" }).await.expect("written");
        self.output.next_line().await.expect("read").expect("a line");
    }

    /// Returns what the flood has sent and got.
    async fn end(mut self) -> String {
        self.input.write_all(b"end\n").await.expect("written");
        self.output.next_line().await.expect("read").expect("a line")
    }
}

/// Posts results with forged tokens, as long as standard input says so.
pub(super) fn flood() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let url = format!("http://127.0.0.1:{}", env::var("BENCH_PORT").expect("a port"));
        let (switch, is_on) = tokio::sync::watch::channel(false);
        let counts = Arc::new(std::sync::Mutex::new(Counts::default()));
        for _ in 0..CONNECTIONS {
            let (url, is_on, counts) = (url.clone(), is_on.clone(), Arc::clone(&counts));
            tokio::spawn(async move { flood_over(Connection::to(&url).await, &url, is_on, &counts).await });
        }
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line == "end" {
                println!("{}", counts.lock().expect("counts"));
                return;
            }
            switch.send_replace(line == "on");
            println!("{line}");
        }
    });
}

/// The posts of a flood, and their statuses.
#[derive(Default)]
struct Counts {
    seconds: f64,
    statuses: std::collections::BTreeMap<u16, u64>,
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let posts = self.statuses.values().sum::<u64>() as f64;
        let rate = posts / (self.seconds / CONNECTIONS as f64);
        write!(f, "{rate:.0} posts a second; statuses {:?}", self.statuses)
    }
}

async fn flood_over(
    mut to: Connection,
    url: &str,
    mut is_on: tokio::sync::watch::Receiver<bool>,
    counts: &std::sync::Mutex<Counts>,
) {
    /// The requests that are written at once.
    const BATCH: u64 = 10;
    let message = json!({"type": "tool_result", "group_id": "g", "id": "i", "text": "x".repeat(40)});
    let path = "/rap/cb/AAAAAAAAAAAAAAAAAAAAAA";
    let batch = http::post(http::split(url).0, path, &message.to_string()).repeat(BATCH as usize);
    let mut ticks =
        tokio::time::interval(Duration::from_secs(1) * (BATCH * CONNECTIONS) as u32 / FLOOD as u32);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    while is_on.wait_for(|is_on| *is_on).await.is_ok() {
        ticks.reset_immediately();
        let began = Instant::now();
        while *is_on.borrow() {
            ticks.tick().await;
            to.write(&batch).await;
            for _ in 0..BATCH {
                let status = to.status().await;
                *counts.lock().expect("counts").statuses.entry(status).or_default() += 1;
            }
        }
        counts.lock().expect("counts").seconds += began.elapsed().as_secs_f64();
    }
}
