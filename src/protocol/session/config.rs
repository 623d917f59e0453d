//! Configures a session: rights, timeouts and limits.

use std::time::Duration;

use super::selection::SelectionPolicy;
use crate::{
    sorted::{SortedMap, SortedSet},
    tool::{DEFAULT_TIMEOUT, Tool, ToolName},
    transport::{Capabilities, Identity},
};

/// The configuration of a session. The defaults are those of `wire.md`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The room's name, which is also the conversation's. Default: empty, and frames of any room are accepted.
    pub(crate) room: String,
    /// Client: the assistant to bind. Default: the only eligible participant that takes part in the protocol.
    pub(crate) assistant: Option<Identity>,
    /// Assistant: the clients that are admitted by name. They are greeted before the room announces them.
    pub(crate) admitted: SortedSet<Identity>,
    /// Assistant: whether a participant without a role in its token is admitted only by name or by the driver
    /// ([`Participant::admitted`](crate::transport::Participant::admitted)).
    ///
    /// Default: false. The only ordinary participant without a role is then admitted too, if
    /// [`admitted`](Self::admitted) is empty.
    pub(crate) only_roles: bool,
    /// Assistant: the tools that only one identity may run.
    pub(crate) pins: SortedMap<ToolName, Identity>,
    /// The policy for choosing among several clients that offer a tool, or several candidate assistants. Default: none
    /// is chosen.
    pub(crate) choose: SelectionPolicy,
    /// Client: whether it answers prompts to a person. The driver receives each as a job
    /// ([`Prompt::read`](crate::prompt::Prompt::read)). Default: false.
    pub(crate) prompts: bool,
    /// Client: whether it answers requests of LiveKit's RPC. Default: false.
    pub(crate) answer_rpc: bool,
    /// Client: the participants that may call it by RPC without being its assistant.
    pub(crate) rpc_callers: SortedSet<Identity>,
    /// Assistant: the participants that are called by LiveKit's RPC, with their tools.
    pub(crate) described: SortedMap<Identity, Vec<Tool>>,
    /// Assistant: whether an answer by RPC that is not JSON is a failure. Default: false, and its text is the result.
    pub(crate) rpc_json: bool,
    /// Assistant: whether owners that are called by RPC are pinged. Default: true.
    pub(crate) rpc_probe: bool,
    /// Whether a person can be asked before a tool runs ([`Output::Ask`](super::Output::Ask)). Default: false.
    /// [`Session::offer`](super::Session::offer) then refuses a tool that needs consent.
    pub(crate) consent_available: bool,
    /// The program and version that peers see.
    pub(crate) version: String,
    /// Whether the transport carries byte streams, which frames larger than a packet need. Default: false.
    pub(crate) streams: bool,
    /// Timeouts and intervals.
    pub times: Times,
    /// Limits.
    pub caps: Caps,
    /// Whether small frames are sent on the lossy lane first, if there is one. Default: true.
    pub fast_lane: bool,
    /// Whether frames of more than 1,200 bytes are compressed for peers that can expand them, which needs the feature
    /// `deflate`. Default: false; the participants of this crate set it for transports over a network
    /// ([`Capabilities::compress`]).
    pub(crate) compress: bool,
    /// Whether compressed frames are read, which needs the feature `deflate`. Default: true.
    pub(crate) expand: bool,
    /// Whether the transport has a lossy lane. The driver passes its packets to
    /// [`Session::handle_event`](super::Session::handle_event). Default: false.
    pub(crate) lossy: bool,
    /// By how many bytes the transport makes each packet larger. Default: 0.
    pub(crate) overhead: usize,
    /// Replay: the features of the recorded version. It lists no others. Default: all that the configuration allows.
    pub(crate) listed: Option<Vec<String>>,
    /// Replay: whether peers need not prove their instances, since recordings have numbers in their place. Default: false.
    pub(crate) trusts_instances: bool,
}

impl Config {
    /// Sets whether the transport has a lossy lane. Default: false.
    #[must_use]
    pub fn lossy(mut self, has_lossy_lane: bool) -> Self {
        self.lossy = has_lossy_lane;
        self
    }

    /// Sets whether frames of more than 1,200 bytes are compressed for peers that can expand them, which needs the
    /// feature `deflate`. Default: false.
    #[must_use]
    pub fn compress(mut self, compresses: bool) -> Self {
        self.compress = compresses;
        self
    }

    /// Sets whether compressed frames are read, which needs the feature `deflate`. Otherwise other participants learn that
    /// none may be sent here, and would read none from here, so none are sent. Default: true.
    #[must_use]
    pub fn expand(mut self, expands: bool) -> Self {
        self.expand = expands;
        self
    }

    pub(super) fn has_fast_lane(&self) -> bool {
        self.fast_lane && self.lossy
    }

    /// Sets the room's name, which is also the conversation's. Default: empty, and frames of any room are accepted.
    #[must_use]
    pub fn room(mut self, name: impl Into<String>) -> Self {
        self.room = name.into();
        self
    }

    /// Client: binds this assistant and no other. Default: the only eligible participant that takes part in the protocol.
    #[must_use]
    pub fn assistant(mut self, identity: impl Into<Identity>) -> Self {
        self.assistant = Some(identity.into());
        self
    }

    /// Assistant: admits this client, whatever role its token has, and greets it before the room announces it. Default:
    /// clients with the role in their tokens, and the only ordinary participant without a role.
    #[must_use]
    pub fn admit(mut self, identity: impl Into<Identity>) -> Self {
        self.admitted.insert(identity.into());
        self
    }

    /// Assistant: admits no participant only because it is alone: its token must have a role, or it is admitted by name
    /// or by the driver.
    #[must_use]
    pub fn admit_only_roles(mut self) -> Self {
        self.only_roles = true;
        self
    }

    /// Assistant: lets only this identity run the tool, even if others offer it.
    #[must_use]
    pub fn pin(mut self, tool: ToolName, owner: impl Into<Identity>) -> Self {
        self.pins.insert(tool, owner.into());
        self
    }

    /// Sets the policy for choosing among several clients that offer a tool, or several candidate assistants. Default:
    /// none is chosen.
    #[must_use]
    pub fn choose(mut self, policy: SelectionPolicy) -> Self {
        self.choose = policy;
        self
    }

    /// Client: sets whether it answers prompts to a person. The driver receives each as a job
    /// ([`Prompt::read`](crate::prompt::Prompt::read)). Default: false.
    #[must_use]
    pub fn prompts(mut self, answered: bool) -> Self {
        self.prompts = answered;
        self
    }

    /// Client: answers requests of LiveKit's RPC from its assistant, which is bound by such a request too. The method is the
    /// tool's name, the payload a JSON object. Default: they are ignored.
    #[cfg(feature = "rpc")]
    #[must_use]
    pub fn answer_rpc(mut self) -> Self {
        self.answer_rpc = true;
        self
    }

    /// Client: answers requests of LiveKit's RPC, also those of this participant, which need not be its assistant.
    #[cfg(feature = "rpc")]
    #[must_use]
    pub fn rpc_caller(mut self, identity: impl Into<Identity>) -> Self {
        self.rpc_callers.insert(identity.into());
        self.answer_rpc()
    }

    /// Assistant: calls this tool of this participant by LiveKit's RPC, unless the participant uses toolbridge's handshake. The
    /// participant is admitted. [`Session::check_rpc_tools`](super::Session::check_rpc_tools) checks the tools. Default: nobody is
    /// called by RPC.
    #[cfg(feature = "rpc")]
    #[must_use]
    pub fn rpc_tool(mut self, owner: impl Into<Identity>, tool: Tool) -> Self {
        self.described.entry(owner.into()).or_default().push(tool);
        self
    }

    /// Assistant: reads each answer by RPC as JSON, also a number or a text in quotes; one that is not JSON is an
    /// `execution_error`. Default: a JSON object or array is read, and any other answer is a text.
    #[cfg(feature = "rpc")]
    #[must_use]
    pub fn rpc_json(mut self) -> Self {
        self.rpc_json = true;
        self
    }

    /// Assistant: sets whether owners that are called by RPC are pinged when they send nothing during a call. Default: true, and
    /// the calls of an owner that does not answer are lost after 7 s. Otherwise they end with their time limits, or when the room
    /// reports that the owner has left.
    #[cfg(feature = "rpc")]
    #[must_use]
    pub fn rpc_probe(mut self, probes: bool) -> Self {
        self.rpc_probe = probes;
        self
    }

    /// Sets whether a person can be asked before a tool runs. If so, the driver shows the questions and reports the
    /// answers ([`Output::Ask`](super::Output::Ask)). Default: false. [`Session::offer`](super::Session::offer) then
    /// refuses a tool that needs consent, and a join with such a function or program fails.
    #[must_use]
    pub fn consent_available(mut self, available: bool) -> Self {
        self.consent_available = available;
        self
    }

    /// Sets the program and version that peers see. Default: toolbridge and its version.
    #[must_use]
    pub fn version(mut self, version: impl Into<String>) -> Self {
        self.version = version.into();
        self
    }

    /// Sets the timeouts and intervals.
    #[must_use]
    pub fn times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    /// Sets the limits.
    #[must_use]
    pub fn caps(mut self, caps: Caps) -> Self {
        self.caps = caps;
        self
    }

    /// Sets the reconnect grace period of a peer that left or stopped responding. Default: 5 s.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.times.grace = grace;
        self
    }

    /// Sets the largest packet that the transport carries, in bytes. Default: 15,000.
    #[must_use]
    pub fn max_packet(mut self, bytes: usize) -> Self {
        self.caps.frames.max_packet = bytes;
        self
    }

    /// Sets by how many bytes the transport makes each packet larger, in addition to LiveKit's envelope. A small frame is then
    /// smaller by that, so that it fits one datagram. Default: 0.
    #[must_use]
    pub fn overhead(mut self, bytes: usize) -> Self {
        self.overhead = bytes;
        self
    }

    /// Sets whether the transport carries byte streams, which frames larger than a packet need. Default: false.
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
            admitted: SortedSet::new(),
            only_roles: false,
            pins: SortedMap::new(),
            choose: SelectionPolicy::default(),
            prompts: false,
            answer_rpc: false,
            rpc_callers: SortedSet::new(),
            described: SortedMap::new(),
            rpc_json: false,
            rpc_probe: true,
            consent_available: false,
            version: concat!("toolbridge/", env!("CARGO_PKG_VERSION")).to_owned(),
            streams: false,
            times: Times::default(),
            caps: Caps::default(),
            fast_lane: true,
            compress: false,
            expand: true,
            lossy: false,
            overhead: 0,
            listed: None,
            trusts_instances: false,
        }
    }
}

/// Timeouts and intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Times {
    /// The time limit of a call that sets none. Default: 30 s.
    pub call: Duration,
    /// The longest time limit that a call may have. Default: 10 min.
    pub longest_call: Duration,
    /// The longest wait of a call for a participant that offers its tool. It counts against the call's time limit.
    /// Default: 5 s, since announcements take 3 s.
    pub owner_wait: Duration,
    /// The reconnect grace period of a peer that left or stopped responding. Default: 5 s.
    pub grace: Duration,
    /// The time without packets after which a peer that sent heartbeats counts as gone. Default: 30 s.
    pub heartbeat: Duration,
    /// How long an answered request is remembered after its time limit. Default: 60 s.
    pub memory: Duration,
    /// How long a frame waits for its sender's announcement or Configuration. Default: 4 s.
    pub hold: Duration,
    /// The time without packets after which an owner is pinged. After the same time without an answer to the local
    /// Configuration, a peer that a caller named is called as a plain one. Default: 1 s.
    pub silence: Duration,
    /// The time without packets after which an owner that was called by RPC is pinged. It has timed out when three pings, each
    /// after three fifths of this time, have shown nothing. Default: 2.5 s, and so 7 s in all; each ping runs a method that the
    /// owner does not have.
    pub rpc_silence: Duration,
    /// How long the room may take to announce the local participant to others.
    ///
    /// A plain peer is not called earlier: it would receive the packet without a sender and could not answer. The wait
    /// ends when the room announces the local participant to itself. Default: 3.5 s, since LiveKit announces
    /// participants without tracks once in 3 s.
    pub announcement: Duration,
    /// The time without a chunk after which an unfinished byte stream is dropped. Default: 10 s.
    pub stream_idle: Duration,
    /// The time after which an unfinished byte stream is dropped, even if chunks still arrive. Default: 60 s.
    pub stream: Duration,
    /// How long a client may take to claim an `either` call, at most half of the call's remaining time. After that the
    /// assistant runs the tool itself. Default: 2 s, which also suffices on the fast lane: its last retry is sent after
    /// 1.5 s.
    pub claim: Duration,
    /// The interval between two refusals of its registration that are sent to a participant without rights. Default: 60 s.
    pub denial: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            call: DEFAULT_TIMEOUT,
            longest_call: Duration::from_secs(600),
            owner_wait: Duration::from_secs(5),
            // A LiveKit participant notices an outage of its path after 2.8 s at most and rejoins within a
            // fraction of a second, so one that has lost its network for a moment is back in time.
            grace: Duration::from_secs(5),
            heartbeat: Duration::from_secs(30),
            memory: Duration::from_secs(60),
            // Longer than the 3 s within which LiveKit announces a participant without tracks.
            hold: Duration::from_secs(4),
            silence: Duration::from_secs(1),
            rpc_silence: Duration::from_millis(2_500),
            announcement: Duration::from_millis(3_500),
            stream_idle: Duration::from_secs(10),
            stream: Duration::from_secs(60),
            claim: Duration::from_secs(2),
            denial: Duration::from_secs(60),
        }
    }
}

/// Limits on size, number and rate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Caps {
    /// Limits on packets, frames and byte streams.
    pub frames: FrameCaps,
    /// Limits on the calls of the local participant.
    pub calls: CallCaps,
    /// Limits on the requests that the local participant accepts, and on the jobs that run them.
    pub requests: RequestCaps,
    /// Limits on the tools of one participant.
    pub tools: ToolCaps,
}

/// Limits on packets, frames and byte streams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FrameCaps {
    /// The largest packet that is sent, in bytes. Default: 15,000.
    pub max_packet: usize,
    /// The largest packet that is read, in bytes. Default: 256 KiB, far more than one packet can have.
    pub max_incoming: usize,
    /// The largest frame that is sent or accepted as a byte stream, in bytes. Default: 16 MiB, the largest frame of the
    /// protocol.
    pub max_frame: usize,
    /// The largest frame that is accepted as a byte stream from a sender that is neither the bound assistant nor owes
    /// an answer, in bytes.
    ///
    /// It is also the limit of a registration, and of a frame whose type the session does not handle, from any sender:
    /// as many of those may wait for the application as events may. Default: 256 KiB.
    pub max_frame_of_others: usize,
    /// Open byte streams of one sender. Default: 4.
    pub streams_per_peer: usize,
    /// Bytes of all unfinished byte streams. One sender may use half of them. Default: 32 MiB.
    pub stream_bytes: usize,
    /// Frames of one sender that wait for its announcement or Configuration, and as many stops. Default: 32.
    pub held_frames: usize,
    /// Bytes of all waiting frames, and of one sender's frames that wait for its Configuration; stops of up to 1 KiB are
    /// taken beyond it. Default: 1 MiB.
    pub held_bytes: usize,
    /// Frames of all senders together that wait for an announcement, and as many stops. Default: 256.
    pub held_frames_of_all: usize,
    /// Retransmitted frames in flight to a peer that came back. The next are sent as these are acknowledged. Default:
    /// 256.
    pub retransmit_frames: usize,
    /// Bytes of those frames. A single frame may exceed it. Default: 4 MiB.
    pub retransmit_bytes: usize,
    /// A call's id, in bytes. Default: 128.
    pub id_bytes: usize,
}

impl FrameCaps {
    /// Returns the largest frame of a sender that is trusted, or of another one.
    pub(super) fn largest_of(&self, is_trusted: bool) -> usize {
        if is_trusted { self.max_frame } else { self.max_frame_of_others.min(self.max_frame) }
    }
}

impl Default for FrameCaps {
    fn default() -> Self {
        Self {
            max_packet: Capabilities::MAX_PACKET,
            max_incoming: 256 * 1024,
            max_frame: 16 * 1024 * 1024,
            // The largest frame that a client must be able to send unasked is a registration, whose tools may
            // have `ToolCaps::registration_bytes`.
            max_frame_of_others: 256 * 1024,
            streams_per_peer: 4,
            // One sender may use half of it, which must hold one frame of the largest size. Otherwise a frame
            // that the protocol allows would be dropped as too long.
            stream_bytes: 32 * 1024 * 1024,
            held_frames: 32,
            held_bytes: 1024 * 1024,
            held_frames_of_all: 256,
            retransmit_frames: 256,
            retransmit_bytes: 4 * 1024 * 1024,
            id_bytes: 128,
        }
    }
}

/// Limits on calls. `open_per_peer` and `open_bytes` apply to the calls that the local participant makes and, for each
/// caller, to those that it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCaps {
    /// Open calls with one owner. A stopped call counts until its owner acknowledges the stop. Default: 64.
    pub open_per_peer: usize,
    /// Open calls in total, including those without an owner. Default: 1,024.
    pub open_calls: usize,
    /// Bytes of the arguments of all open calls with one owner, and of all open calls from one caller. A single call
    /// may exceed it. Default: 16 MiB.
    pub open_bytes: usize,
    /// Calls of the same tool with the same arguments in one turn. Default: 5; more indicate a loop.
    pub equal_calls: u32,
    /// Late results that wait for the next turn. The oldest is dropped first. Default: 32.
    pub late_results: usize,
    /// Bytes of all late results that wait for the next turn. Default: 256 KiB.
    pub late_bytes: usize,
    /// Settled calls and jobs that [`Session::records`](super::Session::records) still shows. Default: 256.
    pub call_log: usize,
}

impl Default for CallCaps {
    fn default() -> Self {
        Self {
            open_per_peer: 64,
            open_calls: 1024,
            open_bytes: 16 * 1024 * 1024,
            equal_calls: 5,
            late_results: 32,
            late_bytes: 256 * 1024,
            call_log: 256,
        }
    }
}

/// Limits on the requests that the local participant accepts, and on the jobs that run them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestCaps {
    /// Requests accepted from one caller per second. Default: 50; models make fewer than 5.
    pub calls_per_second: u32,
    /// Bytes of requests by LiveKit's RPC accepted from one caller per second on average, before compression. They do not
    /// apply to the bound assistant, nor to requests of up to 15,360 bytes. A caller may use 16 MiB at once. Default: 8 MiB.
    pub rpc_bytes_per_second: usize,
    /// Remembered requests of one caller; an answered one makes room for a newer one. Default: 4,096.
    pub table_entries: usize,
    /// Bytes of results to one caller that wait to be sent or acknowledged. Default: 32 MiB, two results of the largest
    /// size.
    pub table_bytes: usize,
    /// Remembered identities that have left, so that none of their calls runs twice. Default: 1,024.
    pub remembered_peers: usize,
    /// Tools that run at once, for all callers. Default: 64, as many as one caller may have open.
    pub running_jobs: usize,
    /// Calls that wait, within their time limits, for others to end. A further call is refused as `busy`. Default: 256.
    pub waiting_jobs: usize,
    /// Progress updates of one job that are sent per second. Default: 10, enough for a person who watches.
    pub progress_per_second: u32,
    /// One progress update, in bytes. Default: 4 KiB.
    pub progress_bytes: usize,
    /// A tool's error message, in bytes. The rest is cut off. Default: 4 KiB.
    pub message_bytes: usize,
    /// Open questions to a person. A further call is refused as `busy`. Default: 8.
    pub open_questions: usize,
    /// Open prompts of one assistant. A further prompt is refused as `busy`. Default: 8; a person answers one at a
    /// time.
    pub open_prompts: usize,
}

impl Default for RequestCaps {
    fn default() -> Self {
        Self {
            calls_per_second: 50,
            // A request of the largest size takes a client tens of milliseconds, in which its assistant waits. So one
            // caller takes a few percent of a processor.
            rpc_bytes_per_second: 8 * 1024 * 1024,
            table_entries: 4096,
            table_bytes: 32 * 1024 * 1024,
            remembered_peers: 1024,
            running_jobs: 64,
            waiting_jobs: 256,
            progress_per_second: 10,
            progress_bytes: 4096,
            message_bytes: 4096,
            open_questions: 8,
            open_prompts: 8,
        }
    }
}

/// Limits on the tools of one participant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCaps {
    /// Tools of one participant. Default: 128.
    pub count: usize,
    /// A tool's description, in bytes. Its title and the name of its source have a quarter of it each, at most 256 bytes.
    /// Default: 8 KiB. Longer descriptions of servers are cut, and so are others of servers while all tools exceed
    /// `registration_bytes`.
    pub description_bytes: usize,
    /// A tool's schema, and the schema of its result, in bytes of JSON. Default: 16 KiB each.
    pub schema_bytes: usize,
    /// All descriptions, schemas and annotations of one participant, in bytes. Default: 256 KiB. The frame that carries them holds
    /// slightly less.
    pub registration_bytes: usize,
}

impl Default for ToolCaps {
    fn default() -> Self {
        Self {
            count: 128,
            description_bytes: 8 * 1024,
            schema_bytes: 16 * 1024,
            registration_bytes: 256 * 1024,
        }
    }
}
