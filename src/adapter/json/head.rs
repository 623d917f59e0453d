//! Finds the id of a message that cannot be read as a whole, so that whoever sent it gets an answer.

use serde_json::Value as Json;

/// The longest id, in bytes: programs use numbers and UUIDs.
const MAX_ID: usize = 256;

/// Returns the id of a message: a text or an integer. The bytes after it need not be JSON, nor complete.
pub(crate) fn id(message: &[u8]) -> Option<Json> {
    let (_, id) = members(message).find(|(key, value)| *key == b"id" && value.is_complete)?;
    as_id(id.bytes)
}

/// Returns the id at the end of a message whose beginning is not known.
pub(crate) fn last_id(end: &[u8]) -> Option<Json> {
    let key = b"\"id\"";
    let at = end.windows(key.len()).rposition(|it| it == key)?;
    let after = end.get(at + key.len()..)?.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let length = value(after).filter(|it| it.is_complete)?.bytes.len();
    let rest: Vec<u8> = after[length..].iter().copied().filter(|it| !it.is_ascii_whitespace()).collect();
    matches!(&*rest, b"}" | b",\"jsonrpc\":\"2.0\"}").then(|| as_id(&after[..length]))?
}

/// Returns the text of a member.
pub(crate) fn text(message: &[u8], key: &str) -> Option<String> {
    let (_, value) =
        members(message).find(|(member, value)| *member == key.as_bytes() && value.is_complete)?;
    serde_json::from_slice(value.bytes).ok()
}

fn as_id(bytes: &[u8]) -> Option<Json> {
    let id = if bytes.len() <= MAX_ID { serde_json::from_slice(bytes).ok()? } else { Json::Null };
    (id.is_string() || id.is_i64() || id.is_u64()).then_some(id)
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
    use serde_json::json;

    use super::*;

    #[test]
    fn id_is_found_though_the_message_cannot_be_read() {
        let deep = format!(r#"{{"params": {}, "id": 7}}"#, "[".repeat(500) + &"]".repeat(500));
        for (message, expected) in [
            (r#"{"id": 7, "params": {"a": tru"#, json!(7)),
            (r#"{"params": {"id": 1, "b": [{}, "}\""]}, "id": "a", "x" 5"#, json!("a")),
            (r#" {"id":-3}"#, json!(-3)),
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
            r#"{"id":1.5}"#,
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
        for (end, expected) in [
            (r#"xx"},"id":7}"#, Some(json!(7))),
            (r#"xx"}, "id": "a" , "jsonrpc": "2.0"}"#, Some(json!("a"))),
            (r#"{"id":7}}"#, None),
            (r#""id":7,"b":1}"#, None),
            (r#""id":"#, None),
            ("", None),
        ] {
            assert_eq!(last_id(end.as_bytes()), expected, "{end}");
        }
    }

    #[test]
    fn members_are_found_at_the_first_level_only() {
        let message = br#"{"a": {"method": "x"}, "method": "y", "result": [1"#;
        assert_eq!(text(message, "method").as_deref(), Some("y"));
        assert_eq!(text(message, "a"), None);
    }
}
