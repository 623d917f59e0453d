//! Reads the five fields of the envelope in place.

use std::fmt;

use bytes::Bytes;

use super::{Kind, dialect, dialect::Spelling};
use crate::value::{
    DecodeError, Limits, Value,
    scan::{Span, scan},
    token::Token,
};

/// One frame (`wire.md`, section 2) in its encoded form. Cloning it is cheap.
///
/// [`decode`](Frame::decode) checks all bytes and finds the envelope's fields without allocation;
/// [`message`](Frame::message) reads the body according to its type.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    bytes: Bytes,
    kind: Kind,
    stanza_id: Option<i32>,
    conversation_id: Option<Span>,
    meta: Option<Span>,
    body: Option<Span>,
}

impl Frame {
    /// Decodes a frame after checking the bytes against the default [`Limits`].
    ///
    /// # Errors
    /// If they are not exactly one valid value, exceed a limit, or are not an envelope. The frame is then malformed:
    /// error code 101.
    pub fn decode(bytes: impl Into<Bytes>) -> Result<Self, DecodeError> {
        let bytes = bytes.into();
        let mut fields = Slots::default();
        let mut key = None;
        let mut fault = Ok(());
        scan(&bytes, &Limits::default(), |span| match key.take() {
            None => key = Some(span),
            Some(key) if fault.is_ok() => fault = fields.put(&bytes, key, span),
            Some(_) => {}
        })?;
        dialect::expect(&bytes, dialect::whole(&bytes), "envelope", "a map", dialect::as_map)?;
        fault?;
        fields.frame(bytes)
    }

    /// Returns the sender's sequence number, if the frame has one.
    pub fn stanza_id(&self) -> Option<i32> {
        self.stanza_id
    }

    /// Returns the room's name, if the frame has one; an empty one stays empty.
    pub fn conversation_id(&self) -> Option<&str> {
        self.conversation_id.and_then(|span| dialect::text_at(&self.bytes, span))
    }

    /// Returns the type.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the text under this key of `meta`.
    pub fn meta_str(&self, key: &str) -> Option<&str> {
        self.meta_value(key).and_then(|span| dialect::text_at(&self.bytes, span))
    }

    /// Returns whether this key of `meta` is `true`, or the text `"true"`, because some peers can write only texts
    /// there.
    pub fn meta_bool(&self, key: &str) -> bool {
        let token = self.meta_value(key).and_then(|span| Token::read(span.of(&self.bytes), 0).ok());
        matches!(token, Some((Token::Bool(true) | Token::Str(b"true"), _)))
    }

    /// Returns the value under this key of `meta`.
    pub fn meta_get(&self, key: &str) -> Option<Value> {
        self.meta_value(key).map(|span| self.slice(span))
    }

    /// Returns `meta`: a map.
    pub fn meta_body(&self) -> Value {
        self.meta.map_or_else(Value::empty, |span| self.slice(span))
    }

    /// Returns the bytes of `meta`: a map.
    pub(super) fn meta_bytes(&self) -> &[u8] {
        self.meta.map_or(&[0x80], |span| span.of(&self.bytes))
    }

    /// Returns the body unchanged: a map for most types, nil if it is missing. Nothing is copied.
    pub fn body(&self) -> Value {
        self.body.map_or_else(Value::nil, |span| self.slice(span))
    }

    /// Returns the bytes of the body; nil if it is missing.
    pub fn body_bytes(&self) -> &[u8] {
        self.body.map_or(&[0xc0], |span| span.of(&self.bytes))
    }

    /// Returns the whole frame.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the whole frame.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }

    /// Returns the whole frame, sharing its bytes.
    pub fn to_bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Returns the position of the body, or `None` if it is missing or nil.
    pub(super) fn body_span(&self) -> Option<Span> {
        self.body
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub(super) fn slice(&self, span: Span) -> Value {
        Value::trusted(self.bytes.slice(span.range()))
    }

    fn meta_value(&self, key: &str) -> Option<Span> {
        let mut entries = dialect::entries(&self.bytes, self.meta?).ok()?;
        entries
            .find_map(|entry| entry.ok().filter(|entry| entry.key == key.as_bytes()))
            .map(|entry| entry.value)
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("kind", &self.kind.name())
            .field("code", &self.kind.code())
            .field("stanza_id", &self.stanza_id)
            .field("bytes", &self.bytes.len())
            .finish_non_exhaustive()
    }
}

/// The envelope's fields that have been read so far.
#[derive(Default)]
struct Slots {
    stanza_id: Option<Span>,
    conversation_id: Option<Span>,
    kind: Option<Span>,
    meta: Option<Span>,
    body: Option<Span>,
}

impl Slots {
    fn put(&mut self, bytes: &[u8], key: Span, value: Span) -> Result<(), DecodeError> {
        let Some(field) = dialect::envelope_field(dialect::key_at(bytes, key)?) else { return Ok(()) };
        if Token::read(bytes, value.start as usize)?.0.is_absent() {
            return Ok(());
        }
        // Before two spellings are compared: what a stranger sends in place of a number or a name costs nothing.
        let slot = match field {
            "stanzaId" => {
                stanza_at(bytes, value)?;
                &mut self.stanza_id
            }
            "conversationId" => {
                dialect::expect(bytes, value, field, "a string", dialect::as_text)?;
                &mut self.conversation_id
            }
            "type" => &mut self.kind,
            "meta" => &mut self.meta,
            _ => &mut self.body,
        };
        dialect::put(bytes, slot, field, value, Spelling::Any)
    }

    fn frame(self, bytes: Bytes) -> Result<Frame, DecodeError> {
        let kind = self.kind.ok_or(DecodeError::Missing { field: "type" })?;
        let expected = "an integer of 16 bits, not negative";
        let kind = dialect::expect(&bytes, kind, "type", expected, dialect::as_integer)?;
        let stanza_id = self.stanza_id.map(|span| stanza_at(&bytes, span)).transpose()?;
        if let Some(span) = self.meta {
            dialect::expect(&bytes, span, "meta", "a map", dialect::as_map)?;
            for entry in dialect::entries(&bytes, span)? {
                entry?;
            }
        }
        Ok(Frame {
            kind: Kind::new(kind),
            stanza_id,
            conversation_id: self.conversation_id,
            meta: self.meta,
            body: self.body,
            bytes,
        })
    }
}

fn stanza_at(bytes: &[u8], span: Span) -> Result<i32, DecodeError> {
    let (field, offset, expected) = ("stanzaId", span.start as usize, "an integer of 32 bits above -2^31");
    match dialect::expect(bytes, span, field, expected, dialect::as_integer)? {
        // The lowest number has no positive counterpart, and stanzas are compared by absolute value.
        i32::MIN => Err(DecodeError::Field { field, offset, expected, found: "-2^31" }),
        id => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{token::work, write::Write};

    /// Each of these keys would be compared with all keys after it, at each level again.
    #[test]
    fn container_as_key_is_refused_before_it_is_read() {
        let list = [&b"\xdc\x03\xe8"[..], &[0xc0; 1_000]].concat();
        let hostile = (0..3).fold(list, |inner, _| {
            let others = (1..32).flat_map(|n| [n, 0xc0]).collect();
            [b"\xde\x00\x20".to_vec(), inner, vec![0xc0], others].concat()
        });
        let frame = [&b"\x82\xa4type\xcd\x23\x28\xa4body"[..], &hostile].concat();
        let work = work::of(|| {
            let refused = Frame::decode(frame).unwrap_err();
            assert_eq!(
                refused.to_string(),
                "the key at byte 17 is a map, and must be a value without others"
            );
        });
        assert!(work < 20, "{work}");
    }

    /// A stranger's envelope costs the same whatever it sends in place of a number or a name.
    #[test]
    fn wrong_value_of_the_envelope_is_refused_before_its_spellings_are_compared() {
        let mut list = Vec::new();
        list.array(1_000);
        list.resize(list.len() + 1_000, 0xc0);
        let spellings: [[&[u8]; 2]; 2] =
            [[b"\xa8stanzaId", b"\xa9stanza_id"], [b"\xaeconversationId", b"\xafconversation_id"]];
        for [name, other] in spellings {
            let other_list = [&list[..list.len() - 1], b"\x01"].concat();
            let frame = [b"\x83\xa4type\x48", name, &list, other, &other_list].concat();
            let work = work::of(|| drop(Frame::decode(frame).unwrap_err()));
            assert!(work < 20, "{work}");
        }
    }
}
