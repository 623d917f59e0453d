//! Why bytes, JSON or a value of a type are not what they should be.

use std::fmt;

/// Why a value could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The type's `Serialize` failed, or it holds what MessagePack cannot.
    #[error("{reason}")]
    Type {
        /// What cannot be encoded.
        reason: String,
    },
    /// The result would break a limit or a rule for values.
    #[error("not a valid value: {0}")]
    Invalid(DecodeError),
    /// A frame or value is larger than allowed.
    #[error("{size} bytes are more than the {limit} that are allowed")]
    TooLarge {
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// A field must hold a map and holds something else.
    #[error("`{field}` must be a map")]
    NotAMap {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A field has a value that may not be written.
    #[error("`{field}` may not be written so: {reason}")]
    Field {
        /// The field's name on the wire.
        field: &'static str,
        /// What is wrong with it.
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

/// Why bytes or JSON are not what they should be. Offsets count bytes from the start of the frame or value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The value does not fit the type that was asked for.
    #[error("{reason}")]
    Type {
        /// What does not fit.
        reason: String,
    },
    /// More bytes than allowed.
    #[error("{size} bytes are more than the {limit} that are allowed")]
    TooLarge {
        /// How many there are.
        size: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A value claims more than is left.
    #[error("the value at byte {offset} needs {needed} more bytes, {left} are left")]
    Truncated {
        /// Where the value begins.
        offset: usize,
        /// How many bytes it needs behind its head, at least.
        needed: usize,
        /// How many are left.
        left: usize,
    },
    /// Something follows the value.
    #[error("{left} bytes follow the value, from byte {offset} on")]
    Trailing {
        /// Where the value ends.
        offset: usize,
        /// How many bytes follow.
        left: usize,
    },
    /// The byte `0xc1`, which MessagePack never uses.
    #[error("the reserved byte 0xc1 at byte {offset}")]
    Reserved {
        /// Where it stands.
        offset: usize,
    },
    /// A string is not UTF-8.
    #[error("invalid UTF-8 in a string at byte {offset}")]
    Utf8 {
        /// The first byte that does not fit.
        offset: usize,
    },
    /// Containers inside containers, too deep.
    #[error("the container at byte {offset} is number {depth} inside one another, {limit} are allowed")]
    TooDeep {
        /// Where the container begins.
        offset: usize,
        /// How deep it stands, from 1.
        depth: usize,
        /// How deep is allowed.
        limit: usize,
    },
    /// More values than allowed.
    #[error("with the container at byte {offset} there are at least {count} values, {limit} are allowed")]
    TooManyValues {
        /// The container that passes the limit.
        offset: usize,
        /// How many values there are up to it, with all that it claims.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A map has one key twice.
    #[error("the key at byte {offset} stands at byte {first} of the same map already")]
    DuplicateKey {
        /// The second of the two.
        offset: usize,
        /// The first of the two.
        first: usize,
    },
    /// A key of the envelope, of `meta` or of a known body is no string.
    #[error("the key at byte {offset} is {found}, and must be a string")]
    Key {
        /// Where it stands.
        offset: usize,
        /// What it is.
        found: &'static str,
    },
    /// A required field is not there.
    #[error("`{field}` is missing")]
    Missing {
        /// The field's name on the wire.
        field: &'static str,
    },
    /// A field is not of its type.
    #[error("`{field}` at byte {offset} must be {expected}, and is {found}")]
    Field {
        /// The field's name on the wire.
        field: &'static str,
        /// Where its value stands.
        offset: usize,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// One field is there under two names, with two values.
    #[error("`{field}` stands at bytes {first} and {offset} under two names, with unlike values")]
    Unlike {
        /// The field's name on the wire.
        field: &'static str,
        /// The first value.
        first: usize,
        /// The second value.
        offset: usize,
    },
    /// A list has more entries than any peer may send.
    #[error("`{field}` has {count} entries, {limit} are allowed")]
    TooMany {
        /// The field's name on the wire.
        field: &'static str,
        /// How many it has.
        count: usize,
        /// How many are allowed.
        limit: usize,
    },
    /// A text is no JSON, or not the JSON that was expected.
    #[error("{reason}")]
    Json {
        /// What is wrong, and where.
        reason: String,
    },
}

impl DecodeError {
    /// The code of the ErrorMessage (type 1) that answers a frame with this fault: malformed (`wire.md`, section 8).
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
