//! Defines the outputs and the events.

use std::mem;

use super::{
    form::{Id, Json, Malformed, Writer},
    shared::{
        Attribute, CallError, CloseReason, ConnectionState, Execution, Lane, Participant, Peer,
        ProgressStatus, StopReason, Tool, UnacceptedReason,
    },
};

record! {
    /// How a packet is sent that is too large for one.
    StreamInfo {
        /// The stream's id.
        id: String,
        /// The topic.
        topic: String,
        /// The size, in bytes.
        length: u64,
        /// The attributes of its header.
        attributes: Vec<Attribute>,
    }
}

record! {
    /// A candidate for a selection.
    Candidate {
        /// The identity.
        identity: String,
        /// The participant, if it was announced.
        participant: Option<Participant>,
        /// The tool as it registered it.
        tool: Option<Tool>,
    }
}

messages! {
    /// An instruction to the driver.
    write Output("type") {
        /// Send this packet.
        Transmit = "transmit" {
            /// The packet's key.
            packet: u64,
            /// The identities that get it. Empty only in a broadcast.
            to: Vec<String>,
            /// Whether it is for the whole room.
            broadcast: bool,
            /// The topic.
            topic: String,
            /// The lane.
            lane: Lane,
            /// Whether it may be sent before larger ones that wait.
            overtakes: bool,
            /// The byte stream as which it is sent, if it is too large for one packet.
            stream: Option<StreamInfo>,
            /// The payload.
            bytes: Vec<u8>,
        },
        /// Run this tool.
        Execute = "execute" {
            /// The job.
            key: u64,
            /// The call's id.
            call: String,
            /// The caller.
            caller: String,
            /// The tool.
            tool: String,
            /// The arguments: an object.
            arguments: Json,
            /// When the job times out.
            ends_at as "endsAtMs": f64,
            /// The whole time limit, in milliseconds.
            limit as "limitMs": f64,
            /// The metadata of the request.
            meta: Json,
        },
        /// Ask a person, and answer by `consent`. The arguments are checked first: `settle` with `invalid_parameters` answers, too.
        Ask = "ask" {
            /// The question.
            key: u64,
            /// The call's id.
            call: String,
            /// The caller.
            caller: String,
            /// The tool.
            tool: Tool,
            /// The arguments: an object.
            arguments: Json,
            /// What a person is shown: who calls, the tool and all arguments, with control and invisible characters as escapes.
            /// None if the arguments have more than 16 KiB so: nobody reads more, so the question must be refused.
            text: Option<String>,
            /// When a missing answer becomes a refusal.
            until as "untilMs": f64,
        },
        /// Select a participant, and answer by `select`.
        Select = "select" {
            /// The selection.
            key: u64,
            /// The tool. None if a client selects its assistant.
            tool: Option<String>,
            /// The candidates.
            candidates: Vec<Candidate>,
        },
        /// Stop this job, or withdraw its question. Its outcome is ignored.
        Abort = "abort" {
            /// The job.
            key: u64,
            /// The reason.
            reason: StopReason,
        },
        /// A call of this participant has made progress.
        Progress = "progress" {
            /// The call.
            id: Id,
            /// Its id in the room.
            call: String,
            /// The state of the tool.
            status: ProgressStatus,
            /// A text.
            message: Option<String>,
            /// Structured content.
            content: Option<Json>,
        },
        /// A call has ended: with a value or an error.
        Result = "result" {
            /// The call.
            id: Id,
            /// The value.
            value: Option<Json>,
            /// What the model reads of the value, at most 32 KiB, unless that is the value itself.
            for_model as "forModel": Option<String>,
            /// Whether a model has to run, if there is a text for it.
            needs_model as "needsModel": Option<bool>,
            /// A text to speak exactly.
            spoken: Option<String>,
            /// The error.
            error: Option<CallError>,
        },
        /// Something happened.
        Event = "event" {
            /// The event.
            event: Event,
        },
    }
}

messages! {
    /// Something that an application or a log may show.
    write Event("event") {
        /// A participant joined.
        Joined = "joined" {
            /// The participant.
            participant: Participant,
        },
        /// A participant left.
        Left = "left" {
            /// The participant.
            peer: Peer,
        },
        /// The tools of a participant have changed.
        ToolsChanged = "tools_changed" {
            /// The participant.
            owner: String,
            /// The names of all tools that it offers now.
            tools: Vec<String>,
        },
        /// Client: the bound assistant has changed.
        Bound = "bound" {
            /// The assistant, if one is bound.
            assistant: Option<String>,
        },
        /// Client: several participants may be the assistant.
        AmbiguousAssistant = "ambiguous_assistant" {
            /// The participants.
            candidates: Vec<String>,
        },
        /// Client: the assistant answered the registration.
        Registered = "registered" {
            /// The assistant.
            by: String,
            /// How many tools it accepted.
            tools: u64,
            /// What it refused, and why.
            refused: Option<String>,
        },
        /// Client: no assistant accepts the registration.
        Unaccepted = "unaccepted" {
            /// The kind of reason.
            why: UnacceptedReason,
            /// The participant, if the reason is about one.
            by: Option<String>,
            /// The reason and what to do.
            message: String,
        },
        /// Assistant: a participant is not admitted.
        NotAdmitted = "not_admitted" {
            /// The participant.
            client: String,
            /// The reason and what to do.
            message: String,
        },
        /// The token does not allow the local participant to publish data.
        NotAllowed = "not_allowed" {
            /// What to do.
            message: String,
        },
        /// The connection was lost or restored.
        Connection = "connection" {
            /// The state.
            state: ConnectionState,
        },
        /// A call was requested.
        Requested = "requested" {
            /// The caller's name of it, if this participant made it.
            id: Option<Id>,
            /// The call's id.
            call: String,
            /// The tool.
            tool: String,
            /// The side that runs it.
            execution: Execution,
            /// The participant that must answer.
            owner: String,
            /// The caller.
            by: String,
        },
        /// The owner has the request.
        Delivered = "delivered" {
            /// The caller's name of it, if this participant made it.
            id: Option<Id>,
            /// The call's id.
            call: String,
            /// The owner.
            owner: String,
        },
        /// A call of another participant has made progress.
        Progress = "progress" {
            /// The call's id.
            call: String,
            /// The state of the tool.
            status: ProgressStatus,
            /// A text.
            message: Option<String>,
            /// Structured content.
            content: Option<Json>,
        },
        /// A call has ended.
        Settled = "settled" {
            /// The call's id.
            call: String,
            /// The tool.
            tool: String,
            /// The side that ran it.
            execution: Execution,
            /// The participant that had to answer.
            owner: Option<String>,
            /// `ok` or an error code.
            outcome: String,
            /// The time between request and outcome, in milliseconds.
            took as "tookMs": f64,
        },
        /// A local tool failed, and the cause stays in this process.
        ToolFailed = "tool_failed" {
            /// The call's id.
            call: String,
            /// The tool.
            tool: String,
            /// The cause.
            cause: String,
        },
        /// A frame arrived whose type the session does not handle.
        Frame = "frame" {
            /// The sender.
            from: Peer,
            /// The type.
            kind: u64,
            /// The whole frame.
            frame: Json,
        },
        /// A peer reported an error.
        PeerError = "peer_error" {
            /// The peer.
            by: String,
            /// The code.
            code: i32,
            /// The message.
            message: String,
            /// Whether the peer can continue.
            recoverable: bool,
        },
        /// A participant violated the protocol.
        Violation = "violation" {
            /// The participant, if the server named one.
            by: Option<String>,
            /// The counter.
            what: String,
            /// How often.
            times: u64,
            /// What was wrong with the first one, or what to do, if its packets cannot be read.
            message: Option<String>,
        },
        /// Client: the assistant shows the state of a view.
        View = "view" {
            /// The assistant.
            by: String,
            /// The view.
            view: String,
            /// The content; null ends the view.
            content: Json,
            /// A text that says the same.
            text: Option<String>,
        },
        /// A call that a barge-in left running has ended.
        LateResult = "late_result" {
            /// The caller's name of it.
            id: Option<Id>,
            /// The call's id.
            call: String,
            /// The tool.
            tool: String,
            /// The participant that ran it.
            owner: Option<String>,
            /// `ok` or an error code.
            outcome: String,
            /// The value, in the line protocol. A session returns it by the query `late_results`, as what follows.
            value: Option<Json>,
            /// The error.
            error: Option<CallError>,
            /// The time between the call and its end, in milliseconds.
            took as "tookMs": Option<f64>,
            /// The parameters of a reported event.
            parameters: Option<Json>,
        },
        /// A consent for the session no longer holds.
        ConsentVoid = "consent_void" {
            /// The tool.
            tool: String,
            /// The caller that had the consent.
            caller: String,
        },
        /// The session has ended.
        Closed = "closed" {
            /// The reason.
            reason: CloseReason,
        },
    }
}

inlined!(Event);

impl Event {
    /// Checks names that `listen` has, of which these are no events of a session.
    pub fn checked(names: Vec<String>, others: &[&str]) -> Result<Vec<String>, Malformed> {
        match names.iter().position(|name| !Self::NAMES.contains(&&**name) && !others.contains(&&**name)) {
            Some(at) => {
                let error = Malformed::new(format_args!("{:?} is no event", names[at]));
                Err(error.of(&format!("[{at}]")).of("events"))
            }
            None => Ok(names),
        }
    }
}

impl Output {
    /// Returns the result of a call that was not made.
    pub fn refused(id: Id, error: CallError) -> Self {
        Self::Result { id, value: None, for_model: None, needs_model: None, spoken: None, error: Some(error) }
    }

    /// Writes the output without its bytes, and returns them.
    pub fn into_parts(mut self) -> (String, Option<Vec<u8>>) {
        let bytes = match &mut self {
            Self::Transmit { bytes, .. } => Some(mem::take(bytes)),
            _ => None,
        };
        (self.written(Writer::omitting_bytes(true)), bytes)
    }
}
