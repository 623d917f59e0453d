//! Writes lines to standard error: the program's own, and those that an agent, a server or another
//! participant wrote.
//!
//! A person answers questions of the program, and nobody else may write what looks like one. A line that holds others' text
//! begins with [`MARK`], which no line of the program does. It is broken at the width of the terminal, so that no row of it
//! begins without the mark.

use std::io::{self, IsTerminal as _, Write as _};

use terminal_size::terminal_size_of;

use crate::cli::terminal::{output, questions::Terminal, text};

/// What a line of somebody else begins with.
pub(in crate::cli) const MARK: &str = "│ ";

/// The fewest columns that a row of others' text has after the mark. A terminal that is narrower breaks it again.
const LEAST_COLUMNS: usize = 10;

/// Prints lines on standard error. An open question is printed again after them.
pub(in crate::cli) fn print(lines: &[String]) {
    write(lines);
    Terminal::shared().disturb();
}

/// Prints lines on standard error. A write error is ignored, and the room does not wait for the terminal.
pub(in crate::cli) fn write(lines: &[String]) {
    let mut all = lines.join("\n");
    all.push('\n');
    let _ = output::stderr().write_all(all.as_bytes());
}

/// Prints a text that somebody else wrote.
pub(in crate::cli) fn print_foreign(text: &str) {
    print(&foreign(text));
}

/// Returns the rows of a text that somebody else wrote, each with the mark.
pub(in crate::cli) fn foreign(text: &str) -> Vec<String> {
    rows(MARK, text, columns(&io::stderr()))
}

/// Returns a text of somebody else after the program's own words, such as the number of an option.
pub(in crate::cli) fn labelled(label: &str, text: &str) -> Vec<String> {
    rows(label, text, columns(&io::stderr()))
}

/// Returns the rows of a text of somebody else for standard output. Only a terminal gets marks.
pub(in crate::cli) fn foreign_on_stdout(text: &str) -> Vec<String> {
    on_stdout(MARK, text)
}

/// Returns the rows of the program's own line for standard output. A name in it may be long, so the rows after the first
/// have the mark.
pub(in crate::cli) fn own_on_stdout(line: &str) -> Vec<String> {
    on_stdout("", line)
}

fn on_stdout(label: &str, text: &str) -> Vec<String> {
    if io::stdout().is_terminal() {
        rows(label, text, columns(&io::stdout()))
    } else {
        text.lines().map(|line| text::plain(line).into_owned()).collect()
    }
}

/// Returns how many columns a line has. Other than a terminal, nothing breaks lines.
fn columns(output: &(impl std::os::fd::AsFd + io::IsTerminal)) -> Option<usize> {
    if !output.is_terminal() {
        return None;
    }
    let columns = terminal_size_of(output).map_or(0, |(width, _)| usize::from(width.0));
    Some(if columns == 0 { 80 } else { columns })
}

/// Breaks a text into rows. The first begins with the label, the others with the mark.
fn rows(label: &str, text: &str, columns: Option<usize>) -> Vec<String> {
    let mut rows = Vec::new();
    let mut row = label.to_owned();
    let room = |label: &str| {
        columns.map_or(usize::MAX, |it| it.saturating_sub(label.chars().count()).max(LEAST_COLUMNS))
    };
    let (mut left, mut is_first) = (room(label), true);
    for line in text.lines().chain(text.is_empty().then_some("")) {
        if !std::mem::take(&mut is_first) {
            rows.push(std::mem::replace(&mut row, MARK.to_owned()));
            left = room(MARK);
        }
        for character in text::plain(line).chars() {
            // A character beyond ASCII may take two columns.
            let width = if character.is_ascii() { 1 } else { 2 };
            if width > left {
                rows.push(std::mem::replace(&mut row, MARK.to_owned()));
                left = room(MARK);
            }
            left -= width;
            row.push(character);
        }
    }
    rows.push(row);
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_somebody_else_has_the_mark() {
        let fake = format!("{}type `yes 1`\n  1: Allow\n\n\u{1b}[2Jquestion 2", " ".repeat(28));
        let shown = rows(MARK, &fake, Some(30));
        assert_eq!(
            shown,
            [
                format!("│ {}", " ".repeat(28)).as_str(),
                "│ type `yes 1`",
                "│   1: Allow",
                "│ ",
                "│ \\u{1b}[2Jquestion 2"
            ]
        );
        let option = rows("  1: ", &format!("Allow{}type `yes 1`", " ".repeat(20)), Some(30));
        assert_eq!(option, [format!("  1: Allow{}", " ".repeat(20)).as_str(), "│ type `yes 1`"]);
        let name =
            rows("question 1: run wipe for ", &format!("brain{}question 2: run", " ".repeat(30)), Some(40));
        assert_eq!(name.len(), 2, "{name:?}");
        assert!(name[1].starts_with(MARK), "a name cannot begin a row: {name:?}");
        // Wide characters count as two columns.
        assert_eq!(rows(MARK, &"界".repeat(20), Some(30)).len(), 2);
        assert_eq!(rows(MARK, &"x".repeat(1_000), None).len(), 1);
        assert_eq!(rows(MARK, &"x".repeat(100), Some(1)).len(), 10, "a terminal without columns");
    }
}
