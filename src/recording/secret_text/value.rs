//! Finds values in texts without a grammar: what follows a name and its separator.

use std::ops::Range;

use super::name::{Name, blanks};

/// Returns the value after `name:`.
pub(super) fn after_colon(text: &str, start: usize, name: &Name<'_>) -> Range<usize> {
    let mut start = start + text[start..].bytes().take_while(|byte| *byte == b'=').count(); // `:=`
    start += blanks(&text[start..]);
    if name.quote.is_some() {
        start += text[start..].len() - text[start..].trim_start().len(); // JSON may break the line here
    }
    if let Some(value) = quoted(text, start).or_else(|| bracketed(text, start, name.quote)) {
        return value;
    }
    let line = line_end(text, start);
    if name.quote.is_some() {
        // A number or a word in JSON.
        let end = text[start..line].find([',', '}', ']', ' ']).map_or(line, |end| start + end);
        return start..end;
    }
    trimmed(text, start..with_more_lines(text, start..line, name.indentation()))
}

/// Returns the value after `name=`.
pub(super) fn after_equals(text: &str, start: usize, name: &Name<'_>) -> Range<usize> {
    let first = start;
    let start = start + blanks(&text[start..]);
    let start = start + text[start..].bytes().take_while(|byte| matches!(byte, b'>' | b'=')).count();
    let start = start + blanks(&text[start..]);
    if let Some(value) = quoted(text, start).or_else(|| bracketed(text, start, name.quote)) {
        return value;
    }
    let end = start + parameter(&text[start..], false);
    if start == end && text[end..].starts_with(['\n', '\r']) {
        return trimmed(text, start..with_more_lines(text, start..end, name.indentation()));
    }
    // In a configuration file a value with spaces needs no quotes.
    let has_more = text[end..].starts_with([' ', '\t']);
    if has_more && (name.begins_line() || start > first) {
        return trimmed(text, start..line_end(text, end));
    }
    start..end
}

/// Returns the value after a quoted name and a comma, if it is quoted, in brackets or a number: other words are prose. A name before a
/// colon is the next key of an object.
pub(super) fn after_comma(text: &str, start: usize, name: &Name<'_>) -> Option<Range<usize>> {
    let start = start + (text[start..].len() - text[start..].trim_start().len());
    if let Some(value) = quoted(text, start) {
        let after = text[value.end..].trim_start_matches(['\\', '"', '\'', '`', ' ']);
        return (!after.starts_with(':')).then_some(value);
    }
    bracketed(text, start, name.quote).or_else(|| {
        let word = text[start..].find([',', ')', '}', ']', ' ', '\n']).unwrap_or(text.len() - start);
        text[start..].starts_with(|letter: char| letter.is_ascii_digit()).then_some(start..start + word)
    })
}

/// Returns the length of the value of a parameter in a URL or a form. A backslash before a line break continues it.
pub(super) fn parameter(text: &str, is_encoded: bool) -> usize {
    let bytes = text.as_bytes();
    let is_end = |at: usize| match bytes[at] {
        b'&' | b'"' | b'\'' | b'`' | b'<' | b'>' => true,
        b'%' => is_encoded && bytes[at..].starts_with(b"%26"),
        b'\\' => matches!(bytes.get(at + 1), Some(b'"' | b'\'')) || is_escaped_quote(&bytes[at..]),
        b'\n' | b'\r' => !bytes[..at].ends_with(b"\\") && !bytes[..at].ends_with(b"\\\r"),
        byte => byte.is_ascii_whitespace(),
    };
    (0..bytes.len()).find(|at| is_end(*at)).unwrap_or(bytes.len())
}

/// Returns whether a quote follows a few backslashes.
fn is_escaped_quote(bytes: &[u8]) -> bool {
    /// Texts inside one another have 1, 3, 7, 15 and so on.
    const MOST: usize = 64;
    let quote = bytes.iter().take(MOST).find(|byte| **byte != b'\\');
    matches!(quote, Some(b'"' | b'\''))
}

fn line_end(text: &str, start: usize) -> usize {
    text[start..].find(['\n', '\r']).map_or(text.len(), |end| start + end)
}

fn trimmed(text: &str, range: Range<usize>) -> Range<usize> {
    let value = &text[range.clone()];
    let start = range.start + (value.len() - value.trim_start().len());
    start..start + value.trim().len()
}

/// Returns the end of a value whose next lines belong to it: they have more indentation than its name, as in a folded header line and
/// a block of YAML, or they are the items of a list. Blank lines are a part of it if the name's own line has no value.
fn with_more_lines(text: &str, line: Range<usize>, indented: usize) -> usize {
    let own = text[line.clone()].trim();
    let (is_list, is_block) = (own.is_empty(), own.is_empty() || own.starts_with(['|', '>']));
    let mut end = line.end;
    loop {
        let breaks = text[end..].bytes().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let is_one_break = matches!(&text[end..end + breaks], "\n" | "\r\n" | "\r");
        let next = &text[end + breaks..];
        let indentation = blanks(next);
        let is_item = is_list && indentation >= indented && next[indentation..].starts_with("- ");
        let is_more = indentation > indented || is_item;
        if breaks == 0 || !is_more || !(is_one_break || is_block) || next[indentation..].is_empty() {
            return end;
        }
        end = line_end(text, end + breaks);
    }
}

/// Returns the inside of a quoted value that starts here, perhaps after backslashes.
pub(super) fn quoted(text: &str, start: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let escapes = bytes[start..].iter().take_while(|byte| **byte == b'\\').count();
    let quote = *bytes.get(start + escapes).filter(|byte| matches!(byte, b'"' | b'\'' | b'`'))?;
    let inside = start + escapes + 1;
    let end = closing_quote(bytes, inside, quote, escapes).unwrap_or(bytes.len());
    Some(inside..end)
}

/// Returns the position of the closing quote, before its backslashes. A doubled quote is a part of the text.
fn closing_quote(bytes: &[u8], from: usize, quote: u8, escapes: usize) -> Option<usize> {
    let (mut before, mut at) = (0, from);
    while let Some(byte) = bytes.get(at) {
        if *byte == b'\\' {
            (before, at) = (before + 1, at + 1);
            continue;
        }
        if *byte == quote && escapes == 0 && before % 2 == 0 {
            if bytes.get(at + 1) != Some(&quote) {
                return Some(at);
            }
            at += 1;
        } else if *byte == quote && escapes > 0 && before == escapes {
            return Some(at - before);
        }
        (before, at) = (0, at + 1);
    }
    None
}

/// Returns an object or a list that starts here. `quote` is that of its name.
fn bracketed(text: &str, start: usize, quote: Option<(u8, usize)>) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    bytes.get(start).filter(|byte| matches!(byte, b'{' | b'['))?;
    let (quote, escapes) = quote.unwrap_or((b'"', 0));
    let (mut at, mut depth, mut before) = (start, 0_usize, 0);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => {
                before += 1;
                at += 1;
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return Some(start..at + 1);
                }
            }
            byte if *byte == quote && before == escapes => {
                let Some(end) = closing_quote(bytes, at + 1, quote, escapes) else {
                    return Some(start..bytes.len());
                };
                at = end + escapes;
            }
            _ => {}
        }
        before = 0;
        at += 1;
    }
    Some(start..bytes.len())
}
