//! Compares two frames field by field as canonical JSON.

use serde_json::{Map, Value};

use super::script::DecodedFrame;
use crate::{protocol::frame::Kind, recording::REDACTED};

/// The longest value in a report, in characters.
const MAX_SHOWN: usize = 200;

/// What to exclude from a comparison.
#[derive(Clone, Copy, Default)]
pub(super) struct Leave {
    /// Whether the sender had received the other's Configuration.
    pub(super) heard: bool,
    /// The time limit.
    pub(super) budget: bool,
}

/// Returns the fields that differ: path, value in the file, value in the session.
///
/// The stanza is excluded; it is compared across all frames.
pub(super) fn fields(
    file: &DecodedFrame,
    said: &DecodedFrame,
    leave: Leave,
) -> Vec<(String, String, String)> {
    let redacted = file.is_redacted() || said.is_redacted();
    let mut found = Vec::new();
    let (file, said) = (shown(file, redacted, leave), shown(said, redacted, leave));
    differ("", &file, &said, &mut found);
    found
}

/// Summarizes a frame.
pub(super) fn summary(decoded: &DecodedFrame) -> String {
    let about =
        if decoded.about.is_empty() { String::new() } else { format!(" {}", decoded.about.trim_end()) };
    cut(&format!("{}{about}", decoded.kind().name()))
}

/// The parts of a frame that are compared.
fn shown(decoded: &DecodedFrame, redacted: bool, leave: Leave) -> Value {
    let mut json = decoded.frame.to_json().unwrap_or_default();
    let Some(frame) = json.as_object_mut() else { return json };
    frame.remove("stanzaId");
    if let Some(meta) = frame.get_mut("meta").and_then(Value::as_object_mut) {
        meta.remove(REDACTED);
        for hidden in ["bridge.instance", "bridge.to"] {
            if let Some(value) = meta.get_mut(hidden) {
                *value = Value::from("(any)"); // that it is there is compared
            }
        }
        // The clock decides whether a request carries acknowledgements, and whether the peer's key is known.
        meta.remove("bridge.acks");
        meta.remove("bridge.proof");
        meta.remove("bridge.held");
        if leave.heard {
            meta.remove("bridge.heard");
        }
    }
    if redacted {
        frame.remove("body");
        frame.remove("meta");
    }
    if let Some(body) = frame.get_mut("body").and_then(Value::as_object_mut) {
        if decoded.kind() == Kind::ERROR {
            body.remove("id");
        }
        if leave.budget {
            body.remove("timeoutMs");
        }
    }
    json
}

/// Compares two values below this path field by field.
pub(super) fn values(path: &str, file: &Value, said: &Value) -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    differ(path, file, said, &mut found);
    found
}

fn differ(path: &str, file: &Value, said: &Value, found: &mut Vec<(String, String, String)>) {
    match (file, said) {
        (Value::Object(file), Value::Object(said)) => {
            let both: Map<String, Value> =
                file.iter().chain(said).map(|(key, _)| (key.clone(), Value::Null)).collect();
            for key in both.keys() {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                match (file.get(key), said.get(key)) {
                    (Some(file), Some(said)) => differ(&path, file, said, found),
                    (file, said) => found.push((path, text(file), text(said))),
                }
            }
        }
        (Value::Array(file), Value::Array(said)) if file.len() == said.len() => {
            for (at, (file, said)) in file.iter().zip(said).enumerate() {
                differ(&format!("{path}[{at}]"), file, said, found);
            }
        }
        _ if file == said => {}
        _ => found.push((path.to_owned(), text(Some(file)), text(Some(said)))),
    }
}

fn text(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(text)) => cut(text),
        Some(value) => cut(&value.to_string()),
    }
}

pub(super) fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
