//! What a session says beside what was said.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    time::{Duration, Instant},
};

use super::{
    Difference, DryReport, Skipped,
    compare::{self, Leave},
    dry::Later,
    end::{End, Said, is_of_a_clock},
    script::{Line, Spoken},
    stanzas::Stanzas,
    when::Spans,
};
use crate::{
    protocol::{
        frame::{Kind, Message},
        session::later,
    },
    tool::{CallId, ErrorCode},
    transport::{Identity, Lane},
};

/// A frame that a session says by its own clock may be in the file so much before: the recorded one began to count a
/// little earlier, when it was told and not when that was recorded.
const EARLY: Duration = Duration::from_millis(150);

/// How a call ended, in its result.
const OF_AN_OUTCOME: [&str; 4] = ["body.success", "body.result", "body.errorCode", "body.errorMessage"];

/// A participant, with what of it was compared so far.
pub(super) struct Checked<'a> {
    pub(super) end: End,
    /// The frames of the file by their stanzas.
    firsts: BTreeMap<u32, Spoken>,
    /// Two stanzas of the requests of a call: more need not be told apart.
    asked: HashMap<String, Vec<u32>>,
    /// The last stanza to these receivers, of frames that keep their order.
    lasts: BTreeMap<Vec<Identity>, u32>,
    /// Whom it greeted.
    greeted: Vec<Vec<Identity>>,
    stanzas: Stanzas,
    /// What it was sent and has not heard yet: its answers, here before, say when.
    pub(super) waiting: VecDeque<((Kind, String), Option<u32>, &'a Line)>,
}

impl<'a> Checked<'a> {
    pub(super) fn new(end: End) -> Self {
        Self {
            end,
            firsts: BTreeMap::new(),
            asked: HashMap::new(),
            lasts: BTreeMap::new(),
            greeted: Vec::new(),
            stanzas: Stanzas::default(),
            waiting: VecDeque::new(),
        }
    }

    /// How many such answers are spoken for.
    pub(super) fn answered_later(&self, kind: Kind, about: &str) -> usize {
        self.waiting.iter().filter(|((of, it), ..)| *of == kind && it == about).count()
    }

    /// What it must have heard before it said this: what this answers, or what an earlier frame of its answers that
    /// was overtaken.
    pub(super) fn heard_by_now(&mut self, said: &Spoken) -> Option<&'a Line> {
        let at = self.waiting.iter().position(|((kind, about), stanza, _)| {
            let is_earlier = stanza.is_some_and(|stanza| said.stanza().is_some_and(|now| stanza <= now));
            is_earlier || (*kind == said.kind() && *about == said.about)
        })?;
        self.waiting.remove(at).map(|(.., line)| line)
    }

    /// Does what its application had done before, although the file has it behind.
    pub(super) fn after(&mut self, done: Vec<(&Line, &Spoken)>) -> &mut Self {
        let home = self.end.home.clone();
        for (line, spoken) in done {
            let to: &[Identity] = if self.end.is_home { &line.to } else { std::slice::from_ref(&home) };
            self.end.cause(line, spoken, to);
        }
        self
    }

    /// A frame that it said then: does it say it now?
    pub(super) fn check(
        &mut self,
        line: &Line,
        to: &[Identity],
        spans: &Spans,
        later: &Later,
        report: &mut DryReport,
    ) {
        let Some(spoken) = &line.spoken else { return report.skip(Skipped::Malformed) };
        if spoken.is_sign_of_life() {
            return report.skip(Skipped::SignOfLife);
        }
        if spoken.is_redacted() {
            report.skip(Skipped::Redacted);
        }
        if let Some(stanza) = spoken.stanza() {
            if let Some(first) = self.firsts.get(&stanza) {
                let leave = Leave { heard: true, budget: true };
                let found = compare::fields(spoken, first, leave);
                self.tell(line.entry, spoken.kind(), found, report);
                return report.skip(Skipped::Repeated);
            }
            self.firsts.insert(stanza, spoken.clone());
            if spoken.kind() == Kind::TOOL_USE_REQUEST {
                let asked = self.asked.entry(spoken.about.clone()).or_default();
                if asked.len() < 2 {
                    asked.push(stanza);
                }
            }
        }
        self.check_order(line, spoken, to, spans, report);
        match self.find(line, spoken, to, later) {
            Some(said) => self.compare(line, spoken, to, &said, report),
            None => match self.why_unsaid(line, spoken, to, spans) {
                Some(why) => {
                    self.stanzas.only_in_file(spoken);
                    report.skip(why);
                }
                None => {
                    self.stanzas.only_in_file(spoken);
                    report.compared += 1;
                    let found = vec![("frame".to_owned(), compare::summary(spoken), "nothing".to_owned())];
                    self.tell(line.entry, spoken.kind(), found, report);
                }
            },
        }
        if spoken.kind() == Kind::CONFIGURATION && !self.greeted.iter().any(|it| it == to) {
            self.greeted.push(to.to_vec());
        }
    }

    /// The file is over: what it lacks.
    pub(super) fn finish(mut self, spans: &Spans, report: &mut DryReport) {
        let mut left = std::mem::take(&mut self.end.unheard);
        left.extend(std::mem::take(&mut self.end.said));
        for said in &left {
            match self.why_unheard(said, spans) {
                Some(why) => {
                    self.stanzas.only_said(&said.spoken);
                    report.skip(why);
                }
                None => {
                    let found =
                        vec![("frame".to_owned(), "nothing".to_owned(), compare::summary(&said.spoken))];
                    self.tell(said.entry, said.spoken.kind(), found, report);
                }
            }
        }
        for (entry, kind, field) in self.stanzas.differences() {
            self.tell(entry, kind, vec![field], report);
        }
    }

    /// Frames to the same receivers keep their order, but for acknowledgements, stops, and what is not on the
    /// reliable lane or comes in parts.
    fn check_order(
        &mut self,
        line: &Line,
        spoken: &Spoken,
        to: &[Identity],
        spans: &Spans,
        report: &mut DryReport,
    ) {
        let overtakes = matches!(spoken.message, Message::Acknowledgement(_) | Message::ControlStop(_));
        let Some(stanza) =
            spoken.stanza().filter(|_| !overtakes && !line.stream && line.lane == Lane::Reliable)
        else {
            return;
        };
        let last = self.lasts.entry(to.to_vec()).or_default();
        if stanza > *last {
            *last = stanza;
        } else if spans.excuse(line.at, &self.end.id, self.end.is_home).is_none() {
            let found =
                vec![("order".to_owned(), format!("stanza {stanza}"), format!("after stanza {last}"))];
            self.tell(line.entry, spoken.kind(), found, report);
        }
    }

    /// What it says that is this frame, once its application did what it must have done.
    fn find(&mut self, line: &Line, spoken: &Spoken, to: &[Identity], to_come: &Later) -> Option<Said> {
        if let Some(at) = self.place(spoken, to) {
            return self.end.said.remove(at);
        }
        self.end.cause(line, spoken, to);
        // A window or a silence is over, of which the session told with a stop or a request.
        let by_clock = matches!(spoken.kind(), Kind::TOOL_USE_REQUEST | Kind::CONTROL_STOP);
        let most: Instant = later(self.end.clock, if by_clock { EARLY } else { Duration::ZERO });
        loop {
            if let Some(at) = self.place(spoken, to) {
                return self.end.said.remove(at);
            }
            if !self.end.hurry(most) {
                break;
            }
        }
        // One of this type that the file will not have: this must be it, with something changed.
        let is_to_come = |said: &Said| {
            let key = (self.end.id.clone(), said.spoken.kind().code(), said.spoken.about.clone());
            to_come.get(&key).is_some_and(|left| !left.is_empty())
        };
        let at = self.end.said.iter().position(|said| {
            said.spoken.kind() == spoken.kind() && self.is_to(said, to) && !is_to_come(said)
        })?;
        self.end.said.remove(at)
    }

    /// The first that is about the same and for the same; rather one that is the same.
    fn place(&self, spoken: &Spoken, to: &[Identity]) -> Option<usize> {
        let is_it = |said: &Said| {
            said.spoken.kind() == spoken.kind() && said.spoken.about == spoken.about && self.is_to(said, to)
        };
        let mut places = self.end.said.iter().enumerate().filter(|(_, said)| is_it(said));
        let (first, _) = places.next()?;
        if places.next().is_none() {
            return Some(first);
        }
        let leave = self.leave(spoken, to);
        let same = |said: &Said| compare::fields(spoken, &said.spoken, leave).is_empty();
        let mut all = self.end.said.iter().enumerate().skip(first).filter(|(_, said)| is_it(said));
        Some(all.find(|(_, said)| same(said)).map_or(first, |(at, _)| at))
    }

    fn is_to(&self, said: &Said, to: &[Identity]) -> bool {
        if !self.end.is_home {
            return true; // what was heard names no receivers
        }
        said.to.len() == to.len() && said.to.iter().all(|it| to.contains(it))
    }

    fn leave(&self, spoken: &Spoken, to: &[Identity]) -> Leave {
        // Whether the other was heard before the first greeting, its author decides; later it is a matter of moments.
        let heard = spoken.kind() == Kind::CONFIGURATION
            && (!self.end.is_home || self.greeted.iter().any(|it| it == to));
        // Who speaks plainly is asked only after a silence, out of the same budget.
        let budget = spoken.kind() == Kind::TOOL_USE_REQUEST && spoken.frame.meta_str("bridge.to").is_none();
        Leave { heard, budget: budget && !to.is_empty() }
    }

    fn compare(
        &mut self,
        line: &Line,
        spoken: &Spoken,
        to: &[Identity],
        said: &Said,
        report: &mut DryReport,
    ) {
        self.end.packets.insert(line.place, said.packet);
        if let (Some(file), Some(now)) = (spoken.stanza(), said.spoken.frame.stanza_id()) {
            if self.end.is_home {
                self.stanzas.both(line.entry, line.at, spoken.kind(), (file, now.unsigned_abs()));
            }
            if file != now.unsigned_abs() {
                self.end.numbered.insert(file, now);
            }
        }
        let mut found = compare::fields(spoken, &said.spoken, self.leave(spoken, to));
        if is_race(spoken, &said.spoken, self.end.is_home) {
            found.retain(|(field, ..)| !OF_AN_OUTCOME.iter().any(|it| field.starts_with(it)));
            report.skip(Skipped::Race);
        } else {
            report.compared += 1;
        }
        let lane_is_free = self.end.is_fast && (!self.end.is_home || line.lane == Lane::Reliable);
        if !said.lanes.contains(&line.lane) && !lane_is_free {
            let lanes: Vec<_> = said.lanes.iter().map(|lane| name_of(*lane)).collect();
            found.push(("lane".to_owned(), name_of(line.lane).to_owned(), lanes.join(", ")));
        }
        self.tell(line.entry, spoken.kind(), found, report);
    }

    /// Why a frame of the file need not be said.
    fn why_unsaid(&self, line: &Line, spoken: &Spoken, to: &[Identity], spans: &Spans) -> Option<Skipped> {
        let greeted = || self.greeted.iter().any(|it| it == to);
        let has_call = |call: &str| self.end.calls.contains_key(&CallId::from(call));
        match &spoken.message {
            Message::Configuration(_) if greeted() => return Some(Skipped::Greeting),
            Message::ToolsRegister(it) if it.tools == self.end.offered => return Some(Skipped::Greeting),
            Message::ToolUseRequest(it) if self.was_asked(it.id.as_str(), spoken) => {
                return Some(Skipped::AskedElsewhere);
            }
            Message::Acknowledgement(_) if self.end.is_fast => return Some(Skipped::FastLane),
            Message::ControlStop(it)
                if !self.end.is_home && it.target_id.as_deref().is_some_and(has_call) =>
            {
                return Some(Skipped::Race);
            }
            Message::ToolProgress(it) if !self.end.is_home && self.end.stopped.contains(&it.id) => {
                return Some(Skipped::Race);
            }
            // It waited for its turn, and went with the end of its job.
            Message::ToolProgress(it)
                if self.end.aborted.get(&it.id).is_some_and(|at| line.at.since(*at) < EARLY) =>
            {
                return Some(Skipped::Race);
            }
            _ if !self.end.is_home && self.end.heard_goodbye => return Some(Skipped::Race),
            _ => {}
        }
        spans.excuse(line.at, &self.end.id, self.end.is_home)
    }

    /// Whether an earlier request of this call is in the file.
    fn was_asked(&self, call: &str, spoken: &Spoken) -> bool {
        let asked = self.asked.get(call).map_or(&[][..], Vec::as_slice);
        asked.iter().any(|stanza| Some(*stanza) != spoken.stanza())
    }

    /// Why what it says need not be in the file.
    fn why_unheard(&self, said: &Said, spans: &Spans) -> Option<Skipped> {
        match &said.spoken.message {
            Message::Configuration(_) if !self.end.is_home => return Some(Skipped::Greeting),
            Message::Configuration(_) if self.greeted.contains(&said.to) => return Some(Skipped::Greeting),
            Message::ToolsRegister(it) if self.has_registered(&it.tools) || !self.end.is_home => {
                return Some(Skipped::Greeting);
            }
            Message::Acknowledgement(_) if self.end.is_fast => return Some(Skipped::FastLane),
            Message::ControlStop(it) if !self.end.is_home && it.target_id.is_some() => {
                return Some(Skipped::Race);
            }
            // Its own limit was over a moment before the owner's word of the same came.
            Message::ControlStop(it)
                if it.target_id.as_deref().is_some_and(|call| {
                    let answered = self.end.ended_there.get(&CallId::from(call));
                    answered
                        .is_some_and(|at| at.checked_duration_since(said.clock).is_some_and(|it| it < EARLY))
                }) =>
            {
                return Some(Skipped::Race);
            }
            _ => {}
        }
        if spans.is_at_the_end(said.at, self.end.is_home) {
            return Some(Skipped::AtTheEnd);
        }
        spans.excuse(said.at, &self.end.id, self.end.is_home)
    }

    fn has_registered(&self, tools: &[crate::protocol::frame::RegisteredTool]) -> bool {
        let is_it =
            |first: &Spoken| matches!(&first.message, Message::ToolsRegister(it) if it.tools == tools);
        self.firsts.values().any(is_it)
    }

    fn tell(&self, entry: usize, kind: Kind, found: Vec<(String, String, String)>, report: &mut DryReport) {
        for (field, expected, got) in found {
            let who = self.end.id.clone();
            report.differ(Difference { entry, who, frame: kind.name(), field, expected, got });
        }
    }
}

/// Whether a deadline met an answer or a stop, so that less than is in the file decided which was first.
fn is_race(file: &Spoken, said: &Spoken, is_home: bool) -> bool {
    let (Message::ToolUseResult(file), Message::ToolUseResult(said)) = (&file.message, &said.message) else {
        return false;
    };
    let ended = |code: &Option<ErrorCode>| code.as_ref().is_some_and(is_of_a_clock);
    let differs = file.error_code != said.error_code || file.error_message != said.error_message;
    differs && ended(&said.error_code) && (!is_home || ended(&file.error_code))
}

fn name_of(lane: Lane) -> &'static str {
    match lane {
        Lane::Reliable => "reliable",
        Lane::Lossy => "lossy",
    }
}
