//! Builds the metadata of an outgoing frame.

use bytes::Bytes;
use serde::Serialize;

use crate::value::{EncodeError, Value, write::Write};

/// The entries of a frame's `meta`, in order. Empty by default.
///
/// ```
/// use toolbridge::frame::Meta;
///
/// let meta = Meta::new().with_text("clientVersion", "1.2.0").with_bool("bridge.heard", true);
/// assert_eq!(meta.len(), 2);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta(Vec<(String, Value)>);

impl Meta {
    /// Creates an empty `meta`.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the value of a key. A new key is added at the end.
    ///
    /// # Errors
    /// If the value's `Serialize` fails.
    pub fn set(&mut self, key: impl Into<String>, value: impl Serialize) -> Result<(), EncodeError> {
        self.set_body(key, Value::encode(&value)?);
        Ok(())
    }

    /// Sets a key to a value that is already encoded.
    pub fn set_body(&mut self, key: impl Into<String>, value: Value) {
        let key = key.into();
        match self.0.iter_mut().find(|(known, _)| *known == key) {
            Some((_, old)) => *old = value,
            None => self.0.push((key, value)),
        }
    }

    /// Sets a key to a text.
    pub fn set_text(&mut self, key: impl Into<String>, text: &str) {
        let mut out = Vec::with_capacity(text.len() + 5);
        out.str(text);
        self.set_body(key, Value::trusted(out.into()));
    }

    /// Sets a key to true or false.
    pub fn set_bool(&mut self, key: impl Into<String>, value: bool) {
        self.set_body(key, Value::trusted(Bytes::from_static(if value { &[0xc3] } else { &[0xc2] })));
    }

    /// Adds a text under this key.
    #[must_use]
    pub fn with_text(mut self, key: impl Into<String>, text: &str) -> Self {
        self.set_text(key, text);
        self
    }

    /// Adds true or false under this key.
    #[must_use]
    pub fn with_bool(mut self, key: impl Into<String>, value: bool) -> Self {
        self.set_bool(key, value);
        self
    }

    /// Adds an encoded value under this key.
    #[must_use]
    pub fn with_body(mut self, key: impl Into<String>, value: Value) -> Self {
        self.set_body(key, value);
        self
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(known, _)| known != key);
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Returns the number of keys.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether it has no keys.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the bytes of all keys and values.
    pub(crate) fn size(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.as_bytes().len()).sum()
    }

    /// Returns all entries as one value: a map.
    pub(crate) fn to_body(&self) -> Value {
        let mut out = Vec::new();
        self.write_entries(&mut out);
        Value::trusted(out.into())
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        if self.0.iter().any(|(key, _)| matches!(key.as_str(), "stanzaId" | "conversationId" | "type")) {
            return Err(EncodeError::Field { field: "meta", reason: "it repeats a key of the envelope" });
        }
        self.write_entries(out);
        Ok(())
    }

    fn write_entries(&self, out: &mut Vec<u8>) {
        out.map(self.0.len());
        for (key, value) in &self.0 {
            out.str(key);
            out.extend_from_slice(value.as_bytes());
        }
    }
}
