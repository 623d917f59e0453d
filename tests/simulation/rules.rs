//! The rules that every run must keep: those of `wire.md`, sections 4 (rights) and 5 (delivery), and what a
//! caller may rely on.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use toolbridge::{
    CallError, CallId, ErrorCode, Identity, Value,
    frame::{Frame, Kind, Message},
    session::CallKey,
    transport::{Peer, Sid},
};

use crate::{
    reach::{Reach, Reached},
    room::Us,
    schedule::{Actor, Behavior, Ms, RequestedTool},
};

/// A rule that no run may break.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rule {
    /// A call has exactly one outcome.
    OneOutcome,
    /// A call starts at most once, in one process, and not after that process has answered or refused it.
    OneStart,
    /// A result comes from a process that ran the call, and `Delivered` only after the request arrived.
    OwnersResult,
    /// A caller reads the progress of a call in the order in which its tool reported it.
    ProgressInOrder,
    /// The handler of a stopped call is aborted.
    HandlerAborted,
    /// Frames of an unauthorized participant change counters only.
    Unauthorized,
    /// No cap is exceeded, and a settled call no longer counts against any.
    Caps,
    /// Every call settles within its timeout.
    InTime,
    /// A call that ends as `ok` ran to its end.
    OkCompleted,
    /// If an outcome says that the call cannot have run, it did not run.
    MayHaveRun,
    /// A call fails only if the schedule has a cause for it.
    Unexplained,
    /// Nothing starts or keeps running after the caller's goodbye.
    Goodbye,
    /// A tool that requires consent does not start without it.
    Consent,
    /// An app that is called by RPC is sent its requests and nothing else, each once.
    OnlyRequests,
    /// New calls succeed once the network has recovered.
    Recovery,
    /// A frame is sent only to participants that it is meant for and that can receive it.
    Receivers,
    /// At the end of a run no session has anything left to do.
    Drained,
    /// Packets are doubled for 10 s after the last loss, and no longer.
    Doubles,
    /// An answer by RPC that arrived whole is the outcome of its call.
    AnswerTaken,
    /// A session produces no output after it has closed.
    AfterClose,
    /// No input makes a session panic.
    Panic,
}

impl Rule {
    const ALL: &[Self] = &[
        Self::OneOutcome,
        Self::OneStart,
        Self::OwnersResult,
        Self::ProgressInOrder,
        Self::HandlerAborted,
        Self::Unauthorized,
        Self::Caps,
        Self::InTime,
        Self::OkCompleted,
        Self::MayHaveRun,
        Self::Unexplained,
        Self::Goodbye,
        Self::Consent,
        Self::OnlyRequests,
        Self::Recovery,
        Self::Receivers,
        Self::Drained,
        Self::Doubles,
        Self::AnswerTaken,
        Self::AfterClose,
        Self::Panic,
    ];

    /// Returns the rule of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|rule| format!("{rule:?}").eq_ignore_ascii_case(name))
    }
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
    /// `ok`, or a name for the error.
    pub(crate) outcome: String,
    pub(crate) may_have_run: bool,
}

impl Verdict {
    pub(crate) fn of(result: &Result<Value, CallError>) -> Self {
        match result {
            Ok(_) => Self { outcome: "ok".to_owned(), may_have_run: true },
            Err(error) => Self { outcome: outcome_name(error), may_have_run: error.may_have_run() },
        }
    }
}

fn outcome_name(error: &CallError) -> String {
    match error {
        CallError::Tool(error) => format!("tool:{}", error.code()),
        CallError::UnknownTool { .. } => "unknown_tool".to_owned(),
        CallError::Ambiguous { .. } => "ambiguous".to_owned(),
        CallError::NotDelivered { .. } => "not_delivered".to_owned(),
        CallError::NotAllowed => "not_allowed".to_owned(),
        CallError::Timeout { .. } => "timeout".to_owned(),
        CallError::Lost { .. } => "lost".to_owned(),
        CallError::Cancelled | CallError::Unawaited => "cancelled".to_owned(),
        CallError::TooLarge { .. } => "too_large".to_owned(),
        CallError::TooManyOpen { .. } => "too_many_open".to_owned(),
        CallError::Busy { .. } => "busy".to_owned(),
        CallError::Closed(_) | CallError::NotInRoom(_) => "closed".to_owned(),
        CallError::Detached => "detached".to_owned(),
        CallError::NotBound { .. } => "not_bound".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A call, from its caller's point of view.
#[derive(Debug)]
pub(crate) struct CallRecord {
    pub(crate) caller: usize,
    pub(crate) actor: Actor,
    pub(crate) key: Option<CallKey>,
    pub(crate) id: Option<CallId>,
    pub(crate) behavior: Behavior,
    /// The requested tool; none for a call of a plain assistant.
    pub(crate) tool: Option<RequestedTool>,
    pub(crate) at: Us,
    pub(crate) limit: Ms,
    pub(crate) echo: bool,
    /// Whether the call is made after the network has recovered and must succeed.
    pub(crate) probe: bool,
    /// Whether its tool is idempotent and may run twice.
    pub(crate) idempotent: bool,
    /// Whether its tool may continue after a barge-in.
    pub(crate) may_continue: bool,
    /// Whether a person is asked for consent, who may decline or not answer.
    pub(crate) consent: bool,
    pub(crate) cancelled: bool,
    pub(crate) detached: bool,
    /// The identities to which its request was sent.
    pub(crate) owners: BTreeSet<Identity>,
    /// Whether its request was sent in the form for plain peers. After a rejoin, a caller cannot tell whether a plain
    /// peer is still the same instance.
    pub(crate) sent_plain: bool,
    /// Whether, when the call ended, the owner's current join was not yet announced to the caller, or only just.
    pub(crate) owner_is_recent: bool,
    pub(crate) outcome: Option<(Verdict, Us)>,
}

/// One start of a call in one process.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) process: usize,
    /// Whether the tool ran; false if the arguments were refused first.
    pub(crate) ran: bool,
    /// Whether it succeeded; none while it runs, and if it was stopped.
    pub(crate) ended: Option<bool>,
    pub(crate) running: bool,
}

/// Everything that the rules need to know about a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) now: Us,
    /// The rules that are not checked.
    pub(crate) without: Vec<Rule>,
    pub(crate) failure: Option<Failure>,
    pub(crate) calls: Vec<CallRecord>,
    pub(crate) by_id: BTreeMap<CallId, usize>,
    pub(crate) starts: BTreeMap<CallId, Vec<Start>>,
    /// The sids that have sent a denial to the stranger.
    pub(crate) denied: BTreeSet<Sid>,
    /// The calls for which a late result was reported.
    pub(crate) late: BTreeSet<CallId>,
    /// The number of the last update of each call that its caller read.
    progress: BTreeMap<CallId, u32>,
    /// The calls that an owner refused because they are older than its memory.
    refused: BTreeSet<CallId>,
    /// The calls that each process has answered or refused.
    answered: BTreeSet<(usize, CallId)>,
    /// The sids whose goodbye each process has received.
    goodbyes: BTreeSet<(usize, Sid)>,
    /// The sender's sid of the first copy of each request that a process received.
    requests: BTreeMap<(usize, CallId), Sid>,
    /// The instance to which each request was first addressed.
    addresses: BTreeMap<CallId, String>,
    /// The sid that a plain client had when it received each request.
    pub(crate) taken_as: BTreeMap<CallId, Sid>,
    /// The ids of the requests that have left by RPC.
    pub(crate) requests_by_rpc: BTreeSet<String>,
    pub(crate) reached: Reached,
}

impl Ledger {
    /// Creates the ledger of a run that does not check these rules.
    pub(crate) fn without(rules: &[Rule]) -> Self {
        Self { without: rules.to_vec(), ..Self::default() }
    }

    pub(crate) fn broken(&mut self, rule: Rule, text: String) {
        let at = self.now;
        if !self.without.contains(&rule) {
            self.failure.get_or_insert(Failure { rule, at, text });
        }
    }

    pub(crate) fn add_call(&mut self, call: CallRecord) -> usize {
        if let Some(id) = &call.id {
            self.by_id.insert(id.clone(), self.calls.len());
        }
        self.calls.push(call);
        self.calls.len() - 1
    }

    /// Records that the app gets the request of a call by RPC.
    pub(crate) fn request_arrives(&mut self, process: usize, id: &CallId, from: &Peer) {
        self.requests.entry((process, id.clone())).or_insert_with(|| from.sid().clone());
    }

    /// Records that a caller reads the update of this number. A call that may run twice may report it twice.
    pub(crate) fn progressed(&mut self, call: &CallId, number: u32) {
        let may_run_twice = self.by_id.get(call).is_some_and(|at| self.calls[*at].idempotent);
        let last = self.progress.insert(call.clone(), number);
        if last.is_some_and(|last| last >= number) && !may_run_twice {
            self.broken(Rule::ProgressInOrder, format!("{call:?}: update {number} is read after {last:?}"));
        }
    }

    /// Records that a process starts a call.
    pub(crate) fn started(&mut self, process: usize, name: &str, caller: &Identity, id: &CallId, ran: bool) {
        let record = self.by_id.get(id).map(|at| &self.calls[*at]);
        let idempotent = record.is_some_and(|it| it.idempotent);
        match record {
            None => {
                self.broken(Rule::Unauthorized, format!("{name} starts {id:?}, which was never requested"))
            }
            Some(record) if record.actor.to_string() != caller.as_str() => {
                self.broken(
                    Rule::Unauthorized,
                    format!("{name} starts {id:?} for {caller}, which did not request it"),
                );
            }
            Some(record) if record.actor.to_string() != name && !record.owners.contains(name) => {
                self.broken(
                    Rule::OneStart,
                    format!("{name} starts {id:?}, which was requested of others only"),
                );
            }
            Some(_) => {}
        }
        if self.answered.contains(&(process, id.clone())) {
            self.broken(Rule::OneStart, format!("{name} starts {id:?} after answering or refusing it"));
        }
        let after = self
            .requests
            .get(&(process, id.clone()))
            .is_some_and(|sid| self.goodbyes.contains(&(process, sid.clone())));
        if after {
            self.broken(Rule::Goodbye, format!("{name} starts {id:?} after its caller's goodbye"));
        }
        let starts = self.starts.entry(id.clone()).or_default();
        starts.push(Start { process, ran, ended: None, running: true });
        let here = starts.iter().filter(|start| start.process == process).count();
        if starts.len() > 1 && idempotent {
            self.reached.note(Reach::RanTwice);
        }
        if here > 1 || (starts.len() > 1 && !idempotent) {
            let text = format!("{name} starts {id:?} again: {starts:?}");
            self.broken(Rule::OneStart, text);
        }
    }

    /// Records that a handler has returned (whether with success) or was aborted (`None`).
    pub(crate) fn ended(&mut self, process: usize, id: &CallId, ended: Option<bool>) {
        let starts = self.starts.get_mut(id).into_iter().flatten();
        for start in starts.filter(|start| start.process == process) {
            start.running = false;
            start.ended = ended;
        }
    }

    /// Records that an app has no such method: nothing has run, and the call may be made again.
    pub(crate) fn declined(&mut self, process: usize, id: &CallId) {
        if let Some(starts) = self.starts.get_mut(id) {
            starts.retain(|start| start.process != process || start.ran);
        }
    }

    /// Records that a process died, and its handlers with it.
    pub(crate) fn died(&mut self, process: usize) {
        for start in self.starts.values_mut().flatten().filter(|start| start.process == process) {
            start.running = false;
        }
    }

    /// Records the outcome of a call.
    pub(crate) fn settled(&mut self, call: usize, result: &Result<Value, CallError>) {
        let verdict = Verdict::of(result);
        let now = self.now;
        let record = &mut self.calls[call];
        let before = record.outcome.replace((verdict.clone(), now));
        let (id, at, limit, detached) = (record.id.clone(), record.at, record.limit, record.detached);
        let Verdict { outcome, may_have_run } = &verdict;
        self.reached.outcome(outcome);
        if let Some(before) = before {
            return self.broken(
                Rule::OneOutcome,
                format!("call {call} {id:?} ends as {outcome}, after it ended as {before:?}"),
            );
        }
        if detached {
            return self
                .broken(Rule::OneOutcome, format!("call {call} {id:?} is detached, yet ends as {outcome}"));
        }
        if now > at + limit * 1_000 {
            self.broken(
                Rule::InTime,
                format!("call {call} {id:?} took {} ms, its timeout is {limit} ms", (now - at) / 1_000),
            );
        }
        let Some(id) = id else {
            if *may_have_run && outcome != "closed" {
                self.broken(
                    Rule::MayHaveRun,
                    format!("call {call} was never sent, yet may have run: {outcome}"),
                );
            }
            return;
        };
        let echo = self.calls[call].echo;
        let starts = self.starts.get(&id).map_or(&[][..], Vec::as_slice);
        let ran = starts.iter().filter(|start| start.ran).count();
        let text = format!("call {call} {id:?} ends as {outcome}, and ran {ran} times: {starts:?}");
        if ran > 0 && !may_have_run {
            return self.broken(Rule::MayHaveRun, text);
        }
        if let Ok(body) = result
            && !echo
        {
            let by = body.get("by").and_then(|by| by.decode::<usize>().ok());
            let of = body.get("of").and_then(|of| of.as_str().map(str::to_owned));
            if of.as_deref() != Some(id.as_str()) || !starts.iter().any(|start| Some(start.process) == by) {
                self.broken(
                    Rule::OwnersResult,
                    format!("call {call} {id:?} has the result of process {by:?} for {of:?}"),
                );
            } else if !starts.iter().any(|it| Some(it.process) == by && it.ended == Some(true)) {
                self.broken(Rule::OkCompleted, text);
            }
        }
    }

    /// Records a frame that a process sends.
    pub(crate) fn sent(&mut self, process: usize, frame: &Frame, to: Option<&[Identity]>) {
        match frame.kind() {
            Kind::TOOL_USE_REQUEST => {
                let Some(id) = frame.peek_id() else { return };
                if let Some(address) = frame.meta_str("bridge.to") {
                    let first =
                        self.addresses.entry(id.parse().unwrap()).or_insert_with(|| address.to_owned());
                    if first != address {
                        self.reached.note(Reach::ResentToNextInstance);
                    }
                }
                if let (Some(call), Some(to)) = (self.by_id.get(&CallId::try_from(id).unwrap()), to) {
                    let call = &mut self.calls[*call];
                    call.owners.extend(to.iter().cloned());
                    call.sent_plain |= frame.meta_str("bridge.to").is_none()
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
                    // The request may have been for an earlier instance, and may still be addressed to this one.
                    let may_run_twice = self.by_id.get(&id).is_some_and(|at| self.calls[*at].idempotent);
                    self.refused.insert(id.clone());
                    if !may_run_twice {
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

    /// Records that a process answered or refused a call, if the answer goes to its caller.
    fn answers(&mut self, process: usize, id: CallId, to: Option<&[Identity]>) {
        let caller = self.by_id.get(&id).map(|call| self.calls[*call].actor.to_string());
        if to.into_iter().flatten().any(|to| Some(to.as_str()) == caller.as_deref()) {
            self.answered.insert((process, id));
        }
    }

    /// Returns whether this process started the call itself.
    pub(crate) fn runs_at(&self, id: Option<&CallId>, process: usize) -> bool {
        let starts = id.and_then(|id| self.starts.get(id)).into_iter().flatten();
        starts.into_iter().any(|start| start.process == process)
    }

    /// Returns whether a process that meets this condition received the request of this call.
    pub(crate) fn was_delivered_to(&self, id: &CallId, is_it: impl Fn(usize) -> bool) -> bool {
        self.requests.keys().any(|(process, delivered)| delivered == id && is_it(*process))
    }

    /// Returns whether any process received the request of this call.
    pub(crate) fn was_delivered(&self, id: &CallId) -> bool {
        self.requests.keys().any(|(_, delivered)| delivered == id)
    }

    /// Returns whether the request came from this sid and the sid has sent its goodbye since.
    pub(crate) fn is_over(&self, process: usize, peer: &Peer, id: &CallId) -> bool {
        self.goodbyes.contains(&(process, peer.sid().clone()))
            && self.requests.get(&(process, id.clone())) == Some(peer.sid())
    }

    /// Records a frame that a process receives.
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
                    self.reached.note(Reach::PlainOwnerRejoined);
                }
            }
            Kind::TOOL_USE_REQUEST => {
                let Some(id) = frame.peek_id().map(|id| CallId::try_from(id).unwrap()) else { return };
                let caller = self.by_id.get(&id).map(|call| self.calls[*call].actor.to_string());
                if caller.as_deref() == Some(from.identity().as_str()) {
                    self.requests.entry((process, id)).or_insert_with(|| sid.clone());
                }
            }
            Kind::CONTROL_STOP if frame.meta_bool("bridge.bye") => {
                self.reached.note(Reach::GoodbyeReceived);
                self.goodbyes.insert((process, sid.clone()));
            }
            _ => {}
        }
    }

    /// Checks the rules that can be checked only after the run.
    pub(crate) fn at_end(
        &mut self,
        is_alive: impl Fn(usize) -> bool,
        may_fail: impl Fn(&CallRecord) -> bool,
        has_cause: impl Fn(&Self, &CallRecord, &str) -> bool,
    ) {
        for at in 0..self.calls.len() {
            let call = &self.calls[at];
            let starts = call.id.as_ref().and_then(|id| self.starts.get(id)).map_or(&[][..], Vec::as_slice);
            let call_text =
                format!("call {at} {:?} of {} ({:?}, {} ms)", call.id, call.actor, call.behavior, call.limit);
            match &call.outcome {
                None if call.detached || !is_alive(call.caller) => {}
                None => self.broken(Rule::InTime, format!("{call_text} never settles")),
                Some((verdict, _)) if call.probe && verdict.outcome != "ok" => {
                    let text = format!("{call_text}, made after recovery, ends as {}", verdict.outcome);
                    self.broken(Rule::Recovery, text);
                }
                Some((verdict, _)) if !verdict.may_have_run && starts.iter().any(|start| start.ran) => {
                    let text = format!("{call_text} ends as {}, yet ran: {starts:?}", verdict.outcome);
                    self.broken(Rule::MayHaveRun, text);
                }
                Some((verdict, _))
                    if matches!(verdict.outcome.as_str(), "timeout" | "lost") && !may_fail(call) =>
                {
                    if starts.is_empty() && call.id.as_ref().is_some_and(|id| self.refused.contains(id)) {
                        continue; // the owner could not know whether it ran, so it had to refuse
                    }
                    let text = format!("{call_text} ends as {}: {starts:?}", verdict.outcome);
                    self.broken(Rule::Unexplained, text);
                }
                Some((verdict, _))
                    if !matches!(verdict.outcome.as_str(), "ok" | "timeout" | "lost")
                        && !may_fail(call)
                        && !has_cause(self, call, &verdict.outcome) =>
                {
                    let text = format!(
                        "{call_text} ends as {}, and nothing in the schedule causes it",
                        verdict.outcome
                    );
                    self.broken(Rule::Unexplained, text);
                }
                Some(_) => {}
            }
        }
    }
}
