//! What follows when a join is lost: decided from what happened and when, without a clock, a socket or chance.
//!
//! Every loss is followed by a new join. What can be mended within a join (a lost signaling connection, an address
//! of ours that went away) is no loss: see [`resume`](super::resume).

use std::{
    fmt,
    time::{Duration, Instant},
};

use super::{
    error::ConnectError,
    liveness::{End, Loss},
    signal::is_passing,
};
use crate::transport::CloseReason;

/// The first attempt has this long, or four times what the last join took: on a dead network it only delays
/// the next one. Each further one has twice as long, up to the limit of a join.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);
/// A join that lasted this long was no false start: the next loss is a first one again.
pub(super) const STABLE: Duration = Duration::from_secs(10);
/// How long an attempt that was given up may still reach the server: by then its sockets are gone.
const GHOST: Duration = Duration::from_secs(30);
/// How long a refusal must be repeated before it is believed. A gateway in front of the server answers 401, 403 or 404 in
/// its place while the server is being moved or the gateway's own keys are being changed.
const BELIEVED: Duration = Duration::from_secs(15);

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

impl Policy {
    /// How long to wait after so many tries. `chance` is any number.
    ///
    /// Half of the wait is fixed and half is chance, lest all that one server lost come back at once. The
    /// first attempt follows within half of the first wait.
    pub(super) fn wait(&self, tries: u32, chance: u32) -> Duration {
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
    /// Since when it is refused, each time.
    refused: Option<Instant>,
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
            refused: None,
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
        self.due = now + self.policy.wait(self.tries, chance);
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
            Failure::Join(error) if self.may_pass(now, error) => {}
            Failure::Join(error) => self.end = refusal(error),
            Failure::NoToken(_) => {}
        }
        if let Failure::Join(ConnectError::Timeout { .. } | ConnectError::Unreachable { .. }) = failure {
            self.ghost_until = Some(now + GHOST);
        }
        // An attempt that hung has waited already.
        self.due = now.max(self.since + self.policy.wait(self.tries, chance));
    }

    /// An attempt has led to a join.
    pub(super) fn handle_joined(&mut self, now: Instant) {
        self.took = now.saturating_duration_since(self.since);
        self.since = now;
        self.lost = None;
        self.fresh_token = false;
        self.refused = None;
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

    /// Whether this is a refusal that was not heard for long.
    fn may_pass(&mut self, now: Instant, error: &ConnectError) -> bool {
        let refused = match error {
            ConnectError::Refused { status, .. } => !is_passing(*status),
            ConnectError::Unauthorized { .. } | ConnectError::Forbidden { .. } => true,
            _ => false,
        };
        self.refused = self.refused.or(Some(now)).filter(|_| refused);
        self.refused.is_some_and(|since| now.saturating_duration_since(since) < BELIEVED)
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
    match error {
        ConnectError::DuplicateIdentity => Some(CloseReason::DuplicateIdentity),
        ConnectError::RoomDeleted => Some(CloseReason::RoomDeleted),
        ConnectError::Removed => Some(CloseReason::Removed),
        ConnectError::Closed(CloseReason::ConnectionLost(_)) => None,
        ConnectError::Closed(reason) => Some(reason.clone()),
        ConnectError::Refused { status, .. } if is_passing(*status) => None,
        ConnectError::Refused { .. }
        | ConnectError::Unauthorized { .. }
        | ConnectError::Forbidden { .. }
        | ConnectError::ServerTooOld { .. }
        | ConnectError::ForeignClient
        | ConnectError::Url { .. }
        | ConnectError::MalformedToken => Some(CloseReason::Refused(error.to_string().into())),
        ConnectError::Unreachable { .. }
        | ConnectError::Tls { .. }
        | ConnectError::NotEncrypted { .. }
        | ConnectError::Proxy { .. }
        | ConnectError::NoNetworkPath { .. }
        | ConnectError::NoRelay { .. }
        | ConnectError::Timeout { .. }
        | ConnectError::Socket(_)
        | ConnectError::Transport(_) => None,
    }
}

#[cfg(test)]
mod tests;
