//! Holds the result of a live replay.

use std::fmt;

use serde::Serialize;

use super::counted;
use crate::{
    recording::{Damage, RecordError},
    transport::CloseReason,
};

/// How many differences are kept; further ones are counted.
const MAX_DIFFERENCES: usize = 1_000;

/// Compares the answers of live clients with the recorded ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LiveReport {
    /// Calls that were made.
    pub asked: usize,
    /// Calls whose outcome was compared with the recorded one.
    pub compared: usize,
    /// Compared calls with a redacted result: only success and error code were compared.
    pub redacted: usize,
    /// Calls without a recorded outcome, which were not compared.
    pub open: usize,
    /// Calls that were not made, by tool and reason.
    pub not_asked: Vec<Unasked>,
    /// The differences, in file order. At most 1,000.
    pub differences: Vec<LiveDifference>,
    /// The number of further differences.
    pub more_differences: usize,
    /// Why the assistant left the room before all calls had ended, if it did. Calls without an outcome for that
    /// reason are not counted.
    #[serde(serialize_with = "as_text", skip_serializing_if = "Option::is_none")]
    pub broken_off: Option<CloseReason>,
}

impl LiveReport {
    /// Whether every compared outcome matches and the replay was not interrupted.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty() && self.broken_off.is_none()
    }

    pub(super) fn differ(&mut self, difference: LiveDifference) {
        if self.differences.len() < MAX_DIFFERENCES {
            self.differences.push(difference);
        } else {
            self.more_differences += 1;
        }
    }

    pub(super) fn leave_out(&mut self, tool: &str, why: NotAsked) {
        match self.not_asked.iter_mut().find(|it| it.tool == tool && it.reason == why) {
            Some(known) => known.calls += 1,
            None => self.not_asked.push(Unasked { tool: tool.to_owned(), reason: why, calls: 1 }),
        }
    }

    pub(super) fn finish(mut self) -> Self {
        self.differences.sort();
        self.not_asked.sort();
        self
    }
}

impl fmt::Display for LiveReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differences = counted((self.differences.len() + self.more_differences) as u64, "difference");
        let (asked, compared) =
            (counted(self.asked as u64, "call"), counted(self.compared as u64, "outcome"));
        writeln!(f, "{asked} asked, {compared} compared, {differences}")?;
        if self.redacted > 0 {
            writeln!(f, "compared without their results: {} (redacted)", self.redacted)?;
        }
        if self.open > 0 {
            writeln!(f, "not compared: {} (the recording does not say how they ended)", self.open)?;
        }
        if let Some(reason) = &self.broken_off {
            writeln!(f, "broken off: {reason}")?;
        }
        for Unasked { tool, reason, calls } in &self.not_asked {
            writeln!(f, "not asked: {tool:?}, {} ({reason})", counted(*calls as u64, "call"))?;
        }
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        match self.more_differences {
            0 => Ok(()),
            more => writeln!(f, "and {more} more"),
        }
    }
}

/// One field of an outcome that differs from the recording.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct LiveDifference {
    /// The position of the recorded request in the file, counting every entry from 0.
    pub entry: usize,
    /// The recorded call's id.
    pub call: String,
    /// The tool.
    pub tool: String,
    /// `outcome`; or the path in the result as canonical JSON, such as `result.level`.
    pub field: String,
    /// The recorded value.
    pub expected: String,
    /// The live value.
    pub got: String,
}

impl fmt::Display for LiveDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, call, tool, field, expected, got } = self;
        // Names and values come from others and must not control the terminal.
        write!(f, "{entry}: {tool:?} {call:?} {field:?}: expected {expected:?}, got {got:?}")
    }
}

/// Calls of one tool that were not made.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Unasked {
    /// The tool.
    pub tool: String,
    /// The reason.
    pub reason: NotAsked,
    /// The number of calls.
    pub calls: usize,
}

/// Why a recorded call is not repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NotAsked {
    /// Its tool is not in the list of allowed tools.
    NotAllowed,
    /// Its tool is destructive according to the recording or its live owner, and destructive tools were not allowed.
    Destructive,
    /// Its parameters are redacted.
    Redacted,
}

impl fmt::Display for NotAsked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotAllowed => "not allowed",
            Self::Destructive => "destructive",
            Self::Redacted => "redacted parameters",
        })
    }
}

/// Why a recording cannot be replayed live.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LiveError {
    /// The recording cannot be read.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The recording is damaged.
    #[error("the recording is {0}")]
    Damaged(Damage),
    /// The recording holds metadata only.
    #[error(
        "the recording holds metadata only, so it has no arguments to call with and no results to answer with; record \
         without `--record-metadata-only`, or replay it offline, which compares the rest"
    )]
    MetadataOnly,
    /// The recording has no call to a client.
    #[error("the recording has no call to a client")]
    NoCalls,
    /// The recording exceeds [`MAX_ENTRIES`](super::MAX_ENTRIES) or [`MAX_BYTES`](super::MAX_BYTES).
    #[error("the recording has more than {entries} entries or {bytes} bytes of packets")]
    TooLarge {
        /// The maximum number of entries.
        entries: usize,
        /// The maximum number of bytes.
        bytes: usize,
    },
}

fn as_text<S: serde::Serializer>(reason: &Option<CloseReason>, serializer: S) -> Result<S::Ok, S::Error> {
    match reason {
        Some(reason) => serializer.collect_str(reason),
        None => serializer.serialize_none(),
    }
}
