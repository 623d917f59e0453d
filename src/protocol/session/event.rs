//! What a session gives out: packets, jobs, outcomes and news.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::stats::Counter;
use crate::{
    protocol::frame::{Frame, Meta},
    tool::{CallError, CallId, ErrorCode, Execution, NotAdmitted, Progress, Tool, ToolName},
    transport::{CloseReason, ConnectionState, Identity, Packet, Participant, Peer},
    value::{EncodeError, Value},
};

/// What the driver of a [`Session`](super::Session) must do. Exhaustive on purpose: it must do all of it.
#[derive(Debug)]
pub enum Output {
    /// Hand this packet to the room; if that fails, say so with `handle_send_failed`.
    Transmit(Packet),
    /// Run this tool, and bring its outcome with `settle`. Once it runs, say so with `progress` and
    /// [`Progress::started`]: a job that was refused before, by its schema, never began.
    Execute(Job),
    /// Ask a person whether this job may run, and bring the answer with `consent`. The job is held back until then; no answer is a no.
    Ask(Question),
    /// Stop running this job, or take its question back: its outcome is not wanted any more.
    Abort(JobKey),
    /// A call of ours has ended; nothing follows for this key.
    Settled {
        /// The call.
        key: CallKey,
        /// How it ended.
        result: Result<Value, CallError>,
    },
    /// Something happened that a person or a log may want to know.
    Event(Event),
}

/// Names one call that we asked for, within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey(pub(super) u64);

/// Names one job that we run, within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey(pub(super) u64);

/// Names one turn, within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TurnKey(pub(super) u64);

/// A question to a person: may this tool run with these arguments?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Question {
    /// Names it in [`Session::consent`](crate::Session::consent), and in [`Output::Abort`] if it is taken back.
    pub key: JobKey,
    /// The call's id on the wire.
    pub call: CallId,
    /// Who wants it.
    pub caller: Identity,
    /// The tool, as it is offered now.
    pub tool: Tool,
    /// What it will be given: a map, not checked against the schema.
    pub arguments: Value,
    /// When silence is a no.
    pub until: Instant,
}

/// A tool to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Job {
    /// Names it in `settle` and `progress`.
    pub key: JobKey,
    /// The call's id on the wire.
    pub call: CallId,
    /// Who asked.
    pub caller: Identity,
    /// The tool: one that we offer.
    pub tool: ToolName,
    /// The arguments: a map, not checked against the schema.
    pub arguments: Value,
    /// When it ends as a timeout.
    pub deadline: Instant,
    /// The whole time it may take.
    pub limit: Duration,
    /// What the caller wrote beside the request: a map.
    pub meta: Value,
}

/// A call to ask for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The tool's name.
    pub tool: String,
    /// The arguments: a map.
    pub arguments: Value,
    /// Who shall run it. Default: the only one that offers it.
    pub owner: Option<Identity>,
    /// The whole budget. Default: [`Times::call`](super::Times::call).
    pub timeout: Option<Duration>,
    /// How long to wait for an owner. Default: [`Times::owner_wait`](super::Times::owner_wait).
    pub owner_wait: Option<Duration>,
    /// Application metadata that travels with the request.
    pub meta: Meta,
    /// The turn that it belongs to. Default: none.
    pub turn: Option<TurnKey>,
}

impl Request {
    /// A call of this tool.
    pub fn new(tool: impl Into<String>, arguments: Value) -> Self {
        Self {
            tool: tool.into(),
            arguments,
            owner: None,
            timeout: None,
            owner_wait: None,
            meta: Meta::default(),
            turn: None,
        }
    }

    /// To be run by this participant.
    #[must_use]
    pub fn to(mut self, owner: impl Into<Identity>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Within this time.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Waiting this long for somebody who offers the tool.
    #[must_use]
    pub fn owner_wait(mut self, wait: Duration) -> Self {
        self.owner_wait = Some(wait);
        self
    }

    /// As part of this turn, which a barge-in ends.
    #[must_use]
    pub fn turn(mut self, turn: TurnKey) -> Self {
        self.turn = Some(turn);
        self
    }

    /// With this entry in the frame's `meta`.
    #[must_use]
    pub fn meta(mut self, key: &str, value: Value) -> Self {
        self.meta.set_body(key, value);
        self
    }
}

/// To whom a raw frame goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination {
    /// To these participants.
    Peers(Vec<Identity>),
    /// To the whole room, hidden participants included.
    Room,
}

/// Why a raw frame was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendFrameError {
    /// This type belongs to the session.
    #[error("type {kind} belongs to the session; only other types can be sent as they are")]
    Reserved {
        /// The type.
        kind: u16,
    },
    /// It is for nobody.
    #[error("the frame has no destination; the whole room must be meant")]
    NoDestination,
    /// It is larger than one packet.
    #[error("{size} bytes are more than the {limit} of one packet")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// It cannot be encoded.
    #[error("the frame cannot be encoded: {0}")]
    Encode(#[source] EncodeError),
    /// We are not in the room any more.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}

/// Why a packet was not handed to the room: it has not left this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendFailure {
    /// It is larger than the transport can carry.
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Our token does not allow us to publish data.
    NotAllowed,
    /// Not connected.
    Closed,
    /// The connection was lost before it left. What it carried goes when the connection is back.
    Interrupted,
    /// Too many packets wait before it.
    QueueFull,
    /// Another reason, in words.
    Other(String),
}

/// Something that happened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A participant came.
    Joined(Participant),
    /// A participant left.
    Left(Peer),
    /// What this participant offers has changed.
    ToolsChanged {
        /// Who offers.
        owner: Identity,
    },
    /// Client: the assistant that is bound now, if any.
    Bound(Option<Identity>),
    /// Client: several may be the assistant and none was configured, so none is bound.
    AmbiguousAssistant {
        /// Who may be.
        candidates: Vec<Identity>,
    },
    /// Client: the assistant answered our registration.
    Registered {
        /// The assistant.
        by: Identity,
        /// How many tools it took.
        tools: usize,
        /// What it refused and why, in its words.
        refused: Option<String>,
    },
    /// Client: nobody accepts our registration, so that nobody can call our tools. The log says so, too.
    Unaccepted {
        /// Why not.
        why: Unaccepted,
    },
    /// Assistant: a participant wants to offer tools, or would be a second one without a role, and is not admitted.
    /// Reported once in each of its joins; the log says so, too.
    NotAdmitted {
        /// The participant.
        client: Identity,
        /// Why not. It names the participant that is admitted in its place, if there is one.
        why: NotAdmitted,
    },
    /// Our token does not allow us to send data (`canPublishData`): we only hear. Told for each packet.
    NotAllowed,
    /// The connection was lost or restored.
    ConnectionState(ConnectionState),
    /// A call was asked for: by us, of us, or by our assistant of itself. Of us, one that the assistant may run as
    /// well is told when it is ours; and the assistant tells it once more when it runs such a call itself.
    Requested {
        /// The call.
        call: CallId,
        /// The tool's name, as written.
        tool: String,
        /// Who executes.
        execution: Execution,
        /// Who owes the answer.
        owner: Identity,
        /// Who asked.
        by: Identity,
    },
    /// The owner acknowledged a request of ours.
    Delivered {
        /// The call.
        call: CallId,
        /// The owner.
        owner: Identity,
    },
    /// How far a call has come; the first says that the owner has begun.
    Progress {
        /// Our call, if it is ours.
        key: Option<CallKey>,
        /// The call.
        call: CallId,
        /// What its owner says.
        progress: Progress,
    },
    /// A call has ended: ours, one that we ran, or one that our assistant ran itself.
    Settled {
        /// The call.
        call: CallId,
        /// The tool's name, as written.
        tool: String,
        /// Who executed.
        execution: Execution,
        /// Who owed the answer; nobody if none was found.
        owner: Option<Identity>,
        /// Whether it succeeded.
        outcome: Result<(), ErrorCode>,
        /// From the request, as we saw it, to the outcome.
        took: Duration,
    },
    /// A tool of ours failed with an error whose text stays in this process: it is told here, and nowhere
    /// else, since it may hold what the tool was given.
    ToolFailed {
        /// The call.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// The error's text, or a panic's with its place.
        reason: LocalText,
    },
    /// A frame of a type that is not the session's.
    Frame {
        /// Who sent it.
        from: Peer,
        /// The frame.
        frame: Frame,
    },
    /// A peer told of an error (type 1) that settles no call.
    PeerError {
        /// Who.
        by: Identity,
        /// Its code: `wire.md`, section 8.
        code: i32,
        /// Its words.
        message: String,
        /// Whether it can go on.
        recoverable: bool,
    },
    /// A participant violated the protocol; what it sent had no effect. Reported at most once in
    /// [10 s](super::COMPLAINT_INTERVAL) for each participant and kind.
    Violation {
        /// The participant, or `None` if the server did not report the sender.
        by: Option<Identity>,
        /// The kind of violation.
        what: Counter,
        /// How often it happened since the last report.
        times: u64,
    },
    /// A call that a barge-in had left running has ended: see
    /// [`Session::late_results`](super::Session::late_results).
    LateResult {
        /// The call.
        call: CallId,
        /// The tool's name.
        tool: String,
        /// Who ran it, if anybody was asked.
        owner: Option<Identity>,
        /// Whether it succeeded after all.
        outcome: Result<(), ErrorCode>,
    },
    /// A consent that was given for the session is void, since the tool's definition or its caller's run has
    /// changed: the person will be asked again.
    ConsentVoid {
        /// The tool.
        tool: ToolName,
        /// Whom it was given to.
        caller: Identity,
    },
    /// The recording that was asked for stopped before its end, as when the disk is full; everything else goes on. A
    /// session itself never says so.
    RecordingStopped {
        /// Why.
        reason: String,
    },
    /// This many events were lost because the reader was too slow. A session itself never says so.
    Missed(u64),
    /// It is over, and nothing follows.
    Closed(CloseReason),
}

/// The reason why nobody accepts a client's registration: [`Event::Unaccepted`]. `Display` says it in words.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unaccepted {
    /// The assistant refused all of it.
    Refused {
        /// The assistant.
        by: Identity,
        /// The reason that it gave.
        reason: String,
    },
    /// Participants are in the room, none of them may be the assistant, and the configuration names none.
    NoAssistant {
        /// Those participants, at most 8.
        here: Vec<Identity>,
    },
}

/// A text that stays in this process. `Debug` shows its length.
#[derive(Clone, PartialEq, Eq)]
pub struct LocalText(Arc<str>);

impl LocalText {
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LocalText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LocalText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_local_text_shows_its_size_alone() {
        let event = LocalText::new("panicked: secret");
        assert_eq!(format!("{event:?}"), "16 B");
        assert_eq!(event.as_str(), "panicked: secret");
    }
}
