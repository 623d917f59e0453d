//! Tools of other systems, as tools of a room and back: MCP, RAP, ACP, watsonx Orchestrate, agent-air.

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
#[path = "../support/runs.rs"]
mod runs;
#[allow(dead_code, reason = "other test programs use the rest of it")]
#[path = "../support/secrets.rs"]
mod secrets;

mod acp_abuse;
mod acp_agent;
mod acp_client;
mod acp_documents;
mod acp_permission;
mod acp_room;
mod acp_secrets;
mod acp_terminal;
mod acp_turns;
mod agent_air;
mod agent_air_batch;
mod arguments;
mod common_rows;
mod logs;
mod losses;
mod mcp_abuse;
mod mcp_attach;
mod mcp_http;
mod mcp_server;
mod mcp_server_calls;
mod mcp_server_http;
mod mcp_server_rules;
mod mcp_source;
mod model_only;
mod model_tools;
mod orchestrate;
mod orchestrate_documents;
mod planted_secrets;
mod random_documents;
mod rap_documents;
mod rap_room;
mod rap_secrets;
mod rap_server;
mod rap_source;
