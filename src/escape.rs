//! Escapes untrusted text for a terminal or a page: control, bidi and invisible characters.
//!
//! Names, errors and results come from other participants. Written as they are, they could move the cursor, change colors or
//! the title of a window, or look like another text.

use std::{borrow::Cow, fmt::Write as _, io};

use serde::Serialize;
use serde_json::{Value, ser::Formatter};

/// Returns a text whose control, bidi and invisible characters are written as `\u{…}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_dangerous(character) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(character));
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// Returns JSON on one line: the same value, with each dangerous character as a `\u` escape.
pub fn json(value: &Value) -> String {
    let mut out = Vec::new();
    let _ = write_json(&mut out, value); // writing to memory cannot fail
    String::from_utf8(out).unwrap_or_default()
}

/// Returns JSON without white space outside its texts like [`json`].
pub fn json_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_dangerous) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_dangerous(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(character);
        }
    }
    Cow::Owned(out)
}

/// Writes JSON like [`json`], piece by piece.
///
/// # Errors
/// Those of the writer.
pub fn write_json(out: &mut impl io::Write, value: &impl Serialize) -> io::Result<()> {
    let mut serializer = serde_json::Serializer::with_formatter(out, Harmless);
    value.serialize(&mut serializer).map_err(io::Error::from)
}

/// Writes dangerous characters of strings as `\u` escapes.
struct Harmless;

impl Formatter for Harmless {
    fn write_string_fragment<W: io::Write + ?Sized>(&mut self, out: &mut W, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some((at, character)) = rest.char_indices().find(|(_, it)| is_dangerous(*it)) {
            out.write_all(&rest.as_bytes()[..at])?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
            rest = &rest[at + character.len_utf8()..];
        }
        out.write_all(rest.as_bytes())
    }
}

/// Returns whether a character is a control (C0, DEL, C1), a bidi control, a zero-width or another invisible character, or a
/// tag.
pub(crate) fn is_dangerous(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sec_c3_control_characters_are_escaped() {
        let evil = "a\u{1b}[31mred\u{9b}2J\u{202e}txt\u{200b}\u{e0041}\r\n\u{7}";
        let shown = plain(evil);
        assert!(shown.chars().all(|it| !is_dangerous(it)), "{shown:?}");
        assert!(shown.contains("\\u{1b}[31mred") && shown.contains("\\u{202e}"));
        assert_eq!(plain("Zürich, 8 °C 👍"), "Zürich, 8 °C 👍");
    }

    #[test]
    fn sec_c3_json_keeps_its_value() {
        let value = json!({"\u{202e}key": ["\u{1b}", "\u{e0041}", "ü", "\u{7f}"]});
        let shown = json(&value);
        assert!(shown.chars().all(|it| !is_dangerous(it)), "{shown:?}");
        assert_eq!(serde_json::from_str::<Value>(&shown).unwrap(), value);
        assert_eq!(json_text(&value.to_string()), shown);
    }
}
