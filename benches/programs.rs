//! Measures what a supervisor adds to the start of a tool program: runs the same program with and without one, in turn.
//!
//! `cargo bench --bench programs`

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a benchmark owns its clock and may fail"
)]

use std::time::{Duration, Instant};

use toolbridge::{ToolContext, ToolName, ToolSource as _, Value, programs::ProgramTools};

/// How often each is run. The first few are not counted.
const RUNS: usize = 500;
const WARM_UP: usize = 20;

mod short;

use short::scaled;

fn main() {
    let (runs, warm_up) = (scaled(RUNS), scaled(WARM_UP));
    let text = "[[tools]]\nname = \"nothing\"\ndescription = \"\"\ncommand = [\"/bin/true\"]\n";
    let alone = ProgramTools::from_toml(text).unwrap();
    let supervised = alone.clone().supervisor(env!("CARGO_BIN_EXE_toolbridge"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut times = [const { Vec::new() }; 2];
    for run in 0..warm_up + runs {
        for (times, tools) in times.iter_mut().zip([&alone, &supervised]) {
            let took = runtime.block_on(once(tools));
            if run >= warm_up {
                times.push(took);
            }
        }
    }
    println!("a call of /bin/true, {runs} runs   p50       p90       p99");
    for (name, times) in ["without a supervisor", "with a supervisor   "].iter().zip(&mut times) {
        times.sort_unstable();
        let at = |percent: usize| times[times.len() * percent / 100].as_secs_f64() * 1e3;
        println!("{name}           {:>6.2} ms {:>6.2} ms {:>6.2} ms", at(50), at(90), at(99));
    }
}

async fn once(tools: &ProgramTools) -> Duration {
    let name: ToolName = "nothing".parse().unwrap();
    let context = ToolContext::new("bench", Duration::from_secs(60));
    let begun = Instant::now();
    tools.execute(&name, Value::empty(), context).await.unwrap();
    begun.elapsed()
}
