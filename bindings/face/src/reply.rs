//! Defines what inputs and queries return.

use crate::{
    form::{Json, Writer},
    shared::{CallError, Count, Participant, Role, Tool},
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
        /// How the owner is called now, if it can be.
        reach: Option<String>,
        /// The tool.
        tool: Tool,
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
        execution: String,
        /// The caller.
        caller: String,
        /// The participant that must answer.
        owner: Option<String>,
        /// The turn.
        turn: Option<u64>,
        /// The size of the arguments, in bytes.
        request_bytes: u64,
        /// The size of the result, in bytes.
        result_bytes: Option<u64>,
        /// When it was requested.
        requested: f64,
        /// When the owner had it.
        delivered: Option<f64>,
        /// When the tool started.
        started: Option<f64>,
        /// When it was settled.
        settled: Option<f64>,
        /// When a result arrived too late.
        late: Option<f64>,
        /// `ok` or an error code.
        outcome: Option<String>,
        /// Its state.
        state: String,
    }
}

record! {
    /// The outcome of a call that a barge-in left running.
    LateResult {
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
        took: f64,
        /// The parameters of a reported event.
        event: Option<Json>,
    }
}

messages! {
    /// What an input or a query returns.
    write Reply("type") {
        /// The tools are offered, except these.
        Offered = "offered" {
            /// The tools that are not offered.
            left_out: Vec<LeftOut>,
        },
        /// The call has started.
        Called = "called" {
            /// The call's key.
            key: u64,
            /// The call's id.
            call: String,
        },
        /// The call has not started.
        Refused = "refused" {
            /// The reason.
            error: CallError,
        },
        /// The turn has begun.
        Turn = "turn" {
            /// The turn's key.
            turn: u64,
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
            open_calls: u64,
            /// Running jobs.
            open_jobs: u64,
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
            /// `ready`, `not_yet`, `not_bound` or `never`.
            readiness: String,
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
        /// Whether a packet must still be sent.
        IsWanted = "is_wanted" {
            /// Whether it must.
            wanted: bool,
        },
    }
}

impl Reply {
    /// Writes the reply as JSON.
    pub fn to_json(&self) -> String {
        let mut out = Writer::default();
        out.open();
        self.write_fields(&mut out);
        out.close();
        out.finish()
    }
}
