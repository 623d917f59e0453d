//! Measures calls over a real LiveKit server: the time from joining to the first result, the round trip after that,
//! and the same while another participant sends frames as fast as it can.
//!
//! `scripts/bench room` starts the server and runs this. Both participants run in this process, except in `compare` and `rpc`,
//! where each has its own. Arguments select parts by name (compare, rpc, memory, first, calls, many, flood,
//! mcp, rap, callbacks, acp). The last two need no LiveKit server, but run with the others.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark owns its clock and may fail"
)]

use std::{
    env,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use toolbridge::{
    Assistant, Client, ToolError, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, Frame, Message, Meta, RegisteredTool, ToolProgress,
        ToolUseRequest, ToolUseResult, ToolsRegister,
    },
    livekit::{AccessKey, LiveKitTransport},
    tools::Execution,
    transport::{Packet, Transport},
};

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

/// How often two new participants connect.
const JOINS: usize = 40;

/// How many calls follow one another.
const CALLS: usize = 5_000;

/// After how many calls of one caller the next 1,000 are measured.
const BEFORE: [usize; 2] = [1_000, 100_000];

/// How many calls are in flight at once while their number grows.
const IN_FLIGHT: usize = 8;

mod acp;
mod callbacks;
mod compare;
mod http;
mod mcp;
mod rap;
mod rounds;
mod rpc;
#[path = "../short/mod.rs"]
mod short;

use short::scaled;

async fn get_battery() -> Result<f32, ToolError> {
    Ok(0.8)
}

fn main() {
    match env::var("TOOLBRIDGE_BENCH_ROLE").as_deref() {
        Ok("agent") => return acp::agent(),
        Ok("tool") => return rap::tool(),
        Ok("flood") => return callbacks::flood(),
        _ => {}
    }
    let Ok(url) = env::var("LIVEKIT_URL") else {
        eprintln!("skipped: livekit-server (set LIVEKIT_URL, or run scripts/bench room)");
        return;
    };
    let variable = |name| env::var(name).expect(name);
    let key = AccessKey::new(variable("LIVEKIT_API_KEY"), variable("LIVEKIT_API_SECRET"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    if compare::role(&url) {
        return;
    }
    let parts: Vec<_> = env::args().skip(1).filter(|part| !part.starts_with('-')).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|other| other == part);
    if wanted("rpc") {
        rpc::run(&key);
    }
    if wanted("compare") {
        compare::compare(&key);
    }
    runtime.block_on(async {
        if wanted("memory") {
            compare::memory(&url, &key).await;
        }
        if wanted("first") {
            first_result(&url, &key).await;
        }
        if wanted("calls") {
            round_trip(&url, &key).await;
        }
        if wanted("many") {
            after_many_calls(&url, &key).await;
        }
        if wanted("flood") {
            under_a_flood(&url, &key).await;
        }
        if wanted("mcp") {
            mcp::mcp(&url, &key).await;
        }
        if wanted("rap") {
            rap::rap(&url, &key).await;
        }
        if wanted("callbacks") {
            callbacks::callbacks().await;
        }
        if wanted("acp") {
            acp::acp().await;
        }
    });
}

/// Two new participants that name each other: both join at once, and the assistant calls at once.
async fn first_result(url: &str, key: &AccessKey) {
    let mut times = Vec::new();
    for n in 0..scaled(JOINS) {
        let room = format!("bench-first-{n}-{}", std::process::id());
        let began = Instant::now();
        let (client, assistant) = join(url, key, &room).await;
        assistant.call("get_battery", ()).to("phone").await.expect("a result");
        times.push(began.elapsed());
        assistant.close().await;
        client.close().await;
    }
    report("join of two fresh participants to first result", &mut times);
}

async fn round_trip(url: &str, key: &AccessKey) {
    let (client, assistant) = join(url, key, &format!("bench-calls-{}", std::process::id())).await;
    report("one call of about 220 B after another", &mut calls(&assistant, scaled(CALLS)).await);
    assistant.close().await;
    client.close().await;
}

/// Measures whether a call costs more after its caller has made many.
async fn after_many_calls(url: &str, key: &AccessKey) {
    let (client, assistant) = join(url, key, &format!("bench-many-{}", std::process::id())).await;
    let assistant = Arc::new(assistant);
    let (mut made, mut medians) = (0, Vec::new());
    for before in BEFORE.map(scaled) {
        calls_at_once(&assistant, before - made).await;
        let mut one_by_one = calls(&assistant, scaled(1_000)).await;
        report(&format!("one call after another, {before} calls of this caller before"), &mut one_by_one);
        let mut times = calls_at_once(&assistant, scaled(1_000)).await;
        report(&format!("{IN_FLIGHT} calls in flight, {before} calls of this caller before"), &mut times);
        made = before + 2 * scaled(1_000);
        medians.push((share(&one_by_one, 0.5), share(&times, 0.5)));
    }
    if let [(alone, together), (alone_later, together_later)] = medians[..] {
        println!(
            "  p50 after {} calls against after {}: {:.2} x alone, {:.2} x with {IN_FLIGHT} in flight",
            BEFORE[1],
            BEFORE[0],
            alone_later / alone,
            together_later / together
        );
    }
    assistant.close().await;
    client.close().await;
}

/// Returns how long each call takes, with several of them in flight at any time.
async fn calls_at_once(assistant: &Arc<Assistant>, count: usize) -> Vec<Duration> {
    let mut flights = tokio::task::JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let assistant = Arc::clone(assistant);
        flights.spawn(async move { calls(&assistant, count.div_ceil(IN_FLIGHT)).await });
    }
    flights.join_all().await.into_iter().flatten().collect()
}

/// Returns how long each call takes, one after the other.
async fn calls(assistant: &Assistant, count: usize) -> Vec<Duration> {
    let payload = Value::from(json!({"data": "x".repeat(40)}));
    let mut times = Vec::new();
    for _ in 0..count {
        let began = Instant::now();
        assistant.call("bridge.echo", &payload).to("phone").await.expect("a result");
        times.push(began.elapsed());
    }
    times
}

/// Calls of a pair while a stranger sends both of them frames of every kind, at a given rate and finally as fast as
/// it can. The server, the pair and the stranger share the processors, so these are upper bounds.
async fn under_a_flood(url: &str, key: &AccessKey) {
    const CALLS: usize = 1_000;
    const RATES: [Option<u64>; 3] = [Some(500), Some(2_000), None];
    let room = format!("bench-flood-{}", std::process::id());
    let (client, assistant) = join(url, key, &room).await;
    let token = key.participant(&room, "stranger").sign().expect("a token");
    let stranger = Arc::new(LiveKitTransport::join(url, &token).await.expect("joined"));
    calls(&assistant, scaled(100)).await;
    let mut quiet = calls(&assistant, scaled(CALLS)).await;
    report("the same beside a silent stranger", &mut quiet);
    for rate in RATES {
        let sent = Arc::new(AtomicU64::new(0));
        let flood = tokio::spawn(flood(Arc::clone(&stranger), frames(&room), rate, Arc::clone(&sent)));
        let began = Instant::now();
        let mut flooded = calls(&assistant, scaled(CALLS)).await;
        let rate = sent.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
        flood.abort();
        report(&format!("the same beside one that sends {rate:.0} frames/s"), &mut flooded);
        println!("  others' p99 during this flood: {:.2} x", share(&flooded, 0.99) / share(&quiet, 0.99));
    }
    for (who, stats) in [("client", client.stats()), ("assistant", assistant.stats())] {
        println!("  the {who} counted {stats:?}");
    }
    assistant.close().await;
    client.close().await;
}

/// Sends frame after frame to both, forever.
async fn flood(
    stranger: Arc<LiveKitTransport>,
    frames: Vec<bytes::Bytes>,
    rate: Option<u64>,
    sent: Arc<AtomicU64>,
) {
    let began = Instant::now();
    for frame in frames.iter().cycle() {
        let packet = Packet::new(["phone".into(), "assistant".into()], frame.clone());
        if stranger.send(packet).await.is_ok() {
            sent.fetch_add(1, Ordering::Relaxed);
        }
        let Some(rate) = rate else { continue };
        while sent.load(Ordering::Relaxed) > rate * began.elapsed().as_millis() as u64 / 1_000 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// A frame of each known type.
fn frames(room: &str) -> Vec<bytes::Bytes> {
    let messages = [
        Message::ToolUseRequest(ToolUseRequest::new(
            "1".parse().expect("not empty"),
            "get_battery",
            Value::empty(),
            Ok(Execution::Client),
        )),
        Message::ToolUseResult(ToolUseResult::new("1".parse().expect("not empty"), true)),
        Message::ControlStop(with!(ControlStop::default(), target_id = Some("1".into()))),
        Message::ToolProgress(ToolProgress::new(
            "1".parse().expect("not empty"),
            toolbridge::tools::ProgressStatus::InProgress,
        )),
        Message::Acknowledgement(with!(Acknowledgement::default(), acknowledged_stanza_id = Some(-2))),
        Message::Configuration(Configuration::default()),
        Message::ToolsRegister(with!(
            ToolsRegister::default(),
            tools = vec![with!(RegisteredTool::default(), name = "t".to_owned())]
        )),
        Message::Heartbeat,
    ];
    messages.iter().map(|it| Frame::write(1, room, &Meta::new(), it).expect("a frame")).collect()
}

async fn join(url: &str, key: &AccessKey, room: &str) -> (Client, Assistant) {
    let phone = key.client(room, "phone").sign().expect("a token");
    let assistant = key.assistant(room, "assistant").sign().expect("a token");
    let client = Client::builder()
        .tool("get_battery", "", get_battery)
        .assistant("assistant")
        .configure(|config| config.caps.requests.calls_per_second = 1_000_000);
    let (client, assistant) =
        tokio::join!(client.join(url, &phone), Assistant::builder().client("phone").join(url, &assistant));
    (client.expect("joined"), assistant.expect("joined"))
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |part| share(times, part);
    println!(
        "{what} (n = {}): p50 {:.2} ms, p90 {:.2}, p99 {:.2}, max {:.2}",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}

/// Returns the time within which this share of the calls ended, in milliseconds. The times are sorted.
fn share(times: &[Duration], part: f64) -> f64 {
    times[((times.len() as f64 * part).ceil() as usize).clamp(1, times.len()) - 1].as_secs_f64() * 1e3
}
