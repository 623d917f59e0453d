//! Steps through a file: delivers its frames to sessions and compares what they send.

use std::{collections::BTreeMap, time::Instant};

use super::{
    DryError, DryReport, Skipped,
    check::{Checked, Later},
    endpoint::Endpoint,
    reorder, rpc,
    script::{self, DecodedFrame, RecordedPacket, Step, What},
    setup::{self, Shown, ends_of},
    tolerance::{Clock, Spans},
};
use crate::{
    protocol::{frame::Kind, session::SendFailure},
    recording::{Direction, Entry, Moment, RoomEvent},
    transport::{CloseReason, ConnectionState, Identity, Participant, Peer, Role, Sid, TransportEvent},
};

/// The maximum number of entries of a recording, since all are kept in memory: three hours of ten calls a minute for
/// each of ten clients.
pub const MAX_ENTRIES: usize = 100_000;

/// The maximum size of a recording's packets: 64 MiB.
pub const MAX_BYTES: usize = 64 << 20;

/// The maximum number of steps of all sessions together. A step is an entry that reaches a session, or a timer of a
/// session. A day of one client and its assistant takes a tenth of it.
const MAX_STEPS: u64 = 10_000_000;

/// How many frames to one participant wait for the answers that date their receipt; further frames are received at
/// once.
const MAX_WAITING: usize = 1_024;

/// Replays recorded sessions.
///
/// To test an app against a recorded session:
///
/// ```
/// use toolbridge::{recording::Recording, replay::Replay};
///
/// fn session_replays_without_differences(file: &std::path::Path) -> anyhow::Result<()> {
///     let report = Replay::dry(Recording::open(file)?.entries())?;
///     anyhow::ensure!(report.is_same(), "{report}"); // which entry, which field, what was expected
///     Ok(())
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> anyhow::Result<()> {
/// # use toolbridge::{Assistant, Client, ToolError, memory};
/// # async fn get_battery() -> Result<f32, ToolError> { Ok(0.8) }
/// # let folder = std::env::temp_dir().join(format!("toolbridge-replay-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder)?;
/// # let file = folder.join("session.mcap");
/// # let room = memory::MemoryRoom::new();
/// # let phone = Client::builder().tool("get_battery", "", get_battery).record(&file);
/// # let phone = phone.join_over(room.client("phone")).await?;
/// # let assistant = Assistant::builder().join_over(room.assistant("assistant")).await?;
/// # assistant.call("get_battery", ()).await?;
/// # assistant.close().await;
/// # phone.close().await;
/// # session_replays_without_differences(&file)?;
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Replay;

impl Replay {
    /// Feeds a recording's frames to sessions on virtual time, and compares what they send with the recorded frames.
    /// Sends nothing to a network.
    ///
    /// ```
    /// use toolbridge::{
    ///     recording::{Entry, Happened, Moment, RoomEvent},
    ///     replay::Replay,
    /// };
    ///
    /// let here = RoomEvent::Here { identity: "phone".into(), sid: "PA_1".into(), room: "kitchen".to_owned() };
    /// let report = Replay::dry([Entry::new(Moment(0), Happened::Event(here))])?;
    /// assert!(report.is_same());
    /// # Ok::<_, toolbridge::replay::DryError>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the recorded participant is unknown or an observer, which sends nothing, or if the
    /// recording is too large.
    pub fn dry(entries: impl IntoIterator<Item = Entry>) -> Result<DryReport, DryError> {
        let steps = script::read(entries)?;
        let mut stage = Stage::new(&steps)?;
        for (entry, step) in steps.iter().enumerate() {
            stage.step(entry, step);
            if stage.taken > MAX_STEPS {
                return Err(DryError::TooCostly { entry });
            }
        }
        Ok(stage.finish())
    }
}

struct Stage<'a> {
    steps: &'a [Step],
    clock: Clock,
    spans: Spans,
    shown: BTreeMap<Identity, Shown>,
    /// Calls made at a handshake: its entry, and the entry of the request.
    silent: BTreeMap<usize, usize>,
    /// Whether the recorded participant answers calls by RPC.
    answers_rpc: bool,
    /// The entries of streams of RPC whose headers were acknowledged before their ends.
    headers: BTreeMap<usize, usize>,
    /// Frames received by participants whose join was recorded later.
    before_join: BTreeMap<Identity, Vec<usize>>,
    /// The instance of each sid.
    instances: BTreeMap<(Identity, Sid), String>,
    later: Later,
    home: Identity,
    room: String,
    here: Option<Participant>,
    end: Option<Checked<'a>>,
    others: BTreeMap<Identity, Checked<'a>>,
    present: BTreeMap<Identity, Participant>,
    /// The current position in the file.
    entry: usize,
    at: Moment,
    /// How many sessions were created.
    runs: u64,
    /// The number of steps of all sessions together.
    taken: u64,
    report: DryReport,
}

impl<'a> Stage<'a> {
    fn new(steps: &'a [Step]) -> Result<Self, DryError> {
        let named = steps.iter().find_map(|step| match &step.what {
            What::Event(RoomEvent::Here { identity, room, .. }) => Some((identity.clone(), room.clone())),
            _ => None,
        });
        let (home, room) = named.ok_or(DryError::NobodyHere)?;
        if is_observer(steps, &home) {
            return Err(DryError::Observer);
        }
        let (mut later, mut instances) = (Later::new(), BTreeMap::new());
        for step in steps {
            let What::Packet(packet) = &step.what else { continue };
            let Some(decoded) = &packet.decoded else { continue };
            let (speaker, _) = ends_of(packet, &home);
            let key = (speaker.clone(), decoded.kind().code(), decoded.about.clone());
            later.entry(key).or_default().push_back(decoded.stanza());
            if let (Direction::Heard, Some(from), Some(instance)) =
                (packet.direction, &packet.from, decoded.instance())
            {
                let join = (speaker.clone(), from.sid().clone());
                instances.entry(join).or_insert_with(|| instance.to_owned());
            }
        }
        let shown = setup::survey(steps, &home);
        Ok(Self {
            steps,
            clock: Clock::new(steps),
            spans: Spans::new(steps, &home),
            silent: reorder::calls_during_probe(steps, &home, &shown),
            headers: rpc::headers(steps),
            answers_rpc: steps.iter().any(|it| matches!(it.what, What::Event(RoomEvent::AnswersRpc { .. }))),
            before_join: reorder::received_before_join(steps, &home),
            shown,
            instances,
            later,
            home,
            room,
            here: None,
            end: None,
            others: BTreeMap::new(),
            present: BTreeMap::new(),
            entry: 0,
            at: Moment::default(),
            runs: 0,
            taken: 0,
            report: DryReport::default(),
        })
    }

    fn step(&mut self, entry: usize, step: &'a Step) {
        let now = self.clock.at(step.at);
        (self.entry, self.at) = (entry, step.at);
        for it in self.end.iter_mut().chain(self.others.values_mut()) {
            self.taken += 1 + it.end.run_to(entry, step.at, now, MAX_STEPS.saturating_sub(self.taken));
        }
        match &step.what {
            What::OtherTopic => self.report.skip(Skipped::OtherTopic),
            What::Unnamed => self.report.skip(Skipped::NotReplayed),
            What::Event(event) => self.event(entry, now, event),
            // What an assistant needs to call by RPC is not in the file.
            What::Packet(packet) if packet.rpc.is_some() && !self.answers_rpc => {
                self.report.skip(Skipped::NotReplayed);
            }
            What::Packet(packet) if self.here.is_none() => {
                self.count(packet);
                self.report.skip(Skipped::BeforeHere);
            }
            What::Packet(packet) => match packet.direction {
                Direction::Sent => self.sent(packet, now),
                Direction::Heard => self.heard(packet, now),
            },
        }
    }

    fn sent(&mut self, packet: &'a RecordedPacket, now: Instant) {
        self.count(packet);
        self.call_ahead(packet);
        let behind = self.overtaken(packet);
        if let (Some(request), Some(it)) = (self.headers.get(&packet.entry), &mut self.end)
            && let What::Packet(request) = &self.steps[*request].what
            && let Some(from) = &request.from
        {
            it.end.hear_header(request, from);
        }
        match &mut self.end {
            Some(it) => {
                it.after(behind).check(packet, &packet.to, &self.spans, &self.later, &mut self.report)
            }
            None => self.report.skip(Skipped::NotReplayed),
        }
        for id in &packet.to {
            if let Some(who) = self.present.get(id).cloned() {
                self.meet(&who, now);
            }
        }
        self.reaches(packet, |id| packet.to.is_empty() || packet.to.contains(id));
    }

    /// Delivers a frame to these participants: at once, or when their answer shows that they received it.
    fn reaches(&mut self, packet: &'a RecordedPacket, is_to: impl Fn(&Identity) -> bool) {
        let Some(home) = self.here.as_ref().map(|here| here.peer().clone()) else { return };
        let answer = packet.decoded.as_ref().and_then(DecodedFrame::answer);
        for (id, it) in &mut self.others {
            if !it.end.is_here || !is_to(id) {
                continue;
            }
            let stanza_of = |(kind, about): &(Kind, String)| {
                let stanzas = self.later.get(&(id.clone(), kind.code(), about.clone()))?;
                stanzas.get(it.answered_later(*kind, about)).copied()
            };
            let has_room = it.waiting.len() < MAX_WAITING;
            match answer.clone().filter(|_| has_room).and_then(|it| Some((stanza_of(&it)?, it))) {
                Some((stanza, answer)) => it.waiting.push_back((answer, stanza, packet)),
                None => it.end.hear(packet, &home),
            }
        }
    }

    fn heard(&mut self, packet: &RecordedPacket, now: Instant) {
        self.count(packet);
        let Some(from) = &packet.from else { return };
        let id = from.identity().clone();
        if !from.sid().is_empty() {
            let known = self.present.get(&id).filter(|who| who.sid() == from.sid()).cloned();
            let unannounced = || Participant::new(id.clone(), from.sid().clone());
            self.meet(&known.unwrap_or_else(unannounced), now);
        }
        let behind = self.overtaken(packet);
        match self.others.get_mut(&id) {
            Some(it) => {
                if let (Some(decoded), Some(home)) = (&packet.decoded, &self.here) {
                    while let Some(waiting) = it.heard_by_now(decoded) {
                        it.end.hear(waiting, home.peer());
                    }
                }
                let home = std::slice::from_ref(&self.home);
                it.after(behind).check(packet, home, &self.spans, &self.later, &mut self.report);
            }
            None if packet.decoded.is_none() => self.report.skip(Skipped::Malformed),
            None => self.report.skip(Skipped::NotReplayed),
        }
        let stop = self.stop_before(packet, from);
        if let Some(it) = &mut self.end {
            it.after(stop.into_iter().collect()).end.hear(packet, from);
        }
    }

    /// The frames that this one overtook.
    fn overtaken(&self, packet: &RecordedPacket) -> Vec<(&'a RecordedPacket, &'a DecodedFrame)> {
        let Some(decoded) = &packet.decoded else { return Vec::new() };
        let (speaker, _) = ends_of(packet, &self.home);
        let is_to_come = |kind: Kind| {
            let to_come = self.later.get(&(speaker.clone(), kind.code(), decoded.about.clone()));
            to_come.is_some_and(|it| {
                it.iter().take(MAX_WAITING).flatten().any(|it| Some(*it) < decoded.stanza())
            })
        };
        let kinds = [Kind::TOOL_USE_REQUEST, Kind::TOOL_PROGRESS, Kind::TOOL_USE_RESULT];
        match kinds.iter().any(|it| reorder::may_be_overtaken(*it, decoded.kind()) && is_to_come(*it)) {
            true => reorder::overtaken(self.steps, &self.home, packet, decoded),
            false => Vec::new(),
        }
    }

    /// The stop of this result's call that precedes the result: the recorder saw the result before its session did.
    fn stop_before(
        &self,
        packet: &RecordedPacket,
        from: &Peer,
    ) -> Option<(&'a RecordedPacket, &'a DecodedFrame)> {
        let decoded = packet.decoded.as_ref().filter(|it| it.kind() == Kind::TOOL_USE_RESULT)?;
        let stops = self.later.get(&(self.home.clone(), Kind::CONTROL_STOP.code(), decoded.about.clone()))?;
        if stops.is_empty() {
            None
        } else {
            reorder::stop_before(self.steps, packet, from.identity(), decoded)
        }
    }

    /// Makes a call whose request follows later: one that sends a handshake first, or waits for an unresponsive
    /// owner.
    fn call_ahead(&mut self, packet: &RecordedPacket) {
        if let (Some(request), Some(it)) = (self.silent.get(&packet.entry), &mut self.end)
            && let What::Packet(request) = &self.steps[*request].what
            && let Some(decoded) = &request.decoded
        {
            it.end.call_before(request, decoded, request.at.since(packet.at));
        }
        let called = self.shown.get(&self.home).and_then(|shown| shown.called.get(&packet.entry));
        let (Some(called), Some(it)) = (called, &mut self.end) else { return };
        let request = self.steps[packet.entry..].iter().find_map(|step| match &step.what {
            What::Packet(packet) if packet.direction == Direction::Sent && packet.to.contains(called) => {
                let decoded = packet.decoded.as_ref()?;
                (decoded.kind() == Kind::TOOL_USE_REQUEST).then_some((packet, decoded))
            }
            _ => None,
        });
        if let Some((request, decoded)) = request {
            it.end.call_before(request, decoded, request.at.since(packet.at));
        }
    }

    /// Removes a frame from those that follow.
    fn count(&mut self, packet: &RecordedPacket) {
        let Some(decoded) = &packet.decoded else { return };
        let (speaker, _) = ends_of(packet, &self.home);
        let key = (speaker.clone(), decoded.kind().code(), decoded.about.clone());
        if let Some(left) = self.later.get_mut(&key) {
            left.pop_front();
        }
    }

    fn event(&mut self, entry: usize, now: Instant, event: &RoomEvent) {
        match event {
            RoomEvent::Here { identity, sid, .. } if *identity == self.home => self.is_here(entry, now, sid),
            RoomEvent::Joined { identity, sid, agent, role, protocol } => {
                let who = Participant::new(identity.clone(), sid.clone()).client_protocol(*protocol);
                self.joined(now, &setup::described(who, *agent, role.as_deref()));
            }
            RoomEvent::Left { identity, sid } => self.left(&Peer::new(identity, sid)),
            // The connection is restored by a rejoin: it is reported together with the join.
            RoomEvent::Link { up: true } if self.is_rejoin(entry + 1) => {}
            RoomEvent::Link { up } => {
                let state = if *up { ConnectionState::Connected } else { ConnectionState::Reconnecting };
                if let Some(it) = &mut self.end {
                    it.end.act(|session, now| {
                        session.handle_event(now, TransportEvent::ConnectionState(state))
                    });
                }
            }
            RoomEvent::Unsent { channel, sequence, reason } => {
                if let Some(it) = &mut self.end
                    && let Some(packet) = it.end.packets.get(&(*channel, *sequence)).copied()
                    && let Some(why) = why_unsent(reason)
                {
                    it.end.act(|session, now| session.handle_send_failed(now, packet, why));
                }
            }
            RoomEvent::Closed { .. } => {
                if let Some(it) = &mut self.end {
                    it.end.act(|session, now| {
                        session.handle_event(now, TransportEvent::Closed(CloseReason::Closed))
                    });
                }
            }
            _ => {}
        }
    }

    fn is_rejoin(&self, entry: usize) -> bool {
        let step = self.steps.get(entry).map(|step| &step.what);
        self.here.is_some() && matches!(step, Some(What::Event(RoomEvent::Here { .. })))
    }

    /// Handles a join of the recorded participant.
    fn is_here(&mut self, entry: usize, now: Instant, sid: &Sid) {
        let Some(shown) = self.shown.get(&self.home) else {
            self.here = Some(Participant::new(self.home.clone(), sid.clone()));
            return; // it sent nothing
        };
        let who = Participant::new(self.home.clone(), sid.clone());
        let who = match shown.role {
            Some(Role::Assistant) => who.agent(true),
            _ => who.role(Role::Client),
        };
        let Some(before) = self.here.replace(who.clone()) else {
            self.runs += 1;
            let end =
                Endpoint::new(&who, shown, (&self.home, &self.room), self.runs, (self.entry, self.at, now));
            self.end = end.map(Checked::new);
            return;
        };
        // Participants that are present in the new join follow at once.
        let listed = self.steps[entry + 1..].iter().map_while(|step| match &step.what {
            What::Event(RoomEvent::Joined { identity, .. }) => Some(identity),
            _ => None,
        });
        let listed: Vec<_> = listed.collect();
        if !listed.is_empty() {
            self.present.retain(|id, _| listed.contains(&id));
        }
        let present: Vec<_> = self.present.values().cloned().collect();
        self.taken += present.len() as u64;
        if let Some(it) = &mut self.end {
            it.end.rejoined(who.clone(), present);
        }
        for it in self.others.values_mut() {
            it.end.act(|session, now| {
                session.handle_event(now, TransportEvent::Left(before.peer().clone()));
            });
            it.end.joined(who.clone());
        }
    }

    fn joined(&mut self, now: Instant, who: &Participant) {
        if *who.identity() == self.home {
            let Some(here) = self.here.clone().filter(|here| here.sid() == who.sid()) else { return };
            if let Some(it) = &mut self.end {
                it.end.joined(here);
            }
            return;
        }
        self.present.insert(who.identity().clone(), who.clone());
        if let Some(it) = &mut self.end {
            it.end.joined(who.clone());
        }
        for (_, it) in self.others.iter_mut().filter(|(id, _)| *id != who.identity()) {
            it.end.joined(who.clone());
        }
        self.meet(who, now);
    }

    fn left(&mut self, who: &Peer) {
        if self.present.get(who.identity()).is_some_and(|known| known.peer() == who) {
            self.present.remove(who.identity());
        }
        if let Some(it) = &mut self.end {
            it.end.act(|session, now| session.handle_event(now, TransportEvent::Left(who.clone())));
        }
        for (id, it) in &mut self.others {
            if id != who.identity() {
                it.end.act(|session, now| session.handle_event(now, TransportEvent::Left(who.clone())));
            } else if it.end.session.local().sid() == who.sid() {
                it.end.is_here = false;
            }
        }
    }

    /// Handles a participant that is present under this sid, and creates its session if it is a toolbridge
    /// participant.
    fn meet(&mut self, who: &Participant, now: Instant) {
        let Some(home) = self.here.clone().filter(|_| self.end.is_some()) else { return };
        let id = who.identity();
        let shown = self.shown.get(id).filter(|shown| shown.is_ours && *id != self.home);
        let Some(shown) =
            shown.filter(|shown| shown.role != self.shown.get(&self.home).and_then(|it| it.role))
        else {
            return;
        };
        let run_of = |sid: &Sid| self.instances.get(&(id.clone(), sid.clone()));
        if self.others.get(id).is_some_and(|it| it.end.is_here && it.end.session.local().sid() == who.sid()) {
            return;
        }
        let others: Vec<_> = self.present.values().filter(|it| it.identity() != id).cloned().collect();
        self.taken += others.len() as u64;
        if let Some(it) = self.others.get_mut(id) {
            let before = it.end.session.local().sid().clone();
            if before == *who.sid() {
                it.end.is_here = true;
                return;
            }
            let Some(run) = run_of(who.sid()) else { return }; // it never spoke in this join
            if run_of(&before) == Some(run) {
                it.end.is_here = true;
                it.end.rejoined(who.clone(), others.into_iter().chain([home]));
                return;
            }
        }
        self.runs += 1;
        let end = Endpoint::new(who, shown, (&self.home, &self.room), self.runs, (self.entry, self.at, now));
        let Some(mut end) = end else { return };
        for participant in [who.clone(), home].into_iter().chain(others) {
            end.joined(participant);
        }
        if let Some(before) = self.others.insert(id.clone(), Checked::new(end)) {
            before.finish(&self.spans, &mut self.report); // another run of its program
        }
        for entry in self.before_join.remove(id).unwrap_or_default() {
            if let What::Packet(packet) = &self.steps[entry].what {
                self.reaches(packet, |to| to == id);
            }
        }
    }

    fn finish(mut self) -> DryReport {
        for it in self.end.take().into_iter().chain(std::mem::take(&mut self.others).into_values()) {
            it.finish(&self.spans, &mut self.report);
        }
        self.report.finish()
    }
}

/// Whether the file marks the recorded participant as an observer.
fn is_observer(steps: &[Step], home: &Identity) -> bool {
    steps.iter().any(|step| matches!(&step.what, What::Event(event) if event.is_observer(home)))
}

/// The send error that the session received, from the recorder's text. Sends that the driver cancelled report no error.
fn why_unsent(reason: &str) -> Option<SendFailure> {
    let number = |word: &str| word.parse().ok();
    let words: Vec<_> = reason.split_whitespace().collect();
    Some(match words.as_slice() {
        ["the", "packet", "has", size, "bytes;", "the", "limit", "is", limit] => {
            SendFailure::TooLarge { size: number(size)?, limit: number(limit)? }
        }
        ["cancelled", "before", ..] => return None,
        _ if reason.starts_with("the token does not allow") => SendFailure::NotAllowed,
        _ if reason.starts_with("the connection was lost before") => SendFailure::Interrupted,
        _ if reason.starts_with("not connected") => SendFailure::Closed,
        _ => SendFailure::Other(reason.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::SendError;

    #[test]
    fn recorded_reason_is_the_failure_that_the_session_received() {
        for error in [
            SendError::NoDestination,
            SendError::TooLarge { size: 70_000, limit: 15_000 },
            SendError::NotAllowed,
            SendError::Closed(CloseReason::RoomDeleted),
            SendError::Interrupted,
            SendError::new(std::io::Error::other("the packet is not sent")),
        ] {
            assert_eq!(why_unsent(&error.to_string()), Some(error.into()));
        }
        assert_eq!(why_unsent("cancelled before it was sent completely"), None);
    }
}
