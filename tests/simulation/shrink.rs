//! Shrinks a schedule to one that still breaks the same rule.

use std::time::Instant;

use crate::{
    rules::{Failure, Rule},
    schedule::{Action, Cast, Network, Offline, Schedule},
    world::run,
};

/// Removes everything from the schedule that the failure does not need.
pub(crate) fn shrink(mut schedule: Schedule, failure: &Failure, base: Instant) -> Schedule {
    let breaks = |schedule: &Schedule, rule: Rule| {
        run(schedule, base, false).failure.is_some_and(|it| it.rule == rule)
    };
    for calmer in calmer(&schedule) {
        let less = Schedule { network: calmer(&schedule.network), ..schedule.clone() };
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
        let before = schedule.actions.len();
        for at in (0..before).rev() {
            let mut less = schedule.clone();
            less.actions.remove(at);
            // Actions name calls by number, so that removing a call changes which call later actions mean.
            if breaks(&less, failure.rule) {
                schedule = less;
            }
        }
        if schedule.actions.len() == before {
            return schedule;
        }
    }
}

type Calmer = fn(&Network) -> Network;

fn calmer(_: &Schedule) -> Vec<Calmer> {
    vec![
        |it| Network { stalls: 0, ..it.clone() },
        |it| Network { jitter: 0, ..it.clone() },
        |it| Network { announcements: 50, ..it.clone() },
        |it| Network { unknown_senders: false, ..it.clone() },
        |it| Network { slow_join: false, ..it.clone() },
        |it| Network { offline: Offline::Lost, ..it.clone() },
        |it| Network { configurations_lost: 0, ..it.clone() },
        |it| Network { lost: 0, ..it.clone() },
        |it| Network { duplicated: 0, reordered: 0, ..it.clone() },
        |it| Network { backlog: false, ..it.clone() },
    ]
}

fn simpler() -> Vec<fn(&Cast) -> Cast> {
    vec![
        |it| Cast { plain_client: None, ..it.clone() },
        |it| Cast { plain_assistant: false, ..it.clone() },
        |it| Cast { configured: false, ..it.clone() },
        |it| Cast { rate_limited: false, ..it.clone() },
        |it| Cast { lossy: false, ..it.clone() },
        |it| Cast { streams: false, ..it.clone() },
        |it| Cast { basic_client: None, ..it.clone() },
        |it| Cast { consent: false, ..it.clone() },
    ]
}

/// Formats a schedule for reading.
pub(crate) fn show(schedule: &Schedule) -> String {
    let actions: Vec<_> = schedule
        .actions
        .iter()
        .map(|(at, action): &(u64, Action)| format!("{at:>6} ms  {action:?}"))
        .collect();
    format!("{:?}\n{:?}\n{}", schedule.network, schedule.cast, actions.join("\n"))
}
