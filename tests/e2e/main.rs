//! Tests that need real parts: a LiveKit server, official SDKs, the built program.
//!
//! If a part is missing (see [`server`], [`program`]), its tests are skipped by name; with
//! `TOOLBRIDGE_REQUIRE_PARTS=1` they fail instead.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests own their clock and may fail"
)]

use std::{
    env,
    future::Future,
    process,
    sync::Mutex,
    time::{Duration, Instant},
};

use anyhow::Context;
use libtest_mimic::{Arguments, Completion, Trial};

/// Lists tests under the name of their file.
macro_rules! trials {
    ($file:ident: $($test:ident),* $(,)?) => {
        vec![$(crate::trial(concat!(stringify!($file), "::", stringify!($test)), $test)),*]
    };
}

#[macro_use]
#[path = "../support/with.rs"]
mod with;

mod acp_agent;
mod acp_cli;
mod acp_client;
mod agents;
mod alike;
mod assistant;
mod browser;
mod calls;
mod cli;
mod dev;
mod doctor;
mod encrypted;
mod endings;
mod ends;
mod flat;
mod forged;
mod intruders;
mod joins;
mod judges;
mod matrix;
mod mcp;
mod mcp_conformance;
mod mcp_hosts;
mod moves;
mod network;
mod observe;
mod one_turn;
mod peers;
mod program;
mod proxy;
mod rap_crate;
mod rap_runtime;
#[path = "../support/rap_toolset.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod rap_toolset;
#[path = "../support/recorded.rs"]
mod recorded;
mod recordings;
mod rejoin;
mod relay;
mod replay;
mod report;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/report_sample.rs"]
mod report_sample;
mod restart;
mod results;
mod resume;
mod room;
mod rpc;
mod rpc_caller;
mod server;
mod several;
mod still;
mod storm;
mod streams;
mod survival;
mod tls;
mod turn;
mod turn_server;

/// The tests mostly wait, so there are more threads than processors.
const THREADS: usize = 8;

/// How many of the slowest tests are printed.
const SHOWN: usize = 10;

/// How long each test took.
static TOOK: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());

/// The time after which a test fails because an expected event does not occur.
const BOUND: Duration = Duration::from_secs(30);

fn main() -> process::ExitCode {
    if let Some(code) = mcp_conformance::client_under_test() {
        return code;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    // The longest tests come first in their files.
    let files = [
        flat::trials(),
        storm::trials(),
        rejoin::trials(),
        matrix::trials(),
        resume::trials(),
        results::trials(),
        moves::trials(),
        survival::trials(),
        room::trials(),
        endings::trials(),
        restart::trials(),
        peers::trials(),
        rpc::trials(),
        rpc_caller::trials(),
        several::trials(),
        joins::trials(),
        streams::trials(),
        encrypted::trials(),
        calls::trials(),
        mcp::trials(),
        mcp_hosts::trials(),
        mcp_conformance::trials(),
        acp_agent::trials(),
        acp_cli::trials(),
        acp_client::trials(),
        agents::trials(),
        alike::trials(),
        one_turn::trials(),
        rap_crate::trials(),
        rap_runtime::trials(),
        cli::trials(),
        doctor::trials(),
        assistant::trials(),
        network::trials(),
        proxy::trials(),
        observe::trials(),
        report::trials(),
        judges::trials(),
        recordings::trials(),
        replay::trials(),
        turn::trials(),
        intruders::trials(),
        forged::trials(),
    ];
    let mut trials: Vec<_> = files.into_iter().flatten().collect();
    trials.extend(dev::trials(&trials));
    let conclusion = libtest_mimic::run(&arguments, trials);
    print_slowest();
    browser::stop_shared();
    server::stop_shared();
    program::remove_files();
    process::exit(if conclusion.has_failed() { 101 } else { 0 })
}

/// A test with its own runtime that needs the server.
fn trial<F: Future<Output = anyhow::Result<()>>>(name: &str, test: impl Fn() -> F + Send + 'static) -> Trial {
    trial_with(name, server::missing, test)
}

/// A test with its own runtime that needs parts; a missing part is named.
fn trial_with<F: Future<Output = anyhow::Result<()>>>(
    name: &str,
    missing: impl FnOnce() -> Option<&'static str> + Send + 'static,
    test: impl Fn() -> F + Send + 'static,
) -> Trial {
    let required = env::var_os("TOOLBRIDGE_REQUIRE_PARTS").is_some_and(|value| value == "1");
    trial_where(name, move || missing().filter(|_| !required), test)
}

/// A test with its own runtime that needs privileges; without them it is skipped.
fn trial_where<F: Future<Output = anyhow::Result<()>>>(
    name: &str,
    impossible: impl FnOnce() -> Option<&'static str> + Send + 'static,
    test: impl Fn() -> F + Send + 'static,
) -> Trial {
    let (kind, name) = (server::kind(), dev::name(name));
    Trial::ignorable_test(name.clone(), move || {
        let began = Instant::now();
        server::set_kind(kind);
        if let Some(part) = impossible() {
            return Ok(Completion::ignored_with(format!("skipped: {part}")));
        }
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(2).enable_all().on_thread_start(move || server::set_kind(kind));
        let runtime = runtime.build()?;
        let mut attempts = 1..=still::ATTEMPTS;
        let result = loop {
            let (watch, result) = (still::Watch::begin(), runtime.block_on(test()));
            match (&result, attempts.next().and_then(|_| watch.suspension())) {
                (Err(error), Some(longest)) => {
                    eprintln!(
                        "{name}: running again, because the machine was suspended for {longest:?}: {error:#}"
                    );
                }
                _ => break result,
            }
        };
        runtime.shutdown_background();
        if let Ok(mut took) = TOOK.lock() {
            took.push((began.elapsed(), name.clone()));
        }
        match result {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => Err(format!("{error:#}").into()),
        }
    })
}

/// Prints the tests that took the longest. They ran beside others.
fn print_slowest() {
    let Ok(mut took) = TOOK.lock() else { return };
    took.sort_unstable_by(|one, other| other.cmp(one));
    for (time, name) in took.iter().take(SHOWN) {
        println!("slow: {:.1} s {name}", time.as_secs_f64());
    }
}

/// Waits for an event that must occur.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> anyhow::Result<T> {
    tokio::time::timeout(BOUND, future).await.with_context(|| format!("timed out waiting for {what}"))
}
