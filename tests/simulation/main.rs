//! Seeded simulation: real sessions on virtual time, in a room that delays, loses and forges packets.
//!
//! `cargo test` runs 1,000 seeds, and compares what they do with `recorded.txt`. To run more seeds, or to repeat one:
//!
//! ```text
//! cargo test --test simulation -- --seeds 1..100000 --jobs 2
//! cargo test --test simulation -- --seeds 1..100000 --all
//! cargo test --test simulation -- --seeds 1..1000 --counts
//! cargo test --test simulation -- --seed 17 --trace
//! cargo test --test simulation -- --seed 17 --shrink
//! cargo test --test simulation -- --seeds 1..1000 --all --with Refusals
//! cargo test --test simulation -- --seeds 1..1000 --without Drained
//! cargo test --test simulation -- --record
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::field_reassign_with_default,
    reason = "a simulation owns its clock and may fail"
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
mod trace;

mod actions;
mod carry;
mod checks;
mod draw;
mod extras;
mod forged;
mod joins;
mod plain;
mod random;
mod reach;
mod recorded;
mod room;
mod rpc;
mod rules;
mod schedule;
mod session;
mod shrink;
mod work;
mod world;

use std::{
    env,
    ops::RangeInclusive,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{
    extras::Extra,
    reach::Reached,
    recorded::{Digests, Recorded, SEEDS},
    rules::{Failure, Rule},
    schedule::Schedule,
};

/// The name of this test, and of the folder in which `recorded.txt` says what its seeds do.
const NAME: &str = "simulation";

/// What these runs draw in addition. `--with` adds to it.
const EXTRAS: &[Extra] = Extra::ALL;

/// What runs draw, and which rules they do not check.
#[derive(Clone, Debug)]
struct Options {
    extras: Vec<Extra>,
    without: Vec<Rule>,
}

impl Options {
    fn schedule(&self, seed: u64) -> Schedule {
        Schedule { without: self.without.clone(), ..Schedule::with(seed, &self.extras) }
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { extras: EXTRAS.to_vec(), without: Vec::new() }
    }
}

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
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    static RUNS: OnceLock<Result<Counted, String>> = OnceLock::new();
    let runs =
        move || RUNS.get_or_init(|| run_all(SEEDS, jobs, &Options::default())).as_ref().map_err(Failed::from);
    let trials = vec![
        Trial::test("a_thousand_seeds_break_no_rule", move || match runs()? {
            counted if counted.calls < 5_000 => {
                Err(Failed::from(format!("only {} calls were made", counted.calls)))
            }
            counted => {
                print!("{}", counted.reached);
                reaches_all(counted).map_err(Failed::from)
            }
        }),
        Trial::test("a_thousand_seeds_behave_as_recorded", move || {
            runs()?.recorded.compare_with(NAME).map_err(Failed::from)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Fails if the runs missed a situation. Fewer runs than `cargo test` makes are not checked.
fn reaches_all(counted: &Counted) -> Result<(), String> {
    let missing = counted.reached.missing(EXTRAS.len() == Extra::ALL.len());
    if missing.is_empty() || counted.runs < *SEEDS.end() {
        return Ok(());
    }
    Err(format!("in {} runs these were never reached: {}", counted.runs, missing.join(", ")))
}

/// Totals over several runs.
#[derive(Debug, Default)]
struct Counted {
    runs: u64,
    calls: u64,
    starts: u64,
    steps: u64,
    reached: Reached,
    recorded: Recorded,
}

fn run_args(args: &[String]) -> Result<(), String> {
    let after = |arg: &str| {
        let at = args.iter().position(|it| it == arg)?;
        args.get(at + 1).map(String::as_str)
    };
    let has = |arg: &str| args.iter().any(|it| it == arg);
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
    let named =
        |arg: &'static str| args.windows(2).filter(move |pair| pair[0] == arg).map(|pair| pair[1].clone());
    let mut options = Options::default();
    for name in named("--with") {
        options
            .extras
            .push(Extra::named(&name).ok_or_else(|| format!("{name:?} is none of {:?}", Extra::ALL))?);
    }
    for name in named("--without") {
        options.without.push(Rule::named(&name).ok_or_else(|| format!("{name:?} is no rule"))?);
    }
    let options = &options;
    if let Some(seed) = after("--seed") {
        return one(number(seed)?, has("--trace"), has("--shrink"), options);
    }
    let jobs = after("--jobs").map_or(Ok(1), number)?;
    if has("--record") {
        return run_all(SEEDS, jobs as usize, options)?.recorded.write(NAME);
    }
    let seeds = after("--seeds").ok_or("--seeds FIRST..LAST")?;
    let (first, last) = seeds.split_once("..").ok_or("--seeds FIRST..LAST")?;
    if has("--all") {
        return all(number(first)?..=number(last)?, options);
    }
    if has("--counts") {
        return counts(number(first)?..=number(last)?, options);
    }
    let began = Instant::now();
    let counted = run_all(number(first)?..=number(last)?, jobs as usize, options)?;
    let took = began.elapsed();
    print!("{}", counted.reached);
    println!(
        "{} runs, {} calls, {} handlers, {} steps, {:.1} s, {:.0} runs/s; no rule was broken",
        counted.runs,
        counted.calls,
        counted.starts,
        counted.steps,
        took.as_secs_f64(),
        counted.runs as f64 / took.as_secs_f64()
    );
    reaches_all(&counted)?;
    let is_default = args.iter().all(|arg| arg != "--with" && arg != "--without");
    if is_default { counted.recorded.compare_with(NAME) } else { Ok(()) }
}

fn one(seed: u64, trace: bool, shrinks: bool, options: &Options) -> Result<(), String> {
    let base = Instant::now();
    let mut schedule = options.schedule(seed);
    if shrinks && let Some(failure) = run_caught(&schedule, base).failure {
        schedule = shrink::shrink(schedule, &failure, base);
    }
    if trace || shrinks {
        println!("{}", shrink::show(&schedule));
    }
    match world::run(&schedule, base, trace).failure {
        Some(failure) => Err(format!("seed {seed}: {failure}")),
        None => {
            println!("seed {seed}: no rule was broken");
            Ok(())
        }
    }
}

/// Runs all these seeds, also after failures, and lists each seed that breaks a rule.
fn all(seeds: RangeInclusive<u64>, options: &Options) -> Result<(), String> {
    let base = Instant::now();
    let failed = |seed: u64| {
        let failure = run_caught(&options.schedule(seed), base).failure?;
        Some((failure.rule, format!("seed {seed}: {failure}")))
    };
    let mut broken: Vec<(Rule, String)> = seeds.filter_map(failed).collect();
    broken.sort_by_key(|(rule, _)| *rule); // a stable sort: the seeds of one rule stay in order
    let lines: Vec<_> = broken.into_iter().map(|(_, text)| text).collect();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
}

/// Prints the counts of each of these seeds on a line. A change that keeps the behavior keeps these lines.
fn counts(seeds: RangeInclusive<u64>, options: &Options) -> Result<(), String> {
    let base = Instant::now();
    for seed in seeds {
        let it = run_caught(&options.schedule(seed), base);
        let broken = it.failure.map_or_else(String::new, |failure| format!(" {failure}"));
        let reached = it.reached.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        println!(
            "{seed}: {} calls {} starts {} steps {reached}{broken}",
            it.verdicts.len(),
            it.starts,
            it.steps
        );
    }
    Ok(())
}

/// Runs a schedule; a panic breaks `Rule::Panic`.
fn run_caught(schedule: &Schedule, base: Instant) -> world::Outcome {
    catch_unwind(AssertUnwindSafe(|| world::run(schedule, base, false))).unwrap_or_else(|_| world::Outcome {
        failure: Some(Failure { rule: Rule::Panic, at: 0, text: "a panic, see above".to_owned() }),
        verdicts: Vec::new(),
        starts: 0,
        steps: 0,
        reached: Reached::default(),
        digests: Digests::default(),
    })
}

/// Runs these seeds until one breaks a rule. The error names that seed and the command that repeats it.
fn run_all(seeds: RangeInclusive<u64>, jobs: usize, options: &Options) -> Result<Counted, String> {
    let base = Instant::now();
    let next = AtomicU64::new(*seeds.start());
    let failed = AtomicBool::new(false);
    let work = || {
        let mut counted = Counted::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() || failed.load(Ordering::Relaxed) {
                return Ok(counted);
            }
            let outcome = run_caught(&options.schedule(seed), base);
            if let Some(failure) = outcome.failure {
                failed.store(true, Ordering::Relaxed);
                return Err(format!(
                    "seed {seed}: {failure}\nrepeat it with: cargo test --test simulation -- --seed {seed} --shrink --trace"
                ));
            }
            counted.runs += 1;
            counted.calls += outcome.verdicts.len() as u64;
            counted.starts += outcome.starts as u64;
            counted.steps += outcome.steps;
            counted.reached.add(&outcome.reached);
            if SEEDS.contains(&seed) {
                counted.recorded.add(seed, outcome.digests);
            }
        }
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.max(1)).map(|_| scope.spawn(work)).collect();
        let mut all = Counted::default();
        let mut first: Option<String> = None;
        for worker in workers {
            match worker.join() {
                Ok(Ok(counted)) => {
                    all.runs += counted.runs;
                    all.calls += counted.calls;
                    all.starts += counted.starts;
                    all.steps += counted.steps;
                    all.reached.add(&counted.reached);
                    all.recorded.join(counted.recorded);
                }
                Ok(Err(text)) => first = first.or(Some(text)),
                Err(_) => first = first.or_else(|| Some("a worker panicked".to_owned())),
            }
        }
        first.map_or(Ok(all), Err)
    })
}
