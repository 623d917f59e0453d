//! Offers the room's tools to an agent, as an MCP server in its session.

use std::path::Path;

use serde_json::{Value as Json, json};

/// The environment variable in which `toolbridge mcp --attach` finds the bearer token.
const TOKEN: &str = "TOOLBRIDGE_MCP_TOKEN";

/// An MCP server that an agent is to use.
#[derive(Clone)]
pub(super) struct Offered {
    /// Tells this server from an earlier one.
    pub(super) key: u64,
    pub(super) url: String,
    pub(super) token: String,
}

impl Offered {
    /// Returns the entry of `mcpServers`: over HTTP if the agent can, otherwise a program that attaches to the server.
    /// `None` if there is no such program.
    pub(super) fn server(&self, has_http: bool, attach: Option<&Path>) -> Option<Json> {
        if has_http {
            let headers = [json!({"name": "Authorization", "value": format!("Bearer {}", self.token)})];
            return Some(json!({"type": "http", "name": "toolbridge", "url": self.url, "headers": headers}));
        }
        let Some(program) = attach.and_then(Path::to_str) else {
            tracing::warn!("an agent cannot use MCP over HTTP, so it gets no tools of the room");
            return None;
        };
        Some(json!({
            "name": "toolbridge",
            "command": program,
            "args": ["mcp", "--attach", self.url],
            "env": [{"name": TOKEN, "value": self.token}],
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_gets_http_with_a_bearer_or_a_program_with_the_bearer_in_its_environment() {
        let offered = Offered { key: 1, url: "http://127.0.0.1:1/mcp".into(), token: "hunter2".into() };
        let http = offered.server(true, None).unwrap();
        assert_eq!(http["headers"][0], json!({"name": "Authorization", "value": "Bearer hunter2"}));
        let stdio = offered.server(false, Some(Path::new("/bin/toolbridge"))).unwrap();
        assert_eq!(stdio["args"], json!(["mcp", "--attach", "http://127.0.0.1:1/mcp"]));
        assert_eq!(stdio["env"], json!([{"name": TOKEN, "value": "hunter2"}]));
        assert!(stdio.get("type").is_none() && !stdio["args"].to_string().contains("hunter2"));
        assert!(offered.server(false, None).is_none());
    }
}
