//! The CPU time of a call with a large payload, without a network: by LiveKit's RPC at each of its two ends, and with everything
//! between an assistant and a function.
//!
//! `cargo bench --no-default-features --features deflate --bench rpc` needs few crates; with `schema-validation`, too, it
//! also measures calls of functions.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a benchmark owns its clock and may fail")]

use std::time::{Duration, Instant};

use serde_json::json;
use toolbridge::{
    Config, Tool, Value,
    session::{Job, Output, Request, Session},
    transport::{Form, Packet, Participant, Peer, StreamParts, TransportEvent},
};

/// The payloads: records in each, about 10 KB and 64 KB of JSON.
const PAYLOADS: [(&str, usize); 2] = [("10 KB", 120), ("64 KB", 762)];

/// Calls with each payload, of which the first are not measured.
const CALLS: usize = 600;
const WARM_UP: usize = 100;

/// The virtual time between two calls, so that the rate limit does not refuse them.
const BETWEEN: Duration = Duration::from_millis(50);

/// What is measured of a call by RPC.
const STAGES: [&str; 4] = ["request is sent", "request is received", "answer is sent", "answer is received"];

mod short;

use short::scaled;

fn main() {
    for (name, records) in PAYLOADS {
        let arguments = Value::from(json!({"data": (0..records).map(record).collect::<Vec<_>>()}));
        for inflates in [false, true] {
            let mut pair = Pair::new(arguments.clone(), inflates);
            let mut times = STAGES.map(|_| Vec::new());
            for call in 0..scaled(CALLS) {
                let took = pair.call();
                if call >= scaled(WARM_UP) {
                    times.iter_mut().zip(took).for_each(|(times, took)| times.push(took));
                }
            }
            let how = if inflates { "compressed" } else { "plain" };
            for (stage, times) in STAGES.iter().zip(times) {
                show(&format!("{name}, {how}: {stage}"), times);
            }
        }
        #[cfg(feature = "schema-validation")]
        functions::measure(name, &arguments);
    }
}

/// Prints the median and the shortest of these times.
fn show(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let [median, fastest] = [times.len() / 2, 0].map(|at| times[at].as_secs_f64() * 1e6);
    println!("{what}: median {median:.0} us, fastest {fastest:.0} us");
}

/// The record of `scripts/bench rpc`.
fn record(n: usize) -> serde_json::Value {
    let room = ["kitchen", "hall", "attic"][n % 3];
    json!({
        "id": n, "name": format!("lamp {n}"), "room": room,
        "on": n.is_multiple_of(2), "level": n * 7_919 % 1_000, "seen": 1_795_000_000 + n * 61,
    })
}

/// An assistant and an app that it calls by RPC.
struct Pair {
    assistant: Session,
    app: Session,
    now: Instant,
    arguments: Value,
}

impl Pair {
    fn new(arguments: Value, inflates: bool) -> Self {
        let now = Instant::now();
        let describe = |identity, sid: &str| {
            Participant::new(identity, sid).agent(identity == "agent").client_protocol(2).inflates(inflates)
        };
        let (agent, web) = (describe("agent", "PA_1"), describe("web", "PA_2"));
        let tool = || Tool::new("echo".parse().unwrap(), "");
        let config = Config::default().streams(true).rpc_tool("web", tool());
        let mut assistant = Session::assistant(now, agent.clone(), config, [1; 32]);
        let config = Config::default().streams(true).answer_rpc();
        let mut app = Session::client(now, web.clone(), config, [2; 32]);
        app.offer(now, vec![tool()]).unwrap();
        for who in [agent, web] {
            assistant.handle_event(now, TransportEvent::Joined(who.clone()));
            app.handle_event(now, TransportEvent::Joined(who));
        }
        Self { assistant, app, now, arguments }
    }

    /// Makes a call whose arguments are its result, and returns how long each stage took.
    fn call(&mut self) -> [Duration; 4] {
        self.now += BETWEEN;
        let (now, begun) = (self.now, Instant::now());
        self.assistant.call(now, Request::new("echo", self.arguments.clone()).to("web")).unwrap();
        let (request, _, _) = drained(&mut self.assistant, "agent", "PA_1");
        let sent = Instant::now();
        request.into_iter().for_each(|event| self.app.handle_event(now, event));
        let (acknowledgement, job, _) = drained(&mut self.app, "web", "PA_2");
        let received = Instant::now();
        let job = job.unwrap();
        self.app.settle(now, job.key, Ok(job.arguments));
        let (answer, _, _) = drained(&mut self.app, "web", "PA_2");
        let answered = Instant::now();
        let answer = acknowledgement.into_iter().chain(answer);
        answer.for_each(|event| self.assistant.handle_event(now, event));
        let (_, _, result) = drained(&mut self.assistant, "agent", "PA_1");
        let ended = Instant::now();
        assert_eq!(result.unwrap(), self.arguments);
        [sent - begun, received - sent, answered - received, ended - answered]
    }
}

/// Returns what others receive from this participant, the job that it began, and the result of its call.
fn drained(
    session: &mut Session,
    identity: &str,
    sid: &str,
) -> (Vec<TransportEvent>, Option<Job>, Option<Value>) {
    let from = Peer::new(identity, sid);
    let (mut events, mut job, mut result) = (Vec::new(), None, None);
    while let Some(output) = session.poll_output() {
        match output {
            Output::Transmit(packet) => events.extend(received(&from, packet)),
            Output::Execute(begun) => job = Some(begun),
            Output::Settled { result: settled, .. } => result = Some(settled.unwrap()),
            _ => {}
        }
    }
    (events, job, result)
}

fn received(from: &Peer, packet: Packet) -> Vec<TransportEvent> {
    match packet.form {
        Form::Rpc(message) => vec![TransportEvent::Rpc { from: Some(from.clone()), message }],
        Form::Text(_) => {
            let event = |part| TransportEvent::Stream { from: from.clone(), part };
            StreamParts::of(&packet).map(event).collect()
        }
        _ => Vec::new(),
    }
}

/// Calls of functions, in a room inside this process.
#[cfg(feature = "schema-validation")]
mod functions {
    use std::time::Instant;

    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};
    use toolbridge::{Assistant, Client, ToolError, Value, memory::MemoryRoom};

    use super::{CALLS, WARM_UP, short::scaled, show};

    /// Arguments of which the function knows the types.
    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Lamps {
        data: Vec<Lamp>,
    }

    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Lamp {
        id: u32,
        name: String,
        room: String,
        on: bool,
        level: u16,
        seen: u64,
    }

    /// Arguments that are any JSON, as a tree.
    #[derive(Deserialize, Serialize, JsonSchema)]
    struct Any {
        data: serde_json::Value,
    }

    async fn typed(lamps: Lamps) -> Result<Lamps, ToolError> {
        Ok(lamps)
    }

    async fn tree(any: Any) -> Result<Any, ToolError> {
        Ok(any)
    }

    pub(super) fn measure(name: &str, arguments: &Value) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let room = MemoryRoom::new();
            let client = Client::builder().tool("typed", "", typed).tool("tree", "", tree);
            let client = client.configure(|config| config.caps.requests.calls_per_second = u32::MAX);
            let client = client.join_over(room.client("phone")).await.unwrap();
            let assistant = Assistant::builder().join_over(room.assistant("agent")).await.unwrap();
            assistant.ready("phone").await.unwrap();
            for tool in ["typed", "tree"] {
                let mut times = Vec::new();
                for call in 0..scaled(CALLS) {
                    let begun = Instant::now();
                    let result = assistant.call(tool, arguments).to("phone").await.unwrap();
                    if call >= scaled(WARM_UP) {
                        times.push(begun.elapsed());
                    }
                    assert_eq!(&result, arguments);
                }
                show(&format!("{name}: call of a function with arguments of the kind {tool}"), times);
            }
            assistant.close().await;
            client.close().await;
        });
    }
}
