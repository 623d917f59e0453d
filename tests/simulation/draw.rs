//! The run of a seed: the cast, the weather and the acts, all drawn from it.

use crate::{
    random::Random,
    schedule::{Act, Away, Cast, Forgery, How, Ms, Schedule, Wanted, Weather, Who},
};

impl Schedule {
    /// The run of this seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::of(seed, &[1]);
        let random = &mut random;
        let mut weather = Weather {
            halves_lost: 0,
            jitter: random.pick(&[0, 5, 60, 60, 300]),
            stalls: random.pick(&[0, 0, 0, 3, 15]),
            announcements: random.pick(&[50, 50, 800, 3_000]),
            nameless: random.percent(40),
            slow_join: random.percent(15),
            away: random.pick(&[Away::Swallowed, Away::Swallowed, Away::Closed, Away::GivenBack]),
            lost: random.pick(&[0, 5, 30, 100]),
            twice: random.pick(&[0, 10, 40]),
            passed: random.pick(&[0, 10, 40]),
            crowded: random.percent(40),
        };
        let clients = random.pick(&[1, 1, 2, 2, 3, 4]);
        let cast = Cast {
            clients,
            plain_client: random.percent(25).then(|| random.between(1, u64::from(clients)) as u8),
            plain_assistant: random.percent(8),
            configured: random.percent(30),
            rated: random.percent(25),
            fast: random.percent(60),
            streams: random.percent(50),
            old_client: random.percent(15).then(|| random.between(1, u64::from(clients)) as u8),
            asks: random.percent(50),
        };
        let mut acts = Vec::new();
        entrances(random, clients, &mut acts);
        calls(random, clients, &mut acts);
        disturbances(random, clients, &mut acts);
        forgeries(random, clients, &mut acts);
        if random.percent(25) {
            deafness(random, clients, &mut acts);
        }
        // What was added later has dice of its own: no other run changes by it.
        let random = &mut Random::of(seed, &[13]);
        weather.halves_lost = random.pick(&[0, 0, 0, 30]);
        special(random, &cast, &mut acts);
        acts.sort_by_key(|(at, _)| *at);
        Self { seed, weather, cast, acts }
    }
}

fn entrances(random: &mut Random, clients: u8, acts: &mut Vec<(Ms, Act)>) {
    let when = |random: &mut Random| if random.percent(50) { random.below(20) } else { random.below(4_000) };
    acts.push((when(random), Act::Enters(Who::A)));
    for n in 1..=clients {
        acts.push((when(random), Act::Enters(Who::C(n))));
    }
    if random.percent(30) {
        acts.push((random.below(3_000), Act::Enters(Who::O)));
    }
    if random.percent(12) {
        acts.push((random.below(9_000), Act::Enters(Who::B)));
    }
}

fn calls(random: &mut Random, clients: u8, acts: &mut Vec<(Ms, Act)>) {
    for _ in 0..random.between(1, 10) {
        let at = random.between(100, 16_000);
        acts.push((at, ask(random, clients)));
    }
    if random.percent(30) {
        let (at, to, named) =
            (random.between(4_000, 9_000), random.between(1, clients.into()) as u8, random.percent(50));
        for n in 0..random.between(6, 14) {
            let how = random.pick(&[How::Quick, How::Quick, How::Slow, How::Huge]);
            let limit = random.pick(&[4_000, 60_000]);
            let ask = Act::Asks { by: Who::A, tool: Wanted::Of(to), named, how, limit };
            acts.push((at + n * 15, ask));
        }
        if random.percent(50) {
            let who = random.pick(&[Who::A, Who::C(to)]);
            acts.push((at + random.below(600), Act::Rejoins { who, after: random.pick(&[30, 100, 800]) }));
        }
    }
    for _ in 0..random.below(5) {
        let (at, number) = (random.between(500, 16_000), random.below(10) as usize);
        let act = match random.below(5) {
            0 => Act::BargesIn(Who::A),
            1 => Act::Detaches(number),
            _ => Act::Cancels(number),
        };
        acts.push((at, act));
    }
}

fn ask(random: &mut Random, clients: u8) -> Act {
    let client = random.between(1, clients.into()) as u8;
    let tool = match random.below(20) {
        0 | 1 => Wanted::Shared,
        2 => Wanted::Own,
        3 => Wanted::Again,
        6..9 => Wanted::Either,
        4 => random.pick(&[Wanted::Nobodys, Wanted::Prompt(client)]),
        9 | 10 => random.pick(&[Wanted::Careful, Wanted::Grave]),
        5 => Wanted::Echo(client),
        _ => Wanted::Of(client),
    };
    let how = match random.below(20) {
        0..7 => How::Quick,
        7 => How::Fails,
        8 | 9 => How::Slow,
        10 => How::Long,
        11 | 12 => How::Hangs,
        n => How::ALL[n as usize - 9],
    };
    let by = if random.percent(6) { Who::B } else { Who::A };
    // What a barge-in may leave running ends in time.
    let longest = if let Wanted::Shared | Wanted::Own | Wanted::Either = tool { 9_000 } else { 60_000 };
    let limit = random.pick(&[1_500, 4_000, 9_000, longest, longest]);
    Act::Asks { by, tool, named: random.percent(50), how, limit }
}

fn disturbances(random: &mut Random, clients: u8, acts: &mut Vec<(Ms, Act)>) {
    for _ in 0..random.below(5) {
        let at = random.between(500, 16_000);
        let who = somebody(random, clients);
        let act = match random.below(12) {
            0..3 => Act::Rejoins { who, after: random.pick(&[30, 100, 800, 3_500, 7_000]) },
            3 | 4 => {
                let lasts = random.pick(&[300, 800, 2_500, 7_000]);
                Act::Gap { who, lasts, told: lasts > 800 && random.percent(60) }
            }
            5 | 6 => Act::Killed { who, again: random.pick(&[50, 1_500, 7_000]) },
            7 => Act::TakenOver(who),
            8 | 9 => Act::Leaves { who, again: random.pick(&[30, 400, 3_000, 7_000]) },
            10 if who != Who::A => Act::Offers(who),
            _ => Act::Rejoins { who, after: random.pick(&[30, 100, 800]) },
        };
        acts.push((at, act));
    }
    if random.percent(5) {
        acts.push((random.between(500, 16_000), Act::Drains(Who::C(1))));
    }
}

/// Somebody does not hear who comes or goes, and others do both meanwhile.
fn deafness(random: &mut Random, clients: u8, acts: &mut Vec<(Ms, Act)>) {
    // Later than the last who comes for the first time: of him nobody could know anything.
    let at = random.between(8_000, 10_000);
    let lasts = random.pick(&[2_500, 7_000, 10_000]);
    let who = somebody(random, clients);
    let client = match who {
        Who::C(n) => n,
        _ => random.between(1, clients.into()) as u8,
    };
    let other = if who == Who::A { Who::C(client) } else { Who::A };
    acts.push((at, Act::Deaf { who, lasts }));
    acts.push((at + random.below(1_000), Act::Rejoins { who: other, after: random.pick(&[30, 100, 800]) }));
    for _ in 0..random.below(3) {
        let (how, named) = (random.pick(&[How::Quick, How::Quick, How::Slow]), random.percent(50));
        let ask = Act::Asks { by: Who::A, tool: Wanted::Of(client), named, how, limit: 60_000 };
        acts.push((at + random.below(8_000), ask));
    }
}

/// The assistant or a client.
fn somebody(random: &mut Random, clients: u8) -> Who {
    match random.below(u64::from(clients) + 1) {
        0 => Who::A,
        n => Who::C(n as u8),
    }
}

fn forgeries(random: &mut Random, clients: u8, acts: &mut Vec<(Ms, Act)>) {
    if !random.percent(25) {
        return;
    }
    acts.push((random.below(2_000), Act::Enters(Who::X)));
    for _ in 0..random.between(2, 14) {
        let to = somebody(random, clients);
        let what = random.pick(Forgery::ALL);
        let act = Act::Forges { what, to, about: random.below(10) as usize, dice: random.next() };
        acts.push((random.between(500, 16_000), act));
    }
}

/// Situations that chance alone brings about too rarely.
fn special(random: &mut Random, cast: &Cast, acts: &mut Vec<(Ms, Act)>) {
    let client = random.between(1, cast.clients.into()) as u8;
    let at = random.between(5_000, 13_000);
    let asks = |tool, how| Act::Asks { by: Who::A, tool, named: true, how, limit: 60_000 };
    match random.below(24) {
        0 | 1 => asked_again(random, at, acts),
        2 | 3 => {
            let (who, taken) = (somebody(random, cast.clients), random.pick(&[30, 400, 1_500]));
            acts.push((at, asks(Wanted::Of(client), random.pick(&[How::Slow, How::Long, How::Hangs]))));
            acts.push((at, asks(Wanted::Again, random.pick(&[How::Slow, How::Long]))));
            let back = taken + random.pick(&[300, 1_500, 4_000]);
            acts.push((at + random.between(50, 900), Act::Returns { who, taken, back }));
        }
        4..8 if cast.asks => {
            let tool = random.pick(&[Wanted::Careful, Wanted::Careful, Wanted::Grave]);
            for n in 0..random.between(1, 3) {
                acts.push((at + n * 1_200, asks(tool, How::Quick)));
            }
            acts.push((at + random.between(100, 3_000), Act::Offers(Who::C(1))));
        }
        8 | 9 => {
            for n in 0..random.between(2, 5) {
                acts.push((at + n * 10, asks(Wanted::Of(client), How::HugeRequest)));
            }
            if random.percent(50) {
                acts.push((at + random.between(10, 200), Act::BargesIn(Who::A)));
                acts.push((at + 210, asks(Wanted::Of(client), How::HugeRequest)));
            }
        }
        10..13 => {
            for n in 1..=cast.clients {
                for _ in 0..random.between(1, 2) {
                    acts.push((at + random.below(40), asks(Wanted::Of(n), How::Huge)));
                }
            }
            if random.percent(50) {
                let who = Who::C(client);
                acts.push((at + random.between(70, 300), Act::Killed { who, again: 12_000 }));
            }
        }
        13 | 14 => {
            let from = somebody(random, cast.clients);
            let to = if from == Who::A { Who::C(client) } else { Who::A };
            for request in [random.percent(50), random.percent(50)] {
                let when = at + random.below(2_000);
                acts.push((when, Act::FromElsewhere { from, to, request: request && from == Who::A }));
            }
            acts.push((at, asks(Wanted::Of(client), How::Slow)));
        }
        15..18 => {
            let plain = cast.plain_client.unwrap_or(client);
            let who = if cast.plain_assistant { Who::A } else { Who::C(plain) };
            acts.push((at, asks(Wanted::Of(plain), random.pick(&[How::Quick, How::Slow]))));
            let after = random.pick(&[30, 100, 800, 3_500]);
            acts.push((at + random.between(10, 2_000), Act::Rejoins { who, after }));
        }
        _ => {}
    }
}

/// A tool that may run twice is asked of a process that does not end it.
fn asked_again(random: &mut Random, at: Ms, acts: &mut Vec<(Ms, Act)>) {
    let how = random.pick(&[How::Quick, How::Slow, How::Slow, How::Long]);
    acts.push((
        at,
        Act::Asks { by: Who::A, tool: Wanted::Again, named: random.percent(50), how, limit: 60_000 },
    ));
    let (who, again) = (Who::C(1), random.pick(&[50, 400, 1_500]));
    let act = random.pick(&[Act::Killed { who, again }, Act::Killed { who, again }, Act::TakenOver(who)]);
    acts.push((at + random.between(5, 3_000), act));
}
