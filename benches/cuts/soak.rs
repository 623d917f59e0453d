//! Makes calls for hours while random faults cut the network, delay, throttle and lose packets, and kill processes.
//! Reports the calls' outcomes, and the resources of both ends.

use std::{
    collections::BTreeMap,
    env, fs,
    process::{Child, Command},
    sync::PoisonError,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Network, Shared, causes::Fault as Cause, now, short};

/// The time between two lines of the report.
const REPORT: Duration = Duration::from_secs(300);
/// At the end there are no faults, and every open call has an outcome within this time: longer than a call's timeout.
const END: Duration = Duration::from_secs(60);

/// A seeded generator: xorshift.
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

/// A fault.
enum Fault {
    /// The network: its faulty and its restored state.
    Network(Value, Value),
    /// The server is killed, and its parent starts it again.
    Server,
    /// The process of all clients is killed, and another one started.
    Clients,
}

/// Runs for this many minutes. Returns true if no call ran twice, each has an outcome, and a fault explains each
/// failure.
pub(super) async fn run(
    minutes: f64,
    mut network: Network,
    log: &Shared,
    clients: &mut Child,
    again: impl Fn() -> Child,
) -> bool {
    let (start, mut chance) = (Instant::now(), Chance(0x5eed));
    let until = start + Duration::from_secs_f64(minutes * 60.0);
    let (mut reported, mut faults) = (start, BTreeMap::new());
    println!(
        "minutes | faults | calls | by outcome | open | ran twice | here: KiB, files | there: KiB, files"
    );
    while Instant::now() < until {
        let (name, fault) = fault(&mut chance);
        *faults.entry(name).or_insert(0) += 1;
        match fault {
            Fault::Network(bad, well) => {
                let class = bad["class"].as_str().expect("a class");
                begins(
                    log,
                    Cause {
                        name: format!("{name} of {class}"),
                        began: now(),
                        ended: None,
                        is_away: class != "signaling",
                        is_kill: false,
                    },
                );
                network.order(&bad);
                let length = if chance.next() % 10 == 0 {
                    chance.between(5.0, 20.0)
                } else {
                    chance.between(0.2, 5.0)
                };
                sleep(Duration::from_secs_f64(length)).await;
                network.order(&well);
                ends(log);
            }
            Fault::Server => {
                begins(log, Cause::killed_server(now()));
                kill_server();
            }
            Fault::Clients => {
                begins(log, Cause::killed_clients(now()));
                clients.kill().expect("it runs");
                clients.wait().expect("it has ended");
                *clients = again();
                ends(log);
            }
        }
        sleep(Duration::from_secs_f64(chance.between(1.0, 10.0))).await;
        if reported.elapsed() >= REPORT {
            reported = Instant::now();
            report(start, &faults, log, clients.id());
        }
    }
    log.lock().unwrap_or_else(PoisonError::into_inner).over = true;
    sleep(if short::is_short() { END / 6 } else { END }).await;
    report(start, &faults, log, clients.id());
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.causes.print();
    log.twice == 0 && log.open == 0 && log.causes.unexplained() == 0
}

fn begins(log: &Shared, fault: Cause) {
    log.lock().unwrap_or_else(PoisonError::into_inner).causes.faults.push(fault);
}

/// Records that the last fault is over.
fn ends(log: &Shared) {
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(fault) = log.causes.faults.last_mut() {
        fault.ended = Some(now());
    }
}

/// Draws a fault.
fn fault(chance: &mut Chance) -> (&'static str, Fault) {
    let class = chance.one_of(&["media", "signaling", "all"]);
    match chance.next() % 14 {
        0..=5 => (
            "cut",
            Fault::Network(json!({"class": class, "cut": true}), json!({"class": class, "cut": false})),
        ),
        6 | 7 => {
            let loss = chance.between(0.01, 0.1);
            let [bad, well] = [loss, 0.0].map(|loss| json!({"class": class, "loss": loss}));
            ("loss", Fault::Network(bad, well))
        }
        8 | 9 => {
            let delay = chance.between(0.05, 0.4);
            let bad = json!({"class": class, "delay": delay, "jitter": delay / 4.0});
            let well = json!({"class": class, "delay": super::DELAY, "jitter": 0});
            ("delay", Fault::Network(bad, well))
        }
        10 | 11 => {
            let rate = chance.between(20e3, 200e3);
            let [bad, well] = [rate, 0.0].map(|rate| json!({"class": class, "rate": rate}));
            ("rate", Fault::Network(bad, well))
        }
        12 => ("killed server", Fault::Server),
        _ => ("killed clients", Fault::Clients),
    }
}

/// Kills the server that `scripts/parts livekit-server with` started and keeps running.
fn kill_server() {
    let file = env::var_os("LIVEKIT_SERVER_PID").expect("LIVEKIT_SERVER_PID");
    let pid = fs::read_to_string(file).expect("its number");
    let killed = Command::new("kill").args(["-9", pid.trim()]).status().expect("kill");
    assert!(killed.success(), "{pid}");
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
