//! Addresses of servers: which may be used, and which a name may stand for.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

/// Why an address cannot be used. It names the host alone.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum AddressError {
    #[error("{0:?} is not a URL; an MCP server has one such as https://mcp.example.com/mcp")]
    Invalid(String),
    #[error("{0} is reached by plain http, which anybody on the path can read; use https")]
    Plain(String),
    #[error("the URL of {0} contains a user name or a password; set a bearer token with `bearer_env`")]
    Credentials(String),
}

/// The address of a server.
#[derive(Clone, Debug)]
pub(super) struct Address {
    url: Url,
    host: String,
    /// Whether the host is an address, or this machine: the user has named it, so it may be private.
    is_literal: bool,
    is_local: bool,
}

impl Address {
    /// Reads an address: `https`, or `http` of this machine.
    pub(super) fn read(text: &str) -> Result<Self, AddressError> {
        let url = Url::parse(text).map_err(|_| AddressError::Invalid(shown(text)))?;
        let Some(host) = url.host() else { return Err(AddressError::Invalid(shown(text))) };
        let (is_literal, is_local) = match host {
            Host::Domain(name) => (is_localhost(name), is_localhost(name)),
            Host::Ipv4(ip) => (true, ip.is_loopback()),
            Host::Ipv6(ip) => (true, ip.is_loopback()),
        };
        let host = host.to_string();
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressError::Credentials(host));
        }
        match url.scheme() {
            "https" => {}
            "http" if is_local => {}
            "http" => return Err(AddressError::Plain(host)),
            _ => return Err(AddressError::Invalid(shown(text))),
        }
        Ok(Self { url, host, is_literal, is_local })
    }

    pub(super) fn url(&self) -> &str {
        self.url.as_str()
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Whether the server is on this machine, so that no proxy may get its requests.
    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// Returns what resolves the host's name. Each connection uses it, so a name that first stands for a public address
    /// and then for a private one (DNS rebinding) is refused as well. An HTTPS proxy resolves names itself.
    pub(super) fn resolver(&self) -> Resolver {
        Resolver { may_be_private: self.is_literal }
    }
}

/// Returns what stands before the first `?`: a query may hold secrets.
fn shown(text: &str) -> String {
    text.split(['?', '#']).next().unwrap_or_default().chars().take(100).collect()
}

fn is_localhost(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
}

/// Resolves names, except to addresses of private networks and of this machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resolver {
    may_be_private: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let may_be_private = self.may_be_private;
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed = allowed(name.as_str(), found, may_be_private)?;
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

/// Returns the addresses of a name that may be used.
fn allowed(name: &str, mut found: Vec<SocketAddr>, may_be_private: bool) -> io::Result<Vec<SocketAddr>> {
    found.retain(|it| may_be_private || is_public(it.ip()));
    if found.is_empty() {
        let text = format!(
            "{name} is an address of a private network; use the address in place of the name if that is meant"
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(found)
}

/// Returns whether an address belongs to the public internet, and not to this machine, a private network or the metadata
/// service of a cloud (169.254.169.254).
fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => {
            let segments = ip.segments();
            let embedded = match segments {
                // NAT64 and 6to4 carry an IPv4 address.
                [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
                    Some(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)))
                }
                _ => None,
            };
            let is_special = ip.is_loopback()
                || ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_unique_local()
                || ip.is_unicast_link_local()
                || segments[..6] == [0; 6];
            !is_special && embedded.is_none_or(is_public_v4)
        }
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [first, second, ..] = ip.octets();
    let is_shared = first == 100 && (64..128).contains(&second); // carrier-grade NAT
    let is_reserved = first == 0 || first >= 240 || (first == 192 && second == 0 && ip.octets()[2] == 0);
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || is_shared
        || is_reserved)
}

/// Returns the settings of TLS: the certificates that the operating system trusts, and `ring`.
pub(super) fn tls() -> Result<rustls::ClientConfig, rustls::Error> {
    let mut roots = rustls::RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_is_for_this_machine_alone() {
        for good in [
            "https://mcp.example.com/mcp",
            "http://localhost:8080/mcp",
            "http://127.0.0.1:1/",
            "http://[::1]/",
            "https://10.0.0.7/",
        ] {
            assert!(Address::read(good).is_ok(), "{good}");
        }
        let refused = |text| Address::read(text).unwrap_err().to_string();
        assert!(refused("http://mcp.example.com/?key=hunter2").contains("use https"));
        assert!(refused("http://10.0.0.7/").contains("use https"));
        assert!(refused("https://me:hunter2@mcp.example.com/").contains("user name"));
        for bad in ["mcp.example.com", "ftp://x", "file:///etc/passwd?hunter2", ""] {
            assert!(refused(bad).contains("is not a URL"), "{bad}");
        }
        for secret in [
            "http://mcp.example.com/?key=hunter2",
            "https://me:hunter2@mcp.example.com/",
            "file:///x?hunter2",
        ] {
            assert!(!refused(secret).contains("hunter2"), "{secret}");
        }
    }

    #[test]
    fn sec_a2_private_and_metadata_addresses_are_not_public() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "::127.0.0.1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:1.1.1.1"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn sec_a2_name_that_stands_for_another_address_each_time_leads_to_public_ones_only() {
        let resolved = |addresses: &[&str]| {
            let found = addresses.iter().map(|it| SocketAddr::new(it.parse().unwrap(), 443)).collect();
            allowed("mcp.example.com", found, false).map(|it| it[0].ip().to_string()).ok()
        };
        assert_eq!(resolved(&["1.1.1.1"]).as_deref(), Some("1.1.1.1"));
        assert_eq!(resolved(&["169.254.169.254", "1.1.1.1"]).as_deref(), Some("1.1.1.1"));
        for rebound in ["127.0.0.1", "::ffff:169.254.169.254", "fe80::1", "10.0.0.1"] {
            assert_eq!(resolved(&[rebound]), None, "{rebound}");
        }
        assert_eq!(resolved(&[]), None);
    }

    #[tokio::test]
    async fn sec_a2_name_of_a_private_address_is_refused() {
        let resolve =
            |address: &str| Address::read(address).unwrap().resolver().resolve("localhost".parse().unwrap());
        let refused = resolve("https://mcp.example.com/").await.err().unwrap().to_string();
        assert!(refused.contains("private network"), "{refused}");
        assert!(resolve("http://localhost/").await.is_ok());
    }
}
