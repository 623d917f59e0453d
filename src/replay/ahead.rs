//! What happened before the file shows it: a call that waited until its owner's silence was long enough, progress that was
//! overtaken by its result, a registration that was heard by somebody who was not seen yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    script::{Line, Spoken, Step, What},
    setup::{Shown, ends_of},
};
use crate::{
    protocol::frame::Kind,
    recording::{Direction, Moment, RoomEvent},
    transport::{Identity, Sid},
};

/// After so much silence a participant that a call names counts as a plain peer: what a session waits by default.
const SILENCE: Duration = Duration::from_secs(1);

/// A recorder is told of a greeting a little later than the session counts from.
const LATE: Duration = Duration::from_millis(50);

/// How much longer than that it can have been on a machine with much to do. A call that was made longer ago would not
/// have waited for its owner any more.
const LONGER: Duration = Duration::from_secs(2);

/// So many entries before and after a result are searched for progress: more than wait for a lane at once.
const MAX_AROUND: usize = 1_024;

/// Calls of plain peers that were made before a greeting that the file has shortly before their request: the entry of
/// the greeting since which there was silence, and that of the request.
///
/// A session asks a plain peer one silence after its greeting, and greets again just before. A call that is made only
/// when the request is there would begin to wait at that second greeting.
pub(super) fn calls_in_silence(
    steps: &[Step],
    home: &Identity,
    shown: &BTreeMap<Identity, Shown>,
) -> BTreeMap<usize, usize> {
    let mut calls = BTreeMap::new();
    let mut greetings = BTreeMap::<&Identity, Vec<(usize, Moment)>>::new();
    for (entry, line, spoken) in lines(steps).filter(|(_, line, _)| line.direction == Direction::Sent) {
        let [to] = line.to.as_slice() else { continue };
        if *to == *home || shown.get(to).is_some_and(|shown| shown.is_ours) {
            continue;
        }
        if spoken.kind() == Kind::CONFIGURATION {
            greetings.entry(to).or_default().push((entry, line.at));
        } else if spoken.kind() == Kind::TOOL_USE_REQUEST {
            let Some(greetings) = greetings.remove(to) else { continue }; // it is asked, and waited for no more
            let silence = |at: &Moment| line.at.since(*at);
            let is_fresh = greetings.last().is_some_and(|(_, at)| silence(at) < SILENCE - LATE);
            let before = greetings.iter().rev().find(|(_, at)| silence(at) >= SILENCE - LATE);
            let before = before.filter(|(_, at)| silence(at) < SILENCE + LONGER);
            if let (true, Some((greeting, _))) = (is_fresh, before) {
                calls.insert(*greeting, entry);
            }
        }
    }
    calls
}

/// Of a result: the progress of its call that was said before it and is in the file behind it, since results may take a
/// faster lane. Second copies of progress that is in the file before the result are left out.
pub(super) fn overtaken<'a>(
    steps: &'a [Step],
    home: &Identity,
    result: &Line,
) -> Vec<(&'a Line, &'a Spoken)> {
    let Some(said) = result.spoken.as_ref() else { return Vec::new() };
    let of_its_call = |(_, line, spoken): &(usize, &Line, &Spoken)| {
        let is_earlier = spoken.stanza().zip(said.stanza()).is_some_and(|(it, result)| it < result);
        let is_same = line.direction == result.direction && ends_of(line, home) == ends_of(result, home);
        spoken.kind() == Kind::TOOL_PROGRESS && spoken.about == said.about && is_earlier && is_same
    };
    let before = steps.get(result.entry.saturating_sub(MAX_AROUND)..result.entry).unwrap_or_default();
    let behind = steps.get(result.entry + 1..).unwrap_or_default();
    let mut seen: BTreeSet<_> =
        lines(before).filter(of_its_call).filter_map(|(_, _, spoken)| spoken.stanza()).collect();
    lines(&behind[..behind.len().min(MAX_AROUND)])
        .filter(of_its_call)
        .filter(|(_, _, spoken)| spoken.stanza().is_some_and(|stanza| seen.insert(stanza)))
        .map(|(_, line, spoken)| (line, spoken))
        .collect()
}

/// What the recorded participant said to one that the file had not shown yet, and that heard it all the same: a greeting
/// and registrations of which it has the answers. By identity, as entries.
pub(super) fn heard_unseen(steps: &[Step], home: &Identity) -> BTreeMap<Identity, Vec<usize>> {
    let mut all = BTreeMap::<Identity, Unseen>::new();
    for (entry, step) in steps.iter().enumerate() {
        match &step.what {
            What::Event(RoomEvent::Joined { identity, sid, .. }) => unseen(&mut all, identity).see(Some(sid)),
            What::Event(RoomEvent::Left { identity, .. }) => unseen(&mut all, identity).gone = true,
            What::Line(line) if line.direction == Direction::Heard => {
                let it = unseen(&mut all, line.from.identity());
                it.see(Some(line.from.sid()).filter(|sid| !sid.is_empty()));
                let is_answer = line.spoken.as_ref().is_some_and(|it| it.kind() == Kind::TOOLS_REGISTER_ACK);
                it.answers += usize::from(is_answer && !it.gone);
            }
            What::Line(line) => {
                let Some(kind) = line.spoken.as_ref().map(Spoken::kind) else { continue };
                for to in line.to.iter().filter(|to| *to != home) {
                    let it = unseen(&mut all, to);
                    match kind {
                        Kind::CONFIGURATION | Kind::TOOLS_REGISTER if !it.seen => {
                            it.before.push((entry, kind == Kind::TOOLS_REGISTER));
                        }
                        Kind::TOOLS_REGISTER if !it.gone => it.later += 1,
                        _ => {}
                    }
                }
            }
            What::Event(_) | What::OtherTopic => {}
        }
    }
    all.into_iter().map(|(id, it)| (id, it.heard())).collect()
}

/// What was said to a participant before and after it was seen.
#[derive(Default)]
struct Unseen {
    seen: bool,
    sid: Option<Sid>,
    /// It has left, or is there in another join: what was answered then answers something else.
    gone: bool,
    /// Entries, and whether each is a registration or a greeting.
    before: Vec<(usize, bool)>,
    /// Registrations since then, and answers to all of them.
    later: usize,
    answers: usize,
}

fn unseen<'a>(all: &'a mut BTreeMap<Identity, Unseen>, id: &Identity) -> &'a mut Unseen {
    all.entry(id.clone()).or_default()
}

impl Unseen {
    fn see(&mut self, sid: Option<&Sid>) {
        self.seen = true;
        match (&self.sid, sid) {
            (None, Some(_)) => self.sid = sid.cloned(),
            (Some(before), Some(sid)) => self.gone |= before != sid,
            (_, None) => {}
        }
    }

    /// The last registrations that have an answer, from the greeting on that went before them.
    fn heard(self) -> Vec<usize> {
        let answered = self.answers.saturating_sub(self.later);
        let mut registrations = (0..self.before.len()).filter(|at| self.before[*at].1).rev();
        let Some(first) = registrations.by_ref().take(answered).last() else { return Vec::new() };
        let greeting = self.before[..first].iter().rposition(|(_, is_registration)| !is_registration);
        self.before[greeting.unwrap_or(first)..].iter().map(|(entry, _)| *entry).collect()
    }
}

fn lines(steps: &[Step]) -> impl Iterator<Item = (usize, &Line, &Spoken)> {
    steps.iter().filter_map(|step| match &step.what {
        What::Line(line) => line.spoken.as_ref().map(|spoken| (line.entry, &**line, spoken)),
        _ => None,
    })
}
