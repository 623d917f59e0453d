//! Encodes plain JSON texts as values without building a tree.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};

use super::write::Write;

/// The largest number of entries in a head of one byte.
const SHORT: usize = 15;

/// Appends the value of a JSON text, in which names like `$bin` have no special meaning. A key that an object has twice
/// is also in the value twice.
///
/// The text's depth must be limited already, because this recurses.
pub(super) fn append_encoded(out: &mut Vec<u8>, text: &str) -> serde_json::Result<()> {
    let mut reader = serde_json::Deserializer::from_str(text);
    reader.disable_recursion_limit();
    Encoder { out }.deserialize(&mut reader)?;
    reader.end()
}

/// Appends one value that it is given.
struct Encoder<'a> {
    out: &'a mut Vec<u8>,
}

impl Encoder<'_> {
    fn next(&mut self) -> Encoder<'_> {
        Encoder { out: self.out }
    }

    /// Sets the head of a container, for which the byte at `start` was kept free.
    fn set_head(&mut self, start: usize, count: usize, is_map: bool) {
        if let (0..=SHORT, Some(head)) = (count, self.out.get_mut(start)) {
            *head = if is_map { 0x80 } else { 0x90 } | count as u8;
            return;
        }
        let mut head = Vec::with_capacity(5);
        if is_map {
            head.map(count)
        } else {
            head.array(count)
        }
        self.out.splice(start..=start, head);
    }
}

impl<'de> DeserializeSeed<'de> for Encoder<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Encoder<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.out.nil();
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.out.bool(value);
        Ok(())
    }

    fn visit_u64<E>(self, value: u64) -> Result<(), E> {
        self.out.unsigned(value);
        Ok(())
    }

    fn visit_i64<E>(self, value: i64) -> Result<(), E> {
        self.out.signed(value);
        Ok(())
    }

    fn visit_f64<E>(self, value: f64) -> Result<(), E> {
        self.out.f64(value);
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.out.str(text);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut items: A) -> Result<(), A::Error> {
        let (start, mut count) = (self.out.len(), 0);
        self.out.push(0);
        while items.next_element_seed(self.next())?.is_some() {
            count += 1;
        }
        self.set_head(start, count, false);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut entries: A) -> Result<(), A::Error> {
        let (start, mut count) = (self.out.len(), 0);
        self.out.push(0);
        while entries.next_key_seed(self.next())?.is_some() {
            entries.next_value_seed(self.next())?;
            count += 1;
        }
        self.set_head(start, count, true);
        Ok(())
    }
}
