//! What an agent's updates cost the assistant that uses the agent. There is no room server in these figures.

use std::{
    env, fs,
    io::{BufRead as _, BufWriter, Write as _},
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::Command,
};
use toolbridge::{Assistant, Client, ToolSource as _, adapter::acp, memory::MemoryRoom};

use super::{compare::fields, report, short::scaled};

/// The updates of a turn, and the bytes of each.
const UPDATES: usize = 10_000;
const BYTES: usize = 2_048;

/// How often each kind of turn is measured.
const TURNS: usize = 15;

/// The calls among which the updates of calls are shared.
const CALLS: usize = 10;

pub(super) async fn acp() {
    let program = env::current_exe().expect("this program");
    let agent = acp::stdio([program.to_str().expect("UTF-8")]).name("agent");
    let agent = agent.env("TOOLBRIDGE_BENCH_ROLE", "agent").consent(toolbridge::Consent::Never);
    let agent = agent.await.expect("started");
    let room = MemoryRoom::new();
    let phone = Client::builder().join_over(room.client("phone")).await.expect("joined");
    let assistant = Assistant::builder().tools(agent.clone()).join_over(room.assistant("assistant"));
    let assistant = assistant.await.expect("joined");
    assistant.ready("phone").await.expect("ready");
    let mut parsed = Vec::new();
    let mut turns = [("texts", Vec::new(), 0.0_f64), ("calls", Vec::new(), 0.0)];
    for n in 0..=scaled(TURNS) {
        let (parsing, (kind, times, peak)) = (parse("texts").await, &mut turns[0]);
        let texts = turn(&assistant, kind, times, peak, n > 0).await;
        let (kind, times, peak) = &mut turns[1];
        let calls = turn(&assistant, kind, times, peak, n > 0).await;
        assert!(texts && calls, "the turns end");
        if n > 0 {
            parsed.push(parsing);
        }
    }
    let updates = scaled(UPDATES);
    report(&format!("{updates} updates of {BYTES} B, read and parsed as JSON, nothing else"), &mut parsed);
    for (kind, mut times, peak) in turns {
        report(&format!("{updates} updates of {BYTES} B in a turn: {kind}"), &mut times);
        println!("  resident memory grows by at most {peak:.1} MiB");
    }
    agent.close().await;
    assistant.close().await;
    phone.close().await;
}

/// Makes the agent take a turn. The first one is not counted.
async fn turn(
    assistant: &Assistant,
    kind: &str,
    times: &mut Vec<Duration>,
    peak: &mut f64,
    counts: bool,
) -> bool {
    // 5 resets the peak: see proc_pid_clear_refs(5).
    fs::write("/proc/self/clear_refs", "5").expect("written");
    let before = memory("VmRSS:");
    let began = Instant::now();
    let result = assistant.call("agent", json!({"prompt": kind})).await;
    if counts {
        times.push(began.elapsed());
        *peak = peak.max(memory("VmHWM:") - before);
    }
    result.is_ok()
}

/// Returns a figure of this process's memory, in MiB.
fn memory(name: &str) -> f64 {
    let status = fs::read_to_string("/proc/self/status").expect("status");
    fields(&status, name).sum::<u64>() as f64 / 1024.0
}

/// Returns how long a program takes that reads the lines of a turn, and parses them.
async fn parse(kind: &str) -> Duration {
    let mut command = Command::new(env::current_exe().expect("this program"));
    command.env("TOOLBRIDGE_BENCH_ROLE", "agent").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut input = child.stdin.take().expect("piped");
    let prompt = json!({"id": 1, "method": "session/prompt", "params": {"prompt": [{"text": kind}]}});
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let began = Instant::now();
    input.write_all(format!("{prompt}\n").as_bytes()).await.expect("written");
    loop {
        let line = lines.next_line().await.expect("read").expect("a line");
        let message: Json = serde_json::from_str(&line).expect("JSON");
        if message["id"] == 1 {
            return began.elapsed();
        }
    }
}

/// Runs an agent that answers each prompt with updates: `texts` that it says, or `calls` that it makes.
pub(super) fn agent() {
    let [texts, calls] = [updates(text), updates(call)];
    let mut output = BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let request: Json = serde_json::from_str(&line).expect("JSON");
        let result = match request["method"].as_str() {
            Some("initialize") => json!({"protocolVersion": 1, "agentCapabilities": {}}),
            Some("session/new") => json!({"sessionId": "s"}),
            Some("session/prompt") => {
                let is_calls = request["params"]["prompt"][0]["text"] == "calls";
                output.write_all(if is_calls { &calls } else { &texts }).expect("written");
                json!({"stopReason": "end_turn"})
            }
            _ => continue,
        };
        writeln!(output, "{}", json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
            .expect("written");
        output.flush().expect("written");
    }
}

fn updates(update: impl Fn(usize) -> Json) -> Vec<u8> {
    let line = |n| {
        let params = json!({"sessionId": "s", "update": update(n)});
        let line = json!({"jsonrpc": "2.0", "method": "session/update", "params": params}).to_string();
        line.replace("PADDING", &"x".repeat(BYTES - 1 - (line.len() - "PADDING".len()))) + "\n"
    };
    (0..scaled(UPDATES)).map(line).collect::<String>().into_bytes()
}

fn text(_: usize) -> Json {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "PADDING"}})
}

/// An update of one of the calls: its start, a new text, or its end.
fn call(n: usize) -> Json {
    let (id, of_call) = (n % CALLS, n / CALLS);
    let last = scaled(UPDATES) / CALLS - 1;
    let status = if of_call == last { "completed" } else { "in_progress" };
    let (kind, content) = (if of_call == 0 { "tool_call" } else { "tool_call_update" }, "PADDING");
    json!({
        "sessionUpdate": kind, "toolCallId": format!("call-{id}"), "title": "Read", "kind": "read", "status": status,
        "rawInput": {"path": "/x"},
        "content": [{"type": "content", "content": {"type": "text", "text": content}}],
    })
}
