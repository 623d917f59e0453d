//! Speaks a minimal HTTP/1.1: one request per connection, with limits, and one response.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time,
};
use url::Url;

/// The maximum size of a request head, in bytes: it contains the join request.
const MAX_HEAD: usize = 64 * 1024;
/// The maximum number of headers.
const MAX_HEADERS: usize = 64;
/// The maximum size of a request body, in bytes: data to send through the room service.
pub(super) const MAX_BODY: usize = 256 * 1024;
/// The time limit for receiving a request.
const LIMIT: Duration = Duration::from_secs(10);
/// The time for which the rest of a refused request is read.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// The time for which a page may keep the answer to a preflight, in seconds, as in livekit-server: a day.
const PREFLIGHT_AGE: u32 = 86_400;

/// A request. It has no `Debug`, because it contains a token.
pub(super) struct Request {
    pub(super) method: String,
    /// The path and the query.
    url: Url,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// The size of a body that exceeds [`MAX_BODY`], and of its part that was not read.
    pub(super) too_large: Option<[u64; 2]>,
}

impl Request {
    /// Reads a request.
    ///
    /// # Errors
    /// The head is too large, or the request is too slow or not HTTP: `InvalidData`.
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
        let size: u64 = match request.header("content-length") {
            None => 0,
            Some(size) => size.parse().map_err(|_| wrong("the content length is not a number"))?,
        };
        let Some(size) = usize::try_from(size).ok().filter(|size| *size <= MAX_BODY) else {
            let read = u64::try_from(body.len()).unwrap_or(u64::MAX);
            request.too_large = Some([size, size.saturating_sub(read)]);
            return Ok(request);
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
            // Parsers can disagree about where such a request ends, to which host it is addressed or from which page it
            // comes (request smuggling).
            let is_once = matches!(&*name, "host" | "origin" | "content-length" | "authorization");
            if name == "transfer-encoding" || is_once && headers.iter().any(|(it, _)| *it == name) {
                return Err(wrong("the head is ambiguous"));
            }
            headers.push((name, value));
        }
        Ok(Some((Self { method: method.to_owned(), url, headers, body: Vec::new(), too_large: None }, size)))
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
}

/// Sends a response and closes the connection. The page of this origin may read it.
pub(super) async fn answer(
    stream: &mut (impl AsyncWrite + Unpin),
    origin: Option<&str>,
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
        413 => "Content Too Large",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Internal Server Error",
    };
    let cors = origin.map(readable_by).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 {status} {reason}\r\n{cors}Content-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).await?;
    stream.shutdown().await
}

/// Returns the headers that let the page of an origin read a response.
fn readable_by(origin: &str) -> String {
    format!("Access-Control-Allow-Origin: {origin}\r\nAccess-Control-Expose-Headers: *\r\nVary: Origin\r\n")
}

/// Answers the preflight of a page: the methods of the API, and the headers that the page asks for.
pub(super) async fn answer_preflight(
    stream: &mut (impl AsyncWrite + Unpin),
    origin: &str,
    request: &Request,
) -> io::Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_, ".contains(c);
    let asked = request.header("access-control-request-headers").filter(|names| names.chars().all(is_plain));
    let headers = asked.unwrap_or("authorization, content-type");
    let head = format!(
        "HTTP/1.1 204 No Content\r\n{}Access-Control-Allow-Methods: GET, POST\r\n\
         Access-Control-Allow-Headers: {headers}\r\nAccess-Control-Max-Age: {PREFLIGHT_AGE}\r\nConnection: close\r\n\r\n",
        readable_by(origin)
    );
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await
}

/// Reads the rest of a refused request, up to this size. A system that closes a connection with unread data resets it, and the
/// client would not see the response.
pub(super) async fn drain(stream: &mut (impl AsyncRead + Unpin), size: u64) {
    let rest = async { tokio::io::copy(&mut stream.take(size), &mut tokio::io::sink()).await };
    // The client may be gone, or keep the connection open.
    let _ = time::timeout(DRAIN_LIMIT, rest).await;
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
        for bad in [
            &*long,
            "",
            "GET / HTTP/1.1\r\n",
            "GET /\r\n\r\n",
            "GET http://else/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/2\r\n\r\n",
            "GET / HTTP/1.1\r\nnonsense\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: localhost\r\nHost: else\r\n\r\n",
            "GET / HTTP/1.1\r\nOrigin: http://localhost\r\nOrigin: http://else\r\n\r\n",
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
    async fn body_above_the_limit_is_not_read() {
        let with = |size: usize| format!("POST / HTTP/1.1\r\nContent-Length: {size}\r\n\r\nhello");
        let large = read(&with(MAX_BODY + 1)).await.unwrap();
        let size = u64::try_from(MAX_BODY + 1).unwrap();
        assert_eq!((large.too_large, large.body), (Some([size, size - 5]), Vec::new()));
        let whole = format!("{}{}", with(MAX_BODY), "x".repeat(MAX_BODY - 5));
        let request = read(&whole).await.unwrap();
        assert_eq!((request.too_large, request.body.len()), (None, MAX_BODY));
    }

    #[tokio::test]
    async fn request_with_too_many_headers_is_refused() {
        let text = |count| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert!(read(&text(MAX_HEADERS)).await.is_ok());
        assert!(read(&text(MAX_HEADERS + 1)).await.is_err());
    }
}
