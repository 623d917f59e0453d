//! Changes of files as unified diffs, and as the texts before and after them: some systems have one form, some the other.

#[cfg(all(feature = "acp", unix))]
mod texts;

use std::borrow::Cow;

#[cfg(all(feature = "acp", unix))]
pub(super) use texts::texts;

use crate::Diff;

/// Lines before and after a change that a patch repeats.
const CONTEXT: usize = 3;

/// Returns the change as a unified diff: its own, otherwise one that is made of both texts, with one place. `None` if the
/// text after the change is not known.
pub(super) fn of(diff: &Diff) -> Option<Cow<'_, str>> {
    if let Some(patch) = &diff.patch {
        return Some((&**patch).into());
    }
    let new = diff.new_text.as_deref()?;
    let is_new = diff.old_text.is_none();
    let old = diff.old_text.as_deref().unwrap_or_default();
    let (old, new): (Vec<&str>, Vec<&str>) =
        (old.split_inclusive('\n').collect(), new.split_inclusive('\n').collect());
    let before = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let shorter = old.len().min(new.len()) - before;
    let ends = old.iter().rev().zip(new.iter().rev()).take(shorter);
    let after = ends.take_while(|(old, new)| old == new).count();
    let begin = before.saturating_sub(CONTEXT);
    let same = after.min(CONTEXT);
    let (old_end, new_end) = (old.len() - after, new.len() - after);
    let range = |end: usize| {
        let length = end + same - begin;
        // An empty range names the line before it.
        format!("{},{length}", if length == 0 { begin } else { begin + 1 })
    };
    let from = if is_new { "/dev/null" } else { &*diff.path };
    let mut patch = format!("--- {from}\n+++ {}\n@@ -{} +{} @@\n", diff.path, range(old_end), range(new_end));
    let mut push = |sign: char, lines: &[&str]| {
        for line in lines {
            patch.push(sign);
            patch.push_str(line);
            if !line.ends_with('\n') {
                patch.push_str("\n\\ No newline at end of file\n");
            }
        }
    };
    push(' ', &old[begin..before]);
    push('-', &old[before..old_end]);
    push('+', &new[before..new_end]);
    push(' ', &old[old_end..old_end + same]);
    Some(patch.into())
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

    #[test]
    fn patch_of_two_texts_has_one_place_with_context() {
        let of = |old: Option<&str>, new: &str| of(&diff(old, new)).unwrap().into_owned();
        let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
        assert_eq!(
            of(Some(old), &old.replace('5', "five")),
            "--- a.rs\n+++ a.rs\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n"
        );
        assert_eq!(
            of(None, "1\n2"),
            "--- /dev/null\n+++ a.rs\n@@ -0,0 +1,2 @@\n+1\n+2\n\\ No newline at end of file\n"
        );
        assert_eq!(of(Some("1\n"), ""), "--- a.rs\n+++ a.rs\n@@ -1,1 +0,0 @@\n-1\n");
        assert_eq!(of(Some("1\n"), "1\n"), "--- a.rs\n+++ a.rs\n@@ -1,1 +1,1 @@\n 1\n");
        assert_eq!(super::of(&Diff { path: "a.rs".into(), ..Diff::default() }), None);
    }

    #[cfg(all(feature = "acp", unix))]
    #[test]
    fn texts_that_became_a_patch_come_back_if_the_patch_says_them_all() {
        for (old, new) in [(None, "a\nb\n"), (None, "a"), (Some("a\nb"), "a\nc"), (Some("x\n"), "x")] {
            let diff = diff(old, new);
            let patch = of(&diff).unwrap();
            let texts = texts(&patch).unwrap_or_else(|| panic!("{patch}"));
            assert_eq!((texts.old.as_deref(), &*texts.new), (old, new), "{patch}");
        }
        // Its end is not marked.
        assert!(texts(&of(&diff(Some("a\n"), "b\n")).unwrap()).is_none());
    }
}
