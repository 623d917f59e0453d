//! Tells a person why a command failed, and gives each kind of failure its exit status.

use std::{fmt, io, process::ExitCode};

use toolbridge::{ToolName, session::LocalText};

use super::{screen, text};

/// Why a subcommand did not succeed.
#[derive(Debug)]
pub(in crate::cli) enum Failure {
    /// The command line is wrong: status 2.
    Usage(String),
    /// The command failed: status 1.
    Failed(String),
    /// A call failed, and the tool certainly did not run: status 4.
    NothingRan(String),
    /// The command failed and has already printed why: this status.
    Reported(u8),
    /// The command succeeded and found problems in the recording: status 3.
    ProblemsFound,
    /// Ctrl-C interrupted the command before its work was done: status 130, as in shells.
    Interrupted,
    /// The reader of standard output closed it: status 0.
    ClosedPipe,
}

impl Failure {
    pub(in crate::cli) const FAILED: u8 = 1;
    pub(in crate::cli) const NOTHING_RAN: u8 = 4;

    pub(in crate::cli) fn failed(error: impl fmt::Display) -> Self {
        Self::Failed(text::with_options(&error.to_string()))
    }

    pub(in crate::cli) fn usage(error: impl fmt::Display) -> Self {
        Self::Usage(text::with_options(&error.to_string()))
    }

    pub(in crate::cli) fn report(self) -> ExitCode {
        match self {
            Self::Usage(text) => {
                screen::print(&complaint(&text));
                ExitCode::from(2)
            }
            Self::Failed(text) => {
                screen::print(&complaint(&text));
                ExitCode::from(Self::FAILED)
            }
            Self::NothingRan(text) => {
                screen::print(&complaint(&text));
                ExitCode::from(Self::NOTHING_RAN)
            }
            Self::Reported(status) => ExitCode::from(status),
            Self::ProblemsFound => ExitCode::from(3),
            Self::Interrupted => ExitCode::from(130),
            Self::ClosedPipe => ExitCode::SUCCESS,
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe { Self::ClosedPipe } else { Self::failed(error) }
    }
}

/// Prints a line of the program on stderr.
pub(in crate::cli) fn hint(line: &str) {
    screen::print(&[text::plain(line).into_owned()]);
}

/// Returns why a command failed as lines: the text may have several.
fn complaint(text: &str) -> Vec<String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty()).enumerate();
    let lines =
        lines.map(|(n, line)| format!("{}{}", if n == 0 { "toolbridge: " } else { "  " }, text::plain(line)));
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() { vec!["toolbridge: it failed without a reason".to_owned()] } else { lines }
}

/// The maximum length of a line about a failed tool, in characters.
const LONGEST_FAILURE: usize = 200;

/// Prints why a local tool failed, on stderr only: the text may contain the tool's arguments.
pub(in crate::cli) fn tool_failed(tool: &ToolName, reason: &LocalText) {
    screen::print_foreign(&text::ends(&format!("{tool} failed: {reason}"), LONGEST_FAILURE));
}

#[cfg(test)]
mod tests {
    use super::complaint;

    #[test]
    fn error_of_several_lines_is_lines() {
        assert_eq!(
            complaint("bad file:\n\n  line 1\u{1b}[2J\n"),
            ["toolbridge: bad file:", "    line 1\\u{1b}[2J"]
        );
        assert_eq!(complaint(""), ["toolbridge: it failed without a reason"]);
    }
}
