//! Matches the `no_proxy` list: hosts that are reached without a proxy.

use std::net::IpAddr;

use url::Host;

/// Names, addresses and networks, separated by commas or spaces; `*` matches everything.
pub(super) struct NoProxy<'a>(pub(super) &'a str);

impl NoProxy<'_> {
    /// Returns whether the list contains this host at this port.
    pub(super) fn hold(&self, host: &Host<&str>, port: u16) -> bool {
        self.0.split([',', ' ', '\t']).filter(|it| !it.is_empty()).any(|entry| matches(entry, host, port))
    }
}

fn matches(entry: &str, host: &Host<&str>, port: u16) -> bool {
    if entry == "*" {
        return true;
    }
    let (entry, wanted) = without_port(entry);
    if wanted.is_some_and(|wanted| wanted != port) {
        return false;
    }
    match host {
        Host::Domain(name) => is_or_ends_with(name, entry),
        Host::Ipv4(ip) => holds(entry, IpAddr::V4(*ip)),
        Host::Ipv6(ip) => holds(entry, IpAddr::V6(*ip)),
    }
}

/// Splits off the port that an entry may have: `host:7880`, `[::1]:7880`.
fn without_port(entry: &str) -> (&str, Option<u16>) {
    match entry.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => match port.parse() {
            Ok(port) => (host, Some(port)),
            Err(_) => (entry, None),
        },
        _ => (entry, None),
    }
}

/// Matches a name: `example.com` and `.example.com` mean that name and all names below it.
fn is_or_ends_with(name: &str, entry: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    let entry = entry.trim_start_matches("*.").trim_matches('.').to_ascii_lowercase();
    if entry.is_empty() {
        return false;
    }
    name.strip_suffix(&entry).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Matches an address, or a network such as `192.0.2.0/24`.
fn holds(entry: &str, ip: IpAddr) -> bool {
    let (base, length) = match entry.split_once('/') {
        Some((base, length)) => (base, length.parse::<u32>().ok()),
        None => (entry, Some(u32::MAX)),
    };
    let Ok(base) = base.trim_matches(['[', ']']).parse::<IpAddr>() else { return false };
    // The prefix of an IPv4 address inside an IPv6 address counts from the start of the whole address.
    let before = if base.is_ipv6() && base.to_canonical().is_ipv4() { 96 } else { 0 };
    let (base, ip, bits) = match (base.to_canonical(), ip.to_canonical()) {
        (IpAddr::V4(base), IpAddr::V4(ip)) => (u128::from(base.to_bits()), u128::from(ip.to_bits()), 32),
        (IpAddr::V6(base), IpAddr::V6(ip)) => (base.to_bits(), ip.to_bits(), 128),
        _ => return false,
    };
    let Some(length) = length else { return false };
    let rest = bits - length.saturating_sub(before).min(bits);
    // A shift by all 128 bits would overflow.
    rest >= bits || base >> rest == ip >> rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(list: &str, url: &str) -> bool {
        let url = url::Url::parse(url).unwrap();
        NoProxy(list).hold(&url.host().unwrap(), url.port_or_known_default().unwrap())
    }

    #[test]
    fn name_matches_itself_and_names_below_it() {
        for list in
            ["example.com", ".example.com", "*.example.com", "other, EXAMPLE.com.", "other example.com", "*"]
        {
            assert!(held(list, "wss://example.com"), "{list}");
            assert!(held(list, "wss://sfu.example.com:7880"), "{list}");
        }
        for list in ["", "ample.com", "com.example", "sfu.example.org", ".", "*.", ",", "example"] {
            assert!(!held(list, "wss://example.com"), "{list}");
        }
    }

    #[test]
    fn addresses_and_networks_are_matched() {
        for list in ["192.0.2.7", "192.0.2.0/24", "10.0.0.0/8,192.0.0.0/16", "0.0.0.0/0", "192.0.2.7/32"] {
            assert!(held(list, "wss://192.0.2.7"), "{list}");
        }
        for list in ["192.0.2.8", "192.0.3.0/24", "192.0.2.7/x", "2.7", "::/0", "192.0.2.0/"] {
            assert!(!held(list, "wss://192.0.2.7"), "{list}");
        }
        assert!(held("2001:db8::/32", "wss://[2001:db8::7]"));
        assert!(held("[2001:db8::7]", "wss://[2001:db8::7]"));
        assert!(held("::/0", "wss://[2001:db8::7]"));
        assert!(!held("2001:db9::/32", "wss://[2001:db8::7]"));
    }

    #[test]
    fn ipv4_mapped_address_matches_its_ipv4_entry() {
        for list in ["::ffff:192.0.2.7", "::ffff:192.0.2.7/128", "::ffff:192.0.2.0/120", "::ffff:0.0.0.0/96"]
        {
            assert!(held(list, "wss://192.0.2.7"), "{list}");
            assert!(held(list, "wss://[::ffff:192.0.2.7]"), "{list}");
        }
        for list in ["::ffff:192.0.2.8", "::ffff:192.0.3.0/120", "::ffff:192.0.2.7/x"] {
            assert!(!held(list, "wss://192.0.2.7"), "{list}");
        }
        assert!(held("192.0.2.0/24", "wss://[::ffff:192.0.2.7]"));
        assert!(!held("::ffff:0.0.0.0/96", "wss://[2001:db8::7]"));
    }

    #[test]
    fn entry_may_contain_a_port() {
        assert!(held("example.com:7880", "ws://example.com:7880"));
        assert!(!held("example.com:7880", "ws://example.com:7881"));
        assert!(held("[2001:db8::7]:7880", "ws://[2001:db8::7]:7880"));
        assert!(!held("[2001:db8::7]:7881", "ws://[2001:db8::7]:7880"));
        assert!(held("192.0.2.0/24:80", "ws://192.0.2.1"));
    }
}
