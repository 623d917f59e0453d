//! Holds one dispatch: an agent that a room is to have, and its job.

use std::{collections::BTreeSet, mem, time::Instant};

use livekit_protocol::{
    self as proto, AgentDispatch, AgentDispatchState, Job, JobState, JobStatus, JobType, RoomAgentDispatch,
};

use super::{RETURN_LIMIT, WorkerKey};

/// The maximum length of the error of a job that is kept, in characters.
const MAX_ERROR: usize = 1000;

/// A dispatch.
#[derive(Debug)]
pub(super) struct Dispatch {
    pub(super) id: String,
    pub(super) agent: RoomAgentDispatch,
    /// The room when it was dispatched, with its present metadata.
    pub(super) room: proto::Room,
    /// The worker that alone can have it, because it asked for a simulated job.
    pub(super) only: Option<WorkerKey>,
    /// The workers that declined it.
    pub(super) declined: BTreeSet<WorkerKey>,
    pub(super) stage: Stage,
    created: Instant,
    created_ms: i64,
}

/// What has become of a dispatch.
#[derive(Debug)]
pub(super) enum Stage {
    /// It has no worker. It is offered to the next one, not before `from`.
    Waiting {
        from: Option<Instant>,
        /// The job that was declined.
        job: Option<Box<Job>>,
        /// The agent that was lost with its worker, and may come back.
        lost: Option<Box<Work>>,
    },
    /// It was offered to a worker.
    Offered { worker: WorkerKey, job: Job, until: Instant },
    /// A worker runs it.
    Running(Work),
    /// Its job ended, which this worker had.
    Ended { worker: WorkerKey, job: Job },
}

/// A job that runs.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) job: Job,
    /// The worker, while it is connected.
    pub(super) worker: Option<WorkerKey>,
    /// The identity of the agent.
    pub(super) identity: String,
    /// Whether the agent is in the room.
    pub(super) joined: bool,
}

impl Work {
    /// Returns whether it is this job of this worker.
    pub(super) fn is_of(&self, worker: WorkerKey, job: &str) -> bool {
        self.worker == Some(worker) && self.job.id == job
    }
}

impl Stage {
    pub(super) fn waiting() -> Self {
        Self::Waiting { from: None, job: None, lost: None }
    }
}

impl Dispatch {
    pub(super) fn new(
        id: String,
        (created, created_ms): (Instant, i64),
        room: proto::Room,
        agent: RoomAgentDispatch,
    ) -> Self {
        let stage = Stage::waiting();
        Self { id, agent, room, only: None, declined: BTreeSet::new(), stage, created, created_ms }
    }

    /// Makes its job.
    pub(super) fn job(&self, id: String) -> Job {
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

    /// Returns it as the API shows it.
    pub(super) fn info(&self) -> AgentDispatch {
        let job = match &self.stage {
            Stage::Waiting { .. } => None,
            Stage::Offered { job, .. } | Stage::Ended { job, .. } => Some(job.clone()),
            Stage::Running(work) => Some(work.job.clone()),
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
                jobs: job.into_iter().collect(),
                created_at,
                ..Default::default()
            }),
        }
    }

    /// Returns when its next timeout is.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Waiting { from, .. } => *from,
            Stage::Offered { until, .. } => Some(*until),
            Stage::Running(_) | Stage::Ended { .. } => None,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended { .. })
    }

    pub(super) fn work(&self) -> Option<&Work> {
        match &self.stage {
            Stage::Running(work) => Some(work),
            _ => None,
        }
    }

    /// Returns whether this worker was offered this job.
    pub(super) fn is_offered(&self, to: WorkerKey, id: &str) -> bool {
        matches!(&self.stage, Stage::Offered { worker, job, .. } if *worker == to && job.id == id)
    }

    /// A worker accepted the job. Returns it.
    pub(super) fn run(
        &mut self,
        now: Instant,
        key: WorkerKey,
        worker: &str,
        identity: &str,
        mut job: Job,
    ) -> Job {
        let at = self.unix_nanos(now);
        let state = job.state.get_or_insert_default();
        worker.clone_into(&mut state.worker_id);
        identity.clone_into(&mut state.participant_identity);
        (state.started_at, state.updated_at) = (at, at);
        let identity = identity.to_owned();
        self.stage = Stage::Running(Work { job: job.clone(), worker: Some(key), identity, joined: false });
        job
    }

    /// The job that a worker had ended.
    pub(super) fn end(
        &mut self,
        now: Instant,
        worker: WorkerKey,
        mut job: Job,
        status: JobStatus,
        error: &str,
    ) {
        let at = self.unix_nanos(now);
        let state = job.state.get_or_insert_default();
        state.status = status.into();
        state.error = error.chars().take(MAX_ERROR).collect();
        (state.ended_at, state.updated_at) = (at, at);
        self.stage = Stage::Ended { worker, job };
    }

    /// A worker disconnected.
    pub(super) fn handle_worker_closed(&mut self, now: Instant, key: WorkerKey) {
        self.declined.remove(&key);
        match &mut self.stage {
            Stage::Offered { worker, job, .. } if *worker == key => {
                let job = Some(Box::new(mem::take(job)));
                self.stage = Stage::Waiting { from: None, job, lost: None };
            }
            Stage::Running(work) if work.worker == Some(key) => {
                work.worker = None;
                if !work.joined {
                    self.lose(now);
                }
            }
            _ => {}
        }
    }

    /// A worker reports that it still runs these jobs.
    pub(super) fn handle_migrated(&mut self, key: WorkerKey, jobs: &[String]) {
        match &mut self.stage {
            Stage::Running(work) if work.worker.is_none() && jobs.contains(&work.job.id) => {
                work.worker = Some(key);
            }
            Stage::Waiting { lost, .. } => {
                if let Some(mut work) = lost.take_if(|lost| jobs.contains(&lost.job.id)) {
                    work.worker = Some(key);
                    self.stage = Stage::Running(*work);
                }
            }
            _ => {}
        }
    }

    /// A participant joined the room.
    pub(super) fn handle_joined(&mut self, identity: &str) {
        match &mut self.stage {
            Stage::Running(work) if work.identity == identity => work.joined = true,
            Stage::Waiting { lost, .. } => {
                if let Some(mut work) = lost.take_if(|lost| lost.identity == identity) {
                    work.joined = true;
                    self.stage = Stage::Running(*work);
                }
            }
            _ => {}
        }
    }

    /// A participant left the room. Returns the worker and the id of the job that ended with that.
    pub(super) fn handle_left(&mut self, now: Instant, identity: &str) -> Option<(WorkerKey, String)> {
        let Stage::Running(work) = &mut self.stage else { return None };
        if work.identity != identity || !work.joined {
            return None;
        }
        work.joined = false;
        let Some(worker) = work.worker else {
            self.lose(now);
            return None;
        };
        let job = mem::take(&mut work.job);
        let id = job.id.clone();
        self.end(now, worker, job, JobStatus::JsFailed, "the agent left the room");
        Some((worker, id))
    }

    /// The agent and its worker have gone. Both may come back.
    fn lose(&mut self, now: Instant) {
        if let Stage::Running(work) = mem::replace(&mut self.stage, Stage::waiting()) {
            let from = Some(now + RETURN_LIMIT);
            self.stage = Stage::Waiting { from, job: None, lost: Some(Box::new(work)) };
        }
    }

    fn unix_nanos(&self, now: Instant) -> i64 {
        let since = now.saturating_duration_since(self.created).as_millis();
        let ms = self.created_ms.saturating_add(i64::try_from(since).unwrap_or(i64::MAX));
        ms.saturating_mul(1_000_000)
    }
}
