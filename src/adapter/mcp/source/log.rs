//! Log messages of a server, as events of `tracing`.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{adapter::json, value::prefix};

/// The longest text of a message that is logged, in bytes.
const MAX_TEXT: usize = 1_024;

#[derive(Deserialize)]
struct LogMessage<'a> {
    level: String,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

/// Logs the parameters of a `notifications/message`. What cannot be read is dropped.
///
/// The server decides what it logs, so the message is logged at a level that is off by default.
pub(super) fn forward(server: &str, params: &str) {
    let Ok(message) = serde_json::from_str::<LogMessage>(params) else { return };
    let written = message.data.map_or("null", RawValue::get);
    // Anything but a text is logged as its JSON, and not read.
    let text = Some(written).filter(|it| it.starts_with('"')).and_then(|it| json::value(it).ok());
    let text = prefix(text.as_ref().and_then(|it| it.as_str()).unwrap_or(written), MAX_TEXT);
    match message.level.as_str() {
        "emergency" | "alert" | "critical" | "error" | "warning" => {
            tracing::debug!(server, level = message.level, text, "an MCP server logged");
        }
        _ => tracing::trace!(server, level = message.level, text, "an MCP server logged"),
    }
}
