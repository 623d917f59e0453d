//! The schedule of one run: the setup, the network conditions and the actions.

use std::fmt;

use crate::rules::Rule;

/// Milliseconds since the run began.
pub(crate) type Ms = u64;

/// All faults end: disconnected participants rejoin, and none leaves from here on.
pub(crate) const RECOVERY: Ms = 20_000;
/// Open calls are cancelled, and must no longer count against the caps.
pub(crate) const CLEANUP: Ms = 36_000;
/// One new call to each client.
pub(crate) const PROBES: Ms = 38_000;
/// As many calls to each client as may be open.
pub(crate) const FULL_PROBES: Ms = 50_000;
/// The end of the run: the longest timeout has passed since the last action, and the sessions' memory has expired.
pub(crate) const END: Ms = 115_000;

/// The end of the calls without a pause.
pub(crate) const STEADY: Ms = 32_000;

/// How long a call waits for its owner.
pub(crate) const OWNER_WAIT: Ms = 5_000;

/// An actor of a run. Several processes can follow each other as one actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Actor {
    /// The assistant.
    Assistant,
    /// A second assistant.
    SecondAssistant,
    /// An observer.
    Observer,
    /// A participant without rights, which sends forged frames.
    Stranger,
    /// An app without the bridge, which is called by LiveKit's RPC.
    App,
    /// A client, numbered from 1.
    Client(u8),
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Assistant => f.write_str("a"),
            Self::SecondAssistant => f.write_str("b"),
            Self::Observer => f.write_str("observer"),
            Self::Stranger => f.write_str("stranger"),
            Self::App => f.write_str("app"),
            Self::Client(n) => write!(f, "c{n}"),
        }
    }
}

/// How a tool behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// It returns after 20 ms.
    Quick,
    /// It returns after 4 s.
    Slow,
    /// It returns after 9 s.
    Long,
    /// It fails after 30 ms.
    Fails,
    /// It panics at once, as the executor reports it.
    Panics,
    /// It never returns.
    Hangs,
    /// Its result is larger than a packet.
    Huge,
    /// Its arguments are larger than a packet.
    HugeRequest,
    /// It reports progress more often than progress is forwarded.
    Progresses,
    /// Its arguments are refused before it begins.
    BadArguments,
    /// It runs, and fails with a code that otherwise means that nothing ran.
    FailsAsBusy,
}

impl Behavior {
    pub(crate) const ALL: &[Self] = &[
        Self::Quick,
        Self::Slow,
        Self::Long,
        Self::Fails,
        Self::Panics,
        Self::Hangs,
        Self::Huge,
        Self::HugeRequest,
        Self::Progresses,
        Self::BadArguments,
        Self::FailsAsBusy,
    ];

    pub(crate) fn as_u8(self) -> u8 {
        Self::ALL.iter().position(|behavior| *behavior == self).unwrap_or(0) as u8
    }

    /// Returns how long it runs; none if it never returns.
    pub(crate) fn takes(self) -> Option<Ms> {
        match self {
            Self::Quick | Self::HugeRequest => Some(20),
            Self::Slow => Some(4_000),
            Self::Long => Some(9_000),
            Self::Fails | Self::FailsAsBusy => Some(30),
            Self::Panics | Self::BadArguments => Some(0),
            Self::Huge => Some(50),
            Self::Progresses => Some(700),
            Self::Hangs => None,
        }
    }
}

/// The tool that a call requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestedTool {
    /// The tool that only this client offers.
    OfClient(u8),
    /// A tool that every client offers.
    Shared,
    /// A tool of the assistant.
    AssistantOnly,
    /// A tool of the assistant that the first client may run instead.
    Either,
    /// A tool of the first client that is idempotent.
    Idempotent,
    /// A tool of the first client that requires consent once per session.
    ConsentOnce,
    /// A tool of the first client that requires consent for each call.
    ConsentEachTime,
    /// A prompt to the person at this client.
    Prompt(u8),
    /// The tool of the app that is called by RPC.
    OfApp,
    /// A tool that no participant offers.
    Unknown,
    /// The echo tool that every session has.
    Echo(u8),
}

/// The kind of a forged frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgery {
    /// A result of a call.
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
    /// The answer to a registration.
    RegistrationAnswer,
    /// A Configuration.
    Configuration,
    /// A keepalive.
    Pong,
    /// A request to a client.
    Request,
    /// A broadcast request, as the assistant sends it for its own tools.
    Broadcast,
    /// Progress of a call.
    Progress,
    /// A heartbeat.
    Heartbeat,
    /// A part of the stream that was started last.
    Part,
    /// A frame that is truncated or has a flipped bit.
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

/// One action of the schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A process of this actor starts and joins.
    Enters(Actor),
    /// An assistant makes a call; `named` if the request names the owner.
    Calls { by: Actor, tool: RequestedTool, named: bool, behavior: Behavior, limit: Ms },
    /// The caller cancels the call with this number.
    Cancels(usize),
    /// The caller detaches the call with this number.
    Detaches(usize),
    /// A person interrupts: the turn of this assistant ends, and its open calls with it.
    BargesIn(Actor),
    /// It loses its connection, and rejoins after this time.
    Rejoins { actor: Actor, after: Ms },
    /// No packet passes to it or from it for this time; `reported` if its transport reports the outage.
    Outage { actor: Actor, lasts: Ms, reported: bool },
    /// Its signaling is down for this time: packets pass, but joins and leaves are not announced to it.
    SignalingDown { actor: Actor, lasts: Ms },
    /// Its process is killed, and another one starts after this time.
    Killed { actor: Actor, replaced_after: Ms },
    /// Another process takes over its identity.
    TakenOver(Actor),
    /// It loses its connection, another process takes over its identity after the first time, and it rejoins after the
    /// second.
    Returns { actor: Actor, taken: Ms, back: Ms },
    /// It sends a frame that names another room: a request, or a Configuration.
    NamesOtherRoom { from: Actor, to: Actor, request: bool },
    /// It leaves with a goodbye, and another process starts after this time.
    Leaves { actor: Actor, replaced_after: Ms },
    /// For this time, each of its packets may be refused for want of room.
    RefusesPackets { actor: Actor, lasts: Ms, percent: u64 },
    /// The next lossy packet of this actor is lost.
    LosesPacket(Actor),
    /// It drains, and leaves a second later; another process starts at once.
    Drains(Actor),
    /// It offers other tools.
    ChangesTools(Actor),
    /// A participant without rights joins under its identity and acts as it does. It leaves before the room announces it.
    Impersonated { actor: Actor, dice: u64 },
    /// The stranger sends it a forged frame about the call with this number.
    Forges { what: Forgery, to: Actor, about: usize, dice: u64 },
    /// An answer by RPC to the call with this number is forged, or a part of one.
    ForgesAnswer { about: usize, dice: u64 },
}

impl Action {
    /// Returns whether an actor has another sid after it.
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

    /// Returns whether this actor joins, or must be announced again, because of it.
    pub(crate) fn brings(&self, actor: Actor) -> bool {
        match self {
            Self::Enters(it) | Self::TakenOver(it) | Self::SignalingDown { actor: it, .. } => *it == actor,
            Self::Rejoins { actor: it, .. }
            | Self::Killed { actor: it, .. }
            | Self::Returns { actor: it, .. }
            | Self::Outage { actor: it, .. }
            | Self::Leaves { actor: it, .. } => *it == actor,
            _ => false,
        }
    }

    /// Returns whether it can make calls fail that would succeed without it.
    pub(crate) fn disturbs(&self) -> bool {
        match self {
            Self::Rejoins { after: lasts, .. } | Self::Outage { lasts, .. } => *lasts > 800,
            Self::Killed { .. }
            | Self::TakenOver(_)
            | Self::Returns { .. }
            | Self::Leaves { .. }
            | Self::Drains(_)
            | Self::RefusesPackets { .. }
            | Self::ChangesTools(_) => true,
            Self::Enters(actor) => *actor == Actor::SecondAssistant,
            _ => false,
        }
    }
}

/// How a transport handles packets while it has no connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Offline {
    /// It accepts and loses them.
    #[default]
    Lost,
    /// It reports that the connection is closed.
    Closed,
    /// It reports that they were not sent before the connection was lost.
    Interrupted,
}

/// The conditions of the network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Network {
    /// The largest delay of a packet beyond 10 ms.
    pub(crate) jitter: Ms,
    /// Percentage of reliable packets that are stalled for 0.3 to 1.5 s, with all packets behind them.
    pub(crate) stalls: u64,
    /// The longest delay of an announcement.
    pub(crate) announcements: Ms,
    /// Whether first frames may arrive without a sender.
    pub(crate) unknown_senders: bool,
    /// Whether a participant is listed 700 ms before it receives packets.
    pub(crate) slow_join: bool,
    /// What happens to packets while there is no connection.
    pub(crate) offline: Offline,
    /// Percentage of lossy packets that are lost.
    pub(crate) lost: u64,
    /// Percentage of lossy packets that are duplicated.
    pub(crate) duplicated: u64,
    /// Percentage of lossy packets that are overtaken by later ones.
    pub(crate) reordered: u64,
    /// Percentage of Configurations that are lost, at most one from each join to each other join.
    pub(crate) configurations_lost: u64,
    /// Whether sessions get reports of a backlog on the reliable lane.
    pub(crate) backlog: bool,
}

/// The participants, and what they support.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cast {
    pub(crate) clients: u8,
    /// The client that is a plain peer.
    pub(crate) plain_client: Option<u8>,
    /// Whether the assistant is a plain peer.
    pub(crate) plain_assistant: bool,
    /// Whether clients name their assistant in their configuration, and it names them.
    pub(crate) configured: bool,
    /// Whether the rate of calls is capped so low that runs reach it.
    pub(crate) rate_limited: bool,
    /// Whether sessions use the lossy lane.
    pub(crate) lossy: bool,
    /// Whether sessions use byte streams for frames larger than a packet.
    pub(crate) streams: bool,
    /// The client that supports neither.
    pub(crate) basic_client: Option<u8>,
    /// Whether consent and prompts are available.
    pub(crate) consent: bool,
    /// The version of the client protocol of the app that is called by RPC.
    pub(crate) app: Option<u32>,
    /// Whether assistants send pings to the app.
    pub(crate) pings: bool,
    /// Whether the app answers in chunks that it sends one after the other, so that its answers interleave.
    pub(crate) slow_answers: bool,
    /// Whether packets are delayed by chance, and only those are lost that an action names.
    pub(crate) steady: bool,
}

impl Cast {
    pub(crate) fn has_lossy_lane(&self, actor: Actor) -> bool {
        self.lossy && !self.is_basic(actor)
    }

    pub(crate) fn has_streams(&self, actor: Actor) -> bool {
        self.streams && !self.is_basic(actor)
    }

    fn is_basic(&self, actor: Actor) -> bool {
        self.basic_client.map(Actor::Client) == Some(actor)
    }
}

/// All that happens in one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub(crate) seed: u64,
    pub(crate) network: Network,
    pub(crate) cast: Cast,
    pub(crate) actions: Vec<(Ms, Action)>,
    /// The rules that are not checked.
    pub(crate) without: Vec<Rule>,
}

impl Schedule {
    /// Returns whether nothing in the schedule may keep a call with a long timeout from its result.
    pub(crate) fn is_calm(&self) -> bool {
        !self.network.slow_join && !self.actions.iter().any(|(_, action)| action.disturbs())
    }

    pub(crate) fn has(&self, actor: Actor) -> bool {
        self.actions.iter().any(|(_, action)| *action == Action::Enters(actor))
    }

    pub(crate) fn someone_rejoins(&self) -> bool {
        self.actions.iter().any(|(_, action)| matches!(action, Action::Rejoins { .. }))
    }
}
