//! What follows when a join is lost: decided from what happened and when, without a clock, a socket or chance.
//!
//! Every loss is followed by a new join. A resume of the old one (same sid, same peer connection) would be
//! another [`Step`], taken before [`Step::Join`] while the [`Loss`] leaves the peer connection alive.

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{
    error::ConnectError,
    health::{End, Loss},
};
use crate::link::CloseReason;

/// The first attempt has this long, or four times what the last join took: on a dead network it only delays
/// the next one. Each further one has twice as long, up to the limit of a join.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);
/// A join that lasted this long was no false start: the next loss is a first one again.
const STABLE: Duration = Duration::from_secs(10);
/// How long an attempt that was given up may still reach the server: by then its sockets are gone.
const GHOST: Duration = Duration::from_secs(30);

/// How often it is tried, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// The first wait between two attempts; it doubles.
    pub(super) first: Duration,
    /// The longest wait.
    pub(super) longest: Duration,
    /// How long it is tried in all. None: for ever.
    pub(super) limit: Option<Duration>,
    /// How long one attempt may take at most.
    pub(super) join_timeout: Duration,
}

/// What is to be done now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time.
    Wait(Instant),
    /// Join anew, within this limit.
    Join {
        /// How long it may take.
        limit: Duration,
        /// Whether the newest token was refused, and another must be had.
        fresh_token: bool,
    },
    /// It is over.
    End(CloseReason),
}

/// What went wrong in an attempt.
#[derive(Debug)]
pub(super) enum Failure {
    /// The join itself failed.
    Join(ConnectError),
    /// The server takes the token no more, and the user can be asked for a fresh one.
    TokenRefused,
    /// The token has expired, and nobody can be asked for a fresh one.
    TokenExpired,
    /// No fresh token was given, for this reason.
    NoToken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join(error) => error.fmt(f),
            Self::TokenRefused => f.write_str("the server takes the token no more"),
            Self::TokenExpired => f.write_str("the token has expired"),
            Self::NoToken(why) => write!(f, "no fresh token: {why}"),
        }
    }
}

/// The life of a participant, seen from its losses.
#[derive(Debug)]
pub(super) struct Rejoin {
    policy: Policy,
    /// When the present join was made, or the present attempt begun.
    since: Instant,
    /// How long the last join took to be made.
    took: Duration,
    /// How often it was tried since the last stable join.
    tries: u32,
    /// When the join was lost, and why.
    lost: Option<(Instant, String)>,
    /// When it is tried next.
    due: Instant,
    fresh_token: bool,
    /// Until when an attempt that was given up may still reach the server and put us out.
    ghost_until: Option<Instant>,
    end: Option<CloseReason>,
}

impl Rejoin {
    /// A first join that took so long.
    pub(super) fn new(now: Instant, policy: Policy, took: Duration) -> Self {
        Self {
            policy,
            since: now,
            took,
            tries: 0,
            lost: None,
            due: now,
            fresh_token: false,
            ghost_until: None,
            end: None,
        }
    }

    /// The join ended. `chance` is any number.
    pub(super) fn handle_ended(&mut self, now: Instant, end: End, chance: u32) {
        let loss = match end {
            End::Closed(CloseReason::DuplicateIdentity) if self.excuse(now) => Loss::Ghost,
            End::Closed(reason) => {
                self.end = Some(reason);
                return;
            }
            End::Lost(loss) => loss,
        };
        if now.saturating_duration_since(self.since) >= STABLE {
            self.tries = 0;
        }
        self.lost = Some((now, loss.to_string()));
        self.due = now + self.wait(chance);
    }

    /// An attempt failed. `chance` is any number.
    pub(super) fn handle_failed(&mut self, now: Instant, failure: &Failure, chance: u32) {
        self.fresh_token = false;
        match failure {
            Failure::TokenRefused => {
                self.fresh_token = true;
                self.due = now;
                return;
            }
            Failure::TokenExpired => self.end = Some(CloseReason::TokenExpired),
            Failure::Join(ConnectError::DuplicateIdentity) if self.excuse(now) => {}
            Failure::Join(error) => self.end = refusal(error),
            Failure::NoToken(_) => {}
        }
        if let Failure::Join(ConnectError::Timeout { .. } | ConnectError::Unreachable { .. }) = failure {
            self.ghost_until = Some(now + GHOST);
        }
        // An attempt that hung has waited already.
        self.due = now.max(self.since + self.wait(chance));
    }

    /// An attempt has led to a join.
    pub(super) fn handle_joined(&mut self, now: Instant) {
        self.took = now.saturating_duration_since(self.since);
        self.since = now;
        self.lost = None;
        self.fresh_token = false;
    }

    /// Why it is over, if it is.
    pub(super) fn is_over(&self, now: Instant) -> Option<CloseReason> {
        if self.end.is_some() {
            return self.end.clone();
        }
        let (limit, (lost_at, why)) = self.policy.limit.zip(self.lost.as_ref())?;
        if now.saturating_duration_since(*lost_at) < limit {
            return None;
        }
        let why = if limit.is_zero() { why.clone() } else { format!("{why}; not back within {limit:?}") };
        Some(CloseReason::ConnectionLost(why.into()))
    }

    /// What is to be done now, after a loss. A [`Step::Join`] counts as begun.
    pub(super) fn poll(&mut self, now: Instant) -> Step {
        if let Some(reason) = self.is_over(now) {
            return Step::End(reason);
        }
        let until =
            self.policy.limit.zip(self.lost.as_ref()).and_then(|(limit, (at, _))| at.checked_add(limit));
        if now < self.due {
            return Step::Wait(until.map_or(self.due, |until| until.min(self.due)));
        }
        let first = FIRST_ATTEMPT.max(4 * self.took);
        let limit = doubled(first, self.tries).min(self.policy.join_timeout);
        let limit = until.map_or(limit, |until| limit.min(until.saturating_duration_since(now)));
        self.tries = self.tries.saturating_add(1);
        self.since = now;
        Step::Join { limit, fresh_token: self.fresh_token }
    }

    /// Half of the wait is fixed and half is chance, lest all that one server lost come back at once. The
    /// first attempt follows within half of the first wait.
    fn wait(&self, chance: u32) -> Duration {
        let part = |whole: Duration| whole.mul_f64(f64::from(chance) / f64::from(u32::MAX));
        match self.tries.checked_sub(1) {
            None => part(self.policy.first / 2),
            Some(doublings) => {
                let half = doubled(self.policy.first, doublings).min(self.policy.longest) / 2;
                half + part(half)
            }
        }
    }

    /// Whether the one that put us out may be ourselves. Believed once, or two with one name would put each
    /// other out for ever.
    fn excuse(&mut self, now: Instant) -> bool {
        self.ghost_until.take().is_some_and(|until| now < until)
    }
}

fn doubled(once: Duration, times: u32) -> Duration {
    once.saturating_mul(2_u32.saturating_pow(times))
}

/// Why it is of no use to try again, if so. A server that is restarting, or a proxy before one, answers 5xx;
/// a network may answer in its place, and so TLS may fail for a while.
fn refusal(error: &ConnectError) -> Option<CloseReason> {
    /// The server, or something before it, has only no time now.
    const LATER: [u16; 3] = [408, 425, 429];
    match error {
        ConnectError::DuplicateIdentity => Some(CloseReason::DuplicateIdentity),
        ConnectError::RoomDeleted => Some(CloseReason::RoomDeleted),
        ConnectError::Removed => Some(CloseReason::Removed),
        ConnectError::Closed(CloseReason::ConnectionLost(_)) => None,
        ConnectError::Closed(reason) => Some(reason.clone()),
        ConnectError::Refused { status, .. } if *status >= 500 || LATER.contains(status) => None,
        ConnectError::Refused { .. }
        | ConnectError::Unauthorized { .. }
        | ConnectError::Forbidden { .. }
        | ConnectError::ServerTooOld { .. }
        | ConnectError::Url { .. }
        | ConnectError::MalformedToken => Some(CloseReason::Refused(error.to_string().into())),
        ConnectError::Unreachable { .. }
        | ConnectError::Tls { .. }
        | ConnectError::NoNetworkPath { .. }
        | ConnectError::Timeout { .. }
        | ConnectError::Socket(_)
        | ConnectError::Transport(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);
    /// The largest wait that chance can make of one; nought is the smallest.
    const MOST: u32 = u32::MAX;

    fn policy() -> Policy {
        Policy { first: 200 * MS, longest: 5 * SECOND, limit: None, join_timeout: 15 * SECOND }
    }

    fn stable(policy: Policy) -> (Rejoin, Instant) {
        let start = Instant::now();
        (Rejoin::new(start, policy, 50 * MS), start + STABLE)
    }

    fn lost() -> End {
        End::Lost(Loss::Signalling("stream closed".into()))
    }

    fn unreachable() -> Failure {
        Failure::Join(ConnectError::Unreachable { server: "sfu:443".into(), reason: "refused".into() })
    }

    fn unauthorized() -> ConnectError {
        ConnectError::Unauthorized { server: "sfu:443".into(), status: 401 }
    }

    /// Lets the time come; how long that took, and the limit of the attempt.
    fn next_attempt(rejoin: &mut Rejoin, now: &mut Instant) -> (Duration, Duration) {
        let before = *now;
        loop {
            match rejoin.poll(*now) {
                Step::Wait(until) => *now = until,
                Step::Join { limit, .. } => return (*now - before, limit),
                Step::End(reason) => panic!("{reason}"),
            }
        }
    }

    fn end_of(failure: &Failure) -> Option<CloseReason> {
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), 0);
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_failed(now, failure, 0);
        match rejoin.poll(now) {
            Step::End(reason) => Some(reason),
            _ => None,
        }
    }

    #[test]
    fn the_first_attempt_follows_at_once_and_the_waits_double_up_to_the_longest() {
        for (chance, expected) in [
            (0, [0, 100, 200, 400, 800, 1600, 2500, 2500]),
            (MOST, [100, 200, 400, 800, 1600, 3200, 5000, 5000]),
        ] {
            let (mut rejoin, mut now) = stable(policy());
            rejoin.handle_ended(now, lost(), chance);
            for milliseconds in expected {
                assert_eq!(next_attempt(&mut rejoin, &mut now).0, milliseconds * MS);
                rejoin.handle_failed(now, &unreachable(), chance);
            }
        }
    }

    #[test]
    fn an_attempt_that_hung_has_waited_already() {
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), MOST);
        let (_, limit) = next_attempt(&mut rejoin, &mut now);
        assert_eq!(limit, FIRST_ATTEMPT);
        now += limit;
        rejoin.handle_failed(now, &unreachable(), MOST);
        let (waited, limit) = next_attempt(&mut rejoin, &mut now);
        assert_eq!((waited, limit), (Duration::ZERO, 2 * FIRST_ATTEMPT));
    }

    #[test]
    fn attempts_may_take_longer_and_longer_up_to_the_limit_of_a_join() {
        let limits = |took: Duration, policy: Policy| {
            let (start, mut limits) = (Instant::now(), Vec::new());
            let (mut rejoin, mut now) = (Rejoin::new(start, policy, took), start + STABLE);
            rejoin.handle_ended(now, lost(), 0);
            for _ in 0..5 {
                limits.push(next_attempt(&mut rejoin, &mut now).1.as_secs());
                rejoin.handle_failed(now, &unreachable(), 0);
            }
            limits
        };
        assert_eq!(limits(50 * MS, policy()), [3, 6, 12, 15, 15]);
        assert_eq!(limits(SECOND, policy()), [4, 8, 15, 15, 15], "a slow network has more time");
        assert_eq!(limits(SECOND, Policy { join_timeout: 2 * SECOND, ..policy() }), [2; 5]);
    }

    #[test]
    fn a_join_that_lasts_begins_anew_and_a_false_start_does_not() {
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), MOST);
        for _ in 0..3 {
            next_attempt(&mut rejoin, &mut now);
            rejoin.handle_joined(now);
            now += SECOND;
            rejoin.handle_ended(now, lost(), MOST);
        }
        assert_eq!(next_attempt(&mut rejoin, &mut now).0, 800 * MS, "three false starts");
        rejoin.handle_joined(now);
        now += STABLE;
        rejoin.handle_ended(now, lost(), MOST);
        assert_eq!(next_attempt(&mut rejoin, &mut now).0, 100 * MS);
    }

    #[test]
    fn without_a_limit_it_is_tried_for_ever_and_with_one_until_then() {
        let (mut rejoin, mut now) = stable(policy());
        let start = now;
        rejoin.handle_ended(now, lost(), 0);
        while now < start + 24 * 3600 * SECOND {
            next_attempt(&mut rejoin, &mut now);
            now += SECOND;
            rejoin.handle_failed(now, &unreachable(), 0);
        }

        let (mut rejoin, mut now) = stable(Policy { limit: Some(10 * SECOND), ..policy() });
        let until = now + 10 * SECOND;
        rejoin.handle_ended(now, lost(), MOST);
        let reason = loop {
            match rejoin.poll(now) {
                Step::Wait(at) => now = at,
                Step::Join { limit, .. } => {
                    assert!(now + limit <= until, "no attempt lasts longer than the limit of them all");
                    rejoin.handle_failed(now, &unreachable(), MOST);
                }
                Step::End(reason) => break reason,
            }
        };
        assert_eq!(now, until);
        match reason {
            CloseReason::ConnectionLost(why) => {
                assert!(why.contains("stream closed") && why.contains("10s"), "{why}");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_limit_of_nothing_ends_with_the_loss_itself() {
        let (mut rejoin, now) = stable(Policy { limit: Some(Duration::ZERO), ..policy() });
        assert_eq!(rejoin.is_over(now), None);
        rejoin.handle_ended(now, lost(), 0);
        let why = "the signalling connection ended (stream closed)";
        assert_eq!(rejoin.is_over(now), Some(CloseReason::ConnectionLost(why.into())));
    }

    #[test]
    fn somebodys_will_is_the_end() {
        for reason in [CloseReason::Removed, CloseReason::DuplicateIdentity, CloseReason::ServerShutdown] {
            let (mut rejoin, now) = stable(policy());
            rejoin.handle_ended(now, End::Closed(reason.clone()), 0);
            assert_eq!(rejoin.is_over(now), Some(reason));
        }
        assert_eq!(end_of(&Failure::Join(ConnectError::Removed)), Some(CloseReason::Removed));
        assert_eq!(end_of(&Failure::Join(ConnectError::RoomDeleted)), Some(CloseReason::RoomDeleted));
        let shutdown = ConnectError::Closed(CloseReason::ServerShutdown);
        assert_eq!(end_of(&Failure::Join(shutdown)), Some(CloseReason::ServerShutdown));
    }

    #[test]
    fn a_refusal_is_the_end_and_trouble_is_not() {
        let server = || "sfu:443".to_owned();
        let refused = |status| Failure::Join(ConnectError::Refused { server: server(), status });
        for failure in [
            Failure::Join(unauthorized()),
            Failure::Join(ConnectError::Forbidden { server: server(), status: 403 }),
            Failure::Join(ConnectError::ServerTooOld { version: "1.9.8".into() }),
            Failure::Join(ConnectError::MalformedToken),
            refused(404),
        ] {
            let told = failure.to_string();
            assert_eq!(end_of(&failure), Some(CloseReason::Refused(told.into())));
        }
        assert_eq!(end_of(&Failure::TokenExpired), Some(CloseReason::TokenExpired));
        for failure in [
            unreachable(),
            refused(429),
            refused(502),
            Failure::NoToken("the token server is away".into()),
            Failure::Join(ConnectError::Tls { server: server(), reason: "unexpected end".into() }),
            Failure::Join(ConnectError::NoNetworkPath { limit: SECOND, tried: "none".into() }),
            Failure::Join(ConnectError::Closed(CloseReason::ConnectionLost("again".into()))),
        ] {
            assert_eq!(end_of(&failure), None);
        }
    }

    #[test]
    fn a_refused_token_is_replaced_at_once() {
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), 0);
        assert!(matches!(rejoin.poll(now), Step::Join { fresh_token: false, .. }));
        rejoin.handle_failed(now, &Failure::TokenRefused, MOST);
        assert!(matches!(rejoin.poll(now), Step::Join { fresh_token: true, .. }));
        // Nobody gave one: the old one is tried again, and refused again.
        rejoin.handle_failed(now, &Failure::NoToken("away".into()), MOST);
        assert!(next_attempt(&mut rejoin, &mut now).0 > Duration::ZERO);
    }

    #[test]
    fn an_attempt_that_was_given_up_may_put_us_out_once() {
        let out = || End::Closed(CloseReason::DuplicateIdentity);
        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), 0);
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_failed(now, &unreachable(), 0);
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_joined(now);
        rejoin.handle_ended(now, out(), 0);
        assert_eq!(rejoin.is_over(now), None, "it was ourselves");
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_joined(now);
        rejoin.handle_ended(now, out(), 0);
        assert_eq!(rejoin.is_over(now), Some(CloseReason::DuplicateIdentity));

        let (mut rejoin, mut now) = stable(policy());
        rejoin.handle_ended(now, lost(), 0);
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_failed(now, &unreachable(), 0);
        next_attempt(&mut rejoin, &mut now);
        rejoin.handle_joined(now);
        now += GHOST;
        rejoin.handle_ended(now, out(), 0);
        assert_eq!(rejoin.is_over(now), Some(CloseReason::DuplicateIdentity), "by then it is gone");
    }
}
