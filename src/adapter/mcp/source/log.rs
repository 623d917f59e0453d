//! Log messages of a server, as events of `tracing`.

use serde::Deserialize;
use serde_json::Value;

/// The longest text of a message that is logged, in bytes.
const MAX_TEXT: usize = 1_024;

#[derive(Deserialize)]
struct LogMessage {
    level: String,
    #[serde(default)]
    data: Value,
}

/// Logs the parameters of a `notifications/message`. What cannot be read is dropped.
///
/// The server decides what it logs, so the message is logged at a level that is off by default.
pub(super) fn forward(server: &str, params: &str) {
    let Ok(message) = serde_json::from_str::<LogMessage>(params) else { return };
    let text = match message.data {
        Value::String(text) => text,
        other => other.to_string(),
    };
    let text = crate::value::prefix(&text, MAX_TEXT);
    match message.level.as_str() {
        "emergency" | "alert" | "critical" | "error" | "warning" => {
            tracing::debug!(server, level = message.level, text, "an MCP server logged");
        }
        _ => tracing::trace!(server, level = message.level, text, "an MCP server logged"),
    }
}
