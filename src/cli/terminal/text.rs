//! Escapes text for a terminal.

pub(in crate::cli) use toolbridge::{
    cli_support::counted,
    escape::{json, json_text, plain, write_json},
};

/// What the library calls a setting, and how a person sets it on the command line.
const OPTIONS: [(&str, &str); 5] = [
    ("the token's validity is", "the token's validity (--ttl) is"),
    (
        "pass its root certificate (`ConnectOptions::root_certificates`)",
        "pass its root with --root-certificate FILE",
    ),
    ("`ConnectOptions::relay_only`", "--relay-only"),
    ("try again, or raise `ConnectOptions::join_timeout`", "try again"),
    (
        "join again with a new token, or set a token source (`ConnectOptions::token_source`)",
        "start it again with a new token",
    ),
];

/// Returns an error of the library with the options of the command line in place of its own names.
pub(in crate::cli) fn with_options(error: &str) -> String {
    OPTIONS.iter().fold(error.to_owned(), |text, (name, option)| text.replace(name, option))
}

/// Returns untrusted text as one line of at most `limit` characters, with control characters escaped. A shortened line ends
/// with `…`.
pub(in crate::cli) fn line(text: &str, limit: usize) -> String {
    // An escape is never shorter than its character.
    let beginning: String = text.chars().take(limit + 1).collect();
    let escaped = plain(&beginning);
    if escaped.chars().count() <= limit {
        return escaped.into_owned();
    }
    escaped.chars().take(limit - 1).chain(['…']).collect()
}

/// Returns untrusted text as one line of at most `limit` characters, as [`line`] does. Of a longer one the beginning and the
/// end are kept: what a program wrote last says why it failed.
pub(in crate::cli) fn ends(text: &str, limit: usize) -> String {
    let escaped = plain(text);
    let count = escaped.chars().count();
    if count <= limit {
        return escaped.into_owned();
    }
    let first = limit * 2 / 3;
    let last = escaped.chars().skip(count - (limit - first - 3));
    escaped.chars().take(first).chain(" … ".chars()).chain(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_library_name_options_of_the_command_line() {
        use toolbridge::{CloseReason, livekit::ConnectError};
        let limit = std::time::Duration::from_secs(15);
        let errors = [
            ConnectError::NoRelay { relays: Vec::new() }.to_string(),
            ConnectError::Timeout { limit, phase: toolbridge::livekit::JoinPhase::Signaling }.to_string(),
            CloseReason::TokenExpired.to_string(),
            format!("x; {}", OPTIONS[1].0),
        ];
        for (error, said) in
            errors.iter().zip(["--relay-only", "; try again", "a new token", "--root-certificate FILE"])
        {
            assert!(error.contains("ConnectOptions::"), "{error}");
            let text = with_options(error);
            assert!(text.contains(said) && !text.contains("::"), "{text}");
        }
    }

    #[test]
    fn beginning_and_end_of_a_long_line_are_kept() {
        assert_eq!(ends("a\nb", 10), "a\\u{a}b");
        let long = ends(&format!("t failed: {} disk full", "x".repeat(500)), 60);
        assert_eq!(long.chars().count(), 60);
        assert!(long.starts_with("t failed: ") && long.ends_with(" disk full"), "{long}");
    }

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
