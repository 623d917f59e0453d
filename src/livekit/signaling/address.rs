//! Checks the server's URL, as the user gives it.

use std::fmt;

use url::Url;

use super::{host_lookup, proxy::Proxy};
use crate::{livekit::error::ConnectError, net::host};

/// How every token begins: the base64 of `{"`.
const TOKEN_START: &str = "eyJ";

/// The longest part of a host's name, in bytes (RFC 1035). A secret is often longer.
const MAX_LABEL: usize = 63;

/// A validated URL: `ws`, `wss`, `http` or `https`, without credentials and without a query.
#[derive(Clone)]
pub(crate) struct ServerUrl {
    host: String,
    port: u16,
    url: Url,
}

impl ServerUrl {
    /// Parses a URL.
    pub(crate) fn parse(text: &str) -> Result<Self, ConnectError> {
        let refuse = |text: String| ConnectError::Url { source: text.into() };
        // Whoever swaps the two must not find the token in a log: neither as a host nor as a suggestion.
        if text.contains(TOKEN_START) {
            return Err(refuse(
                "it contains a token; pass the address first, and the token separately".into(),
            ));
        }
        if text.trim().is_empty() {
            return Err(refuse("it is empty".into()));
        }
        if let Some(meant) = without_scheme(text.trim()) {
            return Err(refuse(format!("it has no scheme (did you mean {meant}?)")));
        }
        let mut url = Url::parse(text.trim()).map_err(|error| ConnectError::Url { source: error.into() })?;
        if !matches!(url.scheme(), "ws" | "wss" | "http" | "https") {
            return Err(refuse(format!("the scheme `{}` is not `ws` or `wss`", url.scheme())));
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned) else {
            return Err(refuse("it has no host".into()));
        };
        if host.split('.').any(|label| label.len() > MAX_LABEL) {
            return Err(refuse("its host is longer than a host can be".into()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(refuse("it contains a user name or password; LiveKit uses a token instead".into()));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(refuse("it contains a query or fragment; pass the token separately".into()));
        }
        // Otherwise the path of a request would have two slashes in a row, which web servers answer with 404.
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        let port = url.port_or_known_default().unwrap_or(443);
        Ok(Self { host, port, url })
    }

    /// Returns whether the token would leave this machine unencrypted. A proxy can read it too, wherever it runs.
    pub(crate) async fn is_exposed(&self) -> bool {
        if !matches!(self.url.scheme(), "ws" | "http") {
            return false;
        }
        let is_proxied = !matches!(Proxy::of_environment(&self.url).await, Ok(None));
        match self.url.host() {
            Some(host) => is_proxied || !host_lookup::is_local(&host).await,
            None => false,
        }
    }

    /// Returns the whole URL with a WebSocket's scheme.
    pub(crate) fn websocket_url(&self) -> Url {
        let mut url = self.url.clone();
        let scheme = if matches!(url.scheme(), "wss" | "https") { "wss" } else { "ws" };
        // A change between these four schemes does not fail.
        let _ = url.set_scheme(scheme);
        url
    }

    /// Returns the whole URL, as it was given.
    pub(crate) fn into_url(self) -> Url {
        self.url
    }

    /// Returns the text of the whole URL.
    #[cfg(test)]
    pub(crate) fn as_str(&self) -> &str {
        self.url.as_str()
    }
}

/// Guesses the URL that a host, or host and port, without a scheme means. Parts that may contain a secret are not
/// repeated.
fn without_scheme(text: &str) -> Option<String> {
    if text.is_empty() || text.contains("://") {
        return None;
    }
    // The colon or a slash of a scheme is missing.
    let typed = ["wss", "ws", "https", "http"];
    let rest = typed.iter().find_map(|it| text.strip_prefix(it)?.strip_prefix([':', '/']));
    let is_port = |rest: &str| rest.starts_with(|it: char| it.is_ascii_digit());
    let text = rest.filter(|rest| !is_port(rest)).map_or(text, |rest| rest.trim_start_matches([':', '/']));
    let url = Url::parse(&format!("http://{text}")).ok();
    let shown = url.as_ref().filter(|url| {
        url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && text.split(['.', ':', '/']).all(|part| part.len() <= MAX_LABEL)
    });
    let Some(host) = shown.and_then(Url::host) else { return Some("wss://HOST".into()) };
    let scheme = if host::is_local(&host) { "ws" } else { "wss" };
    Some(format!("{scheme}://{text}"))
}

/// Host and port: the part that may be shown and logged.
impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        match ServerUrl::parse(text) {
            Err(error) => error.to_string(),
            Ok(url) => panic!("{} was taken", url.as_str()),
        }
    }

    #[test]
    fn host_and_port_are_shown() {
        assert_eq!(ServerUrl::parse("ws://127.0.0.1:7880").unwrap().to_string(), "127.0.0.1:7880");
        assert_eq!(
            ServerUrl::parse(" wss://sfu.example.com/lk ").unwrap().to_string(),
            "sfu.example.com:443"
        );
        assert_eq!(ServerUrl::parse("ws://[::1]").unwrap().to_string(), "[::1]:80");
    }

    #[test]
    fn slashes_at_the_end_of_the_path_make_no_difference() {
        for (text, url) in [
            ("wss://sfu.example.com/lk/sfu/", "wss://sfu.example.com/lk/sfu"),
            ("wss://sfu.example.com/lk//", "wss://sfu.example.com/lk"),
            ("wss://sfu.example.com/lk", "wss://sfu.example.com/lk"),
            ("ws://127.0.0.1:7880//", "ws://127.0.0.1:7880/"),
            ("ws://127.0.0.1:7880", "ws://127.0.0.1:7880/"),
        ] {
            assert_eq!(ServerUrl::parse(text).unwrap().as_str(), url);
        }
    }

    #[tokio::test]
    async fn unencrypted_connection_beyond_this_machine_is_detected() {
        for (text, exposed) in [
            ("ws://127.0.0.1:7880", false),
            ("ws://[::1]:7880", false),
            ("http://localhost", false),
            ("ws://[::ffff:127.0.0.1]", false),
            ("ws://localhost.invalid", true),
            ("wss://sfu.example.com", false),
            ("ws://sfu.invalid", true),
            ("http://192.0.2.1", true),
        ] {
            assert_eq!(ServerUrl::parse(text).unwrap().is_exposed().await, exposed, "{text}");
        }
    }

    #[test]
    fn address_without_a_scheme_is_refused_with_a_suggestion() {
        for (text, meant) in [
            ("localhost:7880", "did you mean ws://localhost:7880?"),
            (" 127.0.0.1:7880 ", "did you mean ws://127.0.0.1:7880?"),
            ("[::1]:7880", "did you mean ws://[::1]:7880?"),
            ("sfu.example.com", "did you mean wss://sfu.example.com?"),
            ("sfu.example.com:443/lk", "did you mean wss://sfu.example.com:443/lk?"),
            ("wss:/sfu.example.com", "did you mean wss://sfu.example.com?"),
            ("wss:sfu.example.com", "did you mean wss://sfu.example.com?"),
            ("ws//localhost:7880", "did you mean ws://localhost:7880?"),
            ("https:", "did you mean wss://HOST?"),
            ("ws:7880", "did you mean wss://ws:7880?"),
            ("user:hunter2@sfu.example.com", "did you mean wss://HOST?"),
            ("sfu.example.com/?access_token=hunter2", "did you mean wss://HOST?"),
        ] {
            let refused = refused(text);
            assert!(refused.contains("it has no scheme") && refused.contains(meant), "{refused}");
            assert!(!refused.contains("hunter2"), "{refused}");
        }
    }

    #[test]
    fn invalid_address_is_refused_without_repeating_it() {
        for text in [
            "",
            "localhost:7880",
            "ftp://x",
            "ws://",
            "wss://user:hunter2@x",
            "wss://x/?access_token=hunter2",
        ] {
            assert!(!refused(text).contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn token_in_place_of_the_address_is_refused_without_repeating_it() {
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJwaG9uZSJ9.hunter2";
        for text in [token.to_owned(), format!("wss://{token}"), format!("wss://sfu.example.com/{token}")] {
            let refused = refused(&text);
            assert!(refused.contains("it contains a token; pass the address first"), "{refused}");
            assert!(!refused.contains("hunter2") && !refused.contains("eyJ"), "{refused}");
        }
        let secret = "a".repeat(64);
        for text in [
            secret.clone(),
            format!("x.{secret}.c"),
            format!("sfu.example.com/{secret}"),
            format!("wss://{secret}"),
        ] {
            assert!(!refused(&text).contains(&secret), "{}", refused(&text));
        }
        assert!(refused(" ").contains("it is empty"));
    }
}
