//! The way to the server: its name, connections, TLS, HTTP, its clock.

use std::{net::SocketAddr, time::Duration};

use super::{list, span};
use crate::cli::doctor::step::StepReport;
use toolbridge::transport::livekit::probe::{
    ConnectFault, Encrypted, HttpAnswer, HttpFault, NameFault, RouteFault, TlsFault,
};

/// A certificate that ends sooner than this should have been renewed: 14 days, in seconds.
const RENEW: i64 = 14 * 86_400;
/// What two clocks may differ by, in seconds, without being noticed: the server tells whole seconds.
const SAME_TIME: i64 = 3;
/// By how much LiveKit lets clocks differ, in seconds.
pub(super) const LEEWAY: i64 = 60;

/// Whether a name has addresses. With a proxy it is the proxy's.
pub(in crate::cli::doctor) fn name(
    host: &str,
    is_address: bool,
    proxy: Option<&str>,
    found: &Result<Vec<SocketAddr>, NameFault>,
    limit: Duration,
) -> StepReport {
    let what = match proxy {
        Some(proxy) => format!("the proxy's name {host} (from {proxy})"),
        None => format!("the server's name {host}"),
    };
    let wrong_name = match proxy {
        Some(_) => "check the address of the proxy in that variable",
        None => "check the spelling in the server's address, and that the name is set up in DNS",
    };
    match found {
        Ok(_) if is_address => StepReport::ok(format!("{host} is an address; there is no name to look up")),
        Ok(addresses) if addresses.is_empty() => {
            StepReport::failed(format!("{what} has no address"), wrong_name)
        }
        Ok(addresses) => {
            let ips: Vec<_> = addresses.iter().map(SocketAddr::ip).collect();
            let through = proxy.map(|_| "proxy ").unwrap_or_default();
            StepReport::ok(format!("{through}{host} is {}", list(&ips)))
        }
        Err(NameFault::Unknown(system)) => StepReport::failed(
            format!("{what} is not known here ({system})"),
            format!(
                "{wrong_name}; if other names work neither, this machine's network or its DNS server is down"
            ),
        ),
        Err(_) => StepReport::failed(
            format!("this machine's DNS server said nothing about {host} within {limit:?}"),
            "check this machine's network and its DNS server (/etc/resolv.conf)",
        ),
    }
}

/// Which addresses take a connection.
pub(in crate::cli::doctor) fn connection(
    tried: &[(SocketAddr, Result<(), ConnectFault>)],
    proxy: Option<&str>,
    limit: Duration,
) -> StepReport {
    let (open, shut): (Vec<_>, Vec<_>) = tried.iter().partition(|(_, result)| result.is_ok());
    let open: Vec<_> = open.iter().map(|(address, _)| address).collect();
    let each: Vec<_> = shut
        .iter()
        .filter_map(|(address, result)| Some(format!("{address} {}", fault(result.as_ref().err()?, limit))))
        .collect();
    let who = if proxy.is_some() { "the proxy" } else { "the server" };
    if shut.is_empty() && !open.is_empty() {
        return StepReport::ok(format!("{} takes connections", list(&open)));
    }
    let Some((address, Err(first))) = shut.first() else {
        return StepReport::failed("there is no address to connect to", "check the server's address");
    };
    if !open.is_empty() {
        let advice = if shut.iter().all(|(address, _)| address.is_ipv6()) {
            "apps that try IPv6 first wait for it in vain: make the server listen there, or take the AAAA record out of DNS"
        } else {
            "take the addresses that do not answer out of DNS, or make the server listen there"
        };
        return StepReport::warning(list(&each), advice).found(format!("{} takes connections", list(&open)));
    }
    let port = address.port();
    let advice = match (first, proxy) {
        (ConnectFault::Refused, None) => format!(
            "nothing listens at port {port}: start the server, or correct the port in its address (LiveKit's own is 7880, \
             behind a web server it is 443)"
        ),
        (ConnectFault::Refused, Some(proxy)) => {
            format!("nothing listens there: correct the proxy's address (from {proxy})")
        }
        (ConnectFault::Silent, _) => format!(
            "a firewall drops what we send, or the machine is off: open TCP port {port} of {who} towards this machine \
             (security group, firewall, VPN)"
        ),
        (ConnectFault::NoRoute, _) => {
            "this machine has no way to that network: connect it, or its VPN, or use another address of the server".into()
        }
        _ => format!("check this machine's network, and whether {who} runs"),
    };
    StepReport::failed(format!("no connection to {who}: {}", list(&each)), advice)
}

fn fault(fault: &ConnectFault, limit: Duration) -> String {
    match fault {
        ConnectFault::Refused => "refuses it".into(),
        ConnectFault::Silent => format!("says nothing within {limit:?}"),
        ConnectFault::NoRoute => "cannot be reached from this network".into(),
        other => format!("fails: {other}"),
    }
}

/// The way that is left once the first machine took a connection: through a proxy.
pub(in crate::cli::doctor) fn route(fault: &RouteFault, limit: Duration) -> StepReport {
    match fault {
        RouteFault::Proxy(error) => StepReport::failed(
            format!("no way through the proxy {}: {}", error.proxy, error.reason),
            if error.reason.contains("407") {
                "the proxy wants a user name and password: write them into the variable, as http://USER:PASSWORD@HOST:PORT"
            } else {
                "have the proxy allow CONNECT to the server's host and port, correct the variable, or name the server's \
                 host in NO_PROXY to go without"
            },
        ),
        RouteFault::Connect(why) => StepReport::failed(
            format!("the server {}", self::fault(why, limit)),
            "it took a connection a moment ago: look at its log, and whether it limits connections",
        ),
        other => StepReport::failed(
            other.to_string(),
            "install the system's root certificates (package `ca-certificates`), or give --root-certificate a usable file",
        ),
    }
}

/// Encryption. `now` is in seconds since 1970.
pub(in crate::cli::doctor) fn tls(
    host: &str,
    found: &Result<Encrypted, TlsFault>,
    now: i64,
    limit: Duration,
) -> StepReport {
    let fault = match found {
        Ok(encrypted) => {
            let left = encrypted.until.map(|until| until - now);
            let until = left.map(|left| format!(" for another {}", span(left))).unwrap_or_default();
            let found =
                format!("{}, a certificate for {host} that is trusted here, valid{until}", encrypted.version);
            return match left.filter(|left| *left < RENEW) {
                Some(left) => StepReport::warning(
                    format!("the certificate ends in {}", span(left)),
                    "renew it, and see why that was not done by itself",
                )
                .found(found),
                None => StepReport::ok(found),
            };
        }
        Err(fault) => fault,
    };
    match fault {
        TlsFault::Expired(until) => {
            let since = until.map(|until| format!(" {} ago", span(now - until))).unwrap_or_default();
            StepReport::failed(
                format!("the server's certificate ended{since}"),
                "renew the certificate on the server (and compare this machine's clock, if it was renewed)",
            )
        }
        TlsFault::NotYet => StepReport::failed(
            "the server's certificate is not valid yet",
            "set this machine's clock; if it is right, the certificate was made with a wrong one",
        ),
        TlsFault::UnknownIssuer => StepReport::failed(
            "nobody whom this machine trusts has signed the server's certificate",
            "for a certificate of your own give its root with --root-certificate FILE; otherwise let the server send its \
             whole chain (`fullchain.pem`, not `cert.pem`); or something between here and there opens encrypted \
             connections (a company's proxy), and its root must be trusted",
        ),
        TlsFault::OtherName(names) => StepReport::failed(
            if names.is_empty() {
                format!("the server's certificate is not for {host}")
            } else {
                format!("the server's certificate is for {}, not for {host}", list(names))
            },
            "use the name that is in the certificate as the server's address, or get a certificate for this one",
        ),
        TlsFault::Certificate(reason) => StepReport::failed(
            format!("the server's certificate cannot be used: {reason}"),
            "get the server a certificate that browsers accept, from a public authority such as Let's Encrypt",
        ),

        TlsFault::Ended(reason) => StepReport::failed(
            format!("the encrypted connection did not come about: {reason}"),
            "look at the log of the server or of the web server in front of it; a firewall that looks into connections \
             does this too",
        ),
        TlsFault::Route(fault) => route(fault, limit),
        other => {
            let [wrong, advice] = other
                .explanation()
                .unwrap_or(["the encrypted connection failed", "look at the server's log"]);
            StepReport::failed(wrong, advice)
        }
    }
}

/// Whether it is a LiveKit server that answers: its front page, and the page where tokens are checked, asked for
/// without one.
pub(in crate::cli::doctor) fn http(
    front: &Result<HttpAnswer, HttpFault>,
    check: &Result<HttpAnswer, HttpFault>,
    encrypted: bool,
    limit: Duration,
) -> StepReport {
    let (front, check) = match (front, check) {
        (_, Ok(check)) => (front.as_ref().ok(), check),
        (_, Err(fault)) => return no_http(fault, encrypted, limit),
    };
    if let Some(place) = &check.elsewhere {
        return StepReport::failed(
            format!("the answer is a redirection to {place} (HTTP {})", check.status),
            "on a public or company network sign in with a browser first; otherwise the web server in front of LiveKit \
             must pass /rtc on as it is",
        );
    }
    match check.status {
        // What LiveKit says to whoever has no token.
        401 => match front.map(|front| front.status) {
            Some(406) => StepReport::warning(
                "the LiveKit server says that it is not ready",
                "look at its log and its load: it has not updated its own state for more than 4 s",
            ),
            _ => StepReport::ok("a LiveKit server answers"),
        },
        400 if check.body.contains("HTTP request to an HTTPS server") => {
            StepReport::failed("this port wants encryption", "use wss:// in place of ws://")
        }
        status if status < 300 => StepReport::failed(
            if check.is_page {
                "a web page answers where LiveKit's check of tokens should"
            } else {
                "something answers, but not as LiveKit does"
            },
            "this is no LiveKit server, or the sign-in page of this network: correct the server's address, or sign in with \
             a browser first",
        ),
        404 => StepReport::failed(
            "a web server answers, but it is no LiveKit server (HTTP 404 for /rtc)",
            "correct the host, port or path in the server's address; a web server in front of LiveKit must pass /rtc on",
        ),
        407 => StepReport::failed(
            "a proxy on the way wants a user name and password (HTTP 407)",
            "set HTTPS_PROXY to http://USER:PASSWORD@HOST:PORT",
        ),
        status if status >= 500 => StepReport::failed(
            format!("what stands in front of the LiveKit server cannot reach it (HTTP {status})"),
            "start the LiveKit server, and check the address that the web server or load balancer passes requests on to",
        ),
        status => StepReport::warning(
            format!("something answers HTTP {status} where LiveKit says 401"),
            "if the join fails as well, a web server in front of LiveKit keeps requests back: it must pass /rtc on",
        ),
    }
}

fn no_http(fault: &HttpFault, encrypted: bool, limit: Duration) -> StepReport {
    let scheme = if encrypted {
        "correct the port in the server's address"
    } else {
        "try wss:// in place of ws://, or correct the port"
    };
    match fault {
        HttpFault::NotHttp => StepReport::failed("what answers there is no web server", scheme),
        HttpFault::Silent => StepReport::failed(
            format!("the connection is taken, but nothing is answered within {limit:?}"),
            format!("the server hangs, or another service listens at this port: look at its log; {scheme}"),
        ),
        HttpFault::Ended(reason) => StepReport::failed(
            format!("the connection ended without an answer ({reason})"),
            format!("{scheme}; look at the server's log"),
        ),
        other => StepReport::failed(other.to_string(), scheme),
    }
}

/// The clocks: by how many seconds the server's is ahead, if it tells.
pub(in crate::cli::doctor) fn clock(ahead: Option<i64>) -> StepReport {
    let Some(ahead) = ahead else {
        return StepReport::skipped("the server does not tell the time");
    };
    let found = format!(
        "the server's clock is {} {} ours",
        span(ahead),
        if ahead < 0 { "behind" } else { "ahead of" }
    );
    if ahead.abs() <= SAME_TIME {
        return StepReport::ok("the server's clock and ours agree");
    }
    let so = if ahead.abs() < LEEWAY {
        "it is borne so far (a minute is)"
    } else if ahead > 0 {
        "tokens that are made here end too early for it"
    } else {
        "tokens that are made here are not valid yet for it"
    };
    StepReport::warning(
        format!("{found}: {so}"),
        "set both clocks by NTP (`timedatectl` shows whether this one is)",
    )
}

#[cfg(test)]
mod tests;
