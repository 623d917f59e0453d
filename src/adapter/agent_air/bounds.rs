//! The limits of a document, checked before it is parsed.

use serde::de::DeserializeOwned;
use serde_json::error::Category;

use crate::Limits;

/// The deepest nesting of a document, counting its own map. A result holds parts of it, and adds levels.
pub const MAX_DEPTH: usize = 32;

/// The most values in a document, keys included: each takes up to 100 bytes while it is read.
pub const MAX_VALUES: usize = 100_000;

/// Why a text is not a document of agent-air.
///
/// The texts of these errors contain nothing of the document.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDocument {
    /// The text is longer than a frame can be.
    #[error("the document has {size} bytes; the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The document is nested too deep.
    #[error("the document is nested {depth} levels deep; the limit is {limit}")]
    TooDeep {
        /// Its depth.
        depth: usize,
        /// The limit.
        limit: usize,
    },
    /// The document has too many values.
    #[error("the document has more than {limit} values")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The text is not JSON, or has a number that is too large for 64 bits.
    #[error("the document is not JSON (line {line}, column {column})")]
    Json {
        /// The line, counted from 1.
        line: usize,
        /// The column in bytes, counted from 1.
        column: usize,
    },
    /// A field is missing, repeated or of the wrong type.
    #[error(
        "the document is not a result of agent-air: it needs a text `output`; `is_error` is a boolean, `display` a map \
         (line {line}, column {column})"
    )]
    Form {
        /// The line, counted from 1, or 0 if it is unknown.
        line: usize,
        /// The column in bytes, counted from 1, or 0 if it is unknown.
        column: usize,
    },
}

impl From<serde_json::Error> for InvalidDocument {
    fn from(error: serde_json::Error) -> Self {
        let (line, column) = (error.line(), error.column());
        match error.classify() {
            Category::Data => Self::Form { line, column },
            Category::Io | Category::Syntax | Category::Eof => Self::Json { line, column },
        }
    }
}

/// Parses a text within the limits.
pub(super) fn parse<T: DeserializeOwned>(json: &str) -> Result<T, InvalidDocument> {
    check(json)?;
    Ok(serde_json::from_str(json)?)
}

/// Checks a text against the limits, without building anything.
pub(super) fn check(json: &str) -> Result<(), InvalidDocument> {
    if json.len() > Limits::BYTES {
        return Err(InvalidDocument::TooLarge { size: json.len(), limit: Limits::BYTES });
    }
    let (mut depth, mut deepest, mut values) = (0_usize, 0, 1_usize);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'[' | b'{' => {
                depth += 1;
                values += 1;
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b',' | b':' => values += 1,
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    if deepest > MAX_DEPTH {
        return Err(InvalidDocument::TooDeep { depth: deepest, limit: MAX_DEPTH });
    }
    if values > MAX_VALUES {
        return Err(InvalidDocument::TooMany { limit: MAX_VALUES });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;

    #[test]
    fn each_limit_is_exact_and_ignores_what_is_quoted() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(check(&deep(MAX_DEPTH)), Ok(()));
        let too_deep = InvalidDocument::TooDeep { depth: MAX_DEPTH + 1, limit: MAX_DEPTH };
        assert_eq!(check(&deep(MAX_DEPTH + 1)), Err(too_deep));
        assert_eq!(check(&format!("\"\\\"{}\"", deep(500))), Ok(()));
        let many = |count: usize| format!("[{}0]", "0,".repeat(count - 3));
        assert_eq!(check(&many(MAX_VALUES)), Ok(()));
        assert_eq!(check(&many(MAX_VALUES + 1)), Err(InvalidDocument::TooMany { limit: MAX_VALUES }));
        let large = "x".repeat(Limits::BYTES + 1);
        let too_large = InvalidDocument::TooLarge { size: Limits::BYTES + 1, limit: Limits::BYTES };
        assert_eq!(check(&large), Err(too_large));
    }

    #[test]
    fn text_that_is_not_json_is_an_error_with_its_place() {
        for (json, line, column) in [("", 1, 0), ("{", 1, 1), ("{\n  5}", 2, 3), ("[1e999]", 1, 6)] {
            assert_eq!(parse::<Json>(json), Err(InvalidDocument::Json { line, column }), "{json}");
        }
    }
}
