//! Recordings: writing, reading, checking, replaying, reports.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests own their clock and may fail"
)]

#[macro_use]
#[path = "../support/with.rs"]
mod with;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/captured.rs"]
mod captured;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/cassette.rs"]
mod cassette;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/folder.rs"]
mod folder;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/recording_said.rs"]
mod recording_said;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/report_sample.rs"]
mod report_sample;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/secrets.rs"]
mod secrets;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/session_tape.rs"]
mod session_tape;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/session_world.rs"]
mod session_world;

mod observed;
mod recording;
mod recording_calls;
mod recording_check;
mod recording_compressed;
#[cfg(unix)]
mod recording_killed;
mod recording_rpc;
mod recording_strangers;
mod redaction;
mod redaction_foreign;
mod replay;
mod replay_ahead;
mod replay_cassette;
mod replay_live;
mod report;
