//! Keeps the jobs: local tools that run for a peer's call or a local call.

mod consent;

use std::time::Duration;

pub use self::consent::CONSENT_MARGIN;
use self::consent::{Consents, run_of};
use super::{
    CallKey, Counter, Event, JobKey, LocalText, Output, Question,
    context::Context,
    core::Core,
    delivery::{ANSWER_SOON, Delivery},
    disclosure::Discloser,
    peers::Peers,
    recipients::Feature,
    timers::Timer,
};
use crate::{
    clock::{Instant, later},
    protocol::frame::{Message, Meta, ToolProgress},
    sorted::SortedMap,
    tool::{
        BargeIn, CallId, ErrorCode, Job, Outcome, Progress, StopReason, ToolError, ToolName, Visibility,
        public::stripped,
    },
    transport::{Identity, Sid},
    value::{Value, floor_char},
};

/// All jobs that run or wait for a person's consent.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    running: SortedMap<JobKey, Running>,
    /// The number and bytes of each caller's jobs.
    held: SortedMap<Identity, Held>,
    /// The number of jobs that run in another system.
    reported: usize,
    consents: Consents,
}

/// The joins of the caller of a request.
#[derive(Clone, Debug)]
pub(super) struct Joins {
    /// The one of the request.
    pub(super) first: Sid,
    /// The one with which the request ends: the first one, or a later one that has continued it.
    pub(super) last: Sid,
}

impl Joins {
    /// A request in this join.
    pub(super) fn new(join: Option<&Sid>) -> Self {
        let join = join.cloned().unwrap_or_else(|| Sid::from(""));
        Self { first: join.clone(), last: join }
    }
}

/// A job that runs or waits for a person's consent.
#[derive(Debug)]
pub(super) struct Running {
    /// The caller; the local participant for a local call.
    pub(super) caller: Identity,
    pub(super) joins: Joins,
    /// The key of the call, if it is a local one.
    pub(super) own: Option<CallKey>,
    pub(super) call: CallId,
    pub(super) tool: ToolName,
    pub(super) began: Instant,
    pub(super) limit: Duration,
    /// The size of its arguments in bytes.
    pub(super) bytes: usize,
    /// The parts of a local call that are broadcast.
    pub(super) visibility: Visibility,
    /// Whether it runs in another system, which reports it.
    pub(super) is_reported: bool,
    pub(super) reported: Reported,
    /// Whether its caller is sent no progress.
    pub(super) is_silent: bool,
}

/// A job that has ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) job: Running,
    pub(super) outcome: Outcome,
}

/// The number and bytes of one caller's jobs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Held {
    pub(super) jobs: usize,
    /// The bytes of their arguments.
    pub(super) bytes: usize,
}

/// The progress of a job that was reported.
#[derive(Debug, Default)]
pub(super) struct Reported {
    at: Option<Instant>,
    /// The last update that was reported too soon after another.
    next: Option<Progress>,
    /// Whether the job has started: it has reported something.
    began: bool,
}

impl Reported {
    /// Returns whether the caller was sent progress, and so knows that the job started.
    pub(super) fn anything(&self) -> bool {
        self.at.is_some()
    }

    /// Returns whether the job started.
    pub(super) fn began(&self) -> bool {
        self.began
    }
}

impl Jobs {
    pub(super) fn len(&self) -> usize {
        self.running.len()
    }

    pub(super) fn keys(&self) -> Vec<JobKey> {
        self.running.keys().copied().collect()
    }

    /// Returns the jobs of this caller whose tools stop at a barge-in.
    pub(super) fn cancellable_for(&self, cx: &Context, caller: &Identity) -> Vec<JobKey> {
        let rule = |tool: &ToolName| cx.local.tool(tool.as_str()).map(|it| it.tool_options().barge_in);
        // A tool that was withdrawn while it ran has no rule any more, and a barge-in stops tools by default.
        let is_cancelled = |tool: &ToolName| rule(tool).unwrap_or(BargeIn::Cancel) == BargeIn::Cancel;
        self.keys_of(caller, |job| is_cancelled(&job.tool))
    }

    /// Returns these jobs of this caller.
    pub(super) fn keys_of(&self, caller: &Identity, which: impl Fn(&Running) -> bool) -> Vec<JobKey> {
        let its = self.running.iter().filter(|(_, job)| job.caller == *caller && which(job));
        its.map(|(key, _)| *key).collect()
    }

    /// Continues these jobs of this caller in another join of it.
    pub(super) fn move_to(&mut self, join: &Sid, caller: &Identity, which: impl Fn(&Running) -> bool) {
        for job in self.running.values_mut().filter(|job| job.caller == *caller && which(job)) {
            job.joins.last = join.clone();
        }
    }

    /// Returns the number and bytes of this caller's jobs.
    pub(super) fn held_by(&self, caller: &Identity) -> Held {
        self.held.get(caller).copied().unwrap_or_default()
    }

    /// Returns the number of open prompts of this caller.
    pub(super) fn prompts_of(&self, caller: &Identity) -> usize {
        self.running.values().filter(|job| job.caller == *caller && job.tool.is_prompt()).count()
    }

    /// Adds a job that runs in another system.
    pub(super) fn begin_reported(&mut self, cx: &mut Context, key: JobKey, running: Running) {
        cx.log.started(cx.now, &running.caller, &running.call);
        self.insert(key, Running { is_reported: true, ..running });
    }

    /// Returns the number of jobs that run in another system.
    pub(super) fn reported(&self) -> usize {
        self.reported
    }

    /// Removes a job without reporting its last progress.
    pub(super) fn forget(&mut self, cx: &mut Context, key: JobKey) -> Option<Running> {
        cx.timers.cancel(&Timer::JobDeadline(key));
        cx.timers.cancel(&Timer::Progress(key));
        self.consents.forget(cx, key);
        let job = self.running.remove(&key)?;
        self.reported -= usize::from(job.is_reported);
        if let Some(held) = self.held.get_mut(&job.caller) {
            held.jobs -= 1;
            held.bytes -= job.bytes;
            if held.jobs == 0 {
                self.held.remove(&job.caller);
            }
        }
        Some(job)
    }

    fn insert(&mut self, key: JobKey, running: Running) {
        let held = self.held.entry(running.caller.clone()).or_default();
        held.jobs += 1;
        held.bytes += running.bytes;
        self.reported += usize::from(running.is_reported);
        self.running.insert(key, running);
    }
}

impl Core {
    /// Starts a job, after a person's consent if its tool needs that. Returns the job as ended if too many questions
    /// are open.
    pub(super) fn start_job(
        &mut self,
        key: JobKey,
        running: Running,
        arguments: Value,
        meta: Value,
    ) -> Option<Ended> {
        let Self { cx, peers, jobs, .. } = self;
        cx.count(Counter::Jobs);
        cx.log.request_size(&running.caller, &running.call, &arguments);
        let deadline = later(running.began, running.limit);
        let began = running.began;
        if running.own.is_none() {
            // From the arrival of the request: a claim that had to wait for its grant does not lengthen the
            // budget.
            cx.timers.set(running.began, Timer::JobDeadline(key), running.limit);
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
        jobs.insert(key, running);
        let run = run_of(peers, &job.caller);
        jobs.ask_or_execute(cx, began, job, run)
    }

    /// Ends a job with its outcome, from the driver or the session itself.
    pub(super) fn finish_job(&mut self, key: JobKey, outcome: Outcome) -> Option<Ended> {
        // Before `take_job`, which would send held progress: the result itself says that the tool has started.
        if let Some(job) = self.jobs.running.get_mut(&key).filter(|job| !job.reported.anything()) {
            job.reported.next = None;
        }
        let job = self.take_job(key)?;
        if let Some(source) = outcome.as_ref().err().and_then(ToolError::source) {
            let reason = LocalText::new(&source.to_string());
            self.cx.event(Event::ToolFailed { call: job.call.clone(), tool: job.tool.clone(), reason });
        }
        Some(Ended { job, outcome })
    }

    /// Stops a job and notifies the driver.
    pub(super) fn abort_job(&mut self, key: JobKey, reason: StopReason, error: ToolError) -> Option<Ended> {
        let job = self.take_job(key)?;
        self.cx.output(Output::Abort { key, reason });
        Some(Ended { job, outcome: Err(error) })
    }

    /// Ends a job whose time limit has passed.
    pub(super) fn time_out_job(&mut self, key: JobKey) -> Option<Ended> {
        let limit = self.jobs.running.get(&key)?.limit;
        let text = format!("no result within {} ms", limit.as_millis());
        self.abort_job(key, StopReason::Deadline, ToolError::new(ErrorCode::TIMEOUT, text))
    }

    /// Reports a job's progress to its caller. At most as many updates a second are sent as [`Caps`](super::Caps)
    /// allow; the last is sent later.
    pub(super) fn report_progress(&mut self, key: JobKey, progress: Progress) {
        let Self { cx, peers, delivery, jobs } = self;
        let interval = Duration::from_secs(1) / cx.config.caps.requests.progress_per_second.max(1);
        let Some(job) = jobs.running.get_mut(&key) else { return };
        let may_wait = delivery.lane_is_open(cx, peers, &job.caller);
        job.reported.began = true;
        job.limit_run(cx, key);
        if !job.reported.anything() {
            if let Some(began) = job.reported.next.take() {
                cx.timers.cancel(&Timer::Progress(key));
                job.send_progress(cx, peers, delivery, began);
            // On the fast lane the start waits for the result, which replaces it if it follows within 5 ms.
            // So a quick call costs three packets and not five (`wire.md`, section 5.8).
            } else if may_wait && is_bare(&progress) {
                job.reported.next = Some(progress);
                return cx.set_timer(Timer::Progress(key), ANSWER_SOON);
            }
        }
        if job.reported.at.is_some_and(|at| cx.now.saturating_duration_since(at) >= interval)
            && let Some(before) = job.reported.next.take()
        {
            // The held update is due now, although its timer has not been handled. It comes first.
            cx.timers.cancel(&Timer::Progress(key));
            job.send_progress(cx, peers, delivery, before);
        }
        match job.reported.at.map(|at| cx.now.saturating_duration_since(at)) {
            Some(since) if since < interval => {
                if job.reported.next.replace(progress).is_some() {
                    cx.count(Counter::ProgressDropped);
                } else {
                    cx.set_timer(Timer::Progress(key), interval - since);
                }
            }
            _ => job.send_progress(cx, peers, delivery, progress),
        }
    }

    /// Sends the last update of a job, which was reported too soon after another.
    pub(super) fn report_due(&mut self, key: JobKey) {
        let Self { cx, peers, delivery, jobs } = self;
        let Some(job) = jobs.running.get_mut(&key) else { return };
        if let Some(progress) = job.reported.next.take() {
            job.send_progress(cx, peers, delivery, progress);
        }
    }

    /// Removes a job after sending its last progress.
    fn take_job(&mut self, key: JobKey) -> Option<Running> {
        // The last update is sent before the outcome, since a caller ignores progress of a settled call.
        self.report_due(key);
        self.jobs.forget(&mut self.cx, key)
    }
}

impl Running {
    /// Begins the tool's own limit, which covers the run and not what precedes it. A later report finds that less is left.
    fn limit_run(&mut self, cx: &mut Context, key: JobKey) {
        let left = later(self.began, self.limit).saturating_duration_since(cx.now);
        if let Some(own) = cx.local.tool(self.tool.as_str()).and_then(|tool| tool.tool_options().timeout)
            && !self.is_reported
            && own < left
        {
            self.limit = own;
            cx.set_timer(Timer::JobDeadline(key), own);
        }
    }

    fn send_progress(
        &mut self,
        cx: &mut Context,
        peers: &Peers,
        delivery: &mut Delivery,
        progress: Progress,
    ) {
        let is_start = !self.reported.anything();
        self.reported.at = Some(cx.now);
        let call = self.call.clone();
        let progress = fitted(progress, cx.config.caps.requests.progress_bytes);
        cx.log.started(cx.now, &self.caller, &call);
        let mut update = ToolProgress::new(call.clone(), progress.status);
        if self.own.is_some() {
            (update.content, update.message) = (progress.content.clone(), progress.message.clone());
            Discloser { cx, peers, delivery }.show_progress(self.visibility, is_start, &update);
            return cx.event(Event::Progress { key: self.own, call, progress });
        }
        (update.content, update.message) = (progress.content, progress.message);
        if self.is_silent {
            return;
        }
        let message = Message::ToolProgress(update);
        let caller = &self.caller;
        // Progress is not kept for a caller that is away: it is old when the caller returns, and its result
        // says all.
        if peers.get(caller).is_some_and(|it| it.lists(Feature::Progress) && it.is_reachable()) {
            delivery.to(cx, peers, caller).post_small(&message, None);
        }
        delivery.copy(cx, peers, &Meta::default(), &message);
    }
}

/// Returns whether an update only states that the tool has started.
fn is_bare(progress: &Progress) -> bool {
    progress.message.is_none() && progress.content.is_none()
}

/// Removes what is for the model alone, and cuts progress to the allowed size: first the structured content is dropped, then
/// the end of the text.
pub(super) fn fitted(mut progress: Progress, limit: usize) -> Progress {
    progress.content = progress.content.map(|content| stripped(&content));
    let text = progress.message.as_ref().map_or(0, String::len);
    if text + progress.content.as_ref().map_or(0, |content| content.as_bytes().len()) > limit {
        progress.content = None;
    }
    if let Some(message) = &mut progress.message {
        message.truncate(floor_char(message, limit));
    }
    progress
}
