//! Describes a live call without a matching recorded call.

use std::fmt;

use serde::Serialize;

use super::counted;
use crate::tool::{CallId, ErrorCode, ToolError};

/// A call that a [`Cassette`](super::Cassette) could not answer. Its caller receives the error `not_recorded`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Mismatch {
    /// The live call's id.
    #[serde(serialize_with = "as_text")]
    pub call: CallId,
    /// The tool.
    pub tool: String,
    /// The reason.
    #[serde(flatten)]
    pub reason: MismatchReason,
}

/// Why no recorded call matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum MismatchReason {
    /// No recorded call has this tool and these parameters.
    NothingAlike,
    /// As above, but the recording has calls of this tool with redacted parameters.
    PerhapsRedacted {
        /// The number of such calls.
        calls: usize,
    },
    /// All matching recorded calls were used already.
    UsedUp {
        /// The number of matching calls.
        calls: usize,
    },
    /// The recorded result is redacted.
    Redacted,
}

impl Mismatch {
    /// The code of the error that the caller receives.
    pub const CODE: &str = "not_recorded";

    pub(super) fn error(&self) -> ToolError {
        ToolError::new(ErrorCode::from(Self::CODE), format!("{} ({:?})", self.reason, self.tool))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tool, self.reason)
    }
}

impl fmt::Display for MismatchReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NothingAlike => f.write_str("the recording has no call with these parameters"),
            Self::PerhapsRedacted { calls } => write!(
                f,
                "the recording has no call with these parameters, but {} with redacted ones",
                counted(*calls as u64, "call")
            ),
            Self::UsedUp { calls } => {
                write!(f, "the recording has {}, all answered already", counted(*calls as u64, "such call"))
            }
            Self::Redacted => f.write_str("the recording is redacted: its result was taken out"),
        }
    }
}

fn as_text<S: serde::Serializer>(call: &CallId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(call.as_str())
}
