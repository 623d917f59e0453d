//! Defines the steps and their results.

use std::fmt;

/// The steps of a connection, in the order in which doctor runs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// Resolves the server's name.
    Name,
    /// Connects to each address over TCP.
    Connection,
    /// Checks encryption and the server's certificate.
    Tls,
    /// Checks that a LiveKit server answers.
    Http,
    /// Compares the server's clock with the local clock.
    Clock,
    /// Checks the token's claims.
    Token,
    /// Joins the room.
    Join,
    /// Checks the participant's permissions.
    Permissions,
    /// Checks packets over UDP.
    Udp,
    /// Checks packets over TCP.
    Tcp,
    /// Checks packets through a TURN relay.
    Relay,
    /// Sends data between two participants.
    Echo,
}

impl Step {
    /// Returns the identifier in JSON output.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Connection => "connection",
            Self::Tls => "encryption",
            Self::Http => "server",
            Self::Clock => "clock",
            Self::Token => "token",
            Self::Join => "join",
            Self::Permissions => "permissions",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Relay => "relay",
            Self::Echo => "echo",
        }
    }

    /// Returns the name in text output.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Connection => "connection",
            Self::Tls => "encryption",
            Self::Http => "server",
            Self::Clock => "clock",
            Self::Token => "token",
            Self::Join => "join",
            Self::Permissions => "permissions",
            Self::Udp => "packets, UDP",
            Self::Tcp => "packets, TCP",
            Self::Relay => "relay (TURN)",
            Self::Echo => "data echo",
        }
    }

    /// Returns the steps that must succeed first.
    pub(super) fn needs(self) -> &'static [Self] {
        match self {
            Self::Name | Self::Token => &[],
            Self::Connection => &[Self::Name],
            Self::Tls => &[Self::Connection],
            Self::Http => &[Self::Tls],
            Self::Clock => &[Self::Http],
            Self::Join => &[Self::Http, Self::Token],
            Self::Permissions | Self::Udp | Self::Tcp | Self::Relay | Self::Echo => &[Self::Join],
        }
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The step succeeded.
    Ok,
    /// The step succeeded, but something should be fixed.
    Warning,
    /// The step failed.
    Failed,
    /// The step did not run or does not apply.
    Skipped,
}

impl State {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of a step with its explanation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepReport {
    pub(super) state: State,
    /// What the step found, or why it was skipped.
    pub(super) found: Option<String>,
    /// What is wrong.
    pub(super) wrong: Option<String>,
    /// What to do about it.
    pub(super) advice: Option<String>,
}

impl StepReport {
    pub(super) fn ok(found: impl Into<String>) -> Self {
        Self { state: State::Ok, found: Some(found.into()), wrong: None, advice: None }
    }

    pub(super) fn warning(wrong: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { state: State::Warning, found: None, wrong: Some(wrong.into()), advice: Some(advice.into()) }
    }

    pub(super) fn failed(wrong: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { state: State::Failed, ..Self::warning(wrong, advice) }
    }

    pub(super) fn skipped(why: impl Into<String>) -> Self {
        Self { state: State::Skipped, ..Self::ok(why) }
    }

    /// Adds what the step found.
    pub(super) fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }
}
