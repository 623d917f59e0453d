//! Reads the JSON documents of other systems, within limits that are checked before anything is built.

#[cfg(any(feature = "mcp-server", all(any(feature = "acp", feature = "mcp"), unix)))]
use std::borrow::Cow;

#[cfg(any(feature = "mcp-server", all(any(feature = "acp", feature = "mcp"), unix)))]
use serde::de::IgnoredAny;
use serde_json::{Map, Value as Json};

use crate::value::{TextSize, measured, repaired, without_mark};

/// Why a document of another system cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The bytes are not UTF-8.
    #[error("the document is not UTF-8, from byte {offset} on")]
    NotUtf8 {
        /// The first byte that is not.
        offset: usize,
    },
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
    /// The id of a message is too long.
    #[error("the id of the message has {size} bytes; the limit is {limit}")]
    LongId {
        /// Its size in bytes.
        size: usize,
        /// The limit, in bytes.
        limit: usize,
    },
}

impl DocumentError {
    /// The deepest nesting that is read, in levels.
    pub const MAX_DEPTH: usize = 120;

    /// The most values that are read, keys included: what is built of a document has up to 200 bytes for each.
    pub const MAX_VALUES: usize = 250_000;
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
    let text = without_mark(text);
    measure(text)?;
    serde_json::from_str(text).or_else(|error| {
        let repaired = serde_json::from_str(&repaired(text)).ok();
        repaired.ok_or_else(|| DocumentError::NotJson { reason: error.to_string() })
    })
}

/// Checks the limits in one pass over the text, whether it is JSON or not.
///
/// # Errors
/// `TooDeep` or `TooManyValues`.
pub(super) fn measure(text: &str) -> Result<(), DocumentError> {
    let TextSize { depth, values } = measured(text);
    if depth > DocumentError::MAX_DEPTH {
        return Err(DocumentError::TooDeep { depth, limit: DocumentError::MAX_DEPTH });
    }
    let limit = DocumentError::MAX_VALUES;
    if values > limit {
        return Err(DocumentError::TooManyValues { values, limit });
    }
    Ok(())
}

/// Returns a text of another program as one that every JSON reader takes. Nothing is built of it.
///
/// # Errors
/// Any [`DocumentError`] but `NotAnObject`.
#[cfg(any(feature = "mcp-server", all(any(feature = "acp", feature = "mcp"), unix)))]
pub(super) fn checked(text: &str) -> Result<Cow<'_, str>, DocumentError> {
    measure(text)?;
    let text = repaired(text);
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(DocumentError::NotJson { reason: error.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Json, DocumentError> {
        object(text).map(Json::Object)
    }

    #[test]
    fn byte_order_mark_is_no_part_of_a_text() {
        assert_eq!(value("\u{feff}{\"a\": 1}").unwrap(), json!({"a": 1}));
        assert_eq!(crate::Value::from_json("\u{feff}7").unwrap().to_json(), json!(7));
        assert!(value("{}\u{feff}").is_err(), "only one at the start");
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
        assert!(error.contains("250004 values; the limit is 250000"), "{error}");
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
        let json = json!({"a": "\u{fffd}", "b": "1e999"});
        assert_eq!(read(r#"{"a": "\ud83d", "b": 1e999}"#), Ok(json));
    }
}
