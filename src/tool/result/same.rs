//! Finds out whether a text is the JSON of a value, so that a model does not read the same twice.

use serde_json::Value as Json;

use crate::value::{Value, parse, to_json, token::Token};

/// The longest text that is parsed for the comparison, in bytes. A text in the order of the value is compared whatever
/// its length.
const MAX_PARSED: usize = 64 * 1024;

/// Returns whether the text is the value itself or its JSON, in any order of keys and with any white space.
pub(super) fn says(text: &str, value: &Value) -> bool {
    if value.as_str() == Some(text) {
        return true;
    }
    let text = text.trim_matches([' ', '\n', '\r', '\t']);
    let mut reader = Reader { text: text.as_bytes(), at: 0 };
    if reader.value(value.as_bytes(), 0).is_some() && reader.at == text.len() {
        return true;
    }
    // Only a container can have another order, and escapes in other places.
    let may_differ = matches!(
        (text.as_bytes().first(), Token::read(value.as_bytes(), 0)),
        (Some(b'{'), Ok((Token::Map(_), _))) | (Some(b'['), Ok((Token::Array(_), _)))
    );
    may_differ
        && text.len() <= MAX_PARSED
        && parse(text).is_ok_and(|json| to_json(value.as_bytes()).is_ok_and(|value| value == json))
}

/// Compares a JSON text with a value, without building either. A difference in order counts as different.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    /// Compares the next value of the text with the value that starts at `at`; returns the position after it if they
    /// are equal.
    fn value(&mut self, bytes: &[u8], at: usize) -> Option<usize> {
        let (token, mut at) = Token::read(bytes, at).ok()?;
        self.space();
        match token {
            Token::Nil => self.word(b"null")?,
            Token::Bool(true) => self.word(b"true")?,
            Token::Bool(false) => self.word(b"false")?,
            Token::Unsigned(value) => self.number(&value.into())?,
            Token::Negative(value) => self.number(&value.into())?,
            Token::F32(value) => self.number(&f64::from(value).into())?,
            Token::F64(value) => self.number(&value.into())?,
            Token::Str(text) => self.string(text)?,
            Token::Bin(_) | Token::Ext(..) => return None,
            Token::Array(count) => {
                self.word(b"[")?;
                for n in 0..count {
                    self.separator(n > 0)?;
                    at = self.value(bytes, at)?;
                }
                self.space();
                self.word(b"]")?;
            }
            Token::Map(count) => {
                self.word(b"{")?;
                for n in 0..count {
                    self.separator(n > 0)?;
                    let Ok((Token::Str(key), next)) = Token::read(bytes, at) else { return None };
                    self.space();
                    self.string(key)?;
                    self.space();
                    self.word(b":")?;
                    at = self.value(bytes, next)?;
                }
                self.space();
                self.word(b"}")?;
            }
        }
        Some(at)
    }

    fn separator(&mut self, is_needed: bool) -> Option<()> {
        if !is_needed {
            return Some(());
        }
        self.space();
        self.word(b",")
    }

    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.text.get(self.at) {
            self.at += 1;
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        self.text.get(self.at..)?.starts_with(word).then(|| self.at += word.len())
    }

    fn number(&mut self, value: &Json) -> Option<()> {
        let rest = self.text.get(self.at..)?;
        let length = rest.iter().position(|it| !matches!(it, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let (number, _) = rest.split_at(length.unwrap_or(rest.len()));
        self.at += number.len();
        (serde_json::from_slice::<Json>(number).ok()? == *value).then_some(())
    }

    fn string(&mut self, text: &[u8]) -> Option<()> {
        self.word(b"\"")?;
        let rest = self.text.get(self.at..)?;
        // Without escapes the text stands there as it is.
        if rest.starts_with(text)
            && rest.get(text.len()) == Some(&b'"')
            && !text.iter().any(|byte| matches!(byte, b'"' | b'\\'))
        {
            self.at += text.len() + 1;
            return Some(());
        }
        let mut escaped = false;
        let length = rest.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        let quoted = self.text.get(self.at - 1..=self.at + length)?;
        let decoded: String = serde_json::from_slice(quoted).ok()?;
        (decoded.as_bytes() == text).then(|| self.at += length + 1)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_that_is_the_json_of_a_value_says_the_same() {
        let value = Value::from(json!({"a": [1, -2, 1.5, true, null], "b": {"c": "x\n\"é\"", "d": {}}}));
        for text in [
            r#"{"a":[1,-2,1.5,true,null],"b":{"c":"x\n\"é\"","d":{}}}"#,
            "\n{ \"a\" : [1, -2, 1.50, true, null],\n \"b\": {\"c\": \"x\\u000a\\\"\\u00e9\\\"\", \"d\": { }}}\n",
            r#"{"b": {"d": {}, "c": "x\n\"é\""}, "a": [1, -2, 1.5, true, null]}"#,
        ] {
            assert!(says(text, &value), "{text}");
        }
        for text in [
            "",
            "{}",
            r#"{"a":[1,-2,1.5,true,null]}"#,
            r#"{"a":[1,-2,1.5,true,null],"b":{"c":"x\n\"é\"","d":{}}} and more"#,
            r#"{"a":[1,-2,1.5,true,null],"b":{"c":"x","d":{}}}"#,
            r#"{"a":[1,-2,1.5,true"#,
        ] {
            assert!(!says(text, &value), "{text}");
        }
        assert!(
            says("hello", &Value::from(json!("hello"))) && says("\"hello\"", &Value::from(json!("hello")))
        );
        assert!(says(" 5 ", &Value::from(json!(5))) && !says("5.0", &Value::from(json!(5))));
        assert!(says("null", &Value::nil()) && !says("nullx", &Value::nil()));
        assert!(!says(&"[".repeat(50_000), &Value::from(json!([[]]))));
    }
}
