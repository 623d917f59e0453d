//! What a call costs over a real LiveKit server: from joining to the first result, and the round trip after.
//!
//! `scripts/bench-room` starts the server and runs this. Both participants run in this process.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark owns its clock and may fail"
)]

use std::{
    env,
    time::{Duration, Instant},
};

use serde_json::json;
use toolbridge::{Assistant, Body, Client, ToolError, token::AccessKey};

/// How often two fresh participants meet.
const JOINS: usize = 40;

/// How many calls follow one another.
const CALLS: usize = 5_000;

async fn get_battery() -> Result<f32, ToolError> {
    Ok(0.8)
}

fn main() {
    let Ok(url) = env::var("LIVEKIT_URL") else {
        eprintln!("skipped: livekit-server (set LIVEKIT_URL, or run scripts/bench-room)");
        return;
    };
    let variable = |name| env::var(name).expect(name);
    let key = AccessKey::new(variable("LIVEKIT_API_KEY"), variable("LIVEKIT_API_SECRET"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        first_result(&url, &key).await;
        round_trip(&url, &key).await;
    });
}

/// Two fresh participants that name each other: both join at once, and the assistant calls at once.
async fn first_result(url: &str, key: &AccessKey) {
    let mut times = Vec::new();
    for n in 0..JOINS {
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
    let payload = Body::from(json!({"data": "x".repeat(40)}));
    let mut times = Vec::new();
    for _ in 0..CALLS {
        let began = Instant::now();
        assistant.call("bridge.echo", &payload).to("phone").await.expect("a result");
        times.push(began.elapsed());
    }
    report("one call of about 220 B after another", &mut times);
    assistant.close().await;
    client.close().await;
}

async fn join(url: &str, key: &AccessKey, room: &str) -> (Client, Assistant) {
    let phone = key.client(room, "phone").sign().expect("a token");
    let assistant = key.assistant(room, "assistant").sign().expect("a token");
    let client = Client::builder()
        .tool("get_battery", "", get_battery)
        .assistant("assistant")
        .configure(|config| config.caps.calls_per_second = 1_000_000);
    let (client, assistant) =
        tokio::join!(client.join(url, &phone), Assistant::builder().client("phone").join(url, &assistant));
    (client.expect("joined"), assistant.expect("joined"))
}

fn report(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| {
        times[((times.len() as f64 * share).ceil() as usize).clamp(1, times.len()) - 1].as_secs_f64() * 1e3
    };
    println!(
        "{what} (n = {}): p50 {:.2} ms, p90 {:.2}, p99 {:.2}, max {:.2}",
        times.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0)
    );
}
