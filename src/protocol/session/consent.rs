//! The question to a person before a tool runs: asked by the side that runs it, and by nobody else.
//!
//! A job that needs consent is held back between its request and [`Output::Execute`]. It comes out of
//! [`Session::poll_question`], and runs only after [`Session::consent`] said yes. A driver that asks nobody
//! runs nothing: silence is a no.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use super::{Event, Job, JobKey, Output, Session, Timer, ids::Instance};
use crate::{
    tool::{CallId, Consent, ErrorCode, Outcome, Tool, ToolError, ToolName},
    transport::{Identity, Sid},
    value::Value,
};

/// So long before a call's budget ends silence is a no: the answer still has to travel.
pub const CONSENT_MARGIN: Duration = Duration::from_millis(500);

/// Consents for a session that are remembered at once. Beyond it the person is asked again.
const MAX_GRANTS: usize = 1024;

/// A question to a person: may this tool run with these arguments?
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Question {
    /// Names it in [`Session::consent`], and in [`Output::Abort`] if it is taken back.
    pub key: JobKey,
    /// The call's id on the wire.
    pub call: CallId,
    /// Who wants it.
    pub caller: Identity,
    /// The tool, as it is offered now.
    pub tool: Tool,
    /// What it will be given: a map, not checked against the schema.
    pub arguments: Value,
    /// When silence is a no.
    pub until: Instant,
}

/// Open questions, and what was allowed for the session.
#[derive(Debug, Default)]
pub(super) struct Consents {
    open: BTreeMap<JobKey, Asked>,
    asked: VecDeque<Question>,
    granted: BTreeMap<(ToolName, Identity), Grant>,
}

/// What waits for a person's answer.
#[derive(Debug)]
struct Asked {
    job: Job,
    /// The tool that the person was shown.
    shown: Tool,
    /// The run of the caller that asked for it: a yes is for no later one.
    run: Run,
}

/// A run of a caller's program: its instance, or the join of one that shows none.
type Run = Result<Instance, Option<Sid>>;

/// What a consent for the session is for: this definition, asked for by this run of the caller.
#[derive(Debug, PartialEq)]
struct Grant {
    tool: Tool,
    run: Run,
}

impl Session {
    /// The next question to a person, until there is none. Answer each with [`consent`](Session::consent).
    pub fn poll_question(&mut self) -> Option<Question> {
        self.consents.asked.pop_front()
    }

    /// Brings the answer to a question. On a yes the job comes out as [`Output::Execute`]; on a no its caller
    /// reads `permission_denied`, and nothing ran. Of a question that was taken back, nothing happens.
    pub fn consent(&mut self, now: Instant, key: JobKey, allowed: bool) {
        if !self.begin(now) || !self.consents.open.contains_key(&key) {
            return;
        }
        if allowed {
            self.allowed(now, key);
        } else {
            self.refuse_job(now, key, "the person who was asked did not allow it");
        }
    }

    /// Gives a job out, or asks for consent first.
    pub(super) fn gate(&mut self, now: Instant, job: Job) {
        let run = self.run_of(&job.caller);
        self.gate_for(now, job, run);
    }

    fn gate_for(&mut self, now: Instant, job: Job, run: Run) {
        let Some(tool) = self.tools.iter().find(|tool| *tool.name() == job.tool) else {
            return self.outputs.push_back(Output::Execute(job));
        };
        if !self.must_ask(tool, &job.caller) {
            return self.outputs.push_back(Output::Execute(job));
        }
        let (key, tool) = (job.key, tool.clone());
        self.withdraw(job.tool.clone(), job.caller.clone()); // one that stands would have been enough
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
        self.consents.open.insert(key, Asked { job, shown: tool, run });
        self.timers.set(now, Timer::Consent(key), left);
        if open >= self.config.caps.open_questions {
            let error = ToolError::new(ErrorCode::BUSY, "too many questions are open; nothing ran");
            return self.finish_job(now, key, Err(error));
        }
        self.consents.asked.push_back(question);
    }

    /// Nobody answered in time.
    pub(super) fn consent_silent(&mut self, now: Instant, key: JobKey) {
        if self.consents.open.contains_key(&key) {
            self.outputs.push_back(Output::Abort(key));
            self.refuse_job(now, key, "nobody answered the question in time");
        }
    }

    /// A job is over, one way or another: its question, if it is open, is taken back.
    pub(super) fn forget_question(&mut self, key: JobKey) -> bool {
        self.timers.cancel(&Timer::Consent(key));
        self.consents.asked.retain(|question| question.key != key);
        self.consents.open.remove(&key).is_some()
    }

    /// What a driver may say of a job that still waits for consent: that it failed, and not that it ran.
    pub(super) fn outcome_of_asked(&self, key: JobKey, outcome: Outcome) -> Outcome {
        match outcome {
            Ok(_) if self.consents.open.contains_key(&key) => {
                Err(ToolError::new(ErrorCode::PERMISSION_DENIED, "nobody was asked"))
            }
            outcome => outcome,
        }
    }

    /// Other tools are offered now: a consent for a tool that is gone or has changed is void.
    pub(super) fn withdraw_consents(&mut self) {
        let tools = &self.tools;
        let stands =
            |name: &ToolName, grant: &Grant| tools.iter().any(|it| it.name() == name && *it == grant.tool);
        let void: Vec<_> = self
            .consents
            .granted
            .iter()
            .filter(|((name, _), grant)| !stands(name, grant))
            .map(|(key, _)| key.clone())
            .collect();
        for (tool, caller) in void {
            self.withdraw(tool, caller);
        }
    }

    /// Whether a tool's job needs a question for this caller, now.
    fn must_ask(&self, tool: &Tool, caller: &Identity) -> bool {
        match tool.tool_options().effective_consent() {
            Consent::Never => false,
            Consent::Always => true,
            Consent::OncePerSession => {
                let granted = self.consents.granted.get(&(tool.name().clone(), caller.clone()));
                granted.is_none_or(|grant| grant.tool != *tool || grant.run != self.run_of(caller))
            }
        }
    }

    fn allowed(&mut self, now: Instant, key: JobKey) {
        self.timers.cancel(&Timer::Consent(key));
        let Some(Asked { mut job, shown, run }) = self.consents.open.remove(&key) else { return };
        let Some(tool) = self.tools.iter().find(|tool| *tool.name() == job.tool).cloned() else {
            let error = ToolError::new(ErrorCode::UNKNOWN_TOOL, "the tool is no longer offered");
            return self.finish_job(now, key, Err(error));
        };
        if tool != shown {
            return self.gate_for(now, job, run); // the yes was to another tool
        }
        if tool.tool_options().effective_consent() == Consent::OncePerSession {
            self.remember_consent(&tool, &job.caller, run);
        }
        // The tool's own limit is for its run, not for the person's thinking.
        if let Some(own) = tool.tool_options().timeout
            && let Some(end) = now.checked_add(own)
            && end < job.deadline
            && let Some(running) = self.jobs.get_mut(&key)
        {
            (job.deadline, job.limit, running.limit) = (end, own, own);
            match running.own {
                None => self.timers.set(now, Timer::JobDeadline(key), own),
                Some(ours) => {
                    if let Some(call) = self.calls.get_mut(&ours) {
                        call.limit = own;
                    }
                    self.timers.set(now, Timer::Deadline(ours), own);
                }
            }
        }
        self.outputs.push_back(Output::Execute(job));
    }

    fn remember_consent(&mut self, tool: &Tool, caller: &Identity, run: Run) {
        let key = (tool.name().clone(), caller.clone());
        let grant = Grant { tool: tool.clone(), run };
        if self.consents.granted.len() >= MAX_GRANTS {
            self.consents.granted.pop_first();
        }
        self.consents.granted.insert(key, grant);
    }

    fn withdraw(&mut self, tool: ToolName, caller: Identity) {
        if self.consents.granted.remove(&(tool.clone(), caller.clone())).is_some() {
            self.event(Event::ConsentVoid { tool, caller });
        }
    }

    fn refuse_job(&mut self, now: Instant, key: JobKey, why: &str) {
        self.finish_job(now, key, Err(ToolError::new(ErrorCode::PERMISSION_DENIED, why)));
    }

    fn run_of(&self, caller: &Identity) -> Run {
        let remote = self.peers.get(caller);
        match remote.and_then(|remote| remote.instance.clone()) {
            Some(instance) => Ok(instance),
            None => Err(remote.and_then(|remote| remote.sid().cloned())),
        }
    }

    /// The limit of a job before it begins: a question may take longer than the tool's own limit.
    pub(super) fn limit_of(&self, tool: &Tool, asked: Duration) -> Duration {
        let options = tool.tool_options();
        match options.timeout {
            Some(own) if options.effective_consent() == Consent::Never => asked.min(own),
            _ => asked,
        }
    }
}
