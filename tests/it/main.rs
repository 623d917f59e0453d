//! The integration tests, in one binary. They use more than one module of the library.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "tests own their clock and may fail"
)]

/// Sets public fields of a value. `#[non_exhaustive]` types have no struct literals outside their crate.
macro_rules! with {
    ($base:expr, $($field:ident = $value:expr),+ $(,)?) => {{
        let mut it = $base;
        $(it.$field = $value;)+
        it
    }};
}

#[cfg(all(feature = "acp", feature = "mcp", unix))]
mod acp_abuse;
#[cfg(all(feature = "acp", unix))]
mod acp_agent;
#[cfg(all(feature = "acp", unix))]
mod acp_client;
#[cfg(all(feature = "acp", unix))]
mod acp_documents;
#[cfg(all(feature = "acp", unix))]
mod acp_permission;
#[cfg(all(feature = "acp", unix))]
mod acp_room;
#[cfg(all(feature = "acp", unix))]
mod acp_script;
#[cfg(all(feature = "cli", unix))]
mod acp_secrets;
#[cfg(all(feature = "acp", unix))]
mod acp_terminal;
#[cfg(all(feature = "acp", unix))]
mod acp_turns;
mod agent_air;
mod agent_air_batch;
mod arguments;
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
mod checklists;
#[cfg(all(feature = "cli", unix))]
mod cli;
#[cfg(all(feature = "cli", unix))]
mod cli_assistant;
#[cfg(all(feature = "cli", unix))]
mod cli_connect;
#[cfg(all(feature = "cli", unix))]
mod cli_dev;
#[cfg(all(feature = "cli", unix))]
mod cli_kind;
#[cfg(all(feature = "cli", unix))]
mod cli_rap;
#[cfg(all(feature = "cli", unix))]
mod cli_recording;
#[cfg(all(feature = "cli", unix))]
mod cli_replay;
#[cfg(all(feature = "cli", unix))]
mod cli_report;
#[cfg(all(feature = "cli", unix))]
mod cli_results;
#[cfg(all(feature = "cli", unix))]
mod cli_sources;
#[cfg(all(feature = "cli", unix))]
mod cli_stops;
#[cfg(all(feature = "cli", unix))]
mod cli_tools;
#[cfg(all(feature = "cli", unix))]
mod common_rows;
#[cfg(feature = "vocabulary")]
mod conformance;
mod consent;
#[cfg(all(feature = "cli", unix))]
mod doctor;
mod golden;
mod guide;
mod hostile;
mod layers;
#[cfg(feature = "cli")]
mod logs;
#[cfg(all(feature = "cli", unix))]
mod losses;
#[cfg(all(feature = "mcp", unix))]
mod mcp_abuse;
#[cfg(all(feature = "mcp", feature = "mcp-server", unix))]
mod mcp_attach;
#[cfg(all(feature = "mcp", unix))]
mod mcp_http;
#[cfg(all(feature = "mcp", unix))]
mod mcp_script;
#[cfg(feature = "mcp-server")]
mod mcp_server;
#[cfg(feature = "mcp-server")]
mod mcp_server_calls;
#[cfg(feature = "mcp-server")]
mod mcp_server_http;
#[cfg(feature = "mcp-server")]
mod mcp_server_rules;
#[cfg(all(feature = "mcp", unix))]
mod mcp_source;
#[cfg(all(feature = "cli", unix))]
mod model_only;
#[cfg(all(feature = "cli", unix))]
mod model_tools;
#[cfg(feature = "record")]
mod observed;
mod options;
mod orchestrate;
mod orchestrate_documents;
mod pages;
#[cfg(all(feature = "cli", unix))]
mod planted_secrets;
mod process;
mod programs;
mod programs_of_the_api;
#[cfg(all(feature = "cli", unix))]
mod programs_supervised;
mod random_documents;
#[cfg(all(feature = "rap", unix))]
mod rap_documents;
#[cfg(all(feature = "rap", unix))]
mod rap_room;
#[cfg(all(feature = "cli", unix))]
mod rap_secrets;
#[cfg(all(feature = "cli", unix))]
mod rap_server;
#[cfg(all(feature = "rap", unix))]
mod rap_source;
#[cfg(all(feature = "rap", unix))]
mod rap_toolset;
#[cfg(all(feature = "cli", unix))]
mod recorded;
#[cfg(feature = "record")]
mod recording;
#[cfg(feature = "record")]
mod recording_calls;
#[cfg(feature = "record")]
mod recording_check;
#[cfg(all(feature = "record", feature = "deflate"))]
mod recording_compressed;
#[cfg(all(feature = "record", unix))]
mod recording_killed;
#[cfg(all(feature = "cli", unix))]
mod recording_metadata;
#[cfg(all(feature = "cli", unix))]
mod recording_outcomes;
#[cfg(feature = "record")]
mod recording_rpc;
#[cfg(all(feature = "cli", unix))]
mod recording_rpc_ends;
#[cfg(feature = "record")]
mod recording_said;
#[cfg(all(feature = "report", feature = "deflate"))]
mod recording_strangers;
#[cfg(all(feature = "cli", unix))]
mod recordings;
#[cfg(all(feature = "cli", unix))]
mod redaction;
#[cfg(feature = "record")]
mod redaction_foreign;
#[cfg(feature = "record")]
mod replay;
#[cfg(feature = "record")]
mod replay_ahead;
#[cfg(feature = "record")]
mod replay_cassette;
#[cfg(feature = "record")]
mod replay_live;
#[cfg(feature = "report")]
mod report;
#[cfg(feature = "report")]
mod report_sample;
mod result_size;
#[cfg(all(feature = "cli", unix))]
mod secrets;
mod session_admission;
mod session_calls;
mod session_carried;
mod session_choose;
mod session_claims;
#[cfg(feature = "deflate")]
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
mod session_world;
mod sources;
mod tools;
mod trace;
mod turns;
mod wire;
