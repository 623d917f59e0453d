//! Says what to do about packets that cannot be read in a room with end-to-end encryption.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use crate::cli::terminal::failure::hint;
use toolbridge::{
    Identity,
    transport::{Peer, Unreadable},
};

/// The interval between two hints of an observer for the same reason.
const INTERVAL: Duration = Duration::from_secs(60);

/// Describes why the packets of a participant cannot be read, and what a person can do.
pub(in crate::cli) fn describe(by: Option<&Identity>, why: Unreadable) -> String {
    let by = by.map_or("a participant without an identity", Identity::as_str);
    format!("{by}: {why}")
}

/// Prints hints for an observer, which receives packets without a session that counts them.
#[derive(Debug, Default)]
pub(in crate::cli) struct Advice {
    given: HashMap<Unreadable, Instant>,
}

impl Advice {
    /// Prints what to do about a packet that cannot be read.
    pub(in crate::cli) fn print(&mut self, from: Option<&Peer>, why: Unreadable) {
        if self.is_due(why) {
            hint(&describe(from.map(Peer::identity), why));
        }
    }

    fn is_due(&mut self, why: Unreadable) -> bool {
        let now = Instant::now();
        let is_due = self.given.get(&why).is_none_or(|at| now.duration_since(*at) >= INTERVAL);
        if is_due {
            self.given.insert(why, now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn hint_is_due_once_a_minute_for_each_reason() {
        let mut advice = Advice::default();
        assert!(advice.is_due(Unreadable::Encrypted) && advice.is_due(Unreadable::Undecryptable));
        tokio::time::advance(INTERVAL - Duration::from_millis(1)).await;
        assert!(!advice.is_due(Unreadable::Encrypted));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(advice.is_due(Unreadable::Encrypted) && !advice.is_due(Unreadable::Encrypted));
    }
}
