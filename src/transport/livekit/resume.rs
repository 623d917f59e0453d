//! When a lost signaling connection is taken up again: decided from what happened and when, without a clock, a
//! socket or chance.
//!
//! Packets travel without the signaling, so its loss is none of the join. It is tried again for as long as the peer
//! connection lives; only the server's word ends it.

use std::time::{Duration, Instant};

use super::rejoin::{Policy, STABLE};

/// The first attempt has this long; each further one has twice as long, up to the limit of a join.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);

/// The signaling of one join, seen from its losses.
#[derive(Debug)]
pub(super) struct Resume {
    policy: Policy,
    state: State,
    /// When the present connection was opened, or the present attempt begun.
    since: Instant,
    /// How often it was tried since it last was stable.
    tries: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// It is there.
    Up,
    /// It is tried then.
    Due(Instant),
    /// It is being tried.
    Trying,
}

impl Resume {
    /// A connection that was just opened.
    pub(super) fn new(now: Instant, policy: Policy) -> Self {
        Self { policy, state: State::Up, since: now, tries: 0 }
    }

    /// The connection is gone. `chance` is any number.
    pub(super) fn handle_lost(&mut self, now: Instant, chance: u32) {
        if self.state == State::Up {
            self.forget_tries(now);
            self.state = State::Due(now + self.policy.wait(self.tries, chance));
        }
    }

    /// Another one is wanted: the server asked for it, or the present one stands on an address that is gone. The
    /// first time at once.
    pub(super) fn handle_wanted(&mut self, now: Instant, chance: u32) {
        if self.state != State::Trying {
            self.forget_tries(now);
            let wait = if self.tries == 0 { Duration::ZERO } else { self.policy.wait(self.tries, chance) };
            self.state = State::Due(now + wait);
        }
    }

    /// The attempt failed. `chance` is any number.
    pub(super) fn handle_failed(&mut self, now: Instant, chance: u32) {
        // An attempt that hung has waited already.
        self.state = State::Due(now.max(self.since + self.policy.wait(self.tries, chance)));
    }

    /// The attempt has led to a connection.
    pub(super) fn handle_resumed(&mut self, now: Instant) {
        self.state = State::Up;
        self.since = now;
    }

    /// Whether there is a connection.
    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    /// Whether it is to be tried now, and for how long. It counts as begun.
    pub(super) fn poll(&mut self, now: Instant) -> Option<Duration> {
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

    /// When to ask again, if the time alone brings something.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
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
    fn a_lost_one_is_tried_soon_and_then_less_and_less_often() {
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
    fn each_attempt_has_twice_as_long_up_to_a_joins_limit_and_what_hung_has_waited() {
        let (mut resume, mut now) = up();
        resume.handle_lost(now, 0);
        for seconds in [3, 6, 12, 15, 15] {
            assert_eq!(resume.poll(now), Some(seconds * SECOND));
            now += seconds * SECOND;
            resume.handle_failed(now, 0);
        }
    }

    #[test]
    fn one_that_is_asked_for_is_opened_at_once_unless_it_never_lasts() {
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
    fn one_that_is_wanted_does_not_wait_for_what_was_lost_before() {
        let (mut resume, now) = up();
        resume.handle_lost(now, MOST);
        resume.handle_wanted(now, MOST);
        assert!(resume.poll(now).is_some(), "the first attempt");
    }
}
