//! Deserializes values with serde.
//!
//! It is more lenient than other MessagePack deserializers, as peers in other languages need: it accepts a float
//! without a fraction as an integer, `undefined` as nil, and binary data as a list of bytes. Types use their text
//! forms (`is_human_readable`), because a JSON Schema describes those.

use serde::de::{
    self, DeserializeSeed, Error as _, IntoDeserializer, Unexpected, Visitor, value::SeqDeserializer,
};

use super::{
    DecodeError, EXT_TOKEN, VALUE_TOKEN,
    token::{Token, skip},
};

/// Reads values from bytes. The bytes have been scanned before, so their nesting is bounded.
pub(super) struct Reader<'de> {
    bytes: &'de [u8],
    at: usize,
}

impl<'de> Reader<'de> {
    pub(super) fn new(bytes: &'de [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn peek(&self) -> Result<(Token<'de>, usize), DecodeError> {
        Token::read(self.bytes, self.at)
    }

    fn next(&mut self) -> Result<Token<'de>, DecodeError> {
        let (token, next) = self.peek()?;
        self.at = next;
        Ok(token)
    }

    fn integer<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, DecodeError> {
        let (token, next) = self.peek()?;
        if let (Token::F32(_) | Token::F64(_), Some(whole)) = (token, token.as_integer()) {
            if let Ok(value) = u64::try_from(whole) {
                self.at = next;
                return visitor.visit_u64(value);
            }
            if let Ok(value) = i64::try_from(whole) {
                self.at = next;
                return visitor.visit_i64(value);
            }
        }
        de::Deserializer::deserialize_any(self, visitor)
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            self.integer(visitor)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Reader<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let start = self.at;
        match self.next()? {
            Token::Nil => visitor.visit_unit(),
            Token::Bool(value) => visitor.visit_bool(value),
            Token::Unsigned(value) => visitor.visit_u64(value),
            Token::Negative(value) => visitor.visit_i64(value),
            Token::F32(value) => visitor.visit_f32(value),
            Token::F64(value) => visitor.visit_f64(value),
            Token::Str(text) => match std::str::from_utf8(text) {
                Ok(text) => visitor.visit_borrowed_str(text),
                Err(_) => Err(DecodeError::Utf8 { offset: start }),
            },
            Token::Bin(data) => visitor.visit_borrowed_bytes(data),
            Token::Ext(kind, data) => visitor.visit_newtype_struct(Ext { kind, data }),
            Token::Array(count) => {
                let mut items = Items { reader: self, left: count };
                let value = visitor.visit_seq(&mut items)?;
                items.finish(count, value)
            }
            Token::Map(count) => {
                let mut items = Items { reader: self, left: count };
                let value = visitor.visit_map(&mut items)?;
                items.finish(count, value)
            }
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let (token, next) = self.peek()?;
        if token.is_absent() {
            self.at = next;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let (token, next) = self.peek()?;
        // Some languages encode "no arguments" as nil, others as an empty map or list.
        if token.is_absent() || matches!(token, Token::Array(0) | Token::Map(0)) {
            self.at = next;
            return visitor.visit_unit();
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let start = self.at;
        if name == VALUE_TOKEN {
            self.at = skip(self.bytes, start)?;
            return visitor.visit_borrowed_bytes(&self.bytes[start..self.at]);
        }
        if name == EXT_TOKEN && matches!(self.peek()?.0, Token::Ext(..)) {
            return self.deserialize_any(visitor);
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let (token, next) = self.peek()?;
        if let Token::Bin(data) = token {
            self.at = next;
            return visitor.visit_seq(SeqDeserializer::new(data.iter().copied()));
        }
        self.deserialize_any(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        match self.peek()?.0 {
            Token::Str(_) => visitor.visit_enum(Variant { reader: self, has_value: false }),
            Token::Map(1) => {
                self.next()?;
                visitor.visit_enum(Variant { reader: self, has_value: true })
            }
            other => Err(DecodeError::invalid_type(
                Unexpected::Other(other.kind()),
                &"a variant's name, or a map of one variant",
            )),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.at = skip(self.bytes, self.at)?;
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf tuple tuple_struct map struct identifier
    }
}

/// The remaining entries of an array or a map.
struct Items<'a, 'de> {
    reader: &'a mut Reader<'de>,
    left: u32,
}

impl Items<'_, '_> {
    /// Returns an error if the visitor has left entries unread.
    fn finish<T>(&self, count: u32, value: T) -> Result<T, DecodeError> {
        match self.left {
            0 => Ok(value),
            left => Err(DecodeError::invalid_length(count as usize, &&*format!("{} entries", count - left))),
        }
    }
}

impl<'de> de::SeqAccess<'de> for Items<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

impl<'de> de::MapAccess<'de> for Items<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        de::SeqAccess::next_element_seed(self, seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        seed.deserialize(&mut *self.reader)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left as usize)
    }
}

struct Variant<'a, 'de> {
    reader: &'a mut Reader<'de>,
    has_value: bool,
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        Ok((seed.deserialize(&mut *self.reader)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        if self.has_value { de::Deserialize::deserialize(self.reader) } else { Ok(()) }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        if !self.has_value {
            return Err(DecodeError::invalid_type(Unexpected::UnitVariant, &"a variant with a value"));
        }
        seed.deserialize(self.reader)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, DecodeError> {
        if !self.has_value {
            return Err(DecodeError::invalid_type(Unexpected::UnitVariant, &"a variant with values"));
        }
        de::Deserializer::deserialize_seq(self.reader, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if !self.has_value {
            return Err(DecodeError::invalid_type(Unexpected::UnitVariant, &"a variant with fields"));
        }
        de::Deserializer::deserialize_map(self.reader, visitor)
    }
}

/// Presents an extension value as a pair of its type and its bytes.
struct Ext<'de> {
    kind: i8,
    data: &'de [u8],
}

impl<'de> de::Deserializer<'de> for Ext<'de> {
    type Error = DecodeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_seq(ExtParts { kind: Some(self.kind), data: Some(self.data) })
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct ExtParts<'de> {
    kind: Option<i8>,
    data: Option<&'de [u8]>,
}

impl<'de> de::SeqAccess<'de> for ExtParts<'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, DecodeError> {
        if let Some(kind) = self.kind.take() {
            return seed.deserialize(kind.into_deserializer()).map(Some);
        }
        match self.data.take() {
            Some(data) => seed.deserialize(de::value::BorrowedBytesDeserializer::new(data)).map(Some),
            None => Ok(None),
        }
    }
}
