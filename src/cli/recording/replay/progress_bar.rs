//! Draws the progress bar of a live replay, on a terminal only.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use crate::cli::terminal::text;
use toolbridge::replay::Step;

/// The width of the bar, in characters.
const WIDTH: usize = 24;

pub(super) struct ProgressBar {
    is_shown: bool,
    /// The text on the screen.
    drawn: String,
}

impl ProgressBar {
    pub(super) fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal(), drawn: String::new() }
    }

    pub(super) fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Draws the bar if it changed.
    pub(super) fn draw(&mut self, step: &Step) {
        let line = line((step.done, step.total), step.differences, step.left);
        if line == self.drawn {
            return;
        }
        let width = self.drawn.len();
        // A write error is ignored.
        let _ = write!(io::stderr(), "\r{line:<width$}");
        self.drawn = line;
    }

    pub(super) fn clear(&mut self) {
        let width = std::mem::take(&mut self.drawn).len();
        if width > 0 {
            let _ = write!(io::stderr(), "\r{:width$}\r", "");
        }
    }
}

fn line((done, total): (usize, usize), differences: usize, left: Duration) -> String {
    let full = (done * WIDTH).checked_div(total).unwrap_or(WIDTH).min(WIDTH);
    let (bar, rest) = ("#".repeat(full), ".".repeat(WIDTH - full));
    let (minutes, seconds) = (left.as_secs() / 60, left.as_secs() % 60);
    let differences = text::counted(differences as u64, "difference");
    format!("[{bar}{rest}] {done}/{total} calls, {differences}, {minutes}:{seconds:02} left")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_shows_done_calls_differences_and_time_left() {
        let step =
            |done, total, differences, left| line((done, total), differences, Duration::from_secs(left));
        assert_eq!(step(6, 12, 1, 75), "[############............] 6/12 calls, 1 difference, 1:15 left");
        assert_eq!(step(0, 0, 0, 0), "[########################] 0/0 calls, 0 differences, 0:00 left");
    }
}
