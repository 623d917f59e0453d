//! Defines what inputs and outputs have in common: participants, tools, errors.

use super::form::Json;

names! {
    /// The role of the local participant.
    Role {
        /// It calls tools.
        Assistant = "assistant",
        /// It offers tools.
        Client = "client",
    }
}

names! {
    /// The role that a token proves.
    TokenRole {
        /// It offers tools.
        Client = "client",
        /// It calls tools.
        Assistant = "assistant",
        /// It watches.
        Observer = "observer",
    }
}

names! {
    /// The LiveKit data channel that carries a packet.
    Lane {
        /// Ordered and retransmitted.
        Reliable = "reliable",
        /// Unordered and not retransmitted.
        Lossy = "lossy",
    }
}

names! {
    /// Whether packets can be exchanged with the room.
    ConnectionState {
        /// The connection is restored.
        Connected = "connected",
        /// The connection was lost.
        Reconnecting = "reconnecting",
    }
}

names! {
    /// LiveKit's kind of a participant.
    ParticipantKind {
        /// An app.
        Standard = "standard",
        /// An agent.
        Agent = "agent",
        /// Any other: egress, ingress, SIP.
        Other = "other",
    }
}

record! {
    /// One participant during one join.
    Peer {
        /// The identity.
        identity: String,
        /// The sid; empty if it is not known.
        sid: String = String::new(),
    }
}

entries! {
    /// An attribute of a participant or a stream.
    Attribute: String
}

entries! {
    /// An entry of a request's metadata.
    MetaEntry: Json
}

entries! {
    /// A time of the configuration, in milliseconds: such as `ownerWaitMs`.
    TimeSetting: f64
}

entries! {
    /// A limit of the configuration.
    NumberSetting: u64
}

entries! {
    /// The value of a counter.
    Count: u64
}

record! {
    /// A participant as the server describes it.
    Participant {
        /// The identity.
        identity: String,
        /// The sid.
        sid: String = String::new(),
        /// The kind.
        kind: ParticipantKind = ParticipantKind::Standard,
        /// The attributes.
        attributes: Vec<Attribute> = Vec::new(),
        /// The role that its token proves. Not read.
        role: Option<TokenRole>,
        /// Whether its token lets it change its attributes, so that they prove nothing. Unknown counts as true.
        can_update_metadata as "canUpdateMetadata": bool = true,
        /// Whether its token lets it publish data.
        can_publish_data as "canPublishData": bool = true,
        /// Assistant: whether the app's own rule admits it as a client.
        admitted: bool = false,
        /// Assistant: whether the app's own rule lets it stop calls.
        may_stop as "mayStop": bool = false,
        /// The client protocol of its SDK.
        client_protocol as "clientProtocol": u64 = 0,
        /// Whether its SDK reads compressed streams.
        inflates: bool = false,
    }
}

names! {
    /// Whether a person is asked before a tool runs.
    Consent {
        /// Never.
        Never = "never",
        /// At the first call in a session.
        OncePerSession = "once_per_session",
        /// At each call.
        Always = "always",
    }
}

names! {
    /// How much of a call that the assistant runs is shown to the room.
    Visibility {
        /// Arguments and result.
        Full = "full",
        /// The name, and whether it succeeded.
        Name = "name",
        /// Nothing.
        Nothing = "nothing",
    }
}

names! {
    /// What happens to a running call when its turn is interrupted.
    BargeIn {
        /// It stops.
        Cancel = "cancel",
        /// It continues, and its result is only counted.
        Finish = "finish",
        /// It continues, and its result is delivered to the next turn.
        Report = "report",
    }
}

record! {
    /// A tool's definition.
    Tool {
        /// The name.
        name: String,
        /// The description, for a model or a person.
        description: String,
        /// The JSON Schema of its arguments. Without one, any object.
        schema as "inputSchema": Option<Json>,
        /// The name for people.
        title: Option<String>,
        /// The title that the hints of its system have.
        short_title as "shortTitle": Option<String>,
        /// The system or server that it comes from.
        source: Option<String>,
        /// The JSON Schema of its result.
        output_schema as "outputSchema": Option<Json>,
        /// What its system says of it beyond all this.
        meta: Option<Json>,
        /// Whether its effect cannot be undone.
        destructive: Option<bool>,
        /// Whether a second run has no further effect.
        idempotent: Option<bool>,
        /// Whether it changes nothing.
        read_only as "readOnly": Option<bool>,
        /// Whether it reaches systems that its author does not know.
        open_world as "openWorld": Option<bool>,
        /// Whether a person is asked before it runs. Without it: always if it is destructive, else never.
        consent: Option<Consent>,
        /// The longest time of one run, in milliseconds. Without it, the caller's limit.
        timeout as "timeoutMs": Option<f64>,
        /// The time limit of a call whose caller sets none, in milliseconds.
        patience as "patienceMs": Option<f64>,
        /// How long a cancelled run may clean up, in milliseconds: for the shell, which gives 1,000 without it.
        cancel_grace as "cancelGraceMs": Option<f64>,
        /// Of an assistant's own tool: how much of a call is shown to the room.
        disclose: Visibility = Visibility::Full,
        /// Of an assistant's own tool: whether clients that offer a tool of this name may run the call instead.
        prefer_client as "preferClient": bool = false,
        /// What happens to a running call when its turn is interrupted.
        barge_in as "bargeIn": BargeIn = BargeIn::Cancel,
    }
}

names! {
    /// The side that runs a tool.
    Execution {
        /// A client.
        Client = "client",
        /// The assistant.
        Server = "server",
        /// The assistant, unless a client that offers the tool is preferred.
        Either = "either",
    }
}

names! {
    /// Why a job is stopped.
    StopReason {
        /// The caller cancelled it.
        Caller = "caller",
        /// The user interrupted.
        BargeIn = "barge_in",
        /// Its time is over.
        Deadline = "deadline",
        /// The caller is gone.
        CallerGone = "caller_gone",
        /// The local participant leaves the room.
        Leaving = "leaving",
        /// Nobody gets its result any more.
        Lost = "lost",
    }
}

names! {
    /// Whether a participant can be called.
    Readiness {
        /// Its tools are known.
        Ready = "ready",
        /// It has answered nothing, and may be one without toolbridge, whose tools are unknown.
        Silent = "silent",
        /// They are not known yet.
        NotYet = "not_yet",
        /// It is bound to another assistant, or to none because there are several.
        NotBound = "not_bound",
        /// It never offers tools.
        Never = "never",
    }
}

names! {
    /// Why no assistant accepts a client's tools.
    UnacceptedReason {
        /// An assistant refuses them.
        Refused = "refused",
        /// There is no assistant.
        NoAssistant = "no_assistant",
        /// The participant that the client named is no assistant.
        NotAssistant = "not_assistant",
    }
}

names! {
    /// The state of a running tool.
    ProgressStatus {
        /// Not started.
        Pending = "pending",
        /// Running.
        InProgress = "in_progress",
        /// Done; the result follows.
        Completed = "completed",
        /// Failed; the result follows.
        Failed = "failed",
    }
}

record! {
    /// A tool's failure.
    ToolFailure {
        /// The code, for programs; `execution_error` is the usual one.
        code: String,
        /// The message, which is sent.
        message: String,
        /// A partial result, which is sent.
        partial: Option<Json>,
        /// The cause, which stays in this process: it comes back in the event `tool_failed` only.
        cause: Option<String>,
    }
}

names! {
    /// The kind of reason why a call has no value.
    CallErrorKind {
        /// The tool failed, or its owner refused to run it, and reported why.
        Tool = "tool",
        /// No participant offers the tool.
        UnknownTool = "unknown_tool",
        /// Several clients offer the tool, and the call names none of them.
        Ambiguous = "ambiguous",
        /// The clients are bound to another assistant, or to none because there are several.
        NotBound = "not_bound",
        /// The request never left this process.
        NotDelivered = "not_delivered",
        /// The local token does not allow sending data.
        NotAllowed = "not_allowed",
        /// No result arrived within the limit.
        Timeout = "timeout",
        /// The owner left and did not return in time.
        Lost = "lost",
        /// The call was cancelled.
        Cancelled = "cancelled",
        /// The turn was interrupted and the call continues: its result is a late one.
        Detached = "detached",
        /// The turn of this call is over.
        TurnOver = "turn_over",
        /// The turn has made the same call too often.
        TooManyEqual = "too_many_equal",
        /// The request is larger than the limit.
        TooLarge = "too_large",
        /// Too many calls to one client are open.
        TooManyOpen = "too_many_open",
        /// The owner is overloaded.
        Busy = "busy",
        /// A limit of the call, such as its timeout, is not allowed.
        Limit = "limit",
        /// The arguments cannot be sent.
        Arguments = "arguments",
        /// The line of the call is malformed: only in the line protocol.
        BadCommand = "bad_command",
        /// This participant is not in the room, or has left it.
        Closed = "closed",
        /// Another reason.
        Other = "other",
    }
}

record! {
    /// Why a call has no value.
    CallError {
        /// The kind.
        kind: CallErrorKind,
        /// The code that events and recordings show. Of a failed tool, its own.
        code: String,
        /// The text for people: without what is for the model alone.
        message: String,
        /// The text for a model, if it is another one: the tool's own words, or what happened and what to do, without names of
        /// participants.
        for_model as "forModel": Option<String>,
        /// Whether the tool may have run. If not, a retry is safe.
        may_have_run as "mayHaveRun": bool,
        /// The participant that was asked, of `lost` and `busy`.
        owner: Option<String>,
        /// The participants that are meant, of `ambiguous` and `not_bound`.
        owners: Option<Vec<String>>,
        /// The time limit, in milliseconds, of `timeout` and `not_delivered`; of `limit`, the longest that is allowed.
        limit as "limitMs": Option<f64>,
        /// The size of the request, in bytes, of `too_large`.
        size: Option<u64>,
        /// The largest size, in bytes, of `too_large`.
        max: Option<u64>,
        /// The partial result of a failed tool, or the data of its error.
        partial: Option<Json>,
        /// The number of the error that a method of LiveKit's RPC raised, of `tool`.
        rpc_code as "rpcCode": Option<u64>,
    }
}

names! {
    /// The kind of reason why a connection ended.
    CloseKind {
        /// The application closed it.
        Closed = "closed",
        /// Another participant joined with the same identity.
        DuplicateIdentity = "duplicate_identity",
        /// An administrator removed the local participant.
        Removed = "removed",
        /// The room was deleted.
        RoomDeleted = "room_deleted",
        /// The room closed because it was empty.
        RoomClosed = "room_closed",
        /// The server is shutting down.
        ServerShutdown = "server_shutdown",
        /// The connection was lost.
        ConnectionLost = "connection_lost",
        /// The server ended the session.
        Server = "server",
        /// The token expired before the rejoin.
        TokenExpired = "token_expired",
        /// The server refused the rejoin.
        Refused = "refused",
    }
}

record! {
    /// Why a connection ended.
    CloseReason {
        /// The kind of reason.
        kind: CloseKind,
        /// The cause, of `connection_lost`, `server` and `refused`.
        text: Option<String>,
        /// What happened and what to do, for people. Not read.
        message: Option<String>,
    }
}
