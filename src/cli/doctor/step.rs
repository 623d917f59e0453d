//! The steps, and what a step reports.

use std::fmt;

/// One step of the way into a room, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// The server's name becomes addresses.
    Name,
    /// A TCP connection to each of them.
    Connection,
    /// Encryption, and the server's certificate.
    Tls,
    /// Whether a LiveKit server answers.
    Http,
    /// The server's clock and ours.
    Clock,
    /// What the token says.
    Token,
    /// Whether the server takes the join.
    Join,
    /// What we may do in the room.
    Permissions,
    /// Packets over UDP.
    Udp,
    /// Packets over TCP.
    Tcp,
    /// Packets through a relay.
    Relay,
    /// Data from one participant to another and back.
    Echo,
}

impl Step {
    /// Its word, for programs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Connection => "connection",
            Self::Tls => "tls",
            Self::Http => "http",
            Self::Clock => "clock",
            Self::Token => "token",
            Self::Join => "signalling",
            Self::Permissions => "permissions",
            Self::Udp => "udp",
            Self::Tcp => "tcp",
            Self::Relay => "relay",
            Self::Echo => "echo",
        }
    }

    /// Its name, for people.
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

    /// What must have gone well before it makes sense.
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

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// As it should be.
    Ok,
    /// It works, and something should be mended.
    Warning,
    /// It does not work.
    Failed,
    /// It was not tried, or does not apply.
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

/// What a step reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StepReport {
    pub(super) state: State,
    /// What was found; why it was skipped.
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

    /// What was found beside what is wrong.
    pub(super) fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }
}
