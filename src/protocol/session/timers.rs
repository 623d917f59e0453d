//! Keeps the table of all deadlines.

use std::time::Duration;

use super::{CallKey, JobKey};
use crate::{
    clock::{Instant, later},
    sorted::{SortedMap, SortedSet},
    transport::{Identity, Sid},
};

/// The kinds of timers. Each has at most one deadline. It keeps a deadline that it has, however often it is set again
/// meanwhile, except for those that [`Timer::is_replaced`] lists.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// Send the local Configuration again.
    Greet(Identity),
    /// Ask for a peer's Configuration again if frames from an unannounced sid still wait for it.
    Ask(Identity),
    /// The room has not announced the sid that a peer's Configuration arrived from.
    Provisional(Identity),
    /// Drop the frames that wait for their senders' Configurations.
    Unconfigured,
    /// Drop the frames of senders that the room has not announced.
    Unannounced,
    /// The grace period of a join that has ended is over.
    Grace(Identity, Sid),
    /// A peer that a caller named has not answered. Call it as a plain one.
    Silent(Identity),
    /// Send the registration again.
    Register(Identity),
    /// Retransmit the frames that a peer has not acknowledged.
    Replay(Identity),
    /// The heartbeat of a peer has timed out.
    Heartbeat(Identity),
    /// Check whether the owner of an open call is alive.
    Ping(Identity),
    /// A call's wait for an owner is over.
    OwnerWait(CallKey),
    /// A call's time limit has passed.
    Deadline(CallKey),
    /// A job's time limit has passed.
    JobDeadline(JobKey),
    /// Send progress that was reported too soon.
    Progress(JobKey),
    /// Report the last progress of a call that came too often.
    LateProgress(CallKey),
    /// Send the state of the view at this place, which was shown too soon.
    View(usize),
    /// Drop a caller's answered requests.
    Table(Identity),
    /// Drop settled calls.
    Past,
    /// Report misbehavior that was only counted.
    Complaints,
    /// Check for byte streams that have stalled or take too long.
    Streams,
    /// Send frames again that the driver or the transport had no room for.
    Queue(Identity),
    /// Send the frame of this packet again, whose stream this peer has refused.
    Refused(Identity, u64),
    /// Client: send this participant, or the server, the refusals of requests by RPC that had to wait.
    RpcRefusals(Option<Identity>),
    /// Send again what was refused for lack of a permission, which is back.
    Permitted,
    /// Send a due packet to this peer on the fast lane.
    Lane(Identity),
    /// The claim window of a call is over.
    ClaimWindow(CallKey),
    /// The time limit of a claimed call has passed before the claim was granted.
    ClaimDeadline(JobKey),
    /// A question whether a job may run has no answer.
    Consent(JobKey),
    /// Client: no assistant was bound in time.
    Unbound,
    /// The room must have announced the local participant to the others.
    Announced,
    /// Client: the result of a call that the assistant ran itself must have been lost.
    Observed,
}

impl Timer {
    /// Returns whether a new deadline replaces the one that the timer has. Otherwise what happens again and again could
    /// postpone what the timer is for without end.
    fn is_replaced(&self) -> bool {
        match self {
            // The deadline is computed from all that is due, each time something changes.
            Self::Table(_) | Self::Past | Self::Observed | Self::Lane(_) => true,
            // The limit of a call changes with its owner and with what a person allows.
            Self::Deadline(_) | Self::JobDeadline(_) | Self::OwnerWait(_) => true,
            // Each heartbeat gives its sender the whole time again. Each repetition of a registration waits longer.
            Self::Heartbeat(_) | Self::Register(_) => true,
            // The local participant has rejoined, and must be announced again.
            Self::Announced => true,
            _ => false,
        }
    }

    /// Returns whether the timer stops while the connection is lost: it detects an absent peer, or sends packets that
    /// could not arrive.
    fn pauses(&self) -> bool {
        // Not those of calls, jobs, claims and questions: their time limits are promises to a caller or a
        // person, and run on during an outage.
        matches!(
            self,
            Self::Greet(_)
                | Self::Ask(_)
                | Self::Register(_)
                | Self::Provisional(_)
                | Self::Grace(..)
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
    // Timers that are due at one instant fire in the order of `Timer`, so equal inputs give equal outputs.
    // The simulation and replays of recordings depend on that.
    due: SortedSet<(Instant, Timer)>,
    by_timer: SortedMap<Timer, Instant>,
    /// The remaining time of each paused timer while the connection is lost.
    paused: Option<SortedMap<Timer, Duration>>,
    /// The time of the last input.
    ran_at: Option<Instant>,
}

impl Timers {
    /// Sets a deadline, unless the timer has an earlier one that it keeps.
    pub(super) fn set(&mut self, now: Instant, timer: Timer, after: Duration) {
        let is_earlier = || match self.by_timer.get(&timer) {
            Some(at) => *at <= later(now, after),
            None => self.paused.as_ref().and_then(|paused| paused.get(&timer)).is_some_and(|it| *it <= after),
        };
        if !timer.is_replaced() && is_earlier() {
            return;
        }
        self.cancel(&timer);
        match &mut self.paused {
            // Its whole time: it begins when the connection is back.
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

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    /// Removes and returns the earliest timer that is due.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Timer> {
        let (at, _) = self.due.first()?;
        if *at > now {
            return None;
        }
        let (_, timer) = self.due.pop_first()?;
        self.by_timer.remove(&timer);
        Some(timer)
    }

    /// Pauses the timers that detect absent peers. They must not be paused already.
    pub(super) fn pause(&mut self, now: Instant) {
        let taken = self.take_pausing().into_iter();
        self.paused = Some(taken.map(|(timer, at)| (timer, at.saturating_duration_since(now))).collect());
    }

    /// Returns for how long the process did not run before this input: not while the earliest timer was due, since the
    /// last input.
    pub(super) fn lateness(&mut self, now: Instant) -> Duration {
        // A timer that is late stays so until it is handled, which may be several inputs later.
        let ran_at = self.ran_at.replace(now).unwrap_or(now);
        self.next().map_or(Duration::ZERO, |due| now.saturating_duration_since(due.max(ran_at)))
    }

    /// Postpones the timers that detect absent peers, because the process did not run for this long.
    pub(super) fn postpone(&mut self, by: Duration) {
        for (timer, at) in self.take_pausing() {
            self.insert(later(at, by), timer);
        }
    }

    /// Takes the timers that stop while the connection is lost.
    fn take_pausing(&mut self) -> Vec<(Timer, Instant)> {
        let pausing = self.by_timer.iter().filter(|(timer, _)| timer.pauses());
        let pausing: Vec<_> = pausing.map(|(timer, at)| (timer.clone(), *at)).collect();
        for (timer, _) in &pausing {
            self.cancel(timer);
        }
        pausing
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::session::tests::an_instant;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn timer_keeps_its_deadline_unless_its_kind_is_replaced() {
        let queue = || Timer::Queue("a".into());
        for (timer, at) in [(Timer::Table("a".into()), 3 * SECOND), (queue(), SECOND)] {
            let (mut timers, now) = (Timers::default(), an_instant());
            timers.set(now, timer.clone(), SECOND);
            timers.set(now, timer.clone(), 3 * SECOND);
            assert_eq!(timers.next(), Some(now + at));
            assert_eq!(timers.pop(now + at - Duration::from_millis(1)), None);
            assert_eq!(timers.pop(now + at), Some(timer));
            assert_eq!(timers.next(), None);
        }
        let (mut timers, now) = (Timers::default(), an_instant());
        timers.set(now, Timer::Grace("a".into(), "PA_1".into()), SECOND);
        timers.pause(now);
        timers.set(now, Timer::Grace("a".into(), "PA_1".into()), 3 * SECOND);
        timers.resume(now);
        assert_eq!(timers.next(), Some(now + SECOND), "a paused timer keeps its time, too");
        timers.set(now, Timer::Grace("a".into(), "PA_1".into()), SECOND / 2);
        assert_eq!(timers.next(), Some(now + SECOND / 2), "it is never later than it was set");
    }

    #[test]
    fn paused_timer_is_set_until_it_is_canceled() {
        let (mut timers, now) = (Timers::default(), an_instant());
        let grace = Timer::Grace("a".into(), "PA_1".into());
        timers.set(now, grace.clone(), SECOND);
        timers.pause(now);
        assert!(timers.is_set(&grace));
        timers.cancel(&grace);
        assert!(!timers.is_set(&grace));
        timers.resume(now);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn grace_period_pauses_while_connection_is_lost() {
        let (mut timers, now) = (Timers::default(), an_instant());
        let grace = Timer::Grace("a".into(), "PA_1".into());
        timers.set(now, grace.clone(), 5 * SECOND);
        timers.set(now, Timer::Past, 5 * SECOND);
        timers.pause(now + 2 * SECOND);
        timers.set(now + 3 * SECOND, Timer::Grace("b".into(), "PA_1".into()), SECOND);
        assert_eq!(timers.pop(now + 60 * SECOND), Some(Timer::Past));
        assert_eq!(timers.pop(now + 60 * SECOND), None);
        timers.resume(now + 100 * SECOND);
        assert_eq!(timers.pop(now + 101 * SECOND), Some(Timer::Grace("b".into(), "PA_1".into())));
        assert_eq!(timers.next(), Some(now + 103 * SECOND));
        timers.cancel(&grace);
        assert!(!timers.is_set(&grace));
    }
}
