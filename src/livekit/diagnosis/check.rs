//! Defines the steps of a connection, and the check of each.

use std::fmt;

/// The check of one step of a connection. `Display` writes it as one line.
///
/// No text contains a token or a secret. Some repeat text of the server: [escape](crate::escape) it for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// The step, in this order: `name`, `connection`, `encryption`, `server`, `clock`, `token`, `join`, `permissions`, `udp`,
    /// `tcp`, `relay` or `echo`.
    pub name: &'static str,
    /// The step as `toolbridge doctor` names it.
    pub(crate) title: &'static str,
    /// The result.
    pub status: CheckStatus,
    /// What the check found, or why it was skipped.
    pub found: Option<String>,
    /// What is wrong, if the status is [`Warning`](CheckStatus::Warning) or [`Failed`](CheckStatus::Failed).
    pub problem: Option<String>,
    /// What to do about the problem.
    pub advice: Option<String>,
}

impl Check {
    pub(super) fn new(step: Step, finding: Finding) -> Self {
        let Finding { status, found, problem, advice } = finding;
        let (_, name, title, _) = STEPS[step as usize];
        Self { name, title, status, found, problem, advice }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.status)?;
        let parts = [&self.found, &self.problem, &self.advice];
        parts.into_iter().flatten().try_for_each(|part| write!(f, "; {part}"))
    }
}

/// The result of a check. `Display` writes its name in lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckStatus {
    /// The step succeeded.
    Ok,
    /// The step succeeded, but something should be fixed.
    Warning,
    /// The step failed. The server cannot be used from this machine, or not with this token.
    Failed,
    /// The check did not run: a step that it depends on failed, or it does not apply.
    Skipped,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        })
    }
}

/// What the check of a step found: a [`Check`] without its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) status: CheckStatus,
    pub(super) found: Option<String>,
    pub(super) problem: Option<String>,
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self { status: CheckStatus::Ok, found: Some(found.into()), problem: None, advice: None }
    }

    pub(super) fn warning(problem: impl Into<String>, advice: impl Into<String>) -> Self {
        let (problem, advice) = (Some(problem.into()), Some(advice.into()));
        Self { status: CheckStatus::Warning, found: None, problem, advice }
    }

    pub(super) fn failed(problem: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { status: CheckStatus::Failed, ..Self::warning(problem, advice) }
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self { status: CheckStatus::Skipped, ..Self::ok(why) }
    }

    /// Adds what the check found.
    pub(super) fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }
}

/// The steps of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Name,
    Connection,
    Tls,
    Http,
    Clock,
    Token,
    Join,
    Permissions,
    Udp,
    Tcp,
    Relay,
    Echo,
}

/// The steps in the order of their checks: the name, that in a text for people, and the steps that must succeed first.
pub(super) const STEPS: [(Step, &str, &str, &[Step]); 12] = [
    (Step::Name, "name", "name", &[]),
    (Step::Connection, "connection", "connection", &[Step::Name]),
    (Step::Tls, "encryption", "encryption", &[Step::Connection]),
    (Step::Http, "server", "server", &[Step::Tls]),
    (Step::Clock, "clock", "clock", &[Step::Http]),
    (Step::Token, "token", "token", &[]),
    (Step::Join, "join", "join", &[Step::Http, Step::Token]),
    (Step::Permissions, "permissions", "permissions", &[Step::Join]),
    (Step::Udp, "udp", "packets, UDP", &[Step::Join]),
    (Step::Tcp, "tcp", "packets, TCP", &[Step::Join]),
    (Step::Relay, "relay", "relay (TURN)", &[Step::Join]),
    (Step::Echo, "echo", "data echo", &[Step::Join]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_written_as_one_line() {
        let blocked = Finding::failed("no answer", "open the port").found("an address");
        assert_eq!(
            Check::new(Step::Udp, blocked).to_string(),
            "udp: failed; an address; no answer; open the port"
        );
        assert_eq!(
            Check::new(Step::Tls, Finding::skipped("no need")).to_string(),
            "encryption: skipped; no need"
        );
    }
}
