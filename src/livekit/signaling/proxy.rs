//! Reads the platform's proxy settings for the signaling connection, and opens a tunnel through a proxy with
//! HTTP `CONNECT`.
//!
//! `https_proxy` applies to `wss://`, `http_proxy` to `ws://`, `all_proxy` to both. A name in lower case precedes the
//! same name in capitals; an empty value counts as unset. `no_proxy` lists the hosts that are reached directly. There
//! is no standard for these variables, and programs differ. The rules are those of
//! [curl](https://curl.se/docs/manpage.html#ENVIRONMENT) for `https://` and `http://`, except that a proxy without a
//! port uses its scheme's default port, and that only HTTP proxies are supported. In addition to curl: `HTTP_PROXY`
//! in capitals is used, except under CGI; and `no_proxy` may contain `*` together with other entries, `*.name`, and a
//! port.
//!
//! This machine is never reached through a proxy. A name below `localhost` counts as this machine only if it resolves
//! to loopback.

use std::{env, error::Error, ffi::OsString, fmt, io, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time,
};
use url::{Host, Url};

use super::{host_lookup, http::interim};
use crate::{clock::Spelled, net::host};

mod no_proxy;

use no_proxy::NoProxy;

/// The longest head of a proxy's response, in bytes, well above the usual size.
const MAX_HEAD: usize = 16 * 1024;
/// The size of one read, in bytes.
const READ: usize = 1024;

/// A proxy that opens a tunnel to any host and port (HTTP `CONNECT`).
pub(crate) struct Proxy {
    host: Host,
    port: u16,
    tls: bool,
    /// `Basic` and the credentials; never shown.
    authorization: Option<String>,
    variable: &'static str,
}

/// The reason why a proxy cannot be used. It never contains the proxy's credentials.
#[derive(Clone, Debug, thiserror::Error)]
#[error("proxy {proxy}: {source}")]
pub(crate) struct ProxyError {
    /// Host, port and variable, as far as they can be read.
    pub(crate) proxy: String,
    /// The error of the proxy or the system.
    pub(crate) source: Arc<dyn Error + Send + Sync>,
}

impl ProxyError {
    /// Creates an error of this proxy (host, port and variable), with its cause.
    pub(crate) fn new(proxy: impl Into<String>, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { proxy: proxy.into(), source: source.into().into() }
    }
}

impl Proxy {
    /// Returns the proxy that the process's environment sets for this URL, if any.
    pub(crate) async fn of_environment(url: &Url) -> Result<Option<Self>, ProxyError> {
        let is_here = match url.host() {
            Some(host) => host::is_local(&host) && host_lookup::is_local(&host).await,
            None => true,
        };
        Self::named_in(|name| env::var_os(name), url, is_here)
    }

    /// Returns the proxy that an environment sets for this URL, if any; none for an address of this machine.
    pub(crate) fn named_in(
        lookup: impl Fn(&str) -> Option<OsString>,
        url: &Url,
        is_here: bool,
    ) -> Result<Option<Self>, ProxyError> {
        // A user who sets an unreadable value does not want a direct connection.
        let read = |name: &str| match lookup(name).map(OsString::into_string) {
            Some(Err(_)) => Err(ProxyError::new(name, "its value is not UTF-8")),
            Some(Ok(text)) => Ok(Some(text.trim().to_owned()).filter(|text| !text.is_empty())),
            None => Ok(None),
        };
        let first = |names: &[&'static str]| {
            for name in names {
                if let Some(text) = read(name)? {
                    return Ok(Some((*name, text)));
                }
            }
            Ok(None)
        };
        let Some(host) = url.host().filter(|_| !is_here) else { return Ok(None) };
        // Under CGI the name in capitals is a header that a visitor sent (httpoxy).
        let is_cgi = lookup("REQUEST_METHOD").is_some_and(|method| !method.is_empty());
        let names: &[_] = match url.scheme() {
            "wss" | "https" => &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"],
            _ if is_cgi => &["http_proxy", "all_proxy", "ALL_PROXY"],
            _ => &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"],
        };
        let Some((variable, value)) = first(names)? else { return Ok(None) };
        let except = first(&["no_proxy", "NO_PROXY"])?.map(|(_, list)| list).unwrap_or_default();
        if NoProxy(&except).hold(&host, port_of(url)) {
            return Ok(None);
        }
        Self::parse(variable, &value).map(Some)
    }

    fn parse(variable: &'static str, value: &str) -> Result<Self, ProxyError> {
        let refuse = |reason: &str| ProxyError::new(variable, reason);
        let with_scheme = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
        let url = Url::parse(&with_scheme)
            .map_err(|error| refuse(&format!("it is not a URL: {error}; expected http://HOST:PORT")))?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            other => {
                let reason = format!("the scheme `{other}` is not supported; use http:// or https://");
                return Err(refuse(&reason));
            }
        };
        let Some(host) = url.host() else { return Err(refuse("it has no host")) };
        let credentials = (!url.username().is_empty() || url.password().is_some()).then(|| {
            let mut plain = decoded(url.username());
            plain.push(b':');
            plain.extend(decoded(url.password().unwrap_or_default()));
            format!("Basic {}", STANDARD.encode(plain))
        });
        Ok(Self { host: host.to_owned(), port: port_of(&url), tls, authorization: credentials, variable })
    }

    /// Returns its name or address.
    pub(crate) fn host(&self) -> Host<&str> {
        match &self.host {
            Host::Domain(name) => Host::Domain(name.as_str()),
            Host::Ipv4(ip) => Host::Ipv4(*ip),
            Host::Ipv6(ip) => Host::Ipv6(*ip),
        }
    }

    /// Returns its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether the connection to the proxy itself uses TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls
    }

    /// Creates an error about this proxy.
    pub(crate) fn failed(&self, source: impl Into<Box<dyn Error + Send + Sync>>) -> ProxyError {
        ProxyError::new(self.to_string(), source)
    }

    /// Requests a tunnel to a host and port over a connection to the proxy, within a time limit.
    pub(crate) async fn open(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        url: &Url,
        limit: Duration,
    ) -> Result<(), ProxyError> {
        let asked = async {
            stream.write_all(self.request(url).as_bytes()).await?;
            stream.flush().await?;
            read_head(stream).await
        };
        let head = match time::timeout(limit, asked).await {
            Ok(Ok(head)) => head,
            Ok(Err(error)) => return Err(self.failed(error)),
            Err(_) => return Err(self.failed(format!("no response within {}", Spelled(limit)))),
        };
        verdict(&head).map_err(|reason| self.failed(reason))
    }

    fn request(&self, url: &Url) -> String {
        let (host, port) = (url.host_str().unwrap_or_default(), port_of(url));
        let mut request = format!(
            "CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\nUser-Agent: {}/{}\r\n",
            env!("CARGO_PKG_NAME"),
            env!("CARGO_PKG_VERSION")
        );
        if let Some(authorization) = &self.authorization {
            request.push_str(&format!("Proxy-Authorization: {authorization}\r\n"));
        }
        request.push_str("\r\n");
        request
    }
}

/// Host, port and the variable that set it: the part that may be shown.
impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({})", self.host, self.port, self.variable)
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Returns the port of a URL.
pub(crate) fn port_of(url: &Url) -> u16 {
    url.port_or_known_default().unwrap_or(443)
}

/// Decodes the `%XX` of a part of a URL.
fn decoded(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                plain.push(byte);
                at += 3;
            }
            None => {
                plain.push(bytes[at]);
                at += 1;
            }
        }
    }
    plain
}

/// Reads the head of the response. Bytes after it would belong to the tunnel, where the server never sends first.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let mut part = [0; READ];
        let size = stream.read(&mut part).await?;
        if size == 0 {
            return Err(io::Error::other("it closed the connection without a response"));
        }
        head.extend_from_slice(&part[..size]);
        drop(head.drain(..interim(&head)));
        if let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") {
            let success = head.starts_with(b"HTTP/1.1 2") || head.starts_with(b"HTTP/1.0 2");
            if success && head.len() > end + 4 {
                return Err(io::Error::other("it sent data before the tunnel was used"));
            }
            head.truncate(end);
            return Ok(head);
        }
        if head.len() > MAX_HEAD {
            return Err(io::Error::other(format!(
                "the head of its response is longer than {MAX_HEAD} bytes"
            )));
        }
    }
}

/// Returns whether the tunnel is open: any status from 200 to 299.
fn verdict(head: &[u8]) -> Result<(), String> {
    let line = head.split(|it| *it == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.splitn(3, ' ');
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let Some(status) = words.next().filter(|_| is_http).and_then(|status| status.parse::<u16>().ok()) else {
        return Err("it is not an HTTP proxy".into());
    };
    if (200..300).contains(&status) {
        return Ok(());
    }
    // Not in the proxy's words: some repeat the credentials.
    Err(match status {
        407 => "it demands credentials, or refuses those in the variable (407)".to_owned(),
        403 => "it does not allow this server (403)".to_owned(),
        502..=504 => format!("it does not reach the server ({status})"),
        _ => format!("it refused with status {status}"),
    })
}

#[cfg(test)]
mod tests;
