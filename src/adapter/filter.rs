//! Decides which tools are offered, by `allow` and `deny`.

/// Which tools are offered. A pattern is a name, or the start of one before a final `*`.
#[derive(Clone, Debug, Default)]
pub(super) struct Filter {
    /// `None`: all.
    allowed: Option<Vec<String>>,
    denied: Vec<String>,
}

impl Filter {
    /// Offers tools that match one of `allowed`, or all, without those that match one of `denied`.
    #[cfg(all(any(feature = "mcp", feature = "rap"), unix))]
    pub(super) fn new(allowed: Option<Vec<String>>, denied: Vec<String>) -> Self {
        Self { allowed, denied }
    }

    /// Offers tools that match one of these patterns, or an earlier one. Without any, nothing is offered.
    pub(super) fn allow(&mut self, patterns: impl IntoIterator<Item = String>) {
        self.allowed.get_or_insert_default().extend(patterns);
    }

    /// Does not offer tools that match one of these patterns, even if they are allowed.
    pub(super) fn deny(&mut self, patterns: impl IntoIterator<Item = String>) {
        self.denied.extend(patterns);
    }

    /// Returns whether a tool is offered that is known by these names: a pattern applies to each.
    pub(super) fn offers(&self, names: &[impl AsRef<str>]) -> bool {
        let is_in = |patterns: &[String]| {
            patterns.iter().any(|pattern| names.iter().any(|name| matches(pattern, name.as_ref())))
        };
        self.allowed.as_deref().is_none_or(is_in) && !is_in(&self.denied)
    }
}

/// Returns whether a name matches a pattern: the same name, or one that starts with what stands before a final `*`.
fn matches(pattern: &str, name: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denied_tool_is_not_offered_even_if_it_is_allowed() {
        let mut filter = Filter::default();
        assert!(filter.offers(&["any"]));
        filter.allow(["read_*", "list"].map(str::to_owned));
        filter.deny(["read_secret".to_owned()]);
        for (tool, is_offered) in
            [("read_file", true), ("list", true), ("lists", false), ("read_secret", false)]
        {
            assert_eq!(filter.offers(&[tool]), is_offered, "{tool}");
        }
        assert!(filter.offers(&["list", "other"]) && !filter.offers(&["read_file", "read_secret"]));
        filter = Filter::default();
        filter.allow([]);
        assert!(!filter.offers(&["any"]));
    }
}
