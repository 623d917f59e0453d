//! Jobs: what our own tools run, for a peer or for ourselves.

use std::time::{Duration, Instant};

use super::{
    CallKey, Counter, Event, Job, JobKey, LocalText, Output, Session, Timer, lane::ANSWER_SOON,
    peer::Feature, send::floor_char, timers::later,
};
use crate::{
    protocol::frame::{Message, Meta, ToolProgress, ToolUseRequest},
    tool::{CallId, ErrorCode, Execution, Outcome, Progress, ToolError, ToolName, Visibility},
    transport::{Identity, Sid},
    value::Value,
};

/// A job that runs.
#[derive(Debug)]
pub(super) struct Running {
    /// Who asked; ourselves for a tool of our own.
    pub(super) caller: Identity,
    /// The join in which it asked.
    pub(super) join: Sid,
    /// Our own call, if it is one.
    pub(super) own: Option<CallKey>,
    pub(super) call: CallId,
    pub(super) tool: ToolName,
    pub(super) began: Instant,
    pub(super) limit: Duration,
    /// The size of its arguments in bytes.
    pub(super) bytes: usize,
    /// What the room is told of it, if it is our own.
    pub(super) disclose: Visibility,
    pub(super) told: Told,
}

/// What the jobs of one caller hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldByJobs {
    pub(super) jobs: usize,
    /// Bytes of their arguments.
    pub(super) bytes: usize,
}

/// What was told of a job's progress.
#[derive(Debug, Default)]
pub(super) struct Told {
    at: Option<Instant>,
    /// The last that came too soon.
    next: Option<Progress>,
    /// It began, and its answer says so.
    by_answer: bool,
}

impl Told {
    /// Whether whoever runs it said that it began, and its caller was told.
    pub(super) fn anything(&self) -> bool {
        self.at.is_some()
    }

    fn began(&self) -> bool {
        self.anything() || self.by_answer
    }
}

impl Session {
    pub(super) fn next_job(&mut self) -> JobKey {
        self.next_key += 1;
        JobKey(self.next_key)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one job, at its only call")]
    pub(super) fn begin_job(
        &mut self,
        now: Instant,
        key: JobKey,
        caller: &Identity,
        request: ToolUseRequest,
        tool: &ToolName,
        limit: Duration,
        meta: Value,
    ) {
        let join = self.peers.get(caller).and_then(|remote| remote.sid()).cloned();
        let running = Running {
            caller: caller.clone(),
            join: join.unwrap_or_else(|| Sid::from("")),
            own: None,
            call: request.id.clone(),
            tool: tool.clone(),
            began: now,
            limit,
            bytes: request.parameters.as_bytes().len(),
            disclose: Visibility::Nothing,
            told: Told::default(),
        };
        self.start(now, key, running, request.parameters, meta);
    }

    pub(super) fn start(
        &mut self,
        now: Instant,
        key: JobKey,
        running: Running,
        arguments: Value,
        meta: Value,
    ) {
        self.stats.add(Counter::Jobs, 1);
        let deadline = later(now, running.limit);
        self.ledger.request_size(&running.call, &arguments);
        if running.own.is_none() {
            self.timers.set(now, Timer::JobDeadline(key), running.limit);
        }
        let job = Job {
            key,
            call: running.call.clone(),
            caller: running.caller.clone(),
            tool: running.tool.clone(),
            arguments,
            deadline,
            limit: running.limit,
            meta,
        };
        let held = self.held_by_jobs.entry(running.caller.clone()).or_default();
        held.jobs += 1;
        held.bytes += running.bytes;
        self.jobs.insert(key, running);
        self.gate(now, job);
    }

    pub(super) fn finish_job(&mut self, now: Instant, key: JobKey, outcome: Outcome) {
        self.needs_not_be_told(key);
        let Some(job) = self.take_job(now, key) else { return };
        if let Some(source) = outcome.as_ref().err().and_then(ToolError::source) {
            let reason = LocalText::new(&source.to_string());
            self.event(Event::ToolFailed { call: job.call.clone(), tool: job.tool.clone(), reason });
        }
        match job.own {
            Some(call) => self.own_finished(now, call, &job, outcome),
            None => self.job_settled(now, &job, outcome),
        }
    }

    /// Stops a job of a peer, whose answer is `cancelled`.
    pub(super) fn cancel_job(&mut self, now: Instant, key: JobKey) {
        let Some(job) = self.take_job(now, key) else { return };
        self.outputs.push_back(Output::Abort(key));
        self.job_settled(now, &job, Err(ToolError::cancelled()));
    }

    pub(super) fn job_deadline(&mut self, now: Instant, key: JobKey) {
        let Some(job) = self.take_job(now, key) else { return };
        self.outputs.push_back(Output::Abort(key));
        let text = format!("no result within {} ms", job.limit.as_millis());
        let outcome = Err(ToolError::new(ErrorCode::TIMEOUT, text));
        self.job_settled(now, &job, outcome);
    }

    /// We leave: the job stops. A peer that was told goodbye needs no answer; a plain one gets it.
    pub(super) fn abort_job(&mut self, now: Instant, key: JobKey) {
        let Some(job) = self.take_job(now, key) else { return };
        self.outputs.push_back(Output::Abort(key));
        let plain = self.peers.get(&job.caller).is_some_and(|remote| remote.pair.plain);
        if plain {
            self.answer(now, &job.caller, &job.call, Err(ToolError::new(ErrorCode::LOST, "the owner left")));
        }
    }

    /// A caller that shows no instance is another one in another join: what it had asked for stops.
    pub(super) fn stop_jobs_of_other_joins(&mut self, now: Instant, caller: &Identity, join: &Sid) {
        let of_another = |job: &Running| job.caller == *caller && job.join != *join;
        let others: Vec<_> =
            self.jobs.iter().filter(|(_, job)| of_another(job)).map(|(key, _)| *key).collect();
        for key in others {
            self.cancel_job(now, key);
        }
    }

    /// A caller is gone: its jobs stop. Their answers wait, in case it comes back after all.
    pub(super) fn stop_jobs_for(&mut self, now: Instant, caller: &Identity) {
        for key in self.jobs_for(caller) {
            self.cancel_job(now, key);
        }
        self.end_claims_for(now, caller);
    }

    pub(super) fn forget_job(&mut self, key: JobKey) -> Option<Running> {
        self.timers.cancel(&Timer::JobDeadline(key));
        self.timers.cancel(&Timer::Progress(key));
        self.forget_question(key);
        let job = self.jobs.remove(&key)?;
        if let Some(held) = self.held_by_jobs.get_mut(&job.caller) {
            held.jobs -= 1;
            held.bytes -= job.bytes;
            if held.jobs == 0 {
                self.held_by_jobs.remove(&job.caller);
            }
        }
        Some(job)
    }

    pub(super) fn job_progress(&mut self, now: Instant, key: JobKey, progress: Progress) {
        let interval = Duration::from_secs(1) / self.config.caps.progress_per_second.max(1);
        let may_wait = self.jobs.get(&key).is_some_and(|job| self.lane_is_open(&job.caller));
        let Some(job) = self.jobs.get_mut(&key) else { return };
        if !job.told.anything() {
            if let Some(began) = job.told.next.take() {
                self.timers.cancel(&Timer::Progress(key));
                self.tell_progress(now, key, began);
            } else if may_wait && is_bare(&progress) {
                job.told.next = Some(progress);
                return self.timers.set(now, Timer::Progress(key), ANSWER_SOON);
            }
        }
        let Some(job) = self.jobs.get_mut(&key) else { return };
        let since = job.told.at.map(|at| now.saturating_duration_since(at));
        match since {
            Some(since) if since < interval => {
                if job.told.next.replace(progress).is_some() {
                    self.stats.add(Counter::ProgressDropped, 1);
                } else {
                    self.timers.set(now, Timer::Progress(key), interval - since);
                }
            }
            _ => self.tell_progress(now, key, progress),
        }
    }

    pub(super) fn progress_due(&mut self, now: Instant, key: JobKey) {
        if let Some(progress) = self.jobs.get_mut(&key).and_then(|job| job.told.next.take()) {
            self.tell_progress(now, key, progress);
        }
    }

    /// A job is over before its caller was told that it began: its answer says so too.
    fn needs_not_be_told(&mut self, key: JobKey) {
        let Some(job) = self.jobs.get_mut(&key).filter(|job| !job.told.anything()) else { return };
        job.told.by_answer = job.told.next.take().is_some();
    }

    /// A job of ours is over: what it said last goes first.
    fn take_job(&mut self, now: Instant, key: JobKey) -> Option<Running> {
        self.progress_due(now, key);
        self.forget_job(key)
    }

    fn job_settled(&mut self, now: Instant, job: &Running, outcome: Outcome) {
        self.ledger.result_size(&job.call, &outcome);
        self.event(Event::Settled {
            call: job.call.clone(),
            tool: job.tool.to_string(),
            execution: Execution::Client,
            owner: Some(self.local.identity().clone()),
            outcome: outcome.as_ref().map(|_| ()).map_err(ToolError::code),
            took: now.saturating_duration_since(job.began),
        });
        self.answer_of_job(now, &job.caller, &job.call, outcome, job.told.began());
    }

    fn tell_progress(&mut self, now: Instant, key: JobKey, progress: Progress) {
        let limit = self.config.caps.progress_bytes;
        let Some(job) = self.jobs.get_mut(&key) else { return };
        job.told.at = Some(now);
        let (caller, own, call) = (job.caller.clone(), job.own, job.call.clone());
        let progress = fitted(progress, limit);
        self.ledger.started(&call);
        if own.is_some() {
            return self.event(Event::Progress { key: own, call, progress });
        }
        let message = Message::ToolProgress(ToolProgress {
            id: call,
            status: progress.status,
            content: progress.content,
            message: progress.message,
        });
        if self.peers.get(&caller).is_some_and(|it| it.lists(Feature::Progress) && it.is_reachable()) {
            self.post_small(&caller, &message);
        }
        self.copy(&Meta::default(), &message);
    }

    pub(super) fn jobs_for(&self, caller: &Identity) -> Vec<JobKey> {
        self.jobs.iter().filter(|(_, job)| job.caller == *caller).map(|(key, _)| *key).collect()
    }
}

/// Whether it says no more than that the tool began.
fn is_bare(progress: &Progress) -> bool {
    progress.message.is_none() && progress.content.is_none()
}

/// Progress that is no larger than allowed: structured content goes first, then the end of the text.
pub(super) fn fitted(mut progress: Progress, limit: usize) -> Progress {
    let text = progress.message.as_ref().map_or(0, String::len);
    if text + progress.content.as_ref().map_or(0, |content| content.as_bytes().len()) > limit {
        progress.content = None;
    }
    if let Some(message) = &mut progress.message {
        message.truncate(floor_char(message, limit));
    }
    progress
}
