//! Parses the URLs of STUN and TURN servers, as the LiveKit server sends them.

use std::{fmt, net::Ipv6Addr};

/// The longest host name that DNS allows, in bytes.
const MAX_HOST: usize = 253;

/// A STUN or TURN server ([RFC 7064](https://www.rfc-editor.org/rfc/rfc7064),
/// [RFC 7065](https://www.rfc-editor.org/rfc/rfc7065)).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct IceUrl {
    pub(crate) kind: Kind,
    /// A name, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The kind of a server, and how to reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A STUN server, over UDP.
    Stun,
    /// A relay over UDP.
    TurnUdp,
    /// A relay over TCP.
    TurnTcp,
    /// A relay over TLS.
    TurnTls,
}

impl IceUrl {
    /// Parses a URL. Returns `None` if it is of an unsupported kind, such as DTLS or STUN over TCP.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once(':')?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let transport = match query {
            "" => None,
            query => Some(query.strip_prefix("transport=")?),
        };
        let is = |name: &str| scheme.eq_ignore_ascii_case(name);
        let over = |name: &str| transport.is_some_and(|it| it.eq_ignore_ascii_case(name));
        let kind = match transport {
            None if is("stun") => Kind::Stun,
            None if is("turn") => Kind::TurnUdp,
            None if is("turns") => Kind::TurnTls,
            Some(_) if is("turn") && over("udp") => Kind::TurnUdp,
            Some(_) if is("turn") && over("tcp") => Kind::TurnTcp,
            Some(_) if is("turns") && over("tcp") => Kind::TurnTls,
            _ => return None,
        };
        let (host, port) = host_and_port(place)?;
        let port = match port {
            None if kind == Kind::TurnTls => 5349,
            None => 3478,
            Some(port) => port.parse().ok().filter(|port| *port != 0)?,
        };
        Some(Self { kind, host: host.to_owned(), port })
    }
}

/// Splits `host:port`, `[v6]:port`, and each without a port.
fn host_and_port(place: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = place.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        host.parse::<Ipv6Addr>().ok()?;
        return match rest {
            "" => Some((host, None)),
            rest => Some((host, Some(rest.strip_prefix(':')?))),
        };
    }
    let (host, port) = place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port)));
    // The name is logged and resolved, so nothing but a name may be in it.
    let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    (is_name && (1..=MAX_HOST).contains(&host.len())).then_some((host, port))
}

/// The part that may be shown and logged: it contains no user.
impl fmt::Display for IceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, transport) = match self.kind {
            Kind::Stun => ("stun", ""),
            Kind::TurnUdp => ("turn", "?transport=udp"),
            Kind::TurnTcp => ("turn", "?transport=tcp"),
            Kind::TurnTls => ("turns", "?transport=tcp"),
        };
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{scheme}:{open}{}{close}:{}{transport}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_forms_of_livekit_are_parsed() {
        for (text, shown) in [
            ("turn:192.0.2.1:3478?transport=udp", "turn:192.0.2.1:3478?transport=udp"),
            ("turn:[2001:db8::1]:3478?transport=udp", "turn:[2001:db8::1]:3478?transport=udp"),
            ("turn:relay.example:443?transport=tcp", "turn:relay.example:443?transport=tcp"),
            ("turns:relay.example:443?transport=tcp", "turns:relay.example:443?transport=tcp"),
            ("TURNS:relay.example", "turns:relay.example:5349?transport=tcp"),
            ("turn:relay.example", "turn:relay.example:3478?transport=udp"),
            ("stun:[::1]", "stun:[::1]:3478"),
            ("stun:global.stun.example:3478", "stun:global.stun.example:3478"),
        ] {
            assert_eq!(IceUrl::parse(text).unwrap().to_string(), shown);
        }
    }

    #[test]
    fn other_urls_are_rejected() {
        for text in [
            "",
            ":",
            "turn:",
            "turn::3478",
            "turn:host:0",
            "turn:host:70000",
            "turn:host:1:2",
            "turn:[::1",
            "turn:[::1]x",
            "turn:[nonsense]:1",
            "turn:host?transport=sctp",
            "turn:host?user=me",
            "turns:host?transport=udp",
            "stun:host?transport=udp",
            "stuns:host",
            "http://host",
            "turn:user@host",
            "turn:ho st",
            "turn:/etc/passwd",
            &format!("turn:{}", "a".repeat(MAX_HOST + 1)),
        ] {
            assert_eq!(IceUrl::parse(text), None, "{text}");
        }
    }
}
