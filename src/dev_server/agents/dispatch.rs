//! Holds one dispatch: an agent that a room is to have, and its job.

use std::{collections::BTreeSet, mem, time::Instant};

use livekit_protocol::{
    self as proto, AgentDispatch, AgentDispatchState, DisconnectReason, Job, JobState, JobStatus,
    JobTermination, JobType, RoomAgentDispatch, server_message::Message as ToWorker,
};

use super::{
    AgentOutput, Presence, Removal, WorkerKey,
    limits::{MAX_ERROR, OFFER_LIMIT, RETURN_LIMIT},
};

/// A dispatch. It alone changes its stage.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) id: String,
    pub(super) agent: RoomAgentDispatch,
    /// The room when it was dispatched, with its present metadata.
    pub(super) room: proto::Room,
    /// The worker that alone can have it, because it asked for a simulated job.
    pub(super) only: Option<WorkerKey>,
    /// The workers that declined it.
    declined: BTreeSet<WorkerKey>,
    stage: Stage,
    created: Instant,
    created_ms: i64,
}

/// What has become of a dispatch.
#[derive(Debug)]
enum Stage {
    /// It has no worker, and waits for one. It may have a job, which was declined.
    Waiting(Option<Job>),
    /// It was offered to a worker.
    Offered { worker: WorkerKey, job: Job, until: Instant },
    /// A worker runs it, or an agent without its worker.
    Running(Work),
    /// The connections of the worker and of its agent have ended. Both may come back: until then nobody else gets a job, and
    /// then as long as nobody else has one.
    Lost { work: Work, until: Option<Instant> },
    /// Its job ended, which this worker had.
    Ended { worker: WorkerKey, job: Job },
}

/// A job that was assigned.
#[derive(Debug)]
struct Work {
    job: Job,
    /// The worker, while it is connected.
    worker: Option<WorkerKey>,
    /// The identity of the agent.
    identity: String,
    presence: Presence,
}

impl Default for Stage {
    fn default() -> Self {
        Self::Waiting(None)
    }
}

impl Dispatch {
    pub(super) fn new(
        id: String,
        (created, created_ms): (Instant, i64),
        room: proto::Room,
        agent: RoomAgentDispatch,
    ) -> Self {
        let (declined, stage) = Default::default();
        Self { id, agent, room, only: None, declined, stage, created, created_ms }
    }

    /// Returns it as the API shows it.
    pub(super) fn info(&self) -> AgentDispatch {
        let job = match &self.stage {
            Stage::Offered { job, .. } | Stage::Ended { job, .. } => Some(job),
            Stage::Running(work) | Stage::Lost { work, until: Some(_) } => Some(&work.job),
            Stage::Waiting(_) | Stage::Lost { until: None, .. } => None,
        };
        let created_at = self.created_ms.saturating_mul(1_000_000);
        AgentDispatch {
            id: self.id.clone(),
            agent_name: self.agent.agent_name.clone(),
            room: self.room.name.clone(),
            metadata: self.agent.metadata.clone(),
            attributes: self.agent.attributes.clone(),
            deployment: self.agent.deployment.clone(),
            restart_policy: self.agent.restart_policy,
            state: Some(AgentDispatchState {
                jobs: job.cloned().into_iter().collect(),
                created_at,
                ..Default::default()
            }),
        }
    }

    /// Returns when its next timeout is.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Offered { until, .. } => Some(*until),
            Stage::Lost { until, .. } => *until,
            _ => None,
        }
    }

    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_) | Stage::Lost { until: None, .. })
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended { .. })
    }

    /// Returns whether this worker was offered this job.
    pub(super) fn is_offered(&self, to: WorkerKey, id: &str) -> bool {
        matches!(&self.stage, Stage::Offered { worker, job, .. } if *worker == to && job.id == id)
    }

    /// Returns whether this worker runs this job.
    pub(super) fn is_run(&self, by: WorkerKey, id: &str) -> bool {
        matches!(&self.stage, Stage::Running(work) if work.worker == Some(by) && work.job.id == id)
    }

    /// Returns whether a worker may be asked: it has not declined, and no other one asked for the job.
    pub(super) fn may_ask(&self, worker: WorkerKey) -> bool {
        self.only.is_none_or(|only| only == worker) && !self.declined.contains(&worker)
    }

    /// Offers its job to a worker. A new job gets this id.
    pub(super) fn offer(&mut self, now: Instant, worker: WorkerKey, id: String) -> Job {
        let job = match mem::take(&mut self.stage) {
            Stage::Waiting(Some(job)) => job,
            _ => self.job(id),
        };
        self.stage = Stage::Offered { worker, job: job.clone(), until: now + OFFER_LIMIT };
        job
    }

    /// The worker declined the job, which others are asked for.
    pub(super) fn decline(&mut self, worker: WorkerKey) {
        self.declined.insert(worker);
        self.withdraw(worker);
    }

    /// A worker that declined because it was full can be asked again.
    pub(super) fn forgive(&mut self, worker: WorkerKey) {
        self.declined.remove(&worker);
    }

    /// The worker, which registered with an id, accepted the job. Returns the job.
    pub(super) fn accept(&mut self, now: Instant, id: &str, identity: &str) -> Option<Job> {
        let at = self.unix_nanos(now);
        let Stage::Offered { worker, job, .. } = &mut self.stage else { return None };
        let (worker, mut job) = (Some(*worker), mem::take(job));
        let state = job.state.get_or_insert_default();
        id.clone_into(&mut state.worker_id);
        identity.clone_into(&mut state.participant_identity);
        (state.started_at, state.updated_at) = (at, at);
        let (identity, presence) = (identity.to_owned(), Presence::Absent);
        self.stage = Stage::Running(Work { job: job.clone(), worker, identity, presence });
        Some(job)
    }

    /// The job that a worker has ended.
    pub(super) fn finish(&mut self, now: Instant, status: JobStatus, error: &str) {
        let at = self.unix_nanos(now);
        let (worker, mut job) = match mem::take(&mut self.stage) {
            Stage::Offered { worker, job, .. } | Stage::Running(Work { worker: Some(worker), job, .. }) => {
                (worker, job)
            }
            other => return self.stage = other,
        };
        let state = job.state.get_or_insert_default();
        state.status = status.into();
        state.error = error.chars().take(MAX_ERROR).collect();
        (state.ended_at, state.updated_at) = (at, at);
        self.stage = Stage::Ended { worker, job };
    }

    /// A worker registered. A job that has ended is followed by another one if its worker has gone: it was restarted.
    pub(super) fn revive(&mut self, is_connected: impl Fn(&WorkerKey) -> bool) {
        if matches!(&self.stage, Stage::Ended { worker, .. } if !is_connected(worker)) {
            self.stage = Stage::default();
        }
    }

    /// Handles its timeout if that is due. Returns the agent to remove.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Removal> {
        self.due().filter(|due| now >= *due)?;
        let room = &self.room.name;
        if let Stage::Offered { job, .. } = &self.stage {
            tracing::warn!(room, job = job.id, "an agent's job is lost: no answer from the worker in 3 s");
            self.finish(now, JobStatus::JsFailed, "the worker did not answer within 3 s");
            return None;
        }
        let removal = self.removal(DisconnectReason::SignalClose);
        if let Stage::Lost { work, until } = &mut self.stage {
            tracing::info!(
                room,
                job = work.job.id,
                "an agent's job is offered again: it is lost with its worker"
            );
            *until = None;
        }
        removal
    }

    /// A worker disconnected.
    pub(super) fn handle_worker_closed(&mut self, now: Instant, key: WorkerKey) {
        self.forgive(key);
        self.withdraw(key);
        self.update(now, |work| {
            work.worker.take_if(|it| *it == key);
        });
    }

    /// A worker reports that it still runs these jobs.
    pub(super) fn handle_migrated(&mut self, now: Instant, key: WorkerKey, jobs: &[String]) {
        self.update(now, |work| {
            if work.worker.is_none() && jobs.contains(&work.job.id) {
                work.worker = Some(key);
            }
        });
    }

    /// The presence of a participant changed. Returns the message for the worker whose job ended with that.
    pub(super) fn handle_presence(
        &mut self,
        now: Instant,
        identity: &str,
        presence: Presence,
    ) -> Option<AgentOutput> {
        let mut has_left = false;
        self.update(now, |work| {
            if work.identity == identity
                && (work.presence != Presence::Absent || presence == Presence::Connected)
            {
                has_left = presence == Presence::Absent;
                work.presence = presence;
            }
        });
        let termination = self.termination().filter(|_| has_left)?;
        self.finish(now, JobStatus::JsFailed, "the agent left the room");
        Some(termination)
    }

    /// Returns the message that ends its job, if a worker runs it.
    pub(super) fn termination(&self) -> Option<AgentOutput> {
        let Stage::Running(Work { job, worker: Some(worker), .. }) = &self.stage else { return None };
        let termination = JobTermination { job_id: job.id.clone() };
        Some(AgentOutput::Send(*worker, Box::new(ToWorker::Termination(termination))))
    }

    /// Returns its agent, to be removed for this reason, if that is in the room.
    pub(super) fn removal(&self, reason: DisconnectReason) -> Option<Removal> {
        let (Stage::Running(work) | Stage::Lost { work, .. }) = &self.stage else { return None };
        let (room, identity) = (self.room.name.clone(), work.identity.clone());
        (work.presence != Presence::Absent).then_some(Removal { room, identity, reason })
    }

    /// Takes an offer back. The next worker gets the same job.
    fn withdraw(&mut self, from: WorkerKey) {
        if let Stage::Offered { worker, job, .. } = &mut self.stage
            && *worker == from
        {
            self.stage = Stage::Waiting(Some(mem::take(job)));
        }
    }

    /// Changes the work. It is lost while the connections of its worker and of its agent have ended.
    fn update(&mut self, now: Instant, change: impl FnOnce(&mut Work)) {
        let (mut work, until) = match mem::take(&mut self.stage) {
            Stage::Running(work) => (work, Some(now + RETURN_LIMIT)),
            Stage::Lost { work, until } => (work, until),
            other => return self.stage = other,
        };
        change(&mut work);
        let is_lost = work.worker.is_none() && work.presence != Presence::Connected;
        self.stage = if is_lost { Stage::Lost { work, until } } else { Stage::Running(work) };
    }

    /// Makes its job.
    fn job(&self, id: String) -> Job {
        Job {
            id,
            dispatch_id: self.id.clone(),
            r#type: JobType::JtRoom.into(),
            room: Some(self.room.clone()),
            metadata: self.agent.metadata.clone(),
            attributes: self.agent.attributes.clone(),
            agent_name: self.agent.agent_name.clone(),
            deployment: self.agent.deployment.clone(),
            state: Some(JobState { status: JobStatus::JsRunning.into(), ..Default::default() }),
            ..Default::default()
        }
    }

    fn unix_nanos(&self, now: Instant) -> i64 {
        let since = now.saturating_duration_since(self.created).as_millis();
        let ms = self.created_ms.saturating_add(i64::try_from(since).unwrap_or(i64::MAX));
        ms.saturating_mul(1_000_000)
    }
}
