//! Finds out whether a text is the JSON of a value, so that a model does not read the same twice.

use crate::value::{
    Value, parse, to_json,
    token::{Token, short_text},
};

/// How many bytes of the texts of one result are parsed for the comparison. A text in the order of the value is compared
/// without parsing, whatever its length.
const MAX_PARSED: usize = 256 * 1024;

/// Returns whether one of the texts is the value itself or its JSON, in any order of keys and with any white space.
/// `None` if there was too much to compare.
pub(super) fn any_says<'a>(texts: impl Iterator<Item = &'a str>, value: &Value) -> Option<bool> {
    let (mut left, mut tree, mut is_certain) = (MAX_PARSED, None, true);
    for text in texts {
        if value.as_str() == Some(text) {
            return Some(true);
        }
        let text = text.trim_matches([' ', '\n', '\r', '\t']);
        let mut reader = Reader { text: text.as_bytes(), at: 0 };
        if reader.value(value.as_bytes(), 0).is_some() && reader.at == text.len() {
            return Some(true);
        }
        if !may_differ(text, value) {
            continue;
        }
        let Some(rest) = left.checked_sub(text.len()) else {
            is_certain = false;
            continue;
        };
        left = rest;
        if tree.is_none() {
            tree = to_json(value.as_bytes()).ok();
        }
        if parse(text).is_ok_and(|json| tree.as_ref() == Some(&json)) {
            return Some(true);
        }
    }
    is_certain.then_some(false)
}

/// Returns whether a text can be the JSON of a value in another order or with other escapes.
fn may_differ(text: &str, value: &Value) -> bool {
    let value = value.as_bytes();
    // The least JSON for its value is that of a float: `1.0,` for nine bytes.
    let is_long_enough = value.len() <= 3 * text.len() + 16;
    is_long_enough
        && matches!(
            (text.as_bytes().first(), Token::read(value, 0)),
            (Some(b'{'), Ok((Token::Map(_), _))) | (Some(b'['), Ok((Token::Array(_), _)))
        )
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
        self.space();
        if let Some((text, at)) = short_text(bytes, at) {
            self.string(text)?;
            return Some(at);
        }
        let (token, mut at) = Token::read(bytes, at).ok()?;
        match token {
            Token::Nil => self.word(b"null")?,
            Token::Bool(true) => self.word(b"true")?,
            Token::Bool(false) => self.word(b"false")?,
            Token::Unsigned(value) => (self.integer()?.parse() == Ok(value)).then_some(())?,
            Token::Negative(value) => (self.integer()?.parse() == Ok(value)).then_some(())?,
            Token::F32(value) => (self.float()? == f64::from(value)).then_some(())?,
            Token::F64(value) => (self.float()? == value).then_some(())?,
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
                    let (key, next) = match short_text(bytes, at) {
                        Some(key) => key,
                        None => match Token::read(bytes, at).ok()? {
                            (Token::Str(key), next) => (key, next),
                            _ => return None,
                        },
                    };
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

    /// Returns the next number as it is written.
    fn number(&mut self) -> Option<&str> {
        let rest = self.text.get(self.at..)?;
        let length = rest.iter().position(|it| !matches!(it, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
        let (number, _) = rest.split_at(length.unwrap_or(rest.len()));
        self.at += number.len();
        std::str::from_utf8(number).ok()
    }

    /// Returns the next number if it is an integer: digits, and a sign before them if it is negative.
    fn integer(&mut self) -> Option<&str> {
        self.number()
            .filter(|number| !number.starts_with('+') && (*number == "0" || !number.starts_with('0')))
    }

    fn float(&mut self) -> Option<f64> {
        let number = self.number()?;
        // As in a JSON parser, digits alone are an integer, and equal no float.
        if number.contains(['.', 'e', 'E']) { serde_json::from_str(number).ok() } else { None }
    }

    fn string(&mut self, text: &[u8]) -> Option<()> {
        self.word(b"\"")?;
        let rest = self.text.get(self.at..)?;
        // Without escapes the text stands there as it is.
        if rest.starts_with(text)
            && rest.get(text.len()) == Some(&b'"')
            && !text.iter().fold(false, |has, byte| has | (*byte == b'"') | (*byte == b'\\'))
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

    fn says(text: &str, value: &Value) -> bool {
        any_says([text].into_iter(), value).unwrap()
    }

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
    #[test]
    fn too_much_text_is_not_compared() {
        let value = Value::from(json!({"a": "x".repeat(200_000), "b": 1}));
        let same = format!("{{\"a\":\"{}\",\"b\":1}}", "x".repeat(200_000));
        let reordered = format!("{{\"b\":1,\"a\":\"{}\"}}", "x".repeat(200_000));
        let other = same.replace("\"b\":1", "\"b\":2");
        let all = |texts: &[&String]| any_says(texts.iter().map(|text| text.as_str()), &value);
        assert_eq!((all(&[&other]), all(&[&reordered])), (Some(false), Some(true)));
        assert_eq!(all(&[&other, &reordered]), None);
        assert_eq!(all(&[&other, &other, &same]), Some(true));
    }
}
