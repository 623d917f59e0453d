//! What processes do beside talking: they run tools, stop them, and ask persons.

use toolbridge::{CallId, Event, Job, JobKey, Progress, Question, Tool, ToolError, Value};

use crate::{
    acts::{Answer, Arguments},
    joins::tools_of,
    random::Random,
    reach::Reach,
    room::Happens,
    rules::Rule,
    schedule::{How, Who},
    world::{Program, World},
};

/// A question that waits for its answer.
#[derive(Debug)]
pub(crate) struct Asking {
    call: CallId,
    tool: Tool,
}

impl World<'_> {
    /// A person is asked: the answer is yes, no or silence, sooner or later.
    pub(crate) fn person_is_asked(&mut self, process: usize, question: &Question) {
        let who = self.processes[process].who;
        let Some(call) = self.ledger.by_id.get(&question.call).copied() else {
            let text = format!("{who} asks its person about {:?}, which nobody asked for", question.call);
            return self.ledger.broken(Rule::Stranger, text);
        };
        trace!(self, "{who} asks its person about {:?}", question.call);
        if self.processes[process].allowed.remove(&question.key).is_some() {
            self.ledger.reached.note(Reach::ConsentAskedAgain);
        }
        let asking = Asking { call: question.call.clone(), tool: question.tool.clone() };
        self.processes[process].questions.insert(question.key, asking);
        let mut dice = Random::of(self.room.seed, &[8, process as u64, call as u64]);
        let (wait, says) = (dice.pick(&[0, 40, 900, 4_000]), dice.below(100));
        if says < 75 {
            let allowed = says < 55;
            self.room.after(wait, Happens::PersonAnswers { process, key: question.key, allowed });
        } else {
            self.ledger.reached.note(Reach::PersonSilent);
        }
    }

    /// The answer of a person; it does nothing if the question was withdrawn.
    pub(crate) fn person_answers(&mut self, process: usize, key: JobKey, allowed: bool) {
        if let Some(asked) = self.processes[process].questions.remove(&key)
            && allowed
        {
            trace!(self, "the person at {} allows {:?}", self.processes[process].who, asked.call);
            if asked.tool.name().as_str() == "careful" {
                let caller = self.caller_of(&asked.call);
                let granted = caller.map(|caller| (asked.tool.name().clone(), caller));
                self.processes[process].granted.extend(granted);
            }
            self.processes[process].allowed.insert(key, asked.tool);
        }
        self.drive(process, |session, now| session.consent(now, key, allowed));
    }

    /// Whether a job that is given out has its person's yes, if it needs one.
    fn has_consent(&self, process: usize, job: &Job) -> bool {
        let it = &self.processes[process];
        let granted = |caller| it.granted.contains(&(job.tool.clone(), caller));
        // A yes is to the tool as the person was shown it.
        let offered = tools_of(it.who, it.edition, self.schedule.cast.asks);
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

    /// A job is stopped, or the question before it withdrawn.
    pub(crate) fn aborts(&mut self, process: usize, key: JobKey) {
        let it = &mut self.processes[process];
        if let Some((id, ..)) = it.jobs.remove(&key) {
            trace!(self, "{} stops {id:?}", self.processes[process].who);
            self.ledger.ended(process, &id, None);
        } else if it.questions.remove(&key).is_none() && !self.schedule.cast.asks {
            // Where persons are asked, a question may be withdrawn before anybody took it.
            let text = format!("{} stops {key:?}, which does not run", it.who);
            self.ledger.broken(Rule::StopHeard, text);
        }
    }

    pub(crate) fn execute(&mut self, process: usize, job: &Job) {
        let how = Arguments::read(&job.arguments);
        let it = &mut self.processes[process];
        let names = it.who.to_string();
        trace!(self, "{names} begins {:?} of {} ({how:?})", job.call, job.caller);
        let it = &mut self.processes[process];
        it.jobs.insert(job.key, (job.call.clone(), how, job.caller.clone()));
        let ran = how != How::BadArguments;
        if job.tool.as_str() == "both" && matches!(it.who, Who::C(_)) {
            self.ledger.reached.note(Reach::ClaimGranted);
        }
        // What was taken before goes on, once its person says yes.
        let it = &self.processes[process];
        if it.drained && !it.allowed.contains_key(&job.key) {
            let text = format!("{names} begins {:?}, and takes no more requests", job.call);
            self.ledger.broken(Rule::OneStart, text);
        }
        if !self.has_consent(process, job) {
            let text = format!("{names} begins {:?} without its person's yes", job.call);
            self.ledger.broken(Rule::Consent, text);
        }
        self.ledger.started(process, &names, &job.caller, &job.call, ran);
        let now = self.now();
        if let Program::Bridge(session) = &mut self.processes[process].program
            && ran
        {
            session.progress(now, job.key, Progress::started());
        }
        if let Some(takes) = how.takes() {
            self.room.after(takes, Happens::JobEnds { process, key: job.key });
        }
        if how == How::Talks {
            self.room.after(10, Happens::JobTalks { process, key: job.key, left: 20 });
        }
    }

    pub(crate) fn job_talks(&mut self, process: usize, key: JobKey, left: u32) {
        if !self.processes[process].jobs.contains_key(&key) {
            return;
        }
        self.drive(process, |session, now| session.progress(now, key, Progress::started()));
        if left > 0 {
            self.room.after(30, Happens::JobTalks { process, key, left: left - 1 });
        }
    }

    pub(crate) fn job_ends(&mut self, process: usize, key: JobKey) {
        let Some((id, how, _)) = self.processes[process].jobs.remove(&key) else {
            // It was stopped, and says so too late: nothing happens.
            self.drive(process, |session, now| session.settle(now, key, Ok(Value::empty())));
            return;
        };
        let outcome = match how {
            How::Fails => Err(ToolError::new("odd", "it went wrong")),
            How::Panics => {
                Err(ToolError::new("execution_error", ToolError::LOCAL_MESSAGE).with_source("a panic"))
            }
            How::BadArguments => Err(ToolError::new("invalid_parameters", "at /n: not a number")),
            How::SaysBusy => Err(ToolError::new("busy", "the printer is busy")),
            _ => Ok(Answer::body(process, &id, how)),
        };
        trace!(self, "{} ends {id:?}", self.processes[process].who);
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
            trace!(self, "     {}: {event:?}", self.processes[process].who);
        }
        if let Event::LateResult { call, .. } = event {
            self.ledger.reached.note(Reach::LateResult);
            let told = self.ledger.by_id.get(call).and_then(|at| self.ledger.calls[*at].outcome.as_ref());
            let detached = told.is_some_and(|(verdict, _)| verdict.word == "detached");
            let text = format!("{call:?} was told as {told:?}, and now ends once more");
            if !detached || !self.ledger.late.insert(call.clone()) {
                self.ledger.broken(Rule::OneOutcome, text);
            }
        }
        if let Event::Delivered { call, owner } = event
            && !self.ledger.was_delivered(call)
        {
            let text = format!("{call:?} is told as delivered to {owner}, which did not hear of it");
            self.ledger.broken(Rule::OwnersAnswer, text);
        }
    }
}
