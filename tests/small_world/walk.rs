//! Random schedules, and how they are repeated and shortened.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Instant,
};

use crate::{
    event::{Called, Event, Seat},
    random::Random,
    reach::Reached,
    recorded::{Digests, SEEDS},
    rules::{Breach, Broken, Rule},
    world::World,
};

/// What a run has broken and reached.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) steps: Vec<Event>,
    pub(crate) broken: Broken,
    pub(crate) reached: Reached,
    pub(crate) digests: Digests,
}

/// Runs the schedule of a seed: random steps, of those that are possible, and the end of all faults.
///
/// `avoided`: parts of the names of steps that are not drawn.
pub(crate) fn of_seed(seed: u64, base: Instant, avoided: &[String]) -> Run {
    let mut steps = Vec::new();
    let run = caught(&mut steps, |steps| {
        let mut random = Random::of(seed, &[1]);
        let mut world = World::new(base, seed, is_lossy(seed), false);
        if SEEDS.contains(&seed) {
            world.observe();
        }
        let begins: &[Event] = match random.below(4) {
            0 => &[],
            1 => &[Event::Enters(Seat::A)],
            _ => &[Event::Enters(Seat::Phone), Event::Enters(Seat::A)],
        };
        let count = random.between(10, 60);
        for at in 0..count as usize {
            let mut possible = world.possible();
            possible.retain(|event| !is_avoided(event, avoided));
            let event = begins.get(at).copied().unwrap_or_else(|| draw(&mut random, &possible));
            steps.push(event);
            world.step(event);
        }
        world.finish();
        world
    });
    Run { steps, ..run }
}

/// Seeds with odd numbers use the fast lane.
pub(crate) fn is_lossy(seed: u64) -> bool {
    !seed.is_multiple_of(2)
}

/// Whether the name of a step contains one of these texts.
pub(crate) fn is_avoided(event: &Event, avoided: &[String]) -> bool {
    !avoided.is_empty() && avoided.iter().any(|it| format!("{event:?}").contains(it))
}

fn draw(random: &mut Random, possible: &[Event]) -> Event {
    let all: u64 = possible.iter().map(weight).sum();
    let mut drawn = random.below(all);
    for event in possible {
        match drawn.checked_sub(weight(event)) {
            Some(rest) => drawn = rest,
            None => return *event,
        }
    }
    Event::Ticks
}

/// How often a step is drawn. What ends a situation is drawn less often than what needs it.
fn weight(event: &Event) -> u64 {
    match event {
        Event::Agrees | Event::GetsRole(_) => 12,
        Event::Ticks | Event::CallsByRpc(Seat::A, _) | Event::Calls(Seat::A, Called::Careful) => 6,
        Event::CallerEnters(_) | Event::StrangerActs | Event::StrangerCallsByRpc | Event::Returns(_) => 6,
        Event::Answers | Event::StrangerEnters { .. } | Event::Calls(..) | Event::Waits => 4,
        Event::LosesRole(_) | Event::SaysGoodbye(_) | Event::Refuses(_) | Event::Loses(_) => 1,
        Event::Mutes(_) | Event::Sleeps | Event::FailsAsUnknown => 1,
        Event::CallsByRpcWithUsedId(_) | Event::Cancels(_) | Event::Interrupts(_) => 1,
        _ => 3,
    }
}

/// Runs these steps.
pub(crate) fn of_steps(
    steps: &[Event],
    seed: u64,
    lossy: bool,
    finishes: bool,
    base: Instant,
    trace: bool,
) -> Run {
    caught(&mut steps.to_vec(), |steps| {
        let mut world = World::new(base, seed, lossy, trace);
        for event in steps.iter() {
            world.step(*event);
        }
        if finishes {
            world.finish();
        }
        world
    })
}

/// Runs the steps that [`show`] has written, each of which must be possible.
pub(crate) fn of_text(text: &str, lossy: bool, base: Instant) -> Result<Broken, String> {
    let mut world = World::new(base, 0, lossy, true);
    let mut rest = text;
    while !rest.is_empty() {
        let names = |event: &Event| {
            let left = rest.strip_prefix(&format!("{event:?}"))?;
            left.strip_prefix(", ").or_else(|| left.is_empty().then_some(left)).map(|left| (*event, left))
        };
        let (event, left) =
            world.possible().iter().find_map(names).ok_or_else(|| format!("not possible: {rest}"))?;
        rest = left;
        world.step(event);
    }
    world.finish();
    Ok(world.broken)
}

/// A panic breaks a rule.
fn caught(steps: &mut Vec<Event>, run: impl FnOnce(&mut Vec<Event>) -> World) -> Run {
    match catch_unwind(AssertUnwindSafe(|| run(steps))) {
        Ok(mut world) => {
            let digests = world.digests();
            Run { steps: steps.clone(), broken: world.broken, reached: world.reached, digests }
        }
        Err(_) => {
            let broken = [((Rule::Panic, "a panic"), "see above".to_owned())].into();
            Run { steps: steps.clone(), broken, ..Run::default() }
        }
    }
}

/// Removes the steps that a breach does not need.
pub(crate) fn shorten(
    mut steps: Vec<Event>,
    breach: Breach,
    seed: u64,
    lossy: bool,
    base: Instant,
) -> Vec<Event> {
    let breaks =
        |steps: &[Event]| of_steps(steps, seed, lossy, true, base, false).broken.contains_key(&breach);
    loop {
        let before = steps.len();
        for at in (0..before).rev() {
            let mut less = steps.clone();
            less.remove(at);
            if breaks(&less) {
                steps = less;
            }
        }
        if steps.len() == before {
            return steps;
        }
    }
}

/// Formats steps in one line.
pub(crate) fn show(steps: &[Event]) -> String {
    steps.iter().map(|step| format!("{step:?}")).collect::<Vec<_>>().join(", ")
}
