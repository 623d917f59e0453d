//! Compares the frames that a session sends with the recorded ones.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use super::{
    Difference, DryReport, Skipped,
    compare::{self, Leave},
    endpoint::{Endpoint, Said, is_of_a_clock},
    script::{DecodedFrame, RecordedPacket},
    stanzas::Stanzas,
    tolerance::Spans,
};
use crate::{
    clock::later,
    protocol::frame::{Kind, Message},
    tool::{CallId, ErrorCode, ProgressStatus},
    transport::{Identity, Lane},
};

/// How much earlier than in the session a timer-driven frame may be in the file: the recorded session started its
/// timer slightly before the recorder logged the event. As much may lie between a packet that the recorder saw and its
/// effect on the session.
pub(super) const EARLY: Duration = Duration::from_millis(150);

/// How much earlier than in the session a frame that an owner holds back may be in the file. The hold is 5 ms.
const HELD: Duration = Duration::from_millis(5);

/// The fields of a result that hold the outcome.
const OF_AN_OUTCOME: [&str; 5] =
    ["body.success", "body.result", "body.errorCode", "body.errorMessage", "body.reason"];

/// A participant, with the state of its comparison.
pub(super) struct Checked<'a> {
    pub(super) end: Endpoint,
    /// The recorded frames by stanza.
    firsts: BTreeMap<u32, DecodedFrame>,
    /// Up to two stanzas of the requests of each call.
    asked: HashMap<String, Vec<u32>>,
    /// The last stanza of ordered frames, by receivers.
    lasts: BTreeMap<Vec<Identity>, u32>,
    /// The participants it sent a handshake to.
    greeted: Vec<Vec<Identity>>,
    stanzas: Stanzas,
    /// When it answered each call.
    answered: HashMap<CallId, Instant>,
    /// Frames it has not yet received, with the answers that show when it did.
    pub(super) waiting: VecDeque<((Kind, String), Option<u32>, &'a RecordedPacket)>,
}

/// The stanzas of frames later in the file, by sender, frame type and subject.
pub(super) type Later = BTreeMap<(Identity, u16, String), VecDeque<Option<u32>>>;

impl<'a> Checked<'a> {
    pub(super) fn new(end: Endpoint) -> Self {
        Self {
            end,
            firsts: BTreeMap::new(),
            asked: HashMap::new(),
            lasts: BTreeMap::new(),
            greeted: Vec::new(),
            stanzas: Stanzas::default(),
            answered: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Returns how many such replies later frames account for.
    pub(super) fn answered_later(&self, kind: Kind, about: &str) -> usize {
        self.waiting.iter().filter(|((of, it), ..)| *of == kind && it == about).count()
    }

    /// Returns a frame that the session must have received before it sent this one: the one that this answers, or one
    /// that an earlier, overtaken reply answers.
    pub(super) fn heard_by_now(&mut self, said: &DecodedFrame) -> Option<&'a RecordedPacket> {
        let at = self.waiting.iter().position(|((kind, about), stanza, _)| {
            let is_earlier = stanza.is_some_and(|stanza| said.stanza().is_some_and(|now| stanza <= now));
            is_earlier || (*kind == said.kind() && *about == said.about)
        })?;
        self.waiting.remove(at).map(|(.., packet)| packet)
    }

    /// Applies inputs that its application gave earlier, although the file has them later.
    pub(super) fn after(&mut self, done: Vec<(&RecordedPacket, &DecodedFrame)>) -> &mut Self {
        let home = self.end.home.clone();
        for (packet, decoded) in done {
            let to: &[Identity] = if self.end.is_home { &packet.to } else { std::slice::from_ref(&home) };
            self.end.infer(packet, decoded, to);
        }
        self
    }

    /// Compares a recorded frame with what the session sent.
    pub(super) fn check(
        &mut self,
        packet: &RecordedPacket,
        to: &[Identity],
        spans: &Spans,
        later: &Later,
        report: &mut DryReport,
    ) {
        let Some(decoded) = &packet.decoded else { return report.skip(Skipped::Malformed) };
        if decoded.is_keepalive() {
            return report.skip(Skipped::SignOfLife);
        }
        if decoded.is_redacted() {
            report.skip(Skipped::Redacted);
        }
        if let Some(stanza) = decoded.stanza() {
            if let Some(first) = self.firsts.get(&stanza) {
                let leave = Leave { heard: true, budget: true };
                let found = compare::fields(decoded, first, leave);
                self.tell(packet.entry, decoded.kind(), found, report);
                return report.skip(Skipped::Repeated);
            }
            self.firsts.insert(stanza, decoded.clone());
            if decoded.kind() == Kind::TOOL_USE_REQUEST {
                let asked = self.asked.entry(decoded.about.clone()).or_default();
                if asked.len() < 2 {
                    asked.push(stanza);
                }
            }
        }
        if let Message::ToolUseResult(it) = &decoded.message {
            self.answered.entry(it.id.clone()).or_insert(self.end.clock);
        }
        self.check_order(packet, decoded, to, spans, report);
        match self.find(packet, decoded, to, later) {
            Some(said) => self.compare(packet, decoded, to, &said, report),
            None => match self.reason_not_sent(packet, decoded, to, spans) {
                Some(why) => {
                    self.stanzas.only_in_file(decoded);
                    report.skip(why);
                }
                None => {
                    self.stanzas.only_in_file(decoded);
                    report.compared += 1;
                    let found = vec![("frame".to_owned(), compare::summary(decoded), "nothing".to_owned())];
                    self.tell(packet.entry, decoded.kind(), found, report);
                }
            },
        }
        if decoded.kind() == Kind::CONFIGURATION && !self.greeted.iter().any(|it| it == to) {
            self.greeted.push(to.to_vec());
        }
    }

    /// Reports sent frames that the file lacks, at its end.
    pub(super) fn finish(mut self, spans: &Spans, report: &mut DryReport) {
        let mut left = std::mem::take(&mut self.end.unheard);
        left.extend(std::mem::take(&mut self.end.said));
        for said in &left {
            match self.why_unheard(said, spans) {
                Some(why) => {
                    self.stanzas.only_said(&said.decoded);
                    report.skip(why);
                }
                None => {
                    let found =
                        vec![("frame".to_owned(), "nothing".to_owned(), compare::summary(&said.decoded))];
                    self.tell(said.entry, said.decoded.kind(), found, report);
                }
            }
        }
        for (entry, kind, field) in self.stanzas.differences() {
            self.tell(entry, kind, vec![field], report);
        }
    }

    /// Frames to the same receivers keep their order, except acknowledgements, stops, frames on the lossy lane and
    /// streams.
    fn check_order(
        &mut self,
        packet: &RecordedPacket,
        decoded: &DecodedFrame,
        to: &[Identity],
        spans: &Spans,
        report: &mut DryReport,
    ) {
        let overtakes = matches!(decoded.message, Message::Acknowledgement(_) | Message::ControlStop(_));
        let Some(stanza) =
            decoded.stanza().filter(|_| !overtakes && !packet.stream && packet.lane == Lane::Reliable)
        else {
            return;
        };
        let last = self.lasts.entry(to.to_vec()).or_default();
        if stanza > *last {
            *last = stanza;
        } else if spans.excuse(packet.at, &self.end.id, self.end.is_home).is_none() {
            let found =
                vec![("order".to_owned(), format!("stanza {stanza}"), format!("after stanza {last}"))];
            self.tell(packet.entry, decoded.kind(), found, report);
        }
    }

    /// Finds the sent frame for this recorded frame, after inferring its application's input.
    fn find(
        &mut self,
        packet: &RecordedPacket,
        decoded: &DecodedFrame,
        to: &[Identity],
        to_come: &Later,
    ) -> Option<Said> {
        // An update that differs may be an earlier one, which this one has overtaken.
        let leave = self.leave(decoded, to);
        let is_it = |said: &Said| {
            decoded.kind() != Kind::TOOL_PROGRESS || compare::fields(decoded, &said.decoded, leave).is_empty()
        };
        if let Some(at) = self.place(decoded, to).filter(|at| self.end.said.get(*at).is_some_and(is_it)) {
            return self.end.said.remove(at);
        }
        self.end.infer(packet, decoded, to);
        // A claim window or a silence limit has ended, which the session showed by a stop or a request.
        let early = match decoded.kind() {
            Kind::TOOL_USE_REQUEST | Kind::CONTROL_STOP => EARLY,
            _ if self.is_held(decoded) => HELD,
            _ => Duration::ZERO,
        };
        let most: Instant = later(self.end.clock, early);
        loop {
            if let Some(at) = self.place(decoded, to) {
                return self.end.said.remove(at);
            }
            if !self.end.hurry(most) {
                break;
            }
        }
        if self.is_held(decoded) {
            return None; // the session may have sent another one, which is about another frame
        }
        // The session sent one of this type that the file does not have later: it must be this one, with a change.
        let is_to_come = |said: &Said| {
            let key = (self.end.id.clone(), said.decoded.kind().code(), said.decoded.about.clone());
            to_come.get(&key).is_some_and(|left| !left.is_empty())
        };
        let at = self.end.said.iter().position(|said| {
            said.decoded.kind() == decoded.kind() && self.is_to(said, to) && !is_to_come(said)
        })?;
        self.end.said.remove(at)
    }

    /// Whether a result within 5 ms replaces this frame (`wire.md`, section 5.7): whether it is sent depends on the
    /// owner's clock.
    fn is_held(&self, decoded: &DecodedFrame) -> bool {
        self.end.is_fast
            && match &decoded.message {
                Message::Acknowledgement(_) => !decoded.is_rpc,
                Message::ToolProgress(it) => {
                    it.status == ProgressStatus::InProgress && it.content.is_none() && it.message.is_none()
                }
                _ => false,
            }
    }

    /// Whether the owner answered the call of this progress about when it ceased to hold it back.
    fn is_answered_meanwhile(&self, message: &Message, at: Instant) -> bool {
        let Message::ToolProgress(progress) = message else { return false };
        self.answered.get(&progress.id).is_some_and(|answered| {
            answered.saturating_duration_since(at).max(at.saturating_duration_since(*answered)) < EARLY
        })
    }

    /// The first frame with the same subject and receivers, preferably an equal one.
    fn place(&self, decoded: &DecodedFrame, to: &[Identity]) -> Option<usize> {
        let is_it = |said: &Said| {
            said.decoded.kind() == decoded.kind()
                && said.decoded.about == decoded.about
                && self.is_to(said, to)
        };
        let mut places = self.end.said.iter().enumerate().filter(|(_, said)| is_it(said));
        let (first, _) = places.next()?;
        if places.next().is_none() {
            return Some(first);
        }
        let leave = self.leave(decoded, to);
        let same = |said: &Said| compare::fields(decoded, &said.decoded, leave).is_empty();
        let mut all = self.end.said.iter().enumerate().skip(first).filter(|(_, said)| is_it(said));
        Some(all.find(|(_, said)| same(said)).map_or(first, |(at, _)| at))
    }

    fn is_to(&self, said: &Said, to: &[Identity]) -> bool {
        if !self.end.is_home {
            return true; // received frames name no receivers
        }
        said.to.len() == to.len() && said.to.iter().all(|it| to.contains(it))
    }

    fn leave(&self, decoded: &DecodedFrame, to: &[Identity]) -> Leave {
        // Whether the peer's Configuration arrived before the first local one depends on the author; later it depends
        // on timing.
        let heard = decoded.kind() == Kind::CONFIGURATION
            && (!self.end.is_home || self.greeted.iter().any(|it| it == to));
        // A plain peer gets its request only after a silence, out of the same budget.
        let budget =
            decoded.kind() == Kind::TOOL_USE_REQUEST && decoded.frame.meta_str("bridge.to").is_none();
        Leave { heard, budget: budget && !to.is_empty() }
    }

    fn compare(
        &mut self,
        packet: &RecordedPacket,
        decoded: &DecodedFrame,
        to: &[Identity],
        said: &Said,
        report: &mut DryReport,
    ) {
        self.end.packets.insert(packet.place, said.packet);
        if let (Some(file), Some(now)) = (decoded.stanza(), said.decoded.frame.stanza_id()) {
            if self.end.is_home {
                self.stanzas.both(packet.entry, packet.at, decoded.kind(), (file, now.unsigned_abs()));
            }
            if file != now.unsigned_abs() {
                self.end.numbered.insert(file, now);
            }
        }
        let mut found = compare::fields(decoded, &said.decoded, self.leave(decoded, to));
        if decoded.is_rpc && self.end.faulty.contains(&decoded.about) {
            found.retain(|(field, ..)| {
                !["body.errorMessage", "body.result"].iter().any(|it| field.starts_with(it))
            });
        }
        let waited = self.end.clock.saturating_duration_since(said.clock);
        if is_race(decoded, &said.decoded, self.end.is_home, waited) {
            found.retain(|(field, ..)| !OF_AN_OUTCOME.iter().any(|it| field.starts_with(it)));
            report.skip(Skipped::Race);
        } else {
            report.compared += 1;
        }
        if decoded.is_rpc && packet.stream != said.is_stream {
            let name = |is_stream: bool| if is_stream { "a stream" } else { "a packet" }.to_owned();
            found.push(("form".to_owned(), name(packet.stream), name(said.is_stream)));
        }
        let lane_is_free = self.end.is_fast && (!self.end.is_home || packet.lane == Lane::Reliable);
        // The lane depends on the compressed form, and the session that is replayed does not compress.
        let lane_is_free = lane_is_free || packet.compressed;
        if !said.lanes.contains(&packet.lane) && !lane_is_free {
            let lanes: Vec<_> = said.lanes.iter().map(|lane| name_of(*lane)).collect();
            found.push(("lane".to_owned(), name_of(packet.lane).to_owned(), lanes.join(", ")));
        }
        self.tell(packet.entry, decoded.kind(), found, report);
    }

    /// Why a recorded frame need not be sent.
    fn reason_not_sent(
        &self,
        packet: &RecordedPacket,
        decoded: &DecodedFrame,
        to: &[Identity],
        spans: &Spans,
    ) -> Option<Skipped> {
        let greeted = || self.greeted.iter().any(|it| it == to);
        let has_call = |call: &str| self.end.calls.contains_key(&CallId::known(call));
        match &decoded.message {
            Message::Configuration(_) if greeted() => return Some(Skipped::Greeting),
            Message::ToolsRegister(it) if it.tools == self.end.offered => return Some(Skipped::Greeting),
            Message::ToolUseRequest(it) if self.was_asked(it.id.as_str(), decoded) => {
                return Some(Skipped::AskedElsewhere);
            }
            _ if self.is_held(decoded) => return Some(Skipped::FastLane),
            Message::ControlStop(it)
                if !self.end.is_home && it.target_id.as_deref().is_some_and(has_call) =>
            {
                return Some(Skipped::Race);
            }
            Message::ToolProgress(it) if !self.end.is_home && self.end.stopped.contains(&it.id) => {
                return Some(Skipped::Race);
            }
            // The progress waited for its rate limit and was dropped at the end of its job, or met a stop.
            Message::ToolProgress(it)
                if self.end.aborted.get(&it.id).is_some_and(|at| packet.at.since(*at) < EARLY) =>
            {
                return Some(Skipped::Race);
            }
            _ if !self.end.is_home && self.end.heard_goodbye => return Some(Skipped::Race),
            _ => {}
        }
        if self.end.is_home && spans.is_left_out(packet.at, to) {
            return Some(Skipped::LeftOut);
        }
        spans.excuse(packet.at, &self.end.id, self.end.is_home)
    }

    /// Whether the file has an earlier request of this call.
    fn was_asked(&self, call: &str, decoded: &DecodedFrame) -> bool {
        let asked = self.asked.get(call).map_or(&[][..], Vec::as_slice);
        asked.iter().any(|stanza| Some(*stanza) != decoded.stanza())
    }

    /// Why a sent frame need not be in the file.
    fn why_unheard(&self, said: &Said, spans: &Spans) -> Option<Skipped> {
        match &said.decoded.message {
            Message::Configuration(_) if !self.end.is_home => return Some(Skipped::Greeting),
            Message::Configuration(_) if self.greeted.contains(&said.to) => return Some(Skipped::Greeting),
            Message::ToolsRegister(it) if self.has_registered(&it.tools) || !self.end.is_home => {
                return Some(Skipped::Greeting);
            }
            Message::Acknowledgement(_) if self.end.is_fast && !said.decoded.is_rpc => {
                return Some(Skipped::FastLane);
            }
            message if self.is_held(&said.decoded) && self.is_answered_meanwhile(message, said.clock) => {
                return Some(Skipped::FastLane);
            }
            Message::ControlStop(it) if !self.end.is_home && it.target_id.is_some() => {
                return Some(Skipped::Race);
            }
            // The caller's own limit ended just before the owner's timeout arrived.
            Message::ControlStop(it)
                if it.target_id.as_deref().is_some_and(|call| {
                    let answered = self.end.ended_there.get(&CallId::known(call));
                    answered
                        .is_some_and(|at| at.checked_duration_since(said.clock).is_some_and(|it| it < EARLY))
                }) =>
            {
                return Some(Skipped::Race);
            }
            _ => {}
        }
        if self.end.is_home && spans.is_left_out(said.at, &said.to) {
            return Some(Skipped::LeftOut);
        }
        if spans.is_at_the_end(said.at, self.end.is_home) {
            return Some(Skipped::AtTheEnd);
        }
        spans.excuse(said.at, &self.end.id, self.end.is_home)
    }

    fn has_registered(&self, tools: &[crate::protocol::frame::RegisteredTool]) -> bool {
        let is_it =
            |first: &DecodedFrame| matches!(&first.message, Message::ToolsRegister(it) if it.tools == tools);
        self.firsts.values().any(is_it)
    }

    fn tell(&self, entry: usize, kind: Kind, found: Vec<(String, String, String)>, report: &mut DryReport) {
        for (field, expected, got) in found {
            let who = self.end.id.clone();
            report.differ(Difference { entry, who, frame: kind.name(), field, expected, got });
        }
    }
}

/// Whether a deadline coincided with an answer or a stop, so that the file cannot show which came first. The session
/// sent its frame this long before the one of the file.
fn is_race(file: &DecodedFrame, said: &DecodedFrame, is_home: bool, waited: Duration) -> bool {
    let (file, said) = match (&file.message, &said.message) {
        (Message::ToolUseResult(file), Message::ToolUseResult(said)) => (file, said),
        (Message::ControlStop(file), Message::ControlStop(said)) => {
            return !is_home && file.reason != said.reason;
        }
        _ => return false,
    };
    let ended = |code: &Option<ErrorCode>| code.as_ref().is_some_and(is_of_a_clock);
    let differs = file.error_code != said.error_code || file.error_message != said.error_message;
    differs && ended(&said.error_code) && (!is_home || ended(&file.error_code) || waited < EARLY)
}

fn name_of(lane: Lane) -> &'static str {
    match lane {
        Lane::Reliable => "reliable",
        Lane::Lossy => "lossy",
    }
}
