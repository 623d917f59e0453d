//! What happens in one run: the cast, the weather and the acts, all drawn from the seed.

use std::fmt;

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

/// A call waits so long for its owner.
pub(crate) const OWNER_WAIT: Ms = 5_000;

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
    /// One of the first client for which its person is asked once.
    Careful,
    /// One of the first client for which its person is asked each time.
    Grave,
    /// A prompt to the person at this client.
    Prompt(u8),
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
    /// A part of the stream that was seen last.
    Part,
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
        Self::Part,
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
    /// It is told of nobody who comes or goes for this time: packets pass, its signalling does not.
    Deaf { who: Who, lasts: Ms },
    /// Its process is killed, and another one started after this time.
    Killed { who: Who, again: Ms },
    /// Another process takes its identity over.
    TakenOver(Who),
    /// It loses its connection, another process takes its identity over after the first time, and it comes back after
    /// the second.
    Returns { who: Who, taken: Ms, back: Ms },
    /// A frame of this one comes from another room: a request, or a Configuration.
    FromElsewhere { from: Who, to: Who, request: bool },
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
        matches!(
            self,
            Self::Rejoins { .. }
                | Self::Killed { .. }
                | Self::TakenOver(_)
                | Self::Returns { .. }
                | Self::Leaves { .. }
        )
    }

    /// Whether this one has another join after it.
    pub(crate) fn brings(&self, who: Who) -> bool {
        match self {
            Self::Enters(it) | Self::TakenOver(it) | Self::Deaf { who: it, .. } => *it == who,
            Self::Rejoins { who: it, .. }
            | Self::Killed { who: it, .. }
            | Self::Returns { who: it, .. }
            | Self::Gap { who: it, .. }
            | Self::Leaves { who: it, .. } => *it == who,
            _ => false,
        }
    }

    /// Whether somebody comes or goes because of it for longer than nobody notices.
    pub(crate) fn disturbs(&self) -> bool {
        match self {
            Self::Rejoins { after: lasts, .. } | Self::Gap { lasts, .. } => *lasts > 800,
            Self::Killed { .. }
            | Self::TakenOver(_)
            | Self::Returns { .. }
            | Self::Leaves { .. }
            | Self::Drains(_)
            | Self::Offers(_) => true,
            Self::Enters(who) => *who == Who::B,
            _ => false,
        }
    }
}

/// What a process is told of packets for which there is no connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Away {
    /// Nothing: they are taken, and lost.
    #[default]
    Swallowed,
    /// That the connection is closed.
    Closed,
    /// That they did not leave before it was lost.
    GivenBack,
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
    /// What becomes of packets while there is no connection.
    pub(crate) away: Away,
    /// In how many of a hundred cases a lossy packet is lost.
    pub(crate) lost: u64,
    /// In how many it comes twice.
    pub(crate) twice: u64,
    /// In how many it is passed by others.
    pub(crate) passed: u64,
    /// In how many of a hundred cases a Configuration is lost, at most one of one join for another.
    pub(crate) halves_lost: u64,
    /// At times much waits on the reliable lane, and the session is told so.
    pub(crate) crowded: bool,
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
    /// There is a lossy lane, and small frames go there first.
    pub(crate) fast: bool,
    /// There are byte streams for what is larger than a packet.
    pub(crate) streams: bool,
    /// The client that has neither.
    pub(crate) old_client: Option<u8>,
    /// Persons are asked, and answer prompts.
    pub(crate) asks: bool,
}

impl Cast {
    pub(crate) fn has_fast_lane(&self, who: Who) -> bool {
        self.fast && !self.is_old(who)
    }

    pub(crate) fn has_streams(&self, who: Who) -> bool {
        self.streams && !self.is_old(who)
    }

    fn is_old(&self, who: Who) -> bool {
        self.old_client.map(Who::C) == Some(who)
    }
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
