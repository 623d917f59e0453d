//! Patterns for names of tools, as `allow` and `deny` take them.

/// Returns whether a name matches a pattern: the same name, or one that starts with what stands before a final `*`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}
