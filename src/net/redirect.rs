//! Describes where an HTTP answer redirects to, without a path: it may hold a secret.

use url::Url;

/// Describes how the target of a redirect differs from the address that was asked.
pub(crate) fn describe(asked: &Url, location: &str) -> String {
    let Some(to) = asked.join(location).ok().filter(Url::has_host) else {
        return "another address".to_owned();
    };
    let host = to.host_str().unwrap_or_default();
    let port = to.port().map(|port| format!(":{port}")).unwrap_or_default();
    if to.host_str() != asked.host_str() || to.port_or_known_default() != asked.port_or_known_default() {
        let is_other_host = to.host_str() != asked.host_str();
        return if is_other_host {
            format!("{host}{port}")
        } else {
            format!("{}://{host}{port}", to.scheme())
        };
    }
    let (asked, to) = (asked.path(), to.path());
    let text = if to.strip_suffix('/') == Some(asked) {
        "the same path with a slash at its end"
    } else if asked.strip_suffix('/') == Some(to) {
        "the same path without the slash at its end"
    } else {
        "another path of the same host"
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_is_described_by_what_differs() {
        let asked = Url::parse("http://tools.example/hunter2/mcp").unwrap();
        for (location, said) in [
            ("https://tools.example/hunter2/mcp", "https://tools.example"),
            ("http://tools.example:8080/hunter2/mcp", "http://tools.example:8080"),
            ("//other.example/mcp", "other.example"),
            ("https://other.example:8443/", "other.example:8443"),
            ("/hunter2/mcp/", "the same path with a slash at its end"),
            ("mcp/", "the same path with a slash at its end"),
            ("/hunter2/login?token=hunter2", "another path of the same host"),
            ("http://", "another address"),
        ] {
            let text = describe(&asked, location);
            assert_eq!(text, said, "{location}");
            assert!(!text.contains("hunter2"), "{text}");
        }
        let asked = Url::parse("https://tools.example/mcp/").unwrap();
        assert_eq!(describe(&asked, "/mcp"), "the same path without the slash at its end");
        let asked = Url::parse("wss://sfu.example/rtc").unwrap();
        assert_eq!(describe(&asked, "https://sfu.example/"), "another path of the same host");
    }
}
