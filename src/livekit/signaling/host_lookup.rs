//! Looks up whether a host name leads to this machine, before a proxy is used and before a token is sent unencrypted.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{net::lookup_host, time};
use url::Host;

use crate::net::host::{is_certainly_local, is_own};

/// How long to wait for the addresses of a name. A name without an answer counts as another machine.
const LOOKUP: Duration = Duration::from_secs(2);

/// Returns whether connections to a host stay on this machine. A name other than `localhost` is looked up: some resolvers ask a name
/// server for names below `localhost`, and this machine's own name may lead to loopback.
pub(crate) async fn is_local(host: &Host<&str>) -> bool {
    leads_here_by(host, async |name| Ok(lookup_host((name, 0)).await?.collect())).await
}

async fn leads_here_by(
    host: &Host<&str>,
    look_up: impl AsyncFnOnce(&str) -> io::Result<Vec<SocketAddr>>,
) -> bool {
    match host {
        Host::Domain(name) if !is_certainly_local(host) => {
            let found = time::timeout(LOOKUP, look_up(name)).await;
            // All of them: a connection may use any, and one that leads elsewhere is enough for the token to
            // leave this machine.
            matches!(found, Ok(Ok(found)) if !found.is_empty() && found.iter().all(|it| is_own(it.ip())))
        }
        other => is_certainly_local(other),
    }
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
    async fn name_is_local_if_all_its_addresses_are_loopback() {
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
}
