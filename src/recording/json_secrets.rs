//! Redacts secrets in texts inside frames: JSON, for example the document of another system, and other texts.

use std::{cmp::Reverse, iter::Peekable, ops::Range};

use serde::de::IgnoredAny;

use super::{
    placeholder, secret_names, secret_text,
    siblings::{Array, Map},
};
use crate::value::{
    bytes_without_mark,
    json_string::decoded,
    json_tokens::{JsonToken, JsonTokens},
    measured, without_mark,
};

/// How many containers are open at once: the walk is recursive, and serde does not limit the depth of what it ignores.
const MAX_DEPTH: usize = 128;

/// The rule for names.
pub(super) trait Secrets {
    /// Returns whether the value of this key is redacted.
    fn is_secret(&mut self, key: &[u8]) -> bool;

    /// Returns whether a text that cannot be read contains the name of a secret.
    fn is_suspect(&self, text: &[u8]) -> bool;

    /// Returns whether a text is the name of a secret whose value stands beside it.
    fn is_secret_name(&mut self, text: &[u8]) -> bool {
        secret_names::may_be_name(text) && self.is_secret(text)
    }
}

/// Returns whether a text may be a JSON object or array.
pub(super) fn is_like_json(text: &[u8]) -> bool {
    matches!(bytes_without_mark(text).iter().find(|byte| !byte.is_ascii_whitespace()), Some(b'{' | b'['))
}

/// Returns a text with its secrets redacted, or `None` if nothing in it is secret. The rest is unchanged.
pub(super) fn redacted(text: &str, rule: &mut impl Secrets) -> Option<String> {
    if placeholder::read(text.as_bytes()).is_some() {
        return None;
    }
    if !is_like_json(text.as_bytes()) {
        return secret_text::redacted(text, rule);
    }
    let json = without_mark(text);
    // Afterwards only the structure has to be followed.
    let is_readable = measured(json).depth <= MAX_DEPTH && serde_json::from_str::<IgnoredAny>(json).is_ok();
    if !is_readable {
        if rule.is_suspect(text.as_bytes()) {
            return Some(placeholder::of(placeholder::TEXT, text.len()));
        }
        return secret_text::redacted(text, rule); // a password in a URL has no name
    }
    let tokens = JsonTokens::new(json).peekable();
    let mut walk = Walk { text: json, tokens, rule, changes: Vec::new() };
    walk.value();
    let mut changes = walk.changes;
    if changes.is_empty() {
        return None;
    }
    changes.sort_by_key(|(range, _)| (range.start, Reverse(range.end)));
    let (mut out, mut at) = (String::with_capacity(text.len()), 0);
    out.push_str(&text[..text.len() - json.len()]);
    for (place, new) in changes {
        if place.start < at {
            continue; // a value around it is redacted
        }
        out.push_str(json.get(at..place.start)?);
        out.push_str(&new);
        at = place.end;
    }
    out.push_str(json.get(at..)?);
    Some(out)
}

/// Walks through valid JSON whose depth is limited.
struct Walk<'a, R> {
    text: &'a str,
    tokens: Peekable<JsonTokens<'a>>,
    rule: &'a mut R,
    changes: Vec<(Range<usize>, String)>,
}

impl<R: Secrets> Walk<'_, R> {
    /// Walks through the next value, and returns its place.
    fn value(&mut self) -> Option<Range<usize>> {
        let (token, place) = self.tokens.next()?;
        match token {
            JsonToken::Object => self.object(place.start),
            JsonToken::Array => self.array(place.start),
            JsonToken::Text => {
                let string = self.string(place.clone());
                if let Some(inner) = secret_text::redacted(&string, self.rule) {
                    self.changes.push((place.clone(), serde_json::Value::from(inner).to_string()));
                }
                Some(place)
            }
            _ => Some(place),
        }
    }

    /// Walks through the members of an object that starts here, and returns its place.
    fn object(&mut self, start: usize) -> Option<Range<usize>> {
        let (mut map, mut has_secret_key) = (Map::default(), false);
        let end = loop {
            let key = match self.tokens.next()? {
                (JsonToken::Text, key) => self.string(key),
                (JsonToken::End, end) => break end.end,
                _ => continue, // a comma
            };
            self.tokens.next(); // the colon
            has_secret_key |= secret_text::has_secret(&key, self.rule);
            if self.rule.is_secret(key.as_bytes()) {
                let value = self.skip()?;
                self.hide(value);
            } else {
                let name = self.name();
                let is_secret = name.is_some_and(|name| self.rule.is_secret_name(name.as_bytes()));
                map.add(key.as_bytes(), self.value()?, is_secret);
            }
        };
        if has_secret_key {
            self.hide(start..end); // two keys could become equal
        } else {
            map.beside().for_each(|value| self.hide(value));
        }
        Some(start..end)
    }

    /// Walks through the elements of an array that starts here, and returns its place.
    fn array(&mut self, start: usize) -> Option<Range<usize>> {
        let mut array = Array::default();
        let end = loop {
            match self.tokens.peek()? {
                (JsonToken::End, end) => break end.end,
                (JsonToken::Comma, _) => _ = self.tokens.next(),
                _ => {
                    let name = self.name();
                    let is_secret =
                        name.as_deref().is_some_and(|name| self.rule.is_secret_name(name.as_bytes()));
                    array.add(self.value()?, is_secret);
                }
            }
        };
        self.tokens.next();
        array.beside().for_each(|value| self.hide(value));
        Some(start..end)
    }

    /// Returns the next value, if it is a string.
    fn name(&mut self) -> Option<String> {
        let (_, place) = self.tokens.peek().filter(|(token, _)| *token == JsonToken::Text)?.clone();
        Some(self.string(place))
    }

    /// Returns a string. One with half of a surrogate pair is searched as it is written.
    fn string(&self, place: Range<usize>) -> String {
        let quoted = self.text.get(place).unwrap_or_default();
        decoded(quoted).unwrap_or_else(|| quoted.trim_matches('"').into()).into_owned()
    }

    fn hide(&mut self, value: Range<usize>) {
        let Some(shown) = self.text.get(value.clone()) else { return };
        let inside = shown.strip_prefix('"').and_then(|it| it.strip_suffix('"')).unwrap_or_default();
        if shown != "null" && placeholder::read(inside.as_bytes()).is_none() {
            let new = format!("\"{}\"", placeholder::of_part(value.len()));
            self.changes.push((value, new));
        }
    }

    /// Skips the next value, and returns its place.
    fn skip(&mut self) -> Option<Range<usize>> {
        let (mut depth, mut start) = (0_usize, None);
        loop {
            let (token, place) = self.tokens.next()?;
            let start = *start.get_or_insert(place.start);
            match token {
                JsonToken::Object | JsonToken::Array => depth += 1,
                JsonToken::End => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return Some(start..place.end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{prelude::*, test_runner::RngSeed};
    use serde_json::{Value, json};

    use super::*;

    struct Rule;

    impl Secrets for Rule {
        fn is_secret(&mut self, key: &[u8]) -> bool {
            key == b"token" || key == b"--token"
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
        assert_eq!(of(r#"{"token": null, "b": [], "c": {}}"#), None);
        assert_eq!(of("the token is x"), None);
    }

    #[test]
    fn values_beside_their_names_are_redacted() {
        for (text, shown) in [
            (
                r#"[{"name":"token","value":"hunter2"},{"name":"a","value":1}]"#,
                r#"[{"name":"token","value":"<redacted: 9 bytes>"},{"name":"a","value":1}]"#,
            ),
            (
                r#"{"value":{"x":"hunter2"},"key":"token"}"#,
                r#"{"value":"<redacted: 15 bytes>","key":"token"}"#,
            ),
            (
                r#"{"headerName":"token","headerValue":"hunter2"}"#,
                r#"{"headerName":"token","headerValue":"<redacted: 9 bytes>"}"#,
            ),
            (r#"[["token","hunter2"],["a","b"]]"#, r#"[["token","<redacted: 9 bytes>"],["a","b"]]"#),
            (r#"["a","b","token","hunter2"]"#, r#"["a","b","token","<redacted: 9 bytes>"]"#),
            (r#"["set","token","hunter2"]"#, r#"["set","token","<redacted: 9 bytes>"]"#),
            (r#"["token","hunter2","b"]"#, r#"["token","<redacted: 9 bytes>","b"]"#),
            (r#"["run","--token","hunter2"]"#, r#"["run","--token","<redacted: 9 bytes>"]"#),
            (r#"{"url":"https://x/?token=hunter2"}"#, r#"{"url":"https://x/?token=<redacted: 7 bytes>"}"#),
            (r#"{"a":{"token=hunter2":1}}"#, r#"{"a":"<redacted: 19 bytes>"}"#),
        ] {
            assert_eq!(of(text).as_deref(), Some(shown));
            assert_eq!(of(shown), None, "redacting twice changes nothing");
        }
        for plain in
            [r#"{"name":"token","size":3}"#, r#"["a","b","token"]"#, r#"{"value":"token","name":"a"}"#]
        {
            assert_eq!(of(plain), None);
        }
    }

    #[test]
    fn escaped_keys_and_texts_in_strings_are_read() {
        assert!(!of(r#"{"to\u006ben": "hunter2"}"#).unwrap().contains("hunter2"));
        let bom = of("\u{feff} {\"token\": \"hunter2\"}").unwrap();
        assert_eq!(bom, "\u{feff} {\"token\": \"<redacted: 9 bytes>\"}");
        // A text in a string is searched for lines and URLs, and not for texts inside it.
        let inner = json!({"token": "hunter2"}).to_string();
        assert!(!of(&json!({"text": inner}).to_string()).unwrap().contains("hunter2"));
        assert_eq!(of(&json!({"text": json!(["token", "hunter2"]).to_string()}).to_string()), None);
    }

    #[test]
    fn text_that_is_no_json_is_redacted_whole_if_it_names_a_secret() {
        assert_eq!(of(r#"{"token": "hunter2""#).as_deref(), Some("<redacted: text, 19 bytes>"));
        assert_eq!(of("<redacted: text, 19 bytes>"), None);
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
