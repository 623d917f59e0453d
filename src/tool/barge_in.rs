//! Defines what happens to a running call when the user interrupts the assistant.

use std::fmt;

/// What happens to a running call of this tool when its turn is interrupted (`wire.md`, section 5.4).
///
/// The caller never waits: its call settles at once in each case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BargeIn {
    /// The call stops and settles as cancelled.
    #[default]
    Cancel,
    /// The call settles as cancelled ([`Unawaited`](crate::CallError::Unawaited)), and the tool continues to run. Its result is
    /// only counted.
    Finish,
    /// The call settles as detached, and the tool continues to run. Its result is delivered to the next turn.
    Report,
}

impl BargeIn {
    /// Returns the value on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Finish => "finish",
            Self::Report => "report",
        }
    }

    /// Returns the rule with this value on the wire.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Cancel, Self::Finish, Self::Report].into_iter().find(|it| it.as_str() == text)
    }
}

impl fmt::Display for BargeIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
