//! A MessagePack value that stays bytes until somebody asks for a type, a path or JSON.
//!
//! Bytes from outside pass one scan ([`Limits`]) and are then read without fear: by path without
//! allocation, as a type by serde, or as canonical JSON (`wire.md`, section 9), which loses nothing.
//!
//! Types are written and read by serializers of this module, not by `rmp-serde`, which changes what peers see:
//!
//! - Its reader refuses a whole float where an integer is wanted, and an empty map where nothing is wanted. JavaScript, Go and
//!   Lua peers send these. Adapting it means wrapping each of its access types, which is a reader again.
//! - Its writer has one switch for text forms. With it, `bin` and extension values inside a [`Value`] become text; without it,
//!   an address becomes an array, though its JSON Schema says string. Integers of 128 bits become `bin` in either case.

mod de;
mod embed;
mod error;
mod json;
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
pub(crate) use json::{object, parse, text_of, to_json, write_json};
pub use scan::Limits;

use token::{Token, skip};

/// The name under which a `Value` inside another value is passed through serde.
const VALUE_TOKEN: &str = "$toolbridge::Value";

/// The name under which rmp passes extension values through serde.
const EXT_TOKEN: &str = "_ExtStruct";

/// One MessagePack value, kept as the bytes it travels in. Cloning it is cheap.
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
    /// The empty map.
    pub fn empty() -> Self {
        Self(Bytes::from_static(&[0x80]))
    }

    /// Nil.
    pub fn nil() -> Self {
        Self(Bytes::from_static(&[0xc0]))
    }

    /// The value that these bytes are, checked against the default [`Limits`].
    ///
    /// # Errors
    /// When they are not exactly one valid value, or pass a limit.
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        Self::from_bytes_within(bytes, &Limits::default())
    }

    /// The value that these bytes are, checked against limits of your own.
    ///
    /// # Errors
    /// When they are not exactly one valid value, or pass a limit.
    pub fn from_bytes_within(bytes: impl Into<Bytes>, limits: &Limits) -> Result<Self, DecodeError> {
        let bytes = bytes.into();
        scan::scan(&bytes, limits, |_| {})?;
        Ok(Self(bytes))
    }

    /// A value of any serializable type. Struct fields become map keys.
    ///
    /// Types that have a text form, such as addresses, take it: it is what their JSON Schema describes.
    ///
    /// # Errors
    /// When the type's `Serialize` fails, or the value passes the default [`Limits`].
    pub fn encode(value: &(impl Serialize + ?Sized)) -> Result<Self, EncodeError> {
        let mut writer = ser::Writer::default();
        value.serialize(&mut writer)?;
        scan::scan(&writer.out, &Limits::default(), |_| {})?;
        Ok(Self(writer.out.into()))
    }

    /// The value as a type.
    ///
    /// A whole float fits an integer, as JavaScript and Go write them. Where the type refuses a map of
    /// the one key `value`, that value itself is tried: this is how a result that is no map travels.
    ///
    /// # Errors
    /// When the value does not fit the type.
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

    /// The value as canonical JSON (`wire.md`, section 9): `bin`, extension values, odd floats and odd
    /// maps are told apart by `$bin`, `$ext`, `$float` and `$map`, so that [`from_json`](Value::from_json)
    /// gives the same value back.
    pub fn to_json(&self) -> serde_json::Value {
        to_json(&self.0).unwrap_or_default()
    }

    /// The value that a text in canonical JSON says. Plain JSON is canonical.
    ///
    /// # Errors
    /// When the text is no JSON, misuses one of the `$` words, or passes a limit.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        let json = parse(text)?;
        let mut out = Vec::with_capacity(text.len());
        write_json(&mut out, &json, true)?;
        Self::from_bytes(out)
    }

    /// The value at a path of map keys and array indices, `"contacts/0/name"`. Nothing is copied.
    ///
    /// An empty path is the value itself. A key that has a `/` in it cannot be reached so.
    pub fn get(&self, path: &str) -> Option<Self> {
        let mut at = 0;
        for step in path.split('/').filter(|_| !path.is_empty()) {
            at = self.step(at, step)?;
        }
        let end = skip(&self.0, at).ok()?;
        Some(Self(self.0.slice(at..end)))
    }

    /// What kind of value it is.
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

    /// Whether it is a map.
    pub fn is_map(&self) -> bool {
        self.kind() == ValueKind::Map
    }

    /// Whether it is nil.
    pub fn is_nil(&self) -> bool {
        self.kind() == ValueKind::Nil
    }

    /// Whether it is a map without entries, or an array without values.
    pub fn is_empty(&self) -> bool {
        matches!(Token::read(&self.0, 0), Ok((Token::Map(0) | Token::Array(0), _)))
    }

    /// The text, if it is a string.
    pub fn as_str(&self) -> Option<&str> {
        Token::read(&self.0, 0).ok()?.0.as_text()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, which other values may share.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// A value that stands within bytes that were scanned.
    pub(crate) fn trusted(bytes: Bytes) -> Self {
        Self(bytes)
    }

    fn lone_value(&self) -> Option<&[u8]> {
        match Token::read(&self.0, 0) {
            Ok((Token::Map(1), at)) => match Token::read(&self.0, at) {
                Ok((Token::Str(b"value"), at)) => self.0.get(at..),
                _ => None,
            },
            _ => None,
        }
    }

    /// Where the entry of this name or index begins, in the container that begins at `at`.
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

/// What kind of value a [`Value`] is.
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
    /// The empty map.
    fn default() -> Self {
        Self::empty()
    }
}

impl From<serde_json::Value> for Value {
    /// Plain JSON, in which words like `$bin` mean nothing but themselves.
    fn from(json: serde_json::Value) -> Self {
        Self::from(&json)
    }
}

impl From<&serde_json::Value> for Value {
    fn from(json: &serde_json::Value) -> Self {
        let mut out = Vec::new();
        // Without the `$` words every JSON value has a form.
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
    fn any_type_comes_back() {
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
    fn numbers_may_be_written_as_other_languages_do() {
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
    fn a_lone_value_is_unwrapped_where_the_map_is_refused() {
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
    fn a_path_leads_to_a_value() {
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
    fn a_body_passes_through_other_formats() {
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
    fn a_value_too_deep_is_no_body() {
        let deep = (0..64).fold(json!(1), |inner, _| json!([inner]));
        assert!(Value::encode(&deep).is_ok());
        assert!(matches!(
            Value::encode(&json!([deep])),
            Err(EncodeError::Invalid(DecodeError::TooDeep { .. }))
        ));
    }
}
