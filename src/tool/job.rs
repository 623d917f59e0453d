//! Defines a call that the local participant runs.

use std::time::Duration;

use crate::{
    clock::Instant,
    tool::{CallId, ToolName, TraceContext},
    transport::Identity,
    value::Value,
};

/// Identifies a job of the local participant within one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey(pub(crate) u64);

/// A tool to run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Job {
    /// Identifies the job in `settle` and `progress`.
    pub key: JobKey,
    /// The call's id on the wire.
    pub call: CallId,
    /// The caller.
    pub caller: Identity,
    /// The tool, which the local participant offers.
    pub tool: ToolName,
    /// The arguments: a map, not checked against the schema.
    pub arguments: Value,
    /// The time at which the job times out.
    pub deadline: Instant,
    /// The job's whole time limit.
    pub limit: Duration,
    /// The metadata of the request: a map.
    pub meta: Value,
}

impl Job {
    /// Returns the trace that the caller's request is part of, if it names one.
    ///
    /// A malformed trace is ignored.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of_meta(&self.meta)
    }
}
