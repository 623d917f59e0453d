//! The shortest schedule that still breaks the same rule.

use std::time::Instant;

use crate::{
    rules::{Failure, Rule},
    schedule::{Act, Away, Cast, Schedule, Weather},
    world::run,
};

/// Leaves out everything that the failure does not need.
pub(crate) fn shrink(mut schedule: Schedule, failure: &Failure, base: Instant) -> Schedule {
    let breaks = |schedule: &Schedule, rule: Rule| {
        run(schedule, base, false).failure.is_some_and(|it| it.rule == rule)
    };
    for calmer in calmer(&schedule) {
        let less = Schedule { weather: calmer(&schedule.weather), ..schedule.clone() };
        if breaks(&less, failure.rule) {
            schedule = less;
        }
    }
    for simpler in simpler() {
        let less = Schedule { cast: simpler(&schedule.cast), ..schedule.clone() };
        if breaks(&less, failure.rule) {
            schedule = less;
        }
    }
    loop {
        let before = schedule.acts.len();
        for at in (0..before).rev() {
            let mut less = schedule.clone();
            less.acts.remove(at);
            // Calls are named by their number: what is about a later one keeps its call only by luck.
            if breaks(&less, failure.rule) {
                schedule = less;
            }
        }
        if schedule.acts.len() == before {
            return schedule;
        }
    }
}

type Calmer = fn(&Weather) -> Weather;

fn calmer(_: &Schedule) -> Vec<Calmer> {
    vec![
        |it| Weather { stalls: 0, ..it.clone() },
        |it| Weather { jitter: 0, ..it.clone() },
        |it| Weather { announcements: 50, ..it.clone() },
        |it| Weather { nameless: false, ..it.clone() },
        |it| Weather { slow_join: false, ..it.clone() },
        |it| Weather { away: Away::Swallowed, ..it.clone() },
        |it| Weather { halves_lost: 0, ..it.clone() },
        |it| Weather { lost: 0, ..it.clone() },
        |it| Weather { twice: 0, passed: 0, ..it.clone() },
        |it| Weather { crowded: false, ..it.clone() },
    ]
}

fn simpler() -> Vec<fn(&Cast) -> Cast> {
    vec![
        |it| Cast { plain_client: None, ..it.clone() },
        |it| Cast { plain_assistant: false, ..it.clone() },
        |it| Cast { configured: false, ..it.clone() },
        |it| Cast { rated: false, ..it.clone() },
        |it| Cast { fast: false, ..it.clone() },
        |it| Cast { streams: false, ..it.clone() },
        |it| Cast { old_client: None, ..it.clone() },
        |it| Cast { asks: false, ..it.clone() },
    ]
}

/// A schedule as a person reads it.
pub(crate) fn show(schedule: &Schedule) -> String {
    let acts: Vec<_> =
        schedule.acts.iter().map(|(at, act): &(u64, Act)| format!("{at:>6} ms  {act:?}")).collect();
    format!("{:?}\n{:?}\n{}", schedule.weather, schedule.cast, acts.join("\n"))
}
