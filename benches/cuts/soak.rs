//! Calls for hours while chance cuts, delays, slows down and loses: what they came to, and what both ends need.

use std::{
    collections::BTreeMap,
    fs,
    sync::PoisonError,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Network, Shared};

/// Between two lines of the report.
const REPORT: Duration = Duration::from_secs(300);
/// At the end everything is well, and all that is open has an outcome within this time: longer than a call may take.
const END: Duration = Duration::from_secs(60);

/// A seeded chance: xorshift.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() % 10_000) as f64 / 1e4
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[(self.next() % all.len() as u64) as usize]
    }
}

/// Runs so long; `child` is the other process. Whether nothing ran twice and everything has an outcome.
pub(super) async fn run(minutes: f64, mut network: Network, log: &Shared, child: u32) -> bool {
    let (start, mut chance) = (Instant::now(), Chance(0x5eed));
    let until = start + Duration::from_secs_f64(minutes * 60.0);
    let (mut reported, mut faults) = (start, BTreeMap::new());
    println!(
        "minutes | faults | calls | by outcome | open | ran twice | here: KiB, files | there: KiB, files"
    );
    while Instant::now() < until {
        let (name, bad, well) = fault(&mut chance);
        *faults.entry(name).or_insert(0) += 1;
        network.order(&bad);
        let length =
            if chance.next() % 10 == 0 { chance.between(5.0, 20.0) } else { chance.between(0.2, 5.0) };
        sleep(Duration::from_secs_f64(length)).await;
        network.order(&well);
        sleep(Duration::from_secs_f64(chance.between(1.0, 10.0))).await;
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            report(start, &faults, log, child);
        }
    }
    log.lock().unwrap_or_else(PoisonError::into_inner).over = true;
    sleep(END).await;
    report(start, &faults, log, child);
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.twice == 0 && log.open == 0
}

/// Something that goes wrong, and how it ends.
fn fault(chance: &mut Chance) -> (&'static str, Value, Value) {
    let class = chance.one_of(&["media", "signalling", "all"]);
    match chance.next() % 6 {
        0..=2 => ("cut", json!({"class": class, "cut": true}), json!({"class": class, "cut": false})),
        3 => {
            let loss = chance.between(0.01, 0.1);
            ("loss", json!({"class": class, "loss": loss}), json!({"class": class, "loss": 0}))
        }
        4 => {
            let delay = chance.between(0.05, 0.4);
            let bad = json!({"class": class, "delay": delay, "jitter": delay / 4.0});
            ("delay", bad, json!({"class": class, "delay": super::DELAY, "jitter": 0}))
        }
        _ => {
            let rate = chance.between(20e3, 200e3);
            ("rate", json!({"class": class, "rate": rate}), json!({"class": class, "rate": 0}))
        }
    }
}

fn report(start: Instant, faults: &BTreeMap<&str, usize>, log: &Shared, child: u32) {
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let needs = |process: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("?").trim();
        let files = fs::read_dir(format!("/proc/{process}/fd")).map_or(0, Iterator::count);
        format!("{}, {files}", resident.trim_end_matches(" kB"))
    };
    println!(
        "{:.0} | {faults:?} | {} | {:?} | {} | {} | {} | {}",
        start.elapsed().as_secs_f64() / 60.0,
        log.outcomes.values().sum::<usize>(),
        log.outcomes,
        log.open,
        log.twice,
        needs("self"),
        needs(&child.to_string()),
    );
}
