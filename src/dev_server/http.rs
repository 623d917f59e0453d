//! Speaks a minimal HTTP/1.1: one request per connection, with limits, and one response.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time,
};
use url::Url;

use crate::net::host;

/// The maximum size of a request head, in bytes: it contains the join request.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum number of headers.
const MAX_HEADERS: usize = 64;
/// The maximum size of a request body, in bytes: data to send through the room service.
const MAX_BODY: usize = 256 * 1024;
/// The time limit for receiving a request.
const LIMIT: Duration = Duration::from_secs(10);

/// A request. It has no `Debug`, because it contains a token.
pub(super) struct Request {
    pub(super) method: String,
    /// The path and the query.
    url: Url,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// The request is too large, too slow or not HTTP.
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        time::timeout(LIMIT, Self::read_whole(stream))
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    async fn read_whole(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut read = Vec::with_capacity(4096);
        let (mut request, head) = loop {
            if let Some(parsed) = Self::parse(&read)? {
                break parsed;
            }
            if read.len() > MAX_HEAD {
                return Err(wrong("the head is too large"));
            }
            if stream.read_buf(&mut read).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        };
        let body = read.split_off(head);
        let size = match request.header("content-length") {
            None => 0,
            Some(size) => {
                size.parse().ok().filter(|size| *size <= MAX_BODY).ok_or_else(|| wrong("the body"))?
            }
        };
        request.body = body;
        while request.body.len() < size {
            if stream.read_buf(&mut request.body).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        request.body.truncate(size);
        Ok(request)
    }

    /// Parses the head once it is complete. Returns the request without its body, and the size of the head.
    fn parse(read: &[u8]) -> io::Result<Option<(Self, usize)>> {
        let not_http = || wrong("the head is not HTTP");
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut head = httparse::Request::new(&mut headers);
        let size = match head.parse(read).map_err(|_| not_http())? {
            httparse::Status::Partial => return Ok(None),
            httparse::Status::Complete(size) => size,
        };
        let (Some(method), Some(target)) = (head.method, head.path) else { return Err(not_http()) };
        if !target.starts_with('/') {
            return Err(wrong("the target is not a path"));
        }
        let url = Url::parse(&format!("http://localhost{target}")).map_err(|_| not_http())?;
        let mut headers = Vec::with_capacity(head.headers.len());
        for header in head.headers.iter() {
            let (name, value) = (header.name.to_ascii_lowercase(), str::from_utf8(header.value));
            let value = value.map_err(|_| wrong("a header is not text"))?.trim().to_owned();
            // Parsers can disagree about where such a request ends or to which host it is addressed (request
            // smuggling).
            let is_once = matches!(&*name, "host" | "content-length" | "authorization");
            if name == "transfer-encoding" || is_once && headers.iter().any(|(it, _)| *it == name) {
                return Err(wrong("the head is ambiguous"));
            }
            headers.push((name, value));
        }
        Ok(Some((Self { method: method.to_owned(), url, headers, body: Vec::new() }, size)))
    }

    /// Returns the path.
    pub(super) fn path(&self) -> &str {
        self.url.path()
    }

    /// Returns the first header with this lower-case name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first query parameter with this name.
    pub(super) fn query(&self, name: &str) -> Option<String> {
        self.url.query_pairs().find(|(it, _)| it == name).map(|(_, value)| value.into_owned())
    }

    /// Returns the token, as LiveKit's clients send it. An error means that the `Authorization` header is malformed.
    pub(super) fn token(&self) -> Result<Option<String>, ()> {
        match self.header("authorization") {
            Some(value) => value.strip_prefix("Bearer ").map(|token| Some(token.to_owned())).ok_or(()),
            None => Ok(self.query("access_token").filter(|token| !token.is_empty())),
        }
    }

    /// Returns whether the request is addressed to this machine or to one of these names. This protects against DNS rebinding,
    /// where a foreign name resolves to this machine so that a foreign web page can use the server.
    pub(super) fn is_addressed_here(&self, names: &[String]) -> bool {
        let Some(host) = self.header("host") else { return false };
        let url = Url::parse(&format!("http://{host}"));
        let Some(host) = url.as_ref().ok().and_then(Url::host) else { return false };
        host::is_local(&host) || names.iter().any(|name| name.eq_ignore_ascii_case(&host.to_string()))
    }

    /// Returns whether the `Origin` header names a web page from another machine.
    pub(super) fn is_from_foreign_page(&self) -> bool {
        self.header("origin").is_some_and(|origin| {
            let page = Url::parse(origin).ok();
            !page.as_ref().and_then(Url::host).is_some_and(|host| host::is_local(&host))
        })
    }
}

/// Sends a response and closes the connection.
pub(super) async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    status: u16,
    kind: &str,
    body: &[u8],
) -> io::Result<()> {
    let reason = match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        409 => "Conflict",
        412 => "Precondition Failed",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    stream.shutdown().await
}

fn wrong(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &str) -> io::Result<Request> {
        Request::read(&mut text.as_bytes()).await
    }

    #[tokio::test]
    async fn request_is_parsed() {
        let text = "POST /twirp/x?access_token=abc&a=b%20c HTTP/1.1\r\nHost: localhost\r\nContent-LENGTH: 5\r\n\r\nhello!";
        let request = read(text).await.unwrap();
        assert_eq!((request.method.as_str(), request.path()), ("POST", "/twirp/x"));
        assert_eq!(request.query("a").as_deref(), Some("b c"));
        assert_eq!(request.token(), Ok(Some("abc".into())));
        assert_eq!(request.body, b"hello", "the body ends at its content length");
    }

    #[tokio::test]
    async fn authorization_header_takes_precedence_over_the_query() {
        let with =
            |value: &str| format!("GET /?access_token=query HTTP/1.1\r\nAuthorization: {value}\r\n\r\n");
        assert_eq!(read(&with("Bearer head")).await.unwrap().token(), Ok(Some("head".into())));
        assert_eq!(read(&with("Basic head")).await.unwrap().token(), Err(()));
        assert_eq!(read("GET / HTTP/1.1\r\n\r\n").await.unwrap().token(), Ok(None));
    }

    #[tokio::test]
    async fn invalid_or_oversized_request_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(2 * MAX_HEAD));
        let huge = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n", MAX_BODY + 1);
        for bad in [
            &*long,
            &*huge,
            "",
            "GET / HTTP/1.1\r\n",
            "GET /\r\n\r\n",
            "GET http://else/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "GET / HTTP/1.1\r\nnonsense\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nHost: else\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nA: \u{1}\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nhello",
            "\u{16}\u{3}\u{1}\r\n\r\n",
        ] {
            assert!(read(bad).await.is_err(), "{:.60}", bad);
        }
    }

    #[tokio::test]
    async fn request_with_too_many_headers_is_refused() {
        let text = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert!(read(&text(MAX_HEADERS)).await.is_ok());
        assert!(read(&text(MAX_HEADERS + 1)).await.is_err());
    }

    #[tokio::test]
    async fn request_is_accepted_for_this_machine_or_a_configured_name() {
        let names = ["studio.local".to_owned(), "192.0.2.7".to_owned()];
        let to = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for ours in ["localhost:7880", "127.0.0.1", "[::1]:7880", "app.localhost:7880", "LOCALHOST"] {
            assert!(read(&to(ours)).await.unwrap().is_addressed_here(&[]), "{ours}");
        }
        for foreign in
            ["evil.example", "localhost.evil.example:7880", "127.0.0.1.evil.example", "", "a b", "192.0.2.9"]
        {
            assert!(!read(&to(foreign)).await.unwrap().is_addressed_here(&names), "{foreign:?}");
        }
        for configured in ["studio.local:7880", "Studio.Local", "192.0.2.7:7880"] {
            let request = read(&to(configured)).await.unwrap();
            assert!(request.is_addressed_here(&names) && !request.is_addressed_here(&[]), "{configured}");
        }
        assert!(!read("GET / HTTP/1.1\r\n\r\n").await.unwrap().is_addressed_here(&names));
    }

    #[tokio::test]
    async fn only_pages_from_this_machine_are_accepted() {
        let of = |origin: &str| format!("GET / HTTP/1.1\r\nOrigin: {origin}\r\n\r\n");
        for ours in
            ["http://localhost:3000", "http://127.0.0.1", "https://[::1]:5173", "http://app.localhost:3000"]
        {
            assert!(!read(&of(ours)).await.unwrap().is_from_foreign_page(), "{ours}");
        }
        for foreign in ["https://example.com", "null", "http://localhost.example.com", "file://"] {
            assert!(read(&of(foreign)).await.unwrap().is_from_foreign_page(), "{foreign}");
        }
        assert!(!read("GET / HTTP/1.1\r\n\r\n").await.unwrap().is_from_foreign_page());
    }
}
