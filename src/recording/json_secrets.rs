//! Redacts secrets in JSON texts inside frames, for example in the document of another system.

use std::ops::Range;

use serde::de::IgnoredAny;

use super::redactor::PLACEHOLDER;
use crate::value::json_string::{decoded, string_end};

/// How many JSON texts inside strings of JSON texts are opened. A deeper one is redacted whole if it looks suspicious.
const MAX_NESTED: u8 = 4;

/// The rule for keys.
pub(super) trait Secrets {
    /// Returns whether the value of this key is redacted.
    fn is_secret(&mut self, key: &[u8]) -> bool;

    /// Returns whether a text that cannot be read contains the name of a secret.
    fn is_suspect(&self, text: &[u8]) -> bool;
}

/// Returns whether a text may be a JSON object or array.
pub(super) fn is_like_json(text: &[u8]) -> bool {
    matches!(text.iter().find(|byte| !byte.is_ascii_whitespace()), Some(b'{' | b'['))
}

/// Returns a JSON text with the values of secret keys redacted, or `None` if nothing in it is secret. The rest is
/// unchanged.
pub(super) fn redacted(text: &str, rule: &mut impl Secrets) -> Option<String> {
    redacted_within(text, rule, MAX_NESTED)
}

fn redacted_within(text: &str, rule: &mut impl Secrets, nested: u8) -> Option<String> {
    if !is_like_json(text.as_bytes()) {
        return None;
    }
    // Afterwards only the structure has to be followed.
    if nested == 0 || serde_json::from_str::<IgnoredAny>(text).is_err() {
        return rule.is_suspect(text.as_bytes()).then(|| format!("{PLACEHOLDER}text, {} bytes>", text.len()));
    }
    let mut changes = Vec::<(Range<usize>, String)>::new();
    // Whether each open container is an object, and whether a key is next.
    let mut open = Vec::<(bool, bool)>::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' => open.push((true, true)),
            b'[' => open.push((false, false)),
            b'}' | b']' => _ = open.pop(),
            b',' => {
                if let Some((is_object, is_key)) = open.last_mut() {
                    *is_key = *is_object;
                }
            }
            b'"' => {
                let end = string_end(bytes, at);
                // A string with half of a surrogate pair is searched as it is written.
                let quoted = text.get(at..end)?;
                let string = decoded(quoted).unwrap_or_else(|| quoted.trim_matches('"').into());
                match open.last_mut() {
                    Some((true, is_key)) if *is_key => {
                        *is_key = false;
                        if rule.is_secret(string.as_bytes()) {
                            let value = value_after(bytes, end);
                            at = value.end;
                            if !text.get(value.clone())?.starts_with(&format!("\"{PLACEHOLDER}")) {
                                changes.push((
                                    value.clone(),
                                    format!("\"{PLACEHOLDER}{} bytes>\"", value.len()),
                                ));
                            }
                            continue;
                        }
                    }
                    _ => {
                        if let Some(inner) = redacted_within(&string, rule, nested - 1) {
                            changes.push((at..end, serde_json::Value::from(inner).to_string()));
                        }
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    if changes.is_empty() {
        return None;
    }
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    for (place, new) in changes {
        out.push_str(text.get(at..place.start)?);
        out.push_str(&new);
        at = place.end;
    }
    out.push_str(text.get(at..)?);
    Some(out)
}

/// Returns the value that follows a key.
fn value_after(bytes: &[u8], key_end: usize) -> Range<usize> {
    let is_space = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    let start = key_end + bytes[key_end..].iter().take_while(|byte| is_space(byte)).count();
    let (mut at, mut depth) = (start, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => {
                at = string_end(bytes, at);
                if depth == 0 {
                    return start..at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return start..trimmed(bytes, start, at),
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return start..at + 1;
                }
            }
            b',' if depth == 0 => return start..trimmed(bytes, start, at),
            _ => {}
        }
        at += 1;
    }
    start..bytes.len()
}

/// Returns the end of a number or word without the space after it.
fn trimmed(bytes: &[u8], start: usize, end: usize) -> usize {
    end - bytes[start..end].iter().rev().take_while(|byte| byte.is_ascii_whitespace()).count()
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};
    use serde_json::{Value, json};

    use super::*;

    struct Rule;

    impl Secrets for Rule {
        fn is_secret(&mut self, key: &[u8]) -> bool {
            key == b"token"
        }

        fn is_suspect(&self, text: &[u8]) -> bool {
            text.windows(5).any(|it| it == b"token")
        }
    }

    fn of(text: &str) -> Option<String> {
        redacted(text, &mut Rule)
    }

    #[test]
    fn values_of_secret_keys_are_redacted_and_the_rest_is_unchanged() {
        let text = r#" { "a" : 1.50, "token" : "hun\"ter2" , "list":[{"token":[1,{"x":"]"}],"b":null},{"token":12 }] } "#;
        let shown = r#" { "a" : 1.50, "token" : "<redacted: 11 bytes>" , "list":[{"token":"<redacted: 13 bytes>","b":null},{"token":"<redacted: 2 bytes>" }] } "#;
        assert_eq!(of(text).as_deref(), Some(shown));
        assert_eq!(of(shown), None, "redacting twice changes nothing");
        assert_eq!(of(r#"{"a": "token", "b": ["token"]}"#), None);
        assert_eq!(of("the token is x"), None);
    }

    #[test]
    fn escaped_keys_and_json_in_strings_are_read() {
        assert!(!of(r#"{"to\u006ben": "hunter2"}"#).unwrap().contains("hunter2"));
        let mut inner = json!({"token": "hunter2"}).to_string();
        for _ in 0..3 {
            inner = json!({"text": inner}).to_string();
            assert!(!of(&inner).unwrap().contains("hunter2"), "{inner}");
        }
        for _ in 0..3 {
            inner = json!([inner]).to_string();
        }
        assert!(!of(&inner).unwrap().contains("hunter2"), "{inner}");
    }

    #[test]
    fn text_that_is_no_json_is_redacted_whole_if_it_names_a_secret() {
        assert_eq!(of(r#"{"token": "hunter2""#).as_deref(), Some("<redacted: text, 19 bytes>"));
        assert_eq!(of("{unrelated"), None);
        let deep = format!("{}{{\"token\": \"hunter2\"}}{}", "[".repeat(10_000), "]".repeat(10_000));
        assert!(!of(&deep).unwrap().contains("hunter2"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, rng_seed: RngSeed::Fixed(1), failure_persistence: None, ..ProptestConfig::default() })]

        // No drawn key equals `other`, which would replace it and what is in it.
        #[test]
        fn redacted_json_is_json_without_the_secret(
            keys in proptest::collection::vec("[a-z\"\\\\é]{0,3}|token", 1..6), depth in 0..4_usize,
        ) {
            let mut json = json!("hunter2");
            for key in keys.iter().rev() {
                json = if depth % 2 == 0 { json!([{ (key.as_str()): json }, "x"]) } else { json!({ (key.as_str()): json, "other": [1, 2.5] }) };
            }
            let text = json.to_string();
            match of(&text) {
                Some(redacted) => {
                    serde_json::from_str::<Value>(&redacted).unwrap();
                    assert!(!redacted.contains("hunter2"));
                }
                None => assert!(!keys.iter().any(|key| key == "token")),
            }
        }
    }
}
