//! Sessions of any configuration in a room where anything happens, on virtual time.
//!
//! The simulation and the small world judge what happens in a room that behaves. Here the seed draws each session's
//! options and limits, uses all that a session offers, changes and repeats packets, and adds participants that send
//! anything. Few rules hold in all of that; what the sessions do is compared with `recorded.txt`.
//!
//! ```text
//! cargo test --test wild -- --seeds 1..100000
//! cargo test --test wild -- --seed 17 --trace
//! cargo test --test wild -- --record
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::field_reassign_with_default,
    reason = "a simulation owns its clock and may fail"
)]

mod config;
mod others;
#[path = "../simulation/random.rs"]
#[allow(dead_code, reason = "the simulation uses all of it")]
mod random;
#[path = "../simulation/recorded.rs"]
#[allow(dead_code, reason = "the simulation uses all of it")]
mod recorded;
mod world;

use std::{
    env,
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use libtest_mimic::{Arguments, Failed, Trial};
use toolbridge::session::Counter;

use crate::{
    recorded::{Recorded, SEEDS},
    world::Run,
};

/// The name of this test, and of the folder in which `recorded.txt` says what its seeds do.
const NAME: &str = "wild";

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    if args.iter().any(|arg| arg.starts_with("--seed") || arg == "--record") {
        return match run_args(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(text) => {
                println!("{text}");
                ExitCode::from(101)
            }
        };
    }
    static RUNS: OnceLock<All> = OnceLock::new();
    let runs = || RUNS.get_or_init(|| run_all(SEEDS));
    let trials = vec![
        Trial::test("any_room_breaks_no_rule", move || {
            let all = runs();
            all.judge()?;
            all.reaches_each_counter().map_err(Failed::from)
        }),
        Trial::test("any_room_behaves_as_recorded", move || {
            runs().recorded.compare_with(NAME).map_err(Failed::from)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run_args(args: &[String]) -> Result<(), String> {
    let after = |arg: &str| {
        let at = args.iter().position(|it| it == arg)?;
        args.get(at + 1).map(String::as_str)
    };
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
    if let Some(seed) = after("--seed") {
        let trace = args.iter().any(|arg| arg == "--trace");
        return caught(number(seed)?, Instant::now(), trace).broken.map_or(Ok(()), Err);
    }
    if args.iter().any(|arg| arg == "--record") {
        return run_all(SEEDS).recorded.write(NAME);
    }
    let seeds = after("--seeds").ok_or("--seeds FIRST..LAST")?;
    let (first, last) = seeds.split_once("..").ok_or("--seeds FIRST..LAST")?;
    let began = Instant::now();
    let all = run_all(number(first)?..=number(last)?);
    println!("{} runs, {} steps, {:.1} s", all.runs, all.steps, began.elapsed().as_secs_f64());
    all.judge()?;
    all.recorded.compare_with(NAME)
}

/// Totals over several runs.
#[derive(Debug, Default)]
struct All {
    runs: u64,
    steps: u64,
    recorded: Recorded,
    broken: Vec<(u64, String)>,
}

impl All {
    fn judge(&self) -> Result<(), String> {
        let Some((seed, text)) = self.broken.iter().min() else { return Ok(()) };
        let more = self.broken.len() - 1;
        Err(format!(
            "seed {seed}: Broken at 0 ms: {text}, and {more} others\n\
             repeat it with: cargo test --test wild -- --seed {seed} --trace"
        ))
    }

    /// Each counter of the sessions must count something, so that what it counts is tested.
    fn reaches_each_counter(&self) -> Result<(), String> {
        let is_missing = |it: &&Counter| self.recorded.total(&format!("counter: {it}")) == 0;
        let missing: Vec<_> = Counter::ALL.iter().filter(is_missing).map(ToString::to_string).collect();
        if missing.is_empty() { Ok(()) } else { Err(format!("never counted: {}", missing.join(", "))) }
    }
}

fn run_all(seeds: RangeInclusive<u64>) -> All {
    let base = Instant::now();
    let (next, all) = (AtomicU64::new(*seeds.start()), Mutex::new(All::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() {
                return;
            }
            let run = caught(seed, base, false);
            let mut all = all.lock().unwrap();
            all.runs += 1;
            all.steps += run.steps;
            all.broken.extend(run.broken.map(|text| (seed, text)));
            if SEEDS.contains(&seed) {
                all.recorded.add(seed, run.digests);
            }
        }
    };
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    all.into_inner().unwrap()
}

/// Runs a seed. A panic breaks a rule.
fn caught(seed: u64, base: Instant, trace: bool) -> Run {
    catch_unwind(AssertUnwindSafe(|| world::run(seed, base, trace)))
        .unwrap_or_else(|_| Run { broken: Some("a panic, see above".to_owned()), ..Run::default() })
}
