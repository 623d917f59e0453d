//! What becomes of a running call when the user interrupts the assistant.

use std::fmt;

/// What becomes of a running call of this tool when its turn is interrupted (`wire.md`, section 5).
///
/// Whatever it is, the caller waits no longer: its call settles at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BargeIn {
    /// It stops, and settles as cancelled.
    #[default]
    Cancel,
    /// It settles as cancelled, and the work goes on; its result is only counted.
    Finish,
    /// It settles as detached, and the work goes on; its result is offered to the next turn.
    Report,
}

impl BargeIn {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cancel => "cancel",
            Self::Finish => "finish",
            Self::Report => "report",
        }
    }

    /// The rule that the word names.
    pub fn from_text(text: &str) -> Option<Self> {
        [Self::Cancel, Self::Finish, Self::Report].into_iter().find(|it| it.as_str() == text)
    }
}

impl fmt::Display for BargeIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
