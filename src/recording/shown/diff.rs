//! The lines of a change: of a unified diff, or computed from two texts.

use std::{borrow::Cow, collections::HashMap};

use super::{Diff, Line, Style};

/// The most changed lines that are looked for. Texts that differ by more are shown whole, the old one first.
const MAX_EDITS: usize = 500;

/// The most lines that are compared, of both texts together. Longer texts are shown whole, too.
const MAX_LINES: usize = 10_000;

/// How many unchanged lines are shown before and after a change.
const CONTEXT: usize = 3;

/// A line of a change.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change<'a> {
    pub(super) style: Style,
    /// The sign before the text, unless it has one.
    sign: Option<char>,
    text: Cow<'a, str>,
}

impl<'a> Change<'a> {
    fn new(style: Style, sign: char, text: &'a str) -> Self {
        Self { style, sign: Some(sign), text: text.into() }
    }
}

impl From<Change<'_>> for Line {
    fn from(change: Change<'_>) -> Self {
        let text: String = change.sign.into_iter().collect::<String>() + &change.text;
        Self::of(change.style, text)
    }
}

/// Returns the lines of a change: those of its patch, otherwise the differences of its texts.
pub(super) fn changes(diff: &Diff) -> Box<dyn Iterator<Item = Change<'_>> + '_> {
    match (&diff.patch, &diff.new_text) {
        (Some(patch), _) => Box::new(of_patch(patch)),
        (None, Some(new)) => of_texts(diff.old_text.as_deref().unwrap_or_default(), new),
        (None, None) => Box::new(std::iter::empty()),
    }
}

/// Reads a unified diff.
fn of_patch(patch: &str) -> impl Iterator<Item = Change<'_>> {
    patch.lines().scan((0, 0), |left, line| {
        Some(Change { style: style_of(line, left), sign: None, text: line.into() })
    })
}

/// Returns what a line of a unified diff is. `left` are the old and new lines of the current place that are still to
/// come, because `--- a` may be a removed line, too.
fn style_of(line: &str, left: &mut (usize, usize)) -> Style {
    let is_inside = *left != (0, 0);
    let (old, new, style) = match line.as_bytes().first() {
        Some(b'\\') => return Style::Note,
        Some(b'+') if is_inside || !line.starts_with("+++ ") => (0, 1, Style::Added),
        Some(b'-') if is_inside || !line.starts_with("--- ") => (1, 0, Style::Removed),
        Some(b'@') if !is_inside => {
            *left = lengths(line).unwrap_or_default();
            return Style::Place;
        }
        _ if is_inside => (1, 1, Style::Mono),
        _ => return Style::Note,
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

/// Compares two texts line by line.
fn of_texts<'a>(old: &'a str, new: &'a str) -> Box<dyn Iterator<Item = Change<'a>> + 'a> {
    if old.lines().count() + new.lines().count() > MAX_LINES {
        let removed = old.lines().map(|line| Change::new(Style::Removed, '-', line));
        return Box::new(removed.chain(new.lines().map(|line| Change::new(Style::Added, '+', line))));
    }
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let before = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let shorter = old.len().min(new.len()) - before;
    let ends = old.iter().rev().zip(new.iter().rev()).take(shorter);
    let after = ends.take_while(|(old, new)| old == new).count();
    // Lines that are far from any change are never shown.
    let begin = before.saturating_sub(CONTEXT);
    let mut edits = vec![Edit::Same; before - begin];
    edits.extend(edits_of(&old[before..old.len() - after], &new[before..new.len() - after]));
    edits.extend(vec![Edit::Same; after.min(CONTEXT)]);
    Box::new(places(&edits, &old, &new, begin).into_iter())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edit {
    Same,
    Removed,
    Added,
}

/// Returns the edits that lead from one list to the other: the fewest, unless they are too many.
fn edits_of(old: &[&str], new: &[&str]) -> Vec<Edit> {
    let mut numbers = HashMap::new();
    let mut number = |line| {
        let next = numbers.len();
        *numbers.entry(line).or_insert(next)
    };
    let numbered_old: Vec<usize> = old.iter().map(&mut number).collect();
    let numbered_new: Vec<usize> = new.iter().map(&mut number).collect();
    fewest(&numbered_old, &numbered_new)
        .unwrap_or_else(|| [vec![Edit::Removed; old.len()], vec![Edit::Added; new.len()]].concat())
}

/// Myers' algorithm: the furthest places in both lists that each number of edits leads to, until the ends are reached.
fn fewest(old: &[usize], new: &[usize]) -> Option<Vec<Edit>> {
    let mut furthest: Vec<Vec<usize>> = Vec::new();
    for edits in 0..=MAX_EDITS.min(old.len() + new.len()) {
        // Entry `n` is the diagonal `2 n - edits`: the place in the old list minus that in the new one.
        let mut row = Vec::with_capacity(edits + 1);
        for n in 0..=edits {
            let mut x = match furthest.last() {
                None => 0,
                Some(last) if is_down(last, n, edits) => last[n],
                Some(last) => last[n - 1] + 1,
            };
            let mut y = (x + edits).wrapping_sub(2 * n);
            while x < old.len() && y < new.len() && old[x] == new[y] {
                (x, y) = (x + 1, y + 1);
            }
            row.push(x);
            if x >= old.len() && y >= new.len() {
                furthest.push(row);
                return Some(path(&furthest, n, old.len()));
            }
        }
        furthest.push(row);
    }
    None
}

/// Returns whether the best step to a diagonal is an added line, rather than a removed one.
fn is_down(last: &[usize], n: usize, edits: usize) -> bool {
    n == 0 || (n < edits && last[n - 1] < last[n])
}

/// Follows the steps back from the end.
fn path(furthest: &[Vec<usize>], mut n: usize, mut x: usize) -> Vec<Edit> {
    let mut edits = Vec::new();
    for step in (1..furthest.len()).rev() {
        let last = &furthest[step - 1];
        let is_down = is_down(last, n, step);
        let from = if is_down { last[n] } else { last[n - 1] };
        let after_edit = if is_down { from } else { from + 1 };
        edits.extend(vec![Edit::Same; x - after_edit]);
        edits.push(if is_down { Edit::Added } else { Edit::Removed });
        n -= usize::from(!is_down);
        x = from;
    }
    edits.extend(vec![Edit::Same; x]);
    edits.reverse();
    edits
}

/// Returns the changed lines with some lines around them, each place under its line numbers. The edits begin after as
/// many lines of both texts.
fn places<'a>(edits: &[Edit], old: &[&'a str], new: &[&'a str], begin: usize) -> Vec<Change<'a>> {
    let mut changes = Vec::new();
    let (mut x, mut y) = (begin, begin);
    let mut at = 0;
    while let Some(first) = edits[at..].iter().position(|edit| *edit != Edit::Same).map(|first| at + first) {
        let begin = first.saturating_sub(CONTEXT).max(at);
        (x, y) = (x + begin - at, y + begin - at);
        let end = end_of_place(edits, first);
        let place = &edits[begin..end];
        let count = |edit: Edit| place.iter().filter(|it| **it != edit).count();
        let text = format!("@@ -{},{} +{},{} @@", x + 1, count(Edit::Added), y + 1, count(Edit::Removed));
        changes.push(Change { style: Style::Place, sign: None, text: text.into() });
        for edit in place {
            changes.push(match edit {
                Edit::Same => Change::new(Style::Mono, ' ', old[x]),
                Edit::Removed => Change::new(Style::Removed, '-', old[x]),
                Edit::Added => Change::new(Style::Added, '+', new[y]),
            });
            x += usize::from(*edit != Edit::Added);
            y += usize::from(*edit != Edit::Removed);
        }
        at = end;
    }
    changes
}

/// Returns the end of a place: some lines after the last change that is not far from the one before.
fn end_of_place(edits: &[Edit], first: usize) -> usize {
    let mut last = first;
    for (at, edit) in edits.iter().enumerate().skip(first) {
        if *edit != Edit::Same {
            last = at;
        } else if at - last > 2 * CONTEXT {
            break;
        }
    }
    edits.len().min(last + 1 + CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines<'a>(changes: impl Iterator<Item = Change<'a>>) -> Vec<String> {
        changes.map(|change| Line::from(change).spans.remove(0).text).collect()
    }

    fn styles<'a>(changes: impl Iterator<Item = Change<'a>>) -> Vec<Style> {
        changes.map(|change| change.style).collect()
    }

    fn numbered(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("line {n}")).collect()
    }

    #[test]
    fn changes_are_shown_with_three_lines_around_them() {
        let old = numbered(40);
        let mut new = old.clone();
        new[10] = "changed".to_owned();
        new.remove(30);
        let (old, new) = (old.join("\n"), new.join("\n"));
        let shown = lines(of_texts(&old, &new));
        assert_eq!(
            shown,
            [
                "@@ -8,7 +8,7 @@",
                " line 7",
                " line 8",
                " line 9",
                "-line 10",
                "+changed",
                " line 11",
                " line 12",
                " line 13",
                "@@ -28,7 +28,6 @@",
                " line 27",
                " line 28",
                " line 29",
                "-line 30",
                " line 31",
                " line 32",
                " line 33",
            ]
        );
        // What is computed reads as a patch.
        let patch = shown.join("\n");
        assert_eq!(styles(of_patch(&patch)), styles(of_texts(&old, &new)));
    }

    #[test]
    fn texts_without_common_lines_are_shown_one_after_the_other() {
        assert_eq!(lines(of_texts("", "a\nb")), ["@@ -1,0 +1,2 @@", "+a", "+b"]);
        assert_eq!(lines(of_texts("a\n", "")), ["@@ -1,1 +1,0 @@", "-a"]);
        assert_eq!(of_texts("a\nb\n", "a\nb\n").count(), 0);
        for (count, places) in [(1_000, 1), (15_000, 0)] {
            let (old, new) = (numbered(count).join("\n"), "other\n".repeat(count));
            let shown = lines(of_texts(&old, &new));
            let of_both = [&*shown[places], &shown[places + count]];
            assert_eq!((shown.len(), of_both), (places + 2 * count, ["-line 0", "+other"]));
        }
    }

    #[test]
    fn removed_line_that_looks_like_a_header_is_a_removed_line() {
        let patch =
            "--- a/x\n+++ b/x\n@@ -1,2 +1,1 @@\n--- old\n-b\n+++ new\n\\ No newline at end of file\n--- a/y";
        use Style::{Added, Note, Place, Removed};
        assert_eq!(styles(of_patch(patch)), [Note, Note, Place, Removed, Removed, Added, Note, Note]);
        // Without places, the signs alone decide.
        assert_eq!(styles(of_patch("+a\n-b\n@@ odd\n c")), [Added, Removed, Place, Note]);
    }

    /// All pairs of short lists: the edits lead from one to the other, and are the fewest.
    #[test]
    fn edits_are_right_and_the_fewest() {
        let lists: Vec<Vec<usize>> = (0..=5)
            .flat_map(|length| {
                (0..1_usize << length).map(move |bits| (0..length).map(|n| bits >> n & 1).collect())
            })
            .collect();
        for old in &lists {
            for new in &lists {
                let edits = fewest(old, new).unwrap();
                let (mut x, mut y, mut cost) = (0, 0, 0);
                for edit in edits {
                    match edit {
                        Edit::Same => {
                            assert_eq!(old[x], new[y]);
                            (x, y) = (x + 1, y + 1);
                        }
                        Edit::Removed => (x, cost) = (x + 1, cost + 1),
                        Edit::Added => (y, cost) = (y + 1, cost + 1),
                    }
                }
                assert_eq!((x, y), (old.len(), new.len()));
                assert_eq!(cost, old.len() + new.len() - 2 * common(old, new), "{old:?} {new:?}");
            }
        }
    }

    /// The length of the longest common subsequence.
    fn common(one: &[usize], other: &[usize]) -> usize {
        match (one.split_first(), other.split_first()) {
            (Some((a, one)), Some((b, other))) if a == b => 1 + common(one, other),
            (Some((_, rest)), Some((_, others))) => common(rest, other).max(common(one, others)),
            _ => 0,
        }
    }
}
