//! What an author can set: who has which rights, how long is waited, how much is allowed.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use super::peers::SelectionPolicy;
use crate::{
    tool::{DEFAULT_TIMEOUT, ToolName},
    transport::{Capabilities, Identity, Participant},
};

/// A rule that judges a participant.
pub type ParticipantFilter = Arc<dyn Fn(&Participant) -> bool + Send + Sync>;

/// How a session behaves. The defaults are those of `wire.md`.
#[derive(Clone)]
#[non_exhaustive]
pub struct Config {
    /// The room's name, which is the conversation's. Default: none, and a frame of any room is taken.
    pub room: String,
    /// Client: the assistant to bind. Default: the only eligible one that speaks.
    pub assistant: Option<Identity>,
    /// Assistant: the clients that are admitted by name, and greeted before they are announced.
    pub admitted: BTreeSet<Identity>,
    /// Assistant: a further rule for whom to admit. Default: none; a token's role `client` always counts.
    pub admit_filter: Option<ParticipantFilter>,
    /// Assistant: admits nobody whose token names no role. Default: no, and the only ordinary participant without a
    /// role is admitted, if [`admitted`](Self::admitted) is empty and [`admit_filter`](Self::admit_filter) is not set.
    pub only_roles: bool,
    /// Assistant: which clients may stop calls. Default: none.
    pub stop_filter: Option<ParticipantFilter>,
    /// Assistant: tools that only one identity may run.
    pub pins: BTreeMap<ToolName, Identity>,
    /// Which of several is meant: the clients that offer a tool, or who may be the assistant. Default: nobody.
    pub choose: SelectionPolicy,
    /// Client: prompts to a person are answered, as jobs that the driver is given
    /// ([`Prompt::read`](crate::Prompt::read)). Default: no.
    pub prompts: bool,
    /// Whether a person can be asked before a tool runs, with [`Output::Ask`](super::Output::Ask). Default: no, and a tool that needs it is
    /// not offered.
    pub consent_available: bool,
    /// The program and version that we tell peers.
    pub version: String,
    /// Whether the transport carries byte streams, so that frames larger than a packet can pass. Default: no.
    pub streams: bool,
    /// Times.
    pub times: Times,
    /// Caps.
    pub caps: Caps,
    /// Whether small frames go on the lossy lane first, where there is one. Default: yes.
    pub fast_lane: bool,
    /// Whether the transport has a lossy lane, so that what comes on it is told by
    /// [`Session::handle_lossy_packet`](super::Session::handle_lossy_packet). Default: no.
    pub lossy: bool,
}

impl Config {
    /// Whether the transport has a lossy lane. Default: no.
    #[must_use]
    pub fn lossy(mut self, has_lossy_lane: bool) -> Self {
        self.lossy = has_lossy_lane;
        self
    }

    pub(super) fn has_fast_lane(&self) -> bool {
        self.fast_lane && self.lossy
    }

    /// In the room of this name.
    #[must_use]
    pub fn room(mut self, name: impl Into<String>) -> Self {
        self.room = name.into();
        self
    }

    /// Client: binds this assistant and no other.
    #[must_use]
    pub fn assistant(mut self, identity: impl Into<Identity>) -> Self {
        self.assistant = Some(identity.into());
        self
    }

    /// Assistant: admits this client, whatever its token says.
    #[must_use]
    pub fn admit(mut self, identity: impl Into<Identity>) -> Self {
        self.admitted.insert(identity.into());
        self
    }

    /// Assistant: admits the participants that this rule likes.
    #[must_use]
    pub fn admit_if(mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) -> Self {
        self.admit_filter = Some(Arc::new(rule));
        self
    }

    /// Assistant: admits nobody whose token names no role.
    #[must_use]
    pub fn admit_only_roles(mut self) -> Self {
        self.only_roles = true;
        self
    }

    /// Assistant: lets the clients that this rule likes stop calls.
    #[must_use]
    pub fn allow_stop(mut self, rule: impl Fn(&Participant) -> bool + Send + Sync + 'static) -> Self {
        self.stop_filter = Some(Arc::new(rule));
        self
    }

    /// Assistant: only this identity may run the tool, whoever else offers it.
    #[must_use]
    pub fn pin(mut self, tool: ToolName, owner: impl Into<Identity>) -> Self {
        self.pins.insert(tool, owner.into());
        self
    }

    /// Chooses one of several by this policy.
    #[must_use]
    pub fn choose(mut self, policy: SelectionPolicy) -> Self {
        self.choose = policy;
        self
    }

    /// Client: answers prompts to a person.
    #[must_use]
    pub fn prompts(mut self, answered: bool) -> Self {
        self.prompts = answered;
        self
    }

    /// A person can be asked before a tool runs: the driver takes the questions and brings the answers.
    #[must_use]
    pub fn consent_available(mut self, available: bool) -> Self {
        self.consent_available = available;
        self
    }

    /// Tells peers this program and version.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// With these times.
    #[must_use]
    pub fn times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    /// With these caps.
    #[must_use]
    pub fn caps(mut self, caps: Caps) -> Self {
        self.caps = caps;
        self
    }

    /// How long a peer that left or fell silent may take to come back. Default: 5 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.times.grace = grace;
        self
    }

    /// The largest packet that the transport carries, in bytes. Default: 15,000.
    #[must_use]
    pub fn max_packet(mut self, bytes: usize) -> Self {
        self.caps.max_packet = bytes;
        self
    }

    /// Whether the transport carries byte streams, so that frames larger than a packet can pass. Default: no.
    #[must_use]
    pub fn streams(mut self, streams: bool) -> Self {
        self.streams = streams;
        self
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            room: String::new(),
            assistant: None,
            admitted: BTreeSet::new(),
            admit_filter: None,
            only_roles: false,
            stop_filter: None,
            pins: BTreeMap::new(),
            choose: SelectionPolicy::default(),
            prompts: false,
            consent_available: false,
            version: concat!("toolbridge/", env!("CARGO_PKG_VERSION")).to_owned(),
            streams: false,
            times: Times::default(),
            caps: Caps::default(),
            fast_lane: true,
            lossy: false,
        }
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("room", &self.room)
            .field("assistant", &self.assistant)
            .field("admitted", &self.admitted)
            .field("admit_filter", &self.admit_filter.is_some())
            .field("only_roles", &self.only_roles)
            .field("stop_filter", &self.stop_filter.is_some())
            .field("pins", &self.pins)
            .field("choose", &self.choose)
            .field("prompts", &self.prompts)
            .field("consent_available", &self.consent_available)
            .field("version", &self.version)
            .field("streams", &self.streams)
            .field("times", &self.times)
            .field("caps", &self.caps)
            .field("fast_lane", &self.fast_lane)
            .field("lossy", &self.lossy)
            .finish()
    }
}

/// How long is waited for what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// The budget of a call that names none. Default: 30 s.
    pub call: Duration,
    /// The longest budget that a call may have. Default: 10 min.
    pub longest_call: Duration,
    /// How long a call waits for somebody who offers its tool, inside its budget. Default: 5 s, since
    /// announcements take 3.
    pub owner_wait: Duration,
    /// How long a peer that left or fell silent may take to come back. Default: 5 s.
    pub grace: Duration,
    /// The silence after which a peer that sent heartbeats is gone. Default: 30 s.
    pub heartbeat: Duration,
    /// How long an answered request is remembered beyond its own budget. Default: 60 s.
    pub memory: Duration,
    /// How long a frame waits for its sender's announcement or Configuration. Default: 4 s.
    pub hold: Duration,
    /// The silence, after our Configuration, after which a peer that a caller named is asked as a plain
    /// one; and the silence after which a sign of life is asked for. Default: 1 s.
    pub silence: Duration,
    /// How long the room may take to tell others of us. A plain peer is not asked before: it hears us without
    /// a sender, and cannot answer. Ends early when the room tells us of ourselves. Default: 3.5 s, since LiveKit
    /// announces participants without tracks once in 3 s.
    pub announcement: Duration,
    /// The silence after which a byte stream that has not ended is given up. Default: 10 s.
    pub stream_idle: Duration,
    /// The time after which a byte stream that has not ended is given up, however much of it came. Default: 60 s.
    pub stream: Duration,
    /// How long a client that may run a tool in our place has to claim the call, at most half of what is left of
    /// its budget. Then we run it ourselves. Default: 2 s, with a fast lane too: its last retry is on its way after 1.5 s.
    pub claim: Duration,
    /// How often a participant without rights is told that it has none. Default: once in 60 s.
    pub denial: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            call: DEFAULT_TIMEOUT,
            longest_call: Duration::from_secs(600),
            owner_wait: Duration::from_secs(5),
            grace: Duration::from_secs(5),
            heartbeat: Duration::from_secs(30),
            memory: Duration::from_secs(60),
            hold: Duration::from_secs(4),
            silence: Duration::from_secs(1),
            announcement: Duration::from_millis(3_500),
            stream_idle: Duration::from_secs(10),
            stream: Duration::from_secs(60),
            claim: Duration::from_secs(2),
            denial: Duration::from_secs(60),
        }
    }
}

/// How much of anything there may be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// The largest packet that we send, in bytes. Default: 15,000.
    pub max_packet: usize,
    /// The largest packet that is looked at, in bytes. Default: 256 KiB, far above what one packet can be.
    pub max_incoming: usize,
    /// Calls that are open at once with one owner, stopped ones included until their owner knows. Default: 64.
    pub open_per_peer: usize,
    /// Calls that are open at once with all owners and none. Default: 1,024.
    pub open_calls: usize,
    /// Requests taken from one caller in a second. Default: 50; models make fewer than 5.
    pub calls_per_second: u32,
    /// Requests of one caller that are remembered. Default: 4,096.
    pub table_entries: usize,
    /// Bytes of results of one caller that wait to be sent or acknowledged. Default: 32 MiB, two of the largest size.
    pub table_bytes: usize,
    /// Frames that are on their way again at once to a peer that came back; the next go when they are
    /// acknowledged. Default: 256.
    pub retransmit_frames: usize,
    /// Bytes of those frames; one frame of any size is let through. Default: 4 MiB.
    pub retransmit_bytes: usize,
    /// Tools that one participant offers. Default: 128.
    pub tools: usize,
    /// A tool's description, in bytes. Default: 1 KiB.
    pub description_bytes: usize,
    /// A tool's schema, in bytes of JSON. Default: 16 KiB.
    pub schema_bytes: usize,
    /// All descriptions and schemas of one participant, in bytes. Default: 256 KiB; what carries them holds a little
    /// less.
    pub registration_bytes: usize,
    /// A call's id, in bytes. Default: 128.
    pub id_bytes: usize,
    /// Frames of one sender that wait for its announcement or Configuration. Default: 32.
    pub held_frames: usize,
    /// Bytes of all frames that wait, and of those of one sender that wait for its Configuration.
    /// Default: 1 MiB.
    pub held_bytes: usize,
    /// Progress of one job that is sent in a second. Default: 10; it is for eyes.
    pub progress_per_second: u32,
    /// One progress, in bytes. Default: 4 KiB.
    pub progress_bytes: usize,
    /// A tool's error message, in bytes; the rest is cut off. Default: 4 KiB.
    pub message_bytes: usize,
    /// The largest frame, in bytes, that is sent or taken as a byte stream. Default: 16 MiB, which is also the most
    /// that a frame can have.
    pub max_frame: usize,
    /// The largest frame, in bytes, that is taken as a byte stream from who is neither our assistant nor owes us
    /// an answer; and so the largest registration. A frame of a type that is not ours is taken up to this from
    /// anybody, since as many of them may wait for the application as events may. Default: 256 KiB.
    pub max_frame_of_others: usize,
    /// Byte streams that one sender may have open. Default: 4.
    pub streams_per_peer: usize,
    /// Bytes of all byte streams that have not ended, of which one sender may hold half. Default: 32 MiB.
    pub stream_bytes: usize,
    /// Bytes of arguments of all calls that are open with one owner, or that one caller has open with us; one call
    /// always may be. Default: 16 MiB.
    pub open_bytes: usize,
    /// Late results that wait for the next turn; beyond it the oldest is dropped. Default: 32.
    pub late_results: usize,
    /// Bytes of all late results that wait for the next turn. Default: 256 KiB.
    pub late_bytes: usize,
    /// How often one turn may ask for the same tool with the same arguments. Default: 5; more is a loop.
    pub equal_calls: u32,
    /// Calls and jobs that have ended and that [`Session::records`](super::Session::records) still shows.
    /// Default: 256.
    pub call_log: usize,
    /// Questions to a person that are open at once; beyond it a call is refused as `busy`. Default: 8.
    pub open_questions: usize,
    /// Prompts that one assistant may have open with us; beyond it a prompt is refused as `busy`. Default: 8; a person
    /// answers one at a time.
    pub open_prompts: usize,
    /// Frames of all senders together that wait for an announcement. Default: 256.
    pub held_frames_of_all: usize,
    /// Identities that left and are still remembered, so that nothing of theirs runs twice. Default: 1,024.
    pub remembered_peers: usize,
    /// Tools that run at once, for all callers. Default: 64, which one caller alone may have open.
    pub running_jobs: usize,
    /// Calls that wait, within their limits, for others to end; beyond it a call is refused as `busy`. Default: 256.
    pub waiting_jobs: usize,
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            max_packet: Capabilities::MAX_PACKET,
            max_incoming: 256 * 1024,
            open_per_peer: 64,
            open_calls: 1024,
            calls_per_second: 50,
            table_entries: 4096,
            table_bytes: 32 * 1024 * 1024,
            retransmit_frames: 256,
            retransmit_bytes: 4 * 1024 * 1024,
            tools: 128,
            description_bytes: 1024,
            schema_bytes: 16 * 1024,
            registration_bytes: 256 * 1024,
            id_bytes: 128,
            held_frames: 32,
            held_bytes: 1024 * 1024,
            progress_per_second: 10,
            progress_bytes: 4096,
            message_bytes: 4096,
            max_frame: 16 * 1024 * 1024,
            max_frame_of_others: 256 * 1024,
            streams_per_peer: 4,
            stream_bytes: 32 * 1024 * 1024,
            open_bytes: 16 * 1024 * 1024,
            late_results: 32,
            late_bytes: 256 * 1024,
            equal_calls: 5,
            call_log: 256,
            open_questions: 8,
            open_prompts: 8,
            held_frames_of_all: 256,
            remembered_peers: 1024,
            running_jobs: 64,
            waiting_jobs: 256,
        }
    }
}
