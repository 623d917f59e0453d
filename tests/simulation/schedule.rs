//! What happens in one run: the cast, the weather and the acts, all drawn from the seed.

use std::fmt;

use crate::random::Random;

/// Milliseconds since the run began.
pub(crate) type Ms = u64;

/// From here on the network is whole, everybody is back and nobody leaves.
pub(crate) const HEALED: Ms = 20_000;
/// What is still open is given up: its places must be free again.
pub(crate) const CLEARED: Ms = 36_000;
/// One fresh call to each client.
pub(crate) const PROBES: Ms = 38_000;
/// As many calls to each client as may be open.
pub(crate) const FULL_HOUSE: Ms = 50_000;
/// The longest budget has passed since the last act, and what is remembered has been forgotten.
pub(crate) const END: Ms = 115_000;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Who {
    /// The assistant.
    A,
    /// A second agent, which is an assistant too.
    B,
    /// An observer.
    O,
    /// A stranger.
    X,
    /// A client, from 1.
    C(u8),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::A => f.write_str("a"),
            Self::B => f.write_str("b"),
            Self::O => f.write_str("observer"),
            Self::X => f.write_str("stranger"),
            Self::C(n) => write!(f, "c{n}"),
        }
    }
}

/// How a tool behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Its result comes after 20 ms.
    Quick,
    /// After 4 s.
    Slow,
    /// After 9 s.
    Long,
    /// It fails after 30 ms.
    Fails,
    /// It panics at once, as the executor tells it.
    Panics,
    /// Its end never comes.
    Hangs,
    /// Its result is larger than a packet.
    Huge,
    /// Its arguments are larger than a packet.
    HugeRequest,
    /// It tells of its progress more often than anybody wants to know.
    Talks,
    /// Its arguments are refused before it begins.
    BadArguments,
    /// It ran, and fails with a code that else means that nothing ran.
    SaysBusy,
}

impl How {
    pub(crate) const ALL: &[Self] = &[
        Self::Quick,
        Self::Slow,
        Self::Long,
        Self::Fails,
        Self::Panics,
        Self::Hangs,
        Self::Huge,
        Self::HugeRequest,
        Self::Talks,
        Self::BadArguments,
        Self::SaysBusy,
    ];

    pub(crate) fn as_u8(self) -> u8 {
        Self::ALL.iter().position(|how| *how == self).unwrap_or(0) as u8
    }

    /// When it ends, after it began.
    pub(crate) fn takes(self) -> Option<Ms> {
        match self {
            Self::Quick | Self::HugeRequest => Some(20),
            Self::Slow => Some(4_000),
            Self::Long => Some(9_000),
            Self::Fails | Self::SaysBusy => Some(30),
            Self::Panics | Self::BadArguments => Some(0),
            Self::Huge => Some(50),
            Self::Talks => Some(700),
            Self::Hangs => None,
        }
    }
}

/// Which tool is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The one of this client.
    Of(u8),
    /// One that every client offers.
    Shared,
    /// The assistant's own.
    Own,
    /// The assistant's own, which the first client may run in its place.
    Either,
    /// One of the first client that may run twice.
    Again,
    /// One that nobody offers.
    Nobodys,
    /// The echo that every peer of ours has.
    Echo(u8),
}

/// What is forged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// A result of a call, or of one of a call's own.
    Result,
    /// A refusal of a call.
    Refusal,
    /// An acknowledgement of a stanza.
    Acknowledgement,
    /// A claim.
    Claim,
    /// The stop of a call.
    Stop,
    /// The stop of everything.
    StopAll,
    /// A goodbye.
    Goodbye,
    /// A registration.
    Registration,
    /// The answer to one.
    RegistrationAnswer,
    /// A Configuration.
    Configuration,
    /// A sign of life.
    Pong,
    /// A request, for whoever hears it.
    Request,
    /// A request in the assistant's own name.
    Broadcast,
    /// Progress of a call.
    Progress,
    /// A heartbeat.
    Heartbeat,
    /// A frame with its end cut off, or with bytes changed.
    Broken,
}

impl Forgery {
    pub(crate) const ALL: &[Self] = &[
        Self::Result,
        Self::Refusal,
        Self::Acknowledgement,
        Self::Claim,
        Self::Stop,
        Self::StopAll,
        Self::Goodbye,
        Self::Registration,
        Self::RegistrationAnswer,
        Self::Configuration,
        Self::Pong,
        Self::Request,
        Self::Broadcast,
        Self::Progress,
        Self::Heartbeat,
        Self::Broken,
    ];
}

/// One act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A process joins.
    Enters(Who),
    /// An agent asks for a call.
    Asks { by: Who, tool: Wanted, named: bool, how: How, limit: Ms },
    /// The caller gives up the call of this number.
    Cancels(usize),
    /// The caller lets the call of this number go on unseen.
    Detaches(usize),
    /// A person speaks: the turn of this agent ends, and every open call with it.
    BargesIn(Who),
    /// It loses its connection and joins anew after this time.
    Rejoins { who: Who, after: Ms },
    /// Nothing passes to it or from it for this time; whether it is told of that.
    Gap { who: Who, lasts: Ms, told: bool },
    /// Its process is killed, and another one started after this time.
    Killed { who: Who, again: Ms },
    /// Another process takes its identity over.
    TakenOver(Who),
    /// It leaves in order; another process comes after this time.
    Leaves { who: Who, again: Ms },
    /// It takes no more requests, and leaves a second later; another process comes at once.
    Drains(Who),
    /// It offers other tools.
    Offers(Who),
    /// The stranger forges a frame for this one, about the call of this number.
    Forges { what: Forgery, to: Who, about: usize, dice: u64 },
}

impl Act {
    /// Whether somebody has another sid after it.
    pub(crate) fn moves(&self) -> bool {
        matches!(self, Self::Rejoins { .. } | Self::Killed { .. } | Self::TakenOver(_) | Self::Leaves { .. })
    }

    /// Whether somebody comes or goes because of it for longer than nobody notices.
    pub(crate) fn disturbs(&self) -> bool {
        match self {
            Self::Rejoins { after: lasts, .. } | Self::Gap { lasts, .. } => *lasts > 800,
            Self::Killed { .. }
            | Self::TakenOver(_)
            | Self::Leaves { .. }
            | Self::Drains(_)
            | Self::Offers(_) => true,
            Self::Enters(who) => *who == Who::B,
            _ => false,
        }
    }
}

/// How the network is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Weather {
    /// By how much more a packet may take than 10 ms.
    pub(crate) jitter: Ms,
    /// In how many of a hundred cases a packet, and all behind it, wait for a second and more.
    pub(crate) stalls: u64,
    /// How long the room may take to announce somebody.
    pub(crate) announcements: Ms,
    /// First frames may be heard without their sender.
    pub(crate) nameless: bool,
    /// A participant is in the room for a while before it can hear.
    pub(crate) slow_join: bool,
    /// While a process has no connection its packets are taken, and lost.
    pub(crate) swallows: bool,
}

/// Who they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cast {
    pub(crate) clients: u8,
    /// Which client knows only the seed's messages.
    pub(crate) plain_client: Option<u8>,
    /// The assistant knows only the seed's messages.
    pub(crate) plain_assistant: bool,
    /// Clients name their assistant, and it names them.
    pub(crate) configured: bool,
    /// The rate of calls is capped where runs reach it.
    pub(crate) rated: bool,
}

/// A run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) weather: Weather,
    pub(crate) cast: Cast,
    pub(crate) acts: Vec<(Ms, Act)>,
}

impl Schedule {
    /// The run of this seed.
    pub(crate) fn of(seed: u64) -> Self {
        let mut random = Random::of(seed, &[1]);
        let random = &mut random;
        let weather = Weather {
            jitter: random.pick(&[0, 5, 60, 60, 300]),
            stalls: random.pick(&[0, 0, 0, 3, 15]),
            announcements: random.pick(&[50, 50, 800, 3_000]),
            nameless: random.percent(40),
            slow_join: random.percent(15),
            swallows: random.percent(50),
        };
        let clients = random.pick(&[1, 1, 2, 2, 3, 4]);
        let cast = Cast {
            clients,
            plain_client: random.percent(25).then(|| random.between(1, u64::from(clients)) as u8),
            plain_assistant: random.percent(8),
            configured: random.percent(30),
            rated: random.percent(25),
        };
        let mut acts = Vec::new();
        entrances(random, clients, &mut acts);
        calls(random, clients, &mut acts);
        disturbances(random, clients, &mut acts);
        forgeries(random, clients, &mut acts);
        acts.sort_by_key(|(at, _)| *at);
        Self { seed, weather, cast, acts }
    }

    /// Whether no call of a patient caller may end without its answer.
    pub(crate) fn is_calm(&self) -> bool {
        !self.weather.slow_join && !self.acts.iter().any(|(_, act)| act.disturbs())
    }

    pub(crate) fn has(&self, who: Who) -> bool {
        self.acts.iter().any(|(_, act)| *act == Act::Enters(who))
    }

    pub(crate) fn someone_rejoins(&self) -> bool {
        self.acts.iter().any(|(_, act)| matches!(act, Act::Rejoins { .. }))
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
        4 => Wanted::Nobodys,
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
        let who = match random.below(u64::from(clients) + 1) {
            0 => Who::A,
            n => Who::C(n as u8),
        };
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

fn forgeries(random: &mut Random, clients: u8, acts: &mut Vec<(Ms, Act)>) {
    if !random.percent(25) {
        return;
    }
    acts.push((random.below(2_000), Act::Enters(Who::X)));
    for _ in 0..random.between(2, 14) {
        let to = match random.below(u64::from(clients) + 1) {
            0 => Who::A,
            n => Who::C(n as u8),
        };
        let what = random.pick(Forgery::ALL);
        let act = Act::Forges { what, to, about: random.below(10) as usize, dice: random.next() };
        acts.push((random.between(500, 16_000), act));
    }
}
