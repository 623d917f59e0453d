//! Names the reasons for a rejected token, shared by joins and diagnoses.

use std::fmt;

/// The reason why the server rejected a token (HTTP 401), read from its response. `Display` describes the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenRefusal {
    /// The server does not know the API key.
    Key,
    /// The token was not signed with the secret of its API key.
    Signature,
    /// The token has expired.
    Expired,
    /// The token is not valid yet.
    NotYet,
    /// The token does not grant joining the room.
    NoJoin,
    /// The response gives no reason, or came from something other than a LiveKit server.
    Unknown,
}

impl TokenRefusal {
    /// Determines the reason from the response body. The body repeats the token, so no part of it is kept.
    pub(crate) fn read(body: &str) -> Self {
        // The last one: the token before it is the caller's text and may contain anything.
        let words = body.rsplit_once("error: ").map_or(body, |(_, words)| words).to_ascii_lowercase();
        let says = |any: &[&str]| any.iter().any(|word| words.contains(word));
        if says(&["invalid api key"]) {
            Self::Key
        } else if says(&["expired"]) {
            Self::Expired
        } else if says(&["not valid yet", "nbf", "before issued"]) {
            Self::NotYet
        } else if says(&["signature", "cryptographic", "verification"]) {
            Self::Signature
        } else if says(&["permission"]) {
            Self::NoJoin
        } else {
            Self::Unknown
        }
    }

    /// Returns what to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Key => {
                "compare the key with `keys` in the LiveKit server's configuration, or with the LiveKit Cloud project"
            }
            Self::Signature => {
                "set LIVEKIT_API_SECRET, here or at the token server, to the secret in the LiveKit server's configuration \
                 (`keys`); check it for a trailing space or newline"
            }
            Self::Expired => "get a new token from the token server",
            Self::NotYet => "synchronize the clocks of the LiveKit server and the token server (NTP)",
            Self::NoJoin => "let the token server grant `roomJoin` for this room",
            Self::Unknown => {
                "compare the key, the secret and the clocks of both machines; the LiveKit server's log gives the reason"
            }
        }
    }
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "the server does not know the API key",
            Self::Signature => "the token was not signed with the secret that the server has for its API key",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet according to the server's clock",
            Self::NoJoin => "the token does not grant joining this room",
            Self::Unknown => {
                "the token has expired, is not valid yet, is signed with another key or secret, or lacks `roomJoin` for this room"
            }
        })
    }
}
