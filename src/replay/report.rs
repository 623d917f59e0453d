//! What a dry replay found.

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

use crate::transport::Identity;

/// So many differences are kept; further ones are counted.
const MAX_DIFFERENCES: usize = 1_000;

/// What a dry replay found. It is the same for the same entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DryReport {
    /// Frames of the file that were compared with what a session said.
    pub compared: usize,
    /// Frames that were not, by reason: of the file, or of a session where the file has none.
    pub skipped: BTreeMap<Skipped, usize>,
    /// What is different, by its place in the file. At most 1,000.
    pub differences: Vec<Difference>,
    /// How many more differences there were.
    pub more_differences: usize,
}

impl DryReport {
    /// Whether everything that was compared is as it was.
    pub fn is_same(&self) -> bool {
        self.differences.is_empty()
    }

    pub(super) fn skip(&mut self, why: Skipped) {
        *self.skipped.entry(why).or_default() += 1;
    }

    pub(super) fn differ(&mut self, difference: Difference) {
        self.differences.push(difference);
    }

    /// By place in the file, and no more than are kept.
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

/// One field of one frame that is not as a session says it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The place in the file, from 0, counting every entry. Of a frame that the file lacks: the entry at which it was
    /// due.
    pub entry: usize,
    /// Whose session.
    pub who: Identity,
    /// The type of the frame, by its name in canonical JSON.
    pub frame: &'static str,
    /// The path in canonical JSON, such as `body.success`; or `frame` (one of both says nothing), `to`, `lane`, `order`.
    pub field: String,
    /// What the file has.
    pub expected: String,
    /// What the session says.
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
    /// Its body: parameters or results were taken out of it. The rest of it is compared.
    Redacted,
    /// It is on a topic that is not ours.
    OtherTopic,
    /// It is no frame. One that was heard is heard again.
    Malformed,
    /// Its sender is none of ours, or never shook hands with the recorded participant.
    NotReplayed,
    /// It came before the file says who was recorded.
    BeforeHere,
    /// A sign of life: `ping`, `pong`, a heartbeat.
    SignOfLife,
    /// The frame was there before under the same stanza, and says the same.
    Repeated,
    /// A Configuration or registration that goes again as long as no answer comes.
    Greeting,
    /// An acknowledgement of a frame of the fast lane, which its answer may stand for.
    FastLane,
    /// The same call was asked of somebody else too.
    AskedElsewhere,
    /// How a call ended where a deadline and an answer met: which was first is decided by less than is in the file.
    /// The rest of such a result is compared.
    Race,
    /// Around a loss of the connection, a rejoin, or somebody's vanishing: not all that was said arrived.
    Unconnected,
    /// Around packets that could not be recorded.
    Unrecorded,
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
            Self::FastLane => "acknowledgements on the fast lane",
            Self::AskedElsewhere => "asked of somebody else too",
            Self::Race => "how a call ended where a deadline and an answer met",
            Self::Unconnected => "around a loss of connection",
            Self::Unrecorded => "around unrecorded packets",
            Self::AtTheEnd => "at the end of the recording",
        })
    }
}

/// Why nothing could be replayed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DryError {
    /// No event says who was recorded.
    #[error("the recording does not say who was recorded: it has no `here` event")]
    NobodyHere,
    /// An observer was recorded.
    #[error(
        "the recording is an observer's: it said nothing, and heard neither whom requests went to nor Configurations \
         and acknowledgements, so there is no session to run again; record the client or the assistant itself"
    )]
    Observer,
    /// It is larger than what is held at once: [`MAX_ENTRIES`](super::MAX_ENTRIES), [`MAX_BYTES`](super::MAX_BYTES).
    #[error("the recording has more than {entries} entries or {bytes} bytes of packets")]
    TooLarge {
        /// The most entries.
        entries: usize,
        /// The most bytes.
        bytes: usize,
    },
    /// Its sessions would take too many steps: many participants, or long waits of which there is much to do.
    #[error("the recording takes too many steps to be replayed: the limit was reached at entry {entry}")]
    TooCostly {
        /// The place in the file that was reached, from 0, counting every entry.
        entry: usize,
    },
}
