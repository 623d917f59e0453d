//! Defines what inputs and queries return.

use super::{
    form::{Id, Json},
    shared::{CallError, Count, Execution, Participant, Readiness, Role, Tool},
};

record! {
    /// A tool that cannot be offered.
    LeftOut {
        /// The tool, if the reason is about one.
        tool: Option<String>,
        /// The reason.
        why: String,
    }
}

record! {
    /// A tool that can be called.
    OfferedTool {
        /// The participant that offers it.
        owner: String,
        /// The side that runs it.
        execution: Execution,
        /// How the owner is called now, if it can be.
        reach: Option<String>,
        /// The tool.
        tool: Tool,
    }
}

record! {
    /// A tool in the form that all model APIs accept.
    ModelTool {
        /// The name for a model. A call by it has `model`.
        name: String,
        /// The description. It also says what the schema cannot.
        description: String,
        /// The JSON Schema of the arguments.
        schema as "inputSchema": Json,
        /// The tool's own name.
        tool: String,
        /// The participants that offer it. With several, a call names one in `to`, or the assistant chooses.
        owners: Vec<String>,
    }
}

record! {
    /// The record of one call.
    Record {
        /// The call's id.
        call: String,
        /// The tool.
        tool: String,
        /// The side that runs it.
        execution: Execution,
        /// The caller.
        caller: String,
        /// The participant that must answer.
        owner: Option<String>,
        /// The number of its turn.
        turn: Option<u64>,
        /// The size of the arguments, in bytes.
        request_bytes as "requestBytes": u64,
        /// The size of the result, in bytes.
        result_bytes as "resultBytes": Option<u64>,
        /// When it was requested.
        requested as "requestedMs": f64,
        /// When the owner had it.
        delivered as "deliveredMs": Option<f64>,
        /// When the tool started.
        started as "startedMs": Option<f64>,
        /// When it was settled.
        settled as "settledMs": Option<f64>,
        /// When a result arrived too late.
        late as "lateMs": Option<f64>,
        /// `ok` or an error code.
        outcome: Option<String>,
        /// Its state.
        state: String,
    }
}

record! {
    /// The outcome of a call that a barge-in left running.
    LateResult {
        /// The caller's name of it, if it is remembered.
        id: Option<Id>,
        /// The call's id.
        call: String,
        /// The tool.
        tool: String,
        /// The participant that ran it.
        owner: Option<String>,
        /// The result.
        value: Option<Json>,
        /// The failure.
        error: Option<CallError>,
        /// The time between the call and its end, in milliseconds.
        took as "tookMs": f64,
        /// The parameters of a reported event.
        event: Option<Json>,
    }
}

messages! {
    /// What an input or a query returns.
    write Reply("type") {
        /// The tools are offered, except these. Without `partial` nothing has changed if there is one.
        Offered = "offered" {
            /// The tools that are not offered.
            left_out as "leftOut": Vec<LeftOut>,
        },
        /// It is done.
        Done = "done" {},
        /// It could not be done.
        Failed = "failed" {
            /// The reason.
            message: String,
        },
        /// The tools that can be called.
        Tools = "tools" {
            /// The tools.
            tools: Vec<OfferedTool>,
        },
        /// The tools that can be called, as models get them.
        ModelTools = "model_tools" {
            /// The tools, sorted by their own names. Of several owners that describe a tool differently, each has one.
            tools: Vec<ModelTool>,
            /// The tools that no model can call.
            left_out as "leftOut": Vec<LeftOut>,
        },
        /// The announced participants.
        Participants = "participants" {
            /// The participants.
            participants: Vec<Participant>,
        },
        /// The counters that are not 0.
        Stats = "stats" {
            /// The counters.
            stats: Vec<Count>,
        },
        /// The state of the session.
        State = "state" {
            /// The local participant's role.
            role: Role,
            /// The room's name.
            room: String,
            /// The bound assistant.
            bound: Option<String>,
            /// Calls that are not settled.
            open_calls as "openCalls": u64,
            /// Running jobs.
            open_jobs as "openJobs": u64,
            /// Whether nothing is open.
            drained: bool,
            /// Grows when the readiness of a participant may have changed.
            registrations: u64,
        },
        /// The last settled calls and the open ones.
        Records = "records" {
            /// The records.
            records: Vec<Record>,
        },
        /// The record of one call.
        Record = "record" {
            /// The record, if there is one.
            record: Option<Record>,
        },
        /// Whether a participant is ready for calls.
        Readiness = "readiness" {
            /// Whether it is.
            readiness: Readiness,
            /// The tools of one that is ready.
            tools: Option<Vec<Tool>>,
            /// Why it is not.
            message: Option<String>,
        },
        /// Why a tool is not offered.
        WhyNotOffered = "why_not_offered" {
            /// The error that a call would get.
            error: CallError,
        },
        /// The late results.
        LateResults = "late_results" {
            /// The results.
            results: Vec<LateResult>,
        },
        /// Answers a part of a byte stream.
        Stream = "stream" {
            /// Whether the rest is to be read.
            wanted: bool,
        },
        /// Whether a packet must still be sent.
        IsWanted = "is_wanted" {
            /// Whether it must.
            wanted: bool,
        },
    }
}
