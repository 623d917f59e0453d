//! Why a server refuses a token, in texts that joins and `toolbridge doctor` share.

use std::fmt;

/// Why the server refused a token (HTTP 401), as far as its answer says. `Display` is what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenRefusal {
    /// The server does not know the API key.
    Key,
    /// The token was not signed with the key's secret.
    Signature,
    /// The token has expired.
    Expired,
    /// The token is not valid yet.
    NotYet,
    /// The token does not let its holder into the room.
    NoJoin,
    /// The server did not say, or something else answered in its place.
    Unknown,
}

impl TokenRefusal {
    /// Reads the reason from the body of the server's answer. The body repeats the token, so nothing of it is kept.
    pub fn read(body: &str) -> Self {
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

    /// What to do about it.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Key => {
                "compare the key with `keys` in the LiveKit server's configuration, or with its project in the cloud"
            }
            Self::Signature => {
                "set LIVEKIT_API_SECRET, here or at the token server, to the secret in the LiveKit server's configuration \
                 (`keys`); look for a space or line end in it"
            }
            Self::Expired => "have the token server make a new one",
            Self::NotYet => "set the clocks of the server and of the machine that makes tokens by NTP",
            Self::NoJoin => "have the token server grant `roomJoin` and the room's name",
            Self::Unknown => {
                "compare key and secret with the server's configuration, and both clocks; the server's log names the reason"
            }
        }
    }
}

impl fmt::Display for TokenRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key => "the server does not know the API key",
            Self::Signature => "the token was not signed with the secret that the server has for its key",
            Self::Expired => "the token has expired",
            Self::NotYet => "the token is not valid yet by the server's clock",
            Self::NoJoin => "the token does not let anybody into this room",
            Self::Unknown => {
                "it has expired, is not valid yet, was signed with another key or secret, or lacks `roomJoin` for this room"
            }
        })
    }
}
