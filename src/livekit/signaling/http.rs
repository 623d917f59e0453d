//! Reads what the responses of HTTP/1.1 may consist of beside one head and a body of a known length.

use std::borrow::Cow;

/// Returns the size of the complete interim responses ([RFC 9110](https://www.rfc-editor.org/rfc/rfc9110#section-15.2)) at the start,
/// such as 100 or 103: the final one follows. The one that switches protocols (101) is final.
pub(crate) fn interim(bytes: &[u8]) -> usize {
    let mut size = 0;
    while let rest = &bytes[size..]
        && rest.starts_with(b"HTTP/1.")
        && rest.get(8..10) == Some(b" 1")
        && rest.get(10..12).is_some_and(|digits| digits != b"01")
        && let Some(end) = rest.windows(4).position(|it| it == b"\r\n\r\n")
    {
        size += end + 4;
    }
    size
}

/// Returns the content of a body in chunks ([RFC 9112](https://www.rfc-editor.org/rfc/rfc9112#section-7.1)) as far as it is there,
/// and whether it is complete.
fn unchunked(mut bytes: &[u8]) -> (Vec<u8>, bool) {
    let mut content = Vec::new();
    while let Ok(httparse::Status::Complete((start, size))) = httparse::parse_chunk_size(bytes) {
        let rest = &bytes[start..];
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        content.extend_from_slice(&rest[..size.min(rest.len())]);
        match rest.get(size.saturating_add(2)..) {
            _ if size == 0 => return (content, true),
            Some(next) => bytes = next,
            None => break,
        }
    }
    (content, false)
}

/// Returns the value of a header in lower case.
fn value(headers: &[httparse::Header<'_>], name: &str) -> Option<String> {
    let found = headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
    found.map(|header| String::from_utf8_lossy(header.value).trim().to_ascii_lowercase())
}

/// Returns whether a body with these headers is a text, and no page or document.
pub(crate) fn is_text(headers: &[httparse::Header<'_>]) -> bool {
    value(headers, "content-type").is_none_or(|it| it.starts_with("text/plain"))
}

/// Returns the content of a body with these headers, as far as it is there and its coding can be read, and whether nothing more can
/// follow.
pub(crate) fn content<'a>(headers: &[httparse::Header<'_>], body: &'a [u8]) -> (Cow<'a, [u8]>, bool) {
    let value = |name: &str| value(headers, name);
    let is_plain = |coding: Option<String>| coding.is_none_or(|it| it.is_empty() || it == "identity");
    let coding = value("transfer-encoding");
    if !is_plain(value("content-encoding")) {
        return (Cow::Borrowed(&[]), true);
    }
    if coding.as_deref() == Some("chunked") {
        let (content, is_complete) = unchunked(body);
        return (content.into(), is_complete);
    }
    if !is_plain(coding) {
        return (Cow::Borrowed(&[]), true);
    }
    let length: Option<usize> = value("content-length").and_then(|it| it.parse().ok());
    let size = length.unwrap_or(usize::MAX).min(body.len());
    (body[..size].into(), length.is_some_and(|length| body.len() >= length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interim_responses_are_skipped_and_no_final_one() {
        let last = "HTTP/1.1 101 Switching Protocols\r\n\r\n";
        for before in [
            "",
            "HTTP/1.1 100 Continue\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\nHTTP/1.1 102\r\n\r\n",
        ] {
            assert_eq!(interim(format!("{before}{last}").as_bytes()), before.len(), "{before}");
        }
        for other in ["", "HTTP/1.1 1", "HTTP/1.1 103 x\r\n", "HTTP/1.1 200 OK\r\n\r\n", "SSH-2.0\r\n\r\n"] {
            assert_eq!(interim(other.as_bytes()), 0, "{other}");
        }
    }

    #[test]
    fn chunks_are_joined_as_far_as_they_came() {
        let whole = b"5\r\nno ro\r\n8;a=b\r\nom name\n\r\n0\r\n\r\n";
        assert_eq!(unchunked(whole), (b"no room name\n".to_vec(), true));
        for end in 0..whole.len() - 4 {
            let (content, is_complete) = unchunked(&whole[..end]);
            assert!(b"no room name\n".starts_with(&content) && !is_complete, "{end}");
        }
        assert_eq!(unchunked(b"ffffffffffffffff\r\nabc"), (b"abc".to_vec(), false));
        assert_eq!(unchunked(b"zz\r\nabc"), (Vec::new(), false));
    }

    #[test]
    fn only_what_has_a_known_coding_is_content() {
        let header = |name, value: &'static str| httparse::Header { name, value: value.as_bytes() };
        let of = |name, value: &'static str| {
            let header = header(name, value);
            let (content, is_complete) = content(&[header], b"3\r\nabc\r\n0\r\n\r\n");
            (String::from_utf8(content.into_owned()).unwrap(), is_complete)
        };
        assert_eq!(of("Transfer-Encoding", "chunked"), ("abc".to_owned(), true));
        assert_eq!(of("content-length", "4"), ("3\r\na".to_owned(), true));
        assert!(!of("content-length", "99").1);
        for (name, value) in [("Transfer-Encoding", "gzip, chunked"), ("Content-Encoding", "gzip")] {
            assert_eq!(of(name, value), (String::new(), true), "{value}");
        }
        let is_text = |value| is_text(&[header("Content-Type", value)]);
        assert!(is_text("Text/plain; charset=utf-8") && !is_text("text/html") && super::is_text(&[]));
    }
}
