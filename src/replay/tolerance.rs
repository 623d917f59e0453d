//! Maps recorded time to virtual time, and finds the spans in which packets may have been lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{
    Skipped,
    script::{DecodedFrame, Step, What},
};
use crate::{
    recording::{Direction, Moment, RoomEvent},
    transport::{Identity, Peer},
};

/// The span after a lost connection: the longest interval between repeated handshakes.
const AFTER: Duration = Duration::from_secs(10);
/// The span before the room reported the loss, for packets in transit.
const BEFORE: Duration = Duration::from_secs(2);
/// The span before the room reported an unexpected departure: LiveKit needs 20 s or more to detect it.
const BEFORE_LEFT: Duration = Duration::from_secs(35);
/// Frames due this shortly before the end of the file may not have been sent any more.
const TAIL: Duration = Duration::from_millis(100);
/// As above for other participants, whose frames are in transit.
const TAIL_OF_OTHERS: Duration = Duration::from_secs(1);

/// A monotonic clock that starts with the file.
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
        crate::clock::later(self.base, moment.since(self.first))
    }
}

/// Start, end and reason.
type Span = (u64, u64, Skipped);

/// The tolerated spans of a file.
#[derive(Default)]
pub(super) struct Spans {
    /// Spans that apply to all participants.
    all: Vec<Span>,
    /// Spans of single participants.
    of: BTreeMap<Identity, Vec<Span>>,
    /// From when on packets of participants without rights are missing, or not expanded.
    left_out: BTreeMap<Identity, u64>,
    end: u64,
}

impl Spans {
    pub(super) fn new(steps: &[Step], home: &Identity) -> Self {
        let mut spans =
            Self { end: steps.iter().map(|step| step.at.0).max().unwrap_or(0), ..Self::default() };
        let (mut joins, mut goodbyes, mut here) = (BTreeMap::new(), BTreeMap::new(), false);
        let mut with_rights = BTreeSet::new();
        for step in steps {
            if let What::Event(event) = &step.what
                && let Some((identity, true)) = event.rights()
            {
                with_rights.insert(identity);
            }
            let (at, why) = (step.at.0, Skipped::Unconnected);
            match &step.what {
                What::Event(RoomEvent::Here { .. }) if std::mem::replace(&mut here, true) => {
                    spans.add(None, at, BEFORE, why);
                }
                What::Event(RoomEvent::Link { .. } | RoomEvent::Unsent { .. }) => {
                    spans.add(None, at, BEFORE, why)
                }
                What::Event(RoomEvent::LeftOut { identity: Some(identity), .. }) => {
                    // The first packet that is missing may be the answer to one that is there.
                    spans
                        .left_out
                        .entry(identity.clone())
                        .or_insert_with(|| at.saturating_sub(nanos(BEFORE)));
                }
                What::Packet(packet) if !packet.is_expanded => {
                    let from = packet.from.as_ref().map(Peer::identity);
                    if let Some(from) = from.filter(|from| !with_rights.contains(*from)) {
                        spans.left_out.entry(from.clone()).or_insert(at);
                    }
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
                What::Packet(packet)
                    if packet.direction == Direction::Heard
                        && packet.decoded.as_ref().is_some_and(DecodedFrame::is_goodbye) =>
                {
                    if let Some(from) = &packet.from {
                        goodbyes.insert(from.identity().clone(), from.sid().clone());
                    }
                }
                _ => {}
            }
        }
        merge(&mut spans.all);
        spans.of.values_mut().for_each(merge);
        spans
    }

    /// Why a frame at this time may be missing from the file or out of place.
    pub(super) fn excuse(&self, at: Moment, who: &Identity, is_home: bool) -> Option<Skipped> {
        let within = |spans: &[Span]| {
            let (_, until, why) = spans[..spans.partition_point(|(from, ..)| *from <= at.0)].last()?;
            (at.0 <= *until).then_some(*why)
        };
        within(&self.all).or_else(|| if is_home { None } else { within(self.of.get(who)?) })
    }

    /// Whether the file lacks packets of all these participants at this time, so that frames to them may differ.
    pub(super) fn is_left_out(&self, at: Moment, to: &[Identity]) -> bool {
        !to.is_empty() && to.iter().all(|to| self.left_out.get(to).is_some_and(|from| *from <= at.0))
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

/// Sorts spans and merges those that touch.
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
