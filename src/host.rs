//! Whether a host is this machine: asked before a proxy is used, a token travels in the clear, a web page is let in, or
//! a key is used that everybody knows.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use tokio::{net::lookup_host, time};
use url::Host;

/// How long to wait for the addresses of a name. A name without an answer counts as another machine.
const LOOKUP: Duration = Duration::from_secs(2);

/// Whether it is this machine: an address of loopback, `localhost`, or a name below it
/// ([RFC 6761](https://www.rfc-editor.org/rfc/rfc6761#section-6.3) keeps these for it).
pub(crate) fn is_here(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
        address => is_here_for_certain(address),
    }
}

/// Whether it cannot be another machine, whatever answers here for names: some resolvers ask a server of names for
/// what is below `localhost`, and for `localhost.` with its dot.
pub(crate) fn is_here_for_certain(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => name.eq_ignore_ascii_case("localhost"),
        Host::Ipv4(ip) => is_own(IpAddr::V4(*ip)),
        Host::Ipv6(ip) => is_own(IpAddr::V6(*ip)),
    }
}

/// Whether connections to it stay on this machine. A name other than `localhost` is looked up: some resolvers ask a name
/// server for names below `localhost`, and this machine's own name may lead to loopback.
pub(crate) async fn leads_here(host: &Host<&str>) -> bool {
    leads_here_by(host, async |name| Ok(lookup_host((name, 0)).await?.collect())).await
}

async fn leads_here_by(
    host: &Host<&str>,
    look_up: impl AsyncFnOnce(&str) -> io::Result<Vec<SocketAddr>>,
) -> bool {
    match host {
        Host::Domain(name) if !is_here_for_certain(host) => {
            let found = time::timeout(LOOKUP, look_up(name)).await;
            matches!(found, Ok(Ok(found)) if !found.is_empty() && found.iter().all(|it| is_own(it.ip())))
        }
        other => is_here_for_certain(other),
    }
}

/// Whether it is an address of loopback, also where IPv6 carries one of IPv4.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use url::Url;

    use super::*;

    async fn leads(host: &str, found: io::Result<&[&str]>) -> bool {
        let url = Url::parse(&format!("ws://{host}:7880")).unwrap();
        let found = found.map(|all| all.iter().map(|ip| SocketAddr::new(ip.parse().unwrap(), 0)).collect());
        leads_here_by(&url.host().unwrap(), async |_| found).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_leads_here_if_all_of_its_addresses_are_loopback() {
        for name in ["app.localhost", "localhost.", "my-laptop"] {
            assert!(leads(name, Ok(&["127.0.1.1", "::1"])).await, "{name}");
            for elsewhere in [&["192.0.2.1"][..], &["127.0.0.1", "192.0.2.1"], &["2001:db8::1"], &[]] {
                assert!(!leads(name, Ok(elsewhere)).await, "{name} at {elsewhere:?}");
            }
            assert!(!leads(name, Err(io::ErrorKind::NotFound.into())).await, "{name}");
        }
        let unused = || Err(io::ErrorKind::Other.into());
        for (host, here) in [("localhost", true), ("127.0.0.1", true), ("[::1]", true), ("192.0.2.1", false)]
        {
            assert_eq!(leads(host, unused()).await, here, "{host} is not looked up");
        }
        let url = Url::parse("ws://app.localhost").unwrap();
        let host = url.host().unwrap();
        let silent = leads_here_by(&host, async |_| std::future::pending().await);
        assert!(!silent.await, "a name without an answer counts as another machine");
    }

    #[test]
    fn this_machine_and_no_other() {
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
            assert_eq!((is_here(&host), is_here_for_certain(&host)), (here, certain), "{host}");
        }
    }
}
