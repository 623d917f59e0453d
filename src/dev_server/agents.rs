//! Dispatches jobs to the workers of livekit-agents. It has no I/O, no clock and no randomness.
//!
//! Each room has dispatches: those that were asked for by name, or one without a name. A dispatch is a job that one worker
//! gets. It is offered to a worker, which accepts, declines or stays silent; a worker that accepts is assigned the job with
//! a token for the room. Unlike in livekit-server, a dispatch whose worker is missing waits for the next one that registers.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    time::{Duration, Instant},
};

use livekit_protocol::{
    self as proto, AgentDispatch, AvailabilityRequest, AvailabilityResponse, Job, JobStatus, JobTermination,
    ParticipantPermission, RegisterWorkerRequest, RegisterWorkerResponse, RoomAgentDispatch, ServerInfo,
    SimulateJobRequest, UpdateJobStatus, UpdateWorkerStatus, WorkerPong, server_message::Message as ToWorker,
    worker_message::Message as FromWorker,
};

mod dispatch;
#[cfg(test)]
mod tests;
mod worker;

use dispatch::{Dispatch, Stage, Work};
use worker::{Registration, Worker};

use super::limits::{self, MAX_NAME, Refusal};

/// The maximum number of connected workers.
const MAX_WORKERS: usize = 32;
/// The maximum number of dispatches of one room.
const MAX_PER_ROOM: usize = 16;
/// The maximum number of dispatches in all rooms: each keeps up to 128 kB of metadata and attributes.
const MAX_DISPATCHES: usize = 512;
/// The time in which a worker must register, as in livekit-server.
const REGISTER_LIMIT: Duration = Duration::from_secs(10);
/// The time in which a worker must answer an offer, as measured with livekit-server.
const OFFER_LIMIT: Duration = Duration::from_secs(3);
/// The time that an agent has to come back when it is lost together with its worker's connection. Then its job is offered
/// again.
const RETURN_LIMIT: Duration = Duration::from_secs(2);
/// The time after which an agent leaves whose dispatch was deleted, as in livekit-server.
const REMOVE_DELAY: Duration = Duration::from_secs(3);
/// The version of the workers' protocol.
const AGENT_PROTOCOL: i32 = 1;

/// The id of a worker's connection. Never reused.
pub(super) type WorkerKey = u64;

/// An action for the server's task.
#[derive(Debug)]
pub(super) enum AgentOutput {
    /// Send a message to a worker.
    Send(WorkerKey, Box<ToWorker>),
    /// Assign a job to a worker, with a token that carries what it answered.
    Assign(WorkerKey, Box<Assignment>),
    /// Close a worker's connection for this reason.
    Close(WorkerKey, &'static str),
}

/// A job that a worker accepted.
#[derive(Debug)]
pub(super) struct Assignment {
    pub(super) job: Job,
    pub(super) answer: AvailabilityResponse,
    pub(super) permission: ParticipantPermission,
}

/// Why a dispatch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DispatchError {
    /// The request exceeds a limit.
    Invalid(&'static str),
    /// An agent with this name has been dispatched to the room.
    Exists,
}

/// The workers, and the dispatches of all rooms.
#[derive(Debug)]
pub(super) struct Agents {
    workers: BTreeMap<WorkerKey, Worker>,
    rooms: BTreeMap<String, Vec<Dispatch>>,
    /// The agents of deleted dispatches: when they leave, their room and their identity.
    removals: Vec<(Instant, String, String)>,
    server: ServerInfo,
    /// Makes ids of different servers different.
    run: String,
    /// The number of the last id.
    last: u64,
    /// When to call `handle_timeout` next.
    due: Option<Instant>,
    outputs: VecDeque<AgentOutput>,
}

/// Checks the agents that are dispatched to a new room.
///
/// # Errors
/// They exceed a limit.
pub(super) fn check(agents: &[RoomAgentDispatch]) -> Result<(), &'static str> {
    if agents.len() > MAX_PER_ROOM {
        return Err("too many agents: at most 16 can be dispatched to a room");
    }
    agents.iter().try_for_each(check_one)
}

fn check_one(agent: &RoomAgentDispatch) -> Result<(), &'static str> {
    if agent.agent_name.len() > MAX_NAME || agent.deployment.len() > MAX_NAME {
        return Err("the agent's name or deployment exceeds 256 bytes");
    }
    limits::check(&agent.metadata, &agent.attributes).map_err(|Refusal(_, why)| why)
}

impl Agents {
    /// Creates the state without workers. `run` is a text that makes ids unique.
    pub(super) fn new(server: ServerInfo, run: String) -> Self {
        Self {
            workers: BTreeMap::new(),
            rooms: BTreeMap::new(),
            removals: Vec::new(),
            server: ServerInfo { agent_protocol: AGENT_PROTOCOL, node_id: format!("ND_{run}"), ..server },
            run,
            last: 0,
            due: None,
            outputs: VecDeque::new(),
        }
    }

    /// Returns the next action.
    pub(super) fn poll_output(&mut self) -> Option<AgentOutput> {
        self.outputs.pop_front()
    }

    /// Returns when to call `handle_timeout` next.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Handles due timeouts. Returns the rooms and identities of the agents to remove.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<(String, String)> {
        let late = self.workers.iter().filter(|(_, worker)| worker.register_by().is_some_and(|by| now >= by));
        for key in late.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.reject(now, key, "no registration within 10 s");
        }
        for dispatch in self.rooms.values_mut().flatten() {
            match &mut dispatch.stage {
                Stage::Offered { worker, job, until } if now >= *until => {
                    let room = &dispatch.room.name;
                    tracing::warn!(
                        room,
                        job = job.id,
                        "an agent's job is lost: no answer from the worker in 3 s"
                    );
                    let (worker, job) = (*worker, mem::take(job));
                    dispatch.end(
                        now,
                        worker,
                        job,
                        JobStatus::JsFailed,
                        "the worker did not answer within 3 s",
                    );
                }
                Stage::Waiting { from, .. } => {
                    from.take_if(|from| now >= *from);
                }
                _ => {}
            }
        }
        self.offer_all(now);
        let due = self.removals.extract_if(.., |(due, ..)| now >= *due);
        let removed = due.map(|(_, room, identity)| (room, identity)).collect();
        self.forget_simulated();
        self.update_due();
        removed
    }

    /// A worker connected.
    ///
    /// # Errors
    /// The limit is reached.
    pub(super) fn handle_worker(&mut self, now: Instant, key: WorkerKey) -> Result<(), Refusal> {
        if self.workers.len() >= MAX_WORKERS {
            return Err(Refusal(503, "the server has reached its limit of agent workers"));
        }
        self.workers.insert(key, Worker::new(now + REGISTER_LIMIT));
        self.update_due();
        Ok(())
    }

    /// A worker sent a message. An invalid one, described by the error, closes the connection, as in livekit-server.
    pub(super) fn handle_message(
        &mut self,
        (now, unix_ms): (Instant, i64),
        key: WorkerKey,
        message: Result<Box<FromWorker>, &'static str>,
    ) {
        let Some(worker) = self.workers.get(&key) else { return };
        match (message.map(|message| *message), worker.registration.is_some()) {
            (Err(why), _) => self.reject(now, key, why),
            (Ok(FromWorker::Ping(ping)), _) => {
                let pong = WorkerPong { last_timestamp: ping.timestamp, timestamp: unix_ms };
                self.send(key, ToWorker::Pong(pong));
            }
            (Ok(FromWorker::Register(request)), false) => self.register(now, key, request),
            (Ok(_), false) => self.reject(now, key, "the first message must be a registration"),
            (Ok(FromWorker::Register(_)), true) => self.reject(now, key, "the worker is already registered"),
            (Ok(FromWorker::UpdateWorker(status)), true) => self.update_worker(now, key, &status),
            (Ok(FromWorker::Availability(answer)), true) => self.handle_answer(now, key, answer),
            (Ok(FromWorker::UpdateJob(status)), true) => self.update_job(now, key, &status),
            (Ok(FromWorker::SimulateJob(request)), true) => self.simulate((now, unix_ms), key, request),
            (Ok(FromWorker::MigrateJob(jobs)), true) => self.migrate(key, &jobs.job_ids),
        }
        self.update_due();
    }

    /// A worker's connection ended. What it was offered is offered to another worker. Its agents have connections of their
    /// own, and stay.
    pub(super) fn handle_worker_closed(&mut self, now: Instant, key: WorkerKey) {
        let Some(worker) = self.workers.remove(&key) else { return };
        if let Some(Registration { id, agent_name, .. }) = worker.registration {
            tracing::info!(worker = id, agent_name, "an agent worker disconnected");
        }
        for room in self.rooms.values_mut() {
            room.retain(|dispatch| dispatch.only != Some(key));
            room.iter_mut().for_each(|dispatch| dispatch.handle_worker_closed(now, key));
        }
        self.rooms.retain(|_, room| !room.is_empty());
        self.offer_all(now);
        self.update_due();
    }

    /// A room opened. Without agents of its own, it gets the one of a worker without a name.
    pub(super) fn open(
        &mut self,
        (now, unix_ms): (Instant, i64),
        room: &proto::Room,
        agents: &[RoomAgentDispatch],
    ) {
        let automatic = [RoomAgentDispatch::default()];
        for agent in if agents.is_empty() { &automatic } else { agents } {
            if let Err(error) = self.add((now, unix_ms), room, agent.clone()) {
                tracing::warn!(
                    room = room.name,
                    agent = agent.agent_name,
                    ?error,
                    "an agent is not dispatched"
                );
            }
        }
        self.offer_all(now);
        self.update_due();
    }

    /// Dispatches an agent to a room that is open.
    ///
    /// # Errors
    /// A limit is reached, or this agent was dispatched before.
    pub(super) fn create(
        &mut self,
        (now, unix_ms): (Instant, i64),
        room: &proto::Room,
        agent: RoomAgentDispatch,
    ) -> Result<AgentDispatch, DispatchError> {
        let id = self.add((now, unix_ms), room, agent)?;
        self.offer_all(now);
        self.update_due();
        let all = self.rooms.get(&room.name).into_iter().flatten();
        Ok(all.filter(|it| it.id == id).map(Dispatch::info).next().unwrap_or_default())
    }

    /// Returns the dispatches of a room, or the one with this id.
    pub(super) fn list(&self, room: &str, id: &str) -> Vec<AgentDispatch> {
        let all = self.rooms.get(room).into_iter().flatten();
        all.filter(|it| it.only.is_none() && (id.is_empty() || it.id == id)).map(Dispatch::info).collect()
    }

    /// Deletes a dispatch and ends its job; its agent is removed 3 s later. Returns the dispatch if there was one.
    pub(super) fn delete(&mut self, now: Instant, room: &str, id: &str) -> Option<AgentDispatch> {
        let all = self.rooms.get_mut(room)?;
        let at = all.iter().position(|it| it.only.is_none() && it.id == id)?;
        let deleted = all.remove(at);
        let info = deleted.info();
        if let Stage::Running(work) = deleted.stage {
            self.terminate(&work);
            if work.joined {
                self.removals.retain(|(_, of, identity)| of != room || *identity != work.identity);
                self.removals.push((now + REMOVE_DELAY, room.to_owned(), work.identity));
            }
        }
        self.update_due();
        Some(info)
    }

    /// The metadata of a room changed. Jobs that are not assigned yet get it.
    pub(super) fn handle_room_updated(&mut self, room: &proto::Room) {
        for dispatch in self.rooms.get_mut(&room.name).into_iter().flatten() {
            dispatch.room.clone_from(room);
        }
    }

    /// A room closed. Its jobs end.
    pub(super) fn close(&mut self, room: &str) {
        for dispatch in self.rooms.remove(room).unwrap_or_default() {
            if let Stage::Running(work) = dispatch.stage {
                self.terminate(&work);
            }
        }
        self.removals.retain(|(_, of, _)| of != room);
        self.update_due();
    }

    /// A participant joined a room. It may be an agent, also one that is back.
    pub(super) fn handle_joined(&mut self, room: &str, identity: &str) {
        let all = self.rooms.get_mut(room).into_iter().flatten();
        all.for_each(|dispatch| dispatch.handle_joined(identity));
        self.update_due();
    }

    /// A participant left a room. If it is an agent, its job ends. If its worker has gone as well, it may come back.
    pub(super) fn handle_left(&mut self, now: Instant, room: &str, identity: &str) {
        let all = self.rooms.get_mut(room).into_iter().flatten();
        let ended: Vec<_> = all.filter_map(|dispatch| dispatch.handle_left(now, identity)).collect();
        for (worker, job) in ended {
            self.send(worker, ToWorker::Termination(JobTermination { job_id: job }));
        }
        self.forget_simulated();
        self.update_due();
    }

    fn register(&mut self, now: Instant, key: WorkerKey, request: RegisterWorkerRequest) {
        if request.agent_name.len() > MAX_NAME || request.deployment.len() > MAX_NAME {
            return self.reject(now, key, "the agent's name or deployment exceeds 256 bytes");
        }
        let Ok(kind) = proto::JobType::try_from(request.r#type) else {
            return self.reject(now, key, "unknown job type");
        };
        if kind != proto::JobType::JtRoom {
            tracing::warn!(
                kind = kind.as_str_name(),
                "an agent worker gets no jobs: this development server has jobs for rooms only, none for participants or tracks"
            );
        }
        let registration = Registration::new(self.id("AW"), kind, request);
        let response = RegisterWorkerResponse {
            worker_id: registration.id.clone(),
            server_info: Some(self.server.clone()),
            ..Default::default()
        };
        tracing::info!(
            worker = registration.id,
            agent_name = registration.agent_name,
            "an agent worker registered"
        );
        if let Some(worker) = self.workers.get_mut(&key) {
            worker.registration = Some(registration);
        }
        self.send(key, ToWorker::Register(response));
        // Rooms whose job has ended with its worker get a new one: the worker was restarted.
        for dispatch in self.rooms.values_mut().flatten() {
            if let Stage::Ended { worker, .. } = dispatch.stage
                && !self.workers.contains_key(&worker)
            {
                dispatch.stage = Stage::waiting();
            }
        }
        self.offer_all(now);
    }

    fn update_worker(&mut self, now: Instant, key: WorkerKey, status: &UpdateWorkerStatus) {
        let Some(worker) = self.workers.get_mut(&key) else { return };
        if worker.update(status) {
            // It declined because it was full.
            for dispatch in self.rooms.values_mut().flatten() {
                dispatch.declined.remove(&key);
            }
            self.offer_all(now);
        }
    }

    fn handle_answer(&mut self, now: Instant, key: WorkerKey, mut answer: AvailabilityResponse) {
        let offered = |it: &&mut Dispatch| it.is_offered(key, &answer.job_id);
        let Some(dispatch) = self.rooms.values_mut().flatten().find(offered) else {
            return tracing::debug!(job = answer.job_id, "a worker answered an offer that it does not have");
        };
        let Stage::Offered { job, .. } = mem::replace(&mut dispatch.stage, Stage::waiting()) else { return };
        let room = dispatch.room.name.clone();
        if !answer.available && answer.terminate {
            dispatch.end(now, key, job, JobStatus::JsSuccess, "");
        } else if !answer.available {
            tracing::debug!(room, job = job.id, "a worker declined a job");
            dispatch.declined.insert(key);
            dispatch.stage = Stage::Waiting { from: None, job: Some(Box::new(job)), lost: None };
            self.offer_all(now);
        } else if answer.participant_identity.len() > MAX_NAME
            || answer.participant_name.len() > MAX_NAME
            || limits::check(&answer.participant_metadata, &answer.participant_attributes).is_err()
        {
            const WHY: &str = "identity, name, metadata or attributes in the worker's answer are too large";
            tracing::warn!(room, job = job.id, "an agent's job is lost: {WHY}");
            dispatch.end(now, key, job, JobStatus::JsFailed, WHY);
        } else if let Some(Registration { id, permission, .. }) =
            self.workers.get(&key).and_then(|worker| worker.registration.as_ref())
        {
            if answer.participant_identity.is_empty() {
                answer.participant_identity = format!("agent-{}", job.id);
            }
            let job = dispatch.run(now, key, id, &answer.participant_identity, job);
            let assignment = Assignment { job, answer, permission: permission.clone() };
            self.outputs.push_back(AgentOutput::Assign(key, Box::new(assignment)));
        }
        self.forget_simulated();
    }

    fn update_job(&mut self, now: Instant, key: WorkerKey, status: &UpdateJobStatus) {
        let end = match status.status() {
            end @ (JobStatus::JsSuccess | JobStatus::JsFailed) => end,
            JobStatus::JsPending | JobStatus::JsRunning => return,
        };
        let runs = |it: &&mut Dispatch| it.work().is_some_and(|work| work.is_of(key, &status.job_id));
        if let Some(dispatch) = self.rooms.values_mut().flatten().find(runs)
            && let Stage::Running(work) = mem::replace(&mut dispatch.stage, Stage::waiting())
        {
            dispatch.end(now, key, work.job, end, &status.error);
        }
        self.forget_simulated();
    }

    /// Offers a job for any room to the worker that asked for it.
    fn simulate(&mut self, (now, unix_ms): (Instant, i64), key: WorkerKey, request: SimulateJobRequest) {
        let room = request.room.unwrap_or_default();
        if room.name.is_empty() || room.name.len() > MAX_NAME {
            return self.reject(now, key, "a simulated job needs a room with a name of 1 to 256 bytes");
        }
        if self.count() >= MAX_DISPATCHES {
            return tracing::warn!(limit = MAX_DISPATCHES, "a simulated job is dropped: too many dispatches");
        }
        let Some(worker) = self.workers.get(&key).and_then(|worker| worker.registration.as_ref()) else {
            return;
        };
        let agent = RoomAgentDispatch {
            agent_name: worker.agent_name.clone(),
            deployment: worker.deployment.clone(),
            ..Default::default()
        };
        let name = room.name.clone();
        let mut dispatch = Dispatch::new(self.id("AD"), (now, unix_ms), room, agent);
        dispatch.only = Some(key);
        self.rooms.entry(name).or_default().push(dispatch);
        self.offer_all(now);
    }

    /// A worker that has reconnected reports the jobs that it still runs.
    fn migrate(&mut self, key: WorkerKey, jobs: &[String]) {
        let Some(worker) = self.workers.get(&key).and_then(|worker| worker.registration.as_ref()) else {
            return;
        };
        for dispatch in self.rooms.values_mut().flatten().filter(|dispatch| worker.matches(dispatch)) {
            dispatch.handle_migrated(key, jobs);
        }
    }

    /// Adds a dispatch to a room. One that has ended gives way to one for the same agent.
    fn add(
        &mut self,
        (now, unix_ms): (Instant, i64),
        room: &proto::Room,
        agent: RoomAgentDispatch,
    ) -> Result<String, DispatchError> {
        check_one(&agent).map_err(DispatchError::Invalid)?;
        let id = self.id("AD");
        let count = self.count();
        let all = self.rooms.entry(room.name.clone()).or_default();
        let same = all.iter().position(|it| it.only.is_none() && it.agent.agent_name == agent.agent_name);
        if same.is_some_and(|at| !all[at].has_ended()) {
            return Err(DispatchError::Exists);
        }
        if let Some(at) = same {
            all.remove(at);
        } else if all.len() >= MAX_PER_ROOM || count >= MAX_DISPATCHES {
            // The oldest of this room that has ended is forgotten.
            let Some(at) = all.iter().position(Dispatch::has_ended) else {
                return Err(DispatchError::Invalid(
                    "too many dispatches: at most 16 in a room and 512 in all",
                ));
            };
            all.remove(at);
        }
        all.push(Dispatch::new(id.clone(), (now, unix_ms), room.clone(), agent));
        Ok(id)
    }

    /// Offers each dispatch that waits to a worker, if there is one for it.
    fn offer_all(&mut self, now: Instant) {
        for dispatch in self.rooms.values_mut().flatten() {
            if !matches!(dispatch.stage, Stage::Waiting { from: None, .. }) {
                continue;
            }
            let fits = |(key, worker): &(&WorkerKey, &mut Worker)| {
                let declined = dispatch.declined.contains(*key);
                let is_asked = dispatch.only.is_none_or(|only| only == **key);
                is_asked && !declined && worker.takes(dispatch)
            };
            let order = |(_, a): &(_, &mut Worker), (_, b): &(_, &mut Worker)| a.compare(b);
            let Some((key, worker)) = self.workers.iter_mut().filter(fits).min_by(order) else { continue };
            self.last += 1;
            worker.last_offer = self.last;
            let job = match mem::replace(&mut dispatch.stage, Stage::waiting()) {
                Stage::Waiting { job: Some(job), .. } => *job,
                _ => dispatch.job(format!("AJ_{}{:06}", self.run, self.last)),
            };
            let offer = AvailabilityRequest { job: Some(job.clone()), resuming: false };
            self.outputs.push_back(AgentOutput::Send(*key, Box::new(ToWorker::Availability(offer))));
            dispatch.stage = Stage::Offered { worker: *key, job, until: now + OFFER_LIMIT };
        }
    }

    /// Closes a worker's connection.
    fn reject(&mut self, now: Instant, key: WorkerKey, why: &'static str) {
        tracing::warn!("an agent worker was disconnected: {why}");
        self.outputs.push_back(AgentOutput::Close(key, why));
        self.handle_worker_closed(now, key);
    }

    fn terminate(&mut self, work: &Work) {
        if let Some(worker) = work.worker {
            self.send(worker, ToWorker::Termination(JobTermination { job_id: work.job.id.clone() }));
        }
    }

    fn send(&mut self, key: WorkerKey, message: ToWorker) {
        self.outputs.push_back(AgentOutput::Send(key, Box::new(message)));
    }

    /// Forgets simulated jobs that have ended: nobody lists them.
    fn forget_simulated(&mut self) {
        for room in self.rooms.values_mut() {
            room.retain(|it| it.only.is_none() || !it.has_ended());
        }
        self.rooms.retain(|_, room| !room.is_empty());
    }

    /// Returns the number of connected workers.
    #[cfg(test)]
    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }

    fn count(&self) -> usize {
        self.rooms.values().map(Vec::len).sum()
    }

    fn id(&mut self, prefix: &str) -> String {
        self.last += 1;
        format!("{prefix}_{}{:06}", self.run, self.last)
    }

    /// Updates the next timeout, which is asked for with each packet.
    fn update_due(&mut self) {
        let workers = self.workers.values().filter_map(Worker::register_by);
        let dispatches = self.rooms.values().flatten().filter_map(Dispatch::due);
        let removals = self.removals.iter().map(|(due, ..)| *due);
        self.due = workers.chain(dispatches).chain(removals).min();
    }
}
