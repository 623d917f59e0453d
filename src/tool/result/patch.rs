//! Reads the whole texts of a file from a unified diff.

/// The name of the side that does not exist.
const NOTHING: &str = "/dev/null";

/// The whole texts of a file before and after a change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Texts {
    /// `None` for a new file.
    pub(crate) old: Option<String>,
    /// Empty for a deleted file.
    pub(crate) new: String,
}

/// Returns the whole texts that a patch is about. `None` if it does not say them all, or is not a unified diff of one file.
///
/// A patch says them all if it creates or deletes the file (`/dev/null`), or if its only place begins at line 1 and ends at
/// the end of the file, which `\ No newline at end of file` marks. Any other patch leaves out lines, or does not say that
/// it leaves out none.
pub(crate) fn texts(patch: &str) -> Option<Texts> {
    // A `\r` before the line break belongs to the line.
    let mut lines = patch.split_inclusive('\n').map(|line| line.strip_suffix('\n').unwrap_or(line));
    let (mut from, mut to) = (None, None);
    let mut place = loop {
        let line = lines.next()?;
        if let Some(place) = Hunk::read(line) {
            break place;
        }
        // A name may be followed by a tab and a time.
        let name = |prefix: &str| line.strip_prefix(prefix).and_then(|it| it.split(['\t', '\r']).next());
        from = name("--- ").or(from);
        to = name("+++ ").or(to);
    };
    let is_at_start = place.is_at_start();
    for line in lines {
        place.take(line)?;
    }
    let Hunk { old, new, .. } = place;
    if !(is_at_start && old.is_complete() && new.is_complete()) {
        return None;
    }
    match (from == Some(NOTHING), to == Some(NOTHING)) {
        (true, false) if old.text.is_empty() => Some(Texts { old: None, new: new.text }),
        (false, true) if new.text.is_empty() => Some(Texts { old: Some(old.text), new: String::new() }),
        (false, false) if old.is_ended || new.is_ended => Some(Texts { old: Some(old.text), new: new.text }),
        _ => None,
    }
}

/// A place of a patch, which is read line by line.
struct Hunk {
    old: Side,
    new: Side,
    last: Last,
}

/// One side of a place: its text so far, and how many lines are missing.
struct Side {
    start: usize,
    count: usize,
    left: usize,
    text: String,
    /// Whether the file ends after it, without a line break.
    is_ended: bool,
}

/// The sides to which the last line belongs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Last {
    None,
    Old,
    New,
    Both,
}

impl Hunk {
    /// Reads `@@ -1,2 +1,3 @@`, after which more may follow.
    fn read(line: &str) -> Option<Self> {
        let (ranges, _) = line.strip_prefix("@@ -")?.split_once(" @@")?;
        let (old, new) = ranges.split_once(" +")?;
        Some(Self { old: Side::read(old)?, new: Side::read(new)?, last: Last::None })
    }

    fn is_at_start(&self) -> bool {
        [&self.old, &self.new].iter().all(|it| it.start == 1 || (it.start == 0 && it.count == 0))
    }

    /// Takes a line. `None` if it does not belong to the place.
    fn take(&mut self, line: &str) -> Option<()> {
        let mut signs = line.chars();
        self.last = match signs.next() {
            Some('-') => self.old.push(signs.as_str()).map(|()| Last::Old)?,
            Some('+') => self.new.push(signs.as_str()).map(|()| Last::New)?,
            // Some programs remove the blank of a line that has nothing else.
            None if self.is_complete() => return Some(()), // an empty line at the end
            Some(' ') | None => {
                self.old.push(signs.as_str())?;
                self.new.push(signs.as_str()).map(|()| Last::Both)?
            }
            Some('\\') => {
                match self.last {
                    Last::Old => self.old.end(),
                    Last::New => self.new.end(),
                    Last::Both => {
                        self.old.end();
                        self.new.end();
                    }
                    Last::None => return None,
                }
                Last::None
            }
            Some(_) => return None,
        };
        Some(())
    }

    fn is_complete(&self) -> bool {
        self.old.is_complete() && self.new.is_complete()
    }
}

impl Side {
    /// Reads `1,2`, or `1` for one line.
    fn read(range: &str) -> Option<Self> {
        let (start, count) = range.split_once(',').unwrap_or((range, "1"));
        let (start, count) = (start.parse().ok()?, count.parse().ok()?);
        Some(Self { start, count, left: count, text: String::new(), is_ended: false })
    }

    fn push(&mut self, line: &str) -> Option<()> {
        if self.is_ended {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        self.text.push_str(line);
        self.text.push('\n');
        Some(())
    }

    /// Removes the last line break.
    fn end(&mut self) {
        self.text.pop();
        self.is_ended = true;
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_that_has_the_whole_file_gives_both_texts() {
        let whole = |patch: &str, old: Option<&str>, new: &str| {
            let expected = Texts { old: old.map(str::to_owned), new: new.to_owned() };
            assert_eq!(texts(patch), Some(expected), "{patch}");
        };
        let git = "diff --git a/x b/x\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/x\n";
        whole(&format!("{git}@@ -0,0 +1,2 @@\n+a\n+\n"), None, "a\n\n");
        whole(
            "--- /dev/null\t1970\n+++ x\n@@ -0,0 +1 @@ fn x\n+a\r\n\\ No newline at end of file",
            None,
            "a\r",
        );
        whole("--- x\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-a\n-b\n", Some("a\nb\n"), "");
        let end = "\\ No newline at end of file\n";
        whole(&format!("@@ -1 +1 @@\n-a\n{end}+b\n{end}"), Some("a"), "b");
        whole(&format!("@@ -1,3 +1,4 @@\n a\n\n+b\n c\n{end}\n"), Some("a\n\nc"), "a\n\nb\nc");
        whole(&format!("@@ -1 +1 @@\n-a\n{end}+a\n"), Some("a"), "a\n");
        whole(&format!("@@ -0,0 +1 @@\n+a\n{end}"), Some(""), "a");
    }

    #[test]
    fn patch_that_may_leave_out_lines_gives_no_texts() {
        let end = "\\ No newline at end of file\n";
        for patch in [
            "",
            "no patch",
            "--- a\n+++ b\n",
            "@@ -1 +1 @@\n-a\n+b\n",
            "@@ -0,0 +1 @@\n+a\n",
            &format!("@@ -2 +2 @@\n-a\n{end}+b\n{end}"),
            &format!("@@ -1 +1 @@\n-a\n+b\n@@ -9 +9 @@\n-c\n+d\n{end}"),
            &format!("@@ -1,2 +1 @@\n-a\n{end}+b\n{end}"),
            &format!("@@ -1,2 +1 @@\n-a\n{end}-c\n+b\n"),
            &format!("@@ -1 +1 @@\n-a\n{end}+b\n{end}--- c\n+++ d\n"),
            &format!("@@ -1 +1 @@\n{end}-a\n+b\n"),
            &format!("@@ -1 +1 @@\n-a\n{end}*b\n"),
            "@@ -99999999999999999999 +1 @@\n+a\n",
            "@@ -0,0 +1,4000000000 @@\n+a\n",
            "--- /dev/null\n+++ x\n@@ -0,0 +1 @@\n+a\n--- /dev/null\n+++ y\n@@ -0,0 +1 @@\n+b\n",
            "--- /dev/null\n+++ /dev/null\n@@ -0,0 +1 @@\n+a\n",
            "--- /dev/null\n+++ x\n@@ -1 +1 @@\n-b\n+a\n",
            "--- x\n+++ /dev/null\n@@ -1,2 +1 @@\n a\n-b\n",
        ] {
            assert_eq!(texts(patch), None, "{patch}");
        }
    }
}
