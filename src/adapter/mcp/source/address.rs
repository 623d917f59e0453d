//! Checks addresses of servers: which may be used, and which a name may stand for.

use std::{io, net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use url::{Host, Url};

use crate::adapter::web::{
    client::HttpClient,
    outgoing::guarded,
    public_address::{is_public, is_this_machine},
};

/// Why an address cannot be used. It names the host alone.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(in crate::adapter::mcp) enum AddressError {
    #[error("{0:?} is not a URL; an MCP server has one such as https://mcp.example.com/mcp")]
    Invalid(String),
    #[error("{0} is reached by plain http, which anybody on the path can read; use https")]
    Plain(String),
    #[error("the URL of {0} contains a user name or a password; set a bearer token with `bearer_env`")]
    Credentials(String),
}

/// The address of a server.
#[derive(Clone, Debug)]
pub(in crate::adapter::mcp) struct Address {
    url: Url,
    host: String,
    /// Whether the host is an address, or this machine: the user has named it, so it may be private.
    is_literal: bool,
    is_local: bool,
}

impl Address {
    /// Reads an address: `https`, or `http` of this machine.
    pub(in crate::adapter::mcp) fn read(text: &str) -> Result<Self, AddressError> {
        let url = Url::parse(text).map_err(|_| AddressError::Invalid(shown(text)))?;
        let Some(host) = url.host() else { return Err(AddressError::Invalid(shown(text))) };
        let is_local = is_this_machine(&host);
        let is_literal = is_local || !matches!(host, Host::Domain(_));
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

    /// Returns the client of the server. No proxy gets the requests to a server of this machine.
    ///
    /// # Errors
    /// The client cannot be set up, or the token cannot be used.
    pub(in crate::adapter::mcp) fn client(&self, token: Option<&str>) -> Result<HttpClient, String> {
        let client = guarded(self.resolver(), !self.is_local)?;
        HttpClient::new(client, self.url.as_str(), &self.host, token).map_err(str::to_owned)
    }

    /// Returns what resolves the host's name. Each connection uses it, so a name that first stands for a public address
    /// and then for a private one (DNS rebinding) is refused as well. An HTTPS proxy resolves names itself; its own name, which
    /// the user has set, may stand for a private address.
    fn resolver(&self) -> Resolver {
        Resolver { guarded: (!self.is_literal).then(|| self.host.as_str().into()) }
    }
}

/// Returns what stands before the first `?`: a query may hold secrets.
fn shown(text: &str) -> String {
    text.split(['?', '#']).next().unwrap_or_default().chars().take(100).collect()
}

/// Resolves names, and one of them never to an address of a private network or of this machine.
#[derive(Clone, Debug)]
struct Resolver {
    guarded: Option<Arc<str>>,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let is_guarded = self.guarded.as_deref().is_some_and(|host| name.as_str().eq_ignore_ascii_case(host));
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let allowed = allowed(name.as_str(), found, !is_guarded)?;
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
        let resolve = |address: &Address| address.resolver().resolve("localhost".parse().unwrap());
        let mut address = Address::read("https://mcp.example.com/").unwrap();
        // Only a proxy can have another name than the server.
        assert!(resolve(&address).await.is_ok());
        address.host = "LOCALHOST".to_owned();
        let refused = resolve(&address).await.err().unwrap().to_string();
        assert!(refused.contains("private network"), "{refused}");
        assert!(resolve(&Address::read("http://localhost/").unwrap()).await.is_ok());
    }

    #[test]
    fn sec_p3_url_with_a_name_or_a_password_is_refused() {
        for url in [
            "https://me@mcp.example.com/",
            "https://me:hunter2@mcp.example.com/",
            "https://:hunter2@x.example/",
        ] {
            assert!(matches!(Address::read(url), Err(AddressError::Credentials(_))), "{url}");
        }
    }
}
