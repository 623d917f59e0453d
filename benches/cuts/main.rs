//! Measures how soon calls work again after the network of a client was cut, compared with LiveKit's own RPC.
//!
//! `scripts/bench cuts` creates the network (two hosts, with this machine's TCP and UDP between them), starts the
//! server and runs this. The clients run in their own process at the other end of the network. Both systems make
//! calls all the time, and each cut affects both.
//!
//! The run fails if a toolbridge call ran twice, has no outcome, or was lost before the grace period was over.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark owns its clock and may fail"
)]

mod causes;
mod rpc;
#[path = "../short/mod.rs"]
mod short;
mod soak;
mod table;

use std::{
    collections::{BTreeMap, HashMap},
    env,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    process::{Child, Command, ExitCode, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{io::AsyncReadExt, time::sleep};
use toolbridge::{Assistant, CallError, Client, State, ToolError, Tools, livekit::AccessKey};

use short::is_short;
use table::{Cut, Row};

/// Pairs of toolbridge and of the official SDK.
const PAIRS: [usize; 2] = [8, 4];
/// How long each cut lasts, in seconds; CUTS changes it.
const LENGTHS: [f64; 5] = [0.5, 2.0, 5.0, 12.0, 30.0];
/// Which connections are cut.
const CLASSES: [&str; 3] = ["media", "signaling", "all"];
/// How often each is cut; TIMES changes it.
const TIMES: usize = 3;
/// The time between the calls of one pair.
const PERIOD: Duration = Duration::from_millis(100);
/// The timeout of a call: longer than the longest cut and its consequences.
const LIMIT: Duration = Duration::from_secs(45);
/// How long calls are watched after a cut.
const WATCH: Duration = Duration::from_secs(12);
/// The loss in each direction in the rows after the cuts.
const LOSSES: [f64; 3] = [0.02, 0.05, 0.1];
const LOSSY: Duration = Duration::from_secs(30);
/// The delay in each direction, as between a phone and a nearby server, in seconds.
const DELAY: f64 = 0.02;

/// The outcome of a call, with the system's time in seconds.
#[derive(Clone, Debug)]
struct Call {
    pair: usize,
    began: f64,
    ended: f64,
    error: Option<String>,
}

/// Everything that happened in this run: calls that ended, and how often each ran.
#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    open: usize,
    /// By pair and number, the last of each pair.
    runs: HashMap<(usize, u64), usize>,
    twice: usize,
    /// The number of calls by outcome.
    outcomes: BTreeMap<String, usize>,
    /// Calls are not kept: there would be too many.
    counts_only: bool,
    /// Why calls failed, where they are only counted.
    causes: causes::Causes,
    /// Whether calling has ended.
    over: bool,
}

type Shared = Arc<Mutex<Log>>;

impl Log {
    /// How many runs of a pair are remembered: a second run would happen within minutes.
    const REMEMBERED: u64 = 5_000;

    fn ran(&mut self, pair: usize, number: u64) {
        let times = self.runs.entry((pair, number)).or_default();
        *times += 1;
        self.twice += usize::from(*times == 2);
        self.runs.remove(&(pair, number.wrapping_sub(Self::REMEMBERED)));
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Echo {
    number: u64,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    if env::var_os("TOKENS").is_some() {
        runtime.block_on(clients());
        return ExitCode::SUCCESS;
    }
    if env::var_os("TOOLBRIDGE_NETWORK").is_none() || env::var_os("LIVEKIT_URL").is_none() {
        eprintln!("skipped: network (run scripts/bench cuts)");
        return ExitCode::SUCCESS;
    }
    let is_well = runtime.block_on(run());
    // Remaining tasks are not awaited.
    runtime.shutdown_background();
    if is_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The other end: one client per token. Prints `ready`, and `ran PAIR NUMBER` for each call; ends with its input.
async fn clients() {
    let url = env::var("LIVEKIT_URL").unwrap();
    let mut here = Vec::new();
    for (pair, token) in env::var("TOKENS").unwrap().split(',').enumerate() {
        let echo = async |State(pair): State<usize>, call: Echo| {
            println!("ran {pair} {}", call.number);
            Ok::<_, ToolError>(call)
        };
        let client = || {
            Client::builder()
                .tools(Tools::with_state(pair).tool("echo", "Says it again", echo))
                .assistant("assistant")
                .configure(|config| {
                    config.caps.calls.open_per_peer = 1_000;
                    config.caps.requests.calls_per_second = 1_000;
                })
        };
        // A killed server may be just starting.
        here.push(loop {
            match client().join(&url, token).await {
                Ok(client) => break client,
                Err(error) => eprintln!("not yet: {error}"),
            }
            sleep(Duration::from_secs(1)).await;
        });
    }
    println!("ready");
    let _ = tokio::io::stdin().read(&mut [0]).await;
    for client in here {
        client.close().await;
    }
}

/// Runs the benchmark. Returns whether it passed.
async fn run() -> bool {
    let variable = |name| env::var(name).expect(name);
    let key = AccessKey::new(variable("LIVEKIT_API_KEY"), variable("LIVEKIT_API_SECRET"));
    let url = variable("LIVEKIT_URL");
    let mut network = Network::open();
    let (ours, theirs) = (Shared::default(), Shared::default());

    let rooms: Vec<_> = (0..PAIRS[0]).map(|pair| format!("cuts-{pair}")).collect();
    let phones = || {
        let log = ours.clone();
        // New tokens each time: a token is valid for 10 minutes.
        let tokens: Vec<_> = rooms.iter().map(|room| key.client(room, "phone").sign().unwrap()).collect();
        near(&[env::current_exe().unwrap().to_str().unwrap()], &tokens, move |line| {
            let mut words = line.split(' ').skip(1).map(|word| word.parse::<u64>().unwrap());
            let (pair, number) = (words.next().unwrap() as usize, words.next().unwrap());
            log.lock().unwrap().ran(pair, number);
        })
    };
    let mut clients = phones();
    let mut assistants = Vec::new();
    for room in &rooms {
        let token = key.assistant(room, "assistant").sign().unwrap();
        let assistant =
            Assistant::builder().client("phone").configure(|config| config.caps.calls.open_per_peer = 1_000);
        assistants.push(assistant.join(&url, &token).await.expect("joined"));
    }
    for assistant in &assistants {
        assistant.call("echo", Echo { number: u64::MAX }).to("phone").await.expect("a result");
    }
    let minutes = env::var("SOAK").ok().map(|minutes| minutes.parse::<f64>().unwrap());
    ours.lock().unwrap().counts_only = minutes.is_some();
    for (pair, assistant) in assistants.into_iter().enumerate() {
        tokio::spawn(call_all_the_time(pair, assistant, ours.clone()));
    }
    network.order(&json!({"class": "all", "delay": DELAY}));
    if let Some(minutes) = minutes {
        let is_well = soak::run(minutes, network, &ours, &mut clients, phones).await;
        end(clients);
        return is_well;
    }
    let _rpc = rpc::start(&key, PAIRS[1], LIMIT, &theirs);
    println!("{}", table::HEAD);

    let number =
        |name: &str| env::var(name).ok().map(|text| text.split(',').map(|it| it.parse().unwrap()).collect());
    let lengths: Vec<f64> = number("CUTS").unwrap_or_else(|| LENGTHS.to_vec());
    let times = number("TIMES").map_or(TIMES, |it: Vec<f64>| it[0] as usize);
    let mut cuts = Vec::new();
    for class in first_or_all(&CLASSES) {
        for length in &lengths {
            let mut rows = [Row::default(), Row::default()];
            for _ in 0..times {
                sleep(Duration::from_secs(3)).await;
                let began = now();
                network.order(&json!({"class": class, "cut": true}));
                sleep(Duration::from_secs_f64(*length)).await;
                let back = now();
                network.order(&json!({"class": class, "cut": false}));
                cuts.push(Cut { began, back, is_away: *class != "signaling" });
                sleep(watch()).await;
                for (row, (log, pairs)) in rows.iter_mut().zip([(&ours, PAIRS[0]), (&theirs, PAIRS[1])]) {
                    row.take(&log.lock().unwrap(), pairs, &cuts);
                }
            }
            for (row, name) in rows.iter_mut().zip(["toolbridge", "official RPC"]) {
                println!("{}", row.show(class, *length, name));
            }
        }
    }
    println!("{}", table::LOSS_HEAD);
    for &loss in first_or_all(&LOSSES) {
        sleep(Duration::from_secs(3)).await;
        network.order(&json!({"class": "all", "loss": loss}));
        let began = now();
        sleep(if is_short() { watch() } else { LOSSY }).await;
        let ended = now();
        network.order(&json!({"class": "all", "loss": 0}));
        sleep(watch()).await;
        for (log, name) in [(&ours, "toolbridge"), (&theirs, "official RPC")] {
            println!("{}", table::lossy(&log.lock().unwrap(), loss, name, began..ended));
        }
    }
    ours.lock().unwrap().over = true;
    let ended = async {
        while ours.lock().unwrap().open > 0 {
            sleep(PERIOD).await;
        }
    };
    let _those_that_are_open_are_counted = tokio::time::timeout(LIMIT + WATCH, ended).await;
    let mut is_well = true;
    for (log, name, judged) in [(&ours, "toolbridge", true), (&theirs, "official RPC", false)] {
        let log = log.lock().unwrap();
        let (calls, open, twice, early) =
            (log.calls.len(), log.open, log.twice, table::lost_early(&log.calls, &cuts));
        println!(
            "{name}: {calls} calls with an outcome, {open} open at the end, {twice} ran twice, {early} lost before \
             the grace period was over"
        );
        is_well &= !judged || open + twice + early == 0;
    }
    end(clients);
    is_well
}

/// How long calls are watched: in a short run for a moment.
fn watch() -> Duration {
    if is_short() { Duration::from_secs(2) } else { WATCH }
}

/// What a run measures: in a short run only the first.
fn first_or_all<T>(all: &[T]) -> &[T] {
    if is_short() { &all[..1] } else { all }
}

/// Ends a process by closing its input.
fn end(mut child: Child) {
    drop(child.stdin.take());
    let _ = child.wait();
}

async fn call_all_the_time(pair: usize, assistant: Assistant, log: Shared) {
    let mut tick = tokio::time::interval(PERIOD);
    for number in 0.. {
        tick.tick().await;
        if log.lock().unwrap().over {
            return;
        }
        let (assistant, log) = (assistant.clone(), log.clone());
        log.lock().unwrap().open += 1;
        tokio::spawn(async move {
            let began = now();
            let result = assistant.call("echo", Echo { number }).to("phone").timeout(LIMIT).await;
            let error = result.err().map(|error| match error {
                CallError::Lost { .. } => "lost".to_owned(),
                CallError::UnknownTool { .. } => "unknown tool".to_owned(),
                other => other.to_string(),
            });
            let mut log = log.lock().unwrap();
            log.open -= 1;
            if log.counts_only {
                if let Some(error) = &error {
                    log.causes.take(error, began, now());
                }
                *log.outcomes.entry(error.unwrap_or_else(|| "ok".into())).or_default() += 1;
                return;
            }
            log.calls.push(Call { pair, began, ended: now(), error });
        });
    }
}

/// Starts a process at the near end of the network; it ends when its input, this value, is dropped.
fn near(command: &[&str], tokens: &[String], heard: impl Fn(&str) + Send + 'static) -> Child {
    let mut child = Command::new("ip")
        .args(["netns", "exec", "tb-near"])
        .args(command)
        .env("TOKENS", tokens.join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("ip netns exec");
    listen(&mut child, heard);
    child
}

/// Waits until a child is ready, and handles its output from then on.
fn listen(child: &mut Child, heard: impl Fn(&str) + Send + 'static) {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for line in lines.by_ref() {
        if line.expect("text").contains("ready") {
            break;
        }
    }
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| heard(&line)));
}

/// The program that controls the network.
struct Network(BufReader<UnixStream>);

impl Network {
    fn open() -> Self {
        let path = env::var_os("TOOLBRIDGE_NETWORK").unwrap();
        Self(BufReader::new(UnixStream::connect(path).expect("scripts/lib/network.py")))
    }

    fn order(&mut self, order: &serde_json::Value) {
        writeln!(self.0.get_mut(), "{order}").unwrap();
        let mut answer = String::new();
        self.0.read_line(&mut answer).unwrap();
        assert_eq!(answer, "ok\n");
    }
}
