//! Schedules live calls by the recorded pauses and by the calls that each one followed.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::recorded_calls::ClientCall;
use crate::{clock::later, recording::Moment};

/// A client accepts 50 calls a second and rejects more as busy, so a replay makes fewer.
const CALLS: usize = 40;
const WINDOW: Duration = Duration::from_secs(1);

/// The speed of a live replay. Durations, limits and stops of the calls themselves are never shortened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Speed {
    /// With the recorded pauses.
    #[default]
    Recorded,
    /// With a tenth of the recorded pauses.
    Tenfold,
    /// Without pauses.
    Max,
}

impl Speed {
    /// Scales a pause.
    fn pause(self, recorded: Duration) -> Duration {
        match self {
            Self::Recorded => recorded,
            Self::Tenfold => recorded / 10,
            Self::Max => Duration::ZERO,
        }
    }
}

/// When calls would start and end if each took its recorded duration.
pub(super) struct Schedule {
    starts: Vec<Duration>,
    end: Duration,
}

impl Schedule {
    /// The schedule of these calls, in recorded order.
    pub(super) fn new<'a>(speed: Speed, calls: impl Iterator<Item = &'a ClientCall>) -> Self {
        let (mut starts, mut end) = (Vec::new(), Duration::ZERO);
        let (mut last, mut open) = (None::<(Moment, Duration)>, BTreeMap::<Moment, Duration>::new());
        let mut behind = Duration::ZERO;
        for call in calls {
            let by_pause = last.map_or(Duration::ZERO, |(asked, at)| {
                at.saturating_add(speed.pause(call.asked.since(asked)))
            });
            // Calls that had ended by then have ended now.
            let later = open.split_off(&Moment(call.asked.0.saturating_add(1)));
            behind = std::mem::replace(&mut open, later).into_values().fold(behind, Duration::max);
            let start = by_pause.max(behind);
            if let (Some(ended), Some(took)) = (call.ended(), call.took()) {
                let done = open.entry(ended).or_default();
                *done = (*done).max(start.saturating_add(took));
                end = end.max(*done);
            }
            starts.push(start);
            last = Some((call.asked, start));
            end = end.max(start);
        }
        Self { starts, end }
    }

    /// The remaining time when this call starts.
    pub(super) fn left(&self, at: usize) -> Duration {
        self.starts.get(at).map_or(Duration::ZERO, |start| self.end.saturating_sub(*start))
    }
}

/// The calls made so far.
#[derive(Debug)]
pub(super) struct Pace {
    speed: Speed,
    last: Option<(Moment, Instant)>,
    /// The start times of the last 40 calls.
    begun: VecDeque<Instant>,
    /// The recorded end of each call that is still open.
    open: BTreeMap<usize, Option<Moment>>,
}

impl Pace {
    pub(super) fn new(speed: Speed) -> Self {
        Self { speed, last: None, begun: VecDeque::new(), open: BTreeMap::new() }
    }

    /// Whether a call is still open that had ended in the recording when this one started: calls overlap only if they
    /// overlapped in the recording.
    pub(super) fn must_wait(&self, call: &ClientCall) -> bool {
        self.open.values().any(|ended| ended.is_some_and(|ended| ended <= call.asked))
    }

    /// When the call may start, if it need not wait for another.
    pub(super) fn due(&self, call: &ClientCall, now: Instant) -> Instant {
        let by_pause =
            self.last.map_or(now, |(asked, at)| later(at, self.speed.pause(call.asked.since(asked))));
        let by_rate = self.begun.front().filter(|_| self.begun.len() >= CALLS).map(|it| later(*it, WINDOW));
        by_rate.map_or(by_pause, |by_rate| by_pause.max(by_rate))
    }

    /// Records a start.
    pub(super) fn began(&mut self, place: usize, call: &ClientCall, now: Instant) {
        self.last = Some((call.asked, now));
        if self.begun.len() >= CALLS {
            self.begun.pop_front();
        }
        self.begun.push_back(now);
        self.open.insert(place, call.ended());
    }

    /// Records an outcome.
    pub(super) fn ended(&mut self, place: usize) {
        self.open.remove(&place);
    }
}
