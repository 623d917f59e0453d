//! Finds out what each line of a unified diff is.

use super::LineStyle;

/// Returns the lines of a unified diff, each with its style.
pub(super) fn diff_lines(patch: &str) -> impl Iterator<Item = (LineStyle, &str)> {
    patch.lines().scan((0, 0), |left, line| Some((style_of(line, left), line)))
}

/// Returns what a line of a unified diff is. `left` are the old and new lines of the current hunk that are still to
/// come, because `--- a` may be a removed line, too.
fn style_of(line: &str, left: &mut (usize, usize)) -> LineStyle {
    let is_inside = *left != (0, 0);
    let (old, new, style) = match line.as_bytes().first() {
        Some(b'\\') => return LineStyle::Note,
        Some(b'+') if is_inside || !line.starts_with("+++ ") => (0, 1, LineStyle::Added),
        Some(b'-') if is_inside || !line.starts_with("--- ") => (1, 0, LineStyle::Removed),
        Some(b'@') if !is_inside => {
            *left = lengths(line).unwrap_or_default();
            return LineStyle::Hunk;
        }
        _ if is_inside => (1, 1, LineStyle::Mono),
        _ => return LineStyle::Note,
    };
    *left = (left.0.saturating_sub(old), left.1.saturating_sub(new));
    style
}

/// Reads the numbers of lines in `@@ -1,5 +1,6 @@`.
fn lengths(line: &str) -> Option<(usize, usize)> {
    let mut ranges = line.strip_prefix("@@ -")?.split(' ');
    let mut length = |sign: &str| {
        let range = ranges.next()?.trim_start_matches(sign);
        range.split_once(',').map_or(Some(1), |(_, length)| length.parse().ok())
    };
    Some((length("-")?, length("+")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn styles(patch: &str) -> Vec<LineStyle> {
        diff_lines(patch).map(|(style, _)| style).collect()
    }

    #[test]
    fn removed_line_that_looks_like_a_header_is_a_removed_line() {
        let patch =
            "--- a/x\n+++ b/x\n@@ -1,2 +1,1 @@\n--- old\n-b\n+++ new\n\\ No newline at end of file\n--- a/y";
        use LineStyle::{Added, Hunk, Note, Removed};
        assert_eq!(styles(patch), [Note, Note, Hunk, Removed, Removed, Added, Note, Note]);
        // Without places, the signs alone decide.
        assert_eq!(styles("+a\n-b\n@@ odd\n c"), [Added, Removed, Hunk, Note]);
    }
}
