//! What schedules may have in addition: conditions that are drawn for themselves, each behind its name.

use crate::{
    random::Random,
    schedule::{Action, Actor, Behavior, Network, RequestedTool, STEADY, Schedule},
};

/// An addition to schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extra {
    /// Packets are refused again and again for want of room.
    Refusals,
    /// Some schedules have calls without a pause over a link that delays packets by chance, and lose a few packets.
    Steady,
    /// Some schedules have an app whose answers by RPC interleave.
    SlowAnswers,
}

impl Extra {
    pub(crate) const ALL: &[Self] = &[Self::Refusals, Self::Steady, Self::SlowAnswers];

    /// Returns the extra of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|extra| format!("{extra:?}").eq_ignore_ascii_case(name))
    }
}

impl Schedule {
    /// Draws the schedule of this seed, with these extras.
    pub(crate) fn with(seed: u64, extras: &[Extra]) -> Self {
        let mut schedule = Self::of(seed);
        let random = &mut Random::of(seed, &[22]);
        let drawn = random.below(100);
        if drawn < 5 && extras.contains(&Extra::Steady) {
            steady(random, &mut schedule);
        } else if (5..10).contains(&drawn) && extras.contains(&Extra::SlowAnswers) {
            slow_answers(random, &mut schedule);
        } else if (10..40).contains(&drawn) && extras.contains(&Extra::Refusals) {
            for _ in 0..random.between(1, 4) {
                let n = random.between(1, schedule.cast.clients.into()) as u8;
                let actor = random.pick(&[Actor::Assistant, Actor::Client(n)]);
                let (lasts, percent) = (random.pick(&[100, 1_000, 6_000]), random.pick(&[10, 50, 100]));
                let action = Action::RefusesPackets { actor, lasts, percent };
                schedule.actions.push((random.between(100, 16_000), action));
            }
        }
        schedule.actions.sort_by_key(|(at, _)| *at);
        schedule
    }
}

/// Removes everything but an assistant and a client that are undisturbed.
fn only_two(schedule: &mut Schedule) {
    schedule.network = Network { announcements: 50, ..Network::default() };
    let cast = &mut schedule.cast;
    (cast.clients, cast.plain_client, cast.plain_assistant, cast.basic_client) = (1, None, false, None);
    (cast.rate_limited, cast.consent, cast.app, cast.pings) = (false, false, None, false);
    schedule.actions = vec![(10, Action::Enters(Actor::Assistant)), (20, Action::Enters(Actor::Client(1)))];
}

fn steady(random: &mut Random, schedule: &mut Schedule) {
    only_two(schedule);
    // What is late shows no loss.
    (schedule.network.jitter, schedule.network.reordered) =
        (random.pick(&[0, 5, 20]), random.pick(&[2, 5, 10, 30]));
    (schedule.cast.lossy, schedule.cast.steady) = (true, true);
    let tool = RequestedTool::OfClient(1);
    let wait = random.pick(&[60, 110, 230]);
    for at in (4_000..STEADY).step_by(wait) {
        let call = Action::Calls {
            by: Actor::Assistant,
            tool,
            named: true,
            behavior: Behavior::Quick,
            limit: 5_000,
        };
        schedule.actions.push((at, call));
    }
    for _ in 0..random.between(1, 3) {
        let actor = random.pick(&[Actor::Assistant, Actor::Client(1)]);
        schedule.actions.push((random.between(7_000, 9_000), Action::LosesPacket(actor)));
    }
}

fn slow_answers(random: &mut Random, schedule: &mut Schedule) {
    only_two(schedule);
    (schedule.cast.app, schedule.cast.slow_answers) = (Some(random.pick(&[1, 2])), true);
    schedule.actions.push((30, Action::Enters(Actor::App)));
    for n in 0..random.between(3, 5) {
        let call = Action::Calls {
            by: Actor::Assistant,
            tool: RequestedTool::OfApp,
            named: true,
            behavior: Behavior::Quick,
            limit: 9_000,
        };
        schedule.actions.push((8_000 + 20 * n, call));
    }
}
