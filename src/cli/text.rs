//! Escapes text for a terminal.

pub(super) use crate::escape::{counted, json, plain, write_json};

/// Returns untrusted text as one line of at most `limit` characters, with control characters escaped. A shortened line ends
/// with `…`.
pub(super) fn line(text: &str, limit: usize) -> String {
    // An escape is never shorter than its character.
    let beginning: String = text.chars().take(limit + 1).collect();
    let escaped = plain(&beginning);
    if escaped.chars().count() <= limit {
        return escaped.into_owned();
    }
    escaped.chars().take(limit - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_is_escaped_and_cut_to_its_limit() {
        assert_eq!(line("a\nb", 10), "a\\u{a}b");
        assert_eq!(line(&"x".repeat(10), 10), "x".repeat(10));
        assert_eq!(line(&"x".repeat(11), 10), format!("{}…", "x".repeat(9)));
        let evil = line(&"\u{1b}[31m\n\u{202e}".repeat(1_000), 200);
        assert!(evil.chars().count() == 200 && evil.ends_with('…'), "{evil}");
        assert!(!evil.contains(|it: char| it.is_control() || it == '\u{202e}'), "{evil}");
    }
}
