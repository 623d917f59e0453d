//! Sends the HTTP request that opens a WebSocket ([RFC
//! 6455](https://www.rfc-editor.org/rfc/rfc6455#section-4.1)).
//!
//! The request contains the token. It is written here so that no other crate sees it: WebSocket libraries log
//! requests.

use std::time::Duration;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::{Buf as _, BytesMut};
use sha1::{Digest, Sha1};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time,
};
use url::Url;

use super::DialFailure;
use crate::{
    livekit::signaling::{
        http::{content, interim, is_text},
        refusal::TokenRefusal,
    },
    net::{redirect, words::one_line},
};

/// The longest head of the server's response, in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// The most headers of a response.
const MAX_HEADERS: usize = 64;
/// How much of a refusal's body is read, in bytes: it repeats the token and then states the reason.
const MAX_BODY: usize = 16 * 1024;
/// The longest reason of a refusal that is repeated, in bytes: LiveKit's are shorter.
const MAX_WORDS: usize = 256;
/// The time limit of reading a refusal's body.
const BODY_LIMIT: Duration = Duration::from_secs(1);
/// The text that a server appends to the key before hashing it.
const MAGIC: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Requests a WebSocket over an open connection. Returns the bytes after the server's response.
pub(super) async fn upgrade(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    url: &Url,
    token: &str,
) -> Result<BytesMut, DialFailure> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(DialFailure::unreachable)?;
    let key = STANDARD.encode(nonce);
    let request = request(url, token, &key)?;
    stream.write_all(request.as_bytes()).await.map_err(DialFailure::of_io)?;
    stream.flush().await.map_err(DialFailure::of_io)?;
    let (mut read, mut skipped) = (BytesMut::with_capacity(1024), 0);
    loop {
        if stream.read_buf(&mut read).await.map_err(DialFailure::of_io)? == 0 {
            return Err(DialFailure::unreachable("the connection was closed without a response"));
        }
        let before = interim(&read);
        read.advance(before);
        skipped += before;
        match answered(&read, &key) {
            Ok(Some(size)) => return Ok(read.split_off(size)),
            Ok(None) => {}
            Err(DialFailure::Status(401, _)) => {
                return Err(DialFailure::Unauthorized(TokenRefusal::read(&body(stream, read).await.0)));
            }
            Err(DialFailure::Status(status @ 300..=399, _)) => {
                return Err(DialFailure::Status(status, redirect_to(url, &read)));
            }
            Err(DialFailure::Status(status, _)) => {
                let (body, is_text) = body(stream, read).await;
                return Err(DialFailure::Status(status, if is_text { words(&body) } else { String::new() }));
            }
            Err(failure) => return Err(failure),
        }
        if skipped + read.len() > MAX_HEAD {
            return Err(DialFailure::unreachable(format!(
                "the head of the response is longer than {MAX_HEAD} bytes"
            )));
        }
    }
}

/// Returns the body of a refusal, as much of it as arrives soon, and whether the server says that it is a text.
async fn body(stream: &mut (impl AsyncRead + Unpin), mut read: BytesMut) -> (String, bool) {
    let end = time::Instant::now() + BODY_LIMIT;
    loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut answer = httparse::Response::new(&mut headers);
        let Ok(httparse::Status::Complete(size)) = answer.parse(&read) else {
            return Default::default();
        };
        let is_text = is_text(answer.headers);
        let (content, is_complete) = content(answer.headers, &read[size..]);
        let content = String::from_utf8_lossy(&content).into_owned();
        // The part that has arrived by then is read.
        let more =
            async { read.len() < size + MAX_BODY && stream.read_buf(&mut read).await.is_ok_and(|it| it > 0) };
        if is_complete || !time::timeout_at(end, more).await.unwrap_or(false) {
            return (content, is_text);
        }
    }
}

/// Says where a redirect leads to.
fn redirect_to(url: &Url, head: &[u8]) -> String {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let _ = answer.parse(head); // it was parsed before
    let location = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case("location"));
    let location = location.and_then(|header| str::from_utf8(header.value).ok());
    location.map_or_else(String::new, |it| format!("it redirects to {}", redirect::describe(url, it)))
}

/// Returns a server's short reason as one line, and nothing of a page or of a text that may repeat the token.
fn words(body: &str) -> String {
    let body = body.trim();
    // `eyJ` is how every JWT begins, and LiveKit repeats a refused token in its response.
    let is_words = body.len() <= MAX_WORDS && !body.starts_with(['<', '{', '[']) && !body.contains("eyJ");
    if is_words { one_line(body, MAX_WORDS) } else { String::new() }
}

/// Returns the request's head. The token cannot contain a line break.
fn request(url: &Url, token: &str, key: &str) -> Result<String, DialFailure> {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
    // A line break would end the header and begin another.
    if token.chars().any(char::is_control) {
        return Err(DialFailure::unreachable("the request could not be written"));
    }
    Ok(format!(
        "GET {}{query} HTTP/1.1\r\nHost: {host}{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nAuthorization: Bearer {token}\r\n\r\n",
        url.path()
    ))
}

/// Returns the size of the response's head, once it is complete and accepts the WebSocket for this key.
fn answered(read: &[u8], key: &str) -> Result<Option<usize>, DialFailure> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut answer = httparse::Response::new(&mut headers);
    let size = match answer.parse(read) {
        Ok(httparse::Status::Complete(size)) => size,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(error) => return Err(DialFailure::unreachable(format!("the response is not HTTP: {error}"))),
    };
    match answer.code {
        Some(101) => {}
        Some(status) => return Err(DialFailure::Status(status, String::new())),
        None => return Err(DialFailure::unreachable("the response has no status")),
    }
    let value = |name: &str| {
        let found = answer.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        found.and_then(|header| str::from_utf8(header.value).ok()).map(str::trim).unwrap_or_default()
    };
    let upgrades = value("connection").split(',').any(|it| it.trim().eq_ignore_ascii_case("upgrade"))
        && value("upgrade").eq_ignore_ascii_case("websocket")
        // Shows that a WebSocket server has read this very request, and no cache or other service has
        // answered (RFC 6455, section 4.1).
        && value("sec-websocket-accept") == accept_key(key);
    if upgrades {
        Ok(Some(size))
    } else {
        Err(DialFailure::unreachable("the server's response does not open a WebSocket"))
    }
}

/// Returns the proof that the server has read the key.
fn accept_key(key: &str) -> String {
    STANDARD.encode(Sha1::digest(format!("{key}{MAGIC}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The specification's own example.
    const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
    const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

    #[test]
    fn request_contains_path_query_host_and_port() {
        let url = Url::parse("ws://[::1]:7880/lk/rtc/v1?join_request=CAES").unwrap();
        let text = request(&url, "a.b.c", KEY).unwrap();
        assert!(
            text.starts_with("GET /lk/rtc/v1?join_request=CAES HTTP/1.1\r\nHost: [::1]:7880\r\n"),
            "{text}"
        );
        assert!(text.ends_with("\r\nAuthorization: Bearer a.b.c\r\n\r\n"), "{text}");
        let url = Url::parse("wss://sfu.example.com").unwrap();
        assert!(
            request(&url, "a.b.c", KEY).unwrap().starts_with("GET / HTTP/1.1\r\nHost: sfu.example.com\r\n")
        );
    }

    #[test]
    fn token_with_a_line_break_is_refused() {
        let url = Url::parse("ws://127.0.0.1").unwrap();
        for token in ["b\r\nc: d", "b\nc", "\0"] {
            assert!(request(&url, token, KEY).is_err(), "{token:?}");
        }
    }

    #[test]
    fn redirect_names_the_other_host_alone() {
        let url = Url::parse("ws://sfu.example/rtc?join_request=CAES").unwrap();
        let answer = b"HTTP/1.1 302 Found\r\nLocation: https://login.example/hunter2?t=hunter2\r\n\r\n";
        assert_eq!(redirect_to(&url, answer), "it redirects to login.example");
        assert_eq!(redirect_to(&url, b"HTTP/1.1 302 Found\r\n\r\n"), "");
    }

    #[test]
    fn only_a_response_to_this_key_opens_a_websocket() {
        let answer = |accept: &str| {
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: keep-alive, Upgrade\r\nUPGRADE: WebSocket\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            )
        };
        let good = answer(ACCEPT);
        assert_eq!(answered(format!("{good}\u{2}").as_bytes(), KEY).ok().flatten(), Some(good.len()));
        for end in 0..good.len() {
            assert!(matches!(answered(&good.as_bytes()[..end], KEY), Ok(None)), "{end} bytes");
        }
        for bad in [
            &answer("another"),
            "HTTP/1.1 101 x\r\n\r\n",
            "SSH-2.0-OpenSSH\r\n\r\n",
            "HTTP/1.1 banana\r\n\r\n",
            &format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(MAX_HEADERS + 1)),
        ] {
            assert!(matches!(answered(bad.as_bytes(), KEY), Err(DialFailure::Unreachable(_))), "{bad}");
        }
        let refused = answered(b"HTTP/1.1 401 Unauthorized\r\n\r\ninvalid token: eyJhb", KEY);
        assert!(matches!(refused, Err(DialFailure::Status(401, _))));
    }

    #[tokio::test(start_paused = true)]
    async fn body_of_a_401_gives_the_reason_and_is_not_kept() {
        let url = Url::parse("ws://127.0.0.1").unwrap();
        let token = "invalid token: eyJhb.c.d, error: ";
        for (answer, reason) in [
            ("Content-Length: 25\r\n\r\ninvalid API key: APItest\n more", TokenRefusal::Key),
            ("Permissions-Policy: permission\r\n\r\n", TokenRefusal::Unknown),
            ("Content-Length: 999999999\r\n\r\nno permissions to access the room", TokenRefusal::NoJoin),
            (&*format!("\r\n{token}token is expired"), TokenRefusal::Expired),
            (&*format!("\r\n{token}signature is invalid"), TokenRefusal::Signature),
            (&*format!("\r\n{token}token is not valid yet (nbf)"), TokenRefusal::NotYet),
            ("\r\n<html>", TokenRefusal::Unknown),
            ("Content-Type: application/json\r\n\r\n{\"error\":\"invalid API key\"}", TokenRefusal::Key),
            (
                "Transfer-Encoding: chunked\r\n\r\n9\r\ninvalid A\r\n6\r\nPI key\r\n0\r\n\r\n",
                TokenRefusal::Key,
            ),
        ] {
            // The server keeps the connection open and sends nothing more.
            let (mut client_end, mut server_end) = tokio::io::duplex(1024);
            let head = "HTTP/1.1 401 Unauthorized\r\n";
            server_end.write_all(format!("{head}{answer}").as_bytes()).await.unwrap();
            let failure = upgrade(&mut client_end, &url, "a.b.c").await.unwrap_err();
            assert!(matches!(failure, DialFailure::Unauthorized(it) if it == reason), "{answer}: {failure}");
            assert!(!format!("{failure} {failure:?}").contains("eyJ"), "{failure:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn short_reason_of_a_refusal_is_kept_and_no_page_or_token() {
        let url = Url::parse("ws://127.0.0.1").unwrap();
        let long = "x".repeat(MAX_WORDS + 1);
        for (answer, kept) in [
            ("Content-Length: 13\r\n\r\nno room name\n and more", "no room name"),
            ("\r\nidentity\r\n \u{1b}[31mis too long", "identity [31mis too long"),
            ("Transfer-Encoding: chunked\r\n\r\n3\r\nno \r\n4\r\nroom\r\n0\r\n\r\n", "no room"),
            ("Content-Encoding: gzip\r\n\r\nx", ""),
            ("Content-Type: application/x-protobuf\r\n\r\nx", ""),
            ("\r\n<html>not found", ""),
            ("\r\nno room for eyJhb.c.d", ""),
            (&*format!("\r\n{long}"), ""),
            ("\r\n", ""),
        ] {
            let (mut client_end, mut server_end) = tokio::io::duplex(1024);
            server_end.write_all(format!("HTTP/1.1 400 Bad Request\r\n{answer}").as_bytes()).await.unwrap();
            let failure = upgrade(&mut client_end, &url, "a.b.c").await.unwrap_err();
            assert!(matches!(&failure, DialFailure::Status(400, words) if words == kept), "{failure:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn interim_responses_come_before_the_one_that_counts() {
        let url = Url::parse("ws://127.0.0.1").unwrap();
        let (mut client_end, mut server_end) = tokio::io::duplex(4096);
        let serving = async {
            let mut request = [0; 1024];
            let size = server_end.read(&mut request).await.unwrap();
            let request = str::from_utf8(&request[..size]).unwrap();
            let key = request.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: ")).unwrap();
            let answer = format!(
                "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {}\r\n\r\n\x02hunter2",
                accept_key(key)
            );
            server_end.write_all(answer.as_bytes()).await.unwrap();
        };
        let (opened, ()) = tokio::join!(upgrade(&mut client_end, &url, "a.b.c"), serving);
        assert_eq!(opened.unwrap(), &b"\x02hunter2"[..]);
        // Endless ones are not waited for.
        let endless =
            async { while server_end.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await.is_ok() {} };
        let failure = tokio::select! {
            opened = upgrade(&mut client_end, &url, "a.b.c") => opened.unwrap_err(),
            () = endless => unreachable!("the other end is open"),
        };
        assert!(failure.to_string().contains("16384"), "{failure}");
    }

    #[tokio::test]
    async fn endless_response_is_aborted() {
        let url = Url::parse("ws://127.0.0.1").unwrap();
        let (mut client_end, mut server_end) = tokio::io::duplex(64 * 1024);
        let endless = async {
            server_end.write_all(b"HTTP/1.1 200 OK\r\na: ").await.unwrap();
            while server_end.write_all(&[b'x'; 1024]).await.is_ok() {}
        };
        let failure = tokio::select! {
            opened = upgrade(&mut client_end, &url, "a.b.c") => opened.unwrap_err(),
            () = endless => unreachable!("the other end is open"),
        };
        assert!(failure.to_string().contains("16384"), "{failure}");
    }
}
