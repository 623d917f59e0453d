//! Finds events that precede their record in the file: calls that waited for an unresponsive owner, frames overtaken by
//! a later one of their call, and registrations received before the join of the receiver was recorded.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    check::EARLY,
    script::{DecodedFrame, RecordedPacket, Step, What},
    setup::{Shown, ends_of},
};
use crate::{
    protocol::frame::Kind,
    recording::{Direction, Moment, RoomEvent},
    transport::{Identity, Sid},
};

/// After this time without an answer a session treats the called participant as one without toolbridge's handshake:
/// the session's default.
const SILENCE: Duration = Duration::from_secs(1);

/// The recorder logs a handshake slightly later than the session's timer starts.
const LATE: Duration = Duration::from_millis(50);

/// How much later the request may be on a busy machine. A call older than that would no longer have waited for its
/// owner.
const LONGER: Duration = Duration::from_secs(2);

/// How many entries before and after a result are searched for progress: more than a lane ever queues.
const MAX_AROUND: usize = 1_024;

/// Finds calls to participants without toolbridge's handshake that were made before a handshake shortly before their
/// request. Returns the entry of the earlier handshake, when the wait began, and the entry of the request.
///
/// A session sends the request one probe interval after its handshake, and repeats the handshake just before. A call
/// made only at the request would start its wait at the second handshake.
pub(super) fn calls_during_probe(
    steps: &[Step],
    home: &Identity,
    shown: &BTreeMap<Identity, Shown>,
) -> BTreeMap<usize, usize> {
    let mut calls = BTreeMap::new();
    let mut greetings = BTreeMap::<&Identity, Vec<(usize, Moment)>>::new();
    for (entry, packet, decoded) in
        packets(steps).filter(|(_, packet, _)| packet.direction == Direction::Sent)
    {
        let [to] = packet.to.as_slice() else { continue };
        if *to == *home || shown.get(to).is_some_and(|shown| shown.is_ours) {
            continue;
        }
        if decoded.kind() == Kind::CONFIGURATION {
            greetings.entry(to).or_default().push((entry, packet.at));
        } else if decoded.kind() == Kind::TOOL_USE_REQUEST {
            let Some(greetings) = greetings.remove(to) else { continue }; // it is asked, and waited for no more
            let silence = |at: &Moment| packet.at.since(*at);
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

/// Returns the frames of this frame's call that were sent before it but follow it in the file, in the order in which
/// they were sent: results and copies for observers may take a faster lane than others. Skips second copies of frames
/// that precede it in the file.
pub(super) fn overtaken<'a>(
    steps: &'a [Step],
    home: &Identity,
    packet: &RecordedPacket,
    said: &DecodedFrame,
) -> Vec<(&'a RecordedPacket, &'a DecodedFrame)> {
    let (speaker, _) = ends_of(packet, home);
    let is_earlier = |(_, it, decoded): &(usize, &RecordedPacket, &DecodedFrame)| {
        decoded.about == said.about
            && may_be_overtaken(decoded.kind(), said.kind())
            && decoded.stanza().zip(said.stanza()).is_some_and(|(it, said)| it < said)
            && it.direction == packet.direction
            && ends_of(it, home).0 == speaker
    };
    let before = steps.get(packet.entry.saturating_sub(MAX_AROUND)..packet.entry).unwrap_or_default();
    let behind = steps.get(packet.entry + 1..).unwrap_or_default();
    let mut seen: BTreeSet<_> =
        packets(before).filter(is_earlier).filter_map(|(_, _, decoded)| decoded.stanza()).collect();
    let mut found: Vec<_> = packets(&behind[..behind.len().min(MAX_AROUND)])
        .filter(is_earlier)
        .filter(|(_, _, decoded)| decoded.stanza().is_some_and(|stanza| seen.insert(stanza)))
        .map(|(_, packet, decoded)| (packet, decoded))
        .collect();
    found.sort_by_key(|(_, decoded)| decoded.stanza());
    found
}

/// Whether a frame of the second type may arrive before one of the first, which was sent before it.
pub(super) fn may_be_overtaken(kind: Kind, by: Kind) -> bool {
    match by {
        Kind::TOOL_USE_RESULT => [Kind::TOOL_PROGRESS, Kind::TOOL_USE_RESULT].contains(&kind),
        Kind::TOOL_USE_REQUEST | Kind::TOOL_PROGRESS => kind == by,
        _ => false,
    }
}

/// Returns the stop that the recorded participant sent to the owner of this result just after the result was recorded:
/// a session that has the result sends no stop.
pub(super) fn stop_before<'a>(
    steps: &'a [Step],
    result: &RecordedPacket,
    owner: &Identity,
    said: &DecodedFrame,
) -> Option<(&'a RecordedPacket, &'a DecodedFrame)> {
    let behind = steps.get(result.entry + 1..).unwrap_or_default();
    packets(&behind[..behind.len().min(MAX_AROUND)])
        .take_while(|(_, packet, _)| packet.at.since(result.at) < EARLY)
        .find(|(_, packet, decoded)| {
            packet.direction == Direction::Sent
                && decoded.kind() == Kind::CONTROL_STOP
                && decoded.about == said.about
                && packet.to.contains(owner)
        })
        .map(|(_, packet, decoded)| (packet, decoded))
}

/// Returns the handshakes and registrations that the recorded participant sent to participants not yet recorded as
/// joined, and that were received since the file has the answers. By identity, as entries.
pub(super) fn received_before_join(steps: &[Step], home: &Identity) -> BTreeMap<Identity, Vec<usize>> {
    let mut all = BTreeMap::<Identity, BeforeJoin>::new();
    for (entry, step) in steps.iter().enumerate() {
        match &step.what {
            What::Event(RoomEvent::Joined { identity, sid, .. }) => {
                before_join(&mut all, identity).see(Some(sid))
            }
            What::Event(RoomEvent::Left { identity, .. }) => before_join(&mut all, identity).gone = true,
            What::Packet(packet) if packet.direction == Direction::Heard => {
                let Some(from) = &packet.from else { continue };
                let it = before_join(&mut all, from.identity());
                it.see(Some(from.sid()).filter(|sid| !sid.is_empty()));
                let is_answer =
                    packet.decoded.as_ref().is_some_and(|it| it.kind() == Kind::TOOLS_REGISTER_ACK);
                it.answers += usize::from(is_answer && !it.gone);
            }
            What::Packet(packet) => {
                let Some(kind) = packet.decoded.as_ref().map(DecodedFrame::kind) else { continue };
                for to in packet.to.iter().filter(|to| *to != home) {
                    let it = before_join(&mut all, to);
                    match kind {
                        Kind::CONFIGURATION | Kind::TOOLS_REGISTER if !it.seen => {
                            it.before.push((entry, kind == Kind::TOOLS_REGISTER));
                        }
                        Kind::TOOLS_REGISTER if !it.gone => it.later += 1,
                        _ => {}
                    }
                }
            }
            What::Event(_) | What::OtherTopic | What::Unnamed => {}
        }
    }
    all.into_iter().map(|(id, it)| (id, it.heard())).collect()
}

/// What was sent to a participant before and after its join was recorded.
#[derive(Default)]
struct BeforeJoin {
    seen: bool,
    sid: Option<Sid>,
    /// It left or rejoined; later answers belong to other registrations.
    gone: bool,
    /// The entries, each with whether it is a registration rather than a handshake.
    before: Vec<(usize, bool)>,
    /// Later registrations, and answers to all of them.
    later: usize,
    answers: usize,
}

fn before_join<'a>(all: &'a mut BTreeMap<Identity, BeforeJoin>, id: &Identity) -> &'a mut BeforeJoin {
    all.entry(id.clone()).or_default()
}

impl BeforeJoin {
    fn see(&mut self, sid: Option<&Sid>) {
        self.seen = true;
        match (&self.sid, sid) {
            (None, Some(_)) => self.sid = sid.cloned(),
            (Some(before), Some(sid)) => self.gone |= before != sid,
            (_, None) => {}
        }
    }

    /// The last answered registrations, starting with the handshake before them.
    fn heard(self) -> Vec<usize> {
        let answered = self.answers.saturating_sub(self.later);
        let mut registrations = (0..self.before.len()).filter(|at| self.before[*at].1).rev();
        let Some(first) = registrations.by_ref().take(answered).last() else { return Vec::new() };
        let greeting = self.before[..first].iter().rposition(|(_, is_registration)| !is_registration);
        self.before[greeting.unwrap_or(first)..].iter().map(|(entry, _)| *entry).collect()
    }
}

fn packets(steps: &[Step]) -> impl Iterator<Item = (usize, &RecordedPacket, &DecodedFrame)> {
    steps.iter().filter_map(|step| match &step.what {
        What::Packet(packet) => packet.decoded.as_ref().map(|decoded| (packet.entry, &**packet, decoded)),
        _ => None,
    })
}
