//! Resolves old and foreign spellings of fields (`wire.md`, section 7): which value counts if a field has
//! several names, and which values count as absent.

use bytes::Bytes;

use super::Kind;
use crate::value::{
    DecodeError, Value,
    scan::Span,
    token::{Token, alike, skip},
};

/// The most fields that any type has.
const MAX_FIELDS: usize = 10;

/// The most tools or features that are read from one frame. The session sets the limit for a registration; this limit
/// only keeps a list of empty entries from using far more memory than its bytes.
const MAX_LIST: usize = 1024;

/// One field of a body.
#[derive(Debug)]
pub(super) struct Field {
    /// The name that is written; its snake_case form is read too.
    pub(super) name: &'static str,
    /// The other name that some peers use.
    also: Option<&'static str>,
    spelling: Spelling,
}

/// Which values are read as absent, besides nil and `undefined`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// No others.
    Any,
    /// The empty string: Go writes it for an id that is not set.
    Id,
    /// An integer, which canonical JSON shows without a point.
    Integer,
}

const fn any(name: &'static str) -> Field {
    Field { name, also: None, spelling: Spelling::Any }
}

const fn id(name: &'static str) -> Field {
    Field { name, also: None, spelling: Spelling::Id }
}

const fn integer(name: &'static str) -> Field {
    Field { name, also: None, spelling: Spelling::Integer }
}

const fn two(name: &'static str, also: &'static str) -> Field {
    Field { name, also: Some(also), spelling: Spelling::Any }
}

/// The fields of one tool in a registration.
pub(super) const TOOL: &[Field] = &[any("name"), any("description"), any("inputSchema"), any("annotations")];

const ERROR: &[Field] = &[
    id("id"),
    any("conversationId"),
    integer("code"),
    any("message"),
    integer("severity"),
    any("recoverable"),
    id("originatingId"),
];

const REQUEST: &[Field] = &[
    id("id"),
    any("toolName"),
    two("parameters", "arguments"),
    any("execution"),
    integer("timeoutMs"),
    any("conversationId"),
    id("messageId"),
];

const RESULT: &[Field] = &[
    id("id"),
    any("success"),
    two("result", "data"),
    any("errorCode"),
    any("errorMessage"),
    any("error"),
    id("requestId"),
    id("resultId"),
    id("previousId"),
    any("conversationId"),
];

/// The fields of a result that may name its call.
pub(super) const CALL_OF_RESULT: [&str; 3] = ["requestId", "id", "previousId"];

const ACKNOWLEDGEMENT: &[Field] = &[
    any("conversationId"),
    integer("acknowledgedStanzaId"),
    any("success"),
    id("acknowledgedMessageId"),
    integer("lastSeenStanzaId"),
    any("notes"),
];

const STOP: &[Field] = &[any("conversationId"), id("targetId"), any("reason"), any("stopType")];

const CONFIGURATION: &[Field] = &[
    any("conversationId"),
    integer("lastSequenceSeen"),
    any("clientVersion"),
    any("preferredLanguage"),
    any("device"),
    any("features"),
];

const REGISTER: &[Field] = &[any("tools")];

const REGISTER_ACK: &[Field] = &[any("success"), integer("toolCount"), any("error")];

const PROGRESS: &[Field] = &[id("id"), any("status"), any("content"), any("message")];

const VIEW: &[Field] = &[any("view"), any("content"), any("text")];

/// Returns the fields of a type's body, in the order in which they are shown; `None` for unknown types.
pub(super) fn fields(kind: Kind) -> Option<&'static [Field]> {
    Some(match kind {
        Kind::ERROR => ERROR,
        Kind::TOOL_USE_REQUEST => REQUEST,
        Kind::TOOL_USE_RESULT => RESULT,
        Kind::ACKNOWLEDGEMENT => ACKNOWLEDGEMENT,
        Kind::CONTROL_STOP => STOP,
        Kind::CONFIGURATION => CONFIGURATION,
        Kind::TOOLS_REGISTER => REGISTER,
        Kind::TOOLS_REGISTER_ACK => REGISTER_ACK,
        Kind::HEARTBEAT => &[],
        Kind::TOOL_PROGRESS => PROGRESS,
        Kind::VIEW_UPDATE => VIEW,
        _ => return None,
    })
}

impl Field {
    pub(super) fn is_called(&self, key: &[u8]) -> bool {
        key == self.name.as_bytes()
            || self.also.is_some_and(|also| key == also.as_bytes())
            || is_snake(key, self.name)
    }

    pub(super) fn is_integer(&self) -> bool {
        self.spelling == Spelling::Integer
    }
}

/// Returns whether the key is the snake_case form of a camelCase name.
fn is_snake(key: &[u8], camel: &str) -> bool {
    let mut key = key.iter();
    let same = camel.bytes().all(|byte| {
        if byte.is_ascii_uppercase() {
            key.next() == Some(&b'_') && key.next() == Some(&byte.to_ascii_lowercase())
        } else {
            key.next() == Some(&byte)
        }
    });
    same && key.next().is_none()
}

/// The fields of a body, found under any of their names.
pub(super) struct Fields<'a> {
    bytes: &'a Bytes,
    table: &'static [Field],
    values: [Option<Span>; MAX_FIELDS],
}

impl<'a> Fields<'a> {
    /// Finds the fields of this table in a map.
    pub(super) fn find(bytes: &'a Bytes, map: Span, table: &'static [Field]) -> Result<Self, DecodeError> {
        let mut values = [None; MAX_FIELDS];
        for entry in entries(bytes, map)? {
            let entry = entry?;
            let field = table.iter().zip(&mut values).find(|(field, _)| field.is_called(entry.key));
            if let Some((field, slot)) = field {
                put(bytes, slot, field.name, entry.value, field.spelling)?;
            }
        }
        Ok(Self { bytes, table, values })
    }

    /// Returns the entries of the map that do not belong to a field of the table.
    pub(super) fn others(&self, map: Span) -> Result<Vec<MapEntry<'a>>, DecodeError> {
        let is_other = |entry: &MapEntry<'_>| !self.table.iter().any(|field| field.is_called(entry.key));
        entries(self.bytes, map)?.filter(|entry| entry.as_ref().map_or(true, is_other)).collect()
    }

    /// Returns the position of a field's value; `None` if it is absent.
    pub(super) fn span(&self, name: &'static str) -> Option<Span> {
        let found = self.table.iter().zip(&self.values).find(|(field, _)| field.name == name);
        found.and_then(|(_, value)| *value)
    }

    pub(super) fn body(&self, name: &'static str) -> Option<Value> {
        self.span(name).map(|span| Value::trusted(self.bytes.slice(span.range())))
    }

    pub(super) fn map(&self, name: &'static str) -> Result<Option<Value>, DecodeError> {
        self.typed(name, "a map", as_map)?;
        Ok(self.body(name))
    }

    pub(super) fn text(&self, name: &'static str) -> Result<Option<&'a str>, DecodeError> {
        self.typed(name, "a string", as_text)
    }

    pub(super) fn string(&self, name: &'static str) -> Result<Option<String>, DecodeError> {
        Ok(self.text(name)?.map(str::to_owned))
    }

    /// Returns the positions of the values of a list.
    pub(super) fn list(&self, field: &'static str) -> Result<Option<Vec<Span>>, DecodeError> {
        let Some(list) = self.span(field) else { return Ok(None) };
        let (count, mut at) = expect_head(self.bytes, list, field, "an array", |token| match token {
            Token::Array(count) => Some(count as usize),
            _ => None,
        })?;
        if count > MAX_LIST {
            return Err(DecodeError::TooMany { field, count, limit: MAX_LIST });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            let end = skip(self.bytes, at)?;
            items.push(span(at, end));
            at = end;
        }
        Ok(Some(items))
    }

    pub(super) fn bool(&self, name: &'static str) -> Result<Option<bool>, DecodeError> {
        self.typed(name, "a bool", |token| match token {
            Token::Bool(value) => Some(value),
            _ => None,
        })
    }

    pub(super) fn integer(&self, name: &'static str) -> Result<Option<i32>, DecodeError> {
        self.typed(name, "an integer of 32 bits", as_integer)
    }

    fn typed<T>(
        &self,
        name: &'static str,
        expected: &'static str,
        read: impl FnOnce(Token<'a>) -> Option<T>,
    ) -> Result<Option<T>, DecodeError> {
        self.span(name).map(|span| expect(self.bytes, span, name, expected, read)).transpose()
    }
}

/// Returns the name of the envelope's field that has this key, in any spelling.
pub(super) fn envelope_field(key: &[u8]) -> Option<&'static str> {
    Some(match key {
        b"stanzaId" | b"stanza_id" => "stanzaId",
        b"conversationId" | b"conversation_id" => "conversationId",
        b"type" => "type",
        b"meta" => "meta",
        b"body" => "body",
        _ => return None,
    })
}

/// Returns the fields that may name the call which a frame of this type belongs to: the first that is present does.
pub(super) fn call_fields(kind: Kind) -> impl Iterator<Item = &'static Field> {
    let names: &[&str] = match kind {
        Kind::TOOL_USE_RESULT => &CALL_OF_RESULT,
        Kind::TOOL_USE_REQUEST | Kind::TOOL_PROGRESS => &["id"],
        _ => &[],
    };
    let table = fields(kind).unwrap_or_default();
    names.iter().filter_map(|name| table.iter().find(|field| field.name == *name))
}

/// Returns the value, or an error if it is absent.
pub(super) fn required<T>(field: &'static str, value: Option<T>) -> Result<T, DecodeError> {
    value.ok_or(DecodeError::Missing { field })
}

/// One entry of a map with string keys.
#[derive(Clone, Copy, Debug)]
pub(super) struct MapEntry<'a> {
    pub(super) key: &'a [u8],
    pub(super) key_span: Span,
    pub(super) value: Span,
}

/// Returns the entries of a map; a key that is not a string ends them with an error.
pub(super) fn entries(
    bytes: &[u8],
    map: Span,
) -> Result<impl Iterator<Item = Result<MapEntry<'_>, DecodeError>>, DecodeError> {
    let (count, mut at) = expect_head(bytes, map, "body", "a map", as_map)?;
    Ok((0..count).map(move |_| {
        let value = skip(bytes, at)?;
        let key_span = span(at, value);
        at = skip(bytes, value)?;
        Ok(MapEntry { key: key_at(bytes, key_span)?, key_span, value: span(value, at) })
    }))
}

/// Records the position of a field's value, unless the value counts as absent.
pub(super) fn put(
    bytes: &[u8],
    slot: &mut Option<Span>,
    field: &'static str,
    value: Span,
    spelling: Spelling,
) -> Result<(), DecodeError> {
    let (token, _) = Token::read(value.of(bytes), 0)?;
    if token.is_absent() || (spelling == Spelling::Id && token == Token::Str(b"")) {
        return Ok(());
    }
    match *slot {
        None => *slot = Some(value),
        Some(first) if alike(first.of(bytes), value.of(bytes)) => {}
        Some(first) => {
            return Err(DecodeError::Unlike {
                field,
                first: first.start as usize,
                offset: value.start as usize,
            });
        }
    }
    Ok(())
}

/// Returns the bytes of a key, which must be a string.
pub(super) fn key_at(bytes: &[u8], key: Span) -> Result<&[u8], DecodeError> {
    match Token::read(bytes, key.start as usize)? {
        (Token::Str(name), _) => Ok(name),
        (other, _) => {
            let (offset, found) = (key.start as usize, other.kind());
            Err(DecodeError::Key { offset, found, expected: "a string" })
        }
    }
}

pub(super) fn text_at(bytes: &[u8], span: Span) -> Option<&str> {
    Token::read(bytes, span.start as usize).ok().and_then(|(token, _)| token.as_text())
}

/// Returns a value of the expected type, as `read` takes it from its token.
pub(super) fn expect<'a, T>(
    bytes: &'a [u8],
    value: Span,
    field: &'static str,
    expected: &'static str,
    read: impl FnOnce(Token<'a>) -> Option<T>,
) -> Result<T, DecodeError> {
    expect_head(bytes, value, field, expected, read).map(|(value, _)| value)
}

/// Returns a value of the expected type like [`expect`], and the position after its token.
pub(super) fn expect_head<'a, T>(
    bytes: &'a [u8],
    value: Span,
    field: &'static str,
    expected: &'static str,
    read: impl FnOnce(Token<'a>) -> Option<T>,
) -> Result<(T, usize), DecodeError> {
    let offset = value.start as usize;
    let (token, next) = Token::read(bytes, offset)?;
    let found = token.kind();
    read(token).map(|value| (value, next)).ok_or(DecodeError::Field { field, offset, expected, found })
}

pub(super) fn as_integer<T: TryFrom<i128>>(token: Token<'_>) -> Option<T> {
    token.as_integer().and_then(|value| T::try_from(value).ok())
}

pub(super) fn as_text(token: Token<'_>) -> Option<&str> {
    token.as_text()
}

/// Returns the number of a map's entries.
pub(super) fn as_map(token: Token<'_>) -> Option<u32> {
    if let Token::Map(count) = token { Some(count) } else { None }
}

/// Returns the position of a value that takes up all bytes.
pub(super) fn whole(bytes: &[u8]) -> Span {
    span(0, bytes.len())
}

fn span(start: usize, end: usize) -> Span {
    Span { start: start as u32, end: end as u32 }
}
