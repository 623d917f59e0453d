//! Why a relay could not be had.

use std::{fmt, time::Duration};

/// A relay that the server named, and why it cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayFailure {
    /// Its address, as `turn:HOST:PORT?transport=udp`.
    pub relay: String,
    /// What went wrong.
    pub error: RelayError,
}

impl RelayFailure {
    /// The failure of the relay at this address.
    pub fn new(relay: impl Into<String>, error: RelayError) -> Self {
        Self { relay: relay.into(), error }
    }
}

impl fmt::Display for RelayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.relay, self.error)
    }
}

/// Why a relay cannot be used. None shows the credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// Its name leads to no address.
    #[error("its name was not found ({0})")]
    NotFound(String),
    /// No connection to it.
    #[error("it cannot be reached ({0})")]
    Unreachable(String),
    /// Its certificate is not trusted, or TLS failed otherwise.
    #[error("no trusted TLS connection ({0})")]
    Tls(String),
    /// It does not take the credentials that the room's server gave.
    #[error("it refused the credentials ({code} {words})")]
    Unauthorized {
        /// The code: 401, or 441 for another user's.
        code: u16,
        /// What it said, if anything.
        words: String,
    },
    /// It gives us no relayed address, or will not reach the room's server.
    #[error("it refused ({code} {words})")]
    Refused {
        /// The code of [RFC 8656](https://www.rfc-editor.org/rfc/rfc8656), section 19.
        code: u16,
        /// What it said, if anything.
        words: String,
    },
    /// Nothing came from it.
    #[error("no answer within {0:?}")]
    Silent(Duration),
    /// It did what no TURN server does.
    #[error("it does not speak TURN ({0})")]
    Malformed(&'static str),
    /// It was there and has gone.
    #[error("its connection ended ({0})")]
    Closed(String),
}

impl RelayError {
    /// A refusal with this code.
    pub(super) fn refused(code: u16, words: String) -> Self {
        match code {
            401 | 441 => Self::Unauthorized { code, words },
            _ => Self::Refused { code, words },
        }
    }
}
