//! Escapes untrusted text for the page.

use std::{fmt::Write as _, io};

use serde::Serialize;
use serde_json::Value;

use crate::escape::{is_dangerous, plain};
use crate::value::prefix;

/// The longest name, code or other single text, in bytes; no honest text is longer.
pub(super) const MAX_TEXT: usize = 200;

/// At most `limit` bytes of a text, with control, bidi and invisible characters as `\u{…}`.
pub(super) fn shown(text: &str, limit: usize) -> String {
    let mut out = plain(prefix(text, limit)).into_owned();
    if text.len() > limit {
        // Writing to a string cannot fail.
        let _ = write!(out, "… ({} bytes)", text.len());
    }
    out
}

/// JSON on one line with the same characters as `\u` escapes, cut to `limit` bytes, and its full length.
pub(super) fn json(value: &Value, limit: usize) -> (String, usize) {
    let mut whole = Beginning { text: Vec::new(), limit, length: 0 };
    // Neither writing to memory nor serializing a value can fail.
    let _ = serde_json::to_writer(&mut whole, value);
    (escaped(whole.as_str()), whole.length)
}

/// A text that should be JSON in the same form. Line breaks between its values become spaces.
pub(super) fn json_text(text: &str, limit: usize) -> (String, usize) {
    let kept = prefix(text, limit).replace(['\n', '\r', '\t'], " ");
    (escaped(&kept), text.len())
}

/// JSON with control, bidi and invisible characters as `\u` escapes. They occur only inside strings.
fn escaped(json: &str) -> String {
    let mut out = String::with_capacity(json.len() + 16);
    for character in json.chars() {
        if is_dangerous(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(character);
        }
    }
    out
}

/// Keeps the first bytes written, and counts all.
struct Beginning {
    text: Vec<u8>,
    limit: usize,
    length: usize,
}

impl Beginning {
    /// The kept text without an incomplete character at the end.
    fn as_str(&self) -> &str {
        match std::str::from_utf8(&self.text) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&self.text[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}

impl io::Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.limit - self.text.len();
        self.text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// JSON for a script element, without any character that is special in HTML.
pub(super) fn embedded(value: &impl Serialize) -> String {
    let Ok(plain) = serde_json::to_string(value) else {
        return "null".to_owned();
    };
    let mut out = String::with_capacity(plain.len() + 16);
    for character in plain.chars() {
        // These characters occur only inside strings.
        match character {
            '<' | '>' | '&' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invisible_characters_are_escaped_and_long_text_is_truncated() {
        assert_eq!(shown("a\u{202e}b\u{1b}\n", 200), "a\\u{202e}b\\u{1b}\\u{a}");
        assert_eq!(shown("Zürich 👍", 200), "Zürich 👍");
        assert_eq!(shown("üüü", 3), "ü… (6 bytes)");
        let value = json!({"\u{202e}": "\u{e0041}ü"});
        let (text, length) = json(&value, 1000);
        assert_eq!(text, r#"{"\u202e":"\udb40\udc41ü"}"#);
        assert_eq!(length, value.to_string().len());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(json(&json!("abc"), 3).0, "\"ab");
        assert_eq!(json_text("{\n\t\"\u{202e}\": 1}", 11), ("{  \"\\u202e\": 1".to_owned(), 12));
    }

    #[test]
    fn embedded_json_cannot_end_the_script_and_keeps_its_value() {
        let value = json!({"</script>": "<!-- & \u{2028}\u{2029}\u{7f} ü"});
        let text = embedded(&value);
        assert!(!text.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\u{7f}']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
