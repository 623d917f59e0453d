//! Defines what inputs and outputs have in common: participants, tools, errors.

use crate::form::Json;

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
    /// A time of the configuration, in milliseconds.
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
        /// Whether its token lets it change its attributes, so that they prove nothing.
        can_update_metadata: bool = true,
        /// Whether its token lets it publish data.
        can_publish_data: bool = true,
        /// Whether the app's own rule admits it as a client.
        admitted: bool = false,
        /// Whether the app's own rule lets it stop calls.
        may_stop: bool = false,
        /// The client protocol of its SDK.
        client_protocol: u64 = 0,
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
        /// The JSON Schema of its arguments.
        schema: Option<Json>,
        /// The name for people.
        title: Option<String>,
        /// The title that the hints of its system have.
        short_title: Option<String>,
        /// The system or server that it comes from.
        source: Option<String>,
        /// The JSON Schema of its result.
        output_schema: Option<Json>,
        /// What its system says of it beyond all this.
        meta: Option<Json>,
        /// Whether its effect cannot be undone.
        destructive: Option<bool>,
        /// Whether a second run has no further effect.
        idempotent: Option<bool>,
        /// Whether it changes nothing.
        read_only: Option<bool>,
        /// Whether it reaches systems that its author does not know.
        open_world: Option<bool>,
        /// Whether a person is asked before it runs.
        consent: Option<Consent>,
        /// The longest time of one run, in milliseconds.
        timeout: Option<f64>,
        /// The time limit of a call whose caller sets none, in milliseconds.
        patience: Option<f64>,
        /// How long a cancelled run may clean up, in milliseconds.
        cancel_grace: Option<f64>,
        /// How much of a call is shown to the room.
        disclose: Visibility = Visibility::Full,
        /// Whether clients that offer a tool of this name may run the call instead.
        prefer_client: bool = false,
        /// What happens to a running call when its turn is interrupted.
        barge_in: BargeIn = BargeIn::Cancel,
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
        /// The code, for programs.
        code: String,
        /// The message, which is sent.
        message: String,
        /// A partial result, which is sent.
        partial: Option<Json>,
        /// The cause, which stays in this process.
        cause: Option<String>,
    }
}

record! {
    /// Why a call has no value.
    CallError {
        /// The variant's name.
        kind: String,
        /// The code that events and recordings show.
        code: String,
        /// The text for people.
        message: String,
        /// Whether the tool may have run. If not, a retry is safe.
        may_have_run: bool,
        /// The participant that was asked.
        owner: Option<String>,
        /// The participants that are meant.
        owners: Option<Vec<String>>,
        /// The time limit, in milliseconds.
        limit: Option<f64>,
        /// The size, in bytes.
        size: Option<u64>,
        /// The largest size, in bytes.
        max: Option<u64>,
        /// A partial result.
        partial: Option<Json>,
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
        /// The cause, of kinds that have one.
        text: Option<String>,
        /// What happened and what to do, for people. Not read.
        message: Option<String>,
    }
}
