//! One table of all deadlines.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{CallKey, JobKey};
use crate::transport::Identity;

/// Thirty years, as good as never: every clock can count so far.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3_600);

/// What can be due. Each has at most one deadline.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Send our Configuration again.
    Greet(Identity),
    /// Ask for a peer's Configuration again, if frames from a sid that was not announced wait for it still.
    Ask(Identity),
    /// The room never announced the sid that a Configuration moved this peer to.
    Provisional(Identity),
    /// Frames that wait for this peer's Configuration have waited long enough.
    Hold(Identity),
    /// Frames of senders that nobody announced have waited long enough.
    Unannounced,
    /// A peer that left did not come back.
    Grace(Identity),
    /// A peer that a caller named is silent: ask it as a plain one.
    Silent(Identity),
    /// Send our registration again.
    Register(Identity),
    /// What a peer has not acknowledged may go again.
    Replay(Identity),
    /// A peer's heartbeat stopped.
    Heartbeat(Identity),
    /// Look whether the owner of an open call still lives.
    Ping(Identity),
    /// A call found no owner.
    OwnerWait(CallKey),
    /// A call's budget is used up.
    Deadline(CallKey),
    /// A job's budget is used up.
    JobDeadline(JobKey),
    /// Progress that came too fast may go.
    Progress(JobKey),
    /// Memory of a caller's requests that were answered may go.
    Table(Identity),
    /// Memory of calls that were settled may go.
    Past,
    /// Misbehaviour that was counted in silence is reported.
    Complaints,
    /// Look for streams that do not go on, or take too long.
    Streams,
    /// Frames for this peer that the driver, the transport or the peer had no room for go again.
    Queue(Identity),
    /// Something on its way to this peer on the fast lane is due.
    Lane(Identity),
    /// Nobody claimed a call in time.
    ClaimWindow(CallKey),
    /// The budget of a call that we claimed is used up, and we were not allowed to start.
    ClaimDeadline(JobKey),
    /// Nobody answered the question whether a job may run.
    Consent(JobKey),
    /// Client: no assistant was bound in time.
    Unbound,
}

impl Timer {
    /// Whether it judges somebody's absence, or would send for nothing: not while we are cut off ourselves.
    fn pauses(&self) -> bool {
        matches!(
            self,
            Self::Greet(_)
                | Self::Ask(_)
                | Self::Register(_)
                | Self::Provisional(_)
                | Self::Grace(_)
                | Self::Silent(_)
                | Self::Heartbeat(_)
                | Self::Ping(_)
                | Self::Streams
                | Self::Lane(_)
                | Self::Unbound
        )
    }
}

#[derive(Debug, Default)]
pub(super) struct Timers {
    due: BTreeSet<(Instant, Timer)>,
    by_timer: BTreeMap<Timer, Instant>,
    /// While we are cut off: what each paused timer has left.
    paused: Option<BTreeMap<Timer, Duration>>,
}

impl Timers {
    /// Sets a deadline, in place of the one that the timer had.
    pub(super) fn set(&mut self, now: Instant, timer: Timer, after: Duration) {
        self.cancel(&timer);
        match &mut self.paused {
            Some(paused) if timer.pauses() => {
                paused.insert(timer, after);
            }
            _ => self.insert(later(now, after), timer),
        }
    }

    pub(super) fn cancel(&mut self, timer: &Timer) {
        if let Some(at) = self.by_timer.remove(timer) {
            self.due.remove(&(at, timer.clone()));
        }
        if let Some(paused) = &mut self.paused {
            paused.remove(timer);
        }
    }

    pub(super) fn is_set(&self, timer: &Timer) -> bool {
        self.by_timer.contains_key(timer)
            || self.paused.as_ref().is_some_and(|paused| paused.contains_key(timer))
    }

    /// The earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Takes the earliest timer that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.by_timer.remove(&timer);
        Some(timer)
    }

    /// Stops the clock of everything that judges somebody's absence.
    pub(super) fn pause(&mut self, now: Instant) {
        if self.paused.is_some() {
            return;
        }
        let pausing: Vec<_> = self
            .by_timer
            .iter()
            .filter(|(timer, _)| timer.pauses())
            .map(|(timer, at)| (timer.clone(), *at))
            .collect();
        let mut paused = BTreeMap::new();
        for (timer, at) in pausing {
            self.cancel(&timer);
            paused.insert(timer, at.saturating_duration_since(now));
        }
        self.paused = Some(paused);
    }

    pub(super) fn resume(&mut self, now: Instant) {
        for (timer, left) in self.paused.take().unwrap_or_default() {
            self.insert(later(now, left), timer);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn insert(&mut self, at: Instant, timer: Timer) {
        self.by_timer.insert(timer.clone(), at);
        self.due.insert((at, timer));
    }
}

/// When so much time will have passed. A time too long for the clock means that nobody waits for its end.
pub(crate) fn later(now: Instant, after: Duration) -> Instant {
    now.checked_add(after).unwrap_or_else(|| now + FAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_timer_has_one_deadline() {
        let (mut timers, now) = (Timers::default(), an_instant());
        timers.set(now, Timer::Table("a".into()), SECOND);
        timers.set(now, Timer::Table("a".into()), 3 * SECOND);
        assert_eq!(timers.next(), Some(now + 3 * SECOND));
        assert_eq!(timers.pop(now + 2 * SECOND), None);
        assert_eq!(timers.pop(now + 3 * SECOND), Some(Timer::Table("a".into())));
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_grace_stands_still_while_we_are_cut_off() {
        let (mut timers, now) = (Timers::default(), an_instant());
        let grace = Timer::Grace("a".into());
        timers.set(now, grace.clone(), 5 * SECOND);
        timers.set(now, Timer::Past, 5 * SECOND);
        timers.pause(now + 2 * SECOND);
        timers.set(now + 3 * SECOND, Timer::Grace("b".into()), SECOND);
        assert_eq!(timers.pop(now + 60 * SECOND), Some(Timer::Past));
        assert_eq!(timers.pop(now + 60 * SECOND), None);
        timers.resume(now + 100 * SECOND);
        assert_eq!(timers.pop(now + 101 * SECOND), Some(Timer::Grace("b".into())));
        assert_eq!(timers.next(), Some(now + 103 * SECOND));
        timers.cancel(&grace);
        assert!(!timers.is_set(&grace));
    }

    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    fn an_instant() -> Instant {
        Instant::now()
    }
}
