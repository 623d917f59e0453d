//! What must hold whatever happens: the invariants at the end of `wire.md`, section 6.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use toolbridge::{
    CallError, CallId, CallKey, ErrorCode, Identity, Peer, Sid, Value,
    frame::{Frame, Kind, Message},
};

use crate::{
    reach::{Reach, Reached},
    room::Us,
    schedule::{How, Ms, Wanted, Who},
};

/// One invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A call has one outcome.
    OneOutcome,
    /// It starts once in one instance, and never after a refusal.
    OneStart,
    /// Its outcome is its owner's answer, or ours.
    OwnersAnswer,
    /// The handler of a call that was stopped hears of it.
    StopHeard,
    /// A stranger moves counters only.
    Stranger,
    /// Caps hold, and a settled call gives its place back.
    Caps,
    /// Everything settles within its budget.
    InTime,
    /// `ok` means that it ran once, to its end.
    OkRan,
    /// What proves that nothing ran is true.
    NeverRan,
    /// No call fails without a cause in the schedule.
    Needless,
    /// Nothing starts after a goodbye.
    Goodbye,
    /// A tool that needs a person's yes begins with it, and not without.
    Consent,
    /// After the network has healed, fresh calls succeed.
    Heals,
    /// Nobody is sent what is not for him.
    ForWhom,
    /// In the end nothing is left to do.
    Drained,
    /// A session says nothing after its end.
    AfterEnd,
    /// No input makes it panic.
    Panic,
}

/// A broken rule.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) rule: Rule,
    pub(crate) at: Us,
    pub(crate) text: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {} ms: {}", self.rule, self.at / 1_000, self.text)
    }
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// `ok`, or the word for the error.
    pub(crate) word: String,
    pub(crate) may_have_run: bool,
}

impl Verdict {
    pub(crate) fn of(result: &Result<Value, CallError>) -> Self {
        match result {
            Ok(_) => Self { word: "ok".to_owned(), may_have_run: true },
            Err(error) => Self { word: word(error), may_have_run: error.may_have_run() },
        }
    }
}

fn word(error: &CallError) -> String {
    match error {
        CallError::Tool(error) => format!("tool:{}", error.code()),
        CallError::UnknownTool { .. } => "unknown_tool".to_owned(),
        CallError::Ambiguous { .. } => "ambiguous".to_owned(),
        CallError::NotDelivered { .. } => "not_delivered".to_owned(),
        CallError::NotAllowed => "not_allowed".to_owned(),
        CallError::Timeout { .. } => "timeout".to_owned(),
        CallError::Lost { .. } => "lost".to_owned(),
        CallError::Cancelled => "cancelled".to_owned(),
        CallError::TooLarge { .. } => "too_large".to_owned(),
        CallError::TooManyOpen { .. } => "too_many_open".to_owned(),
        CallError::Busy { .. } => "busy".to_owned(),
        CallError::Closed(_) => "closed".to_owned(),
        CallError::Detached => "detached".to_owned(),
        CallError::NotBound { .. } => "not_bound".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A call, as its caller made it.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) caller: usize,
    pub(crate) who: Who,
    pub(crate) key: Option<CallKey>,
    pub(crate) id: Option<CallId>,
    pub(crate) how: How,
    /// Which tool; none of a plain assistant's call.
    pub(crate) tool: Option<Wanted>,
    pub(crate) at: Us,
    pub(crate) limit: Ms,
    pub(crate) echo: bool,
    /// After the network has healed it must succeed.
    pub(crate) probe: bool,
    /// Its tool may run twice.
    pub(crate) again: bool,
    /// Its tool may go on when its turn is over.
    pub(crate) rests: bool,
    /// A person is asked, and may say no or nothing.
    pub(crate) asks: bool,
    pub(crate) cancelled: bool,
    pub(crate) detached: bool,
    /// To whom its request was sent.
    pub(crate) owners: BTreeSet<Identity>,
    /// Its request went to somebody who was taken for a plain peer: of such a one nobody knows, when it comes back,
    /// whether it is the same.
    pub(crate) plainly: bool,
    /// When it ended its caller had just been told of the present join of the client whose tool it is, or not yet.
    pub(crate) owner_is_news: bool,
    pub(crate) outcome: Option<(Verdict, Us)>,
}

/// A call, as it began in one process.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) process: usize,
    /// It ran: what was refused before it began did not.
    pub(crate) ran: bool,
    /// Whether it went well; none while it runs, and of one that was stopped.
    pub(crate) ended: Option<bool>,
    pub(crate) running: bool,
}

/// Everything that counts, in one run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) now: Us,
    pub(crate) failure: Option<Failure>,
    pub(crate) calls: Vec<Asked>,
    pub(crate) by_id: BTreeMap<CallId, usize>,
    pub(crate) starts: BTreeMap<CallId, Vec<Start>>,
    /// Who has told the stranger that he has no rights.
    pub(crate) denied: BTreeSet<Sid>,
    /// The calls whose ends were told when their turn was over.
    pub(crate) late: BTreeSet<CallId>,
    /// The ids that an owner refused as older than what it remembers.
    refused: BTreeSet<CallId>,
    /// The ids that a process has answered or refused.
    answered: BTreeSet<(usize, CallId)>,
    /// The joins whose goodbye a process was handed.
    goodbyes: BTreeSet<(usize, Sid)>,
    /// Under which sid a process was first handed a request.
    requests: BTreeMap<(usize, CallId), Sid>,
    /// The instance that a call was first asked of, as its request says.
    addresses: BTreeMap<CallId, String>,
    /// Under which sid a plain client took a request.
    pub(crate) taken_as: BTreeMap<CallId, Sid>,
    pub(crate) reached: Reached,
}

impl Ledger {
    pub(crate) fn broken(&mut self, rule: Rule, text: String) {
        let at = self.now;
        self.failure.get_or_insert(Failure { rule, at, text });
    }

    pub(crate) fn asked(&mut self, call: Asked) -> usize {
        if let Some(id) = &call.id {
            self.by_id.insert(id.clone(), self.calls.len());
        }
        self.calls.push(call);
        self.calls.len() - 1
    }

    /// A process begins a call.
    pub(crate) fn started(&mut self, process: usize, names: &str, caller: &Identity, id: &CallId, ran: bool) {
        let asked = self.by_id.get(id).map(|at| &self.calls[*at]);
        let again = asked.is_some_and(|it| it.again);
        match asked {
            None => self.broken(Rule::Stranger, format!("{names} begins {id:?}, which nobody asked for")),
            Some(asked) if asked.who.to_string() != caller.as_str() => {
                self.broken(Rule::Stranger, format!("{names} begins {id:?} for {caller}, who did not ask"));
            }
            Some(asked) if asked.who.to_string() != names && !asked.owners.contains(names) => {
                self.broken(Rule::OneStart, format!("{names} begins {id:?}, and was not asked"));
            }
            Some(_) => {}
        }
        if self.answered.contains(&(process, id.clone())) {
            self.broken(Rule::OneStart, format!("{names} begins {id:?}, which it has answered or refused"));
        }
        let after = self
            .requests
            .get(&(process, id.clone()))
            .is_some_and(|sid| self.goodbyes.contains(&(process, sid.clone())));
        if after {
            self.broken(Rule::Goodbye, format!("{names} begins {id:?} after the goodbye of its caller"));
        }
        let starts = self.starts.entry(id.clone()).or_default();
        starts.push(Start { process, ran, ended: None, running: true });
        let here = starts.iter().filter(|start| start.process == process).count();
        if starts.len() > 1 && again {
            self.reached.note(Reach::RanTwice);
        }
        if here > 1 || (starts.len() > 1 && !again) {
            let text = format!("{names} begins {id:?} again: {starts:?}");
            self.broken(Rule::OneStart, text);
        }
    }

    /// A handler has ended, or was told to.
    pub(crate) fn ended(&mut self, process: usize, id: &CallId, ended: Option<bool>) {
        let starts = self.starts.get_mut(id).into_iter().flatten();
        for start in starts.filter(|start| start.process == process) {
            start.running = false;
            start.ended = ended;
        }
    }

    /// A process died with all that it ran.
    pub(crate) fn died(&mut self, process: usize) {
        for start in self.starts.values_mut().flatten().filter(|start| start.process == process) {
            start.running = false;
        }
    }

    /// A call has its outcome.
    pub(crate) fn settled(&mut self, call: usize, result: &Result<Value, CallError>) {
        let verdict = Verdict::of(result);
        let now = self.now;
        let asked = &mut self.calls[call];
        let before = asked.outcome.replace((verdict.clone(), now));
        let (id, at, limit, detached) = (asked.id.clone(), asked.at, asked.limit, asked.detached);
        let Verdict { word, may_have_run } = &verdict;
        self.reached.outcome(word);
        if let Some(before) = before {
            return self
                .broken(Rule::OneOutcome, format!("call {call} {id:?} is {word}, and was {before:?}"));
        }
        if detached {
            return self
                .broken(Rule::OneOutcome, format!("call {call} {id:?} is detached, and told as {word}"));
        }
        if now > at + limit * 1_000 {
            self.broken(
                Rule::InTime,
                format!("call {call} {id:?} took {} ms of {limit}", (now - at) / 1_000),
            );
        }
        let Some(id) = id else {
            if *may_have_run && word != "closed" {
                self.broken(
                    Rule::NeverRan,
                    format!("call {call} was never asked for, and may have run: {word}"),
                );
            }
            return;
        };
        let echo = self.calls[call].echo;
        let starts = self.starts.get(&id).map_or(&[][..], Vec::as_slice);
        let ran = starts.iter().filter(|start| start.ran).count();
        let text = format!("call {call} {id:?} is {word}, and started {ran} times: {starts:?}");
        if ran > 0 && !may_have_run {
            return self.broken(Rule::NeverRan, text);
        }
        if let Ok(body) = result
            && !echo
        {
            let by = body.get("by").and_then(|by| by.decode::<usize>().ok());
            let of = body.get("of").and_then(|of| of.as_str().map(str::to_owned));
            if of.as_deref() != Some(id.as_str()) || !starts.iter().any(|start| Some(start.process) == by) {
                self.broken(
                    Rule::OwnersAnswer,
                    format!("call {call} {id:?} has the answer of {by:?} to {of:?}"),
                );
            } else if !starts.iter().any(|it| Some(it.process) == by && it.ended == Some(true)) {
                self.broken(Rule::OkRan, text);
            }
        }
    }

    /// A process hands a frame to the room.
    pub(crate) fn sent(&mut self, process: usize, frame: &Frame, to: Option<&[Identity]>) {
        match frame.kind() {
            Kind::TOOL_USE_REQUEST => {
                let Some(id) = frame.peek_id() else { return };
                if let Some(address) = frame.meta_str("bridge.to") {
                    let first =
                        self.addresses.entry(id.parse().unwrap()).or_insert_with(|| address.to_owned());
                    if first != address {
                        self.reached.note(Reach::AskedAgain);
                    }
                }
                if let (Some(call), Some(to)) = (self.by_id.get(&CallId::try_from(id).unwrap()), to) {
                    let call = &mut self.calls[*call];
                    call.owners.extend(to.iter().cloned());
                    call.plainly |= frame.meta_str("bridge.to").is_none()
                        && to.iter().any(|to| to.as_str() != "observer");
                }
            }
            Kind::TOOL_USE_RESULT => {
                if let Ok(Message::ToolUseResult(it)) = frame.message()
                    && it.error_code == Some(ErrorCode::RESULT_TOO_LARGE)
                {
                    self.reached.note(Reach::ResultTooLarge);
                }
                if let Some(id) = frame.peek_id() {
                    self.answers(process, CallId::try_from(id).unwrap(), to);
                }
            }
            Kind::ERROR => {
                if let Ok(Message::Error(error)) = frame.message()
                    && let (301 | 304, Some(id)) = (error.code, error.originating_id)
                {
                    let id = CallId::try_from(id).unwrap();
                    // It may have been for another instance, and be asked anew of this one.
                    let anew = self.by_id.get(&id).is_some_and(|at| self.calls[*at].again);
                    self.refused.insert(id.clone());
                    if !anew {
                        self.answers(process, id, to);
                    }
                }
            }
            Kind::CONTROL_STOP if !frame.meta_bool("bridge.bye") => self.reached.note(Reach::StopSent),
            Kind::ACKNOWLEDGEMENT => {
                if let Ok(Message::Acknowledgement(it)) = frame.message()
                    && it.success == Some(false)
                {
                    self.reached.note(Reach::ClaimRefused);
                }
            }
            _ => {}
        }
    }

    /// A process tells a call's caller that it is done with it.
    fn answers(&mut self, process: usize, id: CallId, to: Option<&[Identity]>) {
        let caller = self.by_id.get(&id).map(|call| self.calls[*call].who.to_string());
        if to.into_iter().flatten().any(|to| Some(to.as_str()) == caller.as_deref()) {
            self.answered.insert((process, id));
        }
    }

    /// Whether this process began the call itself.
    pub(crate) fn runs_at(&self, id: Option<&CallId>, process: usize) -> bool {
        let starts = id.and_then(|id| self.starts.get(id)).into_iter().flatten();
        starts.into_iter().any(|start| start.process == process)
    }

    /// Whether a process that meets this condition was handed the request of this call.
    pub(crate) fn was_delivered_to(&self, id: &CallId, is_it: impl Fn(usize) -> bool) -> bool {
        self.requests.keys().any(|(process, delivered)| delivered == id && is_it(*process))
    }

    /// Whether any process was handed the request of this call.
    pub(crate) fn was_delivered(&self, id: &CallId) -> bool {
        self.requests.keys().any(|(_, delivered)| delivered == id)
    }

    /// Whether a request came under this sid, which has said goodbye since.
    pub(crate) fn is_over(&self, process: usize, peer: &Peer, id: &CallId) -> bool {
        self.goodbyes.contains(&(process, peer.sid().clone()))
            && self.requests.get(&(process, id.clone())) == Some(peer.sid())
    }

    /// A frame was handed to a process.
    pub(crate) fn received(&mut self, process: usize, from: &Peer, frame: &Frame) {
        let sid = from.sid();
        if frame.conversation_id().is_some_and(|room| !room.is_empty() && room != "room") {
            match frame.kind() {
                Kind::CONFIGURATION => self.reached.note(Reach::OtherRoomConfiguration),
                Kind::TOOL_USE_REQUEST => self.reached.note(Reach::OtherRoomRequest),
                _ => {}
            }
        }
        match frame.kind() {
            Kind::TOOL_USE_RESULT => {
                let taken_as =
                    frame.peek_id().and_then(|id| self.taken_as.get(&CallId::try_from(id).unwrap()));
                if taken_as.is_some_and(|taken_as| taken_as != sid) {
                    self.reached.note(Reach::PlainOwnerMoved);
                }
            }
            Kind::TOOL_USE_REQUEST => {
                let Some(id) = frame.peek_id().map(|id| CallId::try_from(id).unwrap()) else { return };
                let asked = self.by_id.get(&id).map(|call| self.calls[*call].who.to_string());
                if asked.as_deref() == Some(from.identity().as_str()) {
                    self.requests.entry((process, id)).or_insert_with(|| sid.clone());
                }
            }
            Kind::CONTROL_STOP if frame.meta_bool("bridge.bye") => {
                self.reached.note(Reach::GoodbyeHeard);
                self.goodbyes.insert((process, sid.clone()));
            }
            _ => {}
        }
    }

    /// Everything is over: what can be judged only now.
    pub(crate) fn at_end(
        &mut self,
        is_alive: impl Fn(usize) -> bool,
        spared: impl Fn(&Asked) -> bool,
        has_cause: impl Fn(&Self, &Asked, &str) -> bool,
    ) {
        for at in 0..self.calls.len() {
            let call = &self.calls[at];
            let starts = call.id.as_ref().and_then(|id| self.starts.get(id)).map_or(&[][..], Vec::as_slice);
            let told = format!("call {at} {:?} of {} ({:?}, {} ms)", call.id, call.who, call.how, call.limit);
            match &call.outcome {
                None if call.detached || !is_alive(call.caller) => {}
                None => self.broken(Rule::InTime, format!("{told} never ends")),
                Some((verdict, _)) if call.probe && verdict.word != "ok" => {
                    let text = format!("{told}, fresh after healing, ends as {}", verdict.word);
                    self.broken(Rule::Heals, text);
                }
                Some((verdict, _)) if !verdict.may_have_run && starts.iter().any(|start| start.ran) => {
                    let text = format!("{told} is {}, and ran: {starts:?}", verdict.word);
                    self.broken(Rule::NeverRan, text);
                }
                Some((verdict, _))
                    if matches!(verdict.word.as_str(), "timeout" | "lost") && !spared(call) =>
                {
                    if starts.is_empty() && call.id.as_ref().is_some_and(|id| self.refused.contains(id)) {
                        continue; // its owner could not know whether it ran: nothing was safer
                    }
                    let text = format!("{told} ends as {}: {starts:?}", verdict.word);
                    self.broken(Rule::Needless, text);
                }
                Some((verdict, _))
                    if !matches!(verdict.word.as_str(), "ok" | "timeout" | "lost")
                        && !spared(call)
                        && !has_cause(self, call, &verdict.word) =>
                {
                    let text =
                        format!("{told} ends as {}, and nothing in the schedule causes it", verdict.word);
                    self.broken(Rule::Needless, text);
                }
                Some(_) => {}
            }
        }
    }
}
