//! Defines why bytes, JSON or a typed value are invalid.

use std::fmt;

/// Why a value could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The type's `Serialize` failed, or the value cannot be represented in MessagePack.
    #[error("{reason}")]
    Type {
        /// The text of the type's serde implementation, which reports nothing else.
        reason: String,
    },
    /// The result would break a limit or a rule for values.
    #[error("not a valid value: {0}")]
    Invalid(#[source] DecodeError),
    /// A frame or value is larger than allowed.
    #[error("{size} bytes exceed the limit of {limit}")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A field must hold a map but holds another value.
    #[error("`{field}` must be a map")]
    NotAMap {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A field's value must not be written.
    #[error("invalid `{field}`: {reason}")]
    Field {
        /// The field's name on the wire.
        field: &'static str,
        /// The reason.
        reason: &'static str,
    },
}

impl From<DecodeError> for EncodeError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::TooLarge { size, limit } => Self::TooLarge { size, limit },
            other => Self::Invalid(other),
        }
    }
}

impl serde::ser::Error for EncodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Type { reason: message.to_string() }
    }
}

/// Why bytes or JSON are invalid. Offsets count bytes from the start of the frame or value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The value does not match the requested type.
    #[error("{reason}")]
    Type {
        /// The text of the type's serde implementation, which reports nothing else.
        reason: String,
    },
    /// There are more bytes than allowed.
    #[error("{size} bytes exceed the limit of {limit}")]
    TooLarge {
        /// How many there are.
        size: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A value claims more bytes than are left.
    #[error("the value at byte {offset} needs {needed} more bytes, {left} are left")]
    Truncated {
        /// Where the value starts.
        offset: usize,
        /// How many bytes it needs after its head, at least.
        needed: usize,
        /// How many are left.
        left: usize,
    },
    /// Bytes follow the value.
    #[error("{left} bytes follow the value, from byte {offset} on")]
    Trailing {
        /// Where the value ends.
        offset: usize,
        /// How many bytes follow.
        left: usize,
    },
    /// The byte `0xc1`, which MessagePack never uses.
    #[error("reserved byte 0xc1 at byte {offset}")]
    Reserved {
        /// Where the byte is.
        offset: usize,
    },
    /// A string is not UTF-8.
    #[error("invalid UTF-8 in a string at byte {offset}")]
    Utf8 {
        /// The first invalid byte.
        offset: usize,
    },
    /// Containers are nested too deeply.
    #[error("nesting depth {depth} at byte {offset} exceeds the limit of {limit}")]
    TooDeep {
        /// Where the container starts.
        offset: usize,
        /// Its depth, counted from 1.
        depth: usize,
        /// The largest depth that is allowed.
        limit: usize,
    },
    /// There are more values than allowed.
    #[error(
        "the container at byte {offset} raises the number of values to at least {count}; the limit is {limit}"
    )]
    TooManyValues {
        /// The container that exceeds the limit.
        offset: usize,
        /// How many values there are up to this container, including the values that it claims.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A map has a duplicate key.
    #[error("duplicate map key at byte {offset} (first at byte {first})")]
    DuplicateKey {
        /// The second of the two.
        offset: usize,
        /// The first of the two.
        first: usize,
    },
    /// A map's key is an array or a map; or a key of the envelope, of `meta` or of a known body is not a string.
    #[error("the key at byte {offset} is {found}, and must be {expected}")]
    Key {
        /// Where the key is.
        offset: usize,
        /// What the key is.
        found: &'static str,
        /// What it must be.
        expected: &'static str,
    },
    /// A required field is missing.
    #[error("`{field}` is missing")]
    Missing {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A field has the wrong type.
    #[error("`{field}` at byte {offset} must be {expected}, and is {found}")]
    Field {
        /// The field's name on the wire.
        field: &'static str,
        /// Where its value is.
        offset: usize,
        /// The expected type.
        expected: &'static str,
        /// The actual type.
        found: &'static str,
    },
    /// A field appears under two names with different values.
    #[error("`{field}` appears under two names with different values, at bytes {first} and {offset}")]
    Unlike {
        /// The field's name on the wire.
        field: &'static str,
        /// Where the first value is.
        first: usize,
        /// Where the second value is.
        offset: usize,
    },
    /// A list has more entries than any peer may send.
    #[error("`{field}` has {count} entries; the limit is {limit}")]
    TooMany {
        /// The field's name on the wire.
        field: &'static str,
        /// How many it has.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A text is not JSON, or not the expected JSON.
    #[error("{reason}")]
    Json {
        /// What is wrong, and where: a text, so that errors can be cloned and compared.
        reason: String,
    },
}

impl DecodeError {
    /// The code of the ErrorMessage (type 1) that answers a malformed frame (`wire.md`, section 8).
    pub const CODE: i32 = 101;

    pub(crate) fn json(reason: impl Into<String>) -> Self {
        Self::Json { reason: reason.into() }
    }
}

impl serde::de::Error for DecodeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Type { reason: message.to_string() }
    }
}
