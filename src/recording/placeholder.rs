//! Writes and reads the texts that stand in place of redacted values.

use crate::value::{Limits, prefix};

/// The start and the end of a placeholder.
const START: &str = "<redacted: ";
const END: &str = " bytes>";

/// What a placeholder can stand for, besides a part of a text, which it does not name.
const KINDS: &[&str] = &[
    "nil",
    "bool",
    "integer",
    "float",
    "string",
    "binary data",
    "extension value",
    "array",
    "map",
    TEXT,
    FIELDS,
    FRAME,
    COMPRESSED_FRAME,
];

/// The size of the longest placeholder, in bytes.
const MAX_SIZE: usize = 64;

/// A text that cannot be read, the fields of a map that may not stay, a whole frame, and one that was compressed.
pub(super) const TEXT: &str = "text";
pub(super) const FIELDS: &str = "fields";
pub(super) const FRAME: &str = "frame";
pub(super) const COMPRESSED_FRAME: &str = "compressed frame";

/// A placeholder that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placeholder<'a> {
    /// One of [`KINDS`], or empty for a part of a text.
    pub(super) kind: &'a str,
    /// The size of what it stands for, in bytes.
    pub(super) size: usize,
}

/// Returns the placeholder of a value.
pub(super) fn of(kind: &str, size: usize) -> String {
    let kind = kind.trim_start_matches("an ").trim_start_matches("a ");
    format!("{START}{kind}, {size}{END}")
}

/// Returns the placeholder of a part of a text.
pub(super) fn of_part(size: usize) -> String {
    format!("{START}{size}{END}")
}

/// Reads a text that is a placeholder and nothing else. Another text that only begins like one is not taken for redacted.
pub(super) fn read(text: &[u8]) -> Option<Placeholder<'_>> {
    let text = std::str::from_utf8(text).ok()?.strip_prefix(START)?.strip_suffix(END)?;
    let (kind, size) = match text.rsplit_once(", ") {
        Some((kind, size)) => (*KINDS.iter().find(|it| **it == kind)?, size),
        None => ("", text),
    };
    let is_number = size.len() <= 9 && !size.is_empty() && size.bytes().all(|byte| byte.is_ascii_digit());
    // No frame is larger, so a larger number is not trusted.
    let size = size.parse().ok().filter(|size| *size <= Limits::BYTES)?;
    is_number.then_some(Placeholder { kind, size })
}

/// Returns the size of the placeholder that a text begins with, in bytes.
pub(super) fn size_at(text: &str) -> Option<usize> {
    let size = text.starts_with(START).then(|| prefix(text, MAX_SIZE).find(END))?? + END.len();
    read(&text.as_bytes()[..size]).map(|_| size)
}

/// Returns by how much the placeholders inside a text are longer than what they stand for, in bytes: negative if they are
/// shorter.
pub(super) fn growth(text: &[u8]) -> isize {
    let Ok(text) = std::str::from_utf8(text) else { return 0 };
    let starts = text.match_indices(START).filter_map(|(at, _)| {
        let end = at + text[at..].find(END)? + END.len();
        let found = read(&text.as_bytes()[at..end])?;
        Some((end - at) as isize - found.size as isize)
    });
    starts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholder_is_read_as_it_was_written() {
        for kind in KINDS {
            let text = of(kind, 12);
            assert_eq!(read(text.as_bytes()), Some(Placeholder { kind, size: 12 }), "{text}");
            assert_eq!(size_at(&format!("{text} hunter2 bytes>")), Some(text.len()));
            assert!(of(kind, Limits::BYTES).len() <= MAX_SIZE);
        }
        assert_eq!(of("an array", 3), "<redacted: array, 3 bytes>");
        assert_eq!(read(of_part(7).as_bytes()), Some(Placeholder { kind: "", size: 7 }));
    }

    #[test]
    fn text_that_only_looks_like_a_placeholder_is_none() {
        for text in [
            "<redacted: hunter2",
            "<redacted: hunter2 bytes>",
            "<redacted: hunter2, 8 bytes>",
            "<redacted: string, hunter2 bytes>",
            "<redacted: string, 8 bytes> hunter2",
            "<redacted: string, +8 bytes>",
            "<redacted: , 8 bytes>",
            "<redacted: 99999999999999999999 bytes>",
            "x<redacted: 8 bytes>",
        ] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn growth_of_a_text_with_placeholders_is_their_sum() {
        let original = "Authorization: Bearer hunter2\npassword=x&user=ada";
        let redacted = "Authorization: <redacted: 14 bytes>\npassword=<redacted: 1 bytes>&user=ada";
        assert_eq!(redacted.len() as isize - growth(redacted.as_bytes()), original.len() as isize);
        assert_eq!(growth(b"<redacted: <redacted: x"), 0);
    }
}
