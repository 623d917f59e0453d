//! Reads the JSON documents of other systems, within limits that are checked before anything is built.

use std::borrow::Cow;

use serde_json::{Map, Value as Json};

/// Why a document of another system cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The text is not JSON. The reason has no part of the text.
    #[error("the document is not JSON: {reason}")]
    NotJson {
        /// What is wrong, with its line and column.
        reason: String,
    },
    /// The document is JSON, but not an object.
    #[error("the document is not a JSON object")]
    NotAnObject,
    /// The document is nested too deep.
    #[error("the document is nested {depth} levels deep; the limit is {limit}")]
    TooDeep {
        /// Its depth.
        depth: usize,
        /// The limit: [`MAX_DEPTH`](Self::MAX_DEPTH).
        limit: usize,
    },
    /// The document has too many values.
    #[error("the document has about {values} values; the limit is {limit}")]
    TooManyValues {
        /// Their number, keys included. An empty container counts as two.
        values: usize,
        /// The limit: [`MAX_VALUES`](Self::MAX_VALUES).
        limit: usize,
    },
}

impl DocumentError {
    /// The deepest nesting that is read, in levels.
    pub const MAX_DEPTH: usize = 120;

    /// The most values that are read, keys included: one byte of a document can take forty in memory.
    pub const MAX_VALUES: usize = crate::Limits::VALUES;
}

/// Reads a document that is an object.
///
/// Half of a surrogate pair becomes U+FFFD, and a number that exceeds a 64-bit float becomes a string, because other
/// programs write both.
///
/// # Errors
/// Any [`DocumentError`].
pub(super) fn object(text: &str) -> Result<Map<String, Json>, DocumentError> {
    match value(text)? {
        Json::Object(map) => Ok(map),
        _ => Err(DocumentError::NotAnObject),
    }
}

/// Reads a document of any form, as [`object`] does.
///
/// # Errors
/// Any [`DocumentError`] but `NotAnObject`.
pub(super) fn value(text: &str) -> Result<Json, DocumentError> {
    measure(text)?;
    serde_json::from_str(text).or_else(|error| {
        let repaired = repaired(text).and_then(|text| serde_json::from_str(&text).ok());
        repaired.ok_or_else(|| DocumentError::NotJson { reason: error.to_string() })
    })
}

/// Checks the limits in one pass over the text, whether it is JSON or not.
///
/// # Errors
/// `TooDeep` or `TooManyValues`.
pub(super) fn measure(text: &str) -> Result<(), DocumentError> {
    let (mut depth, mut deepest, mut values) = (0_usize, 0, 1_usize);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'{' | b'[' => {
                depth += 1;
                values += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
    }
    match (DocumentError::MAX_DEPTH, DocumentError::MAX_VALUES) {
        (limit, _) if deepest > limit => Err(DocumentError::TooDeep { depth: deepest, limit }),
        (_, limit) if values > limit => Err(DocumentError::TooManyValues { values, limit }),
        _ => Ok(()),
    }
}

/// Skips the rest of a string whose opening quote was read.
fn skip_string(bytes: &mut impl Iterator<Item = u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => {
                bytes.next();
            }
            b'"' => return,
            _ => {}
        }
    }
}

/// Returns the text with U+FFFD for each half of a surrogate pair, and with strings in place of numbers that are too
/// large. `None` if it has neither.
fn repaired(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut is_in_string, mut has_changed) = (text, false, false);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\\' if is_in_string => escape(rest),
            '-' | '0'..='9' if !is_in_string => number(rest),
            _ => first.len_utf8(),
        };
        is_in_string ^= first == '"';
        let (part, after) = rest.split_at(length);
        let replaced = match first {
            '\\' if is_lone_surrogate(part) => Cow::Borrowed("\\ufffd"),
            '-' | '0'..='9' if part.parse().is_ok_and(f64::is_infinite) => format!("\"{part}\"").into(),
            _ => part.into(),
        };
        has_changed |= matches!(&replaced, Cow::Owned(_)) || replaced.as_ptr() != part.as_ptr();
        out.push_str(&replaced);
        rest = after;
    }
    has_changed.then_some(out)
}

/// Returns the length of the escape that the text starts with; of a whole surrogate pair, the length of both halves.
fn escape(text: &str) -> usize {
    let length = match unit(text) {
        Some(0xd800..=0xdbff) if unit(&text[6..]).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) => 12,
        Some(_) => 6,
        None => 1 + text.chars().nth(1).map_or(0, char::len_utf8),
    };
    length.min(text.len())
}

/// Returns the UTF-16 unit of the escape `\uXXXX` that the text starts with.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    digits.bytes().all(|it| it.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
}

fn is_lone_surrogate(escape: &str) -> bool {
    escape.len() == 6 && unit(escape).is_some_and(|unit| (0xd800..=0xdfff).contains(&unit))
}

/// Returns the length of the number that the text starts with.
fn number(text: &str) -> usize {
    let is_part = |it: &u8| matches!(it, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    text.bytes().take_while(is_part).count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Json, DocumentError> {
        object(text).map(Json::Object)
    }

    #[test]
    fn common_x3_document_beyond_a_limit_is_refused_with_both_numbers() {
        let nested = |depth: usize| format!("{{\"a\":{}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let (depth, limit) = (DocumentError::MAX_DEPTH + 1, DocumentError::MAX_DEPTH);
        assert!(read(&nested(limit)).is_ok());
        assert_eq!(read(&nested(depth)), Err(DocumentError::TooDeep { depth, limit }));
        assert!(matches!(read(&"[".repeat(1_000_000)), Err(DocumentError::TooDeep { depth: 1_000_000, .. })));
        let many = format!("{{\"a\":[{}0]}}", "0,".repeat(DocumentError::MAX_VALUES));
        let error = read(&many).unwrap_err().to_string();
        assert!(error.contains("1000004 values; the limit is 1000000"), "{error}");
        // Inside a string nothing counts.
        assert!(read(&json!({"a": "[{,:\\\"".repeat(200_000)}).to_string()).is_ok());
    }

    #[test]
    fn text_that_is_not_an_object_is_refused_without_its_content() {
        for text in ["", "{", "hunter2", "{\"hunter2\" 1}", "{} hunter2", "{\"a\":\"\\ud8hunter2\"}"] {
            let error = read(text).unwrap_err();
            assert!(matches!(error, DocumentError::NotJson { .. }), "{error:?}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert_eq!(read("[]"), Err(DocumentError::NotAnObject));
    }

    #[test]
    fn half_of_a_surrogate_pair_and_a_huge_number_are_replaced() {
        let text = r#"{"\ud83d": "a\ud83d", "b": "\ude00\ud83d\ude00\\ud800\"", "c": [1e999, -1E+400, 5], "d": "1e999"}"#;
        let json = json!({"\u{fffd}": "a\u{fffd}", "b": "\u{fffd}😀\\ud800\"", "c": ["1e999", "-1E+400", 5], "d": "1e999"});
        assert_eq!(read(text), Ok(json));
        assert_eq!(repaired(r#"{"a": ["\ud83d\ude00 \n é", 1e5]}"#), None);
        assert_eq!(repaired("\"\\"), None);
    }
}
