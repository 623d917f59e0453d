//! Asks a person before a tool runs. The side that runs the tool asks.
//!
//! A job that needs consent waits between its request and [`Output::Execute`]. The session emits [`Output::Ask`], and
//! the job runs only after [`Session::consent`](crate::session::Session::consent) has allowed it. A missing answer counts as a
//! refusal, so a driver that ignores questions runs nothing.

use std::time::Duration;

use super::{Context, Core, Ended, Event, Job, JobKey, Jobs, Output, Peers, Question, Timer};
use crate::{
    clock::Instant,
    protocol::session::ids::Instance,
    sorted::SortedMap,
    tool::{Consent, ErrorCode, Outcome, StopReason, Tool, ToolError, ToolName},
    transport::{Identity, Sid},
};

/// The time before the end of a call's time limit at which a missing answer becomes a refusal: 500 ms. The result must
/// still reach the caller.
pub const CONSENT_MARGIN: Duration = Duration::from_millis(500);

/// The limit on remembered consents for the session. The person is asked again for a forgotten one.
const MAX_GRANTS: usize = 1024;

/// The unanswered questions and the consents for the session.
#[derive(Debug, Default)]
pub(super) struct Consents {
    open: SortedMap<JobKey, OpenQuestion>,
    granted: SortedMap<(ToolName, Identity), Grant>,
}

/// A job that waits for a person's answer.
#[derive(Debug)]
struct OpenQuestion {
    job: Job,
    /// The tool as shown to the person.
    shown: Tool,
    /// The caller's instance. The consent is not valid for a later one.
    run: Run,
}

/// An instance of a caller's program, or the join of a caller that shows none.
pub(super) type Run = Result<Instance, Option<Sid>>;

/// A consent for the session. It is valid for this tool definition and this instance of the caller.
#[derive(Debug, PartialEq)]
struct Grant {
    tool: Tool,
    run: Run,
}

impl Jobs {
    /// Returns whether a job waits for a person's consent.
    pub(crate) fn awaits_consent(&self, key: JobKey) -> bool {
        self.consents.open.contains_key(&key)
    }

    /// Returns the jobs of peers that wait for a person's consent.
    pub(crate) fn awaiting_consent_of_peers(&self) -> Vec<JobKey> {
        let is_of_peer = |key: &&JobKey| self.running.get(key).is_some_and(|job| job.own.is_none());
        self.consents.open.keys().filter(is_of_peer).copied().collect()
    }

    /// Returns the outcome that a driver may report for a job. A job that still waits for consent can only have failed.
    pub(crate) fn checked_outcome(&self, key: JobKey, outcome: Outcome) -> Outcome {
        match outcome {
            Ok(_) if self.awaits_consent(key) => {
                Err(ToolError::new(ErrorCode::PERMISSION_DENIED, "no person was asked"))
            }
            outcome => outcome,
        }
    }

    /// Withdraws the consents for tools that were removed or changed.
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

    /// Starts a job or first asks a person. Returns the job as ended if too many questions are open.
    pub(super) fn ask_or_execute(
        &mut self,
        cx: &mut Context,
        now: Instant,
        job: Job,
        run: Run,
    ) -> Option<Ended> {
        let tool =
            cx.local.tool(job.tool.as_str()).filter(|tool| self.consents.must_ask(tool, &job.caller, &run));
        let Some(tool) = tool.cloned() else {
            cx.output(Output::Execute(job));
            return None;
        };
        let key = job.key;
        self.consents.withdraw(cx, (job.tool.clone(), job.caller.clone())); // a valid consent would have sufficed
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
        if open >= cx.config.caps.requests.open_questions {
            let error = ToolError::new(ErrorCode::BUSY, "too many questions are open; nothing ran");
            // Without an `Abort`, since the driver has not been shown this job.
            return self.forget(cx, key).map(|job| Ended { job, outcome: Err(error) });
        }
        self.consents.open.insert(key, OpenQuestion { job, shown: tool, run });
        cx.timers.set(now, Timer::Consent(key), left);
        cx.output(Output::Ask(question));
        None
    }
}

impl Core {
    /// Handles a person's answer to a question. Returns the job if it has ended.
    pub(crate) fn answer_question(&mut self, key: JobKey, is_allowed: bool) -> Option<Ended> {
        if is_allowed {
            return self.allow(key);
        }
        self.refuse(key, "the person denied the request")
    }

    /// Handles a question without an answer in time.
    pub(crate) fn time_out_question(&mut self, key: JobKey) -> Option<Ended> {
        if !self.jobs.awaits_consent(key) {
            return None;
        }
        // The driver still shows the question, and must take it away.
        self.cx.output(Output::Abort { key, reason: StopReason::Deadline });
        self.refuse(key, "nobody answered the question in time")
    }

    fn allow(&mut self, key: JobKey) -> Option<Ended> {
        let Self { cx, jobs, .. } = self;
        let OpenQuestion { job, shown, run } = jobs.consents.open.remove(&key)?;
        cx.timers.cancel(&Timer::Consent(key));
        let Some(tool) = cx.local.tool(job.tool.as_str()).cloned() else {
            let error = ToolError::new(ErrorCode::UNKNOWN_TOOL, "the tool is no longer offered");
            return self.finish_job(key, Err(error));
        };
        if tool != shown {
            return jobs.ask_or_execute(cx, cx.now, job, run); // the person agreed to another definition of the tool
        }
        if tool.tool_options().effective_consent() == Consent::OncePerSession {
            jobs.consents.grant(&tool, &job.caller, run);
        }
        cx.output(Output::Execute(job));
        None
    }

    fn refuse(&mut self, key: JobKey, why: &str) -> Option<Ended> {
        let error = ToolError::new(ErrorCode::PERMISSION_DENIED, why);
        if self.jobs.awaits_consent(key) { self.finish_job(key, Err(error)) } else { None }
    }
}

impl Consents {
    /// Withdraws the question of a job that has ended, if the question is open.
    pub(super) fn forget(&mut self, cx: &mut Context, key: JobKey) {
        cx.timers.cancel(&Timer::Consent(key));
        self.open.remove(&key);
    }

    /// Returns whether a tool's job needs a question for this instance of the caller now.
    fn must_ask(&self, tool: &Tool, caller: &Identity, run: &Run) -> bool {
        match tool.tool_options().effective_consent() {
            Consent::Never => false,
            Consent::Always => true,
            Consent::OncePerSession => {
                let granted = self.granted.get(&(tool.name().clone(), caller.clone()));
                // The whole definition is compared. A tool that keeps its name and changes what it does must
                // be shown to the person again.
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

pub(super) fn run_of(peers: &Peers, caller: &Identity) -> Run {
    let remote = peers.get(caller);
    match remote.and_then(|remote| remote.present_instance()) {
        Some(instance) => Ok(instance.clone()),
        None => Err(remote.and_then(|remote| remote.sid().cloned())),
    }
}
