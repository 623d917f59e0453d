//! Writes changes of files as unified diffs.
//!
//! `similar` finds the lines that differ. Its search gives up on a shortest answer by counted steps, as Git's does, so that the
//! same texts always give the same diff. Longer texts than [`MAX_LINES`] are not searched: half a million lines took seconds.

use std::{borrow::Cow, sync::Arc};

use similar::{Algorithm, TextDiff};

use super::Diff;

/// Lines before and after a change that a patch repeats.
const CONTEXT: usize = 3;

/// The most lines that are compared, of both texts together. Longer texts are one change, from the first line that differs to
/// the last.
const MAX_LINES: usize = 10_000;

impl Diff {
    /// Returns the change as a unified diff: its own [`patch`](Self::patch), otherwise the differences of its texts with three
    /// lines around each. `None` if the text after the change is not known.
    pub fn to_patch(&self) -> Option<Cow<'_, str>> {
        if let Some(patch) = &self.patch {
            return Some((&**patch).into());
        }
        let from = if self.old_text.is_none() { "/dev/null" } else { &*self.path };
        Some(format!("--- {from}\n+++ {}\n{}", self.path, self.hunks(true)?).into())
    }

    /// Returns the differences as a person reads them: without the names of files, and with a line about a missing line break
    /// only if one text has it. Texts that are parts of a file have none at their ends.
    pub(super) fn hunks_for_people(&self) -> Option<String> {
        let ends = |text: &Option<Arc<str>>| text.as_deref().is_some_and(|text| text.ends_with('\n'));
        self.hunks(self.old_text.is_some() && ends(&self.old_text) != ends(&self.new_text))
    }

    /// Returns the differences of both texts. `marks_end` says where a last line has no line break.
    fn hunks(&self, marks_end: bool) -> Option<String> {
        let new = self.new_text.as_deref()?;
        let old = self.old_text.as_deref().unwrap_or_default();
        // Only `\n` ends a line of a patch.
        let (old, new): (Vec<&str>, Vec<&str>) =
            (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
        if old.len() + new.len() > MAX_LINES {
            return Some(one_hunk(&old, &new, marks_end));
        }
        let mut config = TextDiff::configure();
        let diff = config.algorithm(Algorithm::Myers).newline_terminated(true).diff_slices(&old, &new);
        Some(diff.unified_diff().context_radius(CONTEXT).missing_newline_hint(marks_end).to_string())
    }
}

/// Returns everything between the first and the last line that differ as one change.
fn one_hunk(old: &[&str], new: &[&str], marks_end: bool) -> String {
    let before = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let shorter = old.len().min(new.len()) - before;
    let ends = old.iter().rev().zip(new.iter().rev()).take(shorter);
    let after = ends.take_while(|(old, new)| old == new).count();
    if before + after == old.len() && old.len() == new.len() {
        return String::new();
    }
    let (begin, same) = (before.saturating_sub(CONTEXT), after.min(CONTEXT));
    let (old_end, new_end) = (old.len() - after, new.len() - after);
    let range = |end: usize| {
        let length = end + same - begin;
        // An empty range names the line before it.
        format!("{},{length}", if length == 0 { begin } else { begin + 1 })
    };
    let mut hunk = format!("@@ -{} +{} @@\n", range(old_end), range(new_end));
    let mut push = |sign: char, lines: &[&str]| {
        for line in lines {
            hunk.push(sign);
            hunk.push_str(line);
            if !line.ends_with('\n') {
                hunk.push_str(if marks_end { "\n\\ No newline at end of file\n" } else { "\n" });
            }
        }
    };
    push(' ', &old[begin..before]);
    push('-', &old[before..old_end]);
    push('+', &new[before..new_end]);
    push(' ', &old[old_end..old_end + same]);
    hunk
}

#[cfg(test)]
mod tests {
    use super::*;

    fn diff(old: Option<&str>, new: &str) -> Diff {
        Diff {
            path: "a.rs".into(),
            old_text: old.map(Into::into),
            new_text: Some(new.into()),
            ..Diff::default()
        }
    }

    fn patch(old: Option<&str>, new: &str) -> String {
        diff(old, new).to_patch().unwrap().into_owned()
    }

    #[test]
    fn patch_of_two_texts_has_each_change_with_context() {
        let old: String = (1..=20).map(|n| format!("{n}\n")).collect();
        let new = old.replace("\n5\n", "\nfive\n").replace("\n18\n", "\n");
        let hunks = "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n@@ -15,6 +15,5 @@\n 15\n 16\n 17\n-18\n 19\n 20\n";
        assert_eq!(patch(Some(&old), &new), format!("--- a.rs\n+++ a.rs\n{hunks}"));
        assert_eq!(
            patch(None, "1\n2"),
            "--- /dev/null\n+++ a.rs\n@@ -0,0 +1,2 @@\n+1\n+2\n\\ No newline at end of file\n"
        );
        assert_eq!(patch(Some("1\n"), ""), "--- a.rs\n+++ a.rs\n@@ -1 +0,0 @@\n-1\n");
        assert_eq!(patch(Some("1\n"), "1\n"), "--- a.rs\n+++ a.rs\n");
        assert_eq!(Diff { path: "a.rs".into(), ..Diff::default() }.to_patch(), None);
    }

    /// A carriage return is a part of its line, as `patch` reads it.
    #[test]
    fn only_a_line_feed_ends_a_line() {
        let hunks = diff(Some("a\rb\r\nc\n"), "a\rb\r\nd\n").hunks(true).unwrap();
        assert_eq!(hunks, "@@ -1,2 +1,2 @@\n a\rb\r\n-c\n+d\n");
    }

    #[test]
    fn person_reads_of_a_missing_line_break_only_if_it_differs() {
        for (old, new, hunks) in [
            (Some("off"), "on", "@@ -1 +1 @@\n-off\n+on\n"),
            (None, "on", "@@ -0,0 +1 @@\n+on\n"),
            (Some("on\n"), "on", "@@ -1 +1 @@\n-on\n+on\n\\ No newline at end of file\n"),
        ] {
            assert_eq!(diff(old, new).hunks_for_people().unwrap(), hunks);
        }
    }

    #[test]
    fn texts_of_many_lines_are_one_change() {
        let lines = |name: &str| (0..MAX_LINES).map(|n| format!("{name} {n}\n")).collect::<String>();
        let (first, last) = ("a\nb\nc\nd\n", "w\nx\ny\nz\n");
        let hunks =
            diff(Some(&format!("{first}{}{last}", lines("old"))), &format!("{first}{}{last}", lines("new")));
        let hunks = hunks.hunks(true).unwrap();
        let count = MAX_LINES + 6;
        assert!(hunks.starts_with(&format!("@@ -2,{count} +2,{count} @@\n b\n c\n d\n-old 0\n")), "{hunks}");
        assert!(hunks.ends_with("+new 9999\n w\n x\n y\n"));
        let long = lines("same");
        assert_eq!(diff(Some(&long), &long).hunks(true).unwrap(), "");
    }

    #[cfg(all(feature = "acp", unix))]
    #[test]
    fn texts_that_became_a_patch_come_back_if_the_patch_says_them_all() {
        use crate::tool::result::patch::texts;

        for (old, new) in [(None, "a\nb\n"), (None, "a"), (Some("a\nb"), "a\nc"), (Some("x\n"), "x")] {
            let patch = patch(old, new);
            let texts = texts(&patch).unwrap_or_else(|| panic!("{patch}"));
            assert_eq!((texts.old.as_deref(), &*texts.new), (old, new), "{patch}");
        }
        // Its end is not marked.
        assert!(texts(&patch(Some("a\n"), "b\n")).is_none());
    }
}
