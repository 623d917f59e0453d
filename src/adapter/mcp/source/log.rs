//! Reports log messages of a server as events of `tracing`.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::adapter::{json, words};

/// The largest data of a message that is logged, in bytes.
const MAX_DATA: usize = 64 << 10;

#[derive(Deserialize)]
struct LogMessage<'a> {
    #[serde(borrow)]
    level: &'a RawValue,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

/// Logs the parameters of a `notifications/message`. What cannot be read is dropped.
///
/// The server decides what it logs, so the message is logged at a level that is off by default. It is one bounded line,
/// without what is for the model alone.
pub(super) fn forward(server: &str, params: &str) {
    let Ok(message) = serde_json::from_str::<LogMessage<'_>>(params) else { return };
    let text = shown(message.data.map_or("null", RawValue::get));
    match message.level.get().trim_matches('"') {
        level @ ("emergency" | "alert" | "critical" | "error" | "warning") => {
            tracing::debug!(server, level, text, "an MCP server logged");
        }
        level @ ("notice" | "info" | "debug") => {
            tracing::trace!(server, level, text, "an MCP server logged");
        }
        _ => {}
    }
}

/// Returns the data of a message on one bounded line.
fn shown(data: &str) -> String {
    let data = match data.len() {
        0..=MAX_DATA => json::value(data),
        size => return format!("{size} bytes"),
    };
    data.map_or_else(|_| "data that cannot be read".to_owned(), |data| words::of_value(&data))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_one_bounded_line_without_what_is_for_the_model_alone() {
        assert_eq!(shown(r#""a\u001b[2J\nb""#), "a [2J b");
        assert_eq!(shown("[1, {}]"), "[1,{}]");
        let hidden = r#"{"type":"text","text":"planted","annotations":{"audience":["assistant"]}}"#;
        assert_eq!(shown(hidden), "null");
        assert_eq!(shown(&format!("[{hidden}]")), "[]");
        assert!(shown(&format!("\"{}\"", "x".repeat(5_000))).len() <= 1_024);
        assert_eq!(shown(&format!("\"{}\"", "x".repeat(MAX_DATA))), "65538 bytes");
    }
}
