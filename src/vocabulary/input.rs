//! Defines the inputs and the queries.

use std::mem;

use super::{
    form::{Id, Json, Malformed, Write, Writer},
    shared::{
        Attribute, CloseReason, ConnectionState, Lane, MetaEntry, Participant, Peer, ProgressStatus, Tool,
        ToolFailure,
    },
};

names! {
    /// Why a packet was not sent. It has not left this process.
    SendFailureKind {
        /// It is larger than the transport allows.
        TooLarge = "too_large",
        /// The token does not allow publishing data.
        NotAllowed = "not_allowed",
        /// The transport is not connected.
        Closed = "closed",
        /// The connection was lost before the packet left.
        Interrupted = "interrupted",
        /// The transport's or the shell's queue is full.
        QueueFull = "queue_full",
        /// Another reason.
        Other = "other",
    }
}

names! {
    /// Why a received packet cannot be read.
    Unreadable {
        /// It is encrypted, and the local participant has no key.
        Encrypted = "encrypted",
        /// It is not encrypted, although the local participant has a key.
        NotEncrypted = "not_encrypted",
        /// The local key does not open it.
        Undecryptable = "undecryptable",
    }
}

messages! {
    /// What happened, and what the application wants.
    read Input("type") {
        /// A participant joined or changed: its attributes, permissions or metadata. Of the local one: it was announced to the others.
        ParticipantJoined = "participant_joined" {
            /// The participant.
            participant: Participant,
        },
        /// A participant left.
        ParticipantLeft = "participant_left" {
            /// The participant.
            peer: Peer,
        },
        /// The connection was lost, or restored under the same sid.
        Connection = "connection" {
            /// The state.
            state: ConnectionState,
        },
        /// The connection was restored under another sid. The core gives up the packets in its queue; a room with a queue of its own
        /// reports each of its packets by `send_failed` first.
        Rejoined = "rejoined" {
            /// The local participant.
            local: Participant,
            /// The participants that are present.
            present: Vec<Participant>,
        },
        /// The connection ended. Outputs follow, and later inputs have no effect.
        Closed = "closed" {
            /// The reason.
            reason: CloseReason,
        },
        /// A packet arrived. One of another topic than `toolbridge` has no effect.
        Packet = "packet" {
            /// The sender, if the server names one.
            from: Option<Peer>,
            /// The lane.
            lane: Lane = Lane::Reliable,
            /// The topic; empty if there is none.
            topic: String = String::new(),
            /// The payload.
            bytes: Vec<u8>,
        },
        /// The header of a byte stream arrived. The reply `stream` says whether it is to be read: one of another topic than
        /// `toolbridge.frame` is not, nor that of a participant without rights.
        StreamHeader = "stream_header" {
            /// The sender.
            from: Peer,
            /// The stream's id.
            id: String,
            /// The topic.
            topic: String,
            /// The announced size, in bytes.
            length: Option<u64>,
            /// The attributes.
            attributes: Vec<Attribute>,
        },
        /// A chunk of a byte stream arrived. The reply `stream` says whether the rest is to be read.
        StreamChunk = "stream_chunk" {
            /// The sender.
            from: Peer,
            /// The stream's id.
            id: String,
            /// The chunk's index, from 0.
            index: u64,
            /// The payload.
            bytes: Vec<u8>,
        },
        /// A byte stream ended.
        StreamTrailer = "stream_trailer" {
            /// The sender.
            from: Peer,
            /// The stream's id.
            id: String,
            /// The reason if it was aborted; empty if it is complete.
            reason: String = String::new(),
        },
        /// A packet arrived that cannot be read.
        Unreadable = "unreadable" {
            /// The sender, if the server names one.
            from: Option<Peer>,
            /// The reason.
            why: Unreadable,
        },
        /// So many bytes wait on the reliable lane. Once reported, it is reported before the last output of each round.
        Backlog = "backlog" {
            /// The bytes.
            size: u64,
        },
        /// A packet was not sent.
        SendFailed = "send_failed" {
            /// The packet.
            packet: u64,
            /// The reason.
            why: SendFailureKind,
            /// The packet's size, if it is too large.
            size: u64 = 0,
            /// The largest size.
            max: u64 = 0,
            /// Another reason, as text.
            text: String = String::new(),
        },
        /// The deadline has passed. One that is too early or too late does no harm.
        Timeout = "timeout" {},
        /// Replaces the offered tools. The reply is `offered`.
        Offer = "offer" {
            /// The tools. One that is malformed cannot be offered.
            tools: Vec<Result<Tool, Malformed>>,
            /// Whether tools that cannot be offered are left out. Otherwise nothing changes if there is one.
            partial: bool = false,
        },
        /// A job has made progress. An empty one also says that its tool has started, as `start` does.
        Progress = "progress" {
            /// The job.
            key: u64,
            /// The state of the tool.
            status: ProgressStatus = ProgressStatus::InProgress,
            /// A text.
            message: Option<String>,
            /// Structured content.
            content: Option<Json>,
        },
        /// A job has ended: with a value or an error. If neither can be read, or both or none are there, it has ended as
        /// `execution_error`: what an author returns or throws must not leave its caller waiting.
        Settle = "settle" {
            /// The job.
            key: u64,
            /// The result.
            value: Option<Json>,
            /// The failure.
            error: Option<Result<ToolFailure, Malformed>>,
        },
        /// A person has answered.
        Consent = "consent" {
            /// The question.
            key: u64,
            /// Whether the job may run.
            allowed: bool,
        },
        /// Answers a selection.
        Select = "select" {
            /// The selection.
            key: u64,
            /// The selected candidate.
            identity: Option<String>,
        },
        /// Starts a call. Its end is the output `result`.
        Call = "call" {
            /// The caller's name of it, which no open call has.
            id: Id,
            /// The tool.
            tool: String,
            /// The arguments: an object.
            arguments: Json = Json { text: "{}".to_owned() },
            /// Whether a model makes the call: `tool` and the keys of `arguments` are those of `model_tools`.
            model: bool = false,
            /// The participant that must run the tool.
            to: Option<String>,
            /// The time limit of the whole call, in milliseconds.
            timeout as "timeoutMs": Option<f64>,
            /// The longest wait for a participant that offers the tool, in milliseconds.
            owner_wait as "ownerWaitMs": Option<f64>,
            /// Metadata, which is sent with the request.
            meta: Vec<MetaEntry>,
            /// The turn that it belongs to. It begins with the first call that names it.
            turn: Option<Id>,
        },
        /// Cancels a call. One that has ended is not affected.
        Cancel = "cancel" {
            /// The call.
            id: Id,
        },
        /// Detaches a call from its caller, who gets no `result`. Its id is free.
        Detach = "detach" {
            /// The call.
            id: Id,
        },
        /// Ends a turn because the user interrupted. It accepts no calls any more.
        BargeIn = "barge_in" {
            /// The turn.
            turn: Id,
        },
        /// Ends a turn without an interruption. It accepts no calls any more.
        TurnEnd = "turn_end" {
            /// The turn.
            turn: Id,
        },
        /// Client: asks the assistant to stop a call, or all that a barge-in would stop. The reply is `done` or `failed`.
        AskToStop = "ask_to_stop" {
            /// The call's id.
            call: Option<String>,
        },
        /// Assistant: shows the state of a view. The reply is `done` or `failed`.
        ShowView = "show_view" {
            /// The view.
            view: String,
            /// The content; null ends the view.
            content: Json,
            /// A text that says the same.
            text: Option<String>,
        },
        /// Starts to wait for a client, until `stop_expecting`.
        Expect = "expect" {
            /// The client.
            identity: String,
        },
        /// Ends one wait for a client.
        StopExpecting = "stop_expecting" {
            /// The client.
            identity: String,
        },
        /// Pings a client that has not registered.
        Probe = "probe" {
            /// The client.
            identity: String,
        },
        /// Names the events that are outputs from now on, and `progress` that of own calls. Before, all are.
        Listen = "listen" {
            /// Their names.
            events: Vec<String>,
        },
        /// Refuses new requests as busy.
        Drain = "drain" {},
        /// Leaves the room with a goodbye. Outputs follow, and later inputs have no effect.
        Close = "close" {},
    }
}

impl Input {
    /// Returns the input as JSON without its time and its field `bytes`, and that field.
    pub fn into_parts(mut self) -> (String, Option<Vec<u8>>) {
        let bytes = match &mut self {
            Self::Packet { bytes, .. } | Self::StreamChunk { bytes, .. } => Some(mem::take(bytes)),
            _ => None,
        };
        (self.written(Writer::omitting_bytes(true)), bytes)
    }

    /// Writes the input of this time as JSON.
    pub fn to_timed_json(&self, at: f64) -> String {
        let mut out = Writer::default();
        out.open();
        at.write_field("atMs", &mut out);
        self.write_fields(&mut out);
        out.close();
        out.finish()
    }
}

messages! {
    /// A question about the session's state.
    read Query("type") {
        /// The tools that can be called.
        Tools = "tools" {},
        /// The tools that can be called, in the form that all model APIs accept.
        ModelTools = "model_tools" {},
        /// The announced participants.
        Participants = "participants" {},
        /// The counters.
        Stats = "stats" {},
        /// The state of the session.
        State = "state" {},
        /// The last settled calls and the open ones.
        Records = "records" {},
        /// The record of one call.
        Record = "record" {
            /// The call's id.
            call: String,
        },
        /// Whether a participant is ready for calls.
        Readiness = "readiness" {
            /// The participant.
            identity: String,
        },
        /// Why a tool is not offered.
        WhyNotOffered = "why_not_offered" {
            /// The tool.
            tool: String,
        },
        /// Takes the results of calls that a barge-in left running.
        LateResults = "late_results" {},
        /// Whether a packet must still be sent. A large one that need not is dropped without a report.
        IsWanted = "is_wanted" {
            /// The packet.
            packet: u64,
        },
    }
}
