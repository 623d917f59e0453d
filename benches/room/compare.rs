//! Makes the same calls over toolbridge and over LiveKit's RPC (Node SDK), on one server, one system after the other.
//!
//! Caller and owner run in two processes, so that their CPU time can be read from outside.

use std::{
    env, fs,
    io::{BufRead, BufReader, Lines, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tokio::runtime::Builder;
use toolbridge::{Assistant, AssistantBuilder, Client, ClientBuilder, Tool, ToolError, livekit::AccessKey};

use super::{share, short::scaled};

/// A phase: its name, the number of calls, the bytes of text in each, how many are in flight, and how many different letters
/// the text has; [`RECORDS`] instead of that. LiveKit's RPC compresses payloads: text of one letter to almost nothing, random
/// text to three quarters.
const PHASES: [(&str, usize, usize, usize, usize); 4] = [
    ("220 B, one at a time", 5_000, 40, 1, 64),
    ("10 KB, one at a time", 1_000, 10_000, 1, 64),
    ("10 KB of one letter, one at a time", 1_000, 10_000, 1, 1),
    ("220 B, 32 in flight", 20_000, 40, 32, 64),
];

/// In place of a number of letters: the payload is JSON records.
pub(super) const RECORDS: usize = 0;

/// The calls before the first phase.
pub(super) const WARM_UP: usize = 500;

/// How many participants are added to one process to measure their memory.
const PARTICIPANTS: usize = 20;

#[derive(Deserialize, Serialize, JsonSchema)]
struct Text {
    data: Json,
}

async fn echo(text: Text) -> Result<Text, ToolError> {
    Ok(text)
}

/// Runs one role of this benchmark, if the environment names it: on one thread, or on `WORKERS` threads of a pool.
pub(super) fn role(url: &str) -> bool {
    let Ok(role) = env::var("TOOLBRIDGE_BENCH_ROLE") else { return false };
    let token = env::var("LIVEKIT_TOKEN").expect("a token");
    let url = url.to_owned();
    let run = async move {
        match role.as_str() {
            "owner" => owner(&url, &token, Client::builder().assistant("assistant")).await,
            "owner by RPC" => owner(&url, &token, Client::builder().answer_rpc()).await,
            "caller by RPC" => {
                let echo = Tool::new("echo".parse().expect("a name"), "");
                caller(&url, &token, Assistant::builder().rpc_tool("phone", echo)).await;
            }
            _ => caller(&url, &token, Assistant::builder().client("phone")).await,
        }
    };
    let workers = env::var("WORKERS").ok().map(|it| it.parse().expect("a number"));
    let runtime = match workers {
        Some(workers) => Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
        None => Builder::new_current_thread().enable_all().build(),
    };
    runtime.expect("a runtime").block_on(async { tokio::spawn(run).await.expect("it ends") });
    true
}

async fn owner(url: &str, token: &str, builder: ClientBuilder) {
    let builder = builder.tool("echo", "", echo);
    let client =
        builder.configure(|config| config.caps.requests.calls_per_second = 1_000_000).join(url, token).await;
    let client = client.expect("joined");
    println!("{}", json!({"event": "ready"}));
    lines().recv().await;
    client.close().await;
}

async fn caller(url: &str, token: &str, builder: AssistantBuilder) {
    let assistant = builder.join(url, token).await.expect("joined");
    assistant.ready("phone").await.expect("a client");
    println!("{}", json!({"event": "ready"}));
    let mut lines = lines();
    while let Some(line) = lines.recv().await {
        let numbers: Vec<usize> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
        let [count, bytes, in_flight, letters] = numbers[..] else { panic!("{line}") };
        let text = toolbridge::Value::from(json!({"data": data(bytes, letters)}));
        let one = async || {
            let mut times = Vec::new();
            for _ in 0..count / in_flight {
                let began = Instant::now();
                assistant.call("echo", &text).to("phone").await.expect("a result");
                times.push((began, began.elapsed().as_secs_f64() * 1e3));
            }
            times
        };
        let mut times: Vec<_> = futures_util::future::join_all((0..in_flight).map(|_| one())).await.concat();
        times.sort_unstable_by_key(|(began, _)| *began);
        println!("{}", json!({"ms": times.into_iter().map(|(_, ms)| ms).collect::<Vec<_>>()}));
    }
    assistant.close().await;
}

/// Text of so many bytes, or records of about as many.
fn data(bytes: usize, letters: usize) -> Json {
    /// The bytes of one record, on average.
    const RECORD: usize = 84;
    if letters != RECORDS {
        return text(bytes, letters).into();
    }
    let record = |n: usize| {
        let room = ["kitchen", "hall", "attic"][n % 3];
        json!({
            "id": n, "name": format!("lamp {n}"), "room": room,
            "on": n.is_multiple_of(2), "level": n * 7_919 % 1_000, "seen": 1_795_000_000 + n * 61,
        })
    };
    (0..bytes.div_ceil(RECORD)).map(record).collect()
}

/// Text with so many different letters.
fn text(bytes: usize, letters: usize) -> String {
    const ALPHABET: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut number = 1_u32;
    let letter = || {
        number = number.wrapping_mul(1_103_515_245).wrapping_add(12_345);
        char::from(ALPHABET[(number >> 16) as usize % letters])
    };
    std::iter::repeat_with(letter).take(bytes).collect()
}

/// The lines of standard input.
fn lines() -> tokio::sync::mpsc::UnboundedReceiver<String> {
    let (line, lines) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for text in std::io::stdin().lines().map_while(Result::ok) {
            let _ = line.send(text);
        }
    });
    lines
}

/// Caller and owner of one system.
pub(super) struct Pair {
    pub(super) caller: Peer,
    pub(super) owner: Peer,
}

/// A process of a pair. It ends when its standard input does.
pub(super) struct Peer {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    pub(super) fn start(mut command: Command, token: &str) -> Self {
        command.env("LIVEKIT_TOKEN", token).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let input = child.stdin.take();
        let mut output = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = output.by_ref().map_while(Result::ok).any(|line| line.contains("\"ready\""));
        assert!(ready, "the process has joined");
        Self { child, input, output }
    }

    fn run(&mut self, count: usize, bytes: usize, in_flight: usize, letters: usize) -> Vec<f64> {
        let line = format!("{count} {bytes} {in_flight} {letters}");
        writeln!(self.input.as_ref().expect("open"), "{line}").expect("written");
        let line = self.output.by_ref().map_while(Result::ok).find(|line| line.starts_with("{\"ms\""));
        let answer: Json = serde_json::from_str(&line.expect("an answer")).expect("JSON");
        answer["ms"].as_array().expect("times").iter().filter_map(Json::as_f64).collect()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// What a phase cost.
pub(super) struct Cost {
    pub(super) ms: Vec<f64>,
    /// CPU time per call of the caller and of the owner, in milliseconds.
    pub(super) cpu: [f64; 2],
    /// Context switches per call of caller and owner.
    switches: f64,
}

impl Pair {
    pub(super) fn measure(&mut self, count: usize, bytes: usize, in_flight: usize, letters: usize) -> Cost {
        let used = |pair: &Self| {
            [&pair.caller, &pair.owner].map(|peer| (cpu(peer.child.id()), switches(peer.child.id())))
        };
        let before = used(self);
        let ms = self.caller.run(count, bytes, in_flight, letters);
        let after = used(self);
        let each = |total: f64| total / ms.len() as f64;
        Cost {
            cpu: [0, 1].map(|end| each((after[end].0 - before[end].0).as_secs_f64() * 1e3)),
            switches: [0, 1].map(|end| each((after[end].1 - before[end].1) as f64)).iter().sum(),
            ms,
        }
    }
}

/// The CPU time of a process.
pub(super) fn cpu(pid: u32) -> Duration {
    /// `sysconf(_SC_CLK_TCK)` on Linux.
    const TICKS_PER_SECOND: f64 = 100.0;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let after_name = stat.rsplit_once(')').expect("a name").1;
    let ticks = after_name.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok());
    Duration::from_secs_f64(ticks.sum::<f64>() / TICKS_PER_SECOND)
}

/// The context switches of the live threads of a process.
fn switches(pid: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let status = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("status")).ok());
    status.map(|status| fields(&status, "ctxt_switches:").sum::<u64>()).sum()
}

/// The resident memory of a process, in megabytes.
fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    fields(&status, "VmRSS:").sum::<u64>() as f64 * 1024.0 / 1e6
}

pub(super) fn fields(status: &str, name: &str) -> impl Iterator<Item = u64> {
    let lines = status.lines().filter_map(move |line| line.split_once(name).map(|(_, value)| value));
    lines.filter_map(|value| value.split_whitespace().next()?.parse().ok())
}

/// Prints the figures of both systems and their quotients.
pub(super) fn compare(key: &AccessKey) {
    let room = |name: &str| format!("bench-{name}-{}", std::process::id());
    let tokens = |room: &str| {
        [key.client(room, "phone"), key.assistant(room, "assistant")]
            .map(|token| token.sign().expect("a token"))
    };
    let [phone, assistant] = tokens(&room("compare"));
    let ours = |role: &str| {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env("TOOLBRIDGE_BENCH_ROLE", role);
        command
    };
    let owner = Peer::start(ours("owner"), &phone);
    let mut ours = Pair { owner, caller: Peer::start(ours("caller"), &assistant) };
    let mut theirs = sdk("rpc_bench.mjs").map(|node| {
        let [phone, assistant] = tokens(&room("rpc"));
        let owner = Peer::start(node("owner"), &phone);
        Pair { owner, caller: Peer::start(node("caller"), &assistant) }
    });
    ours.measure(scaled(WARM_UP), 40, 1, 64);
    theirs.as_mut().map(|theirs| theirs.measure(scaled(WARM_UP), 40, 1, 64));
    for (name, count, bytes, in_flight, letters) in PHASES {
        let count = scaled(count);
        let mut costs = vec![("toolbridge", ours.measure(count, bytes, in_flight, letters))];
        if let Some(theirs) = &mut theirs {
            costs.push(("LiveKit RPC", theirs.measure(count.min(5_000), bytes, in_flight, letters)));
        }
        println!("{name}");
        let rows: Vec<_> = costs.iter().map(|(who, cost)| row(who, cost)).collect();
        if let [ours, theirs] = &rows[..] {
            let quotients = ours.iter().zip(theirs).map(|(ours, theirs)| format!("{:.2} x", ours / theirs));
            println!(
                "  quotient: p50, p90, p99, CPU, switches: {}",
                quotients.collect::<Vec<_>>().join(", ")
            );
        }
        if in_flight > 1 {
            let last = &mut costs[0].1.ms;
            let mut last = last.split_off(last.len() * 3 / 4);
            last.sort_unstable_by(f64::total_cmp);
            println!(
                "  toolbridge, last quarter: p50 {:.2} ms, p90 {:.2}, p99 {:.2}",
                at(&last, 0.5),
                at(&last, 0.9),
                at(&last, 0.99)
            );
        }
    }
    for (who, pair) in [("toolbridge", Some(&ours)), ("LiveKit RPC", theirs.as_ref())] {
        let Some(pair) = pair else { continue };
        println!(
            "resident after these calls, {who}: caller {:.1} MB, owner {:.1}",
            resident(pair.caller.child.id()),
            resident(pair.owner.child.id())
        );
    }
}

fn row(who: &str, cost: &Cost) -> [f64; 5] {
    let mut ms = cost.ms.clone();
    ms.sort_unstable_by(f64::total_cmp);
    let row = [at(&ms, 0.5), at(&ms, 0.9), at(&ms, 0.99), cost.cpu.iter().sum(), cost.switches];
    println!(
        "  {who} (n = {}): p50 {:.2} ms, p90 {:.2}, p99 {:.2}; caller and owner {:.2} ms of CPU and {:.1} context switches per call",
        ms.len(),
        row[0],
        row[1],
        row[2],
        row[3],
        row[4]
    );
    row
}

pub(super) fn at(sorted: &[f64], part: f64) -> f64 {
    share(&sorted.iter().map(|ms| Duration::from_secs_f64(ms / 1e3)).collect::<Vec<_>>(), part)
}

/// The command of a role over LiveKit's SDK of this program's language, if that is installed. The packages are those of the
/// program's folder.
pub(super) fn sdk(program: &'static str) -> Option<impl Fn(&str) -> Command> {
    let part =
        program.split_once('/').map_or_else(|| "peers".to_owned(), |(folder, _)| format!("peers/{folder}"));
    let found = Command::new("scripts/parts").args([&part, "find"]).output().expect("scripts/parts");
    if !found.status.success() {
        eprintln!("skipped: {part} (run scripts/parts {part})");
        return None;
    }
    Some(move |role: &str| {
        let mut command = Command::new("scripts/parts");
        command.args(["run", program, role]);
        command
    })
}

/// Prints the resident memory of `toolbridge client` after its join, and of further participants in this process.
pub(super) async fn memory(url: &str, key: &AccessKey) {
    let room = format!("bench-memory-{}", std::process::id());
    if let Some(program) = option_env!("CARGO_BIN_EXE_toolbridge") {
        let token = key.client(&room, "phone").sign().expect("a token");
        let mut command = Command::new(program);
        command.args(["client", "--url", url]).env("LIVEKIT_TOKEN", token);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("started");
        let mut shown = BufReader::new(child.stdout.take().expect("piped")).lines();
        shown.next().expect("a line").expect("that it has joined");
        std::thread::sleep(Duration::from_secs(2)); // lets the memory that the join needed be freed
        println!("resident, toolbridge client: {:.1} MB", resident(child.id()));
        child.kill().expect("killed");
        let _ = child.wait();
    }
    let mut clients = Vec::new();
    let mut before = 0.0;
    let participants = scaled(PARTICIPANTS);
    for n in 0..=participants {
        let token = key.client(&room, format!("phone-{n}")).sign().expect("a token");
        let client = Client::builder().tool("echo", "", echo).assistant("assistant").join(url, &token).await;
        clients.push(client.expect("joined"));
        if n == 0 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            before = resident(std::process::id());
        }
    }
    tokio::time::sleep(Duration::from_secs(4)).await;
    let each = (resident(std::process::id()) - before) / participants as f64;
    println!("resident, each of {participants} further participants in one process: {each:.2} MB");
    for client in clients {
        client.close().await;
    }
}
