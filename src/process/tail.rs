//! Keeps the end of a child's stderr for the error that its owner sees, and its lines as a terminal shows
//! them.

/// How much of the end of a child's stderr is kept, in bytes.
pub const MAX_STDERR: usize = 64 << 10;

/// Removes the start of what was written to stderr, so that [`MAX_STDERR`] bytes are left.
pub(crate) fn keep_tail(bytes: &mut Vec<u8>) {
    let excess = bytes.len().saturating_sub(MAX_STDERR);
    bytes.drain(..excess);
}

/// Returns the lines of what a child wrote, as a terminal shows them in the end: a carriage return starts a line again, and
/// escape sequences and control characters are gone. Empty lines are left out.
pub(crate) fn shown_lines(bytes: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(bytes);
    let shown = |line: &str| {
        let line = without_sequences(line);
        let mut parts = line.rsplit('\r').map(str::trim).filter(|part| !part.is_empty());
        let last = parts.next().unwrap_or_default().replace('\t', " ");
        last.chars().filter(|it| !it.is_control()).collect::<String>()
    };
    text.split('\n').map(shown).filter(|line| !line.is_empty()).collect()
}

/// Returns at most the last `limit` characters of a line. One that was cut begins with `…`.
pub(crate) fn end_of(line: &str, limit: usize) -> String {
    let count = line.chars().count();
    if count <= limit {
        return line.to_owned();
    }
    std::iter::once('…').chain(line.chars().skip(count + 1 - limit)).collect()
}

/// Removes the escape sequences of one line (ECMA-48: CSI, OSC and the like). One that does not end takes the rest along.
fn without_sequences(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut chars = line.chars();
    let is_final = |it: &char| ('@'..='~').contains(it);
    while let Some(character) = chars.next() {
        match character {
            '\u{9b}' => _ = chars.find(is_final),
            '\u{1b}' => match chars.next() {
                Some('[') => _ = chars.find(is_final),
                Some(']' | 'P' | 'X' | '^' | '_') => {
                    let end = chars.find(|it| matches!(it, '\u{7}' | '\u{9c}' | '\u{1b}'));
                    let _backslash = end.filter(|it| *it == '\u{1b}').and_then(|_| chars.next());
                }
                Some(' '..='/') => _ = chars.find(|it| !(' '..='/').contains(it)),
                _ => {}
            },
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_stderr_is_kept() {
        let mut bytes: Vec<u8> = (0..2 * MAX_STDERR).map(|n| u8::try_from(n % 251).unwrap()).collect();
        let end = bytes[MAX_STDERR..].to_vec();
        keep_tail(&mut bytes);
        assert!(bytes == end);
        keep_tail(&mut bytes);
        assert_eq!(bytes.len(), MAX_STDERR);
    }

    #[test]
    fn lines_are_as_a_terminal_shows_them() {
        let coloured =
            b"\x1b[1;31merror\x1b[0m: \x1b]8;;file:///x\x1b\\city\x1b]8;;\x1b\\ \x1b[2mnot found\x1b[0m\n";
        assert_eq!(shown_lines(coloured), ["error: city not found"]);
        let bar: String = (0..100).map(|n| format!("\r\x1b[2KDownloading {n}%")).collect();
        let bar = format!("{bar}\r\x1b[2KError: disk full\r\n\n  \r\r\nlast\u{7}\u{9b}31m\tline\x1b(B");
        assert_eq!(shown_lines(bar.as_bytes()), ["Error: disk full", "last line"]);
        assert_eq!(shown_lines(b"\xff\x1b]0;never ends\nnext"), ["\u{fffd}", "next"]);
        assert!(shown_lines(b"\x1b").is_empty());
    }

    #[test]
    fn end_of_a_long_line_is_kept() {
        assert_eq!((end_of("abc", 3).as_str(), end_of("abcd", 3).as_str()), ("abc", "…cd"));
    }
}
