//! Holds MessagePack values in encoded form until a type, a path or JSON is requested.
//!
//! One scan checks bytes from outside against [`Limits`]. After that they can be read by path without allocation, as
//! a type through serde, or as canonical JSON (`wire.md`, section 9), which loses nothing.
//!
//! This module has its own serializers for types. `rmp-serde` would change what peers see:
//!
//! - Its reader refuses a whole float where an integer is expected, and an empty map where a unit is expected.
//!   JavaScript, Go and Lua peers send these. Adapting it means wrapping each of its access types, which amounts to
//!   another reader.
//! - Its writer has one switch for text forms. With it, `bin` and extension values inside a [`Value`] become text;
//!   without it, an address becomes an array, although its JSON Schema says string. Integers of 128 bits become `bin`
//!   in either case.

mod arguments;
mod de;
mod embed;
mod error;
mod json;
mod json_encode;
pub(crate) mod json_string;
mod json_text;
pub(crate) mod json_tokens;
mod keys;
mod run;
pub(crate) mod scan;
mod ser;
mod text;
pub(crate) mod token;
#[cfg(feature = "record")]
pub(crate) mod walk;
pub(crate) mod write;

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

pub use error::{DecodeError, EncodeError};
#[cfg(any(feature = "record", all(any(feature = "acp", feature = "mcp"), unix)))]
pub(crate) use json::bytes_without_mark;
pub(crate) use json::{append_text, encoded, object, parse, text_of, to_json, without_mark, write_json};
pub(crate) use json_text::float;
#[cfg(feature = "runtime")]
pub(crate) use json_text::{TextSize, measured, repaired};
pub use scan::Limits;

use token::{Token, skip};

/// Returns the largest length up to `limit` at which the text can be cut.
pub(crate) fn floor_char(text: &str, limit: usize) -> usize {
    (0..=limit.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// Returns the longest prefix of at most `limit` bytes.
pub(crate) fn prefix(text: &str, limit: usize) -> &str {
    &text[..floor_char(text, limit)]
}

/// Returns a text of at most `limit` bytes, at least 3. One that is cut keeps a third of that from its beginning, and its end,
/// where a program says why it failed.
pub(crate) fn ends(text: &str, limit: usize) -> std::borrow::Cow<'_, str> {
    const CUT: &str = "…";
    if text.len() <= limit {
        return text.into();
    }
    let first = prefix(text, limit.saturating_sub(CUT.len()) / 3);
    let from = text.len() - limit.saturating_sub(first.len() + CUT.len());
    let last = (from..text.len()).find(|at| text.is_char_boundary(*at)).map_or("", |at| &text[at..]);
    format!("{first}{CUT}{last}").into()
}

/// Returns a key as a step of a JSON pointer (RFC 6901).
pub(crate) fn pointer_step(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Returns a text of at most `limit` bytes, at least 3. One that is cut ends in `…`.
#[cfg(feature = "runtime")]
pub(crate) fn abridged(text: &str, limit: usize) -> std::borrow::Cow<'_, str> {
    const CUT: char = '…';
    match text.len() {
        length if length <= limit => text.into(),
        _ => format!("{}{CUT}", prefix(text, limit - CUT.len_utf8())).into(),
    }
}

/// The name of a `Value` inside another value, as it passes through serde.
const VALUE_TOKEN: &str = "$toolbridge::Value";

/// The name that rmp gives extension values in serde.
const EXT_TOKEN: &str = "_ExtStruct";

/// One MessagePack value in its encoded form. Cloning it is cheap.
///
/// ```
/// use toolbridge::Value;
///
/// let body = Value::from_json(r#"{"contacts": [{"name": "Ada", "age": 36}]}"#)?;
/// assert_eq!(body.get("contacts/0/age").unwrap().decode::<u8>()?, 36);
/// assert_eq!(body.to_json()["contacts"][0]["name"], "Ada");
/// # Ok::<(), toolbridge::DecodeError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Value(Bytes);

impl Value {
    /// Returns the empty map.
    pub fn empty() -> Self {
        Self(Bytes::from_static(&[0x80]))
    }

    /// Returns nil.
    pub fn nil() -> Self {
        Self(Bytes::from_static(&[0xc0]))
    }

    /// Creates a value from these bytes after checking them against the default [`Limits`].
    ///
    /// # Errors
    /// If they are not exactly one valid value, or exceed a limit.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let bytes = bytes.into();
        scan::scan(&bytes, &Limits::default(), |_| {})?;
        Ok(Self(bytes))
    }

    /// Encodes a serializable type. Struct fields become map keys.
    ///
    /// Types that have a text form, such as network addresses, are encoded as text, because their JSON Schema
    /// describes that form.
    ///
    /// # Errors
    /// If the type's `Serialize` fails, or the value exceeds the default [`Limits`].
    pub fn encode(value: &(impl Serialize + ?Sized)) -> Result<Self, EncodeError> {
        let mut writer = ser::Writer::default();
        value.serialize(&mut writer)?;
        scan::scan(&writer.out, &Limits::default(), |_| {})?;
        Ok(Self(writer.out.into()))
    }

    /// Decodes the value as a type.
    ///
    /// A whole float is accepted for an integer, because JavaScript and Go write integers in both forms. If the type
    /// rejects a map whose only key is `value`, that key's value is decoded instead, because a result that is not a
    /// map is sent in this form.
    ///
    /// # Errors
    /// If the value does not match the type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        let refused = match T::deserialize(&mut de::Reader::new(&self.0)) {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        match self.lone_value() {
            Some(inner) => T::deserialize(&mut de::Reader::new(inner)).map_err(|_| refused),
            None => Err(refused),
        }
    }

    /// Returns the value as canonical JSON (`wire.md`, section 9). `$bin`, `$ext`, `$float` and `$map` mark `bin`,
    /// extension values, and floats and maps that JSON lacks, so that [`from_json`](Value::from_json) returns the
    /// same value.
    pub fn to_json(&self) -> serde_json::Value {
        to_json(&self.0).unwrap_or_default()
    }

    /// Returns the text of [`to_json`](Value::to_json), without building a tree.
    pub fn to_json_text(&self) -> String {
        let mut out = Vec::new();
        let end = append_text(&mut out, &self.0, 0);
        end.and_then(|_| String::from_utf8(out).ok()).unwrap_or_else(|| "null".to_owned())
    }

    /// Parses canonical JSON. Plain JSON is canonical.
    ///
    /// Half of a surrogate pair becomes U+FFFD, and a number that exceeds a 64-bit float becomes a string, because other
    /// programs write both.
    ///
    /// # Errors
    /// If the text is not JSON, misuses one of the `$` names, or exceeds a limit.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        let json = parse(text)?;
        let mut out = Vec::with_capacity(text.len());
        write_json(&mut out, &json, true)?;
        Self::from_bytes(out)
    }

    /// Returns the value at a path of map keys and array indices, such as `"contacts/0/name"`, without copying.
    ///
    /// An empty path returns the value itself. A key that contains `/` cannot be reached.
    pub fn get(&self, path: &str) -> Option<Self> {
        let mut at = 0;
        for step in path.split('/').filter(|_| !path.is_empty()) {
            at = self.step(at, step)?;
        }
        let end = skip(&self.0, at).ok()?;
        Some(Self(self.0.slice(at..end)))
    }

    /// Returns the kind of the value.
    pub fn kind(&self) -> ValueKind {
        match Token::read(&self.0, 0).map(|(token, _)| token) {
            Ok(Token::Bool(_)) => ValueKind::Bool,
            Ok(Token::Unsigned(_) | Token::Negative(_)) => ValueKind::Integer,
            Ok(Token::F32(_) | Token::F64(_)) => ValueKind::Float,
            Ok(Token::Str(_)) => ValueKind::Text,
            Ok(Token::Bin(_)) => ValueKind::Binary,
            Ok(Token::Ext(..)) => ValueKind::Extension,
            Ok(Token::Array(_)) => ValueKind::Array,
            Ok(Token::Map(_)) => ValueKind::Map,
            Ok(Token::Nil) | Err(_) => ValueKind::Nil,
        }
    }

    /// Returns whether it is a map.
    pub fn is_map(&self) -> bool {
        self.kind() == ValueKind::Map
    }

    /// Returns whether it is nil.
    pub fn is_nil(&self) -> bool {
        self.kind() == ValueKind::Nil
    }

    /// Returns whether it is an empty map or an empty array.
    pub fn is_empty(&self) -> bool {
        matches!(Token::read(&self.0, 0), Ok((Token::Map(0) | Token::Array(0), _)))
    }

    /// Returns the text if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        Token::read(&self.0, 0).ok()?.0.as_text()
    }

    /// Reads a truth value as [`decode`](Self::decode) does, without the code of a deserializer.
    pub(crate) fn as_bool(&self) -> Option<bool> {
        self.scalar(|token| match token {
            Token::Bool(value) => Some(*value),
            _ => None,
        })
    }

    /// Reads a text as [`decode`](Self::decode) does, which binary data may be, too; not in a map.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match Token::read(&self.0, 0).ok()?.0 {
            Token::Str(text) | Token::Bin(text) => std::str::from_utf8(text).ok(),
            _ => None,
        }
    }

    /// Returns the value that a map only wraps, under the key `value`.
    pub(crate) fn lone(&self) -> Option<Self> {
        self.lone_value().map(|inner| Self(self.0.slice_ref(inner)))
    }

    /// Reads an integer as [`decode`](Self::decode) does.
    pub(crate) fn as_integer<T: TryFrom<i128>>(&self) -> Option<T> {
        self.scalar(|token| T::try_from(token.as_integer()?).ok())
    }

    /// Reads a value that contains no others, or one in a map whose only key is `value`.
    fn scalar<T>(&self, read: impl Fn(&Token<'_>) -> Option<T>) -> Option<T> {
        let of = |bytes: &[u8]| read(&Token::read(bytes, 0).ok()?.0);
        of(&self.0).or_else(|| of(self.lone_value()?))
    }

    /// Returns the elements of a list in their order, or `None` for another value. They share the list's bytes.
    pub(crate) fn elements(&self) -> Option<impl Iterator<Item = Self> + use<>> {
        let Ok((Token::Array(count), mut at)) = Token::read(&self.0, 0) else { return None };
        let bytes = self.0.clone();
        Some((0..count).map_while(move |_| {
            let start = at;
            at = skip(&bytes, start).ok()?;
            Some(Self(bytes.slice(start..at)))
        }))
    }

    /// Returns the encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the encoded bytes, which other values may share.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Creates a value from a part of bytes that were scanned.
    pub(crate) fn trusted(bytes: Bytes) -> Self {
        Self(bytes)
    }

    pub(crate) fn lone_value(&self) -> Option<&[u8]> {
        match Token::read(&self.0, 0) {
            Ok((Token::Map(1), at)) => match Token::read(&self.0, at) {
                Ok((Token::Str(b"value"), at)) => self.0.get(at..),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns where the entry with this key or index starts, in the container that starts at `at`.
    fn step(&self, at: usize, step: &str) -> Option<usize> {
        let (token, mut at) = Token::read(&self.0, at).ok()?;
        match token {
            Token::Map(count) => {
                for _ in 0..count {
                    let (key, _) = Token::read(&self.0, at).ok()?;
                    at = skip(&self.0, at).ok()?;
                    if matches!(key, Token::Str(text) if text == step.as_bytes()) {
                        return Some(at);
                    }
                    at = skip(&self.0, at).ok()?;
                }
                None
            }
            Token::Array(count) => {
                let index: u32 = step.parse().ok().filter(|index| *index < count)?;
                for _ in 0..index {
                    at = skip(&self.0, at).ok()?;
                }
                Some(at)
            }
            _ => None,
        }
    }
}

/// The kind of a [`Value`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ValueKind {
    /// Nothing.
    Nil,
    /// True or false.
    Bool,
    /// An integer of any width.
    Integer,
    /// A float of either width.
    Float,
    /// A string.
    Text,
    /// Bytes.
    Binary,
    /// An extension value: a type and bytes.
    Extension,
    /// A list.
    Array,
    /// A map.
    Map,
}

impl Default for Value {
    /// Returns the empty map.
    fn default() -> Self {
        Self::empty()
    }
}

impl From<serde_json::Value> for Value {
    /// Converts plain JSON, in which names like `$bin` have no special meaning.
    fn from(json: serde_json::Value) -> Self {
        Self::from(&json)
    }
}

impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        let mut out = Vec::new();
        // Without the `$` names every JSON value can be written.
        let _ = write_json(&mut out, json, false);
        Self(out.into())
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} B)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, HashMap},
        net::IpAddr,
    };

    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[test]
    fn text_that_is_cut_keeps_its_beginning_and_its_end_in_whole_characters() {
        let text = "ü👋".repeat(50);
        for limit in 3..=text.len() {
            let cut = ends(&text, limit);
            assert!(cut.len() <= limit && cut.len() + 6 > limit, "{limit}: {}", cut.len());
            let (first, last) = cut.split_once('…').unwrap_or((&text, ""));
            assert!(text.starts_with(first) && text.ends_with(last), "{limit}");
        }
        assert_eq!(ends("first, and the reason", 15), "firs…e reason");
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Shape {
        Point,
        Circle(f64),
        Box { width: u32, height: u32 },
        Line(i8, i8),
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Everything {
        shapes: Vec<Shape>,
        address: IpAddr,
        by_number: BTreeMap<i32, char>,
        maybe: Option<u8>,
        unit: (),
        pair: (u64, f32),
        #[serde(flatten)]
        rest: HashMap<String, Value>,
    }

    #[test]
    fn any_type_round_trips() {
        let value = Everything {
            shapes: vec![
                Shape::Point,
                Shape::Circle(1.5),
                Shape::Box { width: 1, height: 70_000 },
                Shape::Line(-1, 2),
            ],
            address: "127.0.0.1".parse().unwrap(),
            by_number: [(-5, 'x'), (700, 'é')].into(),
            maybe: None,
            unit: (),
            pair: (u64::MAX, 0.1),
            rest: HashMap::from([("kept".into(), Value::from_json(r#"{"a":[1.0]}"#).unwrap())]),
        };
        let body = Value::encode(&value).unwrap();
        assert_eq!(body.decode::<Everything>().unwrap(), value);
        assert_eq!(body.to_json()["address"], "127.0.0.1");
        assert_eq!(body.to_json()["shapes"][0], "point");
    }

    #[test]
    fn numbers_of_other_languages_are_read() {
        assert_eq!(Value::encode(&5.0).unwrap().decode::<u8>().unwrap(), 5);
        assert_eq!(Value::encode(&-5.0_f32).unwrap().decode::<i64>().unwrap(), -5);
        assert_eq!(Value::encode(&-0.0).unwrap().decode::<u32>().unwrap(), 0);
        assert_eq!(Value::encode(&5).unwrap().decode::<f64>().unwrap(), 5.0);
        assert_eq!(Value::encode(&[1.0, 2.0]).unwrap().decode::<Vec<i32>>().unwrap(), [1, 2]);
        for refused in [5.5, 300.0, -1.0, f64::NAN, 1e300] {
            assert!(Value::encode(&refused).unwrap().decode::<u8>().is_err(), "{refused}");
        }
        assert_eq!(Value::from_bytes(vec![0xd4, 0, 0]).unwrap().decode::<Option<u8>>().unwrap(), None);
        assert_eq!(Value::from_bytes(vec![0xc4, 2, 8, 9]).unwrap().decode::<Vec<u8>>().unwrap(), [8, 9]);
        assert!(Value::encode(&u128::MAX).is_err());
    }

    #[test]
    fn values_that_are_read_without_serde_are_those_that_decode_reads() {
        let plain = [
            json!(null),
            json!(true),
            json!(0),
            json!(-7),
            json!(7.0),
            json!(7.5),
            json!(-7.0),
            json!(3e9),
            json!(1e300),
            json!(u64::MAX),
            json!(i64::MIN),
            json!("text"),
            json!([]),
            json!([true]),
            json!({}),
            json!({"value": 1, "b": 2}),
        ];
        let wrapped = plain.iter().map(|json| json!({"value": json}));
        let twice = wrapped.clone().map(|json| json!({"value": json}));
        let bytes: [&[u8]; 3] = [&[0xc4, 1, b'a'], &[0xc4, 1, 0xff], &[0xd4, 0, 0]];
        let values = plain.iter().cloned().chain(wrapped).chain(twice).map(Value::from);
        for value in values.chain(bytes.map(|bytes| Value::from_bytes(bytes.to_vec()).unwrap())) {
            let json = value.to_json_text();
            assert_eq!(value.as_bool(), value.decode().ok(), "{json}");
            assert_eq!(value.as_integer::<u64>(), value.decode().ok(), "{json}");
            assert_eq!(value.as_integer::<i32>(), value.decode().ok(), "{json}");
            if !value.is_map() {
                assert_eq!(value.as_text().map(str::to_owned), value.decode().ok(), "{json}");
            }
            let elements = value.elements().map(Iterator::collect::<Vec<_>>);
            assert_eq!(
                elements,
                Some(value.decode().unwrap_or_default()).filter(|_| value.kind() == ValueKind::Array)
            );
        }
    }

    #[test]
    fn single_value_is_unwrapped_if_the_map_is_refused() {
        let wrapped: Value = json!({"value": 7}).into();
        assert_eq!(wrapped.decode::<u8>().unwrap(), 7);
        assert_eq!(wrapped.decode::<BTreeMap<String, u8>>().unwrap()["value"], 7);
        assert_eq!(Value::from(json!({"value": null})).decode::<()>().ok(), Some(()));
        assert!(Value::from(json!({"value": 7, "more": 1})).decode::<u8>().is_err());
        assert!(Value::from(json!({"values": 7})).decode::<u8>().is_err());
        let error = Value::from(json!({"value": "x"})).decode::<u8>().unwrap_err().to_string();
        assert!(error.contains("map"), "{error}");
        assert!(Value::empty().decode::<()>().is_ok() && Value::nil().decode::<()>().is_ok());
    }

    #[test]
    fn path_finds_a_value() {
        let body: Value = json!({"a": {"b": [10, {"c": "x"}]}, "": 1}).into();
        assert_eq!(body.get("a/b/0").unwrap().decode::<u8>().unwrap(), 10);
        assert_eq!(body.get("a/b/1/c").unwrap().as_str(), Some("x"));
        assert_eq!(body.get("").unwrap(), body);
        assert_eq!(body.get("/").map(|body| body.kind()), None);
        for nowhere in ["b", "a/b/2", "a/b/-1", "a/b/x", "a/b/0/0", "a/"] {
            assert_eq!(body.get(nowhere), None, "{nowhere}");
        }
        assert_eq!(format!("{:?}", body), format!("Value({} B)", body.as_bytes().len()));
        assert_eq!(Value::default(), Value::empty());
    }

    #[test]
    fn value_passes_through_other_formats() {
        let body =
            Value::from_json(r#"{"a":{"$bin":"AA=="},"b":{"$ext":[5,"AQ=="]},"c":[1.5,-7,null]}"#).unwrap();
        let named = rmp_serde::to_vec_named(&BTreeMap::from([("body", &body)])).unwrap();
        let read: BTreeMap<String, Value> = rmp_serde::from_slice(&named).unwrap();
        assert_eq!(read["body"], body);
        assert_eq!(Value::from_bytes(named).unwrap().get("body").unwrap(), body);
        let inside = Value::encode(&BTreeMap::from([("x", &body)])).unwrap();
        assert_eq!(inside.decode::<BTreeMap<String, Value>>().unwrap()["x"], body);
        assert_eq!(serde_json::to_value(&body).unwrap(), body.to_json());
        assert_eq!(serde_json::from_value::<Value>(body.to_json()).unwrap(), body);
    }

    #[test]
    fn too_deep_value_is_refused() {
        let deep = (0..64).fold(json!(1), |inner, _| json!([inner]));
        assert!(Value::encode(&deep).is_ok());
        assert!(matches!(
            Value::encode(&json!([deep])),
            Err(EncodeError::Invalid(DecodeError::TooDeep { .. }))
        ));
    }
}
