//! Serializes values with serde. Structs become maps, and integers get their shortest encoding.

use serde::ser::{self, Serialize};

use super::{EXT_TOKEN, EncodeError, VALUE_TOKEN, token::Token, write::Write};

/// Appends serialized values to its buffer.
#[derive(Default)]
pub(super) struct Writer {
    pub(super) out: Vec<u8>,
    /// Whether it serializes the contents of a [`Value`](super::Value), whose binary values stay binary.
    binary: bool,
}

impl Writer {
    fn variant(&mut self, name: &str) {
        self.out.map(1);
        self.out.str(name);
    }

    fn list(&mut self, count: Option<usize>, is_map: bool) -> List<'_> {
        let start = self.out.len();
        if let Some(count) = count {
            head(&mut self.out, count, is_map);
        }
        List { writer: self, start, claimed: count, count: 0, is_map }
    }

    /// Writes an extension value in the convention of `rmp-serde`: a newtype struct with a known name that holds a
    /// pair of the type and the bytes.
    fn ext<T: Serialize + ?Sized>(&mut self, pair: &T) -> Result<(), EncodeError> {
        let mut inner = Self { out: Vec::new(), binary: true };
        pair.serialize(&mut inner)?;
        let wrong = || <EncodeError as ser::Error>::custom("an extension value is a pair of an i8 and bytes");
        let (head, at) = Token::read(&inner.out, 0).map_err(|_| wrong())?;
        let (kind, at) = Token::read(&inner.out, at).map_err(|_| wrong())?;
        let (data, _) = Token::read(&inner.out, at).map_err(|_| wrong())?;
        let kind = kind.as_integer().and_then(|kind| i8::try_from(kind).ok());
        match (head, kind, data) {
            (Token::Array(2), Some(kind), Token::Bin(data)) => self.out.ext(kind, data),
            _ => return Err(wrong()),
        }
        Ok(())
    }
}

fn head(out: &mut Vec<u8>, count: usize, is_map: bool) {
    if is_map { out.map(count) } else { out.array(count) }
}

impl<'a> ser::Serializer for &'a mut Writer {
    type Ok = ();
    type Error = EncodeError;
    type SerializeSeq = List<'a>;
    type SerializeTuple = List<'a>;
    type SerializeTupleStruct = List<'a>;
    type SerializeTupleVariant = List<'a>;
    type SerializeMap = List<'a>;
    type SerializeStruct = List<'a>;
    type SerializeStructVariant = List<'a>;

    fn is_human_readable(&self) -> bool {
        !self.binary
    }

    fn serialize_bool(self, value: bool) -> Result<(), EncodeError> {
        self.out.bool(value);
        Ok(())
    }

    fn serialize_i8(self, value: i8) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i16(self, value: i16) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i32(self, value: i32) -> Result<(), EncodeError> {
        self.serialize_i64(value.into())
    }

    fn serialize_i64(self, value: i64) -> Result<(), EncodeError> {
        self.out.signed(value);
        Ok(())
    }

    fn serialize_i128(self, value: i128) -> Result<(), EncodeError> {
        match (u64::try_from(value), i64::try_from(value)) {
            (Ok(value), _) => self.serialize_u64(value),
            (_, Ok(value)) => self.serialize_i64(value),
            _ => Err(ser::Error::custom("an integer of more than 64 bits")),
        }
    }

    fn serialize_u8(self, value: u8) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u16(self, value: u16) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u32(self, value: u32) -> Result<(), EncodeError> {
        self.serialize_u64(value.into())
    }

    fn serialize_u64(self, value: u64) -> Result<(), EncodeError> {
        self.out.unsigned(value);
        Ok(())
    }

    fn serialize_u128(self, value: u128) -> Result<(), EncodeError> {
        let value = u64::try_from(value);
        self.serialize_u64(
            value.map_err(|_| <EncodeError as ser::Error>::custom("an integer of more than 64 bits"))?,
        )
    }

    fn serialize_f32(self, value: f32) -> Result<(), EncodeError> {
        self.out.f32(value);
        Ok(())
    }

    fn serialize_f64(self, value: f64) -> Result<(), EncodeError> {
        self.out.f64(value);
        Ok(())
    }

    fn serialize_char(self, value: char) -> Result<(), EncodeError> {
        self.serialize_str(value.encode_utf8(&mut [0; 4]))
    }

    fn serialize_str(self, value: &str) -> Result<(), EncodeError> {
        self.out.str(value);
        Ok(())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<(), EncodeError> {
        self.out.bin(value);
        Ok(())
    }

    fn serialize_none(self) -> Result<(), EncodeError> {
        self.serialize_unit()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), EncodeError> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<(), EncodeError> {
        self.out.nil();
        Ok(())
    }

    fn serialize_unit_struct(self, _name: &'static str) -> Result<(), EncodeError> {
        self.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
    ) -> Result<(), EncodeError> {
        self.serialize_str(variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        match name {
            EXT_TOKEN => self.ext(value),
            VALUE_TOKEN => {
                let outside = std::mem::replace(&mut self.binary, true);
                let result = value.serialize(&mut *self);
                self.binary = outside;
                result
            }
            _ => value.serialize(self),
        }
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.variant(variant);
        value.serialize(self)
    }

    fn serialize_seq(self, count: Option<usize>) -> Result<List<'a>, EncodeError> {
        Ok(self.list(count, false))
    }

    fn serialize_tuple(self, count: usize) -> Result<List<'a>, EncodeError> {
        Ok(self.list(Some(count), false))
    }

    fn serialize_tuple_struct(self, _name: &'static str, count: usize) -> Result<List<'a>, EncodeError> {
        Ok(self.list(Some(count), false))
    }

    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        count: usize,
    ) -> Result<List<'a>, EncodeError> {
        self.variant(variant);
        Ok(self.list(Some(count), false))
    }

    fn serialize_map(self, count: Option<usize>) -> Result<List<'a>, EncodeError> {
        Ok(self.list(count, true))
    }

    fn serialize_struct(self, _name: &'static str, count: usize) -> Result<List<'a>, EncodeError> {
        Ok(self.list(Some(count), true))
    }

    fn serialize_struct_variant(
        self,
        _name: &'static str,
        _index: u32,
        variant: &'static str,
        count: usize,
    ) -> Result<List<'a>, EncodeError> {
        self.variant(variant);
        Ok(self.list(Some(count), true))
    }
}

/// Writes an array or a map.
pub(super) struct List<'a> {
    writer: &'a mut Writer,
    start: usize,
    claimed: Option<usize>,
    count: usize,
    is_map: bool,
}

impl List<'_> {
    fn entry<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.count += 1;
        value.serialize(&mut *self.writer)
    }

    fn field<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), EncodeError> {
        self.writer.out.str(name);
        self.entry(value)
    }

    /// Inserts the header if the number of entries was unknown, or was announced wrong.
    fn finish(self) -> Result<(), EncodeError> {
        if self.claimed == Some(self.count) {
            return Ok(());
        }
        let out = &mut self.writer.out;
        let entries = match self.claimed {
            None => self.start,
            Some(_) => Token::read(out, self.start).map_or(self.start, |(_, next)| next),
        };
        let mut head_bytes = Vec::with_capacity(5);
        head(&mut head_bytes, self.count, self.is_map);
        out.splice(self.start..entries, head_bytes);
        Ok(())
    }
}

impl ser::SerializeSeq for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.entry(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}

impl ser::SerializeTuple for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.entry(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}

impl ser::SerializeTupleStruct for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.entry(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}

impl ser::SerializeTupleVariant for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.entry(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}

impl ser::SerializeMap for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), EncodeError> {
        key.serialize(&mut *self.writer)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), EncodeError> {
        self.entry(value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}

impl ser::SerializeStruct for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.field(name, value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}

impl ser::SerializeStructVariant for List<'_> {
    type Ok = ();
    type Error = EncodeError;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), EncodeError> {
        self.field(name, value)
    }

    fn end(self) -> Result<(), EncodeError> {
        self.finish()
    }
}
