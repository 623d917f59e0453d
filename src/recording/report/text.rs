//! Foreign text for the page: whatever could deceive an eye or end a script element is escaped.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::Value;

/// Longest name, code or other single text, in bytes: no honest one is longer.
pub(super) const MAX_TEXT: usize = 200;

/// A text as it is shown: at most `limit` bytes of it, with control, bidi and invisible characters as `\u{…}`.
pub(super) fn shown(text: &str, limit: usize) -> String {
    let mut out = String::with_capacity(text.len().min(limit) + 16);
    for character in clipped(text, limit).chars() {
        if is_unseen(character) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    if text.len() > limit {
        let _ = write!(out, "… ({} bytes)", text.len());
    }
    out
}

/// JSON on one line with the same characters as `\u` escapes: the same value, cut to `limit` bytes, and its whole
/// length.
pub(super) fn json(value: &Value, limit: usize) -> (String, usize) {
    let whole = value.to_string();
    let mut out = String::with_capacity(whole.len().min(limit) + 16);
    for character in clipped(&whole, limit).chars() {
        // Such characters can stand only inside strings here.
        if is_unseen(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(character);
        }
    }
    (out, whole.len())
}

/// A value as JSON that may stand inside a script element: no character in it means anything to HTML.
pub(super) fn embedded(value: &impl Serialize) -> String {
    let Ok(plain) = serde_json::to_string(value) else {
        return "null".to_owned();
    };
    let mut out = String::with_capacity(plain.len() + 16);
    for character in plain.chars() {
        // Such characters can stand only inside strings here.
        match character {
            '<' | '>' | '&' | '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out
}

/// The longest beginning of at most `limit` bytes.
fn clipped(text: &str, limit: usize) -> &str {
    let mut end = text.len().min(limit);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Controls (C0, DEL, C1), bidi controls, zero-width and other invisible characters, tags.
fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_seen_is_shown_as_an_escape_and_what_is_long_is_cut() {
        assert_eq!(shown("a\u{202e}b\u{1b}\n", 200), "a\\u{202e}b\\u{1b}\\u{a}");
        assert_eq!(shown("Zürich 👍", 200), "Zürich 👍");
        assert_eq!(shown("üüü", 3), "ü… (6 bytes)");
        let value = json!({"\u{202e}": "\u{e0041}ü"});
        let (text, length) = json(&value, 1000);
        assert_eq!(text, r#"{"\u202e":"\udb40\udc41ü"}"#);
        assert_eq!(length, value.to_string().len());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert_eq!(json(&json!("abc"), 3).0, "\"ab");
    }

    #[test]
    fn embedded_json_ends_no_script_and_keeps_its_value() {
        let value = json!({"</script>": "<!-- & \u{2028}\u{2029}\u{7f} ü"});
        let text = embedded(&value);
        assert!(!text.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\u{7f}']), "{text}");
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
    }
}
