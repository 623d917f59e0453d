//! Holds what the sources share that run a program or use a server: its program, what the user has set, when it is started
//! again, and why it cannot be used.

pub use error::SourceError;

use std::time::Duration;

use tokio::time::Instant;

use crate::tools::SourceHealth;

pub(in crate::adapter) mod error;
#[cfg(any(feature = "acp", feature = "mcp"))]
pub(in crate::adapter) mod life;
#[cfg(any(feature = "mcp", feature = "rap"))]
pub(in crate::adapter) mod policy;
#[cfg(any(feature = "acp", feature = "mcp"))]
pub(in crate::adapter) mod program;

/// The pauses between attempts: 1, 2, 4 … 60 s.
#[derive(Debug)]
pub(in crate::adapter) struct Pauses(Duration);

impl Pauses {
    /// The first pause.
    const FIRST: Duration = Duration::from_secs(1);

    /// The longest pause. What has worked for as long has the first pause again.
    pub(in crate::adapter) const LONGEST: Duration = Duration::from_secs(60);

    pub(in crate::adapter) fn new() -> Self {
        Self(Self::FIRST)
    }

    /// Returns the pause after an attempt that took, or worked for, this long.
    pub(in crate::adapter) fn after(&mut self, worked: Duration) -> Duration {
        let pause = if worked >= Self::LONGEST { Self::FIRST } else { self.0 };
        self.0 = (pause * 2).min(Self::LONGEST);
        pause
    }
}

/// Returns the health of a source that cannot be used.
pub(in crate::adapter) fn down(reason: &str) -> SourceHealth {
    SourceHealth::Down { reason: reason.into(), since: Instant::now().into_std() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_minute_and_begin_again_after_a_minute_of_work() {
        let mut pauses = Pauses::new();
        let seconds: Vec<_> = (0..8).map(|_| pauses.after(Duration::ZERO).as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(pauses.after(Duration::from_secs(59)).as_secs(), 60);
        assert_eq!(pauses.after(Duration::from_secs(60)).as_secs(), 1);
        assert_eq!(pauses.after(Duration::ZERO).as_secs(), 2);
    }
}
