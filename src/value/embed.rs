//! Embeds a `Value` inside another value, written and read by any serde format.
//!
//! This crate's reader and writer recognize it by a token and lose nothing. Text formats show canonical JSON; other
//! formats get the values one by one.

use std::{cell::Cell, fmt};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, DeserializeSeed, Visitor},
    ser::{Error as _, SerializeMap, SerializeSeq},
};

use super::{
    EXT_TOKEN, Limits, VALUE_TOKEN, Value,
    json::{known_word, to_json, write_word},
    scan::scan,
    token::Token,
    write::Write,
};

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_struct(VALUE_TOKEN, &Tree { bytes: &self.0, at: &Cell::new(0) })
    }
}

/// The next value within scanned bytes.
struct Tree<'a> {
    bytes: &'a [u8],
    /// Where it starts. All containers share it, so that none has to look for the end of what it contains.
    at: &'a Cell<usize>,
}

impl Serialize for Tree<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return to_json(self.bytes).map_err(S::Error::custom)?.serialize(serializer);
        }
        let (token, next) = Token::read(self.bytes, self.at.get()).map_err(S::Error::custom)?;
        self.at.set(next);
        match token {
            Token::Nil => serializer.serialize_unit(),
            Token::Bool(value) => serializer.serialize_bool(value),
            Token::Unsigned(value) => serializer.serialize_u64(value),
            Token::Negative(value) => serializer.serialize_i64(value),
            Token::F32(value) => serializer.serialize_f32(value),
            Token::F64(value) => serializer.serialize_f64(value),
            Token::Str(text) => {
                serializer.serialize_str(std::str::from_utf8(text).map_err(S::Error::custom)?)
            }
            Token::Bin(data) => serializer.serialize_bytes(data),
            Token::Ext(kind, data) => serializer.serialize_newtype_struct(EXT_TOKEN, &(kind, Data(data))),
            Token::Array(count) => {
                let mut items = serializer.serialize_seq(Some(count as usize))?;
                for _ in 0..count {
                    items.serialize_element(self)?;
                }
                items.end()
            }
            Token::Map(count) => {
                let mut items = serializer.serialize_map(Some(count as usize))?;
                for _ in 0..count {
                    items.serialize_key(self)?;
                    items.serialize_value(self)?;
                }
                items.end()
            }
        }
    }
}

struct Data<'a>(&'a [u8]);

impl Serialize for Data<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_newtype_struct(VALUE_TOKEN, Whole)
    }
}

/// Reads the bytes themselves from this crate's reader; from any other format, value by value.
struct Whole;

impl<'de> Visitor<'de> for Whole {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Value, E> {
        Value::from_bytes(bytes.to_vec()).map_err(E::custom)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let mut out = Vec::new();
        let words = deserializer.is_human_readable();
        Append { out: &mut out, depth: 0, words }.deserialize(deserializer)?;
        scan(&out, &Limits::default(), |_| {}).map_err(de::Error::custom)?;
        Ok(Value::trusted(out.into()))
    }
}

/// Appends the visited values to a buffer.
struct Append<'a> {
    out: &'a mut Vec<u8>,
    depth: usize,
    /// Whether the format is a text, in which binary data is marked by `$bin` and the like.
    words: bool,
}

impl Append<'_> {
    /// Returns the depth inside the container that starts here.
    fn enter<E: de::Error>(&self) -> Result<usize, E> {
        if self.depth >= Limits::MAX_DEPTH {
            return Err(E::custom(format_args!("nested deeper than {}", Limits::MAX_DEPTH)));
        }
        Ok(self.depth + 1)
    }
}

impl<'de> DeserializeSeed<'de> for Append<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Append<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.out.bool(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.out.signed(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.out.unsigned(value);
        Ok(())
    }

    fn visit_f32<E>(self, value: f32) -> Result<(), E> {
        self.out.f32(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.out.f64(value);
        Ok(())
    }

    fn visit_str<E>(self, value: &str) -> Result<(), E> {
        self.out.str(value);
        Ok(())
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<(), E> {
        self.out.bin(value);
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.out.nil();
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        self.out.nil();
        Ok(())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    /// Both rmp and this crate's reader pass extension values in this form.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let (kind, data) = <(i8, Bin)>::deserialize(deserializer)?;
        self.out.ext(kind, &data.0);
        Ok(())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let depth = self.enter()?;
        let mut inside = Vec::new();
        let mut count = 0;
        while items.next_element_seed(Append { out: &mut inside, depth, words: self.words })?.is_some() {
            count += 1;
        }
        self.out.array(count);
        self.out.extend_from_slice(&inside);
        Ok(())
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let depth = self.enter()?;
        let mut inside = Vec::new();
        let mut count = 0;
        while items.next_key_seed(Append { out: &mut inside, depth, words: self.words })?.is_some() {
            items.next_value_seed(Append { out: &mut inside, depth, words: self.words })?;
            count += 1;
        }
        if self.words && count == 1 {
            let (key, at) = Token::read(&inside, 0).map_err(de::Error::custom)?;
            if let Some(word) = key.as_text().filter(|key| known_word(key)) {
                let value = to_json(&inside[at..]).map_err(de::Error::custom)?;
                return write_word(self.out, word, &value).map_err(de::Error::custom);
            }
        }
        self.out.map(count);
        self.out.extend_from_slice(&inside);
        Ok(())
    }
}

struct Bin(Vec<u8>);

impl<'de> Deserialize<'de> for Bin {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl Visitor<'_> for Bytes {
            type Value = Bin;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, data: &[u8]) -> Result<Bin, E> {
                Ok(Bin(data.to_vec()))
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}
