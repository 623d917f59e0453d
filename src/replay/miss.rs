//! A call that a recording does not answer.

use std::fmt;

use serde::Serialize;

use crate::{
    recording::escape::counted,
    tool::{CallId, ErrorCode, ToolError},
};

/// A call that a [`Cassette`](super::Cassette) could not answer: its caller reads the error `not_recorded`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Miss {
    /// The live call.
    #[serde(serialize_with = "as_text")]
    pub call: CallId,
    /// The tool.
    pub tool: String,
    /// Why.
    #[serde(flatten)]
    pub reason: MissReason,
}

/// Why a recording does not answer a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum MissReason {
    /// No recorded call has this tool and these parameters.
    NothingAlike,
    /// The same, but there are calls of this tool whose parameters were taken out of the recording.
    PerhapsRedacted {
        /// How many.
        calls: usize,
    },
    /// All recorded calls that ask for the same were given already.
    UsedUp {
        /// How many there were.
        calls: usize,
    },
    /// The recorded result was taken out of the recording.
    Redacted,
}

impl Miss {
    /// The code of the error that the caller reads.
    pub const CODE: &str = "not_recorded";

    pub(super) fn error(&self) -> ToolError {
        ToolError::new(ErrorCode::from(Self::CODE), format!("{} ({:?})", self.reason, self.tool))
    }
}

impl fmt::Display for Miss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.tool, self.reason)
    }
}

impl fmt::Display for MissReason {
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
