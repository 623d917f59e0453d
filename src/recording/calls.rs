//! The calls of a recording: frames of one id, put together.

use std::time::Duration;

use super::Moment;
use crate::{
    tool::{CallId, ErrorCode, Execution},
    transport::Identity,
};

/// A call, as the recorded participant saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedCall {
    /// Its id.
    pub id: CallId,
    /// The tool; empty if its request is not in the file.
    pub tool: String,
    /// Who was to run it; none if its request is not in the file, or says something unknown.
    pub execution: Option<Execution>,
    /// Who asked; empty where an observer heard the result alone.
    pub caller: Identity,
    /// Who was asked, or answered; none of a broadcast that nobody answered.
    pub owner: Option<Identity>,
    /// Its limit, as the first request says.
    pub limit: Option<Duration>,
    /// Parameters as MessagePack, in bytes.
    pub parameters: Option<usize>,
    /// Result as MessagePack, in bytes; none of a failure without one.
    pub result: Option<usize>,
    /// When its request was first sent or heard.
    pub requested: Option<Moment>,
    /// When its request was first acknowledged.
    pub delivered: Option<Moment>,
    /// When its owner first said that the tool began.
    pub started: Option<Moment>,
    /// When a stop of it was first sent or heard.
    pub stopped: Option<Moment>,
    /// When its result was first sent or heard, or the error that took its place.
    pub settled: Option<Moment>,
    /// How it ended.
    pub outcome: RecordedOutcome,
    /// Its frames: their places in the file, from 0, counting every entry.
    pub entries: Vec<usize>,
}

impl RecordedCall {
    /// A call of which nothing else is known.
    pub fn new(id: impl Into<CallId>, caller: impl Into<Identity>) -> Self {
        Self {
            id: id.into(),
            tool: String::new(),
            execution: None,
            caller: caller.into(),
            owner: None,
            limit: None,
            parameters: None,
            result: None,
            requested: None,
            delivered: None,
            started: None,
            stopped: None,
            settled: None,
            outcome: RecordedOutcome::Open,
            entries: Vec::new(),
        }
    }
}

/// How a recorded call ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordedOutcome {
    /// The file says nothing of its end.
    #[default]
    Open,
    /// It succeeded.
    Ok,
    /// It failed with this code; an error (type 1) counts as `error N`.
    Failed {
        /// The code.
        code: ErrorCode,
        /// The text that travelled, if any.
        message: Option<String>,
    },
    /// It was stopped, and no answer is in the file.
    Stopped,
}

impl RecordedOutcome {
    /// The outcome in one word: `ok`, `open`, `stopped`, or the code of the failure.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Open => "open",
            Self::Ok => "ok",
            Self::Stopped => "stopped",
            Self::Failed { code, .. } => code.as_str(),
        }
    }
}
