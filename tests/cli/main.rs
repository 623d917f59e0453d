//! The command line, as a process.

#![cfg(unix)]
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
#[path = "../support/acp_script.rs"]
mod acp_script;
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
#[path = "../support/for_the_model.rs"]
mod for_the_model;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/mcp_script.rs"]
mod mcp_script;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/program_tools.rs"]
mod program_tools;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/rap_toolset.rs"]
mod rap_toolset;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/recorded.rs"]
mod recorded;
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
#[path = "../support/session_world.rs"]
mod session_world;

mod cli;
mod cli_acp;
mod cli_assistant;
mod cli_connect;
mod cli_dev;
mod cli_kind;
mod cli_model_only;
mod cli_rap;
mod cli_recording;
mod cli_replay;
mod cli_report;
mod cli_results;
mod cli_sources;
mod cli_stops;
mod cli_tools;
mod doctor;
mod process;
mod programs_supervised;
mod recording_metadata;
mod recording_outcomes;
mod recording_rpc_ends;
mod recordings;
