//! Replays recorded sessions: offline, or in a room in place of one participant.
//!
//! A [`Cassette`] replaces the client: it provides tools that answer from a recording. [`Replay::live`] replaces the
//! assistant: it repeats the recorded calls to live clients and compares their answers. The rest of this page is about
//! the third kind, [`Replay::dry`].
//!
//! [`Replay::dry`] feeds the frames of a recording to sessions on virtual time, and compares what they send with the
//! recorded frames. It sends nothing to a network, and the same entries give the same report on every machine.
//!
//! # Which sessions run
//! The recorded participant, and each toolbridge participant with which it exchanged a handshake. The recorded
//! participant gets every frame that it received. The others get the frames that it sent to them, so only their frames
//! to it are compared.
//!
//! # What is inferred
//! Application behavior is inferred from the file. A recorded request implies a call; an outcome that the session
//! does not produce itself implies a tool's result; likewise for progress, stops, registrations and goodbyes.
//! Arguments and tool results are therefore not compared, only what the sessions do with them. Also not compared:
//! `bridge.instance`, `bridge.proof` and the value of `bridge.to` (those of other processes), the random id of an error, the time limit
//! in a retransmitted request, and the stanza numbers of participants other than the recorded one, except for their
//! order (they also count frames to third parties).
//!
//! # Time
//! Before each entry, each session does everything that was due by then. Exact send times are not compared, and
//! frames that depend on exact receive times are skipped and counted; see [`Skipped`]. Events that must precede their
//! record are moved ahead of it: a call that waited for an unresponsive owner, progress that its result overtook, and
//! a registration whose answer is in the file.

mod check;
mod compare;
mod dry;
mod endpoint;
mod inferred_command;
mod live;
mod live_report;
mod matcher;
mod mismatch;
mod outcome;
mod pace;
mod plan;
mod recorded_calls;
mod reorder;
mod report;
mod rpc;
mod script;
mod setup;
mod stanzas;
mod tolerance;
mod value;

pub use dry::{MAX_BYTES, MAX_ENTRIES, Replay};
pub use live::{Cassette, Live, Step, Timing};
pub use live_report::{LiveDifference, LiveError, LiveReport, NotAsked, Unasked};
pub use mismatch::{Mismatch, MismatchReason};
pub use pace::Speed;
pub use plan::{Plan, PlannedCall};
pub use report::{Difference, DryError, DryReport, Skipped};

/// "1 call", "2 calls".
pub(crate) fn counted(count: u64, word: &str) -> String {
    format!("{count} {word}{}", if count == 1 { "" } else { "s" })
}
