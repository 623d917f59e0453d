//! Defines the errors of TURN relays.

use std::{fmt, time::Duration};

/// A relay that the LiveKit server provided and that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayFailure {
    /// Its URL: `turn:HOST:PORT?transport=udp`.
    pub relay: String,
    /// The reason.
    pub error: RelayError,
}

impl fmt::Display for RelayFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.relay, self.error)
    }
}

/// The reason why a relay cannot be used. No message contains the credentials.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// The relay's host name could not be resolved.
    #[error("host name not found ({0})")]
    NotFound(String),
    /// No connection to the relay could be made.
    #[error("cannot connect ({0})")]
    Unreachable(String),
    /// The relay's certificate is not trusted, or the TLS handshake failed.
    #[error("TLS failed ({0})")]
    Tls(String),
    /// The relay rejected the credentials that the LiveKit server provided.
    #[error("credentials rejected ({code}{})", after(words))]
    Unauthorized {
        /// The STUN error code: 401, or 441 for wrong credentials.
        code: u16,
        /// The reason phrase. May be empty.
        words: String,
    },
    /// The relay refused to allocate an address, or to relay to the LiveKit server.
    #[error("request refused ({code}{})", after(words))]
    Refused {
        /// The error code of [RFC 8656](https://www.rfc-editor.org/rfc/rfc8656), section 19.
        code: u16,
        /// The reason phrase. May be empty.
        words: String,
    },
    /// The relay did not respond in time.
    #[error("no response within {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// The relay sent an invalid message.
    #[error("invalid TURN message ({0})")]
    Malformed(&'static str),
    /// The connection to the relay ended.
    #[error("connection ended ({0})")]
    Closed(String),
}

/// Returns a reason phrase, which may be empty, as the end of a text.
fn after(words: &str) -> String {
    if words.is_empty() { String::new() } else { format!(" {words}") }
}

impl RelayError {
    /// Creates the error for a response with this code.
    pub(super) fn refused(code: u16, words: String) -> Self {
        match code {
            401 | 441 => Self::Unauthorized { code, words },
            _ => Self::Refused { code, words },
        }
    }
}
