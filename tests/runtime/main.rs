//! `Client`, `Assistant`, their tools and programs, in rooms in memory.

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
#[path = "../support/folder.rs"]
mod folder;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/program_tools.rs"]
mod program_tools;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/runs.rs"]
mod runs;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/session_world.rs"]
mod session_world;

mod bridge;
mod bridge_either;
mod bridge_ends;
mod bridge_flood;
mod bridge_functions;
mod bridge_ready;
mod bridge_rejoin;
mod bridge_reports;
mod bridge_rpc;
mod bridge_stalled;
mod bridge_streams;
mod chat;
#[cfg(feature = "vocabulary")]
mod conformance;
mod consent;
mod options;
mod programs;
mod programs_of_the_api;
mod result_size;
mod sources;
mod tools;
mod trace;
mod turns;
