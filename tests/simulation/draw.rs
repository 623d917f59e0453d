//! Draws a schedule from a seed: the setup, the network conditions and the actions.

use crate::{
    random::Random,
    schedule::{Action, Actor, Behavior, Cast, Forgery, Ms, Network, Offline, RequestedTool, Schedule},
};

impl Schedule {
    /// Draws the schedule of this seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::of(seed, &[1]);
        let random = &mut random;
        let mut network = Network {
            configurations_lost: 0,
            jitter: random.pick(&[0, 5, 60, 60, 300]),
            stalls: random.pick(&[0, 0, 0, 3, 15]),
            announcements: random.pick(&[50, 50, 800, 3_000]),
            unknown_senders: random.percent(40),
            slow_join: random.percent(15),
            offline: random.pick(&[Offline::Lost, Offline::Lost, Offline::Closed, Offline::Interrupted]),
            lost: random.pick(&[0, 5, 30, 100]),
            duplicated: random.pick(&[0, 10, 40]),
            reordered: random.pick(&[0, 10, 40]),
            backlog: random.percent(40),
        };
        let clients = random.pick(&[1, 1, 2, 2, 3, 4]);
        let mut cast = Cast {
            clients,
            plain_client: random.percent(25).then(|| random.between(1, u64::from(clients)) as u8),
            plain_assistant: random.percent(8),
            configured: random.percent(30),
            rate_limited: random.percent(25),
            lossy: random.percent(60),
            streams: random.percent(50),
            basic_client: random.percent(15).then(|| random.between(1, u64::from(clients)) as u8),
            consent: random.percent(50),
            app: None,
            pings: false,
            slow_answers: false,
            steady: false,
        };
        let mut actions = Vec::new();
        entrances(random, clients, &mut actions);
        calls(random, clients, &mut actions);
        disturbances(random, clients, &mut actions);
        forgeries(random, clients, &mut actions);
        if random.percent(25) {
            signaling_outage(random, clients, &mut actions);
        }
        // Later additions draw from their own random numbers, so that they do not change the rest of the schedule.
        let random = &mut Random::of(seed, &[13]);
        network.configurations_lost = random.pick(&[0, 0, 0, 30]);
        special(random, &cast, &mut actions);
        let random = &mut Random::of(seed, &[15]);
        if random.percent(30) && !cast.plain_assistant {
            app(random, &mut cast, &mut actions);
        }
        actions.sort_by_key(|(at, _)| *at);
        Self { seed, network, cast, actions, without: Vec::new() }
    }
}

fn entrances(random: &mut Random, clients: u8, actions: &mut Vec<(Ms, Action)>) {
    let when = |random: &mut Random| if random.percent(50) { random.below(20) } else { random.below(4_000) };
    actions.push((when(random), Action::Enters(Actor::Assistant)));
    for n in 1..=clients {
        actions.push((when(random), Action::Enters(Actor::Client(n))));
    }
    if random.percent(30) {
        actions.push((random.below(3_000), Action::Enters(Actor::Observer)));
    }
    if random.percent(12) {
        actions.push((random.below(9_000), Action::Enters(Actor::SecondAssistant)));
    }
}

fn calls(random: &mut Random, clients: u8, actions: &mut Vec<(Ms, Action)>) {
    for _ in 0..random.between(1, 10) {
        let at = random.between(100, 16_000);
        actions.push((at, call(random, clients)));
    }
    if random.percent(30) {
        let (at, to, named) =
            (random.between(4_000, 9_000), random.between(1, clients.into()) as u8, random.percent(50));
        for n in 0..random.between(6, 14) {
            let behavior = random.pick(&[Behavior::Quick, Behavior::Quick, Behavior::Slow, Behavior::Huge]);
            let limit = random.pick(&[4_000, 60_000]);
            let call = Action::Calls {
                by: Actor::Assistant,
                tool: RequestedTool::OfClient(to),
                named,
                behavior,
                limit,
            };
            actions.push((at + n * 15, call));
        }
        if random.percent(50) {
            let actor = random.pick(&[Actor::Assistant, Actor::Client(to)]);
            actions.push((
                at + random.below(600),
                Action::Rejoins { actor, after: random.pick(&[30, 100, 800]) },
            ));
        }
    }
    for _ in 0..random.below(5) {
        let (at, number) = (random.between(500, 16_000), random.below(10) as usize);
        let action = match random.below(5) {
            0 => Action::BargesIn(Actor::Assistant),
            1 => Action::Detaches(number),
            _ => Action::Cancels(number),
        };
        actions.push((at, action));
    }
}

fn call(random: &mut Random, clients: u8) -> Action {
    let client = random.between(1, clients.into()) as u8;
    let tool = match random.below(20) {
        0 | 1 => RequestedTool::Shared,
        2 => RequestedTool::AssistantOnly,
        3 => RequestedTool::Idempotent,
        6..9 => RequestedTool::Either,
        4 => random.pick(&[RequestedTool::Unknown, RequestedTool::Prompt(client)]),
        9 | 10 => random.pick(&[RequestedTool::ConsentOnce, RequestedTool::ConsentEachTime]),
        5 => RequestedTool::Echo(client),
        _ => RequestedTool::OfClient(client),
    };
    let behavior = match random.below(20) {
        0..7 => Behavior::Quick,
        7 => Behavior::Fails,
        8 | 9 => Behavior::Slow,
        10 => Behavior::Long,
        11 | 12 => Behavior::Hangs,
        n => Behavior::ALL[n as usize - 9],
    };
    let by = if random.percent(6) { Actor::SecondAssistant } else { Actor::Assistant };
    // Tools that a barge-in may leave running need a timeout that ends within the run.
    let longest = if let RequestedTool::Shared | RequestedTool::AssistantOnly | RequestedTool::Either = tool {
        9_000
    } else {
        60_000
    };
    let limit = random.pick(&[1_500, 4_000, 9_000, longest, longest]);
    Action::Calls { by, tool, named: random.percent(50), behavior, limit }
}

fn disturbances(random: &mut Random, clients: u8, actions: &mut Vec<(Ms, Action)>) {
    for _ in 0..random.below(5) {
        let at = random.between(500, 16_000);
        let actor = assistant_or_client(random, clients);
        let action = match random.below(12) {
            0..3 => Action::Rejoins { actor, after: random.pick(&[30, 100, 800, 3_500, 7_000]) },
            3 | 4 => {
                let lasts = random.pick(&[300, 800, 2_500, 7_000]);
                Action::Outage { actor, lasts, reported: lasts > 800 && random.percent(60) }
            }
            5 | 6 => Action::Killed { actor, replaced_after: random.pick(&[50, 1_500, 7_000]) },
            7 => Action::TakenOver(actor),
            8 | 9 => Action::Leaves { actor, replaced_after: random.pick(&[30, 400, 3_000, 7_000]) },
            10 if actor != Actor::Assistant => Action::ChangesTools(actor),
            _ => Action::Rejoins { actor, after: random.pick(&[30, 100, 800]) },
        };
        actions.push((at, action));
    }
    if random.percent(5) {
        actions.push((random.between(500, 16_000), Action::Drains(Actor::Client(1))));
    }
}

/// Joins and leaves are not announced to one participant, while another one rejoins.
fn signaling_outage(random: &mut Random, clients: u8, actions: &mut Vec<(Ms, Action)>) {
    // After the last first join: the others could not know such a participant.
    let at = random.between(8_000, 10_000);
    let lasts = random.pick(&[2_500, 7_000, 10_000]);
    let actor = assistant_or_client(random, clients);
    let client = match actor {
        Actor::Client(n) => n,
        _ => random.between(1, clients.into()) as u8,
    };
    let other = if actor == Actor::Assistant { Actor::Client(client) } else { Actor::Assistant };
    actions.push((at, Action::SignalingDown { actor, lasts }));
    actions.push((
        at + random.below(1_000),
        Action::Rejoins { actor: other, after: random.pick(&[30, 100, 800]) },
    ));
    for _ in 0..random.below(3) {
        let (behavior, named) =
            (random.pick(&[Behavior::Quick, Behavior::Quick, Behavior::Slow]), random.percent(50));
        let call = Action::Calls {
            by: Actor::Assistant,
            tool: RequestedTool::OfClient(client),
            named,
            behavior,
            limit: 60_000,
        };
        actions.push((at + random.below(8_000), call));
    }
}

/// The assistant or a client.
fn assistant_or_client(random: &mut Random, clients: u8) -> Actor {
    match random.below(u64::from(clients) + 1) {
        0 => Actor::Assistant,
        n => Actor::Client(n as u8),
    }
}

fn forgeries(random: &mut Random, clients: u8, actions: &mut Vec<(Ms, Action)>) {
    if !random.percent(25) {
        return;
    }
    actions.push((random.below(2_000), Action::Enters(Actor::Stranger)));
    for _ in 0..random.between(2, 14) {
        let to = assistant_or_client(random, clients);
        let what = random.pick(Forgery::ALL);
        let action = Action::Forges { what, to, about: random.below(10) as usize, dice: random.next() };
        actions.push((random.between(500, 16_000), action));
    }
}

/// Adds a situation that would otherwise be too rare.
fn special(random: &mut Random, cast: &Cast, actions: &mut Vec<(Ms, Action)>) {
    let client = random.between(1, cast.clients.into()) as u8;
    let at = random.between(5_000, 13_000);
    let call =
        |tool, behavior| Action::Calls { by: Actor::Assistant, tool, named: true, behavior, limit: 60_000 };
    match random.below(24) {
        0 | 1 => resent_call(random, at, actions),
        2 | 3 => {
            let (actor, taken) = (assistant_or_client(random, cast.clients), random.pick(&[30, 400, 1_500]));
            actions.push((
                at,
                call(
                    RequestedTool::OfClient(client),
                    random.pick(&[Behavior::Slow, Behavior::Long, Behavior::Hangs]),
                ),
            ));
            actions
                .push((at, call(RequestedTool::Idempotent, random.pick(&[Behavior::Slow, Behavior::Long]))));
            let back = taken + random.pick(&[300, 1_500, 4_000]);
            actions.push((at + random.between(50, 900), Action::Returns { actor, taken, back }));
        }
        4..8 if cast.consent => {
            let tool = random.pick(&[
                RequestedTool::ConsentOnce,
                RequestedTool::ConsentOnce,
                RequestedTool::ConsentEachTime,
            ]);
            for n in 0..random.between(1, 3) {
                actions.push((at + n * 1_200, call(tool, Behavior::Quick)));
            }
            actions.push((at + random.between(100, 3_000), Action::ChangesTools(Actor::Client(1))));
        }
        8 | 9 => {
            for n in 0..random.between(2, 5) {
                actions.push((at + n * 10, call(RequestedTool::OfClient(client), Behavior::HugeRequest)));
            }
            if random.percent(50) {
                actions.push((at + random.between(10, 200), Action::BargesIn(Actor::Assistant)));
                actions.push((at + 210, call(RequestedTool::OfClient(client), Behavior::HugeRequest)));
            }
        }
        10..13 => {
            for n in 1..=cast.clients {
                for _ in 0..random.between(1, 2) {
                    actions.push((at + random.below(40), call(RequestedTool::OfClient(n), Behavior::Huge)));
                }
            }
            if random.percent(50) {
                let actor = Actor::Client(client);
                actions
                    .push((at + random.between(70, 300), Action::Killed { actor, replaced_after: 12_000 }));
            }
        }
        13 | 14 => {
            let from = assistant_or_client(random, cast.clients);
            let to = if from == Actor::Assistant { Actor::Client(client) } else { Actor::Assistant };
            for request in [random.percent(50), random.percent(50)] {
                let when = at + random.below(2_000);
                actions.push((
                    when,
                    Action::NamesOtherRoom { from, to, request: request && from == Actor::Assistant },
                ));
            }
            actions.push((at, call(RequestedTool::OfClient(client), Behavior::Slow)));
        }
        15..18 => {
            let plain = cast.plain_client.unwrap_or(client);
            let actor = if cast.plain_assistant { Actor::Assistant } else { Actor::Client(plain) };
            actions.push((
                at,
                call(RequestedTool::OfClient(plain), random.pick(&[Behavior::Quick, Behavior::Slow])),
            ));
            let after = random.pick(&[30, 100, 800, 3_500]);
            actions.push((at + random.between(10, 2_000), Action::Rejoins { actor, after }));
        }
        18..21 => {
            let actor = assistant_or_client(random, cast.clients);
            let replaced_after = random.pick(&[3_000, 7_000]);
            actions.push((
                at,
                match random.percent(50) {
                    true => Action::Leaves { actor, replaced_after },
                    false => Action::Killed { actor, replaced_after },
                },
            ));
            for _ in 0..random.between(1, 4) {
                let dice = random.next();
                actions.push((at + random.below(7_000), Action::Impersonated { actor, dice }));
            }
        }
        _ => {}
    }
}

/// Adds an app that is called by RPC.
fn app(random: &mut Random, cast: &mut Cast, actions: &mut Vec<(Ms, Action)>) {
    cast.app = Some(random.pick(&[0, 1, 2]));
    cast.pings = random.percent(70);
    actions.push((random.below(3_000), Action::Enters(Actor::App)));
    for _ in 0..random.between(2, 8) {
        let behavior = random.pick(&[
            Behavior::Quick,
            Behavior::Quick,
            Behavior::Quick,
            Behavior::Slow,
            Behavior::Long,
            Behavior::Fails,
            Behavior::Panics,
            Behavior::Hangs,
            Behavior::BadArguments,
            Behavior::FailsAsBusy,
        ]);
        let (by, tool, named) = (Actor::Assistant, RequestedTool::OfApp, random.percent(50));
        // A call that ends without an answer counts as open until its time is up: that must be before the probes.
        let limit = random.pick(&[1_500, 4_000, 9_000, 19_000]);
        actions.push((random.between(500, 16_000), Action::Calls { by, tool, named, behavior, limit }));
    }
    for _ in 0..random.below(3) {
        let (at, actor) = (random.between(1_000, 16_000), Actor::App);
        let action = match random.below(5) {
            0 | 1 => Action::Rejoins { actor, after: random.pick(&[30, 100, 800, 3_500, 7_000]) },
            2 => Action::Outage { actor, lasts: random.pick(&[300, 2_500, 7_000]), reported: false },
            _ => Action::Killed { actor, replaced_after: random.pick(&[50, 1_500, 12_000, 12_000]) },
        };
        actions.push((at, action));
    }
    if random.percent(40) {
        let after = random.pick(&[30, 800, 3_500]);
        actions.push((random.between(1_000, 16_000), Action::Rejoins { actor: Actor::Assistant, after }));
    }
    if actions.iter().any(|(_, action)| *action == Action::Enters(Actor::Stranger)) {
        for _ in 0..random.between(2, 14) {
            let (about, dice) = (random.below(20) as usize, random.next());
            actions.push((random.between(500, 16_000), Action::ForgesAnswer { about, dice }));
        }
    }
}

/// Calls an idempotent tool in a process that is replaced before the tool returns.
fn resent_call(random: &mut Random, at: Ms, actions: &mut Vec<(Ms, Action)>) {
    let behavior = random.pick(&[Behavior::Quick, Behavior::Slow, Behavior::Slow, Behavior::Long]);
    actions.push((
        at,
        Action::Calls {
            by: Actor::Assistant,
            tool: RequestedTool::Idempotent,
            named: random.percent(50),
            behavior,
            limit: 60_000,
        },
    ));
    let (actor, replaced_after) = (Actor::Client(1), random.pick(&[50, 400, 1_500]));
    let action = random.pick(&[
        Action::Killed { actor, replaced_after },
        Action::Killed { actor, replaced_after },
        Action::TakenOver(actor),
    ]);
    actions.push((at + random.between(5, 3_000), action));
}
