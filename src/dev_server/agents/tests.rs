//! Tests the dispatch of jobs without I/O.

use std::time::Duration;

use livekit_protocol::{MigrateJobRequest, WorkerPing, WorkerStatus};

use super::{
    limits::{OFFER_LIMIT, RETURN_LIMIT},
    *,
};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    agents: Agents,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self { agents: Agents::new(ServerInfo::default(), "run".into()), now: Instant::now() }
    }

    fn say(&mut self, key: WorkerKey, message: FromWorker) {
        self.agents.handle_message((self.now, 1_000), key, Ok(Box::new(message)));
    }

    fn register(&mut self, key: WorkerKey, agent_name: &str) {
        self.agents.handle_worker(self.now, key).unwrap();
        self.say(key, FromWorker::Register(registration(agent_name)));
    }

    fn status(&mut self, key: WorkerKey, status: WorkerStatus, load: f32) {
        let status = UpdateWorkerStatus { status: Some(status.into()), load, ..Default::default() };
        self.say(key, FromWorker::UpdateWorker(status));
    }

    fn answer(&mut self, key: WorkerKey, job: &Job, available: bool) {
        let answer = AvailabilityResponse { job_id: job.id.clone(), available, ..Default::default() };
        self.say(key, FromWorker::Availability(answer));
    }

    fn open(&mut self, room: &str, agents: &[&str]) {
        let agents: Vec<_> = agents.iter().map(|name| agent(name)).collect();
        self.agents.open((self.now, 1_000), &named(room), &agents);
    }

    /// Returns a world whose worker 1 runs the job of the kitchen.
    fn with_job() -> (Self, Job) {
        let mut world = Self::new();
        world.register(1, "");
        world.open("kitchen", &[]);
        let job = world.run("kitchen");
        (world, job)
    }

    /// Changes the presence of a job's agent.
    fn turn(&mut self, job: &Job, presence: Presence) {
        let room = job.room.as_ref().unwrap();
        self.agents.handle_presence(self.now, &room.name, &identity(job), presence);
    }

    fn read(&mut self) -> Vec<AgentOutput> {
        std::iter::from_fn(|| self.agents.poll_output()).collect()
    }

    /// Returns the offers: the worker and the job of each.
    fn offers(&mut self) -> Vec<(WorkerKey, Job)> {
        let offer = |output| match output {
            AgentOutput::Send(key, message) => match *message {
                ToWorker::Availability(offer) => Some((key, offer.job?)),
                _ => None,
            },
            _ => None,
        };
        self.read().into_iter().filter_map(offer).collect()
    }

    fn offer(&mut self) -> (WorkerKey, Job) {
        let mut offers = self.offers();
        assert_eq!(offers.len(), 1, "{offers:?}");
        offers.remove(0)
    }

    /// Lets the worker accept the one job that it is offered, and its agent join.
    fn run(&mut self, room: &str) -> Job {
        let (key, job) = self.offer();
        self.answer(key, &job, true);
        assert!(matches!(&self.read()[..], [AgentOutput::Assign(to, _)] if *to == key));
        self.agents.handle_presence(self.now, room, &identity(&job), Presence::Connected);
        job
    }

    /// Returns the jobs whose end workers are told of.
    fn terminations(&mut self) -> Vec<(WorkerKey, String)> {
        let of = |output| match output {
            AgentOutput::Send(key, message) => match *message {
                ToWorker::Termination(termination) => Some((key, termination.job_id)),
                _ => None,
            },
            _ => None,
        };
        self.read().into_iter().filter_map(of).collect()
    }

    fn close_reason(&mut self, key: WorkerKey) -> Option<&'static str> {
        self.read().into_iter().find_map(|output| match output {
            AgentOutput::Close(of, why) if of == key => Some(why),
            _ => None,
        })
    }

    fn pass(&mut self, time: Duration) -> Vec<(String, String)> {
        self.now += time;
        let is_due = self.agents.poll_timeout().is_some_and(|due| due <= self.now);
        let removed = if is_due { self.agents.handle_timeout(self.now) } else { Vec::new() };
        removed.into_iter().map(|it| (it.room, it.identity)).collect()
    }

    fn job_status(&self, room: &str) -> Vec<JobStatus> {
        let all = self.agents.list(room, "").into_iter();
        all.flat_map(|it| it.state.unwrap().jobs).map(|job| job.state.unwrap().status()).collect()
    }
}

fn identity(job: &Job) -> String {
    format!("agent-{}", job.id)
}

fn registration(agent_name: &str) -> RegisterWorkerRequest {
    RegisterWorkerRequest { agent_name: agent_name.into(), ..Default::default() }
}

fn named(room: &str) -> proto::Room {
    proto::Room { name: room.into(), ..Default::default() }
}

fn agent(name: &str) -> RoomAgentDispatch {
    RoomAgentDispatch { agent_name: name.into(), ..Default::default() }
}

#[test]
fn room_gets_one_agent_of_the_least_loaded_worker_without_a_name() {
    let mut world = World::new();
    for (key, name) in [(1, ""), (2, ""), (3, "cook")] {
        world.register(key, name);
    }
    world.status(1, WorkerStatus::WsAvailable, 0.5);
    world.open("kitchen", &[]);
    let (key, job) = world.offer();
    assert_eq!((key, job.agent_name.as_str(), job.r#type()), (2, "", proto::JobType::JtRoom));
    assert_eq!(job.room.unwrap().name, "kitchen");
    // Of equal workers, the one that has waited for longer.
    world.status(1, WorkerStatus::WsAvailable, 0.0);
    world.open("cellar", &[]);
    assert_eq!(world.offer().0, 1);
}

#[test]
fn room_with_named_agents_gets_each_once_and_no_other() {
    let mut world = World::new();
    for (key, name) in [(1, ""), (2, "cook"), (3, "guard")] {
        world.register(key, name);
    }
    world.open("kitchen", &["cook", "guard", "cook"]);
    let keys: Vec<_> = world.offers().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [2, 3]);
}

#[test]
fn declined_job_moves_on_and_is_not_offered_twice_to_a_worker() {
    let mut world = World::new();
    world.register(1, "");
    world.register(2, "");
    world.open("kitchen", &[]);
    let (first, job) = world.offer();
    world.answer(first, &job, false);
    let (second, again) = world.offer();
    assert!(first != second && job.id == again.id);
    world.answer(second, &again, false);
    assert_eq!(world.offers(), []);
    // A worker that was full has room again.
    world.status(first, WorkerStatus::WsFull, 1.0);
    world.status(first, WorkerStatus::WsAvailable, 0.1);
    assert_eq!(world.offer().0, first);
}

#[test]
fn job_of_a_worker_that_disconnects_before_its_answer_moves_on() {
    let mut world = World::new();
    world.register(1, "");
    world.register(2, "");
    world.open("kitchen", &[]);
    let (first, job) = world.offer();
    world.agents.handle_worker_closed(world.now, first);
    let (second, again) = world.offer();
    assert!(first != second && job.id == again.id);
}

#[test]
fn silent_worker_loses_the_job_after_3_s() {
    let mut world = World::new();
    world.register(1, "");
    world.register(2, "");
    world.open("kitchen", &[]);
    let (key, job) = world.offer();
    world.pass(OFFER_LIMIT - Duration::from_millis(1));
    assert_eq!(world.job_status("kitchen"), [JobStatus::JsRunning]);
    world.pass(Duration::from_millis(1));
    assert_eq!(world.job_status("kitchen"), [JobStatus::JsFailed]);
    world.answer(key, &job, true);
    assert!(world.read().is_empty(), "a late answer has no effect, and no other worker is asked");
}

#[test]
fn room_that_is_open_gets_its_agent_when_a_worker_registers() {
    let mut world = World::new();
    world.open("kitchen", &[]);
    world.open("cellar", &["cook"]);
    assert_eq!(world.offers(), []);
    world.register(1, "");
    assert_eq!(world.run("kitchen").room.unwrap().name, "kitchen");
    world.register(2, "");
    assert_eq!(world.offers(), [], "the room has its agent");
    world.register(3, "cook");
    assert_eq!(world.offer().1.room.unwrap().name, "cellar");
}

#[test]
fn restarted_worker_gets_the_rooms_that_it_had() {
    let mut world = World::new();
    world.open("kitchen", &[]);
    world.register(1, "");
    let job = world.run("kitchen");
    // It is stopped: its agent leaves first.
    world.turn(&job, Presence::Absent);
    assert_eq!(world.terminations(), [(1, job.id.clone())]);
    world.register(2, "");
    assert_eq!(world.offers(), [], "the worker still runs: its job has just ended");
    world.agents.handle_worker_closed(world.now, 2);
    world.agents.handle_worker_closed(world.now, 1);
    world.register(3, "");
    let again = world.run("kitchen");
    assert!(again.id != job.id && again.dispatch_id == job.dispatch_id);
}

#[test]
fn agent_outlives_the_connection_of_its_worker() {
    for closes in [true, false] {
        let (mut world, job) = World::with_job();
        if closes {
            world.agents.handle_worker_closed(world.now, 1);
        }
        world.register(2, "");
        assert_eq!(world.offers(), []);
        world.say(2, FromWorker::MigrateJob(MigrateJobRequest { job_ids: vec![job.id.clone()] }));
        world.agents.close(world.now, "kitchen");
        // The job of a connected worker is not taken from it.
        assert_eq!(world.terminations(), [(if closes { 2 } else { 1 }, job.id)]);
    }
}

#[test]
fn participant_that_leaves_before_the_agent_of_its_identity_joins_does_not_end_the_job() {
    let mut world = World::new();
    world.register(1, "");
    world.open("kitchen", &[]);
    let (key, job) = world.offer();
    world.answer(key, &job, true);
    world.read();
    world.turn(&job, Presence::Disconnected);
    world.turn(&job, Presence::Absent);
    assert_eq!((world.read().len(), world.job_status("kitchen")), (0, vec![JobStatus::JsRunning]));
}

#[test]
fn agent_lost_with_its_worker_may_come_back_for_2_s() {
    for comes_back in [true, false] {
        let (mut world, job) = World::with_job();
        world.agents.handle_worker_closed(world.now, 1);
        world.turn(&job, Presence::Absent);
        world.register(2, "");
        assert_eq!(world.offers(), []);
        if comes_back {
            world.turn(&job, Presence::Connected);
        }
        world.pass(RETURN_LIMIT);
        assert_eq!(world.offers().len(), usize::from(!comes_back));
    }
}

/// Ends the connections of the worker and of its agent, 10 s apart.
fn kill(world: &mut World, job: &Job, worker: WorkerKey, worker_first: bool) {
    for of_the_worker in [worker_first, !worker_first] {
        assert_eq!(world.agents.poll_timeout(), None, "an agent with one connection stays");
        assert!(world.pass(10 * SECOND).is_empty());
        if of_the_worker {
            world.agents.handle_worker_closed(world.now, worker);
        } else {
            world.turn(job, Presence::Disconnected);
        }
    }
}

#[test]
fn agent_killed_with_its_worker_is_removed_after_2_s_and_its_job_offered_at_once() {
    for worker_first in [true, false] {
        let (mut world, job) = World::with_job();
        world.register(2, "");
        kill(&mut world, &job, 1, worker_first);
        assert!(world.pass(RETURN_LIMIT - Duration::from_millis(1)).is_empty());
        assert_eq!(world.job_status("kitchen"), [JobStatus::JsRunning]);
        assert_eq!(world.offers(), []);
        assert_eq!(world.pass(Duration::from_millis(1)), [("kitchen".to_owned(), identity(&job))]);
        let again = world.run("kitchen");
        assert!(again.id != job.id && again.dispatch_id == job.dispatch_id);
        // The rooms remove it.
        world.turn(&job, Presence::Absent);
        assert_eq!((world.read().len(), world.agents.poll_timeout()), (0, None));
    }
}

#[test]
fn killed_agent_stays_if_its_signaling_or_its_worker_comes_back() {
    for (worker_first, resumes) in [(true, true), (true, false), (false, true), (false, false)] {
        let (mut world, job) = World::with_job();
        world.register(2, "");
        kill(&mut world, &job, 1, worker_first);
        assert!(world.pass(RETURN_LIMIT - Duration::from_millis(1)).is_empty());
        world.register(3, "");
        if resumes {
            world.turn(&job, Presence::Connected);
        } else {
            world.say(3, FromWorker::MigrateJob(MigrateJobRequest { job_ids: vec![job.id.clone()] }));
        }
        assert_eq!(world.agents.poll_timeout(), None);
        assert!(world.pass(60 * SECOND).is_empty());
        assert_eq!((world.offers(), world.job_status("kitchen")), (vec![], vec![JobStatus::JsRunning]));
        // What came back has the whole time again when it is lost once more.
        if resumes {
            world.turn(&job, Presence::Disconnected);
        } else {
            world.agents.handle_worker_closed(world.now, 3);
        }
        assert!(world.pass(RETURN_LIMIT - Duration::from_millis(1)).is_empty());
        assert_eq!(world.pass(Duration::from_millis(1)).len(), 1);
        assert_eq!(world.offer().0, 2);
    }
}

#[test]
fn agent_without_a_worker_that_is_removed_otherwise_has_no_second_time_to_return() {
    let (mut world, job) = World::with_job();
    world.register(2, "");
    kill(&mut world, &job, 1, true);
    world.pass(SECOND);
    world.turn(&job, Presence::Absent);
    assert_eq!((world.pass(SECOND), world.offers().len()), (vec![], 1));
}

#[test]
fn agent_that_returns_late_goes_on_unless_another_one_has_its_job() {
    for (register, runs) in [(false, true), (true, false)] {
        let (mut world, job) = World::with_job();
        kill(&mut world, &job, 1, true);
        world.pass(RETURN_LIMIT);
        assert!(world.job_status("kitchen").is_empty(), "the job waits for a worker");
        if register {
            world.register(2, "");
        }
        world.turn(&job, Presence::Connected);
        let jobs = world.agents.list("kitchen", "").remove(0).state.unwrap().jobs;
        assert_eq!(jobs[0].id == job.id, runs);
    }
}

#[test]
fn agents_of_other_workers_are_not_concerned() {
    let mut world = World::new();
    world.register(1, "cook");
    world.open("kitchen", &["cook"]);
    let cook = world.run("kitchen");
    world.register(2, "guard");
    world.agents.create((world.now, 1_000), &named("kitchen"), agent("guard")).unwrap();
    let guard = world.run("kitchen");
    world.turn(&guard, Presence::Disconnected);
    kill(&mut world, &cook, 1, false);
    assert_eq!(world.pass(RETURN_LIMIT), [("kitchen".to_owned(), identity(&cook))]);
    world.turn(&cook, Presence::Absent);
    world.turn(&guard, Presence::Connected);
    assert_eq!((world.read().len(), world.agents.poll_timeout()), (0, None));
}

#[test]
fn job_ends_with_its_room_and_by_its_worker() {
    let mut world = World::new();
    world.register(1, "");
    world.open("kitchen", &[]);
    let job = world.run("kitchen");
    world.agents.close(world.now, "kitchen");
    assert_eq!(world.terminations(), [(1, job.id)]);
    world.open("cellar", &[]);
    let job = world.run("cellar");
    let status = JobStatus::JsSuccess.into();
    world.say(1, FromWorker::UpdateJob(UpdateJobStatus { job_id: job.id, status, ..Default::default() }));
    assert_eq!(world.job_status("cellar"), [JobStatus::JsSuccess]);
    world.agents.close(world.now, "cellar");
    assert_eq!(world.terminations(), []);
}

#[test]
fn deleted_dispatch_ends_its_job_and_removes_its_agent_3_s_later() {
    let mut world = World::new();
    world.register(1, "cook");
    world.open("kitchen", &["cook"]);
    let job = world.run("kitchen");
    let same = world.agents.create((world.now, 1), &named("kitchen"), agent("cook"));
    assert_eq!(same.unwrap_err(), DispatchError::Exists);
    let deleted = world.agents.delete(world.now, "kitchen", &job.dispatch_id).unwrap();
    assert_eq!(deleted.agent_name, "cook");
    assert_eq!(world.terminations(), [(1, job.id.clone())]);
    assert!(world.agents.delete(world.now, "kitchen", &job.dispatch_id).is_none());
    let due = world.agents.poll_timeout();
    world.open("cellar", &["cook"]);
    let other = world.run("cellar");
    world.agents.delete(world.now, "cellar", &other.dispatch_id).unwrap();
    world.agents.close(world.now, "cellar");
    assert_eq!(world.agents.poll_timeout(), due, "nobody is removed from a room that was closed");
    assert!(world.pass(REMOVE_DELAY - SECOND).is_empty());
    assert_eq!(world.pass(SECOND), [("kitchen".to_owned(), identity(&job))]);
    assert_eq!(world.agents.poll_timeout(), None);
}

#[test]
fn worker_that_breaks_the_protocol_is_disconnected() {
    let ping = || FromWorker::Ping(WorkerPing { timestamp: 7 });
    let mut world = World::new();
    // A ping may come before the registration, and nothing else.
    world.agents.handle_worker(world.now, 1).unwrap();
    world.say(1, ping());
    let pong = WorkerPong { last_timestamp: 7, timestamp: 1_000 };
    assert!(
        matches!(&world.read()[..], [AgentOutput::Send(1, message)] if **message == ToWorker::Pong(pong))
    );
    world.say(1, FromWorker::UpdateWorker(UpdateWorkerStatus::default()));
    assert_eq!(world.close_reason(1), Some("the first message must be a registration"));
    world.say(1, ping());
    assert!(world.read().is_empty(), "it is gone");
    // It registers once.
    world.register(2, "");
    world.say(2, FromWorker::Register(registration("")));
    assert_eq!(world.close_reason(2), Some("the worker is already registered"));
    // It registers in time.
    world.agents.handle_worker(world.now, 3).unwrap();
    world.pass(REGISTER_LIMIT - SECOND);
    assert_eq!(world.close_reason(3), None);
    world.pass(SECOND);
    assert_eq!(world.close_reason(3), Some("no registration within 10 s"));
    for invalid in [
        RegisterWorkerRequest { agent_name: "x".repeat(MAX_NAME + 1), ..Default::default() },
        RegisterWorkerRequest { r#type: 9, ..Default::default() },
    ] {
        world.agents.handle_worker(world.now, 4).unwrap();
        world.say(4, FromWorker::Register(invalid));
        assert!(world.close_reason(4).is_some());
    }
    assert!(world.agents.workers.is_empty());
}

#[test]
fn worker_for_tracks_gets_no_job_of_a_room() {
    let mut world = World::new();
    world.agents.handle_worker(world.now, 1).unwrap();
    let kind = proto::JobType::JtPublisher.into();
    world.say(1, FromWorker::Register(RegisterWorkerRequest { r#type: kind, ..Default::default() }));
    world.open("kitchen", &[]);
    assert_eq!(world.offers(), []);
}

#[test]
fn simulated_job_goes_to_the_worker_that_asked() {
    let mut world = World::new();
    world.register(1, "");
    world.register(2, "");
    let simulate = |room: &str| {
        FromWorker::SimulateJob(SimulateJobRequest { room: Some(named(room)), ..Default::default() })
    };
    let jobs = [0, 1].map(|_| {
        world.say(2, simulate("nowhere"));
        world.run("nowhere")
    });
    assert!(world.agents.list("nowhere", "").is_empty());
    world.say(2, simulate("silent"));
    assert_eq!(world.offer().0, 2);
    world.pass(OFFER_LIMIT);
    assert!(!world.agents.rooms.contains_key("silent"), "it is forgotten when it has ended");
    world.say(2, simulate("offered"));
    world.agents.handle_worker_closed(world.now, 2);
    assert!(!world.agents.rooms.contains_key("offered"), "no other worker gets it");
    // It runs without its worker, like other jobs.
    world.turn(&jobs[0], Presence::Absent);
    world.turn(&jobs[1], Presence::Disconnected);
    assert_eq!(world.pass(RETURN_LIMIT), [("nowhere".to_owned(), identity(&jobs[1]))]);
    assert!(world.agents.rooms.is_empty());
    world.read();
    world.say(1, simulate(""));
    assert!(world.close_reason(1).is_some());
}

#[test]
fn answer_beyond_the_limits_loses_the_job() {
    let mut world = World::new();
    world.register(1, "");
    world.open("kitchen", &[]);
    let (key, job) = world.offer();
    let participant_identity = "x".repeat(MAX_NAME + 1);
    let answer =
        AvailabilityResponse { job_id: job.id, available: true, participant_identity, ..Default::default() };
    world.say(key, FromWorker::Availability(answer));
    assert!(world.read().is_empty());
    assert_eq!(world.job_status("kitchen"), [JobStatus::JsFailed]);
}

#[test]
fn numbers_of_workers_and_dispatches_are_limited() {
    let mut world = World::new();
    let keys = 0..MAX_WORKERS as u64;
    assert!(keys.clone().all(|key| world.agents.handle_worker(world.now, key).is_ok()));
    assert!(world.agents.handle_worker(world.now, 99).is_err());
    keys.for_each(|key| world.agents.handle_worker_closed(world.now, key));
    world.register(1, "a0");
    world.open("kitchen", &["a0"]);
    let job = world.run("kitchen");
    let name = |n: usize| format!("a{n}");
    let create = |world: &mut World, name: &str| {
        world.agents.create((world.now, 1), &named("kitchen"), agent(name)).map(drop)
    };
    for n in 1..MAX_PER_ROOM {
        create(&mut world, &name(n)).unwrap();
    }
    assert!(matches!(create(&mut world, "more"), Err(DispatchError::Invalid(_))));
    // One that has ended gives way.
    let status = JobStatus::JsFailed.into();
    world.say(1, FromWorker::UpdateJob(UpdateJobStatus { job_id: job.id, status, ..Default::default() }));
    assert_eq!(create(&mut world, "more"), Ok(()));
    let many: Vec<_> = (0..=MAX_PER_ROOM).map(|n| agent(&name(n))).collect();
    assert!(check(&many).is_err() && check(&many[1..]).is_ok());
    let large = RoomAgentDispatch { metadata: "x".repeat(100_000), ..Default::default() };
    assert!(check(&[large]).is_err());
    for n in 0..2 * MAX_DISPATCHES {
        world.open(&format!("room {n}"), &[]);
    }
    assert_eq!(world.agents.count(), MAX_DISPATCHES);
}
