//! When the next recorded call may be asked: after as long as it took, and after what it waited for.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::tape::Taped;
use crate::{protocol::session::later, recording::Moment};

/// A client takes 50 calls a second and refuses more as busy; a replay asks for less, so that none is.
const CALLS: usize = 40;
const WINDOW: Duration = Duration::from_secs(1);

/// How fast recorded calls are asked again. What a call itself takes, its limit and its stop are never shortened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speed {
    /// With the pauses that were recorded.
    #[default]
    Recorded,
    /// With a tenth of them.
    Tenfold,
    /// With none.
    Max,
}

impl Speed {
    /// What becomes of this pause.
    fn pause(self, recorded: Duration) -> Duration {
        match self {
            Self::Recorded => recorded,
            Self::Tenfold => recorded / 10,
            Self::Max => Duration::ZERO,
        }
    }
}

/// When calls would be asked and end, if each took as long as recorded.
pub(super) struct Schedule {
    starts: Vec<Duration>,
    end: Duration,
}

impl Schedule {
    /// Of these calls, in recorded order.
    pub(super) fn new<'a>(speed: Speed, calls: impl Iterator<Item = &'a Taped>) -> Self {
        let (mut starts, mut end) = (Vec::new(), Duration::ZERO);
        let (mut last, mut open) = (None::<(Moment, Duration)>, BTreeMap::<Moment, Duration>::new());
        let mut behind = Duration::ZERO;
        for call in calls {
            let by_pause = last.map_or(Duration::ZERO, |(asked, at)| {
                at.saturating_add(speed.pause(call.asked.since(asked)))
            });
            // What had ended by then has ended now.
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

    /// How much is left when this one is asked.
    pub(super) fn left(&self, at: usize) -> Duration {
        self.starts.get(at).map_or(Duration::ZERO, |start| self.end.saturating_sub(*start))
    }
}

/// What was asked so far.
#[derive(Debug)]
pub(super) struct Pace {
    speed: Speed,
    last: Option<(Moment, Instant)>,
    /// When the last 40 were asked.
    begun: VecDeque<Instant>,
    /// Calls that have no outcome yet: when they had one in the recording.
    open: BTreeMap<usize, Option<Moment>>,
}

impl Pace {
    pub(super) fn new(speed: Speed) -> Self {
        Self { speed, last: None, begun: VecDeque::new(), open: BTreeMap::new() }
    }

    /// Whether something is open that had ended when this one was asked: calls overlap only where they did.
    pub(super) fn must_wait(&self, call: &Taped) -> bool {
        self.open.values().any(|ended| ended.is_some_and(|ended| ended <= call.asked))
    }

    /// When it may be asked, if it need not wait.
    pub(super) fn due(&self, call: &Taped, now: Instant) -> Instant {
        let by_pause =
            self.last.map_or(now, |(asked, at)| later(at, self.speed.pause(call.asked.since(asked))));
        let by_rate = self.begun.front().filter(|_| self.begun.len() >= CALLS).map(|it| later(*it, WINDOW));
        by_rate.map_or(by_pause, |by_rate| by_pause.max(by_rate))
    }

    /// It is asked now.
    pub(super) fn began(&mut self, place: usize, call: &Taped, now: Instant) {
        self.last = Some((call.asked, now));
        if self.begun.len() >= CALLS {
            self.begun.pop_front();
        }
        self.begun.push_back(now);
        self.open.insert(place, call.ended());
    }

    /// It has its outcome.
    pub(super) fn ended(&mut self, place: usize) {
        self.open.remove(&place);
    }
}
