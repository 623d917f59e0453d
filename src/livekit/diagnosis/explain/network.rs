//! Explains the network path to the server: name, connections, TLS, HTTP and clock.

use std::{net::SocketAddr, time::Duration};

use super::{list, span};
use crate::{
    clock::Spelled,
    livekit::{
        diagnosis::{
            check::Finding,
            probe::{ConnectFault, Encrypted, HttpAnswer, HttpFault, NameFault, RouteFault, TlsFault},
        },
        error::NO_TLS,
    },
};

/// A certificate that expires sooner than this should have been renewed: 14 days, in seconds.
const RENEW: i64 = 14 * 86_400;
/// Clock differences up to this count as equal, in seconds: the server reports whole seconds.
const SAME_TIME: i64 = 3;
/// The clock difference that LiveKit tolerates, in seconds.
pub(super) const LEEWAY: i64 = 60;

/// Explains the name lookup of the server, or of the proxy if there is one.
pub(crate) fn name(
    host: &str,
    is_address: bool,
    proxy: Option<&str>,
    found: &Result<Vec<SocketAddr>, NameFault>,
    limit: Duration,
) -> Finding {
    let what = match proxy {
        Some(proxy) => format!("the proxy's name {host} (from {proxy})"),
        None => format!("the server's name {host}"),
    };
    let wrong_name = match proxy {
        Some(_) => "correct the proxy's address in that variable",
        None => "check the spelling of the server's address and the DNS entry",
    };
    match found {
        Ok(_) if is_address => Finding::ok(format!("{host} is an IP address; no lookup is needed")),
        Ok(addresses) if addresses.is_empty() => {
            Finding::failed(format!("{what} has no IP address"), wrong_name)
        }
        Ok(addresses) => {
            let ips: Vec<_> = addresses.iter().map(SocketAddr::ip).collect();
            let through = proxy.map(|_| "proxy ").unwrap_or_default();
            Finding::ok(format!("{through}{host} resolves to {}", list(&ips)))
        }
        Err(NameFault::Unknown(system)) => Finding::failed(
            format!("{what} cannot be resolved ({system})"),
            format!(
                "{wrong_name}; if other names fail too, this machine's network or its DNS server is down"
            ),
        ),
        Err(NameFault::Silent) => Finding::failed(
            format!("the DNS server did not answer for {host} within {}", Spelled(limit)),
            "check this machine's network and its DNS server (/etc/resolv.conf)",
        ),
    }
}

/// Explains which addresses accept TCP connections.
pub(crate) fn connection(
    tried: &[(SocketAddr, Result<(), ConnectFault>)],
    proxy: Option<&str>,
    limit: Duration,
) -> Finding {
    let (open, shut): (Vec<_>, Vec<_>) = tried.iter().partition(|(_, result)| result.is_ok());
    let open: Vec<_> = open.iter().map(|(address, _)| address).collect();
    let each: Vec<_> = shut
        .iter()
        .filter_map(|(address, result)| Some(format!("{address} {}", fault(result.as_ref().err()?, limit))))
        .collect();
    let who = if proxy.is_some() { "the proxy" } else { "the server" };
    if shut.is_empty() && !open.is_empty() {
        return Finding::ok(format!("{} accepts connections", list(&open)));
    }
    let Some((address, Err(first))) = shut.first() else {
        return Finding::failed("there is no address to connect to", "check the server's address");
    };
    if !open.is_empty() {
        let advice = if shut.iter().all(|(address, _)| address.is_ipv6()) {
            "apps that try IPv6 first are delayed: make the server listen on IPv6, or remove the AAAA record from DNS"
        } else {
            "remove the addresses that do not answer from DNS, or make the server listen there"
        };
        return Finding::warning(list(&each), advice).found(format!("{} accepts connections", list(&open)));
    }
    let port = address.port();
    let advice = match (first, proxy) {
        (ConnectFault::Refused, None) => format!(
            "no server listens on port {port}: start it, or correct the port in its address (LiveKit's default is 7880; \
             behind a web server it is usually 443)"
        ),
        (ConnectFault::Refused, Some(proxy)) => {
            format!("no proxy listens there: correct the proxy's address (from {proxy})")
        }
        (ConnectFault::Silent, _) => format!(
            "a firewall drops the packets, or the machine is off: open TCP port {port} of {who} for this machine \
             (security group, firewall, VPN)"
        ),
        (ConnectFault::NoRoute, _) => {
            "this machine has no route to that network: connect the network or VPN, or use another address of the server".into()
        }
        (ConnectFault::Other(_), _) => format!("check this machine's network and that {who} is running"),
    };
    Finding::failed(format!("no connection to {who}: {}", list(&each)), advice)
}

fn fault(fault: &ConnectFault, limit: Duration) -> String {
    match fault {
        ConnectFault::Refused => "refuses the connection".into(),
        ConnectFault::Silent => format!("does not answer within {}", Spelled(limit)),
        ConnectFault::NoRoute => "cannot be reached from this network".into(),
        ConnectFault::Other(system) => format!("fails: {system}"),
    }
}

/// Explains a failure after the first connection succeeded, such as at a proxy.
pub(crate) fn route(fault: &RouteFault, limit: Duration) -> Finding {
    match fault {
        RouteFault::Proxy(error) => Finding::failed(
            format!("cannot reach the server through the {error}"),
            if error.source.to_string().contains("407") {
                "the proxy requires a user name and password: add them to the variable, as in http://USER:PASSWORD@HOST:PORT"
            } else {
                "allow CONNECT to the server's host and port in the proxy, correct the variable, or add the server's host \
                to NO_PROXY"
            },
        ),
        RouteFault::Connect(why) => Finding::failed(
            format!("the server {}", self::fault(why, limit)),
            "it accepted a connection a moment ago: check its log and its connection limits",
        ),
        RouteFault::Trust(reason) => Finding::failed(
            reason,
            "install the system's root certificates (package `ca-certificates`), \
            or use `ConnectOptions::root_certificates`",
        ),
    }
}

/// Explains the TLS handshake. `now` is in seconds since 1970.
pub(crate) fn tls(host: &str, found: &Result<Encrypted, TlsFault>, now: i64, limit: Duration) -> Finding {
    let fault = match found {
        Ok(encrypted) => {
            let left = encrypted.until.map(|until| until - now);
            let until = left.map(|left| format!(" for another {}", span(left))).unwrap_or_default();
            let found = format!("{}, with a trusted certificate for {host}, valid{until}", encrypted.version);
            return match left.filter(|left| *left < RENEW) {
                Some(left) => Finding::warning(
                    format!("the certificate expires in {}", span(left)),
                    "renew it, and check the automatic renewal",
                )
                .found(found),
                None => Finding::ok(found),
            };
        }
        Err(fault) => fault,
    };
    match fault {
        TlsFault::Expired(until) => {
            let since = until.map(|until| format!(" {} ago", span(now - until))).unwrap_or_default();
            Finding::failed(
                format!("the server's certificate expired{since}"),
                "renew the certificate on the server; if it was renewed already, check this machine's clock",
            )
        }
        TlsFault::NotYet => Finding::failed(
            "the server's certificate is not valid yet",
            "check this machine's clock; if it is right, replace the certificate",
        ),
        TlsFault::UnknownIssuer => Finding::failed(
            "this machine does not trust the issuer of the server's certificate",
            "for a private certificate add its root with `ConnectOptions::root_certificates`; for a public one, make the \
            server send the full chain (`fullchain.pem`, not `cert.pem`); on a company network that inspects TLS, trust \
            the company's root certificate",
        ),
        TlsFault::OtherName(names) => Finding::failed(
            if names.is_empty() {
                format!("the server's certificate is not valid for {host}")
            } else {
                format!("the server's certificate is valid for {}, not for {host}", list(names))
            },
            "use a name from the certificate in the server's address, or get a certificate for this name",
        ),
        TlsFault::Certificate(reason) => Finding::failed(
            format!("the server's certificate cannot be used: {reason}"),
            "get a certificate from a public authority such as Let's Encrypt",
        ),
        TlsFault::Ended(reason) => Finding::failed(
            format!("the TLS handshake failed: {reason}"),
            "check the log of the server, or of the web server in front of it; a firewall that inspects traffic can \
            also cause this",
        ),
        TlsFault::NotTls => Finding::failed(NO_TLS[0], NO_TLS[1]),
        TlsFault::Route(fault) => route(fault, limit),
    }
}

/// Explains an address without TLS. `is_here` says whether it is one of this machine.
pub(crate) fn not_encrypted(is_here: bool) -> Finding {
    if is_here {
        return Finding::skipped("ws:// is not encrypted, which is safe on this machine");
    }
    Finding::warning(
        "ws:// is not encrypted: anyone on the network path can read and use the token",
        "use wss:// with a certificate, except on a network that you trust",
    )
}

/// Explains whether a LiveKit server answers, from the responses to `/` and to `/rtc/validate` without a token.
pub(crate) fn http(
    front: &Result<HttpAnswer, HttpFault>,
    check: &Result<HttpAnswer, HttpFault>,
    encrypted: bool,
    limit: Duration,
) -> Finding {
    let (front, check) = match (front, check) {
        (_, Ok(check)) => (front.as_ref().ok(), check),
        (_, Err(fault)) => return no_http(fault, encrypted, limit),
    };
    if let Some(place) = &check.elsewhere {
        return Finding::failed(
            format!("the answer is a redirect to {place} (HTTP {})", check.status),
            "on a public or company network, sign in with a browser first; otherwise make the web server in front of \
            LiveKit forward /rtc unchanged",
        );
    }
    match check.status {
        // LiveKit's answer to a request without a token.
        401 => match front.map(|front| front.status) {
            Some(406) => Finding::warning(
                "the LiveKit server reports that it is not ready",
                "check its log and load: it has not updated its state for more than 4 s",
            ),
            _ => Finding::ok("a LiveKit server answers"),
        },
        400 if check.body.contains("HTTP request to an HTTPS server") => {
            Finding::failed("this port requires encryption", "use wss:// instead of ws://")
        }
        status if status < 300 => Finding::failed(
            if check.is_page {
                "a web page answers instead of LiveKit's token check"
            } else {
                "a server answers, but not as LiveKit does"
            },
            "this is not a LiveKit server, or it is the sign-in page of this network: correct the server's address, or \
            sign in with a browser first",
        ),
        404 => Finding::failed(
            "a web server answers, but it is not a LiveKit server (HTTP 404 for /rtc)",
            "correct host, port or path in the server's address; a web server in front of LiveKit must forward /rtc",
        ),
        407 => Finding::failed(
            "a proxy requires a user name and password (HTTP 407)",
            "set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT",
        ),
        status if status >= 500 => Finding::failed(
            format!("the web server or load balancer in front of LiveKit cannot reach it (HTTP {status})"),
            "start the LiveKit server, and check the address to which requests are forwarded",
        ),
        status => Finding::warning(
            format!("the server answers HTTP {status} where LiveKit answers 401"),
            "if the join fails too, a web server in front of LiveKit blocks requests: it must forward /rtc",
        ),
    }
}

fn no_http(fault: &HttpFault, encrypted: bool, limit: Duration) -> Finding {
    let scheme = if encrypted {
        "correct the port in the server's address"
    } else {
        "try wss:// instead of ws://, or correct the port"
    };
    match fault {
        HttpFault::NotHttp => Finding::failed("the server at this port does not speak HTTP", scheme),
        HttpFault::Silent => Finding::failed(
            format!("the server accepts the connection but does not answer within {}", Spelled(limit)),
            format!("the server hangs, or another service uses this port: check its log; {scheme}"),
        ),
        HttpFault::Ended(reason) => Finding::failed(
            format!("the connection ended without an answer ({reason})"),
            format!("{scheme}; check the server's log"),
        ),
    }
}

/// Explains the clock difference. `ahead` is by how many seconds the server's clock is ahead, if it reports the time.
pub(crate) fn clock(ahead: Option<i64>) -> Finding {
    let Some(ahead) = ahead else {
        return Finding::skipped("the server does not report the time");
    };
    let found =
        format!("the server's clock is {} {}", span(ahead), if ahead < 0 { "behind" } else { "ahead" });
    if ahead.abs() <= SAME_TIME {
        return Finding::ok("the server's clock and the local clock agree");
    }
    let so = if ahead.abs() < LEEWAY {
        "LiveKit tolerates up to 60 s"
    } else if ahead > 0 {
        "tokens created here expire too early"
    } else {
        "tokens created here are not valid yet"
    };
    Finding::warning(
        format!("{found}: {so}"),
        "synchronize both clocks with NTP (`timedatectl` shows the state of this one)",
    )
}

#[cfg(test)]
mod tests;
