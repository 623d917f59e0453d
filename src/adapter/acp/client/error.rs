//! Defines why an agent cannot be used.

use std::io;

use crate::{
    process::{CommandError, Exit, shown_lines},
    programs::ProgramsError,
    tools_file::ToolsFileError,
};

/// Why an agent cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcpError {
    /// A `tools.toml` cannot be read.
    #[error(transparent)]
    File(#[from] ProgramsError),
    /// An entry of a `tools.toml` is invalid.
    #[error("agent {agent:?}, line {line}: {reason}")]
    Entry {
        /// The agent's name.
        agent: String,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// There is no such program.
    #[error("agent {agent:?}: {source}")]
    Command {
        /// The agent's name.
        agent: String,
        /// Why there is none.
        source: CommandError,
    },
    /// A setting cannot be used.
    #[error("agent {agent:?}: {reason}")]
    Setting {
        /// The agent's name.
        agent: String,
        /// What is wrong.
        reason: String,
    },
    /// An environment variable must not be passed to an agent.
    #[error(
        "agent {agent:?}: {variable} is not passed on, because it may give access to the room; set it with `env`"
    )]
    Variable {
        /// The agent's name.
        agent: String,
        /// The variable.
        variable: String,
    },
    /// The program cannot be started.
    #[error("agent {agent:?} cannot be started: {source}")]
    NotStarted {
        /// The agent's name.
        agent: String,
        /// Why not.
        source: io::Error,
    },
    /// The program ended before it could be used.
    #[error("agent {agent:?} ended ({}){}", .exit.status(), said(.exit.stderr()))]
    Ended {
        /// The agent's name.
        agent: String,
        /// How it ended, and the end of what it wrote to stderr.
        exit: Exit,
    },
    /// The agent demands that a person signs in first.
    #[error(
        "agent {agent:?} demands a sign-in: sign in with the agent's own program, or pass an API key on to it (`env` of a \
         tools.toml, --agent-env on the command line), then start this again{}{}",
        offers(.ways),
        says(.said)
    )]
    SignInRequired {
        /// The agent's name.
        agent: String,
        /// The ways to sign in, in the agent's words.
        ways: Vec<String>,
        /// What the agent says about it, on one line.
        said: Option<String>,
    },
    /// It does not behave as an agent.
    #[error("agent {agent:?}: {reason}{}", said(.stderr))]
    Protocol {
        /// The agent's name.
        agent: String,
        /// What went wrong.
        reason: String,
        /// The end of what it wrote to stderr.
        stderr: Vec<u8>,
    },
}

impl From<ToolsFileError> for AcpError {
    fn from(error: ToolsFileError) -> Self {
        ProgramsError::from(error).into()
    }
}

impl AcpError {
    pub(super) fn protocol(agent: &str, reason: impl Into<String>) -> Self {
        Self::Protocol { agent: agent.to_owned(), reason: reason.into(), stderr: Vec::new() }
    }

    /// Describes it without what the agent wrote to stderr, which may hold secrets.
    pub(super) fn without_stderr(&self) -> String {
        match self {
            Self::Ended { exit, .. } => format!("it ended ({})", exit.status()),
            Self::Protocol { reason, .. } => reason.clone(),
            other => other.to_string(),
        }
    }
}

/// The most lines of stderr in an error.
const MAX_LINES: usize = 8;

/// Returns the last lines that an agent wrote to stderr, for a person at a terminal.
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
