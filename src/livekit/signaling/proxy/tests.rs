use tokio::io::duplex;

use super::*;

const LIMIT: Duration = Duration::from_secs(5);

fn named(environment: &[(&str, &str)], url: &str) -> Result<Option<Proxy>, ProxyError> {
    let lookup = |name: &str| environment.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
    let url = Url::parse(url).unwrap();
    // As if every name below `localhost` resolved to loopback.
    let is_here = url.host().is_none_or(|host| host::is_local(&host));
    Proxy::named_in(lookup, &url, is_here)
}

fn shown(environment: &[(&str, &str)], url: &str) -> String {
    named(environment, url).unwrap().map_or_else(|| "none".into(), |proxy| proxy.to_string())
}

#[test]
fn scheme_has_its_variable_and_lower_case_takes_precedence() {
    let all = [
        ("http_proxy", "http://a:1"),
        ("HTTP_PROXY", "http://b:2"),
        ("https_proxy", "http://c:3"),
        ("HTTPS_PROXY", "http://d:4"),
        ("all_proxy", "http://e:5"),
        ("ALL_PROXY", "http://f:6"),
    ];
    let mut expected = [
        ("ws://example.com", ["a:1 (http_proxy)", "b:2 (HTTP_PROXY)"]),
        ("wss://example.com", ["c:3 (https_proxy)", "d:4 (HTTPS_PROXY)"]),
    ];
    for (url, [small, capital]) in &mut expected {
        assert_eq!(shown(&all, url), *small);
        let without = |names: &[&str]| -> Vec<_> {
            all.iter().copied().filter(|(name, _)| !names.contains(name)).collect()
        };
        assert_eq!(shown(&without(&["http_proxy", "https_proxy"]), url), *capital);
        let last = without(&["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"]);
        assert_eq!(shown(&last, url), "e:5 (all_proxy)");
        assert_eq!(shown(&last[1..], url), "f:6 (ALL_PROXY)");
    }
    assert_eq!(shown(&[], "wss://example.com"), "none");
    assert_eq!(shown(&[("https_proxy", " "), ("ALL_PROXY", "e:5")], "wss://example.com"), "e:5 (ALL_PROXY)");
}

#[test]
fn name_below_localhost_that_resolves_elsewhere_uses_the_proxy() {
    let environment = |name: &str| (name == "all_proxy").then(|| "http://proxy:1".into());
    let url = Url::parse("ws://app.localhost:7880").unwrap();
    assert!(Proxy::named_in(environment, &url, true).unwrap().is_none());
    assert!(Proxy::named_in(environment, &url, false).unwrap().is_some());
}

#[test]
fn cgi_header_is_not_used_as_a_variable() {
    let cgi = [("HTTP_PROXY", "http://evil:1"), ("REQUEST_METHOD", "GET")];
    assert_eq!(shown(&cgi, "ws://example.com"), "none");
    assert_eq!(shown(&cgi[..1], "ws://example.com"), "evil:1 (HTTP_PROXY)");
}

#[cfg(unix)]
#[test]
fn unreadable_variable_is_an_error_and_no_direct_connection_is_made() {
    use std::os::unix::ffi::OsStringExt as _;

    let bytes = || OsString::from_vec(b"http://proxy\xff:1".to_vec());
    let url = |text: &str| Url::parse(text).unwrap();
    for variable in ["https_proxy", "HTTPS_PROXY", "ALL_PROXY"] {
        let lookup = |name: &str| (name == variable).then(bytes);
        let error = Proxy::named_in(lookup, &url("wss://example.com"), false).unwrap_err();
        assert_eq!((&*error.proxy, error.source.to_string().as_str()), (variable, "its value is not UTF-8"));
        assert!(Proxy::named_in(lookup, &url("ws://localhost"), true).unwrap().is_none(), "nobody looks");
    }
    let lookup = |name: &str| match name {
        "https_proxy" => Some("http://proxy:1".into()),
        "NO_PROXY" => Some(bytes()),
        _ => None,
    };
    let error = Proxy::named_in(lookup, &url("wss://example.com"), false).unwrap_err();
    assert_eq!(error.proxy, "NO_PROXY");
    // An unused variable does not matter.
    assert!(Proxy::named_in(lookup, &url("ws://example.com"), false).unwrap().is_none());
    let both = |name: &str| match name {
        "https_proxy" => Some("http://proxy:1".into()),
        "HTTPS_PROXY" => Some(bytes()),
        _ => None,
    };
    assert!(Proxy::named_in(both, &url("wss://example.com"), false).unwrap().is_some());
}

#[test]
fn this_machine_is_reached_without_a_proxy() {
    let all = [("ALL_PROXY", "http://p:1")];
    for here in [
        "ws://localhost:7880",
        "ws://a.localhost",
        "wss://127.0.0.1",
        "ws://127.8.8.8",
        "ws://[::1]:1",
        "ws://[::ffff:127.0.0.1]",
    ] {
        assert_eq!(shown(&all, here), "none", "{here}");
    }
    for away in ["ws://localhost.example.com", "wss://192.0.2.1", "ws://[2001:db8::1]"] {
        assert_eq!(shown(&all, away), "p:1 (ALL_PROXY)", "{away}");
    }
}

#[test]
fn excluded_host_is_reached_without_a_proxy() {
    let proxied = [("ALL_PROXY", "http://p:1"), ("NO_PROXY", "intern.example, 10.0.0.0/8")];
    assert_eq!(shown(&proxied, "wss://sfu.intern.example"), "none");
    assert_eq!(shown(&proxied, "ws://10.1.2.3:7880"), "none");
    assert_eq!(shown(&proxied, "wss://sfu.example"), "p:1 (ALL_PROXY)");
    let both = [proxied[0], proxied[1], ("no_proxy", "*")];
    assert_eq!(shown(&both, "wss://sfu.example"), "none", "small letters go first");
}

#[test]
fn proxy_address_may_lack_scheme_and_port() {
    for (value, address) in [
        ("proxy:3128", "proxy:3128"),
        ("http://proxy", "proxy:80"),
        ("https://proxy", "proxy:443"),
        ("http://user:pw@proxy:8080/", "proxy:8080"),
        ("http://[2001:db8::1]:3128", "[2001:db8::1]:3128"),
    ] {
        assert_eq!(shown(&[("ALL_PROXY", value)], "ws://a.example"), format!("{address} (ALL_PROXY)"));
    }
}

#[test]
fn unsupported_proxy_is_named_without_its_credentials() {
    for value in [
        "socks5://user:hunter2@proxy:1080",
        "http://user:hunter2@",
        "http://user:hunter2@proxy:99999",
        "http://",
    ] {
        let error = named(&[("https_proxy", value)], "wss://example.com").unwrap_err();
        assert_eq!(error.proxy, "https_proxy");
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    let proxy = named(&[("ALL_PROXY", "http://user:hunter2@proxy")], "ws://a.example").unwrap().unwrap();
    assert!(!format!("{proxy} {proxy:?}").contains("hunter2"));
}

#[test]
fn credentials_are_decoded_and_sent_as_basic() {
    for (value, plain) in [
        ("http://user:p%40ss%20%25@proxy", Some("user:p@ss %")),
        ("http://user@proxy", Some("user:")),
        ("http://:pw@proxy", Some(":pw")),
        ("http://a%zz:b%4@proxy", Some("a%zz:b%4")),
        ("http://proxy", None),
    ] {
        let url = "wss://sfu.example.com";
        let proxy = named(&[("ALL_PROXY", value)], url).unwrap().unwrap();
        let request = proxy.request(&Url::parse(url).unwrap());
        assert!(request.starts_with("CONNECT sfu.example.com:443 HTTP/1.1\r\nHost: sfu.example.com:443\r\n"));
        assert!(request.ends_with("\r\n\r\n"));
        let sent = request.lines().find_map(|line| line.strip_prefix("Proxy-Authorization: Basic "));
        assert_eq!(sent.map(str::to_owned), plain.map(|plain| STANDARD.encode(plain)), "{value}");
    }
}

/// The result of a proxy that sends this response and then waits, or closes.
async fn answered(answer: &[u8], ends: bool) -> Result<(), ProxyError> {
    let url = "wss://sfu.example.com";
    let proxy = named(&[("ALL_PROXY", "http://user:hunter2@proxy:3128")], url).unwrap().unwrap();
    let (mut ours, mut theirs) = duplex(64 * 1024);
    theirs.write_all(answer).await.unwrap();
    if ends {
        theirs.shutdown().await.unwrap();
    }
    let result = proxy.open(&mut ours, &Url::parse(url).unwrap(), LIMIT).await;
    if let Err(error) = &result {
        assert_eq!(error.proxy, "proxy:3128 (ALL_PROXY)");
        assert!(!error.source.to_string().contains("hunter2"));
    }
    result
}

#[tokio::test(start_paused = true)]
async fn only_a_success_status_opens_the_tunnel() {
    for open in [
        "HTTP/1.1 200 Connection established\r\n\r\n",
        "HTTP/1.0 200\r\nVia: x\r\n\r\n",
        "HTTP/1.1 204 x\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200\r\n\r\n",
    ] {
        assert!(answered(open.as_bytes(), false).await.is_ok(), "{open}");
    }
    for (answer, reason) in [
        (
            "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 3\r\n\r\nabc",
            "it demands credentials, or refuses those in the variable (407)",
        ),
        (
            "HTTP/1.1 407 not Basic hunter2\r\n\r\n",
            "it demands credentials, or refuses those in the variable (407)",
        ),
        ("HTTP/1.1 502\r\n\r\n", "it does not reach the server (502)"),
        ("HTTP/1.1 403 200 \u{1b}[31mno\r\n\r\n", "it does not allow this server (403)"),
        ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 418 no\r\n\r\n", "it refused with status 418"),
        ("SSH-2.0-OpenSSH\r\n\r\n", "it is not an HTTP proxy"),
        ("HTTP/1.1 x\r\n\r\n", "it is not an HTTP proxy"),
        ("HTTP/1.1 200 OK\r\n\r\nmore", "it sent data before the tunnel was used"),
    ] {
        assert_eq!(
            answered(answer.as_bytes(), false).await.unwrap_err().source.to_string(),
            reason,
            "{answer}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn proxy_response_is_bounded() {
    assert!(answered(b"", true).await.unwrap_err().source.to_string().contains("closed the connection"));
    assert!(answered(b"HTTP/1.1 200 OK\r\n", true).await.unwrap_err().source.to_string().contains("closed"));
    assert!(
        answered(b"HTTP/1.1 200 OK\r\n", false).await.unwrap_err().source.to_string().contains("within 5 s")
    );
    let endless = [b"HTTP/1.1 200 OK\r\n".as_slice(), &vec![b'x'; 2 * MAX_HEAD]].concat();
    assert!(answered(&endless, false).await.unwrap_err().source.to_string().contains("longer than 16384"));
}
