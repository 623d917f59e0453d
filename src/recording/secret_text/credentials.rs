//! Finds the password in a URL, which has no name.

use std::ops::Range;

/// The shortest user of a URL that counts as a token, in bytes, unless it has a digit: `git@host` has none.
const MIN_TOKEN: usize = 16;

/// How far the host of a URL is looked for, in bytes.
const MAX_AUTHORITY: usize = 384;

/// Returns the password before the host of a URL: `https://user:hunter2@host`. `mark` is the colon of its scheme.
pub(super) fn in_url(text: &str, mark: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let slashes = [&b"//"[..], b"\\/\\/", b"%2F%2F", b"%2f%2f"];
    let colon = if bytes[mark] == b'%' { 3 } else { 1 };
    let start = mark + colon;
    let found = slashes.into_iter().find(|it| bytes[start..].starts_with(it))?;
    let start = start + found.len();
    let near = &bytes[start..bytes.len().min(start + MAX_AUTHORITY)];
    let near = &near
        [..near.iter().position(|byte| byte.is_ascii_whitespace() || *byte == b'<').unwrap_or(near.len())];
    let inside = if colon == 3 { encoded(near) } else { plain(near) }?;
    Some(start + inside.start..start + inside.end)
}

/// Finds the password in what follows `://`.
fn plain(near: &[u8]) -> Option<Range<usize>> {
    let is_end = |byte: &u8| b":@/?#\\\"'`>,;()[]{}|".contains(byte);
    let user = near.iter().position(is_end)?;
    if near[user] == b'@' {
        return is_token(&near[..user]).then_some(0..user);
    }
    if near[user] != b':' {
        return None;
    }
    let (start, rest) = (user + 1, &near[user + 1..]);
    if is_port(rest) {
        return None;
    }
    let host = rest.iter().position(|byte| matches!(byte, b'/' | b'?' | b'#' | b'\\')).unwrap_or(rest.len());
    let last = |part: &[u8]| part.iter().rposition(|byte| *byte == b'@');
    // The password may have a `/` too.
    let end = last(&rest[..host]).or_else(|| last(rest))?;
    Some(start..start + end)
}

/// Returns whether a port begins here, and no password: `localhost:8080/a@b`.
fn is_port(rest: &[u8]) -> bool {
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let ends = rest.get(digits).is_none_or(|byte| b"/?#\\\"'`>,;()[]{}|".contains(byte));
    (1..=5).contains(&digits) && ends
}

/// Finds the password in what follows `%3A%2F%2F`.
fn encoded(near: &[u8]) -> Option<Range<usize>> {
    let near = &near[..near.iter().position(|byte| b"&\"'`>".contains(byte)).unwrap_or(near.len())];
    let find = |part: &[u8], code: &[u8; 3]| part.windows(3).position(|it| it.eq_ignore_ascii_case(code));
    let host = find(near, b"%2f").unwrap_or(near.len());
    let start = find(&near[..host], b"%3a")? + 3;
    let end = near[start..host].windows(3).rposition(|it| it == b"%40")?;
    Some(start..start + end)
}

fn is_token(text: &[u8]) -> bool {
    text.len() >= MIN_TOKEN || text.iter().any(u8::is_ascii_digit)
}
