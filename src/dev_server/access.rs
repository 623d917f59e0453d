//! Decides which requests the server accepts, by the host that they are addressed to and by the page that they come from.
//!
//! The server's key can be the public one of `livekit-server --dev`, so a token proves nothing. Without these checks each web
//! page that a developer opens could join the rooms and call their tools, directly or by DNS rebinding.

use url::{Host, Url};

use super::{http::Request, limits::Refusal};
use crate::net::host;

/// The maximum number of characters of a host or an origin that a warning shows.
const SHOWN: usize = 128;

const FOREIGN_HOST: Refusal = Refusal(
    403,
    "this development server accepts only host names of this machine; allow others with --allow-host",
);
const FOREIGN_PAGE: Refusal = Refusal(
    403,
    "this development server accepts only web pages of this machine; allow others with --allow-origin and their origin",
);

/// What is accepted in addition to this machine and its pages.
#[derive(Debug, Default)]
pub(super) struct Access {
    pub(super) hosts: Vec<String>,
    pub(super) origins: Vec<String>,
}

/// A request that is not accepted.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) refusal: Refusal,
    /// What the developer should know of it.
    pub(super) warning: String,
}

impl Access {
    /// Checks a request. Returns the origin of the page that sent it, if a page did.
    ///
    /// # Errors
    /// The host or the origin is not accepted.
    pub(super) fn check<'a>(&self, request: &'a Request) -> Result<Option<&'a str>, Denied> {
        let host = request.header("host").unwrap_or_default();
        if !self.is_here(host) {
            let warning = format!(
                "a request to the host {:?} was refused; if that is this machine, start the server with --allow-host",
                shown(host)
            );
            return Err(Denied { refusal: FOREIGN_HOST, warning });
        }
        let Some(origin) = request.header("origin") else { return Ok(None) };
        if !self.accepts_page(origin) {
            let warning = format!(
                "a page of the origin {:?} was refused; if that is your app, start the server with --allow-origin and this origin",
                shown(origin)
            );
            return Err(Denied { refusal: FOREIGN_PAGE, warning });
        }
        Ok(Some(origin))
    }

    /// Returns whether an authority, a host with or without a port, is this machine or an allowed name. This protects against
    /// DNS rebinding, where a foreign name resolves to this machine so that a foreign web page can use the server.
    fn is_here(&self, authority: &str) -> bool {
        // A parser of URLs takes more than a host and a port, such as `evil@127.0.0.1`.
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let url = Url::parse(&format!("http://{authority}")).ok().filter(|_| authority.chars().all(is_plain));
        let Some(host) = url.as_ref().and_then(Url::host) else { return false };
        host::is_local(&host) || self.names(&host)
    }

    fn names(&self, host: &Host<&str>) -> bool {
        self.hosts.iter().any(|name| name.eq_ignore_ascii_case(&host.to_string()))
    }

    /// Returns whether pages of this origin may use the server.
    fn accepts_page(&self, origin: &str) -> bool {
        let here = origin.split_once("://").is_some_and(|(_, authority)| self.is_here(authority));
        here || self.origins.iter().any(|allowed| matches(allowed, origin))
    }
}

/// Returns whether an origin is the allowed one. `SCHEME://*` allows all of a scheme, such as webviews with random hosts, but not
/// of one that any web page can have.
fn matches(allowed: &str, origin: &str) -> bool {
    match allowed.strip_suffix('*') {
        Some(prefix) => is_app_scheme(prefix) && origin.starts_with(prefix),
        None => allowed.eq_ignore_ascii_case(origin),
    }
}

fn is_app_scheme(prefix: &str) -> bool {
    prefix.strip_suffix("://").is_some_and(|scheme| {
        !scheme.is_empty() && !scheme.eq_ignore_ascii_case("http") && !scheme.eq_ignore_ascii_case("https")
    })
}

/// Checks an origin to allow: `null`, `SCHEME://HOST` with or without a port, `file://`, or `SCHEME://*`.
///
/// # Errors
/// It is no origin, or would allow all web pages.
pub(super) fn check_origin(origin: &str) -> Result<(), &'static str> {
    let Some((scheme, rest)) = origin.split_once("://") else {
        return if origin == "null" { Ok(()) } else { Err("an origin has the form SCHEME://HOST[:PORT]") };
    };
    let is_scheme = scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    if scheme.is_empty() || !is_scheme || rest.contains(['/', '?', '#', '@', ' ']) {
        Err("an origin has the form SCHEME://HOST[:PORT], without a path")
    } else if rest.contains('*') && (rest != "*" || !is_app_scheme(&format!("{scheme}://"))) {
        Err("`*` is possible as the host of an app's own scheme only: it would allow all web pages")
    } else {
        Ok(())
    }
}

fn shown(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status(access: &Access, headers: &str) -> Option<u16> {
        let text = format!("GET / HTTP/1.1\r\n{headers}\r\n");
        let request = Request::read(&mut text.as_bytes()).await.unwrap();
        access.check(&request).err().map(|denied| denied.refusal.0)
    }

    async fn host(access: &Access, host: &str) -> bool {
        status(access, &format!("Host: {host}\r\n")).await.is_none()
    }

    async fn page(access: &Access, origin: &str) -> bool {
        status(access, &format!("Host: localhost\r\nOrigin: {origin}\r\n")).await.is_none()
    }

    fn with(hosts: &[&str], origins: &[&str]) -> Access {
        let owned = |all: &[&str]| all.iter().map(ToString::to_string).collect();
        Access { hosts: owned(hosts), origins: owned(origins) }
    }

    #[tokio::test]
    async fn request_is_accepted_for_this_machine_or_a_configured_name() {
        let (none, some) = (Access::default(), with(&["studio.local", "192.0.2.7"], &[]));
        for ours in ["localhost:7880", "127.0.0.1", "[::1]:7880", "app.localhost:7880", "LOCALHOST"] {
            assert!(host(&none, ours).await, "{ours}");
        }
        for foreign in [
            "evil.example",
            "localhost.evil.example:7880",
            "127.0.0.1.evil.example",
            "",
            "a b",
            "192.0.2.9",
            "evil@127.0.0.1",
            "evil:x@localhost:7880",
            "127.0.0.1/evil.example",
            "127.0.0.1?evil",
            "127.0.0.1#evil",
            "127.0.0.1\\evil",
            "%6cocalhost",
            "localhost:99999",
        ] {
            assert!(!host(&some, foreign).await, "{foreign:?}");
        }
        for configured in ["studio.local:7880", "Studio.Local", "192.0.2.7:7880"] {
            assert!(host(&some, configured).await && !host(&none, configured).await, "{configured}");
        }
        assert_eq!(status(&some, "").await, Some(403), "no host");
    }

    #[tokio::test]
    async fn only_pages_of_this_machine_are_accepted() {
        let none = Access::default();
        for ours in [
            "http://localhost:3000",
            "http://127.0.0.1",
            "https://[::1]:5173",
            "http://app.localhost:3000",
            "capacitor://localhost",
        ] {
            assert!(page(&none, ours).await, "{ours}");
        }
        for foreign in [
            "https://example.com",
            "null",
            "http://localhost.example.com",
            "http://example.com@localhost",
            "file://",
            "vscode-webview://abc",
            "localhost",
        ] {
            assert!(!page(&none, foreign).await, "{foreign}");
        }
    }

    #[tokio::test]
    async fn allowed_host_counts_for_pages_and_allowed_origins_are_exact() {
        let emulator = with(&["10.0.2.2"], &[]);
        assert!(page(&emulator, "http://10.0.2.2:7880").await && !page(&emulator, "http://10.0.2.3").await);
        let some =
            with(&[], &["null", "file://", "https://app.example", "vscode-webview://*", "https://*", "*"]);
        for allowed in ["null", "file://", "https://app.example", "vscode-webview://abc"] {
            assert!(page(&some, allowed).await, "{allowed}");
        }
        for other in [
            "https://app.example:8443",
            "http://app.example",
            "https://app.example.evil.example",
            "https://evil",
        ] {
            assert!(!page(&some, other).await, "{other}");
        }
    }

    #[test]
    fn origin_that_would_allow_all_pages_is_refused() {
        for good in ["null", "file://", "https://app.example", "http://10.0.2.2:80", "vscode-webview://*"] {
            assert_eq!(check_origin(good), Ok(()), "{good}");
        }
        for bad in
            ["*", "https://*", "HTTP://*", "https://*.example", "app.example", "https://a/b", "://a", ""]
        {
            assert!(check_origin(bad).is_err(), "{bad}");
        }
    }
}
