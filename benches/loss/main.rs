//! The duration of a call of about 220 B over a real LiveKit server when the network loses packets, with and without
//! the fast lane.
//!
//! `scripts/bench loss` starts the server and runs this. All participants run in this process, each pair in its own
//! room, behind a relay that delays and loses.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark owns its clock and may fail"
)]

mod relay;

use std::{
    collections::HashMap,
    env,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolbridge::{
    Assistant, Client, State, Stats, ToolError, Tools,
    livekit::{AccessKey, ConnectOptions},
};

use relay::Network;

/// The delay in each direction over an impaired link.
const DELAY: Duration = Duration::from_millis(20);

/// The mean number of datagrams that are lost in a row, in the rows with bursts.
const BURST: u32 = 3;

/// Calls of a row in which each follows the last, and of one with 50 a second. `CALLS` changes both.
const CALLS: [usize; 2] = [1_000, 3_000];

/// Without the fast lane a row has fewer calls by this factor, because a lost packet delays it by a second or more.
const FEWER: usize = 3;

/// The time between the calls of a row with 50 a second.
const BETWEEN: Duration = Duration::from_millis(20);

/// How many rows run at once.
const AT_ONCE: usize = 8;

/// One row of the table.
#[derive(Clone, Copy)]
struct Row {
    number: u8,
    fast_lane: bool,
    loss_permille: u32,
    burst: u32,
    both_links: bool,
    one_at_a_time: bool,
}

/// The measurements of a row.
struct Measured {
    times: Vec<Duration>,
    calls: usize,
    twice: usize,
    datagrams: u64,
    /// The counters of both ends.
    stats: [Stats; 2],
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Echo {
    number: usize,
    text: String,
}

/// How often each call ran.
type Runs = Arc<Mutex<HashMap<usize, usize>>>;

async fn echo(State(runs): State<Runs>, call: Echo) -> Result<Echo, ToolError> {
    *runs.lock().expect("no panic while locked").entry(call.number).or_default() += 1;
    Ok(call)
}

fn main() {
    let (Ok(url), Ok(port)) = (env::var("LIVEKIT_URL"), env::var("LIVEKIT_UDP_PORT")) else {
        eprintln!("skipped: livekit-server (run scripts/bench loss)");
        return;
    };
    let variable = |name| env::var(name).expect(name);
    let key = Arc::new(AccessKey::new(variable("LIVEKIT_API_KEY"), variable("LIVEKIT_API_SECRET")));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let network = Network::start(port.parse().expect("a port")).await.expect("a relay");
        println!(
            "loss | links | calls | fast lane | p50 | p90 | p99 | p99.9 | max (ms) | datagrams a call | lost | twice | \
             doubles | retries | copies | held"
        );
        for rows in rows().chunks(AT_ONCE) {
            let running: Vec<_> = rows
                .iter()
                .map(|row| tokio::spawn(measure(*row, url.clone(), key.clone(), network.clone())))
                .collect();
            for (row, measured) in rows.iter().zip(running) {
                show(*row, measured.await.expect("a row"));
            }
        }
    });
}

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |loss_permille, burst, both_links, one_at_a_time, fast_lane| {
        let number = rows.len() as u8;
        rows.push(Row { number, fast_lane, loss_permille, burst, both_links, one_at_a_time });
    };
    for loss_permille in [0, 20, 50] {
        for both_links in [false, true] {
            for one_at_a_time in [true, false] {
                for fast_lane in [false, true] {
                    add(loss_permille, 1, both_links, one_at_a_time, fast_lane);
                }
            }
        }
    }
    for loss_permille in [20, 50] {
        for one_at_a_time in [true, false] {
            add(loss_permille, BURST, false, one_at_a_time, true);
        }
    }
    for one_at_a_time in [true, false] {
        add(100, 1, false, one_at_a_time, true);
    }
    for wanted in env::args().skip(1).filter(|it| !it.starts_with('-')) {
        match (wanted.as_str(), wanted.parse::<u32>()) {
            ("on", _) => rows.retain(|row: &Row| row.fast_lane),
            ("off", _) => rows.retain(|row: &Row| !row.fast_lane),
            (_, Ok(percent)) => rows.retain(|row| row.loss_permille == percent * 10),
            _ => {}
        }
    }
    rows
}

async fn measure(row: Row, url: String, key: Arc<AccessKey>, network: Network) -> Measured {
    let room = format!("bench-loss-{}-{}", row.number, std::process::id());
    let [caller_from, owner_from] =
        [1, 2].map(|end| IpAddr::V4(Ipv4Addr::new(127, 0, 10 + end, row.number + 1)));
    let runs = Runs::default();
    let phone = key.client(&room, "phone").sign().expect("a token");
    let agent = key.assistant(&room, "assistant").sign().expect("a token");
    let client = Client::builder()
        .tools(Tools::with_state(runs.clone()).tool("echo", "Says it again", echo))
        .assistant("assistant")
        .connect_options(ConnectOptions::new().bind_address(owner_from))
        .configure(|config| {
            config.fast_lane = row.fast_lane;
            config.caps.requests.calls_per_second = 1_000;
            config.caps.calls.open_per_peer = 1_000;
        });
    let assistant = Assistant::builder()
        .client("phone")
        .connect_options(ConnectOptions::new().bind_address(caller_from))
        .configure(|config| {
            config.fast_lane = row.fast_lane;
            config.caps.calls.open_per_peer = 1_000; // no call is refused, however long others take
        });
    let (client, assistant) = tokio::join!(client.join(&url, &phone), assistant.join(&url, &agent));
    let (client, assistant) = (client.expect("joined"), assistant.expect("joined"));
    assistant.call("echo", echo_of(usize::MAX)).to("phone").await.expect("a result");

    let link = network.link(caller_from);
    let seed = u64::from(row.number) << 32;
    link.impair(DELAY, row.loss_permille, row.burst, seed);
    if row.both_links {
        network.link(owner_from).impair(DELAY, row.loss_permille, row.burst, !seed);
    }
    // Packets in flight while the network changed are not measured.
    for _ in 0..20 {
        let _ = assistant.call("echo", echo_of(usize::MAX)).to("phone").await;
    }
    let before = link.datagrams();
    let calls = env::var("CALLS").ok().and_then(|it| it.parse().ok());
    let calls = calls.unwrap_or_else(|| {
        let all = CALLS[usize::from(!row.one_at_a_time)];
        if row.fast_lane { all } else { all / FEWER }
    });
    let mut times = Vec::new();
    let mut open = Vec::new();
    let mut tick = tokio::time::interval(BETWEEN);
    for number in 0..calls {
        if row.one_at_a_time {
            times.extend(timed(&assistant, number).await);
        } else {
            tick.tick().await;
            let assistant = assistant.clone();
            open.push(tokio::spawn(async move { timed(&assistant, number).await }));
        }
    }
    for call in open {
        times.extend(call.await.expect("a call"));
    }
    let datagrams = link.datagrams() - before;
    let stats = [assistant.stats(), client.stats()];
    link.impair(Duration::ZERO, 0, 1, 0);
    network.link(owner_from).impair(Duration::ZERO, 0, 1, 0);
    assistant.close().await;
    client.close().await;
    let runs = runs.lock().expect("no panic while locked");
    let twice = runs.iter().filter(|(number, times)| **number != usize::MAX && **times > 1).count();
    Measured { times, calls, twice, datagrams, stats }
}

fn echo_of(number: usize) -> Echo {
    Echo { number, text: "x".repeat(24) }
}

/// Returns how long one call took, unless it failed.
async fn timed(assistant: &Assistant, number: usize) -> Option<Duration> {
    let began = Instant::now();
    let result = assistant.call("echo", echo_of(number)).to("phone").await;
    if let Err(error) = &result {
        eprintln!("call {number}: {error}");
    }
    result.is_ok().then(|| began.elapsed())
}

fn show(row: Row, mut measured: Measured) {
    measured.times.sort_unstable();
    let times = &measured.times;
    let at = |share: f64| {
        let index = (times.len() as f64 * share).ceil() as usize;
        times.get(index.clamp(1, times.len().max(1)) - 1).map_or(f64::NAN, |it| it.as_secs_f64() * 1e3)
    };
    let sum = |name: &str| measured.stats.iter().map(|stats| stats.named(name)).sum::<u64>();
    println!(
        "{} %{} | {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.2} | {} | {} | {} | {} | {} | {}",
        f64::from(row.loss_permille) / 10.0,
        if row.burst > 1 { " in bursts" } else { "" },
        if row.both_links { "both" } else { "caller's" },
        if row.one_at_a_time { "one at a time" } else { "50 a second" },
        if row.fast_lane { "on" } else { "off" },
        at(0.5),
        at(0.9),
        at(0.99),
        at(0.999),
        at(1.0),
        measured.datagrams as f64 / measured.calls as f64,
        measured.calls - times.len(),
        measured.twice,
        sum("fast_doubles"),
        sum("fast_retries"),
        sum("fast_copies"),
        sum("fast_copies_held"),
    );
}
