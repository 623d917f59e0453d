//! Finds values in texts without a grammar: what follows a name and its separator, rather too much of it than too little.

use std::ops::Range;

use super::{
    super::placeholder,
    name::{Name, blanks},
};

/// Returns the value after `name:`.
pub(super) fn after_colon(text: &str, start: usize, name: &Name<'_>) -> Range<usize> {
    let rest = &text[start..];
    let start = start + if name.is_quoted { rest.len() - rest.trim_start().len() } else { blanks(rest) };
    if let Some(value) = quoted(text, start) {
        return value;
    }
    // A number or a word in JSON ends where the next member begins. The end of another value is not looked for.
    let rest = &text[start..];
    if name.is_quoted && rest.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '-') {
        return start..start + rest.find([',', '}', ']', ' ', '\n', '\r']).unwrap_or(rest.len());
    }
    if let Some(size) = placeholder::size_at(rest).filter(|_| name.is_quoted)
        && rest[size..].starts_with([',', '}', ']'])
    {
        return start..start + size;
    }
    trimmed(text, start..line_end(text, start))
}

/// Returns the value after `name=`.
pub(super) fn after_equals(text: &str, start: usize, name: &Name<'_>) -> Range<usize> {
    let value = start + blanks(&text[start..]);
    if let Some(value) = quoted(text, value) {
        return value;
    }
    let end = value + parameter(&text[value..], false);
    // In a configuration file a value with spaces needs no quotes.
    let has_more = text[end..].starts_with([' ', '\t']);
    if has_more && (name.begins_line() || value > start) {
        return trimmed(text, value..line_end(text, end));
    }
    value..end
}

/// Returns the length of the value of a parameter in a URL or a form.
pub(super) fn parameter(text: &str, is_encoded: bool) -> usize {
    let bytes = text.as_bytes();
    let is_end = |at: usize| match bytes[at] {
        b'&' | b'"' | b'\'' | b'`' | b'<' | b'>' => true,
        b'%' => is_encoded && bytes[at..].starts_with(b"%26"),
        byte => byte.is_ascii_whitespace(),
    };
    (0..bytes.len()).find(|at| is_end(*at)).unwrap_or(bytes.len())
}

fn line_end(text: &str, start: usize) -> usize {
    text[start..].find(['\n', '\r']).map_or(text.len(), |end| start + end)
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let value = &text[range.clone()];
    let start = range.start + (value.len() - value.trim_start().len());
    start..start + value.trim().len()
}

/// Returns the inside of a quoted value that starts here. It ends at its quote, which no backslash escapes.
fn quoted(text: &str, start: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let quote = *bytes.get(start).filter(|byte| matches!(byte, b'"' | b'\'' | b'`'))?;
    let (mut end, mut is_escaped) = (start + 1, false);
    while let Some(byte) = bytes.get(end).filter(|byte| is_escaped || **byte != quote) {
        is_escaped = *byte == b'\\' && !is_escaped;
        end += 1;
    }
    Some(start + 1..end)
}
