//! A MessagePack value that stays bytes until somebody asks for a type, a path or JSON.

use std::fmt;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

/// One MessagePack value, kept as the bytes it travels in.
#[derive(Clone, PartialEq, Eq)]
pub struct Body(Bytes);

impl Body {
    /// The empty map.
    pub fn empty() -> Self {
        Self(Bytes::from_static(&[0x80]))
    }

    /// A value of any serializable type. Struct fields become map keys.
    ///
    /// # Errors
    /// When the type's `Serialize` fails.
    pub fn encode(value: &(impl Serialize + ?Sized)) -> Result<Self, EncodeError> {
        rmp_serde::to_vec_named(value)
            .map(|bytes| Self(bytes.into()))
            .map_err(|error| EncodeError(error.to_string()))
    }

    /// The value as a type.
    ///
    /// # Errors
    /// When the value does not fit the type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, DecodeError> {
        rmp_serde::from_slice(&self.0).map_err(|error| DecodeError::Type { reason: error.to_string() })
    }

    /// The value as canonical JSON.
    pub fn to_json(&self) -> serde_json::Value {
        rmp_serde::from_slice(&self.0).unwrap_or_default()
    }

    /// The value that a JSON text says.
    ///
    /// # Errors
    /// When the text is no JSON.
    pub fn from_json(text: &str) -> Result<Self, DecodeError> {
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|error| DecodeError::Type { reason: error.to_string() })?;
        Self::encode(&value).map_err(|error| DecodeError::Type { reason: error.to_string() })
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} B)", self.0.len())
    }
}

/// Why a value could not be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(pub(crate) String);

/// Why bytes or JSON are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The value does not fit the type that was asked for.
    #[error("{reason}")]
    Type {
        /// What does not fit.
        reason: String,
    },
}
