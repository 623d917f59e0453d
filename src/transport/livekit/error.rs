//! Why a room could not be joined, and what to do about it.

use std::{fmt, io, net::SocketAddr, time::Duration};

use super::{liveness::End, refusal::TokenRefusal, turn::RelayFailure};
use crate::transport::CloseReason;

/// What is wrong where TLS is expected and something else answers, and what to do about it.
pub(crate) const NO_TLS: [&str; 2] = [
    "what answers at this port does not encrypt (it speaks no TLS)",
    "use the port that does (443 behind a web server), or ws:// in place of wss:// for a server on this machine",
];

/// Why a room could not be joined. Each message says what to do about it; none shows the token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is no LiveKit address.
    #[error("the server's address cannot be used: {reason}; give it as wss://HOST or ws://HOST:PORT")]
    Url {
        /// What is wrong with it.
        reason: String,
    },
    /// The token is no token at all.
    #[error("the token is not a JWT; pass the text that the token server gave, without quotes or `Bearer`")]
    MalformedToken,
    /// The server does not accept the token.
    #[error("{server} refused the token (HTTP {status}): {reason}; {}", reason.advice())]
    Unauthorized {
        /// Host and port.
        server: String,
        /// The HTTP status: 401.
        status: u16,
        /// Why, as far as the server's answer says.
        reason: TokenRefusal,
    },
    /// The server accepts the token, but not this join.
    #[error(
        "{server} does not allow this join (HTTP {status}): ask whoever runs it for the grant or the room"
    )]
    Forbidden {
        /// Host and port.
        server: String,
        /// The HTTP status: 403.
        status: u16,
    },
    /// The server answered with another HTTP status than LiveKit does.
    #[error(
        "{server} answered HTTP {status} instead of opening the room: 404 is a wrong path, a room that does not \
         exist, or no LiveKit server at all; 5xx is the server's own trouble, try again"
    )]
    Refused {
        /// Host and port.
        server: String,
        /// The HTTP status.
        status: u16,
    },
    /// No connection to the server.
    #[error("{server} cannot be reached: {reason}; check the name, the port, and whether the server runs")]
    Unreachable {
        /// Host and port.
        server: String,
        /// What the system said.
        reason: String,
    },
    /// The server's certificate is not trusted, or TLS failed otherwise.
    #[error(
        "no trusted TLS connection to {server}: {reason}; for a certificate of your own give its root \
         (`RoomOptions::root_certificates`)"
    )]
    Tls {
        /// Host and port.
        server: String,
        /// What TLS said.
        reason: String,
    },
    /// The address asks for encryption (`wss://`), and the server does not encrypt at this port.
    #[error("no encrypted connection to {server}: {}; {}", NO_TLS[0], NO_TLS[1])]
    NotEncrypted {
        /// Host and port.
        server: String,
    },
    /// The platform names a proxy, and there is no way through it.
    #[error(
        "no way to {server} through the proxy {proxy}: {reason}; set the variable right, or name the server's host in \
         `NO_PROXY` to reach it without"
    )]
    Proxy {
        /// Host and port of the server.
        server: String,
        /// Host and port of the proxy, and the variable that names it.
        proxy: String,
        /// What the proxy or the system said.
        reason: String,
    },
    /// Another part of this program has set the process's WebSocket client, of which there is one only
    /// (`livekit_net::set_ws_client`). With it a room would be without its limits on what a server sends, without
    /// [root certificates](super::RoomOptions::root_certificates) of the user's and without a proxy. A room that is
    /// joined first sets its own, which leaves everybody else's connections as the library itself would make them.
    #[error(
        "this program has set a WebSocket client of its own for LiveKit (`livekit_net::set_ws_client`), and there can be \
         one only: leave that out, or join the first room before"
    )]
    ForeignClient,
    /// The server cannot carry data over one peer connection.
    #[error("the server is too old (version {version}); LiveKit 1.9.11 or newer is needed")]
    ServerTooOld {
        /// Its version, or `unknown`.
        version: String,
    },
    /// Signaling works, but no packet gets through.
    #[error(
        "the server answers, but within {limit:?} no path for packets was found: neither UDP nor TCP to its RTC \
         ports ({}) gets through; open them in the firewall, or set the server's `rtc.node_ip`",
        addresses_in_words(tried)
    )]
    NoNetworkPath {
        /// How long it was tried.
        limit: Duration,
        /// The server's addresses that were tried, in the order in which it named them.
        tried: Vec<SocketAddr>,
    },
    /// Only relays may be used, and none can be.
    #[error(
        "packets may go through relays only, and {}; look at the `turn` part of the server's configuration, and \
         whether a firewall keeps the relay away (`RoomOptions::relay_only`)",
        relays_in_words(relays)
    )]
    NoRelay {
        /// Those that the server named, and why each cannot be used.
        relays: Vec<RelayFailure>,
    },
    /// Another participant joined with our identity meanwhile.
    #[error("another participant joined with the same identity; give each its own")]
    DuplicateIdentity,
    /// The room was deleted meanwhile.
    #[error("the room was deleted while joining; join again to create it anew")]
    RoomDeleted,
    /// Somebody with the room's admin grant removed us meanwhile.
    #[error("removed from the room while joining, by its administrator")]
    Removed,
    /// It took too long.
    #[error(
        "not joined within {limit:?}, while {phase}; try again, or allow more time (`RoomOptions::join_timeout`)"
    )]
    Timeout {
        /// How long it was tried.
        limit: Duration,
        /// What was under way.
        phase: JoinPhase,
    },
    /// The connection ended while joining.
    #[error("the connection ended while joining: {0}")]
    Closed(CloseReason),
    /// A socket could not be opened.
    #[error("no socket could be opened here: {0}")]
    Socket(#[from] io::Error),
    /// The server or the WebRTC stack did something that it should not.
    #[error("the peer connection could not be set up: {0}")]
    Transport(Box<dyn std::error::Error + Send + Sync>),
}

/// How many of the tried addresses the message names.
const NAMED: usize = 8;

fn addresses_in_words(addresses: &[SocketAddr]) -> String {
    if addresses.is_empty() {
        return "it named none".into();
    }
    let named: Vec<_> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    let more = addresses.len() - named.len();
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

fn relays_in_words(relays: &[RelayFailure]) -> String {
    if relays.is_empty() {
        return "the server names none that we could use".into();
    }
    let relays: Vec<_> = relays.iter().map(ToString::to_string).collect();
    format!("none can be used ({})", relays.join("; "))
}

impl ConnectError {
    /// The stack's or the server's own error.
    pub(super) fn transport(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Transport(error.into())
    }
}

/// What was meant to happen when the time was up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinPhase {
    /// The WebSocket was being opened, or the server's first answer waited for.
    Signaling,
    /// A path was there, and the data channels were being opened.
    Channels,
}

impl fmt::Display for JoinPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Signaling => "waiting for the server's answer to the join",
            Self::Channels => "opening the data channels",
        })
    }
}

impl From<CloseReason> for ConnectError {
    fn from(reason: CloseReason) -> Self {
        match reason {
            CloseReason::DuplicateIdentity => Self::DuplicateIdentity,
            CloseReason::RoomDeleted => Self::RoomDeleted,
            CloseReason::Removed => Self::Removed,
            other => Self::Closed(other),
        }
    }
}

impl From<End> for ConnectError {
    fn from(end: End) -> Self {
        match end {
            End::Closed(reason) => reason.into(),
            End::Lost(loss) => Self::Closed(CloseReason::ConnectionLost(loss.to_string().into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_tried_addresses_the_first_are_named() {
        let said = |count: u16| {
            let tried = (1..=count).map(|port| ([192, 0, 2, 1], port).into()).collect();
            ConnectError::NoNetworkPath { limit: Duration::from_secs(5), tried }.to_string()
        };
        assert!(said(0).contains("(it named none)"), "{}", said(0));
        assert!(said(2).contains("(192.0.2.1:1, 192.0.2.1:2)"), "{}", said(2));
        assert!(said(8).contains("192.0.2.1:7, 192.0.2.1:8)"), "{}", said(8));
        assert!(said(64).contains("192.0.2.1:8 and 56 more)"), "{}", said(64));
    }
}
