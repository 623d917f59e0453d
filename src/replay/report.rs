//! Holds the result of a dry replay.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::transport::Identity;

/// How many differences are kept; further ones are counted.
const MAX_DIFFERENCES: usize = 1_000;

/// The result of a dry replay. Equal entries give equal reports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DryReport {
    /// Recorded frames that were compared with frames of a session.
    pub compared: usize,
    /// Frames that were not compared, by reason: recorded frames, or frames of a session that the file lacks.
    pub skipped: BTreeMap<Skipped, usize>,
    /// The differences, in file order. At most 1,000.
    pub differences: Vec<Difference>,
    /// The number of further differences.
    pub more_differences: usize,
}

impl DryReport {
    /// Whether everything that was compared matches.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty()
    }

    pub(super) fn skip(&mut self, why: Skipped) {
        *self.skipped.entry(why).or_default() += 1;
    }

    pub(super) fn differ(&mut self, difference: Difference) {
        self.differences.push(difference);
    }

    /// In file order, up to the limit.
    pub(super) fn finish(mut self) -> Self {
        self.differences.sort();
        self.more_differences = self.differences.len().saturating_sub(MAX_DIFFERENCES);
        self.differences.truncate(MAX_DIFFERENCES);
        self
    }
}

impl fmt::Display for DryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.differences.len() + self.more_differences;
        writeln!(f, "{} frames compared, {count} differences", self.compared)?;
        for (why, frames) in &self.skipped {
            writeln!(f, "not compared: {frames} ({why})")?;
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

/// One field of a frame that differs between file and session.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The position in the file, counting every entry from 0. For a frame that the file lacks, the entry at which it
    /// was due.
    pub entry: usize,
    /// The participant whose session it is.
    pub who: Identity,
    /// The type of the frame, by its name in canonical JSON.
    pub frame: &'static str,
    /// The path in canonical JSON, such as `body.success`; or `frame` (one side lacks it), `to`, `lane` or `order`.
    pub field: String,
    /// The value in the file.
    pub expected: String,
    /// The value in the session.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, who, frame, field, expected, got } = self;
        // Names and values come from a file that anybody may have written: nothing of them may steer a terminal.
        write!(f, "{entry}: {:?} {frame} {field:?}: expected {expected:?}, got {got:?}", who.as_str())
    }
}

/// Why a frame was not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Skipped {
    /// Its parameters or results are redacted. The rest of the frame is compared.
    Redacted,
    /// Its topic belongs to another application.
    OtherTopic,
    /// It is not a valid frame. If it was received, it is delivered again.
    Malformed,
    /// Its sender is not a toolbridge participant, or exchanged no handshake with the recorded participant.
    NotReplayed,
    /// It precedes the event that names the recorded participant.
    BeforeHere,
    /// A keepalive: `ping`, `pong` or a heartbeat.
    SignOfLife,
    /// A retransmission with the same stanza and content.
    Repeated,
    /// A Configuration or registration that is repeated until it is answered.
    Greeting,
    /// An acknowledgement on the fast lane, or the progress that reports a tool's start: an answer may replace both.
    FastLane,
    /// The same call was sent to another participant, too.
    AskedElsewhere,
    /// A deadline and an answer coincided, and the file cannot show which came first. The rest of such a result is
    /// compared.
    Race,
    /// Near a lost connection, a rejoin or an unexpected departure, when packets may have been lost.
    Unconnected,
    /// Near packets that were not recorded.
    Unrecorded,
    /// It is to a participant without rights of which packets were left out or not expanded.
    LeftOut,
    /// It was due when the recording ended.
    AtTheEnd,
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Redacted => "redacted bodies",
            Self::OtherTopic => "another topic",
            Self::Malformed => "malformed",
            Self::NotReplayed => "of participants that are not replayed",
            Self::BeforeHere => "before the recorded participant is named",
            Self::SignOfLife => "signs of life",
            Self::Repeated => "repeated",
            Self::Greeting => "greetings that go again",
            Self::FastLane => "what an answer may replace on the fast lane",
            Self::AskedElsewhere => "asked of somebody else too",
            Self::Race => "how a call ended where a deadline and an answer met",
            Self::Unconnected => "around a loss of connection",
            Self::Unrecorded => "around unrecorded packets",
            Self::LeftOut => "to participants whose packets were left out or not expanded",
            Self::AtTheEnd => "at the end of the recording",
        })
    }
}

/// Why a recording cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DryError {
    /// The recorded participant is unknown.
    #[error("the recording does not name its participant: it has no `here` event")]
    NobodyHere,
    /// The recorded participant is an observer.
    #[error(
        "the recording was made by an observer, which sends nothing and receives neither the recipients of requests nor \
         Configurations and acknowledgements; to replay a session, record its client or its assistant"
    )]
    Observer,
    /// The recording exceeds [`MAX_ENTRIES`](super::MAX_ENTRIES) or [`MAX_BYTES`](super::MAX_BYTES).
    #[error("the recording has more than {entries} entries or {bytes} bytes of packets")]
    TooLarge {
        /// The maximum number of entries.
        entries: usize,
        /// The maximum number of bytes.
        bytes: usize,
    },
    /// Its sessions take too many steps, because of many participants or long waits.
    #[error("the recording takes too many steps to be replayed: the limit was reached at entry {entry}")]
    TooCostly {
        /// The position in the file that was reached, counting every entry from 0.
        entry: usize,
    },
}
