//! Records the packets and events of a session to MCAP files, and reads, checks and reports them.
//!
//! # The file
//! A message holds a packet's bytes as they were on the wire (`message_encoding` `msgpack`). Each combination of
//! direction, participant, LiveKit topic and lane has a channel of its own. A message of LiveKit's RPC is recorded as a
//! frame on the topic `lk.rpc`, which the guide describes ([`guide::recording`](crate::guide::recording)). Other room
//! events are JSON on `room/events`. While the recorder writes, the file has no chunks and is flushed after each message, so a crash
//! loses nothing that was written. When the recording ends, a file with zstd chunks and an index replaces it by a
//! rename.
//!
//! # What is not in it
//! Tokens, URLs, and values that [`Redact`] selects by key name or because their tool does not disclose them. A redacted
//! frame has `bridge.redacted` in its `meta`; every other frame is recorded byte for byte.

#![doc = include_str!("recording/json.md")]

mod allow_list;
mod atomic_file;
mod calls;
mod calls_builder;
mod check;
mod decoded;
mod entry;
mod error;
mod event_texts;
mod follow;
mod format;
mod hidden_calls;
mod index;
mod info;
mod json_secrets;
mod live_file;
mod original;
mod placeholder;
mod queue;
mod reader;
mod recorder;
mod records;
mod redact;
mod redactor;
mod referenced_calls;
#[cfg(feature = "report")]
mod report;
mod rewrite;
mod rpc;
mod secret_names;
mod secret_text;
mod siblings;
mod strangers;
mod tap;
mod text;
mod writer;
mod writer_thread;

pub use atomic_file::AtomicFile;
pub use calls::{RecordedCall, RecordedOutcome};
pub(crate) use calls_builder::CallUpdate;
pub use calls_builder::{Calls, CallsBuilder, calls};
pub use check::{Checked, Checker, Finding, Level, check};
use decoded::Decoded;
pub(crate) use entry::HIDDEN;
pub use entry::{Direction, Entry, Happened, LeftOutLimit, Moment, Recorded, RoomEvent};
pub use error::RecordError;
pub use format::About;
pub use info::{Info, InfoBuilder, Latency, PeerInfo, ToolInfo, Traffic, info};
pub use queue::RecorderStats;
pub use reader::{Entries, Recording};
pub(crate) use recorder::RecorderWatch;
pub use recorder::{Recorder, RecorderOptions};
pub use records::{Damage, DamageKind};
pub use redact::Redact;
pub(crate) use redactor::MARK as REDACTED;
#[cfg(feature = "report")]
pub use report::{report, write_report};
pub use rewrite::{Repaired, redact, repair};
pub(crate) use rpc::{RPC_TOPIC, RpcRecord};
pub use tap::Tap;
pub use text::{call_json, entry_json, entry_text};

#[cfg(test)]
mod tests;
