//! The work of processes: they run tools, abort them, and ask for consent.

use toolbridge::{
    CallId, Event, Progress, Tool, ToolError, Value,
    session::{Job, JobKey, Question},
};

use crate::{
    actions::{Answer, Arguments},
    joins::tools_of,
    random::Random,
    reach::Reach,
    room::Scheduled,
    rules::Rule,
    schedule::{Actor, Behavior},
    world::{Program, World},
};

/// The number of updates that a tool reports after its first.
const PROGRESS: u32 = 20;

/// A consent question that waits for its answer.
#[derive(Debug)]
pub(crate) struct OpenQuestion {
    call: CallId,
    tool: Tool,
}

impl World<'_> {
    /// Asks a person for consent: the answer is yes or no after some time, or never comes.
    pub(crate) fn ask_for_consent(&mut self, process: usize, question: &Question) {
        let actor = self.processes[process].actor;
        let Some(call) = self.ledger.by_id.get(&question.call).copied() else {
            let text = format!("{actor} asks for consent to {:?}, which was never requested", question.call);
            return self.ledger.broken(Rule::Unauthorized, text);
        };
        trace!(self, "{actor} asks for consent to {:?}", question.call);
        if self.processes[process].allowed.remove(&question.key).is_some() {
            self.ledger.reached.note(Reach::ConsentAskedAgain);
        }
        let open = OpenQuestion { call: question.call.clone(), tool: question.tool.clone() };
        self.processes[process].questions.insert(question.key, open);
        let mut dice = Random::of(self.room.seed, &[8, process as u64, call as u64]);
        let (wait, drawn) = (dice.pick(&[0, 40, 900, 4_000]), dice.below(100));
        if drawn < 75 {
            let allowed = drawn < 55;
            self.room.after(wait, Scheduled::PersonAnswers { process, key: question.key, allowed });
        } else {
            self.ledger.reached.note(Reach::ConsentUnanswered);
        }
    }

    /// Answers a consent question. The answer has no effect if the question was withdrawn.
    pub(crate) fn person_answers(&mut self, process: usize, key: JobKey, allowed: bool) {
        if let Some(question) = self.processes[process].questions.remove(&key)
            && allowed
        {
            trace!(self, "the person at {} allows {:?}", self.processes[process].actor, question.call);
            if question.tool.name().as_str() == "careful" {
                let caller = self.caller_of(&question.call);
                let granted = caller.map(|caller| (question.tool.name().clone(), caller));
                self.processes[process].granted.extend(granted);
            }
            self.processes[process].allowed.insert(key, question.tool);
        }
        self.drive(process, |session, now| session.consent(now, key, allowed));
    }

    /// Returns whether a job has the consent that its tool requires.
    fn has_consent(&self, process: usize, job: &Job) -> bool {
        let it = &self.processes[process];
        let granted = |caller| it.granted.contains(&(job.tool.clone(), caller));
        // Consent covers the tool as the person was shown it.
        let offered = tools_of(it.actor, it.edition, self.schedule.cast.consent);
        let allowed = it.allowed.get(&job.key).is_some_and(|shown| offered.contains(shown));
        match job.tool.as_str() {
            "grave" => allowed,
            "careful" => allowed || self.caller_of(&job.call).is_some_and(granted),
            _ => true,
        }
    }

    fn caller_of(&self, call: &CallId) -> Option<usize> {
        self.ledger.by_id.get(call).map(|at| self.ledger.calls[*at].caller)
    }

    /// Aborts a job, or withdraws its consent question.
    pub(crate) fn aborts(&mut self, process: usize, key: JobKey) {
        let it = &mut self.processes[process];
        if let Some((id, ..)) = it.jobs.remove(&key) {
            trace!(self, "{} aborts {id:?}", self.processes[process].actor);
            self.ledger.ended(process, &id, None);
        } else if it.questions.remove(&key).is_none() && !self.schedule.cast.consent {
            // With consent, a question may be withdrawn before it was polled.
            let text = format!("{} aborts {key:?}, which does not run", it.actor);
            self.ledger.broken(Rule::HandlerAborted, text);
        }
    }

    pub(crate) fn execute(&mut self, process: usize, job: &Job) {
        let behavior = Arguments::read(&job.arguments);
        let it = &mut self.processes[process];
        let name = it.actor.to_string();
        trace!(self, "{name} starts {:?} of {} ({behavior:?})", job.call, job.caller);
        let it = &mut self.processes[process];
        it.jobs.insert(job.key, (job.call.clone(), behavior, job.caller.clone()));
        let ran = behavior != Behavior::BadArguments;
        if job.tool.as_str() == "both" && matches!(it.actor, Actor::Client(_)) {
            self.ledger.reached.note(Reach::ClaimGranted);
        }
        // A request that was accepted before may still start once consent is given.
        let it = &self.processes[process];
        if it.drained && !it.allowed.contains_key(&job.key) {
            let text = format!("{name} starts {:?} after it was drained", job.call);
            self.ledger.broken(Rule::OneStart, text);
        }
        if !self.has_consent(process, job) {
            let text = format!("{name} starts {:?} without consent", job.call);
            self.ledger.broken(Rule::Consent, text);
        }
        self.ledger.started(process, &name, &job.caller, &job.call, ran);
        let now = self.now();
        if let Program::Bridge(session) = &mut self.processes[process].program
            && ran
        {
            session.progress(now, job.key, Progress::started());
        }
        if let Some(takes) = behavior.takes() {
            self.room.after(takes, Scheduled::JobEnds { process, key: job.key });
        }
        if behavior == Behavior::Progresses {
            self.room.after(10, Scheduled::JobProgress { process, key: job.key, left: PROGRESS });
        }
    }

    pub(crate) fn job_progress(&mut self, process: usize, key: JobKey, left: u32) {
        if !self.processes[process].jobs.contains_key(&key) {
            return;
        }
        // Every third update has no text.
        let progress = match (PROGRESS - left) % 3 {
            0 => Progress::started(),
            _ => Progress::started().message((PROGRESS - left).to_string()),
        };
        self.drive(process, |session, now| session.progress(now, key, progress));
        if left > 0 {
            self.room.after(30, Scheduled::JobProgress { process, key, left: left - 1 });
        }
    }

    pub(crate) fn job_ends(&mut self, process: usize, key: JobKey) {
        let Some((id, behavior, _)) = self.processes[process].jobs.remove(&key) else {
            // The job was aborted before it returned: settling it has no effect.
            self.drive(process, |session, now| session.settle(now, key, Ok(Value::empty())));
            return;
        };
        let outcome = match behavior {
            Behavior::Fails => Err(ToolError::new("odd", "it went wrong")),
            Behavior::Panics => {
                Err(ToolError::new("execution_error", ToolError::LOCAL_MESSAGE).with_source("a panic"))
            }
            Behavior::BadArguments => Err(ToolError::new("invalid_parameters", "at /n: not a number")),
            Behavior::FailsAsBusy => Err(ToolError::new("busy", "the printer is busy")),
            _ => Ok(Answer::body(process, &id, behavior)),
        };
        trace!(self, "{} settles {id:?}", self.processes[process].actor);
        self.ledger.ended(process, &id, Some(outcome.is_ok()));
        self.drive(process, |session, now| session.settle(now, key, outcome));
    }

    pub(crate) fn event(&mut self, process: usize, event: &Event) {
        if let Event::ConsentVoid { .. } = event {
            self.ledger.reached.note(Reach::ConsentVoid);
        }
        if self.tracing
            && !matches!(event, Event::Frame { .. } | Event::Progress { .. } | Event::Requested { .. })
        {
            trace!(self, "     {}: {event:?}", self.processes[process].actor);
        }
        if let Event::Progress { key: Some(_), call, progress } = event
            && let Some(number) = progress.message.as_ref().and_then(|text| text.parse().ok())
        {
            self.ledger.progressed(call, number);
        }
        if let Event::LateResult { call, .. } = event {
            self.ledger.reached.note(Reach::LateResult);
            let ended = self.ledger.by_id.get(call).and_then(|at| self.ledger.calls[*at].outcome.as_ref());
            let detached = ended.is_some_and(|(verdict, _)| verdict.outcome == "detached");
            let text = format!("{call:?} has a late result after it ended as {ended:?}");
            if !detached || !self.ledger.late.insert(call.clone()) {
                self.ledger.broken(Rule::OneOutcome, text);
            }
        }
        if let Event::Delivered { call, owner } = event
            && !self.ledger.was_delivered(call)
        {
            let text = format!("{call:?} is reported as delivered to {owner}, which did not receive it");
            self.ledger.broken(Rule::OwnersResult, text);
        }
    }
}
