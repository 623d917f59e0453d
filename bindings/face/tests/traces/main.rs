//! Records the sessions of toolbridge's simulation as traces, and replays them.
//!
//! `cargo test` records and replays 100 sessions. `scripts/bindings test` writes 1,000 for all bindings:
//!
//! ```text
//! cargo test --test traces -- --write FOLDER --count 1000
//! ```
//!
//! The modules of the simulation are compiled here with another [`session`], whose types record what they are given. Each
//! recorded input goes to toolbridge's own session, and as JSON to one of `toolbridge_face`; their outputs are compared.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::field_reassign_with_default,
    dead_code,
    reason = "a simulation owns its clock and may fail, and some of its parts are for its own tests"
)]

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

#[macro_use]
#[path = "../../../../tests/simulation/trace.rs"]
mod trace;

#[path = "../../../../tests/simulation/actions.rs"]
mod actions;
#[path = "../../../../tests/simulation/carry.rs"]
mod carry;
#[path = "../../../../tests/simulation/checks.rs"]
mod checks;
#[path = "../../../../tests/simulation/draw.rs"]
mod draw;
#[path = "../../../../tests/simulation/forged.rs"]
mod forged;
#[path = "../../../../tests/simulation/joins.rs"]
mod joins;
#[path = "../../../../tests/simulation/plain.rs"]
mod plain;
#[path = "../../../../tests/simulation/random.rs"]
mod random;
#[path = "../../../../tests/simulation/reach.rs"]
mod reach;
#[path = "../../../../tests/simulation/recorded.rs"]
mod recorded;
#[path = "../../../../tests/simulation/room.rs"]
mod room;
#[path = "../../../../tests/simulation/rpc.rs"]
mod rpc;
#[path = "../../../../tests/simulation/rules.rs"]
mod rules;
#[path = "../../../../tests/simulation/schedule.rs"]
mod schedule;
mod session;
#[path = "../../../../tests/simulation/work.rs"]
mod work;
#[path = "../../../../tests/simulation/world.rs"]
mod world;

use std::{env, fs, path::Path, process::ExitCode, time::Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use toolbridge_face::trace::replay;

/// The sessions that `cargo test` records.
const SESSIONS: usize = 100;

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let after = |name: &str| args.iter().position(|arg| arg == name).and_then(|at| args.get(at + 1));
    if let Some(folder) = after("--write") {
        let count = after("--count").map_or(SESSIONS, |text| text.parse().expect("--count NUMBER"));
        return match write(Path::new(folder), count) {
            Ok(text) => {
                println!("{text}");
                ExitCode::SUCCESS
            }
            Err(text) => {
                println!("{text}");
                ExitCode::FAILURE
            }
        };
    }
    let trial = Trial::test("recorded_session_repeats_each_output_and_deadline", || {
        let mut equal = 0;
        each_trace(SESSIONS, |number, trace| {
            equal += replay(trace).map_err(|mismatch| format!("trace {number}: {mismatch}"))?;
            Ok(())
        })
        .map_err(Failed::from)?;
        if equal < 100 * SESSIONS {
            Err(Failed::from(format!("only {equal} lines were compared")))
        } else {
            Ok(())
        }
    });
    let changed =
        Trial::test("changed_trace_is_a_mismatch", || changed_trace_is_a_mismatch().map_err(Failed::from));
    libtest_mimic::run(&Arguments::from_args(), vec![trial, changed]).exit_code()
}

/// Records so many sessions and passes each trace with its number on.
fn each_trace(count: usize, mut take: impl FnMut(usize, &str) -> Result<(), String>) -> Result<(), String> {
    let mut taken = 0;
    for seed in 1.. {
        let outcome = world::run(&schedule::Schedule::of(seed), Instant::now(), false);
        if let Some(failure) = outcome.failure {
            return Err(format!("seed {seed}: {failure}"));
        }
        for trace in session::take_traces() {
            if taken == count {
                return Ok(());
            }
            taken += 1;
            take(taken, &trace?)?;
        }
    }
    Ok(())
}

/// Writes traces that were replayed.
fn write(folder: &Path, count: usize) -> Result<String, String> {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let (mut equal, mut bytes) = (0, 0);
    each_trace(count, |number, trace| {
        equal += replay(trace).map_err(|mismatch| format!("trace {number}: {mismatch}"))?;
        bytes += trace.len();
        let file = folder.join(format!("{number:04}.jsonl"));
        fs::write(&file, trace).map_err(|error| format!("{}: {error}", file.display()))
    })?;
    Ok(format!("{count} traces with {bytes} bytes, {equal} lines are equal in {}", folder.display()))
}

fn changed_trace_is_a_mismatch() -> Result<(), String> {
    each_trace(1, |_, trace| {
        let lines: Vec<&str> = trace.lines().collect();
        let (mut changed, mut refused) = (0, 0);
        for at in 0..lines.len() {
            let change =
                |from: &str, to: &str| lines[at].contains(from).then(|| lines[at].replacen(from, to, 1));
            let other_time = || change("{\"deadlineMs\":", "{\"deadlineMs\":1");
            let other_lane =
                || change("\"lossy\"", "\"reliable\"").filter(|line| line.starts_with("{\"output\":"));
            let Some(line) = other_time().or_else(other_lane) else { continue };
            let other = lines.iter().enumerate().map(|(n, it)| if n == at { &line } else { *it });
            let other = other.collect::<Vec<_>>().join("\n");
            changed += 1;
            refused += usize::from(replay(&other).is_err());
        }
        if changed > 20 && refused == changed {
            Ok(())
        } else {
            Err(format!("{refused} of {changed} changed lines are noticed"))
        }
    })
}
