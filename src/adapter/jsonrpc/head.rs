//! Finds the id of a message that cannot be read as a whole, so that whoever sent it gets an answer.

use std::borrow::Cow;

use super::id::{Id, MAX_ID};
use crate::adapter::json::DocumentError;

/// What is known of a message.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    start: &'a [u8],
    /// What follows after a part that was not kept.
    end: &'a [u8],
}

impl<'a> Head<'a> {
    /// Creates the head of a message of which the start and the end were kept. They need not be JSON, nor complete.
    pub(crate) fn of_ends(start: &'a [u8], end: &'a [u8]) -> Self {
        Self { start, end }
    }

    /// Returns the id: a text or a number.
    pub(crate) fn id(self) -> Option<Id> {
        Id::read(self.member("id")?)
    }

    /// Returns the text of a member.
    pub(crate) fn text(self, key: &str) -> Option<String> {
        serde_json::from_slice(self.member(key)?).ok()
    }

    /// Returns a member whose end is known.
    pub(crate) fn member(self, key: &str) -> Option<&'a [u8]> {
        let is_it = |(name, value): &(&[u8], Part<'_>)| value.is_complete && is_key(name, key);
        let found = members(self.start).find(is_it).map(|(_, value)| value.bytes);
        found
            .or_else(|| last_members(self.end).into_iter().find(|(name, _)| is_key(name, key)).map(|it| it.1))
    }
}

impl<'a> Head<'a> {
    /// Creates the head of a message of which all is known.
    pub(in crate::adapter) fn of(message: &'a [u8]) -> Self {
        Self::of_ends(message, &[])
    }

    /// Returns whether the message is a request or a notification.
    pub(in crate::adapter) fn has_method(self) -> bool {
        self.text("method").is_some()
    }
}

/// Checks the size of a message's id before anything is built of the message.
///
/// # Errors
/// [`DocumentError::LongId`].
pub(super) fn check(message: &str) -> Result<(), DocumentError> {
    match Head::of(message.as_bytes()).member("id").map(<[u8]>::len) {
        Some(size) if size > MAX_ID => Err(DocumentError::LongId { size, limit: MAX_ID }),
        _ => Ok(()),
    }
}

/// Returns whether a key of a message, as it is written there, is this one.
fn is_key(written: &[u8], key: &str) -> bool {
    if !written.contains(&b'\\') {
        return written == key.as_bytes();
    }
    let quoted = [b"\"", written, b"\""].concat();
    serde_json::from_slice::<Cow<'_, str>>(&quoted).is_ok_and(|it| it == key)
}

/// Returns the members at the end of a message whose beginning is not known.
fn last_members(end: &[u8]) -> Vec<(&[u8], &[u8])> {
    let starts = (0..end.len()).filter(|at| end[*at] == b'"');
    starts.filter_map(|at| members_until_end(&end[at..])).next().unwrap_or_default()
}

/// Returns the members that the bytes are, up to the brace that ends the message.
fn members_until_end(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    loop {
        let length = string(bytes).filter(|_| bytes.starts_with(b"\""))?;
        let after = bytes[length..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let value = value(after).filter(|it| it.is_complete)?.bytes;
        found.push((&bytes[1..length - 1], value));
        let rest = after[value.len()..].trim_ascii();
        if rest == b"}" {
            return Some(found);
        }
        bytes = rest.strip_prefix(b",")?.trim_ascii_start();
    }
}

/// A value in a message.
struct Part<'a> {
    bytes: &'a [u8],
    /// Its end is known.
    is_complete: bool,
}

/// Returns the members of an object, as far as they can be told apart: its keys as they are written, and their values.
fn members(message: &[u8]) -> impl Iterator<Item = (&[u8], Part<'_>)> {
    let message = message.strip_prefix("\u{feff}".as_bytes()).unwrap_or(message);
    let mut rest = message.trim_ascii_start().strip_prefix(b"{");
    std::iter::from_fn(move || {
        let left = rest.take()?.trim_ascii_start();
        let left = left.strip_prefix(b",").unwrap_or(left).trim_ascii_start();
        let key = value(left).filter(|it| it.is_complete && left.starts_with(b"\""))?.bytes;
        let after = left[key.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
        let value = value(after)?;
        rest = value.is_complete.then(|| &after[value.bytes.len()..]);
        Some((&key[1..key.len() - 1], value))
    })
}

/// Returns the value that the bytes start with. Brackets are counted, and not matched.
fn value(bytes: &[u8]) -> Option<Part<'_>> {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let Some(length) = string(&bytes[at..]) else { break };
                at += length;
                if depth == 0 {
                    return Some(Part { bytes: &bytes[..at], is_complete: true });
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 1 => depth -= 1,
            b'}' | b']' if depth == 1 => return Some(Part { bytes: &bytes[..=at], is_complete: true }),
            // The end of a number or of a word.
            b',' | b'}' | b']' | b':' if depth == 0 => {
                let bytes = bytes[..at].trim_ascii_end();
                return (!bytes.is_empty()).then_some(Part { bytes, is_complete: true });
            }
            _ => {}
        }
        at += 1;
    }
    (!bytes.is_empty()).then_some(Part { bytes, is_complete: false })
}

/// Returns the length of the string that the bytes start with, quotes included.
fn string(bytes: &[u8]) -> Option<usize> {
    let mut at = 1;
    loop {
        match bytes.get(at)? {
            b'\\' => at += 2,
            b'"' => return Some(at + 1),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value as Json, json};

    use super::*;

    fn id(message: &[u8]) -> Option<Json> {
        of(Head::of_ends(message, &[]))
    }

    fn of(head: Head<'_>) -> Option<Json> {
        head.id().map(|id| serde_json::from_str(id.as_json()).unwrap())
    }

    #[test]
    fn long_id_is_refused_with_both_numbers() {
        let message = |size: usize| format!(r#"{{"method":"a","id":"{}"}}"#, "x".repeat(size - 2));
        assert_eq!(check(&message(MAX_ID)), Ok(()));
        let (size, limit) = (MAX_ID + 1, MAX_ID);
        assert_eq!(check(&message(size)), Err(DocumentError::LongId { size, limit }));
    }

    #[test]
    fn id_is_found_though_the_message_cannot_be_read() {
        let deep = format!(r#"{{"params": {}, "id": 7}}"#, "[".repeat(500) + &"]".repeat(500));
        for (message, expected) in [
            (r#"{"id": 7, "params": {"a": tru"#, json!(7)),
            (r#"{"params": {"id": 1, "b": [{}, "}\""]}, "id": "a", "x" 5"#, json!("a")),
            (r#" {"id":-3}"#, json!(-3)),
            (r#"{"id":1.5}"#, json!(1.5)),
            (r#"{"\u0069d":5,"a":"#, json!(5)),
            ("\u{feff}{\"id\": 4, ", json!(4)),
            (r#"{"jsonrpc":"2.0" , "id" : 18446744073709551615 , "#, json!(18_446_744_073_709_551_615_u64)),
            (&deep, json!(7)),
        ] {
            assert_eq!(id(message.as_bytes()), Some(expected), "{message}");
        }
        assert_eq!(id(b"{\"a\": \"\xff\", \"id\": 1}"), Some(json!(1)));
    }

    #[test]
    fn id_that_is_cut_or_not_one_is_not_found() {
        let long = format!(r#"{{"id":"{}"}}"#, "x".repeat(MAX_ID));
        for message in [
            "",
            "{",
            "[",
            "7",
            r#"{"id"#,
            r#"{"id":"#,
            r#"{"id": 12"#,
            r#"{"id":"a"#,
            r#"{"id":null}"#,
            r#"{"id":1e999}"#,
            r#"{"id":[1]}"#,
            r#"{"id":{"id":1}}"#,
            r#"{"params":{"id":1}}"#,
            r#"{"a":"\"id\":1,"}"#,
            r#"{,,"id":1}"#,
            &long,
        ] {
            assert_eq!(id(message.as_bytes()), None, "{message}");
        }
    }

    #[test]
    fn id_at_the_end_is_that_of_the_message() {
        let id = |end: &str| of(Head::of_ends(b"{\"params\": [", end.as_bytes()));
        for (end, expected) in [
            (r#"xx"},"id":7}"#, Some(json!(7))),
            (r#"xx"}, "id": "a" , "jsonrpc": "2.0"}"#, Some(json!("a"))),
            (r#"xx"},"id":7,"method":"tools/call","jsonrpc":"2.0"}"#, Some(json!(7))),
            (r#"xx"},"method":"a \" b","\u0069d":7}"#, Some(json!(7))),
            (r#"{"id":1},"id":1.5,"last":null}"#, Some(json!(1.5))),
            (r#"xx","a":{"id":1},"id":7,"b":{}}"#, Some(json!(7))),
            (r#"{"id":7}}"#, None),
            (r#""id":"#, None),
            ("", None),
        ] {
            assert_eq!(id(end), expected, "{end}");
        }
        let end = br#"xx"},"id":7,"method":"ping"}"#;
        assert_eq!(Head::of_ends(b"{\"params\": [", end).text("method").as_deref(), Some("ping"));
    }

    #[test]
    fn members_are_found_at_the_first_level_only() {
        let message = br#"{"a": {"method": "x"}, "method": "y", "result": [1"#;
        assert_eq!(Head::of_ends(message, &[]).text("method").as_deref(), Some("y"));
        assert_eq!(Head::of_ends(message, &[]).text("a"), None);
    }
}
