//! Finds names in texts without a grammar: the words before a separator.

use std::{borrow::Cow, ops::Range};

use super::super::json_secrets::Secrets;

/// How far before a separator a name may begin, in bytes: names are short, and each separator costs this much at most.
pub(super) const MAX_BACK: usize = 96;

/// How many words a name has at most: `private key: …`.
const MAX_WORDS: usize = 3;

/// What may stand between a name and its separator, besides blanks: `"password": …`, `user[password]=…`.
const CLOSING: &[&str] = &["]", "\"", "'", "`", "\\", "%5D", "%5d", "%22"];

/// A name before a separator.
pub(super) struct Name<'a> {
    text: &'a str,
    /// The candidates, from the last word alone to several words.
    candidates: [Range<usize>; MAX_WORDS],
    /// Whether a quote stands after the name.
    pub(super) is_quoted: bool,
}

impl<'a> Name<'a> {
    /// Finds the name that ends before this separator. Everything before `done` is redacted already.
    pub(super) fn before(text: &'a str, mark: usize, done: usize) -> Option<Self> {
        let bytes = text.as_bytes();
        let limit = done.max(mark.saturating_sub(MAX_BACK));
        let (mut end, mut is_quoted) = (without_blanks(bytes, limit, mark), false);
        while let Some(closing) = CLOSING.iter().find(|it| bytes[limit..end].ends_with(it.as_bytes())) {
            is_quoted |= matches!(*closing, "\"" | "'" | "`");
            end = without_blanks(bytes, limit, end - closing.len());
        }
        let mut candidates = [const { 0..0 }; MAX_WORDS];
        let mut start = end;
        for candidate in &mut candidates {
            let word = word_start(bytes, limit, start);
            if word == start {
                break;
            }
            *candidate = word..end;
            if !bytes[limit..word].ends_with(b" ") {
                break;
            }
            start = word - 1;
        }
        (!candidates[0].is_empty()).then_some(Self { text, candidates, is_quoted })
    }

    pub(super) fn is_secret(&self, rule: &mut impl Secrets) -> bool {
        let words = self.candidates.iter().filter(|it| !it.is_empty());
        let names = words.filter_map(|range| self.text.get(range.clone()));
        names.into_iter().any(|name| rule.is_secret(unescaped(name).as_bytes()))
    }

    /// Returns whether the name is the first thing on its line.
    pub(super) fn begins_line(&self) -> bool {
        self.line().is_some_and(|line| matches!(line.trim(), "" | "export" | "set"))
    }

    /// The start of the line before the name, if that is near.
    fn line(&self) -> Option<&'a str> {
        let (bytes, end) = (self.text.as_bytes(), self.candidates[0].start);
        let limit = end.saturating_sub(MAX_BACK);
        let is_break = |byte: &u8| matches!(byte, b'\n' | b'\r');
        let found = bytes[limit..end].iter().rposition(is_break).map(|at| limit + at + 1);
        self.text.get(found.or_else(|| (limit == 0).then_some(0))?..end)
    }
}

/// Returns the number of blanks at the start.
pub(super) fn blanks(text: &str) -> usize {
    text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

fn without_blanks(bytes: &[u8], limit: usize, end: usize) -> usize {
    end - bytes[limit..end].iter().rev().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// Returns the start of the word that ends here: letters, digits, `_`, `-`, `.`, `$`, and escapes of them.
fn word_start(bytes: &[u8], limit: usize, end: usize) -> usize {
    let mut start = end;
    while start > limit {
        let at = start - 1;
        let is_hex = |count: usize, from: usize| {
            bytes[from..end].get(..count).is_some_and(|hex| hex.iter().all(u8::is_ascii_hexdigit))
        };
        let is_part = match bytes[at] {
            b'_' | b'-' | b'.' | b'$' => true,
            b'%' => is_hex(2, start),
            b'\\' => bytes[start..end].first() == Some(&b'u') && is_hex(4, start + 1),
            byte => byte.is_ascii_alphanumeric() || byte >= 0x80,
        };
        if !is_part {
            break;
        }
        start = at;
    }
    // Encoded separators and brackets end a word too.
    let inside = &bytes[start..end];
    let last = (0..inside.len()).rev().find(|at| inside[*at] == b'%' && is_encoded_mark(&inside[*at..]));
    last.map_or(start, |at| start + at + 3)
}

/// Returns whether an encoded character begins here that separates names: `&`, `=`, `?`, `[`, `"`, `{`, `,`, space and others.
fn is_encoded_mark(bytes: &[u8]) -> bool {
    let [b'%', high, low, ..] = bytes else { return false };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let Some((high, low)) = digit(*high).zip(digit(*low)) else { return false };
    let code = (high << 4 | low) as u8;
    code < 0x80 && !code.is_ascii_alphanumeric() && !matches!(code, b'_' | b'-' | b'.' | b'%')
}

/// Decodes `\u0070` and `%70`.
fn unescaped(name: &str) -> Cow<'_, str> {
    if !name.contains(['\\', '%']) {
        return name.into();
    }
    let mut out = Vec::new();
    let bytes = name.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = |from: usize, count: usize| u32::from_str_radix(name.get(from..from + count)?, 16).ok();
        if let Some(code) = hex(at + 1, 2).filter(|_| *byte == b'%') {
            out.push(code as u8);
            at += 3;
        } else if let Some(code) = hex(at + 2, 4).filter(|_| bytes[at..].starts_with(b"\\u")) {
            let letter = char::from_u32(code).unwrap_or('_');
            out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            at += 6;
        } else {
            out.push(*byte);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned().into()
}
