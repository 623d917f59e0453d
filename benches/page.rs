//! An assistant that calls the page of `scripts/bench bindings`, as `bindings/python/bench/caller.py` does: for each line
//! `CALLS BYTES` it makes so many calls, one after the other, and prints the time of each in milliseconds, and the CPU time of
//! this process per call.

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

use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use toolbridge::Assistant;

/// The letters of the payloads.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (Ok(url), Ok(token)) = (env::var("LIVEKIT_URL"), env::var("LIVEKIT_TOKEN")) else {
        eprintln!("skipped: livekit-server (run scripts/bench bindings)");
        return;
    };
    let assistant = Assistant::builder().join(&url, &token).await.expect("a room");
    assistant.ready("phone").await.expect("the page");
    println!("{}", json!({"event": "ready"}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.expect("a line") {
        let (calls, bytes) = line.split_once(' ').expect("CALLS BYTES");
        measure(&assistant, calls.parse().unwrap(), bytes.parse().unwrap()).await;
    }
    assistant.close().await;
}

async fn measure(assistant: &Assistant, calls: u32, bytes: usize) {
    // Any letters: a step that is odd reaches all of them.
    let data: String = (0..bytes).map(|at| char::from(LETTERS[at * 29 % LETTERS.len()])).collect();
    let mut times = Vec::new();
    let before = cpu();
    for _ in 0..calls {
        let began = Instant::now();
        let result =
            assistant.call("echo", json!({"data": data})).to("phone").timeout(Duration::from_secs(20));
        let result: Value = result.await.expect("a result").decode().expect("an object");
        times.push(began.elapsed().as_secs_f64() * 1e3);
        assert_eq!(result["data"], data);
    }
    let each = (cpu() - before).as_secs_f64() * 1e3 / f64::from(calls);
    println!("{}", json!({"ms": times, "cpu": each}));
}

/// The CPU time of this process.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap(), time.tv_nsec.try_into().unwrap())
}
