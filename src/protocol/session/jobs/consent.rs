//! The question to a person before a tool runs. The side that runs the tool asks it.
//!
//! A job that needs consent is held back between its request and [`Output::Execute`]. The session emits [`Output::Ask`], and the job runs
//! only after [`Session::consent`](crate::Session::consent) allowed it. A driver that asks nobody runs nothing: no answer is a no.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{Context, Delivery, Ended, Event, Job, JobKey, Jobs, Output, Peers, Question, Timer};
use crate::{
    protocol::session::{CallKey, ids::Instance},
    tool::{Consent, ErrorCode, Outcome, Tool, ToolError, ToolName},
    transport::{Identity, Sid},
};

/// How long before the end of a call's budget silence is a no, since the result still has to travel: 500 ms.
pub const CONSENT_MARGIN: Duration = Duration::from_millis(500);

/// Consents for a session that are remembered at once. Beyond it the person is asked again.
const MAX_GRANTS: usize = 1024;

/// Unanswered questions, and what was allowed for the session.
#[derive(Debug, Default)]
pub(super) struct Consents {
    open: BTreeMap<JobKey, OpenQuestion>,
    granted: BTreeMap<(ToolName, Identity), Grant>,
}

/// What follows from a person's answer.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Nothing more.
    Nothing,
    /// The job has ended.
    Ended(Box<Ended>),
    /// The job runs for a call of the local participant's own, whose limit is now the tool's.
    Limited(CallKey, Duration),
}

/// A job that waits for a person's answer.
#[derive(Debug)]
struct OpenQuestion {
    job: Job,
    /// The tool that the person was shown.
    shown: Tool,
    /// The run of the caller that asked for it. A yes is for no later one.
    run: Run,
}

/// A run of a caller's program: its instance, or the join of one that shows none.
type Run = Result<Instance, Option<Sid>>;

/// A consent for the session: for this definition, asked for by this run of the caller.
#[derive(Debug, PartialEq)]
struct Grant {
    tool: Tool,
    run: Run,
}

impl Jobs {
    /// Whether a job waits for a person's consent.
    pub(crate) fn awaits_consent(&self, key: JobKey) -> bool {
        self.consents.open.contains_key(&key)
    }

    /// A person answered a question.
    pub(crate) fn answer(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        delivery: &mut Delivery,
        key: JobKey,
        is_allowed: bool,
    ) -> Verdict {
        if !self.awaits_consent(key) {
            return Verdict::Nothing;
        }
        if is_allowed {
            return self.allow(cx, peers, delivery, key);
        }
        self.refuse(cx, peers, delivery, key, "the person who was asked did not allow it")
    }

    /// Nobody answered a question in time.
    pub(crate) fn answer_silence(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        delivery: &mut Delivery,
        key: JobKey,
    ) -> Verdict {
        if !self.awaits_consent(key) {
            return Verdict::Nothing;
        }
        cx.output(Output::Abort(key));
        self.refuse(cx, peers, delivery, key, "nobody answered the question in time")
    }

    /// The outcome that a driver may bring of a job that still waits for consent: that it failed, and not that it ran.
    pub(crate) fn checked_outcome(&self, key: JobKey, outcome: Outcome) -> Outcome {
        match outcome {
            Ok(_) if self.awaits_consent(key) => {
                Err(ToolError::new(ErrorCode::PERMISSION_DENIED, "nobody was asked"))
            }
            outcome => outcome,
        }
    }

    /// The local tools have changed: a consent for a tool that has gone or changed is void.
    pub(crate) fn withdraw_consents(&mut self, cx: &mut Context) {
        let stands = |name: &ToolName, grant: &Grant| {
            cx.local.tools.iter().any(|it| it.name() == name && *it == grant.tool)
        };
        let granted = &self.consents.granted;
        let void: Vec<_> = granted
            .iter()
            .filter(|((name, _), grant)| !stands(name, grant))
            .map(|(key, _)| key.clone())
            .collect();
        for key in void {
            self.consents.withdraw(cx, key);
        }
    }

    /// Gives a job out, or asks a person first. Returns it if too many questions are open, so that it has ended.
    pub(super) fn ask_or_execute(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        now: Instant,
        job: Job,
    ) -> Option<Ended> {
        let run = run_of(peers, &job.caller);
        self.ask_for(cx, peers, now, job, run)
    }

    fn ask_for(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        now: Instant,
        job: Job,
        run: Run,
    ) -> Option<Ended> {
        let present = run_of(peers, &job.caller); // it may be a later one than the run that asked
        let tool = cx
            .local
            .tool(job.tool.as_str())
            .filter(|tool| self.consents.must_ask(tool, &job.caller, &present));
        let Some(tool) = tool.cloned() else {
            cx.output(Output::Execute(job));
            return None;
        };
        let key = job.key;
        self.consents.withdraw(cx, (job.tool.clone(), job.caller.clone())); // one that stands would have sufficed
        let left = job.deadline.saturating_duration_since(now).saturating_sub(CONSENT_MARGIN);
        let question = Question {
            key,
            call: job.call.clone(),
            caller: job.caller.clone(),
            tool: tool.clone(),
            arguments: job.arguments.clone(),
            until: now + left,
        };
        let open = self.consents.open.len();
        if open >= cx.config.caps.open_questions {
            let error = ToolError::new(ErrorCode::BUSY, "too many questions are open; nothing ran");
            return self.forget(cx, key).map(|job| Ended { job, outcome: Err(error) });
        }
        self.consents.open.insert(key, OpenQuestion { job, shown: tool, run });
        cx.timers.set(now, Timer::Consent(key), left);
        cx.output(Output::Ask(question));
        None
    }

    fn allow(&mut self, cx: &mut Context, peers: &Peers, delivery: &mut Delivery, key: JobKey) -> Verdict {
        cx.timers.cancel(&Timer::Consent(key));
        let Some(OpenQuestion { mut job, shown, run }) = self.consents.open.remove(&key) else {
            return Verdict::Nothing;
        };
        let Some(tool) = cx.local.tool(job.tool.as_str()).cloned() else {
            let error = ToolError::new(ErrorCode::UNKNOWN_TOOL, "the tool is no longer offered");
            return self.finish(cx, peers, delivery, key, Err(error)).into();
        };
        if tool != shown {
            return self.ask_for(cx, peers, cx.now, job, run).into(); // the yes was to another tool
        }
        if tool.tool_options().effective_consent() == Consent::OncePerSession {
            self.consents.grant(&tool, &job.caller, run);
        }
        // The tool's own limit is for its run, not for the person's thinking.
        let mut verdict = Verdict::Nothing;
        if let Some(own) = tool.tool_options().timeout
            && let Some(end) = cx.now.checked_add(own)
            && end < job.deadline
            && let Some(running) = self.running.get_mut(&key)
        {
            (job.deadline, job.limit, running.limit) = (end, own, own);
            match running.own {
                None => cx.set_timer(Timer::JobDeadline(key), own),
                Some(call) => {
                    verdict = Verdict::Limited(call, own);
                    cx.set_timer(Timer::Deadline(call), own);
                }
            }
        }
        cx.output(Output::Execute(job));
        verdict
    }

    fn refuse(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        delivery: &mut Delivery,
        key: JobKey,
        why: &str,
    ) -> Verdict {
        let error = ToolError::new(ErrorCode::PERMISSION_DENIED, why);
        self.finish(cx, peers, delivery, key, Err(error)).into()
    }
}

impl Consents {
    /// A job is over: its question, if it is open, is taken back.
    pub(super) fn forget(&mut self, cx: &mut Context, key: JobKey) {
        cx.timers.cancel(&Timer::Consent(key));
        self.open.remove(&key);
    }

    /// Whether a tool's job needs a question for this run of the caller, now.
    fn must_ask(&self, tool: &Tool, caller: &Identity, run: &Run) -> bool {
        match tool.tool_options().effective_consent() {
            Consent::Never => false,
            Consent::Always => true,
            Consent::OncePerSession => {
                let granted = self.granted.get(&(tool.name().clone(), caller.clone()));
                granted.is_none_or(|grant| grant.tool != *tool || grant.run != *run)
            }
        }
    }

    fn grant(&mut self, tool: &Tool, caller: &Identity, run: Run) {
        if self.granted.len() >= MAX_GRANTS {
            self.granted.pop_first();
        }
        self.granted.insert((tool.name().clone(), caller.clone()), Grant { tool: tool.clone(), run });
    }

    fn withdraw(&mut self, cx: &mut Context, key: (ToolName, Identity)) {
        if self.granted.remove(&key).is_some() {
            let (tool, caller) = key;
            cx.event(Event::ConsentVoid { tool, caller });
        }
    }
}

impl From<Option<Ended>> for Verdict {
    fn from(ended: Option<Ended>) -> Self {
        ended.map_or(Self::Nothing, |ended| Self::Ended(Box::new(ended)))
    }
}

fn run_of(peers: &Peers, caller: &Identity) -> Run {
    let remote = peers.get(caller);
    match remote.and_then(|remote| remote.instance()) {
        Some(instance) => Ok(instance.clone()),
        None => Err(remote.and_then(|remote| remote.sid().cloned())),
    }
}
