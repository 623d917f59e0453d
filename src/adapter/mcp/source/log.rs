//! Log messages of a server, as events of `tracing`.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::{
    adapter::{json, words},
    tool::public,
};

/// The longest level that is read, in bytes.
const MAX_LEVEL: usize = 64;

/// The largest data of a message that is read, in bytes.
const MAX_DATA: usize = 16 << 10;

#[derive(Deserialize)]
struct LogMessage<'a> {
    #[serde(default, borrow)]
    level: Option<&'a RawValue>,
    #[serde(default, borrow)]
    data: Option<&'a RawValue>,
}

/// Logs the parameters of a `notifications/message`. What cannot be read is dropped, as is what is for the model alone.
///
/// The server decides what it logs, so the message is logged at a level that is off by default.
pub(super) fn forward(server: &str, params: &str) {
    let Ok(message) = serde_json::from_str::<LogMessage>(params) else { return };
    let level =
        message.level.filter(|it| it.get().len() <= MAX_LEVEL).and_then(|it| json::value(it.get()).ok());
    let level = words::line(level.as_ref().and_then(|it| it.as_str()).unwrap_or_default());
    match level.as_str() {
        "emergency" | "alert" | "critical" | "error" | "warning" => {
            tracing::debug!(server, level, text = text(message.data), "an MCP server logged");
        }
        _ => tracing::trace!(server, level, text = text(message.data), "an MCP server logged"),
    }
}

/// Returns the data of a message on one line.
fn text(data: Option<&RawValue>) -> String {
    let written = data.map_or("null", RawValue::get);
    if written.len() > MAX_DATA {
        return format!("[{} bytes]", written.len());
    }
    let Ok(mut data) = json::value(written) else { return "[data that cannot be read]".to_owned() };
    if public::is_hidden(&data) {
        return "[for the model alone]".to_owned();
    }
    public::strip(&mut data);
    words::line(data.as_str().map_or_else(|| data.to_string(), str::to_owned).as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_one_line_without_what_is_for_the_model_alone() {
        let read = |data: &str| text(Some(&RawValue::from_string(data.to_owned()).unwrap()));
        assert_eq!(read(r#""two\nlines \u001b[2J""#), "two lines [2J");
        let hidden = r#"{"type": "text", "text": "secret", "annotations": {"audience": ["assistant"]}}"#;
        assert_eq!(read(&format!(r#"{{"a": 1, "b": {hidden}}}"#)), r#"{"a":1}"#);
        assert_eq!(read(hidden), "[for the model alone]");
        assert_eq!(read(&format!("\"{}\"", "x".repeat(MAX_DATA))), format!("[{} bytes]", MAX_DATA + 2));
        assert_eq!(text(None), "null");
    }
}
