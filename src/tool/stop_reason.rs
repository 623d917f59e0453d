//! Defines the reason why a running call is stopped.

use std::fmt;

/// The reason why a running call is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StopReason {
    /// The caller no longer needs the call.
    Caller,
    /// The user interrupted the turn.
    BargeIn,
    /// The time limit has passed.
    Deadline,
    /// The caller has left the room, or was restarted.
    CallerGone,
    /// The participant that runs the call is leaving.
    Leaving,
    /// The caller had no connection to the participant that runs the call for too long.
    Lost,
}

impl StopReason {
    const ALL: [Self; 6] =
        [Self::Caller, Self::BargeIn, Self::Deadline, Self::CallerGone, Self::Leaving, Self::Lost];

    /// Returns the value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Caller => "caller",
            Self::BargeIn => "barge_in",
            Self::Deadline => "deadline",
            Self::CallerGone => "caller_gone",
            Self::Leaving => "leaving",
            Self::Lost => "lost",
        }
    }

    /// Returns the reason with this value on the wire.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.as_str() == text)
    }
}

impl fmt::Display for StopReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Caller => "the caller no longer needs the call",
            Self::BargeIn => "the user interrupted",
            Self::Deadline => "the time limit has passed",
            Self::CallerGone => "the caller is gone",
            Self::Leaving => "the participant that runs the call is leaving",
            Self::Lost => "the caller lost the participant that runs the call",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_read_back() {
        for reason in StopReason::ALL {
            assert_eq!(StopReason::from_text(reason.as_str()), Some(reason));
        }
        assert_eq!(StopReason::from_text("Caller"), None);
    }
}
