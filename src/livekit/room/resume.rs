//! Decides when to resume a lost signaling connection. It has no clock, no I/O and no randomness.
//!
//! Packets do not need signaling, so its loss does not end the connection. Resuming is retried while the peer connection
//! lives, unless the server refuses it.

use std::time::{Duration, Instant};

use super::rejoin::{Policy, STABLE};

/// The time limit of the first attempt. It doubles with each attempt, up to the join timeout.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);

/// The state of a connection's signaling.
#[derive(Debug)]
pub(crate) struct Resume {
    policy: Policy,
    state: State,
    /// When signaling was opened, or the current attempt started.
    since: Instant,
    /// The number of attempts since signaling was last stable.
    tries: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Signaling works.
    Up,
    /// The next attempt is due at this time.
    Due(Instant),
    /// An attempt is in progress.
    Trying,
}

impl Resume {
    /// Creates the state of an open signaling connection.
    pub(crate) fn new(now: Instant, policy: Policy) -> Self {
        Self { policy, state: State::Up, since: now, tries: 0 }
    }

    /// Handles the loss of signaling. `chance` is a random number.
    pub(crate) fn handle_lost(&mut self, now: Instant, chance: u32) {
        if self.state == State::Up {
            self.forget_tries(now);
            self.state = State::Due(now + self.policy.wait(self.tries, chance));
        }
    }

    /// Schedules an attempt to reopen signaling, because the server asked for it or its local address is
    /// gone. The first attempt is due at once.
    pub(crate) fn handle_wanted(&mut self, now: Instant, chance: u32) {
        // An attempt in progress opens another socket anyway.
        if self.state != State::Trying {
            self.forget_tries(now);
            let wait = if self.tries == 0 { Duration::ZERO } else { self.policy.wait(self.tries, chance) };
            self.state = State::Due(now + wait);
        }
    }

    /// Handles a failed attempt. `chance` is a random number.
    pub(crate) fn handle_failed(&mut self, now: Instant, chance: u32) {
        // The duration of the attempt counts toward the wait.
        self.state = State::Due(now.max(self.since + self.policy.wait(self.tries, chance)));
    }

    /// Handles a successful attempt.
    pub(crate) fn handle_resumed(&mut self, now: Instant) {
        self.state = State::Up;
        self.since = now;
    }

    /// Returns true if signaling works.
    pub(crate) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Returns the time limit of an attempt that is due now. The attempt counts as started.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Duration> {
        match self.state {
            State::Due(at) if now >= at => {}
            _ => return None,
        }
        let limit = FIRST_ATTEMPT.saturating_mul(2_u32.saturating_pow(self.tries));
        self.state = State::Trying;
        self.since = now;
        self.tries = self.tries.saturating_add(1);
        Some(limit.min(self.policy.join_timeout))
    }

    /// Returns when to call [`poll`](Self::poll) next, if an attempt is scheduled.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            State::Due(at) => Some(at),
            State::Up | State::Trying => None,
        }
    }

    fn forget_tries(&mut self, now: Instant) {
        if self.state == State::Up && now.saturating_duration_since(self.since) >= STABLE {
            self.tries = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    const MOST: u32 = u32::MAX;

    fn up() -> (Resume, Instant) {
        let (start, policy) = (
            Instant::now(),
            Policy { first: 200 * MS, longest: 5 * SECOND, limit: None, join_timeout: 15 * SECOND },
        );
        (Resume::new(start, policy), start + STABLE)
    }

    #[test]
    fn lost_signaling_is_retried_with_growing_waits() {
        for (chance, waits) in [
            (0, [0, 100, 200, 400, 800, 1600, 2500, 2500]),
            (MOST, [100, 200, 400, 800, 1600, 3200, 5000, 5000]),
        ] {
            let (mut resume, mut now) = up();
            resume.handle_lost(now, chance);
            for wait in waits {
                assert_eq!(resume.poll_timeout(), Some(now + wait * MS));
                now += wait * MS;
                assert!(resume.poll(now).is_some());
                assert_eq!((resume.poll(now), resume.poll_timeout()), (None, None), "one at a time");
                resume.handle_failed(now, chance);
            }
            assert!(!resume.is_up());
        }
    }

    #[test]
    fn attempt_limit_doubles_up_to_the_join_timeout() {
        let (mut resume, mut now) = up();
        resume.handle_lost(now, 0);
        for seconds in [3, 6, 12, 15, 15] {
            assert_eq!(resume.poll(now), Some(seconds * SECOND));
            now += seconds * SECOND;
            resume.handle_failed(now, 0);
        }
    }

    #[test]
    fn requested_resume_starts_at_once_unless_signaling_is_unstable() {
        let (mut resume, now) = up();
        resume.handle_wanted(now, MOST);
        assert!(resume.poll(now).is_some());
        resume.handle_wanted(now, MOST);
        assert_eq!(resume.poll_timeout(), None, "one is under way");
        resume.handle_resumed(now + SECOND);
        assert!(resume.is_up());
        resume.handle_wanted(now + 2 * SECOND, MOST);
        assert_eq!(resume.poll_timeout(), Some(now + 2 * SECOND + 200 * MS), "it asks again and again");
        assert!(resume.poll(now + 3 * SECOND).is_some());
        resume.handle_resumed(now + 3 * SECOND);
        resume.handle_wanted(now + 3 * SECOND + STABLE, MOST);
        assert!(resume.poll(now + 3 * SECOND + STABLE).is_some());
    }

    #[test]
    fn requested_resume_does_not_wait_for_an_earlier_backoff() {
        let (mut resume, now) = up();
        resume.handle_lost(now, MOST);
        resume.handle_wanted(now, MOST);
        assert!(resume.poll(now).is_some(), "the first attempt");
    }
}
