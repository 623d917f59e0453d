//! Prints tables that fit the terminal. A row that is too wide is continued on lines below it, and so is the
//! heading, so that each value stays below its name.

use std::{fmt::Write as _, io};

use terminal_size::{Width, terminal_size_of};

/// The indentation of the lines that continue a row.
const INDENT: usize = 4;
/// The least width of the last column if it has no width of its own.
const LEAST: usize = 16;

/// A column.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) enum Column {
    /// Text of this width.
    Left(usize),
    /// Numbers of this width.
    Right(usize),
    /// The last column: text of any length, which is continued below its beginning.
    Rest,
}

/// A table that is printed row by row.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Table {
    columns: &'static [Column],
    width: Option<usize>,
}

/// Returns the width of the terminal that standard output is, if it is one.
pub(in crate::cli) fn terminal_width() -> Option<usize> {
    terminal_size_of(io::stdout()).map(|(Width(width), _)| usize::from(width)).filter(|width| *width > 0)
}

impl Table {
    /// Creates a table for standard output. Without a terminal, each row is one line.
    pub(in crate::cli) fn new(columns: &'static [Column]) -> Self {
        Self { columns, width: terminal_width() }
    }

    /// Lays out a row. The cells are text without control characters.
    pub(in crate::cli) fn row(&self, cells: &[&str]) -> String {
        let (mut row, mut at) = (String::new(), 0);
        for (column, cell) in self.columns.iter().zip(cells) {
            let needed = match column {
                Column::Left(width) | Column::Right(width) => *width,
                Column::Rest => LEAST.min(cell.chars().count()),
            };
            if at > 0 {
                if self.width.is_some_and(|width| at + 1 + needed > width) {
                    row.truncate(row.trim_end().len());
                    row.push('\n');
                    row.push_str(&" ".repeat(INDENT));
                    at = INDENT;
                } else {
                    row.push(' ');
                    at += 1;
                }
            }
            // Writing to a string cannot fail.
            let _ = match column {
                Column::Left(width) => write!(row, "{cell:<width$}"),
                Column::Right(width) => write!(row, "{cell:>width$}"),
                Column::Rest => write!(row, "{}", wrapped(cell, at, self.width)),
            };
            at += needed;
        }
        row
    }
}

/// Wraps a text between words for this width; the lines after the first are indented.
pub(in crate::cli) fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width else { return text.to_owned() };
    let (mut lines, mut used) = (String::new(), indent);
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > indent && used + 1 + length > width {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            used = indent;
        } else if used > indent {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += length;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] = &[Column::Right(10), Column::Left(21), Column::Left(24), Column::Rest];

    #[test]
    fn row_is_one_line_without_a_terminal() {
        let table = Table { columns: COLUMNS, width: None };
        let row = table.row(&["1.5", "an id", "get_battery", "a text that has no end"]);
        assert_eq!(
            row,
            format!("{:>10} {:<21} {:<24} a text that has no end", "1.5", "an id", "get_battery")
        );
    }

    #[test]
    fn row_that_is_too_wide_is_continued_below_and_every_value_below_its_name() {
        let table = Table { columns: COLUMNS, width: Some(60) };
        let heading = table.row(&["at s", "id", "tool", "outcome"]);
        let row = table.row(&["1.5", "an id", "get_battery", &"word ".repeat(30)]);
        for line in heading.lines().chain(row.lines()) {
            assert!(line.chars().count() <= 60, "{line}");
        }
        let column = |text: &str, what: &str| {
            text.lines().enumerate().find_map(|(n, line)| line.find(what).map(|at| (n, at)))
        };
        assert_eq!(column(&heading, "id"), column(&row, "an id"));
        assert_eq!(column(&heading, "tool"), column(&row, "get_battery"));
        assert_eq!(column(&row, "get_battery").unwrap().0, 0, "{row}");
    }

    #[test]
    fn long_text_is_wrapped_between_words() {
        let text = "word ".repeat(60);
        let lines = wrapped(text.trim(), 30, Some(100));
        assert!(lines.lines().count() > 3);
        for (at, line) in lines.lines().enumerate() {
            assert!(line.len() <= if at == 0 { 70 } else { 100 }, "{line}");
            assert!(at == 0 || line.starts_with(&format!("{}word", " ".repeat(30))));
        }
        assert_eq!(wrapped(&"x".repeat(300), 30, Some(100)), "x".repeat(300));
        assert_eq!(wrapped(&text, 30, None), text);
    }
}
