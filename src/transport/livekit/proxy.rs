//! The proxy that the platform sets for the signaling's connection, and the way through it.
//!
//! `https_proxy` counts for `wss://`, `http_proxy` for `ws://`, `all_proxy` for both; a name in small letters goes
//! before the same in capitals, an empty one is none. `no_proxy` names what is reached without. There is no standard
//! for these, and programs differ. What [curl](https://curl.se/docs/manpage.html#ENVIRONMENT) takes for `https://` and
//! `http://` means the same here, but that a proxy without a port has its scheme's own, and that only proxies of HTTP can
//! be used. What it passes over counts too: `HTTP_PROXY` in capitals, except under CGI, and in `no_proxy` a `*` beside
//! other entries, `*.name` and a port.
//! This machine is never reached through a proxy. A name below `localhost` counts as this machine only if it leads to
//! loopback.

use std::{env, ffi::OsString, fmt, io, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time,
};
use url::{Host, Url};

use super::host_lookup;
use crate::transport::livekit::host;

mod no_proxy;

use no_proxy::NoProxy;

/// The longest head of a proxy's answer, in bytes: more than any that says yes or no.
const MAX_HEAD: usize = 16 * 1024;
/// How much is read of it at once, in bytes.
const READ: usize = 1024;
/// The longest reason in a proxy's own words that is repeated, in bytes.
const MAX_REASON: usize = 80;

/// A proxy that opens a way to any host and port (HTTP `CONNECT`).
pub(crate) struct Proxy {
    host: Host,
    port: u16,
    tls: bool,
    /// `Basic` and the credentials; never shown.
    authorization: Option<String>,
    variable: &'static str,
}

/// Why there is no way through a proxy. Never holds its credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyError {
    /// Host, port and variable, as far as they can be read.
    pub proxy: String,
    /// What went wrong.
    pub reason: String,
}

impl Proxy {
    /// The one that the process's environment names for this address, if any.
    pub(crate) async fn of_environment(url: &Url) -> Result<Option<Self>, ProxyError> {
        let is_here = match url.host() {
            Some(host) => host::is_here(&host) && host_lookup::leads_here(&host).await,
            None => true,
        };
        Self::named_in(|name| env::var_os(name), url, is_here)
    }

    /// The one that an environment names for this address, if any; none for an address of this machine.
    pub(super) fn named_in(
        lookup: impl Fn(&str) -> Option<OsString>,
        url: &Url,
        is_here: bool,
    ) -> Result<Option<Self>, ProxyError> {
        // Whoever set it did not want us to go out directly.
        let read = |name: &str| match lookup(name).map(OsString::into_string) {
            Some(Err(_)) => Err(ProxyError { proxy: name.into(), reason: "it is no text in UTF-8".into() }),
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
        // Under CGI the capital name is a header that a visitor sent (httpoxy).
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
        let refuse = |reason: &str| ProxyError { proxy: variable.into(), reason: reason.into() };
        let with_scheme = if value.contains("://") { value.to_owned() } else { format!("http://{value}") };
        let url = Url::parse(&with_scheme)
            .map_err(|error| refuse(&format!("it is no address: {error}; http://HOST:PORT is one")))?;
        let tls = match url.scheme() {
            "http" => false,
            "https" => true,
            other => {
                let reason =
                    format!("a proxy of the kind `{other}` cannot be used, http:// and https:// can");
                return Err(refuse(&reason));
            }
        };
        let Some(host) = url.host() else { return Err(refuse("it names no host")) };
        let credentials = (!url.username().is_empty() || url.password().is_some()).then(|| {
            let mut plain = decoded(url.username());
            plain.push(b':');
            plain.extend(decoded(url.password().unwrap_or_default()));
            format!("Basic {}", STANDARD.encode(plain))
        });
        Ok(Self { host: host.to_owned(), port: port_of(&url), tls, authorization: credentials, variable })
    }

    /// Its name or address.
    pub(crate) fn host(&self) -> Host<&str> {
        match &self.host {
            Host::Domain(name) => Host::Domain(name.as_str()),
            Host::Ipv4(ip) => Host::Ipv4(*ip),
            Host::Ipv6(ip) => Host::Ipv6(*ip),
        }
    }

    /// Its port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Whether it is spoken to over TLS itself.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls
    }

    /// What went wrong with it.
    pub(crate) fn failed(&self, reason: impl fmt::Display) -> ProxyError {
        ProxyError { proxy: self.to_string(), reason: reason.to_string() }
    }

    /// Asks for the way to a host and port over a connection to the proxy, for so long at most.
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
            Err(_) => return Err(self.failed(format_args!("it did not answer within {limit:?}"))),
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

/// Host, port and the variable that named it: what may be shown.
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

/// The port that an address means.
pub(crate) fn port_of(url: &Url) -> u16 {
    url.port_or_known_default().unwrap_or(443)
}

/// A part of an address without its `%XX`.
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

/// The head of the answer. What follows it belongs to the connection, where nobody speaks before we do.
async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    loop {
        let mut part = [0; READ];
        let size = stream.read(&mut part).await?;
        if size == 0 {
            return Err(io::Error::other("it closed the connection in place of an answer"));
        }
        head.extend_from_slice(&part[..size]);
        if let Some(end) = head.windows(4).position(|it| it == b"\r\n\r\n") {
            let success = head.starts_with(b"HTTP/1.1 2") || head.starts_with(b"HTTP/1.0 2");
            if success && head.len() > end + 4 {
                return Err(io::Error::other("it speaks where the server was to be heard"));
            }
            head.truncate(end);
            return Ok(head);
        }
        if head.len() > MAX_HEAD {
            return Err(io::Error::other(format!("the head of its answer is longer than {MAX_HEAD} bytes")));
        }
    }
}

/// Whether the way is open: any status of 200 to 299 says so.
fn verdict(head: &[u8]) -> Result<(), String> {
    let line = head.split(|it| *it == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.splitn(3, ' ');
    let is_http = words.next().is_some_and(|version| version.starts_with("HTTP/1."));
    let Some(status) = words.next().filter(|_| is_http).and_then(|status| status.parse::<u16>().ok()) else {
        return Err("it is no HTTP proxy".into());
    };
    if (200..300).contains(&status) {
        return Ok(());
    }
    let reason = words.next().unwrap_or_default();
    let reason: String = reason.chars().filter(|it| !it.is_control()).take(MAX_REASON).collect();
    Err(format!("it refused: {status} {reason}").trim_end().to_owned())
}

#[cfg(test)]
mod tests;
