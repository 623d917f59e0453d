//! All schedules up to a depth, each state once.
//!
//! A session cannot be copied, so each schedule is run from its start. Two states are one if the rules cannot tell what
//! happened before them apart, and if each session shows the same assistant, tools and calls, and the same time to its next
//! deadline. With `--fine` all that `Debug` prints of a session must be equal, too, except for numbers.

use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use crate::{
    event::{Event, Seat, Token},
    reach::Reached,
    rules::Breach,
    walk,
    world::{Body, World},
};

/// Where the schedules begin: a name, and the steps so far.
pub(crate) const STARTS: &[(&str, &[Event])] = {
    use crate::event::Called::{Careful, Plain};
    const PHONE: Event = Event::Enters(Seat::Phone);
    const A: Event = Event::Enters(Seat::A);
    &[
        ("an empty room", &[]),
        ("bound", &[PHONE, A]),
        ("with a consent", &[PHONE, A, Event::Calls(Seat::A, Careful), Event::Agrees, Event::Answers]),
        ("with a call", &[PHONE, A, Event::Calls(Seat::A, Plain)]),
        ("with a call by RPC", &[PHONE, Event::CallerEnters(Seat::A), Event::CallsByRpc(Seat::A, Plain)]),
        ("with a view", &[PHONE, A, Event::Shows(Seat::A)]),
        ("with two assistants", &[PHONE, A, Event::Enters(Seat::B)]),
        (
            "with stolen instances",
            &[
                PHONE,
                A,
                Event::Drops(Seat::Phone),
                Event::StrangerEnters { seat: Seat::Phone, token: Token::NoRole, announced: false },
                Event::StrangerLeaves,
                Event::Returns(Seat::Phone),
                Event::Drops(Seat::A),
                Event::StrangerEnters { seat: Seat::A, token: Token::NoRole, announced: false },
                Event::StrangerLeaves,
                Event::Returns(Seat::A),
            ],
        ),
    ]
};

/// What the exploration of one start has found.
#[derive(Debug, Default)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    /// Schedules that were run, and steps in them.
    pub(crate) schedules: usize,
    /// The depth that is complete.
    pub(crate) depth: usize,
    /// The shortest schedule of each breach.
    pub(crate) broken: BTreeMap<Breach, (Vec<Event>, String)>,
    pub(crate) reached: Reached,
}

/// Explores all schedules of so many steps from this start, or until the time is over.
pub(crate) fn explore(
    start: &[Event],
    depth: usize,
    jobs: usize,
    until: Instant,
    base: Instant,
    avoided: &[String],
    fine: bool,
) -> Explored {
    let mut all = Explored::default();
    let mut known: HashSet<u64> = HashSet::new();
    let root = walk_to(start, base);
    known.insert(digest(&root, fine));
    let mut frontier: Vec<(Vec<Event>, Vec<Event>)> = vec![(start.to_vec(), root.possible())];
    for level in 1..=depth {
        let found = Mutex::new(BTreeMap::<u64, (Vec<Event>, Vec<Event>)>::new());
        let (next, broken) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let ran = AtomicUsize::new(0);
        let expand = || {
            loop {
                let Some((steps, possible)) = frontier.get(next.fetch_add(1, Ordering::Relaxed)) else {
                    return;
                };
                for event in possible.iter().filter(|event| !walk::is_avoided(event, avoided)) {
                    if Instant::now() > until {
                        return;
                    }
                    let mut steps = steps.clone();
                    steps.push(*event);
                    ran.fetch_add(1, Ordering::Relaxed);
                    let mut world = walk_to(&steps, base);
                    let digest = digest(&world, fine);
                    if !known.contains(&digest) {
                        let mut found = found.lock().unwrap();
                        let is_new = found.get(&digest).is_none_or(|(known, _)| steps < *known);
                        if is_new {
                            found.insert(digest, (steps.clone(), world.possible()));
                        }
                        drop(found);
                    }
                    if !world.broken.is_empty() {
                        broken.lock().unwrap().push((
                            steps,
                            std::mem::take(&mut world.broken),
                            Reached::default(),
                        ));
                    }
                }
            }
        };
        thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(expand))));
        all.schedules += ran.into_inner();
        let found = found.into_inner().unwrap();
        known.extend(found.keys());
        frontier = found.into_values().collect();
        // Each new state is run to the end of its faults.
        let next = AtomicUsize::new(0);
        let finish = || {
            while let Some((steps, _)) = frontier.get(next.fetch_add(1, Ordering::Relaxed)) {
                if Instant::now() > until {
                    return;
                }
                let run = walk::of_steps(steps, SEED, LOSSY, true, base, false);
                broken.lock().unwrap().push((steps.clone(), run.broken, run.reached));
            }
        };
        thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(finish))));
        let mut broken = broken.into_inner().unwrap();
        broken.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        for (steps, breaches, reached) in broken {
            all.reached.add(&reached);
            for (breach, text) in breaches {
                all.broken.entry(breach).or_insert_with(|| (steps.clone(), text));
            }
        }
        all.states = known.len();
        if Instant::now() > until {
            break;
        }
        all.depth = level;
    }
    all
}

const SEED: u64 = 1;
const LOSSY: bool = false;

fn walk_to(steps: &[Event], base: Instant) -> World {
    let mut world = World::new(base, SEED, LOSSY, false);
    for event in steps {
        world.step(*event);
    }
    world
}

/// Hashes what may matter for the future: what happened, and what each session shows.
fn digest(world: &World, fine: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    world.outline(&mut hasher);
    for (seat, program) in world.programs.iter().filter(|it| !it.is_over).map(|it| (it.seat, it)) {
        let Body::Session(session) = &program.body else { continue };
        seat.hash(&mut hasher);
        let wait = session.poll_timeout().map(|at| at.saturating_duration_since(world.now));
        wait.map(|wait| wait.as_millis() / 100).hash(&mut hasher);
        session.bound().hash(&mut hasher);
        (session.open_calls(), session.open_jobs(), session.is_drained()).hash(&mut hasher);
        for offer in session.tools() {
            (offer.owner.as_str(), offer.tool.name().as_str(), offer.reach.is_some()).hash(&mut hasher);
        }
        for other in Seat::ALL {
            let ready = session.readiness(&other.name().into());
            std::mem::discriminant(&ready).hash(&mut hasher);
        }
        if fine {
            shape(&format!("{session:?}"), &mut hasher);
        }
    }
    hasher.finish()
}

/// Hashes a text without its digits, its counters, and texts that look like ids.
fn shape(text: &str, hasher: &mut DefaultHasher) {
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("stats: {") {
        shape_of(before, hasher);
        rest = after.split_once('}').map_or("", |(_, after)| after);
    }
    shape_of(rest, hasher);
}

fn shape_of(text: &str, hasher: &mut DefaultHasher) {
    let mut quoted = text.split('"');
    while let Some(plain) = quoted.next() {
        for byte in plain.bytes().filter(|byte| !byte.is_ascii_digit()) {
            hasher.write_u8(byte);
        }
        if let Some(text) = quoted.next().filter(|text| text.len() < 12 && !text.starts_with("PA_")) {
            hasher.write(text.as_bytes());
        }
    }
}

/// Time that a shallow exploration may take. It is never reached unless a session hangs.
pub(crate) const LONGEST: Duration = Duration::from_secs(3_600);
