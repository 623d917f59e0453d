//! Reports whether a tool source can run calls.

use std::{fmt, sync::Arc};

use crate::clock::Instant;

/// Whether a tool source can run calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SourceHealth {
    /// It runs calls.
    #[default]
    Up,
    /// It is starting. Its tools may not be offered yet.
    Starting,
    /// It runs no calls.
    Down {
        /// The reason, for people.
        reason: Arc<str>,
        /// The time since which it runs none.
        since: Instant,
    },
}

impl fmt::Display for SourceHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up => f.write_str("up"),
            Self::Starting => f.write_str("starting"),
            Self::Down { reason, .. } => write!(f, "down: {reason}"),
        }
    }
}

/// A tool source of the local participant, and its health.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SourceStatus {
    /// The source's name, for people.
    pub name: Arc<str>,
    /// Whether it can run calls.
    pub health: SourceHealth,
}
