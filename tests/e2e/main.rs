//! What only a real LiveKit server can show.
//!
//! Where there is none (see [`server`]) these tests are skipped by name; with
//! `TOOLBRIDGE_REQUIRE_PARTS=1` they fail instead.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "tests own their clock and may fail"
)]

use std::{env, future::Future, process};

use libtest_mimic::{Arguments, Completion, Trial};

mod room;
mod server;
mod tls;

/// Tests that mostly wait: more of them at once than there are processors.
const THREADS: usize = 8;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(THREADS);
    let conclusion = libtest_mimic::run(&arguments, room::trials());
    server::stop_shared();
    process::exit(if conclusion.has_failed() { 101 } else { 0 });
}

/// A test with a runtime of its own.
fn trial<F: Future<Output = anyhow::Result<()>>>(
    name: &str,
    test: impl FnOnce() -> F + Send + 'static,
) -> Trial {
    Trial::ignorable_test(name, || {
        let required = env::var_os("TOOLBRIDGE_REQUIRE_PARTS").is_some_and(|value| value == "1");
        if server::binary().is_none() && !required {
            return Ok(Completion::ignored_with("skipped: livekit-server"));
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        match runtime.block_on(test()) {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => Err(format!("{error:#}").into()),
        }
    })
}
