//! Decides whether and when to rejoin after the connection was lost. It has no clock, no I/O and no randomness.
//!
//! Every loss is followed by a rejoin. Failures that the connection survives (lost signaling, a changed local address) are
//! handled by [`resume`](super::resume).

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::liveness::{End, Loss};
use crate::{
    clock::Spelled,
    livekit::{error::ConnectError, signaling::refusal::TokenRefusal},
    transport::CloseReason,
};

/// The time limit of the first attempt, or four times the duration of the last join if that is longer. On a dead network
/// a longer limit only delays the next attempt. The limit doubles with each attempt, up to the join timeout.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);
/// A connection that lasted this long resets the backoff.
pub(crate) const STABLE: Duration = Duration::from_secs(10);
/// How long an abandoned attempt can still reach the server. After that its sockets are closed.
const GHOST: Duration = Duration::from_secs(30);
/// How long a rejection of the token must be repeated before it is final: the server's keys may just be rotated.
const BELIEVED: Duration = Duration::from_secs(15);

/// The intervals and limits of rejoin attempts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    /// The first wait between two attempts; it doubles.
    pub(crate) first: Duration,
    /// The longest wait.
    pub(crate) longest: Duration,
    /// The total time limit. `None`: no limit.
    pub(crate) limit: Option<Duration>,
    /// The time limit of one attempt.
    pub(crate) join_timeout: Duration,
}

impl Policy {
    /// Returns how long to wait after `tries` attempts. `chance` is a random number.
    ///
    /// Half of the wait is fixed and half is random, so that participants disconnected by one server do not rejoin
    /// together. The first attempt follows within half of the first wait.
    pub(crate) fn wait(&self, tries: u32, chance: u32) -> Duration {
        let part = |whole: Duration| whole.mul_f64(f64::from(chance) / f64::from(u32::MAX));
        match tries.checked_sub(1) {
            None => part(self.first / 2),
            Some(doublings) => {
                let half = doubled(self.first, doublings).min(self.longest) / 2;
                half + part(half)
            }
        }
    }
}

/// The next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Wait until this time.
    Wait(Instant),
    /// Make an attempt.
    Join {
        /// Its time limit.
        limit: Duration,
        /// True if the newest token was rejected and a fresh one is needed.
        fresh_token: bool,
    },
    /// Stop.
    End(CloseReason),
}

/// The reason why an attempt failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Joining failed.
    Join(ConnectError),
    /// Joining failed after its request was sent, without an answer: the server may accept it yet.
    Unanswered(ConnectError),
    /// The server rejected the token, and there is a token source.
    TokenRefused,
    /// The token has expired, and there is no token source.
    TokenExpired,
    /// The token source failed, for this reason.
    NoToken(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Join(error) | Self::Unanswered(error) => error.fmt(f),
            Self::TokenRefused => f.write_str("the server rejected the token"),
            Self::TokenExpired => f.write_str("the token has expired"),
            Self::NoToken(why) => write!(f, "no fresh token: {why}"),
        }
    }
}

/// The reconnection state of a participant.
#[derive(Debug)]
pub(crate) struct Rejoin {
    policy: Policy,
    /// When the current connection was established, or the current attempt started.
    since: Instant,
    /// How long the last join took.
    took: Duration,
    /// The number of attempts since the last stable connection.
    tries: u32,
    /// When and why the connection was lost.
    lost: Option<(Instant, String)>,
    /// When the next attempt is due.
    due: Instant,
    fresh_token: bool,
    /// Since when all attempts were rejected.
    refused: Option<Instant>,
    /// Until when an abandoned attempt can still reach the server and replace the current connection.
    ghost_until: Option<Instant>,
    end: Option<CloseReason>,
}

impl Rejoin {
    /// Creates the state after a first join that took this long.
    pub(crate) fn new(now: Instant, policy: Policy, took: Duration) -> Self {
        Self {
            policy,
            since: now,
            took,
            tries: 0,
            lost: None,
            due: now,
            fresh_token: false,
            refused: None,
            ghost_until: None,
            end: None,
        }
    }

    /// Handles the end of the connection. `chance` is a random number.
    pub(crate) fn handle_ended(&mut self, now: Instant, end: End, chance: u32) {
        let loss = match end {
            End::Closed(CloseReason::DuplicateIdentity) if self.excuse(now) => Loss::Ghost,
            End::Closed(reason) => {
                self.end = Some(reason);
                return;
            }
            End::Lost(loss) => loss,
        };
        // A connection that is lost at once again must not reset the wait, or the attempts would follow each
        // other without one.
        if now.saturating_duration_since(self.since) >= STABLE {
            self.tries = 0;
        }
        self.lost = Some((now, loss.to_string()));
        self.due = now + self.policy.wait(self.tries, chance);
    }

    /// Handles a failed attempt. `chance` is a random number.
    pub(crate) fn handle_failed(&mut self, now: Instant, failure: &Failure, chance: u32) {
        self.fresh_token = false;
        match failure {
            Failure::TokenRefused => {
                // At once: the next attempt has another token, and a refusal of that is not `TokenRefused`,
                // so this does not loop.
                self.fresh_token = true;
                self.due = now;
                return;
            }
            Failure::TokenExpired => self.end = Some(CloseReason::TokenExpired),
            Failure::Join(ConnectError::DuplicateIdentity) if self.excuse(now) => {}
            Failure::Join(error) if self.may_pass(now, error) => {}
            Failure::Join(error) => self.end = refusal(error),
            Failure::Unanswered(_) => {
                self.refused = None;
                self.ghost_until = Some(now + GHOST);
            }
            Failure::NoToken(_) => {}
        }
        // The duration of the attempt counts toward the wait.
        self.due = now.max(self.since + self.policy.wait(self.tries, chance));
    }

    /// Handles a successful attempt.
    pub(crate) fn handle_joined(&mut self, now: Instant) {
        self.took = now.saturating_duration_since(self.since);
        self.since = now;
        self.lost = None;
        self.fresh_token = false;
        self.refused = None;
    }

    /// Returns the reason if reconnection has stopped.
    pub(crate) fn is_over(&self, now: Instant) -> Option<CloseReason> {
        if self.end.is_some() {
            return self.end.clone();
        }
        let (limit, (lost_at, why)) = self.policy.limit.zip(self.lost.as_ref())?;
        if now.saturating_duration_since(*lost_at) < limit {
            return None;
        }
        let why = match limit.is_zero() {
            true => why.clone(),
            false => format!("{why}; not reconnected within {}", Spelled(limit)),
        };
        Some(CloseReason::ConnectionLost(why.into()))
    }

    /// Returns the next step after a loss. A returned [`Step::Join`] counts as started.
    pub(crate) fn poll(&mut self, now: Instant) -> Step {
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

    /// Returns whether this is a refusal that has not lasted long enough to be final.
    fn may_pass(&mut self, now: Instant, error: &ConnectError) -> bool {
        let refused = matches!(error, ConnectError::Unauthorized { .. }) && refusal(error).is_some();
        self.refused = self.refused.or(Some(now)).filter(|_| refused);
        self.refused.is_some_and(|since| now.saturating_duration_since(since) < BELIEVED)
    }

    /// Returns true if the participant with the same identity may be an earlier attempt of this one. Assumed once per
    /// attempt; otherwise two participants with one identity would replace each other forever.
    fn excuse(&mut self, now: Instant) -> bool {
        self.ghost_until.take().is_some_and(|until| now < until)
    }
}

fn doubled(once: Duration, times: u32) -> Duration {
    once.saturating_mul(2_u32.saturating_pow(times))
}

/// Returns the close reason if retrying is useless: by the word of the LiveKit server itself on the token or the participant. Any
/// other answer can be that of a proxy or a captive portal in front of it, of a server that is being replaced, or of another
/// service that has its address for a while.
fn refusal(error: &ConnectError) -> Option<CloseReason> {
    match error {
        ConnectError::DuplicateIdentity => Some(CloseReason::DuplicateIdentity),
        ConnectError::RoomDeleted => Some(CloseReason::RoomDeleted),
        ConnectError::Removed => Some(CloseReason::Removed),
        ConnectError::Closed(CloseReason::ConnectionLost(_)) => None,
        ConnectError::Closed(reason) => Some(reason.clone()),
        ConnectError::Unauthorized { reason: TokenRefusal::Unknown, .. } => None,
        ConnectError::Unauthorized { .. } | ConnectError::Url { .. } | ConnectError::MalformedToken => {
            Some(CloseReason::Refused(error.to_string().into()))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
