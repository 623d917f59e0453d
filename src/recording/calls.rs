//! Holds the calls of a recording, assembled from frames with the same call id.

use std::time::Duration;

use super::Moment;
use crate::{
    tool::{CallId, ErrorCode, Execution},
    transport::Identity,
};

/// A call as the recorded participant saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedCall {
    /// Its id.
    pub id: CallId,
    /// The tool; empty if the request is not in the file.
    pub tool: String,
    /// The participant that was to run it; none if the request is not in the file or has an unknown value.
    pub execution: Option<Execution>,
    /// The caller; none if an observer received only the result, or if the room does not disclose it.
    pub caller: Option<Identity>,
    /// The participant that was asked or answered; none for a broadcast without an answer.
    pub owner: Option<Identity>,
    /// The version of LiveKit's RPC by which it was made: 1 in a packet, 2 as a stream of text. None if toolbridge's own
    /// frames carried it.
    pub rpc: Option<u8>,
    /// Its time limit, from the first request.
    pub limit: Option<Duration>,
    /// Size of the parameters as MessagePack, in bytes.
    pub parameters: Option<usize>,
    /// Size of the result as MessagePack, in bytes; none for a failure without a result.
    pub result: Option<usize>,
    /// When the request was first sent or received.
    pub requested: Option<Moment>,
    /// When the request was first acknowledged.
    pub delivered: Option<Moment>,
    /// When the owner first reported that the tool started.
    pub started: Option<Moment>,
    /// When a stop was first sent or received.
    pub stopped: Option<Moment>,
    /// When the result, or the error in its place, was first sent or received; or when the caller ended the call without
    /// it.
    pub settled: Option<Moment>,
    /// How it ended.
    pub outcome: RecordedOutcome,
    /// The positions of its frames in the file, counting every entry from 0.
    pub entries: Vec<usize>,
}

impl RecordedCall {
    /// Creates a call with no other data.
    pub fn new(id: CallId, caller: impl Into<Option<Identity>>) -> Self {
        Self {
            id,
            tool: String::new(),
            execution: None,
            caller: caller.into(),
            owner: None,
            rpc: None,
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
    /// The file does not contain its end.
    #[default]
    Open,
    /// It succeeded.
    Ok,
    /// It failed with this code. An error message (type 1) is recorded as `error N`.
    Failed {
        /// The code.
        code: ErrorCode,
        /// The error text, if the frame had one.
        message: Option<String>,
    },
    /// It was stopped, and the file has neither an answer nor the reason.
    Stopped,
}

impl RecordedOutcome {
    /// Returns the outcome as `ok`, `open`, `stopped`, or the code of the failure.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Open => "open",
            Self::Ok => "ok",
            Self::Stopped => "stopped",
            Self::Failed { code, .. } => code.as_str(),
        }
    }
}
