//! Finds out whether a text is the JSON of a value, so that a model does not read the same twice.

use serde_json::Value as Json;

use crate::value::{
    Value, float,
    json_string::{ShortText, has_quote},
    parse, to_json,
    token::{Token, short_text, text_at},
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
        let mut reader = Reader { rest: text.as_bytes() };
        if reader.value(value.as_bytes(), 0).is_some() && reader.rest.is_empty() {
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
    /// What was not read yet.
    rest: &'a [u8],
}

impl Reader<'_> {
    /// Compares the next value of the text with the value that starts at `at`; returns the position after it if they
    /// are equal.
    fn value(&mut self, bytes: &[u8], at: usize) -> Option<usize> {
        self.space();
        if let Some(text) = short_text(bytes, at) {
            return self.string(bytes, text);
        }
        let (token, mut next) = Token::read(bytes, at).ok()?;
        match token {
            Token::Nil => self.word(b"null")?,
            Token::Bool(true) => self.word(b"true")?,
            Token::Bool(false) => self.word(b"false")?,
            Token::Unsigned(value) => (self.integer()? == value).then_some(())?,
            Token::Negative(value) => {
                self.word(b"-")?;
                (self.integer()? == value.unsigned_abs()).then_some(())?;
            }
            Token::F32(value) => (self.float()? == f64::from(value)).then_some(())?,
            Token::F64(value) => (self.float()? == value).then_some(())?,
            Token::Str(text) => _ = self.string(bytes, (text, next))?,
            Token::Bin(_) | Token::Ext(..) => return None,
            Token::Array(count) => {
                self.word(b"[")?;
                for n in 0..count {
                    self.separator(n > 0)?;
                    next = self.value(bytes, next)?;
                }
                self.space();
                self.word(b"]")?;
            }
            Token::Map(count) => {
                self.word(b"{")?;
                for n in 0..count {
                    self.separator(n > 0)?;
                    self.space();
                    next = self.string(bytes, text_at(bytes, next)?)?;
                    self.space();
                    self.word(b":")?;
                    next = self.value(bytes, next)?;
                }
                self.space();
                self.word(b"}")?;
            }
        }
        Some(next)
    }

    #[inline]
    fn separator(&mut self, is_needed: bool) -> Option<()> {
        if !is_needed {
            return Some(());
        }
        self.space();
        self.word(b",")
    }

    #[inline]
    fn space(&mut self) {
        const INDENT: u64 = u64::from_le_bytes([b' '; 8]);
        while let [b' ' | b'\n' | b'\r' | b'\t', rest @ ..] = self.rest {
            // Lines are often indented.
            let indent =
                rest.first_chunk().map_or(0, |bytes| (u64::from_le_bytes(*bytes) ^ INDENT).trailing_zeros());
            self.rest = rest.get(indent as usize / 8..).unwrap_or_default();
        }
    }

    #[inline]
    fn word<const N: usize>(&mut self, word: &[u8; N]) -> Option<()> {
        self.rest = self.rest.strip_prefix(word)?;
        Some(())
    }

    /// Compares the next string with one of the value, of which the text and the position after it are given. Returns
    /// that position.
    fn string(&mut self, bytes: &[u8], (text, end): (&[u8], usize)) -> Option<usize> {
        self.word(b"\"")?;
        // Without escapes the text stands there as it is.
        if self.rest.get(text.len()) == Some(&b'"') {
            let is_equal = match ShortText::new(bytes.get(end - text.len()..)?, text.len()) {
                Some(short) => short.is_plain_and_starts(self.rest),
                None => self.rest.starts_with(text) && !has_quote(text),
            };
            if is_equal {
                self.rest = self.rest.get(text.len() + 1..)?;
                return Some(end);
            }
        }
        self.escaped_string(text)?;
        Some(end)
    }

    #[cold]
    fn escaped_string(&mut self, text: &[u8]) -> Option<()> {
        let mut escaped = false;
        let length = self.rest.iter().position(|byte| {
            let ends = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            ends
        })?;
        let (inside, rest) = self.rest.split_at(length);
        let quoted = [b"\"", inside, b"\""].concat();
        let Ok(Json::String(decoded)) = serde_json::from_str(str::from_utf8(&quoted).ok()?) else {
            return None;
        };
        self.rest = rest.strip_prefix(b"\"")?;
        (decoded.as_bytes() == text).then_some(())
    }

    /// Returns the next number without its sign, if it is an integer.
    #[inline]
    fn integer(&mut self) -> Option<u64> {
        let start = self.rest;
        let number = self.digits()?;
        let has_more = matches!(self.rest.first(), Some(b'.' | b'e' | b'E'));
        let is_padded = start.first() == Some(&b'0') && start.len() - self.rest.len() > 1;
        (!has_more && !is_padded).then_some(number)
    }

    /// Returns the number that the next digits are.
    #[inline]
    fn digits(&mut self) -> Option<u64> {
        let mut number = None;
        while let [digit @ b'0'..=b'9', rest @ ..] = self.rest {
            number = Some(number.unwrap_or(0_u64).checked_mul(10)?.checked_add(u64::from(digit - b'0'))?);
            self.rest = rest;
        }
        number
    }

    /// Returns the next number. As in a JSON parser, digits alone are an integer, and equal no float.
    fn float(&mut self) -> Option<f64> {
        let mut short = Reader { rest: self.rest };
        if let Some(number) = short.short_float() {
            self.rest = short.rest;
            return Some(number);
        }
        let is_part = |it: &u8| matches!(it, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
        let length = self.rest.iter().position(|it| !is_part(it)).unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(length);
        self.rest = rest;
        let is_float = number.iter().any(|it| matches!(it, b'.' | b'e' | b'E'));
        if is_float { float(str::from_utf8(number).ok()?) } else { None }
    }

    /// Returns a number that has few digits, with a point and without an exponent. The quotient of two exact numbers is
    /// the float that is nearest to it, as a parser finds it.
    fn short_float(&mut self) -> Option<f64> {
        /// The most bytes of a number whose digits, and the power of ten below them, are exact.
        const MAX_BYTES: usize = 16;
        let is_negative = self.word(b"-").is_some();
        let number = self.rest;
        let whole = self.digits()?;
        self.word(b".")?;
        let after_point = self.rest;
        let fraction = self.digits()?;
        let length = number.len() - self.rest.len();
        let places = after_point.len() - self.rest.len();
        let is_padded = number.first() == Some(&b'0') && length - places > "0.".len();
        if is_padded || length > MAX_BYTES || matches!(self.rest.first(), Some(b'.' | b'e' | b'E')) {
            return None;
        }
        let scale = 10_u64.pow(places as u32);
        let value = (whole * scale + fraction) as f64 / scale as f64;
        Some(if is_negative { -value } else { value })
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
    fn number_is_read_as_a_json_parser_reads_it() {
        let mut rng = 1_u64;
        for n in 0..100_000 {
            rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let number = match n % 4 {
                0 => format!("{}.{}", rng >> 44, rng % 100_000),
                1 => format!("-{}.{:09}", rng >> 58, rng % 1_000_000_000),
                2 => format!("0.{:015}", rng % 1_000_000_000_000_000),
                _ => f64::from_bits(rng).to_string(),
            };
            let Ok(expected) = serde_json::from_str::<f64>(&number) else { continue };
            let read = Reader { rest: number.as_bytes() }.float();
            assert_eq!(read.map(f64::to_bits), number.contains('.').then(|| expected.to_bits()), "{number}");
        }
        for invalid in
            ["1.", ".5", "-.5", "01.5", "-01.5", "--1.5", "+1.5", "1.5.5", "1.-5", "1.+5", "-", "1.5e"]
        {
            assert_eq!(Reader { rest: invalid.as_bytes() }.float(), None, "{invalid}");
            assert!(serde_json::from_str::<f64>(invalid).is_err(), "{invalid}");
        }
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
