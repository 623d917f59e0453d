//! Random schedules on a network that loses nothing, but delays, and announces late: invariants that must always
//! hold.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use toolbridge::{
    CallError, CallId, Config, ToolError,
    frame::{ControlStop, Kind, Message, Meta},
    session::{CallKey, Request},
};

use crate::session_world::{MS, Random, SECOND, World, plain_request, request, value};

const CLIENTS: [&str; 3] = ["c1", "c2", "c3"];

/// An open call of an assistant that still runs.
struct Open {
    id: CallId,
    asked: Instant,
    limit: Duration,
}

struct Run {
    world: World,
    random: Random,
    open: BTreeMap<CallKey, Open>,
    /// Ids of calls that settled with a proof that they did not run.
    never_ran: Vec<CallId>,
    /// Ids of calls that succeeded.
    ran: Vec<CallId>,
    counted: usize,
}

#[test]
fn every_call_has_one_outcome_in_time_and_runs_at_most_once() {
    let mut calls = 0;
    for seed in 1..=200 {
        let mut run = Run::new(seed);
        for _ in 0..150 {
            run.something_happens();
            let pause = run.random.below(200);
            run.passes(pause * MS32);
        }
        run.ends(seed);
        calls += run.counted;
    }
    assert!(calls > 5_000, "only {calls} calls were made");
}

const MS32: Milliseconds = Milliseconds;

/// So that a number of milliseconds can be drawn.
#[derive(Clone, Copy)]
struct Milliseconds;

impl std::ops::Mul<Milliseconds> for u64 {
    type Output = Duration;

    fn mul(self, _: Milliseconds) -> Duration {
        Duration::from_millis(self)
    }
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut world = World::new();
        world.random = Random(seed);
        world.jitter = random.pick(&[Duration::ZERO, 100 * MS, 1500 * MS]);
        world.announce = random.pick(&[10 * MS, 800 * MS, 3 * SECOND]);
        world.stranger("x");
        let mut run =
            Self { world, random, open: BTreeMap::new(), never_ran: Vec::new(), ran: Vec::new(), counted: 0 };
        let mut names = vec!["a", "c1", "c2", "c3"];
        while !names.is_empty() {
            let at = run.random.below(names.len() as u64) as usize;
            run.starts(names.remove(at));
            let pause = run.random.below(1500);
            run.passes(pause * MS32);
        }
        run
    }

    /// Starts a new process with this name.
    fn starts(&mut self, name: &str) {
        if name == "a" {
            self.open.clear(); // calls of the old process have no owner now
            self.world.ends.remove("a");
            let named = self.random.one_in(2);
            let config = if named { Config::default().admit("c1") } else { Config::default() };
            return self.world.assistant("a", config);
        }
        let config = if self.random.one_in(2) { Config::default().assistant("a") } else { Config::default() };
        self.world.client(name, config, &[name, "shared", "hang"]);
        let seed = self.random.below(u64::MAX);
        let mut random = Random(seed | 1);
        self.world.handle(name, move |job| match random.below(4) {
            _ if job.tool.as_str() == "hang" => None,
            0 => Some(Err(ToolError::new("odd", "it went wrong"))),
            1 => None,
            _ => Some(Ok(value(1))),
        });
    }

    fn something_happens(&mut self) {
        let client = self.random.pick(&CLIENTS);
        match self.random.below(24) {
            0 => self.leaves_and_rejoins("a"),
            1 | 2 => self.leaves_and_rejoins(client),
            3 => {
                self.says_goodbye(client);
                self.starts(client);
            }
            4 => {
                self.world.leave(client); // killed, and started again
                self.passes(100 * MS);
                self.starts(client);
            }
            5 if self.random.one_in(4) => {
                self.says_goodbye("a");
                self.starts("a");
            }
            6 | 7 => self.attack(client),
            8 | 9 => self.cancel(),
            10..=13 => self.finish_a_job(client),
            _ => self.ask(client),
        }
    }

    fn ask(&mut self, client: &str) {
        let tool = self.random.pick(&[client, client, "shared", "hang", "none", "bridge.echo"]);
        let limit = Duration::from_millis(self.random.pick(&[300, 2_000, 9_000]));
        let mut asked: Request = request(tool).timeout(limit);
        if self.random.one_in(2) {
            asked = asked.to(client);
        }
        self.counted += 1;
        if let Ok(key) = self.world.call("a", asked) {
            // It may have settled at once, if its owner was selected and refused it.
            let id = self.world.session("a").call_id(key).cloned().unwrap();
            self.open.insert(key, Open { id, asked: self.world.now, limit });
        }
    }

    fn cancel(&mut self) {
        let keys: Vec<_> = self.open.keys().copied().collect();
        if !keys.is_empty() {
            let key = self.random.pick(&keys);
            self.world.with("a", |session, now| session.cancel(now, key));
        }
    }

    fn finish_a_job(&mut self, client: &str) {
        if self.world.ends[client].jobs.iter().any(|job| job.tool.as_str() != "hang") {
            self.world.finish(client, Ok(value(2)));
        }
    }

    fn leaves_and_rejoins(&mut self, name: &str) {
        self.world.leave(name);
        let gap = self.random.pick(&[10, 500, 3_000, 8_000]);
        self.passes(gap * MS32);
        self.world.rejoin(name);
    }

    fn says_goodbye(&mut self, name: &str) {
        self.world.with(name, |session, now| session.close(now));
        self.take_settled();
        self.passes(100 * MS);
        self.world.leave(name);
        let gap = self.random.below(300);
        self.passes(gap * MS32);
    }

    fn attack(&mut self, client: &str) {
        let guessed =
            self.open.values().next().map_or_else(|| "guess".to_owned(), |open| open.id.to_string());
        let target = self.random.pick(&[client, "a"]);
        let bye = Meta::new().with_bool("bridge.bye", true).with_text("bridge.instance", "x");
        let body = serde_json::json!({"id": guessed, "success": true, "result": {"n": 666}});
        let (mut bytes, body) = (Vec::new(), toolbridge::Value::encode(&body).unwrap());
        toolbridge::frame::Frame::relay(&mut bytes, 1, "room", &bye, Kind::TOOL_USE_RESULT, body.as_bytes())
            .unwrap();
        self.world.send_bytes("x", &[target], &bytes);
        let stop = with!(ControlStop::default(), target_id = Some(guessed.clone()));
        self.world.send("x", &[target], &bye, &Message::ControlStop(stop));
        self.world.send("x", &[target], &bye, &Message::Configuration(Default::default()));
        self.world.send(
            "x",
            &[target],
            &Meta::new(),
            &Message::ToolUseRequest(plain_request("theirs", client)),
        );
    }

    fn passes(&mut self, time: Duration) {
        let end = self.world.now + time;
        while self.world.now < end {
            let left = end - self.world.now;
            self.world.run(left.min(50 * MS));
            self.take_settled();
            for client in CLIENTS {
                let Some(end) = self.world.ends.get(client) else { continue };
                assert!(end.session.as_ref().unwrap().open_jobs() <= 64);
            }
        }
    }

    fn take_settled(&mut self) {
        let now = self.world.now;
        let Some(end) = self.world.ends.get_mut("a") else { return };
        for (key, result) in std::mem::take(&mut end.settled) {
            let open = self.open.remove(&key).unwrap();
            let took = now - open.asked;
            assert!(took <= open.limit + 100 * MS, "{key:?} took {took:?} of {:?}", open.limit);
            match result {
                Ok(body) => {
                    assert_ne!(body, value(666), "a stranger's result was accepted");
                    self.ran.push(open.id);
                }
                Err(error) if !error.may_have_run() && !matches!(error, CallError::Tool(_)) => {
                    self.never_ran.push(open.id);
                }
                Err(_) => {}
            }
        }
    }

    fn ends(&mut self, seed: u64) {
        self.passes(20 * SECOND);
        assert!(self.open.is_empty(), "seed {seed}: {} calls have no outcome", self.open.len());
        // The network works again: a new call to each client succeeds.
        for client in CLIENTS {
            self.world.handle(client, |_| Some(Ok(value(1))));
            let key = self.world.call("a", request(client).to(client)).unwrap();
            self.world.run(8 * SECOND);
            let result = self.world.settled("a", key);
            assert!(matches!(result, Some(Ok(_))), "seed {seed}: a new call to {client}: {result:?}");
        }
        let once: BTreeSet<_> = self.world.executed.iter().map(|(_, id)| id).collect();
        assert_eq!(once.len(), self.world.executed.len(), "seed {seed}: a call ran twice");
        assert!(
            self.never_ran.iter().all(|id| !once.contains(id)),
            "seed {seed}: a call ran that was reported as not run"
        );
        assert!(
            !once.contains(&CallId::try_from("theirs").unwrap()),
            "seed {seed}: a stranger's request ran"
        );
        for (_, frame) in &self.world.ends["x"].inbox {
            let kind = frame.kind();
            assert!(kind == Kind::TOOL_USE_RESULT || kind == Kind::TOOLS_REGISTER_ACK, "seed {seed}: {kind}");
        }
        self.world.run(700 * SECOND);
        for name in ["a", "c1", "c2", "c3"] {
            let session = self.world.session(name);
            assert!(session.is_drained(), "seed {seed}: {name} is not drained");
        }
    }
}
