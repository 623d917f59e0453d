//! Defines the errors of joining a LiveKit room. Each message says what failed and what to do.

use std::{error::Error, fmt, io, net::SocketAddr, sync::Arc, time::Duration};

use rustls::CertificateError;

use crate::{
    clock::Spelled,
    livekit::{path::turn::RelayFailure, room::liveness::End, signaling::refusal::TokenRefusal},
    net::tls_error::{cause, certificate_fault, ended_the_handshake},
    transport::CloseReason,
};

/// The problem and the advice if a port that should speak TLS does not.
pub(crate) const NO_TLS: [&str; 2] = [
    "the port does not speak TLS",
    "use the TLS port (443 behind a web server), or ws:// instead of wss:// for a server on this machine",
];

/// The reason why joining a room failed. Each message says what to do. No message contains the token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The server address is invalid.
    #[error("invalid server address: {source}; use wss://HOST or ws://HOST:PORT")]
    Url {
        /// The problem.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The token does not have the form of a JWT.
    #[error("the token is not a JWT; pass the token server's text without quotes or `Bearer`")]
    MalformedToken,
    /// The server rejected the token.
    #[error("{server} rejected the token (HTTP {status}): {reason}; {}", reason.advice())]
    Unauthorized {
        /// Host and port.
        server: String,
        /// The HTTP status: 401.
        status: u16,
        /// The reason, as far as the response gives one.
        reason: TokenRefusal,
    },
    /// The server accepted the token but does not allow this join.
    #[error(
        "{server} does not allow this join (HTTP {status}); ask the server's operator for the missing grant or room"
    )]
    Forbidden {
        /// Host and port.
        server: String,
        /// The HTTP status: 403.
        status: u16,
    },
    /// The server responded with another HTTP status.
    #[error("{server} responded with HTTP {status}{}{}", said(reason), advice_about_status(*status))]
    Refused {
        /// Host and port.
        server: String,
        /// The HTTP status.
        status: u16,
        /// The server's own words, if it gives any: one line, at most 256 bytes. Empty for a web page, and for a text that
        /// could repeat the token.
        reason: String,
    },
    /// No TCP connection to the server could be made, or its name could not be resolved.
    #[error(
        "{server} cannot be reached: {source}; check the host name, the port, and that the server is running"
    )]
    Unreachable {
        /// Host and port.
        server: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server's certificate is not trusted, or the TLS handshake failed.
    #[error(
        "TLS connection to {server} failed: {}{}", cause(&**source), advice_about_tls(&**source)
    )]
    Tls {
        /// Host and port.
        server: String,
        /// The TLS error.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The address starts with `wss://`, but the port does not speak TLS.
    #[error("TLS connection to {server} failed: {}; {}", NO_TLS[0], NO_TLS[1])]
    NotEncrypted {
        /// Host and port.
        server: String,
    },
    /// The proxy set in the environment could not be used.
    #[error(
        "{server} cannot be reached through the proxy {proxy}: {source}; correct the variable, or add the server's host \
         to `NO_PROXY` to connect directly"
    )]
    Proxy {
        /// Host and port of the server.
        server: String,
        /// The proxy's host, port and variable, as far as they can be read. It never contains the credentials.
        proxy: String,
        /// The error of the proxy or the system.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// The server does not support a single peer connection for data.
    #[error("LiveKit server version {version} is too old; update it to 1.9.11 or newer")]
    ServerTooOld {
        /// Its version, or `unknown`.
        version: String,
    },
    /// Signaling works, but ICE found no path for packets.
    #[error(
        "no network path for packets within {}: neither UDP nor TCP reaches the server's RTC ports ({}); open \
         them in the firewall, or correct the server's `rtc.node_ip`",
        Spelled(*limit), addresses_in_words(tried)
    )]
    NoNetworkPath {
        /// The time limit.
        limit: Duration,
        /// The server addresses tried, in the order of the server's candidates.
        tried: Vec<SocketAddr>,
    },
    /// Only relays are allowed, and none is usable.
    #[error(
        "only relays are allowed (`ConnectOptions::relay_only` or the server requires one), and {}; check the `turn` \
         section of the server's configuration, and that no firewall blocks the relay",
        relays_in_words(relays)
    )]
    NoRelay {
        /// The relays that the server provided, each with its error.
        relays: Vec<RelayFailure>,
    },
    /// Another participant joined with the same identity during the join.
    #[error("another participant joined with the same identity; use a unique identity for each participant")]
    DuplicateIdentity,
    /// The room was deleted during the join.
    #[error("the room was deleted during the join; join again to recreate it")]
    RoomDeleted,
    /// A participant or service with the `roomAdmin` grant removed the local participant during the join.
    #[error("a room administrator removed this participant during the join")]
    Removed,
    /// The join exceeded its time limit.
    #[error(
        "join timed out after {} while {phase}; try again, or raise `ConnectOptions::join_timeout`",
        Spelled(*limit)
    )]
    Timeout {
        /// The time limit.
        limit: Duration,
        /// The phase that was in progress.
        phase: JoinPhase,
    },
    /// The connection ended during the join.
    #[error("the connection ended during the join: {0}")]
    Closed(CloseReason),
    /// A local socket could not be opened.
    #[error("cannot open a local socket: {0}")]
    Socket(#[from] io::Error),
    /// The WebRTC stack failed, or the server sent an invalid message.
    #[error("cannot set up the peer connection: {0}")]
    Transport(#[source] Box<dyn Error + Send + Sync>),
}

/// Returns a server's words as a part of a message.
fn said(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// Returns what to do about an HTTP status.
fn advice_about_status(status: u16) -> &'static str {
    match status {
        400 => "; correct the room name and the identity in the token",
        404 => "; this means a wrong path, a room that does not exist, or not a LiveKit server",
        300..400 => "; use the address that it redirects to, or make the web server forward /rtc unchanged",
        500.. => "; this is an error of the server, try again",
        _ => "; check the address, and the web server in front of LiveKit",
    }
}

/// Returns what to do about an error of TLS, if that is known.
fn advice_about_tls(error: &(dyn Error + 'static)) -> &'static str {
    match certificate_fault(error) {
        Some(CertificateError::UnknownIssuer) => {
            "; for a private certificate authority, pass its root certificate (`ConnectOptions::root_certificates`)"
        }
        Some(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "; renew it on the server, or correct this machine's clock"
        }
        Some(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
            "; correct this machine's clock"
        }
        Some(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
            "; use a name from the certificate in the address, or get a certificate for this name"
        }
        Some(_) => "; give the server another certificate",
        None if ended_the_handshake(error) => "; if the server does not use TLS, use ws:// instead of wss://",
        None => "",
    }
}

/// The largest number of addresses in a message.
const NAMED: usize = 8;

fn addresses_in_words(addresses: &[SocketAddr]) -> String {
    if addresses.is_empty() {
        return "it sent none".into();
    }
    let named: Vec<_> = addresses.iter().take(NAMED).map(ToString::to_string).collect();
    let more = addresses.len() - named.len();
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

fn relays_in_words(relays: &[RelayFailure]) -> String {
    if relays.is_empty() {
        return "the server provided none that can be used".into();
    }
    let relays: Vec<_> = relays.iter().map(ToString::to_string).collect();
    format!("none is usable ({})", relays.join("; "))
}

impl ConnectError {
    /// Wraps an error of the WebRTC stack or the server.
    pub(super) fn transport(error: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Transport(error.into())
    }
}

/// The phase of a join in which its time limit expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JoinPhase {
    /// Opening the WebSocket, or waiting for the server's join response.
    Signaling,
    /// Opening the data channels, after ICE had found a path.
    Channels,
}

impl fmt::Display for JoinPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Signaling => "waiting for the server's join response",
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
    fn refusal_has_the_words_of_the_server_and_advice_for_its_status() {
        let said = |status, reason: &str| {
            ConnectError::Refused { server: "sfu:7880".into(), status, reason: reason.into() }.to_string()
        };
        assert_eq!(
            said(400, "no room name"),
            "sfu:7880 responded with HTTP 400: no room name; correct the room name and the identity in the token"
        );
        assert!(said(404, "").starts_with("sfu:7880 responded with HTTP 404; this means a wrong path"));
        assert!(said(503, "busy").contains("503: busy; this is an error of the server"));
    }

    #[test]
    fn tls_error_is_described_without_types_and_with_fitting_advice() {
        let said = |fault: CertificateError| {
            let source = io::Error::other(rustls::Error::from(fault)).into();
            ConnectError::Tls { server: "sfu:443".into(), source }.to_string()
        };
        let unknown = said(CertificateError::UnknownIssuer);
        assert!(unknown.contains("unknown authority") && unknown.contains("root_certificates"), "{unknown}");
        let other = rustls::OtherError(Arc::new(io::Error::other("CaUsedAsEndEntity")));
        let own = said(CertificateError::Other(other));
        assert!(own.contains("the certificate is a CA certificate"), "{own}");
        assert!(!own.contains("CaUsed") && !own.contains("root_certificates"), "{own}");
        let ended = io::Error::new(io::ErrorKind::UnexpectedEof, "tls handshake eof").into();
        let ended = ConnectError::Tls { server: "sfu:7880".into(), source: ended }.to_string();
        assert!(ended.ends_with("; if the server does not use TLS, use ws:// instead of wss://"), "{ended}");
    }

    #[test]
    fn no_network_path_error_names_at_most_eight_addresses() {
        let said = |count: u16| {
            let tried = (1..=count).map(|port| ([192, 0, 2, 1], port).into()).collect();
            ConnectError::NoNetworkPath { limit: Duration::from_secs(5), tried }.to_string()
        };
        assert!(said(0).contains("(it sent none)"), "{}", said(0));
        assert!(said(2).contains("(192.0.2.1:1, 192.0.2.1:2)"), "{}", said(2));
        assert!(said(8).contains("192.0.2.1:7, 192.0.2.1:8)"), "{}", said(8));
        assert!(said(64).contains("192.0.2.1:8 and 56 more)"), "{}", said(64));
    }
}
