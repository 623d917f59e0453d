//! Finds values beside secret names in texts that are no JSON: URLs, forms, header lines, configuration files, commands, and
//! JSON that stands in the middle of a text.
//!
//! Such texts have no grammar. A name counts if `=`, `:` or their percent-encoded form follows, and what follows then is its value,
//! rather too much of it than too little.

use std::{borrow::Cow, ops::Range};

use super::{json_secrets::Secrets, placeholder};

/// How far before a separator a name may begin, in bytes: names are short, and each separator costs this much at most.
const MAX_BACK: usize = 96;

/// How many words a name has at most: `private key: …`.
const MAX_WORDS: usize = 3;

/// The shortest text after `Bearer` that counts as a token, in bytes, unless it has a digit: `bearer of news` is none.
const MIN_BEARER: usize = 16;

/// How far the end of an XML element is looked for if there are elements inside it, in bytes.
const MAX_ELEMENT: usize = 1_024;

/// Returns the text with the values beside secret names redacted, or `None` if there are none.
pub(super) fn redacted(text: &str, rule: &mut impl Secrets) -> Option<String> {
    let mut out = String::new();
    let mut done = 0;
    each(text, rule, |value| {
        out.push_str(&text[done..value.start]);
        out.push_str(&placeholder::of_part(value.len()));
        done = value.end;
        true
    });
    if done == 0 {
        return None;
    }
    out.push_str(&text[done..]);
    Some(out)
}

/// Returns whether [`redacted`] would redact anything.
pub(super) fn has_secret(text: &str, rule: &mut impl Secrets) -> bool {
    let mut has = false;
    each(text, rule, |_| {
        has = true;
        false
    });
    has
}

/// Calls `take` with the range of each value beside a secret name, in order, until it returns false.
fn each(text: &str, rule: &mut impl Secrets, mut take: impl FnMut(Range<usize>) -> bool) {
    let bytes = text.as_bytes();
    // Where the last value ended.
    let mut done = 0;
    let mut at = 0;
    while let Some(next) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| is_mark(*byte))) {
        let mark = at + next;
        at = mark + 1;
        let Some(value) = value_at(text, mark, done, rule) else { continue };
        let inside = &text[value.clone()];
        let is_nothing = matches!(inside, "" | "null" | "nil" | "None" | "undefined");
        if !is_nothing && placeholder::read(inside.as_bytes()).is_none() && !take(value.clone()) {
            return;
        }
        (at, done) = (value.end.max(at), value.end.max(done));
    }
}

/// Returns whether a value may follow this byte, or an encoded separator begin here.
fn is_mark(byte: u8) -> bool {
    matches!(byte, b'=' | b':' | b'%' | b'-' | b'>' | b' ' | b'@')
}

/// Returns the value that belongs to this mark, if its name is secret. Everything before `done` is redacted already.
fn value_at(text: &str, mark: usize, done: usize, rule: &mut impl Secrets) -> Option<Range<usize>> {
    let rest = &text.as_bytes()[mark..];
    match rest[0] {
        // `::` separates the parts of a path in many programming languages.
        b':' if rest.get(1) == Some(&b':') || text.as_bytes()[..mark].ends_with(b":") => None,
        b':' => {
            let name = Name::before(text, mark, done).filter(|name| name.is_secret(rule))?;
            Some(after_colon(text, mark + 1, &name))
        }
        b'=' => {
            let name = Name::before(text, mark, done).filter(|name| name.is_secret(rule))?;
            Some(after_equals(text, mark + 1, &name))
        }
        b'%' if rest.len() > 3 && rest[1] == b'3' && matches!(rest[2], b'D' | b'd' | b'A' | b'a') => {
            Name::before(text, mark, done).filter(|name| name.is_secret(rule))?;
            let start = mark + 3;
            Some(start..start + parameter(&text[start..], true))
        }
        b'-' if rest.get(1) == Some(&b'-') => after_flag(text, mark, rule),
        b'>' => in_element(text, mark, rule),
        b' ' => after_bearer(text, mark),
        b'@' => before_host(text, mark, done),
        _ => None,
    }
}

/// A name before a separator.
struct Name<'a> {
    text: &'a str,
    /// The candidates, from the last word alone to several words.
    candidates: [Range<usize>; MAX_WORDS],
    /// The quote after the name, with the backslashes before it.
    quote: Option<(u8, usize)>,
}

impl<'a> Name<'a> {
    /// Finds the name that ends before this separator.
    fn before(text: &'a str, mark: usize, done: usize) -> Option<Self> {
        let bytes = text.as_bytes();
        let limit = done.max(mark.saturating_sub(MAX_BACK));
        let back = |end: usize, is_skipped: fn(u8) -> bool| {
            let skipped = bytes[limit..end].iter().rev().take_while(|byte| is_skipped(**byte)).count();
            end - skipped
        };
        let mut end = back(mark, |byte| matches!(byte, b' ' | b'\t'));
        let mut quote = None;
        if let Some(found @ (b'"' | b'\'' | b'`')) = bytes[limit..end].last() {
            let start = back(end - 1, |byte| byte == b'\\');
            quote = Some((*found, end - 1 - start));
            end = start;
        }
        // `user[password]=`, also with encoded brackets.
        while let Some(open) = closing_bracket(&bytes[limit..end]) {
            end -= open;
        }
        let mut candidates = [const { 0..0 }; MAX_WORDS];
        let mut start = end;
        for candidate in &mut candidates {
            let word = word_start(bytes, limit, start);
            if word == start {
                break;
            }
            *candidate = word..end;
            if word == limit || bytes[word - 1] != b' ' {
                break;
            }
            start = word - 1;
        }
        (!candidates[0].is_empty()).then_some(Self { text, candidates, quote })
    }

    fn is_secret(&self, rule: &mut impl Secrets) -> bool {
        self.candidates.iter().filter(|it| !it.is_empty()).any(|range| {
            let Some(name) = self.text.get(range.clone()) else { return false };
            // In a text inside a text the `n` of a line break stands before the name.
            let bytes = self.text.as_bytes();
            let is_escaped =
                range.start > 0 && bytes[range.start - 1] == b'\\' && name.starts_with(['n', 'r', 't']);
            let name = unescaped(name);
            rule.is_secret(name.as_bytes()) || (is_escaped && rule.is_secret(&name.as_bytes()[1..]))
        })
    }

    /// Returns whether the name is the first thing on its line.
    fn begins_line(&self) -> bool {
        self.line().is_some_and(|line| matches!(line.trim(), "" | "export" | "set" | "-" | "#" | "//" | ";"))
    }

    /// The number of spaces before the line of the name.
    fn indentation(&self) -> usize {
        self.line().map_or(0, indentation)
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

/// Returns the size of a closing bracket at the end.
fn closing_bracket(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [.., b']' | b')' | b'}'] => Some(1),
        [.., b'%', b'5', b'D' | b'd'] | [.., b'%', b'2', b'2'] => Some(3),
        _ => None,
    }
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

/// Returns the value after `name:`.
fn after_colon(text: &str, start: usize, name: &Name<'_>) -> Range<usize> {
    let start = start + blanks(&text[start..]);
    if let Some(value) = quoted(text, start).or_else(|| bracketed(text, start, name.quote)) {
        return value;
    }
    let line = text[start..].find(['\n', '\r']).map_or(text.len(), |end| start + end);
    if name.quote.is_some() {
        // A number or a word in JSON.
        let end = text[start..line].find([',', '}', ']', ' ']).map_or(line, |end| start + end);
        return start..end;
    }
    let end = with_continued_lines(text, line, name.indentation());
    let value = text[start..end].trim();
    let from = start + (text[start..end].len() - text[start..end].trim_start().len());
    from..from + value.len()
}

/// Returns the value after `name=`.
fn after_equals(text: &str, start: usize, name: &Name<'_>) -> Range<usize> {
    let first = start;
    let start = start + blanks(&text[start..]);
    let start = start + text[start..].bytes().take_while(|byte| matches!(byte, b'>' | b'=')).count();
    let start = start + blanks(&text[start..]);
    if let Some(value) = quoted(text, start).or_else(|| bracketed(text, start, name.quote)) {
        return value;
    }
    let end = start + parameter(&text[start..], false);
    // In a configuration file a value with spaces needs no quotes.
    let has_more = text[end..].starts_with([' ', '\t']);
    if has_more && (name.begins_line() || start > first) {
        let line = text[end..].find(['\n', '\r']).map_or(text.len(), |line| end + line);
        return start..start + text[start..line].trim_end().len();
    }
    start..end
}

/// Returns the length of the value of a parameter in a URL or a form.
fn parameter(text: &str, is_encoded: bool) -> usize {
    let bytes = text.as_bytes();
    let is_end = |at: usize| match bytes[at] {
        b'&' | b'"' | b'\'' | b'`' | b'<' | b'>' => true,
        b'%' => is_encoded && bytes[at..].starts_with(b"%26"),
        b'\\' => {
            let quote = bytes[at..].iter().find(|byte| **byte != b'\\');
            matches!(quote, Some(b'"' | b'\''))
        }
        byte => byte.is_ascii_whitespace(),
    };
    (0..bytes.len()).find(|at| is_end(*at)).unwrap_or(bytes.len())
}

/// Returns the number of blanks at the start.
fn blanks(text: &str) -> usize {
    text.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

fn indentation(line: &str) -> usize {
    line.bytes().take_while(|byte| matches!(byte, b' ' | b'\t')).count()
}

/// Returns the end of a value whose next lines have more indentation than its name: a folded header line, or a block in YAML.
fn with_continued_lines(text: &str, line: usize, indented: usize) -> usize {
    let mut end = line;
    loop {
        let next = end + text[end..].bytes().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let is_one_break = matches!(&text[end..next], "\n" | "\r\n" | "\r");
        let here = &text[next..];
        if !is_one_break || indentation(here) <= indented || here.trim_start().is_empty() {
            return end;
        }
        end = here.find(['\n', '\r']).map_or(text.len(), |line| next + line);
    }
}

/// Returns the inside of a quoted value that starts here, perhaps after backslashes.
fn quoted(text: &str, start: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let escapes = bytes[start..].iter().take_while(|byte| **byte == b'\\').count();
    let quote = *bytes.get(start + escapes).filter(|byte| matches!(byte, b'"' | b'\'' | b'`'))?;
    let inside = start + escapes + 1;
    let end = closing_quote(bytes, inside, quote, escapes).unwrap_or(bytes.len());
    Some(inside..end)
}

/// Returns the position of the closing quote, before its backslashes.
fn closing_quote(bytes: &[u8], from: usize, quote: u8, escapes: usize) -> Option<usize> {
    let mut before = 0;
    for (at, byte) in bytes.iter().enumerate().skip(from) {
        if *byte == b'\\' {
            before += 1;
            continue;
        }
        let closes = if escapes == 0 { before % 2 == 0 } else { before == escapes };
        if *byte == quote && closes {
            return Some(if escapes == 0 { at } else { at - before });
        }
        before = 0;
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

/// Returns the value of a command's option that is another word: `--password hunter2`.
fn after_flag(text: &str, mark: usize, rule: &mut impl Secrets) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    if mark > 0 && !bytes[mark - 1].is_ascii_whitespace() {
        return None;
    }
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let end = mark + bytes[mark..].iter().take(MAX_BACK).take_while(|byte| is_name(byte)).count();
    let start = end + blanks(&text[end..]);
    if start == end || !rule.is_secret(&bytes[mark..end]) || text[start..].starts_with('-') {
        return None;
    }
    quoted(text, start).or_else(|| Some(start..start + parameter(&text[start..], false)))
}

/// Returns the text of an XML element: `<password>hunter2</password>`.
fn in_element(text: &str, mark: usize, rule: &mut impl Secrets) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let limit = mark.saturating_sub(MAX_BACK);
    let open = limit + bytes[limit..mark].iter().rposition(|byte| *byte == b'<')?;
    let name = text.get(open + 1..mark)?.split_whitespace().next()?;
    if name.starts_with('/') || name.ends_with('/') || !rule.is_secret(name.as_bytes()) {
        return None;
    }
    let rest = &text[mark + 1..];
    // An element inside is looked for only so far that a text full of tags is searched in linear time.
    let near = rest.get(..MAX_ELEMENT).unwrap_or(rest);
    let end = near.find(&format!("</{name}")).or_else(|| rest.find('<'))?;
    let inside = &rest[..end];
    let start = mark + 1 + (inside.len() - inside.trim_start().len());
    Some(start..start + inside.trim().len())
}

/// Returns a token after `Bearer` that has no name before it.
fn after_bearer(text: &str, mark: usize) -> Option<Range<usize>> {
    const SCHEME: usize = "Bearer".len();
    let bytes = text.as_bytes();
    let start = mark.checked_sub(SCHEME)?;
    if !bytes[start..mark].eq_ignore_ascii_case(b"bearer") {
        return None;
    }
    if start > 0 && bytes[start - 1].is_ascii_alphanumeric() {
        return None;
    }
    let value = mark + 1;
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(byte);
    let end = value + bytes[value..].iter().take_while(|byte| is_token(byte)).count();
    let token = &bytes[value..end];
    (token.len() >= MIN_BEARER || token.iter().any(u8::is_ascii_digit)).then_some(value..end)
}

/// Returns the password in a URL: `https://user:hunter2@host`.
fn before_host(text: &str, mark: usize, done: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let ends = |byte: &u8| {
        byte.is_ascii_whitespace() || matches!(byte, b'/' | b'"' | b'\'' | b'<' | b'>' | b'?' | b'#')
    };
    let limit = done.max(mark.saturating_sub(4 * MAX_BACK));
    let start = limit + bytes[limit..mark].iter().rposition(ends)? + 1;
    let user = &bytes[start..mark];
    if !bytes[..start].ends_with(b"://") {
        return None;
    }
    let colon = user.iter().position(|byte| *byte == b':')?;
    Some(start + colon + 1..mark)
}

#[cfg(test)]
mod tests {
    use super::{super::secret_names, *};

    struct Names;

    impl Secrets for Names {
        fn is_secret(&mut self, key: &[u8]) -> bool {
            secret_names::is_secret(&String::from_utf8_lossy(key))
        }

        fn is_suspect(&self, _: &[u8]) -> bool {
            false
        }
    }

    fn of(text: &str) -> String {
        redacted(text, &mut Names).unwrap_or_else(|| text.to_owned())
    }

    #[test]
    fn values_beside_secret_names_are_redacted() {
        for (text, expected) in [
            ("https://x/?token=hunter2", "https://x/?token=<redacted: 7 bytes>"),
            ("https://x/?a=1&token=hunter2&b=2#c", "https://x/?a=1&token=<redacted: 7 bytes>&b=2#c"),
            ("https://x/#access_token=hunter2&b=2", "https://x/#access_token=<redacted: 7 bytes>&b=2"),
            ("https://ada:hunter2@x/?q=1", "https://ada:<redacted: 7 bytes>@x/?q=1"),
            (
                "next=https%3A%2F%2Fx%2F%3Ftoken%3Dhunter2%26b%3D2",
                "next=https%3A%2F%2Fx%2F%3Ftoken%3D<redacted: 7 bytes>%26b%3D2",
            ),
            ("password=hunter2&user=a", "password=<redacted: 7 bytes>&user=a"),
            ("user=a&p%61ssword=hunter2", "user=a&p%61ssword=<redacted: 7 bytes>"),
            ("user[password]=hunter2&a=1", "user[password]=<redacted: 7 bytes>&a=1"),
            ("user%5Bpassword%5D=hunter2&a=1", "user%5Bpassword%5D=<redacted: 7 bytes>&a=1"),
            ("Authorization: Bearer hunter2", "Authorization: <redacted: 14 bytes>"),
            (
                "GET / HTTP/1.1\r\nCookie: a=b; c=hunter2\r\nHost: x",
                "GET / HTTP/1.1\r\nCookie: <redacted: 14 bytes>\r\nHost: x",
            ),
            (
                "Authorization: Bearer\r\n hunter2\r\nHost: x",
                "Authorization: <redacted: 16 bytes>\r\nHost: x",
            ),
            ("a: 1\npassword: hunter2\nb: 2", "a: 1\npassword: <redacted: 7 bytes>\nb: 2"),
            (
                "a:\n  password: |\n    hunter2\n    more\n  b: 2",
                "a:\n  password: <redacted: 22 bytes>\n  b: 2",
            ),
            ("password:\n  hunter2\nb: 2", "password:\n  <redacted: 7 bytes>\nb: 2"),
            ("API_KEY=hunter2\nB=2", "API_KEY=<redacted: 7 bytes>\nB=2"),
            ("export DB_PASSWORD='hun ter2'", "export DB_PASSWORD='<redacted: 8 bytes>'"),
            ("db.password = hunter2 and more\nb = 2", "db.password = <redacted: 16 bytes>\nb = 2"),
            ("API KEY: hunter2", "API KEY: <redacted: 7 bytes>"),
            ("[1] password: hunter2", "[1] password: <redacted: 7 bytes>"),
            ("login --password hunter2 --user ada", "login --password <redacted: 7 bytes> --user ada"),
            ("curl -H 'Authorization: Bearer hunter2' x", "curl -H 'Authorization: <redacted: 17 bytes>"),
            ("sent Bearer hunter2.abc", "sent Bearer <redacted: 11 bytes>"),
            ("<a><password>hunter2</password></a>", "<a><password><redacted: 7 bytes></password></a>"),
            ("{password: 'hunter2', a: 1}", "{password: '<redacted: 7 bytes>', a: 1}"),
            ("password => \"hunter2\", a", "password => \"<redacted: 7 bytes>\", a"),
        ] {
            assert_eq!(of(text), expected);
            assert_eq!(of(expected), expected, "redacting twice changes nothing");
        }
    }

    #[test]
    fn json_inside_a_text_is_redacted_at_every_level() {
        let object =
            r#"{"a": 1, "password": "hunter2 \"}] x", "pin": 1234, "secret": {"x": "]hunter2"}, "b": 2}"#;
        let mut text = format!("data: {object} and more");
        for level in 0..5 {
            let shown = of(&text);
            assert!(!shown.contains("hunter2") && !shown.contains("1234"), "level {level}: {shown}");
            assert!(shown.contains("and more"), "level {level}: {shown}");
            text = format!("{level}: {}", serde_json::Value::from(text));
        }
        assert!(!of(r#"x {"pass\u0077ord": "hunter2"}"#).contains("hunter2"));
        assert!(!of("{\"text\": \"line\\npin: 1234\"}").contains("1234"));
    }

    #[test]
    fn text_without_secrets_is_unchanged() {
        for text in [
            "",
            "the token is x",
            "lamp=on&level=3",
            "at 10:30: shipping",
            "crate::token::Token",
            "a bearer of news",
            "mail to ada@example.com",
            "https://example.com/pin/3?q=1",
            "the pin is round",
            "x = y",
            "password=",
            "password: ",
            "{\"password\": null}",
            "--token",
            ":=%3D-->@ ",
        ] {
            assert_eq!(redacted(text, &mut Names), None, "{text}");
        }
    }

    #[test]
    fn any_text_is_searched_without_a_panic_and_in_linear_time() {
        let pieces = [
            "password",
            "=",
            ":",
            "%3D",
            "\\",
            "\"",
            "'",
            "{",
            "[",
            "]",
            "é",
            "\n",
            " ",
            "<",
            ">",
            "--",
            "@",
            "://",
            "%",
            "\u{1f512}",
            "\\u00",
        ];
        let mut seed = 7_u64;
        for _ in 0..20_000 {
            let mut text = String::new();
            for _ in 0..12 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                text.push_str(pieces[(seed >> 33) as usize % pieces.len()]);
            }
            assert_eq!(redacted(&text, &mut Names).is_some(), has_secret(&text, &mut Names), "{text:?}");
        }
    }
}
