//! Splits JSON texts into tokens, for readers that build no tree.
//!
//! The tokens follow the text alone: their ranges keep numbers and strings as they were written, and a text that is broken
//! or cut has tokens, too. Whether it is JSON is for a parser to say.

use std::ops::Range;

use super::json_string::string_end;

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonToken {
    /// `{`
    Object,
    /// `[`
    Array,
    /// `}` or `]`
    End,
    /// `,`
    Comma,
    /// `:`
    Colon,
    /// A string with its quotes. In a text that is cut, the last quote may be missing.
    Text,
    /// A number, `true`, `false`, `null`, or anything else up to the next space or token.
    Word,
}

/// The tokens of a text, each with its place in bytes.
#[derive(Clone, Debug)]
pub(crate) struct JsonTokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> JsonTokens<'a> {
    /// Returns the tokens of a text.
    pub(crate) fn new(text: &'a str) -> Self {
        Self { text: text.as_bytes(), at: 0 }
    }
}

impl Iterator for JsonTokens<'_> {
    type Item = (JsonToken, Range<usize>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
        let start = self.at;
        let (token, end) = match self.text.get(start)? {
            b'{' => (JsonToken::Object, start + 1),
            b'[' => (JsonToken::Array, start + 1),
            b'}' | b']' => (JsonToken::End, start + 1),
            b',' => (JsonToken::Comma, start + 1),
            b':' => (JsonToken::Colon, start + 1),
            b'"' => (JsonToken::Text, string_end(self.text, start).min(self.text.len())),
            _ => (JsonToken::Word, word_end(self.text, start)),
        };
        self.at = end;
        Some((token, start..end))
    }
}

/// Returns the position after the word that starts here.
fn word_end(text: &[u8], start: usize) -> usize {
    let is_end = |byte: &u8| {
        matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b'{' | b'}' | b'[' | b']' | b',' | b':' | b'"')
    };
    let rest = text.get(start..).unwrap_or_default();
    start + rest.iter().position(is_end).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<(JsonToken, &str)> {
        JsonTokens::new(text).map(|(token, range)| (token, &text[range])).collect()
    }

    #[test]
    fn tokens_are_the_parts_of_the_text_as_they_were_written() {
        use JsonToken::{Array, Colon, Comma, End, Object, Text, Word};
        let text = " {\"a\\\"{\" : [1.50,-2e5\n,true ] }";
        let expected = [
            (Object, "{"),
            (Text, "\"a\\\"{\""),
            (Colon, ":"),
            (Array, "["),
            (Word, "1.50"),
            (Comma, ","),
            (Word, "-2e5"),
            (Comma, ","),
            (Word, "true"),
            (End, "]"),
            (End, "}"),
        ];
        assert_eq!(tokens(text), expected);
    }

    #[test]
    fn text_that_is_not_json_has_tokens_up_to_its_end() {
        use JsonToken::{Colon, Comma, End, Text, Word};
        assert_eq!(tokens("]}é,tru"), [(End, "]"), (End, "}"), (Word, "é"), (Comma, ","), (Word, "tru")]);
        assert_eq!(tokens(r#"x"y\""#), [(Word, "x"), (Text, r#""y\""#)]);
        assert_eq!(tokens(":\""), [(Colon, ":"), (Text, "\"")]);
        assert_eq!(tokens("\"\\"), [(Text, "\"\\")]);
        assert_eq!(tokens(" \n"), []);
    }
}
