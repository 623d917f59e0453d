//! Keeps each long text once: where the native document holds it, a JSON pointer refers to it elsewhere.
//!
//! A reference is the map `{"at": pointer}`. Inside values that may be anything, a map that looks like one is written
//! as `{"at": {"at": …}}`. Without a native document there are neither references nor such maps.

use std::{borrow::Cow, cell::OnceCell, collections::HashMap, sync::Arc};

use super::{
    document::each_text,
    fields::{Map, pairs},
};
use crate::value::{
    DecodeError, Value,
    token::{Token, skip},
    write::Write,
};

/// The longest text that is always written where it belongs, in bytes. A reference takes up to some hundred.
const INLINE: usize = 1024;

/// The key of a reference.
const AT: &str = "at";

/// The long texts of a native document, by pointer.
pub(super) struct Reader<'a> {
    native: Option<&'a str>,
    texts: OnceCell<HashMap<String, Cow<'a, str>>>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(native: Option<&'a str>) -> Self {
        Self { native, texts: OnceCell::new() }
    }

    /// Returns a text that is written in full or as a reference.
    pub(super) fn text(&self, value: &Value) -> Option<Arc<str>> {
        if let Some(text) = value.as_str() {
            return Some(text.into());
        }
        let bytes = value.as_bytes();
        let at = inside_at(bytes, 0)?;
        let (pointer, _) = Token::read(bytes, at).ok()?;
        self.find(pointer.as_text()?).map(Arc::from)
    }

    /// Returns a value with its references resolved. One that leads nowhere is kept as it is.
    pub(super) fn value(&self, value: &Value) -> Value {
        if self.native.is_none() || !has_at(value.as_bytes()) {
            return value.clone();
        }
        let mut out = Vec::with_capacity(value.as_bytes().len());
        match self.copy(&mut out, value.as_bytes(), 0) {
            Ok(_) => Value::trusted(out.into()),
            Err(_) => value.clone(),
        }
    }

    /// Returns a map with the references in its values resolved. The map itself is none.
    pub(super) fn map(&self, map: &Value) -> Value {
        if self.native.is_none() || !has_at(map.as_bytes()) {
            return map.clone();
        }
        let mut out = Map::default();
        for (key, value) in pairs(map) {
            out.pair(&key).extend_from_slice(self.value(&value).as_bytes());
        }
        out.value()
    }

    fn find(&self, pointer: &str) -> Option<&str> {
        let texts = self.texts.get_or_init(|| {
            let mut texts = HashMap::new();
            each_text(self.native.unwrap_or_default(), INLINE + 1, |pointer, text| {
                texts.insert(pointer, text);
            });
            texts
        });
        texts.get(pointer).map(AsRef::as_ref)
    }

    fn copy(&self, out: &mut Vec<u8>, bytes: &[u8], at: usize) -> Result<usize, DecodeError> {
        let Some(inside) = inside_at(bytes, at) else {
            return copy(out, bytes, at, |out, at| self.copy(out, bytes, at));
        };
        if let Some(literal) = inside_at(bytes, inside) {
            out.map(1);
            out.str(AT);
            return self.copy(out, bytes, literal);
        }
        let (token, end) = Token::read(bytes, inside)?;
        match token.as_text().and_then(|pointer| self.find(pointer)) {
            Some(text) => {
                out.str(text);
                Ok(end)
            }
            None => copy(out, bytes, at, |out, at| self.copy(out, bytes, at)),
        }
    }
}

/// The pointers of a native document's long texts.
pub(super) struct Writer<'a> {
    native: Option<&'a str>,
    pointers: OnceCell<HashMap<Cow<'a, str>, String>>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(native: Option<&'a str>) -> Self {
        Self { native, pointers: OnceCell::new() }
    }

    /// Appends a text, or a reference to it.
    pub(super) fn text(&self, out: &mut Vec<u8>, text: &str) {
        match self.find(text) {
            Some(pointer) => {
                out.map(1);
                out.str(AT);
                out.str(pointer);
            }
            None => out.str(text),
        }
    }

    /// Appends a value, with references in place of long texts.
    pub(super) fn value(&self, out: &mut Vec<u8>, value: &Value) {
        let bytes = value.as_bytes();
        let start = out.len();
        if self.native.is_none() || self.copy(out, bytes, 0).is_err() {
            out.truncate(start);
            out.extend_from_slice(bytes);
        }
    }

    fn find(&self, text: &str) -> Option<&str> {
        if text.len() <= INLINE {
            return None;
        }
        let pointers = self.pointers.get_or_init(|| {
            let mut pointers = HashMap::new();
            let native = self.native.unwrap_or_default();
            // The reader takes the last text under a pointer, as other JSON parsers do for a repeated key.
            let read = Reader::new(Some(native));
            each_text(native, INLINE + 1, |pointer, text| {
                if read.find(&pointer) == Some(text.as_ref()) {
                    pointers.entry(text).or_insert(pointer);
                }
            });
            pointers
        });
        pointers.get(text).map(String::as_str)
    }

    fn copy(&self, out: &mut Vec<u8>, bytes: &[u8], at: usize) -> Result<usize, DecodeError> {
        if let Some(inside) = inside_at(bytes, at) {
            out.map(1);
            out.str(AT);
            out.map(1);
            out.str(AT);
            return self.copy(out, bytes, inside);
        }
        if let (Token::Str(text), end) = Token::read(bytes, at)?
            && text.len() > INLINE
            && let Ok(text) = std::str::from_utf8(text)
        {
            self.text(out, text);
            return Ok(end);
        }
        copy(out, bytes, at, |out, at| self.copy(out, bytes, at))
    }
}

/// Copies a value, with `inner` for what a container holds; returns the position after it. Keys are copied unchanged.
fn copy(
    out: &mut Vec<u8>,
    bytes: &[u8],
    at: usize,
    mut inner: impl FnMut(&mut Vec<u8>, usize) -> Result<usize, DecodeError>,
) -> Result<usize, DecodeError> {
    let (token, mut next) = Token::read(bytes, at)?;
    out.extend_from_slice(bytes.get(at..next).unwrap_or_default());
    match token {
        Token::Array(count) => {
            for _ in 0..count {
                next = inner(out, next)?;
            }
        }
        Token::Map(count) => {
            for _ in 0..count {
                let value = skip(bytes, next)?;
                out.extend_from_slice(bytes.get(next..value).unwrap_or_default());
                next = inner(out, value)?;
            }
        }
        _ => {}
    }
    Ok(next)
}

/// Returns where the only value of a map starts whose only key is `at`.
fn inside_at(bytes: &[u8], at: usize) -> Option<usize> {
    let (Token::Map(1), at) = Token::read(bytes, at).ok()? else { return None };
    match Token::read(bytes, at).ok()? {
        (Token::Str(b"at"), at) => Some(at),
        _ => None,
    }
}

/// Returns whether a map whose only key is `at` may be inside.
fn has_at(bytes: &[u8]) -> bool {
    let mut at = 0;
    while let Ok((_, next)) = Token::read(bytes, at) {
        if inside_at(bytes, at).is_some() {
            return true;
        }
        at = next;
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_texts_are_referred_to_and_resolved() {
        let long = "é".repeat(600);
        let native = json!({"a": [long, "short"], "b": {"c": long}}).to_string();
        let value =
            Value::from(json!({"x": [long, "short", {"at": "/a/0"}, {"at": {"at": [long]}}, {"at": 5}]}));
        let mut out = Vec::new();
        Writer::new(Some(&native)).value(&mut out, &value);
        let written = Value::from_bytes(out).unwrap();
        let reference = json!({"at": "/a/0"});
        let literals = [
            json!({"at": {"at": "/a/0"}}),
            json!({"at": {"at": {"at": {"at": [reference]}}}}),
            json!({"at": {"at": 5}}),
        ];
        assert_eq!(written.to_json()["x"][0], reference);
        assert_eq!(written.to_json()["x"].as_array().unwrap()[2..], literals);
        assert_eq!(Reader::new(Some(&native)).value(&written), value);
        // Without a native document everything stands where it belongs.
        let mut out = Vec::new();
        Writer::new(None).value(&mut out, &value);
        assert_eq!(Reader::new(None).value(&Value::from_bytes(out).unwrap()), value);
    }

    #[test]
    fn reference_that_leads_nowhere_is_kept() {
        let native = json!({"short": "text", "long": "x".repeat(2000)}).to_string();
        let reader = Reader::new(Some(&native));
        for nowhere in [
            json!("/short"),
            json!("/none"),
            json!(""),
            json!("long"),
            json!(5),
            json!(["/long"]),
            json!(null),
        ] {
            let value = Value::from(json!({ "at": nowhere }));
            assert_eq!((reader.text(&value), reader.value(&value)), (None, value));
        }
        assert_eq!(reader.text(&Value::from(json!({"at": "/long"}))).unwrap().len(), 2000);
        assert_eq!(reader.text(&Value::from(json!({"at": "/long", "more": 1}))), None);
        let broken = Reader::new(Some("{\"long\": \"x"));
        assert_eq!(broken.text(&Value::from(json!({"at": "/long"}))), None);
    }

    #[test]
    fn repeated_key_is_never_referred_to_by_its_first_value() {
        let (first, last) = ("x".repeat(2000), "y".repeat(2000));
        let native = format!(r#"{{"a":"{first}","a":"{last}"}}"#);
        let writer = Writer::new(Some(&native));
        assert_eq!((writer.find(&first), writer.find(&last)), (None, Some("/a")));
    }
}
