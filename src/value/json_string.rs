//! Strings inside a valid JSON text, for readers that follow its structure without building a tree.

use std::borrow::Cow;

/// Returns the position after the string that starts here.
pub(crate) fn string_end(text: &[u8], start: usize) -> usize {
    let mut escaped = false;
    let inside = text.get(start + 1..).unwrap_or_default();
    let length = inside.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    });
    start + 2 + length.unwrap_or(inside.len())
}

/// Returns the text of a string with its quotes. One with half of a surrogate pair has none.
pub(crate) fn decoded(quoted: &str) -> Option<Cow<'_, str>> {
    let inside = quoted.get(1..quoted.len().checked_sub(1)?)?;
    if inside.contains('\\') {
        serde_json::from_str(quoted).ok().map(Cow::Owned)
    } else {
        Some(inside.into())
    }
}
