//! The session and the wire, on virtual time: the core alone, without an async runtime.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests own their clock and may fail"
)]

#[macro_use]
#[path = "../support/with.rs"]
mod with;
#[cfg(feature = "record")]
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/session_tape.rs"]
mod session_tape;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/session_world.rs"]
mod session_world;

mod golden;
mod hostile;
mod session_admission;
mod session_calls;
mod session_carried;
mod session_choose;
mod session_claims;
mod session_compressed;
mod session_corners;
mod session_departures;
mod session_disclosure;
mod session_handshake;
mod session_joins;
mod session_lane;
mod session_lane_limits;
mod session_older_peers;
mod session_peers;
mod session_progress;
mod session_prompts;
mod session_protocol;
mod session_repeats;
mod session_replay;
mod session_reported;
mod session_returns;
mod session_rights;
mod session_rpc_callee;
mod session_rpc_caller;
mod session_rules;
mod session_schedules;
mod session_security;
mod session_shares;
mod session_silence;
mod session_streams;
mod session_time;
mod session_turns;
mod session_unsent;
mod session_views;
mod wire;

/// A folder of the repository. `tests/core` builds these tests, too, so it is not always below the manifest's folder.
fn folder(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file!()).with_file_name("../..").join(name)
}
