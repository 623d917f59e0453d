//! Defines the outputs of a session: packets, jobs, outcomes and events.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    keys::{CallKey, TurnKey},
    selection::Selection,
    stats::Counter,
};
use crate::{
    clock::Instant,
    protocol::frame::{Frame, Meta, ViewUpdate},
    tool::{
        CallError, CallId, ErrorCode, Execution, Job, JobKey, NotAdmitted, NotAssistant, Progress,
        RegisterError, SourceStatus, StopReason, Tool, ToolName,
    },
    transport::{CloseReason, ConnectionState, Identity, Packet, Participant, Peer},
    value::{EncodeError, Value},
};

/// An instruction to the driver of a [`Session`](super::Session). The enum is exhaustive on purpose: a driver must
/// handle each variant.
#[derive(Debug)]
pub enum Output {
    /// Send this packet through the transport. If that fails, report it with `handle_send_failed`.
    Transmit(Packet),
    /// Run this tool and report its outcome with `settle`.
    ///
    /// When the tool starts, report [`Progress::started`] with `progress`: its own time limit begins then. A job that its
    /// schema rejects has not started.
    Execute(Job),
    /// Ask a person whether this job may run, and report the answer with `consent`. The job waits for the answer; a
    /// missing answer counts as a refusal.
    Ask(Question),
    /// Select a participant ([`Selection::evaluate`]) and report it with `select`. Only
    /// [`SelectionPolicy::By`](super::SelectionPolicy::By) causes this.
    Select(Selection),
    /// Stop this job or withdraw its question. Its outcome is no longer needed.
    Abort {
        /// The job.
        key: JobKey,
        /// Why it stops.
        reason: StopReason,
    },
    /// A call of the local participant has ended. No further output has this key.
    Settled {
        /// The call.
        key: CallKey,
        /// How it ended.
        result: Result<Value, CallError>,
    },
    /// Something happened that an application or a log may show.
    Event(Event),
}

/// A question to a person: may this tool run with these arguments?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Question {
    /// Identifies the question in [`Session::consent`](crate::session::Session::consent), and in [`Output::Abort`] if it is
    /// withdrawn.
    pub key: JobKey,
    /// The call's id on the wire.
    pub call: CallId,
    /// The caller.
    pub caller: Identity,
    /// The tool, as offered now.
    pub tool: Tool,
    /// The arguments for the tool: a map, not checked against the schema.
    pub arguments: Value,
    /// The time at which a missing answer becomes a refusal.
    pub until: Instant,
}

/// A request to call a tool.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The tool's name.
    pub tool: String,
    /// The arguments: a map.
    pub arguments: Value,
    /// The participant that must run the tool. Default: the only one that offers it.
    pub owner: Option<Identity>,
    /// The time limit of the whole call. Default: [`Times::call`](super::Times::call).
    pub timeout: Option<Duration>,
    /// The longest wait for an owner. Default: [`Times::owner_wait`](super::Times::owner_wait).
    pub owner_wait: Option<Duration>,
    /// Application metadata, sent with the request.
    pub meta: Meta,
    /// The turn that the call belongs to. Default: none.
    pub turn: Option<TurnKey>,
}

impl Request {
    /// Creates a call of this tool.
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

    /// Sets the participant that must run the tool.
    #[must_use]
    pub fn to(mut self, owner: impl Into<Identity>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// Sets the time limit of the whole call.
    #[must_use]
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Sets the longest wait for a participant that offers the tool.
    #[must_use]
    pub fn owner_wait(mut self, wait: Duration) -> Self {
        self.owner_wait = Some(wait);
        self
    }

    /// Makes the call part of this turn, which a barge-in ends.
    #[must_use]
    pub fn turn(mut self, turn: TurnKey) -> Self {
        self.turn = Some(turn);
        self
    }

    /// Adds this entry to the frame's `meta`.
    #[must_use]
    pub fn meta(mut self, key: &str, value: Value) -> Self {
        self.meta.set_body(key, value);
        self
    }
}

/// The destination of a raw frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Destination {
    /// These participants.
    Peers(Vec<Identity>),
    /// The whole room, including hidden participants.
    Room,
}

/// The reason why a raw frame was not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendFrameError {
    /// Only the session sends frames of this type.
    #[error("type {kind} is reserved for the session; use another type for raw frames")]
    Reserved {
        /// The type.
        kind: u16,
    },
    /// The frame has no destination.
    #[error("the frame has no destination; name the recipients, or use `Destination::Room`")]
    NoDestination,
    /// The frame is larger than one packet.
    #[error("a frame of {size} bytes exceeds the packet limit of {limit} bytes")]
    TooLarge {
        /// The frame's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The frame cannot be encoded.
    #[error("the frame cannot be encoded: {0}")]
    Encode(#[source] EncodeError),
    /// The local participant has left the room.
    #[error("not in the room: {0}")]
    Closed(CloseReason),
}

/// The reason why a packet was not sent. The packet has not left this process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendFailure {
    /// The packet is larger than the transport allows.
    TooLarge {
        /// The packet's size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The token does not allow the local participant to publish data.
    NotAllowed,
    /// The transport is not connected.
    Closed,
    /// The connection was lost before the packet left. The session sends its content again after the reconnect.
    Interrupted,
    /// The transport's queue is full.
    QueueFull,
    /// Another reason, as text.
    Other(String),
}

/// Something that an application or a log may show.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A participant joined.
    Joined(Participant),
    /// A participant left.
    Left(Peer),
    /// The tools that this participant offers have changed.
    ToolsChanged {
        /// The participant.
        owner: Identity,
    },
    /// A source offers a tool that the local participant cannot offer. The others are offered. It is also logged.
    ToolLeftOut {
        /// The tool.
        tool: ToolName,
        /// The reason.
        why: RegisterError,
    },
    /// A tool of a source is offered as `NAME.tool`, because another source offers its name. It is also logged.
    ToolRenamed {
        /// The name of the source.
        source: Box<str>,
        /// The source's name for the tool.
        tool: ToolName,
        /// The name that is offered.
        offered_as: ToolName,
    },
    /// The description of a tool that comes from a server is cut, because it is over the limit, or because all tools are. It
    /// is also logged.
    DescriptionCut {
        /// The tool.
        tool: ToolName,
        /// The size of the description, in bytes.
        size: usize,
        /// How much of it is offered, in bytes.
        offered: usize,
    },
    /// A pattern in the schema of a tool is not checked, because it cannot be compiled to a search in linear time: it has
    /// look-around or back-references, is too large, or is spelled wrongly. The rest of the schema is checked. It is also
    /// logged.
    PatternUnchecked {
        /// The tool.
        tool: ToolName,
        /// The pattern, cut to 200 characters.
        pattern: Box<str>,
    },
    /// A source says what a person should know about its tools: one that it does not offer, or that has another name in the
    /// room.
    SourceNote {
        /// The name of the source; empty if it has none.
        source: Box<str>,
        /// What it says, in words that may come from a server; at most 512 bytes.
        text: Box<str>,
    },
    /// A tool of the local participant has reported something odd, such as a result that violates the tool's output schema.
    /// The call is not affected. It is also logged.
    ToolWarning {
        /// The call.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// The report, at most 1 KiB.
        text: String,
    },
    /// The health of a tool source of the local participant has changed.
    Source(SourceStatus),
    /// Client: the bound assistant has changed. `None`: no assistant is bound.
    Bound(Option<Identity>),
    /// Client: several participants may be the assistant and the configuration names none. None is bound.
    AmbiguousAssistant {
        /// The participants that may be the assistant.
        candidates: Vec<Identity>,
    },
    /// Client: the assistant answered the registration.
    Registered {
        /// The assistant.
        by: Identity,
        /// The number of tools that it accepted.
        tools: usize,
        /// The tools that it refused and its reasons, as it wrote them.
        refused: Option<String>,
    },
    /// Client: no assistant accepts the registration, so nobody can call the client's tools, or the client does not accept
    /// a participant as its assistant. It is also logged.
    Unaccepted {
        /// The reason.
        why: Unaccepted,
    },
    /// Assistant: a participant is not admitted. It wants to offer tools, or is a second participant without a role.
    /// Emitted once for each of its joins; it is also logged.
    NotAdmitted {
        /// The participant.
        client: Identity,
        /// The reason. It names the participant that is admitted instead, if there is one.
        why: NotAdmitted,
    },
    /// The token does not allow the local participant to publish data (`canPublishData`): it only receives. Emitted for
    /// each packet that is refused.
    NotAllowed,
    /// The connection was lost or restored.
    ConnectionState(ConnectionState),
    /// A call was requested: by the local participant, from it, or by the assistant from itself.
    ///
    /// For an `either` call, which the assistant may run as well, a client emits it when its claim is granted. The
    /// assistant emits it a second time when it runs such a call itself.
    Requested {
        /// The call.
        call: CallId,
        /// The tool's name, as sent.
        tool: String,
        /// The side that runs the tool.
        execution: Execution,
        /// The participant that must answer.
        owner: Identity,
        /// The caller.
        by: Identity,
    },
    /// The owner acknowledged a request of the local participant.
    Delivered {
        /// The call.
        call: CallId,
        /// The owner.
        owner: Identity,
    },
    /// A call has made progress. The first update says that the tool has started.
    Progress {
        /// The key of the call, if the local participant requested it.
        key: Option<CallKey>,
        /// The call.
        call: CallId,
        /// The update, as the owner sent it.
        progress: Progress,
    },
    /// A call has ended: one that the local participant requested or ran, or one that the assistant ran itself.
    Settled {
        /// The call.
        call: CallId,
        /// The tool's name, as sent.
        tool: String,
        /// The side that ran the tool.
        execution: Execution,
        /// The participant that had to answer; `None` if none was found.
        owner: Option<Identity>,
        /// The caller. Callers choose the ids, so calls of two may have one id.
        by: Identity,
        /// Whether it succeeded.
        outcome: Result<(), ErrorCode>,
        /// The time between the request, as seen by the local participant, and the outcome.
        took: Duration,
    },
    /// A tool of the local participant failed with an error whose text stays in this process. Only this event has the
    /// text, since it may contain the tool's arguments.
    ToolFailed {
        /// The call.
        call: CallId,
        /// The tool.
        tool: ToolName,
        /// The error's text, or a panic's message with its source location.
        reason: LocalText,
    },
    /// A frame arrived whose type the session does not handle.
    Frame {
        /// The sender.
        from: Peer,
        /// The frame.
        frame: Frame,
    },
    /// A peer reported an error (type 1) that settles no call.
    PeerError {
        /// The peer.
        by: Identity,
        /// The error code (`wire.md`, section 8).
        code: i32,
        /// The error message, as the peer sent it.
        message: String,
        /// Whether the peer can continue.
        recoverable: bool,
    },
    /// A participant violated the protocol; what it sent had no effect. Reported at most once in
    /// [10 s](super::COMPLAINT_INTERVAL) for each participant and kind, and once a minute if its packets cannot be read.
    Violation {
        /// The participant, or `None` if the server did not report the sender.
        by: Option<Identity>,
        /// The kind of violation.
        what: Counter,
        /// How often it happened since the last report.
        times: u64,
        /// What was wrong with the first one, if more is known than its kind.
        why: Option<Box<str>>,
    },
    /// Client: the assistant shows the state of a view, which replaces the one before. The same state may come again.
    View {
        /// The assistant.
        by: Identity,
        /// The state. Nil as content ends the view.
        view: ViewUpdate,
    },
    /// A call that a barge-in left running has ended, or a reported event ([`ToolName::EVENT`]). See [`Session::late_results`](super::Session::late_results).
    LateResult {
        /// The call.
        call: CallId,
        /// The tool's name.
        tool: String,
        /// The participant that ran the tool, if the call had an owner.
        owner: Option<Identity>,
        /// Whether the call succeeded.
        outcome: Result<(), ErrorCode>,
    },
    /// A consent for the rest of the session no longer holds, because the tool's definition or the caller's process has
    /// changed. The next call asks the person again.
    ConsentVoid {
        /// The tool.
        tool: ToolName,
        /// The caller that had the consent.
        caller: Identity,
    },
    /// The recording stopped before its end, for example because the disk is full. Everything else continues. The
    /// session itself never emits it.
    RecordingStopped {
        /// The reason.
        reason: String,
    },
    /// This many events were lost because the reader was too slow. The session itself never emits it.
    Missed(u64),
    /// The session has ended. No event follows.
    Closed(CloseReason),
}

/// The reason why no assistant accepts a client's registration ([`Event::Unaccepted`]). `Display` describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unaccepted {
    /// The assistant refused the whole registration.
    Refused {
        /// The assistant.
        by: Identity,
        /// The reason that it gave.
        reason: String,
    },
    /// No participant in the room may be the assistant, and the configuration names none.
    NoAssistant {
        /// The participants in the room, at most 8.
        here: Vec<Identity>,
    },
    /// A participant greeted or called the client like an assistant, but may not be one. Emitted once for each of its
    /// joins.
    NotAssistant {
        /// The participant.
        from: Identity,
        /// The reason.
        why: NotAssistant,
    },
}

/// A text that stays in this process. `Debug` shows only its length.
#[derive(Clone, PartialEq, Eq)]
pub struct LocalText(Arc<str>);

impl LocalText {
    pub(super) fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the text.
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
