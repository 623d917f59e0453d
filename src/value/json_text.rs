//! Measures JSON texts that other programs write, before anything is built of them, and repairs them.

use std::{borrow::Cow, ops::Range};

use serde::de::IgnoredAny;

use super::json_tokens::{JsonToken, JsonTokens};

/// The size of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TextSize {
    /// The deepest nesting, in levels.
    pub(crate) depth: usize,
    /// The number of values, keys included. An empty container counts as two.
    pub(crate) values: usize,
}

/// Measures a text in one pass, whether it is JSON or not.
pub(crate) fn measured(text: &str) -> TextSize {
    let (mut depth, mut deepest, mut values) = (0_usize, 0, 1_usize);
    for (token, _) in JsonTokens::new(text) {
        match token {
            JsonToken::Object | JsonToken::Array => {
                depth += 1;
                values += 1;
                deepest = deepest.max(depth);
            }
            JsonToken::End => depth = depth.saturating_sub(1),
            JsonToken::Comma | JsonToken::Colon => values += 1,
            JsonToken::Text | JsonToken::Word => {}
        }
    }
    TextSize { depth: deepest, values }
}

/// Returns the text with U+FFFD for each half of a surrogate pair, and with strings in place of numbers that are too
/// large. Programs write both, and neither has a place in a value. A text that has neither is returned as it is.
pub(crate) fn repaired(text: &str) -> Cow<'_, str> {
    let mut out = String::new();
    let mut kept = 0; // where the part begins that is not in `out` yet
    let mut replace = |place: Range<usize>, by: &str| {
        out.push_str(&text[kept..place.start]);
        out.push_str(by);
        kept = place.end;
    };
    for (token, place) in JsonTokens::new(text) {
        match token {
            JsonToken::Text => {
                let mut at = place.start;
                while let Some(next) = text[at..place.end].find('\\') {
                    at += next;
                    let length = escape(&text[at..place.end]);
                    if is_lone_surrogate(&text[at..at + length]) {
                        replace(at..at + length, "\\ufffd");
                    }
                    at += length;
                }
            }
            JsonToken::Word if is_infinite(&text[place.clone()]) => {
                let number = format!("\"{}\"", &text[place.clone()]);
                replace(place, &number);
            }
            _ => {}
        }
    }
    if kept == 0 {
        return text.into();
    }
    out.push_str(&text[kept..]);
    out.into()
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

/// The fewest digits of a number without an exponent that exceeds a 64-bit float.
const HUGE: usize = 309;

/// Returns whether a word is a number that exceeds a 64-bit float: one by its syntax, and none for the parser.
///
/// std's own parser of floats, with its table, would be 15 KB of the module for browsers.
fn is_infinite(word: &str) -> bool {
    let may_be = word.len() >= HUGE || word.contains(['e', 'E']);
    may_be
        && word.starts_with(|it: char| it == '-' || it.is_ascii_digit())
        && serde_json::from_str::<IgnoredAny>(word).is_ok()
        && float(word).is_none()
}

/// Returns the float that a number is. One that exceeds a 64-bit float is none.
///
/// Each type that serde reads is code of its own, so this reads the one that is read anyway.
pub(crate) fn float(number: &str) -> Option<f64> {
    match serde_json::from_str(number) {
        Ok(serde_json::Value::Number(number)) => number.as_f64(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_a_surrogate_pair_and_a_huge_number_are_replaced() {
        let text = r#"{"\ud83d": "a\ud83d", "b": "\ude00\ud83d\ude00\\ud800\"", "c": [1e999, -1E+400, 5], "d": "1e999"}"#;
        let readable = r#"{"\ufffd": "a\ufffd", "b": "\ufffd\ud83d\ude00\\ud800\"", "c": ["1e999", "-1E+400", 5], "d": "1e999"}"#;
        assert_eq!(repaired(text), readable);
        assert!(matches!(repaired(r#"{"a": ["\ud83d\ude00 \n é", 1e5]}"#), Cow::Borrowed(_)));
        let digits = "9".repeat(HUGE);
        assert_eq!(repaired(&digits), format!("\"{digits}\""));
        let finite = format!("[{}, 1.5e308, 0.{digits}e-5]", &digits[1..]);
        assert!(matches!(repaired(&finite), Cow::Borrowed(_)));
        for broken in ["1e", "1e999x", "-infe", "01e999", "\"\\", "\"\\é", "\"\\ud83", "é1e999", ""] {
            repaired(broken);
        }
    }

    #[test]
    fn nothing_counts_inside_a_string() {
        assert_eq!(measured(r#"{"a[{": [1, "\"[,:"], "b": {}}"#), TextSize { depth: 2, values: 8 });
        assert_eq!(measured("]]["), TextSize { depth: 1, values: 2 });
    }
}
