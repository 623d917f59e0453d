//! Defines why the tools of another system cannot be used.

use std::io;

use crate::process::{Exit, shown_lines};

/// Why the tools of a server, of a toolset or of an agent cannot be used. No error has a token, or more of a URL than its
/// host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A setting cannot be used: no new start would help.
    #[error("{origin}: {reason}")]
    Setting {
        /// What the tools are of, as in `MCP server "files"`.
        origin: String,
        /// What is wrong.
        reason: String,
    },
    /// The program, or the listener for callbacks, cannot be started.
    #[error("{origin} cannot be started: {source}")]
    NotStarted {
        /// What the tools are of.
        origin: String,
        /// Why not.
        source: io::Error,
    },
    /// The program ended before it could be used.
    #[error("{origin} ended ({}){}", .exit.status(), said(.exit.stderr()))]
    Ended {
        /// What the tools are of.
        origin: String,
        /// How it ended, and the end of what it wrote to stderr.
        exit: Exit,
    },
    /// The agent demands that a person signs in first.
    #[error(
        "{origin} demands a sign-in: sign in with the agent's own program, or pass an API key on to it (`env` of a \
         tools.toml, --agent-env on the command line), then start this again{}{}",
        offers(.ways),
        says(.said)
    )]
    SignInRequired {
        /// What the tools are of.
        origin: String,
        /// The ways to sign in, in the agent's words.
        ways: Vec<String>,
        /// What the agent says about it, on one line.
        said: Option<String>,
    },
    /// It does not behave as its protocol demands, or cannot be reached.
    #[error("{origin}: {reason}{}", said(.stderr))]
    Protocol {
        /// What the tools are of.
        origin: String,
        /// What went wrong.
        reason: String,
        /// The end of what a program wrote to stderr.
        stderr: Vec<u8>,
    },
}

impl SourceError {
    pub(in crate::adapter) fn setting(origin: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Setting { origin: origin.into(), reason: reason.into() }
    }

    pub(in crate::adapter) fn protocol(origin: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Protocol { origin: origin.into(), reason: reason.into(), stderr: Vec::new() }
    }

    /// Describes it without what the program wrote to stderr, which may hold secrets.
    #[cfg(any(feature = "acp", feature = "mcp"))]
    pub(in crate::adapter) fn without_stderr(&self) -> String {
        match self {
            Self::Ended { exit, .. } => how_it_ended(exit),
            Self::Protocol { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

#[cfg(any(feature = "acp", feature = "mcp"))]
pub(in crate::adapter) fn how_it_ended(exit: &Exit) -> String {
    format!("it ended ({})", exit.status())
}

/// The most lines of stderr in an error.
const MAX_LINES: usize = 8;

/// Returns the last lines that a program wrote to stderr, for a person at a terminal.
fn said(stderr: &[u8]) -> String {
    let lines = shown_lines(stderr);
    let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
    if last.is_empty() { String::new() } else { format!("; it wrote: {}", last.join(" | ")) }
}

fn says(said: &Option<String>) -> String {
    said.as_ref().map(|said| format!("; it says: {said}")).unwrap_or_default()
}

fn offers(ways: &[String]) -> String {
    if ways.is_empty() { String::new() } else { format!("; it offers: {}", ways.join(", ")) }
}
