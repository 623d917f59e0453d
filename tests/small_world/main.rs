//! A small world, explored exhaustively and at random: a client, two assistants and a stranger. It checks rights,
//! consent, outcomes, views and recovery at every step.
//!
//! `cargo test` explores all short schedules and walks 1,000 seeds, and compares what these do with `recorded.txt`. More,
//! or one again:
//!
//! ```text
//! cargo test --test small_world -- --exhaust 5
//! cargo test --test small_world -- --minutes 10 [--fine]
//! cargo test --test small_world -- --seeds 1..100000
//! cargo test --test small_world -- --table 1..1000
//! cargo test --test small_world -- --seed 17 --trace --shrink
//! cargo test --test small_world -- --steps "Enters(Phone), Enters(A), Calls(A, Plain)" [--lossy]
//! cargo test --test small_world -- --seeds 1..1000 --only Consent --only OneRun
//! cargo test --test small_world -- --seeds 1..1000 --without Views
//! cargo test --test small_world -- --table 1..1000 --avoid LosesRole --avoid Stranger
//! cargo test --test small_world -- --record
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::field_reassign_with_default,
    reason = "a simulation owns its clock and may fail"
)]

mod event;
mod explore;
#[path = "../simulation/random.rs"]
#[allow(dead_code, reason = "the simulation uses all of it")]
mod random;
mod reach;
#[path = "../simulation/recorded.rs"]
mod recorded;
mod rules;
mod walk;
mod world;

use std::{
    collections::BTreeMap,
    env,
    ops::RangeInclusive,
    process::ExitCode,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::{
    explore::{Explored, LONGEST, STARTS},
    reach::Reached,
    recorded::{Recorded, SEEDS},
    rules::{Breach, Rule},
};

/// The name of this test, and of the folder in which `recorded.txt` says what its seeds do.
const NAME: &str = "small_world";

/// The depth that `cargo test` explores.
const SHALLOW: usize = 2;

/// What sessions are known to break. A breach that neither test shows any more leaves the list.
const KNOWN: &[Breach] = &[];

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let modes = ["--steps", "--seed", "--seeds", "--exhaust", "--minutes", "--table", "--record"];
    if args.iter().any(|arg| modes.contains(&arg.as_str())) {
        return match run_args(&args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(text) => {
                println!("{text}");
                ExitCode::from(101)
            }
        };
    }
    let all = |_: &Rule| true;
    static WALKED: OnceLock<Walked> = OnceLock::new();
    let walked = || WALKED.get_or_init(|| walk_all(SEEDS, &[]));
    let trials = vec![
        Trial::test("short_schedules_break_no_rule", move || {
            let explored = exhaust(SHALLOW, LONGEST, &[], false);
            judge(broken_in(&explored, all)).map_err(Failed::from)
        }),
        Trial::test("a_thousand_walks_break_no_rule", move || {
            let walked = walked();
            print!("{}", walked.reached);
            judge(walked.failures(all)).map_err(Failed::from)?;
            missing(&walked.reached, SEEDS).map_err(Failed::from)
        }),
        Trial::test("a_thousand_walks_behave_as_recorded", move || {
            walked().recorded.compare_with(NAME).map_err(Failed::from)
        }),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn run_args(args: &[String]) -> Result<(), String> {
    let after = |arg: &str| {
        let at = args.iter().position(|it| it == arg)?;
        args.get(at + 1).map(String::as_str)
    };
    let has = |arg: &str| args.iter().any(|it| it == arg);
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a number"));
    let named = |arg: &str| {
        let pairs = args.windows(2).filter(|pair| pair[0] == arg);
        pairs
            .map(|pair| {
                Rule::named(&pair[1]).ok_or_else(|| format!("{:?} is no rule: {:?}", pair[1], Rule::ALL))
            })
            .collect::<Result<Vec<_>, _>>()
    };
    let (only, without) = (named("--only")?, named("--without")?);
    let wanted = move |rule: &Rule| (only.is_empty() || only.contains(rule)) && !without.contains(rule);
    let avoided = args.windows(2).filter(|pair| pair[0] == "--avoid").map(|pair| pair[1].clone());
    let avoided: Vec<String> = avoided.collect();
    if let Some(text) = after("--steps") {
        let broken = walk::of_text(text, has("--lossy"), Instant::now())?;
        return report(&broken.into_iter().filter(|((rule, _), _)| wanted(rule)).collect());
    }
    if let Some(seed) = after("--seed") {
        return one(number(seed)?, &avoided, has("--trace"), has("--shrink"), wanted);
    }
    let range = |text: &str| {
        let (first, last) = text.split_once("..").ok_or("FIRST..LAST")?;
        Ok::<_, String>(number(first)?..=number(last)?)
    };
    if has("--record") {
        return walk_all(SEEDS, &[]).recorded.write(NAME);
    }
    if let Some(seeds) = after("--table") {
        walk_all(range(seeds)?, &avoided).print_table(&avoided);
        return Ok(());
    }
    if let Some(seeds) = after("--seeds") {
        let (seeds, began) = (range(seeds)?, Instant::now());
        let walked = walk_all(seeds.clone(), &avoided);
        print!("{}", walked.reached);
        println!("{} walks, {} steps, {:.1} s", walked.runs, walked.steps, began.elapsed().as_secs_f64());
        report(&walked.failures(wanted))?;
        missing(&walked.reached, seeds)?;
        return if avoided.is_empty() { walked.recorded.compare_with(NAME) } else { Ok(()) };
    }
    let minutes = after("--minutes").map(number).transpose()?;
    let depth = after("--exhaust").map(number).transpose()?.unwrap_or(99);
    let time = minutes.map_or(LONGEST, |minutes| Duration::from_secs(60 * minutes));
    let explored = exhaust(depth as usize, time, &avoided, has("--fine"));
    report(&broken_in(&explored, wanted))
}

/// Fails if there is a breach that is not known, and prints the known ones that it does not see.
fn judge(failures: BTreeMap<Breach, String>) -> Result<(), String> {
    for (rule, what) in KNOWN.iter().filter(|breach| !failures.contains_key(breach)) {
        println!("known, and not seen here: {rule:?}: {what}");
    }
    report(&failures.into_iter().filter(|(breach, _)| !KNOWN.contains(breach)).collect())
}

fn report(failures: &BTreeMap<Breach, String>) -> Result<(), String> {
    let lines: Vec<_> =
        failures.iter().map(|((rule, what), text)| format!("{rule:?}: {what}\n    {text}")).collect();
    if lines.is_empty() { Ok(()) } else { Err(lines.join("\n")) }
}

/// Fails if the walks missed a situation. Fewer walks than `cargo test` makes are not checked.
fn missing(reached: &Reached, seeds: RangeInclusive<u64>) -> Result<(), String> {
    let missing = reached.missing();
    if missing.is_empty() || seeds.count() < SEEDS.count() {
        return Ok(());
    }
    Err(format!("these situations were never reached: {}", missing.join(", ")))
}

fn one(
    seed: u64,
    avoided: &[String],
    trace: bool,
    shrinks: bool,
    wanted: impl Fn(&Rule) -> bool,
) -> Result<(), String> {
    let base = Instant::now();
    let run = walk::of_seed(seed, base, avoided);
    let Some(breach) = run.broken.keys().copied().find(|(rule, _)| wanted(rule)) else {
        println!("seed {seed}: no rule was broken");
        return Ok(());
    };
    let lossy = walk::is_lossy(seed);
    let steps = if shrinks { walk::shorten(run.steps, breach, seed, lossy, base) } else { run.steps };
    let run = walk::of_steps(&steps, seed, lossy, true, base, trace);
    let lines: Vec<_> = run.broken.iter().map(|(breach, text)| format!("{breach:?}: {text}")).collect();
    Err(format!("seed {seed}: {}\n{}", walk::show(&steps), lines.join("\n")))
}

/// Totals over several walks.
#[derive(Debug, Default)]
struct Walked {
    runs: u64,
    steps: u64,
    reached: Reached,
    /// The seeds that break a rule in this way.
    broken: BTreeMap<Breach, Vec<(u64, String)>>,
    recorded: Recorded,
}

impl Walked {
    fn failures(&self, wanted: impl Fn(&Rule) -> bool) -> BTreeMap<Breach, String> {
        let mine = self.broken.iter().filter(|((rule, _), _)| wanted(rule));
        let line = |seeds: &[(u64, String)]| {
            let (seed, text) = &seeds[0];
            let again =
                format!("repeat it with: cargo test --test small_world -- --seed {seed} --shrink --trace");
            format!("seed {seed}, and {} others: {text}\n    {again}", seeds.len() - 1)
        };
        mine.map(|(breach, seeds)| (*breach, line(seeds))).collect()
    }

    fn print_table(&self, avoided: &[String]) {
        println!("{}", self.reached);
        for (breach, seeds) in &self.broken {
            let base = Instant::now();
            let seed = seeds[0].0;
            let steps = walk::of_seed(seed, base, avoided).steps;
            let steps = walk::shorten(steps, *breach, seed, walk::is_lossy(seed), base);
            println!(
                "{:?}: {}: {} seeds, first {seed}: {}",
                breach.0,
                breach.1,
                seeds.len(),
                walk::show(&steps)
            );
        }
    }
}

fn walk_all(seeds: RangeInclusive<u64>, avoided: &[String]) -> Walked {
    let base = Instant::now();
    let (next, all) = (AtomicU64::new(*seeds.start()), Mutex::new(Walked::default()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() {
                return;
            }
            let run = walk::of_seed(seed, base, avoided);
            let mut all = all.lock().unwrap();
            all.runs += 1;
            all.steps += run.steps.len() as u64;
            all.reached.add(&run.reached);
            if SEEDS.contains(&seed) {
                all.recorded.add(seed, run.digests);
            }
            for (breach, text) in run.broken {
                all.broken.entry(breach).or_default().push((seed, text));
            }
        }
    };
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    let mut all = all.into_inner().unwrap();
    all.broken.values_mut().for_each(|seeds| seeds.sort());
    all
}

/// Explores all schedules of so many steps from every start.
fn exhaust(depth: usize, time: Duration, avoided: &[String], fine: bool) -> Vec<(&'static str, Explored)> {
    let jobs = thread::available_parallelism().map_or(1, usize::from);
    let share = time / STARTS.len() as u32;
    let explore_one = |(name, start): &(&'static str, &[event::Event])| {
        let base = Instant::now();
        let explored = explore::explore(start, depth, jobs, base + share, base, avoided, fine);
        println!(
            "{name}: {} states, {} schedules, all of {} steps after the first {}, {:.1} s",
            explored.states,
            explored.schedules,
            explored.depth,
            start.len(),
            base.elapsed().as_secs_f64()
        );
        (*name, explored)
    };
    let all: Vec<_> = STARTS.iter().map(explore_one).collect();
    let mut reached = Reached::default();
    all.iter().for_each(|(_, it)| reached.add(&it.reached));
    println!(
        "{} states, {} schedules\n{reached}",
        all.iter().map(|(_, it)| it.states).sum::<usize>(),
        all.iter().map(|(_, it)| it.schedules).sum::<usize>()
    );
    all
}

/// The shortest schedule of each breach.
fn broken_in(explored: &[(&str, Explored)], wanted: impl Fn(&Rule) -> bool) -> BTreeMap<Breach, String> {
    let mut shortest: BTreeMap<Breach, (usize, String)> = BTreeMap::new();
    for (name, it) in explored {
        for (breach, (steps, text)) in it.broken.iter().filter(|((rule, _), _)| wanted(rule)) {
            let line = (steps.len(), format!("from {name}: {}: {text}", walk::show(steps)));
            let known = shortest.entry(*breach).or_insert_with(|| line.clone());
            if line.0 < known.0 {
                *known = line;
            }
        }
    }
    shortest.into_iter().map(|(breach, (_, text))| (breach, text)).collect()
}
