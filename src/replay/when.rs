//! Recorded time as virtual time, and the spans in which not all that was said arrived.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    Skipped,
    script::{Spoken, Step, What},
};
use crate::{
    recording::{Direction, Moment, RoomEvent},
    transport::Identity,
};

/// After a loss of connection: as long as the longest wait for a greeting that goes again.
const AFTER: Duration = Duration::from_secs(10);
/// Before the room told of it: what was under way then.
const BEFORE: Duration = Duration::from_secs(2);
/// Before the room told that somebody vanished without a goodbye: LiveKit notices after 20 s or more.
const BEFORE_LEFT: Duration = Duration::from_secs(35);
/// What was due so shortly before the end of the file may not have been handed over any more.
const TAIL: Duration = Duration::from_millis(100);
/// The same of somebody else, whose frames have a way to go.
const TAIL_OF_OTHERS: Duration = Duration::from_secs(1);

/// A clock that begins with the file. It never goes back.
pub(super) struct Clock {
    base: Instant,
    first: Moment,
}

impl Clock {
    pub(super) fn new(steps: &[Step]) -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "virtual time begins somewhere; nothing depends on where"
        )]
        let base = Instant::now();
        Self { base, first: steps.first().map(|step| step.at).unwrap_or_default() }
    }

    pub(super) fn at(&self, moment: Moment) -> Instant {
        crate::protocol::session::later(self.base, moment.since(self.first))
    }
}

/// From, until, and why.
type Span = (u64, u64, Skipped);

/// Spans of the file.
#[derive(Default)]
pub(super) struct Spans {
    /// Of everybody.
    all: Vec<Span>,
    /// Of one participant.
    of: BTreeMap<Identity, Vec<Span>>,
    end: u64,
}

impl Spans {
    pub(super) fn new(steps: &[Step], home: &Identity) -> Self {
        let mut spans =
            Self { end: steps.iter().map(|step| step.at.0).max().unwrap_or(0), ..Self::default() };
        let (mut joins, mut goodbyes, mut here) = (BTreeMap::new(), BTreeMap::new(), false);
        for step in steps {
            let (at, why) = (step.at.0, Skipped::Unconnected);
            match &step.what {
                What::Event(RoomEvent::Here { .. }) if std::mem::replace(&mut here, true) => {
                    spans.add(None, at, BEFORE, why);
                }
                What::Event(RoomEvent::Link { .. } | RoomEvent::Unsent { .. }) => {
                    spans.add(None, at, BEFORE, why)
                }
                What::Event(RoomEvent::Unrecorded { .. }) => spans.add(None, at, AFTER, Skipped::Unrecorded),
                What::Event(RoomEvent::Joined { identity, sid, .. }) if identity != home => {
                    let before = joins.insert(identity.clone(), sid.clone());
                    if before.is_some_and(|before| before != *sid) {
                        spans.add(Some(identity), at, BEFORE_LEFT, why);
                    }
                }
                What::Event(RoomEvent::Left { identity, sid }) if goodbyes.get(identity) != Some(sid) => {
                    spans.add(Some(identity), at, BEFORE_LEFT, why);
                }
                What::Line(line)
                    if line.direction == Direction::Heard
                        && line.spoken.as_ref().is_some_and(Spoken::is_goodbye) =>
                {
                    goodbyes.insert(line.from.identity().clone(), line.from.sid().clone());
                }
                _ => {}
            }
        }
        merge(&mut spans.all);
        spans.of.values_mut().for_each(merge);
        spans
    }

    /// Why a frame of this time need not be in the file, or not where it was due.
    pub(super) fn excuse(&self, at: Moment, who: &Identity, is_home: bool) -> Option<Skipped> {
        let within = |spans: &[Span]| {
            let (_, until, why) = spans[..spans.partition_point(|(from, ..)| *from <= at.0)].last()?;
            (at.0 <= *until).then_some(*why)
        };
        within(&self.all).or_else(|| if is_home { None } else { within(self.of.get(who)?) })
    }

    /// Whether it was due when the file ended.
    pub(super) fn is_at_the_end(&self, at: Moment, is_home: bool) -> bool {
        let tail = if is_home { TAIL } else { TAIL_OF_OTHERS };
        at.0 >= self.end.saturating_sub(nanos(tail))
    }

    fn add(&mut self, who: Option<&Identity>, at: u64, before: Duration, why: Skipped) {
        let spans = match who {
            Some(who) => self.of.entry(who.clone()).or_default(),
            None => &mut self.all,
        };
        spans.push((at.saturating_sub(nanos(before)), at.saturating_add(nanos(AFTER)), why));
    }
}

/// In order, and those that meet as one.
fn merge(spans: &mut Vec<Span>) {
    spans.sort_unstable();
    spans.dedup_by(|next, last| {
        let meets = next.0 <= last.1;
        if meets {
            last.1 = last.1.max(next.1);
        }
        meets
    });
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
