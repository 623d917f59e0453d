//! Recognizes addresses of the public internet, and holds the certificates that its servers are checked against.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use url::Host;

use crate::net::tls_roots;

/// The metadata service of Azure has an address of the public range: <https://learn.microsoft.com/azure/virtual-network/what-is-ip-address-168-63-129-16>.
const AZURE: Ipv4Addr = Ipv4Addr::new(168, 63, 129, 16);

/// Returns whether an address belongs to the public internet, and not to this machine, a private network or the metadata
/// service of a cloud (169.254.169.254). An IPv6 address that carries an IPv4 address is judged by that one.
///
/// Source: the registries of special addresses, <https://www.iana.org/assignments/iana-ipv4-special-registry> and
/// <https://www.iana.org/assignments/iana-ipv6-special-registry>.
pub(in crate::adapter) fn is_public(ip: IpAddr) -> bool {
    match ip.to_canonical() {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [first, second, third, _] = ip.octets();
    let is_shared = first == 100 && (64..128).contains(&second); // carrier-grade NAT
    let is_test = first == 198 && (18..20).contains(&second); // benchmarks
    let is_reserved = first == 0 || first >= 240 || (first == 192 && second == 0 && third == 0);
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || ip.is_documentation()
        || ip == AZURE
        || is_shared
        || is_test
        || is_reserved)
}

/// Only 2000::/3 is assigned to the internet. The rest is this machine, local, multicast or unassigned.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let carried =
        |high: u16, low: u16| is_public_v4(Ipv4Addr::from((u32::from(high) << 16) | u32::from(low)));
    match ip.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => carried(high, low), // NAT64, 6to4
        [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] => false, // Teredo and other protocols, documentation
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

/// Returns whether a host name stands for this machine (RFC 6761).
pub(in crate::adapter) fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
}

/// Returns whether a host is this machine, by its name or its address.
pub(in crate::adapter) fn is_this_machine(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => is_localhost(name),
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.to_canonical().is_loopback(),
    }
}

/// Returns the settings of TLS: the certificates that the operating system trusts, and `ring`.
pub(in crate::adapter) fn tls() -> Result<rustls::ClientConfig, rustls::Error> {
    let config =
        rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(tls_roots::of_the_system()).with_no_client_auth())
}

/// Runs a test again, in a process of its own whose variables name this proxy. Returns whether it passed.
#[cfg(test)]
pub(in crate::adapter) fn passes_with_proxy(test: &str, proxy: &str) -> bool {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env(PROXY, proxy);
    command.envs(["http_proxy", "https_proxy", "all_proxy"].map(|name| (name, proxy))).env_remove("no_proxy");
    let output = command.stdin(std::process::Stdio::null()).output().unwrap();
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

/// The proxy of a test that runs again.
#[cfg(test)]
pub(in crate::adapter) const PROXY: &str = "TOOLBRIDGE_TEST_PROXY";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sec_a2_private_and_metadata_addresses_are_not_public() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "100.64.0.1",
            "192.0.0.192",
            "198.18.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fec0::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:169.254.169.254",
            "::ffff:10.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:7f00:1::",
            "2001:0:7f00:1::1",
            "2001:db8::1",
            "::127.0.0.1",
            "::169.254.169.254",
            "::ffff:0:127.0.0.1",
        ] {
            assert!(!is_public(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "8.8.8.8", "2606:4700:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"] {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn sec_a2_names_of_this_machine_are_known() {
        for name in ["localhost", "LOCALHOST", "localhost.", "app.localhost", "app.localhost."] {
            assert!(is_localhost(name), "{name}");
        }
        for name in ["localhost.example.com", "notlocalhost", ""] {
            assert!(!is_localhost(name), "{name}");
        }
    }
}
