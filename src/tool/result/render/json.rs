//! Shows JSON texts with line breaks. Numbers keep their digits, and a text that is broken, cut or nested deep is shown as
//! well, because no tree is built.

use std::iter::Peekable;

use crate::value::json_tokens::{JsonToken, JsonTokens};

/// The deepest indentation, in levels.
const MAX_INDENT: usize = 32;

/// The lines of a JSON text, indented by two spaces a level.
pub(super) struct Pretty<'a> {
    text: &'a str,
    tokens: Peekable<JsonTokens<'a>>,
    depth: usize,
}

impl<'a> Pretty<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, tokens: JsonTokens::new(text).peekable(), depth: 0 }
    }

    fn is_at(&mut self, token: JsonToken) -> bool {
        self.tokens.peek().is_some_and(|(next, _)| *next == token)
    }
}

impl Iterator for Pretty<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        self.tokens.peek()?;
        if self.is_at(JsonToken::End) {
            self.depth = self.depth.saturating_sub(1);
        }
        let mut line = "  ".repeat(self.depth.min(MAX_INDENT));
        while let Some((token, place)) = self.tokens.next() {
            line.push_str(&self.text[place]);
            match token {
                JsonToken::Object | JsonToken::Array if self.is_at(JsonToken::End) => {
                    line.extend(self.tokens.next().map(|(_, end)| &self.text[end]));
                }
                JsonToken::Object | JsonToken::Array => {
                    self.depth += 1;
                    break;
                }
                JsonToken::Colon => line.push(' '),
                JsonToken::Comma => break,
                JsonToken::End | JsonToken::Text | JsonToken::Word => {}
            }
            if self.is_at(JsonToken::End) {
                break;
            }
        }
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pretty(text: &str) -> Vec<String> {
        Pretty::new(text).collect()
    }

    #[test]
    fn json_is_indented_as_usual() {
        let json = r#"{"a":[1,-2.50,{}],"b\"{":"x, y: [z]","c":{"d":[],"e":null}}"#;
        let usual = serde_json::to_string_pretty(&serde_json::from_str::<serde_json::Value>(json).unwrap());
        assert_eq!(pretty(json).join("\n"), usual.unwrap().replace("-2.5", "-2.50"));
        assert_eq!(pretty(" [ 1 , { \"a\" : 2 } ] "), ["[", "  1,", "  {", "    \"a\": 2", "  }", "]"]);
        assert_eq!(pretty("5"), ["5"]);
        assert_eq!(pretty("[]"), ["[]"]);
        assert_eq!(pretty(""), [""; 0]);
    }

    #[test]
    fn broken_or_deep_json_is_shown_as_far_as_it_goes() {
        assert_eq!(pretty(r#"{"a":"cut"#), ["{", "  \"a\": \"cut"]);
        assert_eq!(pretty("]}, tru"), ["]", "},", "tru"]);
        let deep = pretty(&"[".repeat(100_000));
        assert_eq!((deep.len(), deep[99_999].len()), (100_000, 2 * MAX_INDENT + 1));
    }
}
