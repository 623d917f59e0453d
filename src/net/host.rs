//! Recognizes the hosts and addresses of this machine.

use std::net::IpAddr;

use url::Host;

/// Returns whether a host is this machine: a loopback address, `localhost`, or a name below it
/// ([RFC 6761](https://www.rfc-editor.org/rfc/rfc6761#section-6.3) reserves these).
pub(crate) fn is_local(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
        address => is_certainly_local(address),
    }
}

/// Returns whether a host is this machine with every resolver: some resolvers ask a name server for names below
/// `localhost`, and for `localhost.` with its trailing dot.
pub(crate) fn is_certainly_local(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(ip) => is_own(IpAddr::V4(*ip)),
        Host::Ipv6(ip) => is_own(IpAddr::V6(*ip)),
    }
}

/// Returns whether this is a loopback address, including an IPv4 address mapped to IPv6.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;

    #[test]
    fn loopback_check_accepts_only_loopback_hosts() {
        // Host, whether it is this machine, and whether that is certain.
        for (host, here, certain) in [
            ("localhost", true, true),
            ("LocalHost", true, true),
            ("127.0.0.1", true, true),
            ("127.8.8.8", true, true),
            ("2130706433", true, true),
            ("[::1]", true, true),
            ("[::ffff:127.0.0.1]", true, true),
            ("localhost.", true, false),
            ("app.localhost", true, false),
            ("a.b.localhost.", true, false),
            ("localhost..", false, false),
            ("localhost.example.com", false, false),
            ("127.0.0.1.example.com", false, false),
            ("notlocalhost", false, false),
            ("0.0.0.0", false, false),
            ("192.0.2.1", false, false),
            ("[::]", false, false),
            ("[::ffff:192.0.2.1]", false, false),
            ("[2001:db8::1]", false, false),
        ] {
            let url = Url::parse(&format!("ws://{host}:7880")).unwrap();
            let host = url.host().unwrap();
            assert_eq!((is_local(&host), is_certainly_local(&host)), (here, certain), "{host}");
        }
    }
}
