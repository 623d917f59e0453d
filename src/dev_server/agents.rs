//! Dispatches jobs to the workers of livekit-agents. It has no I/O, no clock and no randomness.
//!
//! Each room has dispatches: those that were asked for by name, or one without a name. A dispatch is a job that one worker
//! gets. It is offered to a worker, which accepts, declines or stays silent; a worker that accepts is assigned the job with
//! a token for the room. Unlike in livekit-server, a dispatch whose worker is missing waits for the next one that registers.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Instant,
};

use livekit_protocol::{
    self as proto, AgentDispatch, AvailabilityRequest, AvailabilityResponse, DisconnectReason, Job,
    JobStatus, ParticipantPermission, RegisterWorkerRequest, RegisterWorkerResponse, RoomAgentDispatch,
    ServerInfo, SimulateJobRequest, UpdateJobStatus, UpdateWorkerStatus, WorkerPong,
    server_message::Message as ToWorker, worker_message::Message as FromWorker,
};

mod dispatch;
mod limits;
#[cfg(test)]
mod tests;
mod worker;

pub(super) use limits::check;

use dispatch::Dispatch;
use limits::{
    MAX_DISPATCHES, MAX_PER_ROOM, MAX_WORKERS, REGISTER_LIMIT, REMOVE_DELAY, allow, check_agent, check_names,
};
use worker::{Registration, Worker};

use super::limits::{MAX_NAME, Refusal};

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

/// Whether a participant, which may be an agent, is in its room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presence {
    Absent,
    /// It is, but its signaling connection has ended.
    Disconnected,
    Connected,
}

/// An agent that the rooms are to remove.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) room: String,
    pub(super) identity: String,
    pub(super) reason: DisconnectReason,
}

/// Why a dispatch is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DispatchError {
    /// The request exceeds a limit.
    Invalid(&'static str),
    /// An agent with this name has been dispatched to the room.
    Exists,
}

/// The workers, and the dispatches of all rooms. Each input ends in `settle`.
#[derive(Debug)]
pub(super) struct Agents {
    workers: BTreeMap<WorkerKey, Worker>,
    rooms: BTreeMap<String, Vec<Dispatch>>,
    /// The agents of deleted dispatches, and when they leave.
    removals: Vec<(Instant, Removal)>,
    server: ServerInfo,
    /// Makes ids of different servers different.
    run: String,
    /// The number of the last id.
    last: u64,
    /// When to call `handle_timeout` next. It is asked for with each packet.
    due: Option<Instant>,
    outputs: VecDeque<AgentOutput>,
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

    /// Handles due timeouts. Returns the agents to remove.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Removal> {
        let late = self.workers.iter().filter(|(_, worker)| worker.register_by().is_some_and(|by| now >= by));
        for key in late.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.reject(now, key, "no registration within 10 s");
        }
        let due = self.removals.extract_if(.., |(due, _)| now >= *due).map(|(_, removal)| removal);
        let lost = self.rooms.values_mut().flatten().filter_map(|dispatch| dispatch.expire(now));
        let removed = due.chain(lost).collect();
        self.settle(now);
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
        self.settle(now);
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
            (Ok(FromWorker::UpdateWorker(status)), true) => self.update_worker(key, &status),
            (Ok(FromWorker::Availability(answer)), true) => self.handle_answer(now, key, answer),
            (Ok(FromWorker::UpdateJob(status)), true) => self.update_job(now, key, &status),
            (Ok(FromWorker::SimulateJob(request)), true) => self.simulate((now, unix_ms), key, request),
            (Ok(FromWorker::MigrateJob(jobs)), true) => self.migrate(now, key, &jobs.job_ids),
        }
        self.settle(now);
    }

    /// A worker's connection ended. What it was offered is offered to another worker. Its agents have connections of their
    /// own, and stay while these are open.
    pub(super) fn handle_worker_closed(&mut self, now: Instant, key: WorkerKey) {
        self.remove_worker(now, key);
        self.settle(now);
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
        self.settle(now);
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
        self.settle(now);
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
        self.outputs.extend(deleted.termination());
        if let Some(removal) = deleted.removal(DisconnectReason::ParticipantRemoved) {
            self.removals.retain(|(_, it)| it.room != room || it.identity != removal.identity);
            self.removals.push((now + REMOVE_DELAY, removal));
        }
        self.settle(now);
        Some(deleted.info())
    }

    /// The metadata of a room changed. Jobs that are not assigned yet get it.
    pub(super) fn handle_room_updated(&mut self, room: &proto::Room) {
        for dispatch in self.rooms.get_mut(&room.name).into_iter().flatten() {
            dispatch.room.clone_from(room);
        }
    }

    /// A room closed. Its jobs end.
    pub(super) fn close(&mut self, now: Instant, room: &str) {
        let closed = self.rooms.remove(room).unwrap_or_default();
        self.outputs.extend(closed.iter().filter_map(Dispatch::termination));
        self.removals.retain(|(_, removal)| removal.room != room);
        self.settle(now);
    }

    /// The presence of a participant changed. The job of an agent that leaves ends. An agent whose connection and whose
    /// worker's have ended may come back for a limited time.
    pub(super) fn handle_presence(&mut self, now: Instant, room: &str, identity: &str, presence: Presence) {
        let all = self.rooms.get_mut(room).into_iter().flatten();
        self.outputs.extend(all.filter_map(|dispatch| dispatch.handle_presence(now, identity, presence)));
        self.settle(now);
    }

    fn register(&mut self, now: Instant, key: WorkerKey, request: RegisterWorkerRequest) {
        if let Err(why) = check_names(&request.agent_name, &request.deployment) {
            return self.reject(now, key, why);
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
        for dispatch in self.rooms.values_mut().flatten() {
            dispatch.revive(|worker| self.workers.contains_key(worker));
        }
    }

    fn update_worker(&mut self, key: WorkerKey, status: &UpdateWorkerStatus) {
        if self.workers.get_mut(&key).is_some_and(|worker| worker.update(status)) {
            // It declined because it was full.
            self.rooms.values_mut().flatten().for_each(|dispatch| dispatch.forgive(key));
        }
    }

    fn handle_answer(&mut self, now: Instant, key: WorkerKey, mut answer: AvailabilityResponse) {
        let offered = |it: &&mut Dispatch| it.is_offered(key, &answer.job_id);
        let Some(dispatch) = self.rooms.values_mut().flatten().find(offered) else {
            return tracing::debug!(job = answer.job_id, "a worker answered an offer that it does not have");
        };
        let room = &dispatch.room.name;
        if !answer.available && answer.terminate {
            dispatch.finish(now, JobStatus::JsSuccess, "");
        } else if !answer.available {
            tracing::debug!(room, job = answer.job_id, "a worker declined a job");
            dispatch.decline(key);
        } else if !allow(&answer) {
            const WHY: &str = "identity, name, metadata or attributes in the worker's answer are too large";
            tracing::warn!(room, job = answer.job_id, "an agent's job is lost: {WHY}");
            dispatch.finish(now, JobStatus::JsFailed, WHY);
        } else if let Some(Registration { id, permission, .. }) =
            self.workers.get(&key).and_then(|worker| worker.registration.as_ref())
        {
            if answer.participant_identity.is_empty() {
                answer.participant_identity = format!("agent-{}", answer.job_id);
            }
            let Some(job) = dispatch.accept(now, id, &answer.participant_identity) else { return };
            let assignment = Assignment { job, answer, permission: permission.clone() };
            self.outputs.push_back(AgentOutput::Assign(key, Box::new(assignment)));
        }
    }

    fn update_job(&mut self, now: Instant, key: WorkerKey, status: &UpdateJobStatus) {
        let end = match status.status() {
            end @ (JobStatus::JsSuccess | JobStatus::JsFailed) => end,
            JobStatus::JsPending | JobStatus::JsRunning => return,
        };
        let runs = |it: &&mut Dispatch| it.is_run(key, &status.job_id);
        if let Some(dispatch) = self.rooms.values_mut().flatten().find(runs) {
            dispatch.finish(now, end, &status.error);
        }
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
    }

    /// A worker that has reconnected reports the jobs that it still runs.
    fn migrate(&mut self, now: Instant, key: WorkerKey, jobs: &[String]) {
        let Some(worker) = self.workers.get(&key).and_then(|worker| worker.registration.as_ref()) else {
            return;
        };
        for dispatch in self.rooms.values_mut().flatten().filter(|dispatch| worker.matches(dispatch)) {
            dispatch.handle_migrated(now, key, jobs);
        }
    }

    /// Adds a dispatch to a room. One that has ended gives way to one for the same agent.
    fn add(
        &mut self,
        (now, unix_ms): (Instant, i64),
        room: &proto::Room,
        agent: RoomAgentDispatch,
    ) -> Result<String, DispatchError> {
        check_agent(&agent).map_err(DispatchError::Invalid)?;
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

    /// Closes a worker's connection.
    fn reject(&mut self, now: Instant, key: WorkerKey, why: &'static str) {
        tracing::warn!("an agent worker was disconnected: {why}");
        self.outputs.push_back(AgentOutput::Close(key, why));
        self.remove_worker(now, key);
    }

    fn remove_worker(&mut self, now: Instant, key: WorkerKey) {
        let Some(worker) = self.workers.remove(&key) else { return };
        if let Some(Registration { id, agent_name, .. }) = worker.registration {
            tracing::info!(worker = id, agent_name, "an agent worker disconnected");
        }
        self.rooms.values_mut().flatten().for_each(|dispatch| dispatch.handle_worker_closed(now, key));
    }

    /// Brings everything up to date after an input: forgets simulated jobs that have ended or whose worker has gone, since
    /// nobody lists them; offers each job that waits, if there is a worker for it; updates the next timeout.
    fn settle(&mut self, now: Instant) {
        self.rooms.retain(|_, room| {
            room.retain(|it| {
                let is_over = |only| it.has_ended() || (it.is_waiting() && !self.workers.contains_key(&only));
                !it.only.is_some_and(is_over)
            });
            !room.is_empty()
        });
        for dispatch in self.rooms.values_mut().flatten().filter(|it| it.is_waiting()) {
            let fits =
                |(key, worker): &(&WorkerKey, &mut Worker)| dispatch.may_ask(**key) && worker.takes(dispatch);
            let order = |(_, a): &(_, &mut Worker), (_, b): &(_, &mut Worker)| a.compare(b);
            let Some((key, worker)) = self.workers.iter_mut().filter(fits).min_by(order) else { continue };
            self.last += 1;
            worker.last_offer = self.last;
            let job = dispatch.offer(now, *key, format!("AJ_{}{:06}", self.run, self.last));
            let offer = AvailabilityRequest { job: Some(job), resuming: false };
            self.outputs.push_back(AgentOutput::Send(*key, Box::new(ToWorker::Availability(offer))));
        }
        let workers = self.workers.values().filter_map(Worker::register_by);
        let dispatches = self.rooms.values().flatten().filter_map(Dispatch::due);
        let removals = self.removals.iter().map(|(due, _)| *due);
        self.due = workers.chain(dispatches).chain(removals).min();
    }

    fn send(&mut self, key: WorkerKey, message: ToWorker) {
        self.outputs.push_back(AgentOutput::Send(key, Box::new(message)));
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
}
