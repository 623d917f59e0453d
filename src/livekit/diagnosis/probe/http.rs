//! Makes one HTTP request, and reads no more than is needed to know what answers.

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time,
};
use url::Url;

use super::Probe;
use crate::{
    livekit::signaling::http::{content, interim},
    net::{redirect, tls_error::cause},
};

/// The longest answer that is read, in bytes: more than LiveKit's, and enough to know a web page.
const MAX_ANSWER: usize = 16 * 1024;

/// How many headers are read.
const MAX_HEADERS: usize = 128;

/// An HTTP answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HttpAnswer {
    /// The status code.
    pub(crate) status: u16,
    /// By how many seconds the server's clock is ahead of this machine's, if the answer has a `Date`.
    pub(crate) ahead: Option<i64>,
    /// The target of a redirection: another host, or how the address differs. It names no path.
    pub(crate) elsewhere: Option<String>,
    /// Whether it is an HTML page.
    pub(crate) is_page: bool,
    /// The body as far as it was read, at most 16 KiB. It can repeat the token: do not show it.
    pub(crate) body: String,
}

/// The reason why there is no HTTP response.
#[derive(Clone, Debug)]
pub(crate) enum HttpFault {
    /// There was no connection, or it ended too early.
    Ended(String),
    /// The answer is not HTTP.
    NotHttp,
    /// No answer arrived in time.
    Silent,
}

impl Probe {
    /// Requests a path below the server's address, with a token or without one.
    pub(crate) async fn get(&self, path: &str, token: Option<&str>) -> Result<HttpAnswer, HttpFault> {
        let before = unix_millis();
        let asked = async {
            let mut stream = self.open().await.map_err(io::Error::other)?;
            stream.write_all(request(&self.url, path, token).as_bytes()).await?;
            stream.flush().await?;
            let mut answer = Vec::new();
            let read = stream.take(MAX_ANSWER as u64).read_to_end(&mut answer).await;
            // Some end a connection without the farewell that TLS wants; what came is an answer all the same.
            if answer.is_empty() { read.map(|_| answer) } else { Ok(answer) }
        };
        let bytes = match time::timeout(self.limit, asked).await {
            Err(_) => return Err(HttpFault::Silent),
            Ok(Err(error)) => return Err(HttpFault::Ended(cause(&error))),
            Ok(Ok(bytes)) if bytes.is_empty() => {
                return Err(HttpFault::Ended("the connection was closed without a response".into()));
            }
            Ok(Ok(bytes)) => bytes,
        };
        // The server reads its clock somewhere between request and answer. The middle halves the largest error.
        let middle = before.midpoint(unix_millis()) / 1000;
        let mut asked = self.url.clone();
        asked.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        read(&asked, &bytes, i64::try_from(middle).unwrap_or(i64::MAX)).ok_or(HttpFault::NotHttp)
    }
}

/// Returns the seconds since 1970.
pub(crate) fn unix_seconds() -> i64 {
    i64::try_from(unix_millis() / 1000).unwrap_or(i64::MAX)
}

/// Returns the milliseconds since 1970.
fn unix_millis() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn request(url: &Url, path: &str, token: Option<&str>) -> String {
    let host = match url.port() {
        Some(port) => format!("{}:{port}", url.host_str().unwrap_or_default()),
        None => url.host_str().unwrap_or_default().to_owned(),
    };
    let bearer = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    format!(
        "GET {}{path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: toolbridge-doctor/{}\r\nAccept: */*\r\n\
         Connection: close\r\n{bearer}\r\n",
        url.path().trim_end_matches('/'),
        env!("CARGO_PKG_VERSION")
    )
}

fn read(asked: &Url, bytes: &[u8], now: i64) -> Option<HttpAnswer> {
    let bytes = &bytes[interim(bytes)..];
    let mut config = httparse::ParserConfig::default();
    config.allow_spaces_after_header_name_in_responses(true).ignore_invalid_headers_in_responses(true);
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(parsed) = config.parse_response(&mut head, bytes) else { return None };
    let httparse::Status::Complete(size) = parsed else {
        // A truncated response is read as far as it goes.
        let is_ended = bytes.ends_with(b"\r\n\r\n");
        return if is_ended { None } else { read(asked, &[bytes, b"\r\n\r\n"].concat(), now) };
    };
    let body = String::from_utf8_lossy(&content(head.headers, &bytes[size..]).0).into_owned();
    let mut answer = HttpAnswer { status: head.code?, body, ..HttpAnswer::default() };
    for header in head.headers.iter() {
        let value = String::from_utf8_lossy(header.value);
        let value = value.trim();
        match header.name.to_ascii_lowercase().as_str() {
            "date" => answer.ahead = date(value).map(|date| date - now),
            "content-type" => answer.is_page = value.to_ascii_lowercase().starts_with("text/html"),
            "location" => {
                answer.elsewhere = Some(redirect::describe(asked, value));
            }
            _ => {}
        }
    }
    Some(answer)
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT` as seconds since 1970 ([RFC
/// 9110](https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7)).
fn date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let mut words = text.split_once(", ")?.1.split(' ');
    let day = number(words.next()?, 2)?;
    let month = words.next().and_then(|name| MONTHS.iter().position(|month| *month == name))?;
    let year = number(words.next()?, 4)?;
    let mut time = words.next()?.split(':').map(|part| number(part, 2));
    let (hours, minutes, seconds) = (time.next()??, time.next()??, time.next()??);
    let days = days_since_1970(year, i64::try_from(month).ok()? + 1, day);
    Some(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
}

fn number(text: &str, digits: usize) -> Option<i64> {
    let all_digits = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| text.parse().ok()).flatten()
}

/// Returns the days from the first of January 1970 to a day of the Gregorian calendar.
pub(super) fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    // A year that begins in March has its leap day at the end.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    // From the first of March of the year 0 to 1970.
    const BEFORE: i64 = 719_468;
    year * 365 + leap_days + (153 * month + 2) / 5 + day - 1 - BEFORE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> Url {
        Url::parse("ws://sfu.example.com/rtc/validate").unwrap()
    }

    #[test]
    fn date_is_parsed() {
        assert_eq!(date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(date("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199));
        for wrong in [
            "",
            "now",
            "Sun, 6 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 99999999999999999999 08:49:37 GMT",
            "Sun, 06 Non 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
        ] {
            assert_eq!(date(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn incomplete_response_is_read_as_far_as_possible() {
        let answer =
            read(&url(), b"HTTP/1.1 401 Unauthorized\r\nDate: Thu, 01 Jan 1970 00:01:40 GMT\r\n\r\nno", 40)
                .unwrap();
        assert_eq!((answer.status, answer.ahead, answer.body.as_str()), (401, Some(60), "no"));
        let page = read(&url(), b"HTTP/1.0 302 Found\r\nLOCATION: http://login.hotel.example/?x\r\ncontent-type: Text/HTML; charset=x\r\n\r\n", 0);
        let page = page.unwrap();
        assert_eq!((page.elsewhere.as_deref(), page.is_page), (Some("login.hotel.example"), true));
        assert_eq!(
            read(&url(), b"HTTP/1.1 302 x\r\nLocation: /login?a=b", 0).unwrap().elsewhere.as_deref(),
            Some("another path of the same host")
        );
        assert_eq!(read(&url(), b"HTTP/1.1 200", 0).unwrap().status, 200);
        assert_eq!(read(&url(), b"HTTP/1.1 103\r\n\r\nHTTP/1.1 200\r\n\r\n", 0).unwrap().status, 200);
        for wrong in [&b""[..], b"SSH-2.0-x\r\n", b"HTTP/1.1\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x15\x03\x01"] {
            assert_eq!(read(&url(), wrong, 0), None);
        }
    }

    #[test]
    fn request_path_is_below_the_servers_path() {
        let url = Url::parse("wss://sfu.example.com/lk/").unwrap();
        assert!(
            request(&url, "/rtc/validate", None)
                .starts_with("GET /lk/rtc/validate HTTP/1.1\r\nHost: sfu.example.com\r\n")
        );
        let url = Url::parse("ws://[::1]:7880").unwrap();
        assert!(request(&url, "/", None).starts_with("GET / HTTP/1.1\r\nHost: [::1]:7880\r\n"));
    }
}
