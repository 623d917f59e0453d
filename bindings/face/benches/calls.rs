//! Calls between two sessions without a room, with the JSON texts that wrappers carry: what the core costs natively.
//! `bindings/js/bench/core-calls.mjs` and `bindings/python/bench/core_calls.py` do the same in other languages.

#![expect(clippy::unwrap_used, reason = "a benchmark may fail by panicking")]

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use toolbridge_face::JsonSession;

/// The time between two calls, in milliseconds of the sessions' time: a client takes 50 calls a second.
const INTERVAL: f64 = 25.0;

const CALLS: usize = 5_000;

#[derive(Default)]
struct Room {
    at: f64,
    ends: BTreeMap<&'static str, JsonSession>,
    packets: VecDeque<Packet>,
    jobs: VecDeque<(&'static str, u64)>,
    settled: usize,
    frames: usize,
}

struct Packet {
    from: &'static str,
    to: Vec<String>,
    lane: Value,
    topic: Value,
    bytes: Vec<u8>,
}

impl Room {
    fn pass(&mut self, name: &'static str, mut input: Value, bytes: Option<Vec<u8>>) {
        input["atMs"] = json!(self.at);
        let session = self.ends.get_mut(name).unwrap();
        session.handle(&input.to_string(), bytes).unwrap();
        while let Some(text) = session.next_output() {
            let output: Value = serde_json::from_str(&text).unwrap();
            match output["type"].as_str().unwrap() {
                "transmit" => {
                    self.packets.push_back(Packet {
                        from: name,
                        to: serde_json::from_value(output["to"].clone()).unwrap(),
                        lane: output["lane"].clone(),
                        topic: output["topic"].clone(),
                        bytes: session.take_bytes().unwrap(),
                    });
                    session.sent(self.at, output["packet"].as_u64().unwrap()).unwrap();
                }
                "execute" => self.jobs.push_back((name, output["key"].as_u64().unwrap())),
                "result" => {
                    assert!(output.get("error").is_none(), "{text}");
                    self.settled += 1;
                }
                _ => {}
            }
        }
    }

    fn work(&mut self) {
        loop {
            if let Some((name, key)) = self.jobs.pop_front() {
                self.ends.get_mut(name).unwrap().start(self.at, key).unwrap();
                self.pass(name, json!({"type": "settle", "key": key, "value": {"ok": true}}), None);
                continue;
            }
            let Some(packet) = self.packets.pop_front() else { return };
            let from = json!({"identity": packet.from, "sid": format!("PA_{}", packet.from)});
            for to in &packet.to {
                self.frames += 1;
                let name = if to == "agent" { "agent" } else { "phone" };
                let input =
                    json!({"type": "packet", "from": from, "lane": packet.lane, "topic": packet.topic});
                self.pass(name, input, Some(packet.bytes.clone()));
            }
        }
    }

    /// Lets time pass, from one deadline to the next.
    fn elapse(&mut self, time: f64) {
        let end = self.at + time;
        loop {
            let due = |name: &'static str| Some((self.ends[name].next_deadline()?, name));
            let next =
                ["agent", "phone"].into_iter().filter_map(due).min_by(|one, other| one.0.total_cmp(&other.0));
            let Some((at, name)) = next.filter(|(at, _)| *at <= end) else { break };
            self.at = at;
            self.pass(name, json!({"type": "timeout"}), None);
            self.work();
        }
        self.at = end;
    }
}

fn who(identity: &str, role: &str) -> Value {
    json!({
        "identity": identity,
        "sid": format!("PA_{identity}"),
        "kind": if role == "assistant" { "agent" } else { "standard" },
        "attributes": {"toolbridge.role": role},
        "canUpdateMetadata": false,
    })
}

fn main() {
    let mut room = Room::default();
    for (identity, role, seed) in [("agent", "assistant", "2"), ("phone", "client", "1")] {
        let config = json!({"lossy": true, "streams": true});
        let local = who(identity, role);
        let create = json!({"type": "create", "atMs": 0, "role": role, "local": local, "seed": seed.repeat(64), "config": config});
        room.ends.insert(identity, JsonSession::create(&create.to_string()).unwrap());
        room.pass(identity, json!({"type": "listen", "events": ["closed"]}), None);
    }
    room.pass("phone", json!({"type": "offer", "tools": [{"name": "echo", "description": "x"}]}), None);
    room.pass("agent", json!({"type": "participant_joined", "participant": who("phone", "client")}), None);
    room.pass("phone", json!({"type": "participant_joined", "participant": who("agent", "assistant")}), None);
    for _ in 0..40 {
        room.elapse(100.0);
    }
    let data = "abcdefghijk".repeat(20);
    let mut each = Vec::with_capacity(CALLS);
    room.frames = 0;
    for call in 0..CALLS {
        room.elapse(INTERVAL);
        #[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
        let begun = Instant::now();
        let arguments = json!({"data": data});
        room.pass(
            "agent",
            json!({"type": "call", "id": call, "tool": "echo", "to": "phone", "arguments": arguments}),
            None,
        );
        room.work();
        each.push(begun.elapsed());
        assert_eq!(room.settled, call + 1, "a call has no result");
    }
    each.sort_unstable();
    let micros = |time: Duration| time.as_nanos() as f64 / 1_000.0;
    let mean = micros(each.iter().sum()) / CALLS as f64;
    let frames = room.frames as f64 / CALLS as f64;
    println!(
        "native: {:.1} µs a call (mean {mean:.1} µs), {frames:.1} frames a call",
        micros(each[CALLS / 2])
    );
}
