//! No text and no bytes that are passed make the session panic, and what it writes is JSON, whatever is passed.
//!
//! Two sessions exchange their packets in virtual time, so that jobs, calls and questions are open. Between the packets they
//! get inputs of every kind, of which most have something changed: a number, a name, a field, a byte.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use serde_json::{Value, json};
use toolbridge_face::JsonSession;

/// The runs, and the inputs of each.
const RUNS: u64 = 60;
const INPUTS: usize = 400;

/// Random numbers (SplitMix64), the same in each run of the tests.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut it = self.0;
        it = (it ^ (it >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        it = (it ^ (it >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        it ^ (it >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

fn peer(identity: &str) -> Value {
    json!({"identity": identity, "sid": format!("PA_{identity}")})
}

fn participant(identity: &str, role: &str) -> Value {
    json!({
        "identity": identity, "sid": format!("PA_{identity}"), "attributes": {"toolbridge.role": role},
        "canUpdateMetadata": false,
    })
}

fn tool(name: &str, consent: &str) -> Value {
    json!({
        "name": name, "description": "Does it", "inputSchema": {"type": "object"}, "title": "It", "consent": consent,
        "timeoutMs": 5000, "destructive": false, "bargeIn": "report", "meta": {"a": [1.5, null]},
    })
}

/// Inputs and queries of every kind. `at` is set later.
fn inputs() -> Vec<Value> {
    let of = |name: &str, fields: Value| {
        let mut input = json!({"type": name, "atMs": 0});
        input.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        input
    };
    let mut all: Vec<Value> = ["tools", "participants", "stats", "state", "records", "late_results"]
        .iter()
        .map(|name| json!({"type": name}))
        .collect();
    all.extend([
        json!({"type": "record", "call": "x"}),
        json!({"type": "readiness", "identity": "phone"}),
        json!({"type": "why_not_offered", "tool": "lamp"}),
        json!({"type": "is_wanted", "packet": 3}),
        of("participant_joined", json!({"participant": participant("phone", "client")})),
        of("participant_joined", json!({"participant": participant("model", "assistant")})),
        of("participant_left", json!({"peer": peer("phone")})),
        of("connection", json!({"state": "reconnecting"})),
        of("connection", json!({"state": "connected"})),
        of("rejoined", json!({"local": participant("model", "assistant"), "present": [participant("phone", "client")]})),
        of("packet", json!({"from": peer("phone"), "lane": "lossy", "topic": "toolbridge", "bytes": "gqR0eXBlAaRib2R5gA=="})),
        of("stream_header", json!({"from": peer("phone"), "id": "s2", "topic": "toolbridge.frame", "length": 3, "attributes": {}})),
        of("stream_chunk", json!({"from": peer("phone"), "id": "s2", "index": 0, "bytes": "AAAA"})),
        of("stream_trailer", json!({"from": peer("phone"), "id": "s2", "reason": ""})),
        of("unreadable", json!({"from": peer("phone"), "why": "encrypted"})),
        of("backlog", json!({"size": 5000})),
        of("send_failed", json!({"packet": 2, "why": "too_large", "size": 9, "max": 8, "text": ""})),
        of("timeout", json!({})),
        of("offer", json!({"tools": [tool("lamp", "never"), tool("door", "always")], "partial": true})),
        of("progress", json!({"key": 1, "status": "in_progress", "message": "half", "content": {"progress": 1}})),
        of("settle", json!({"key": 1, "value": {"ok": [true, -1, 1.5, "ü", {"$bin": "AA=="}]}})),
        of("settle", json!({"key": 2, "error": {"code": "too_dark", "message": "no", "partial": [1], "cause": "it"}})),
        of("consent", json!({"key": 1, "allowed": true})),
        of("select", json!({"key": 1, "identity": "phone"})),
        of("call", json!({"id": 1, "tool": "lamp", "arguments": {"on": true}, "to": "phone", "timeoutMs": 3000, "meta": {"m": 1}, "turn": 1})),
        of("call", json!({"id": "door", "tool": "door", "ownerWaitMs": 100})),
        of("cancel", json!({"id": 1})),
        of("detach", json!({"id": "door"})),
        of("barge_in", json!({"turn": 1})),
        of("turn_end", json!({"turn": 1})),
        of("ask_to_stop", json!({"call": "x"})),
        of("show_view", json!({"view": "v", "content": {"a": 1}, "text": "t"})),
        of("expect", json!({"identity": "phone"})),
        of("stop_expecting", json!({"identity": "phone"})),
        of("probe", json!({"identity": "phone"})),
        of("listen", json!({"events": ["requested", "settled", "progress", "violation", "closed"]})),
        of("drain", json!({})),
        of("close", json!({})),
        of("closed", json!({"reason": {"kind": "server", "text": "bye"}})),
    ]);
    all
}

/// Returns another value, of any type.
fn odd(random: &mut Random) -> Value {
    let odd = [
        Value::Null,
        json!(true),
        json!(0),
        json!(1),
        json!(7),
        json!(-1),
        json!(0.5),
        json!(1e308),
        json!(9_007_199_254_740_991_u64),
        json!(9_007_199_254_740.0),
        json!(u64::MAX),
        json!(""),
        json!("lamp"),
        json!("phone"),
        json!("\u{0}\"\\\u{7f}\u{2028}𝄞"),
        json!("x".repeat(300)),
        json!("bridge.permission"),
        json!([]),
        json!([[[{}]]]),
        json!({}),
        json!({"$bin": 1}),
        json!({"$map": [[1, 2], [1]]}),
    ];
    random.pick(&odd).clone()
}

/// Changes one value inside this one.
fn change(value: &mut Value, random: &mut Random) {
    match value {
        Value::Object(fields) if !fields.is_empty() && random.below(8) > 0 => {
            let name = fields.keys().nth(random.below(fields.len())).unwrap().clone();
            match random.below(8) {
                0 => drop(fields.remove(&name)),
                1 => drop(fields.insert(format!("{name}s"), odd(random))),
                _ => change(&mut fields[&name], random),
            }
        }
        Value::Array(items) if !items.is_empty() && random.below(4) > 0 => {
            let at = random.below(items.len());
            change(&mut items[at], random);
        }
        Value::String(text) if random.below(2) == 0 => {
            // Bytes of a frame that are still base64.
            match BASE64.decode(&*text) {
                Ok(mut bytes) if !bytes.is_empty() => {
                    let at = random.below(bytes.len());
                    bytes[at] = random.next() as u8;
                    *text = BASE64.encode(bytes);
                }
                _ => text.push('x'),
            }
        }
        other => *other = odd(random),
    }
}

/// Changes or removes bytes of the text.
fn garble(text: &str, random: &mut Random) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=random.below(3) {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes.truncate(at.max(1)),
            1 => bytes[at] = random.next() as u8,
            _ => bytes.insert(at, *random.pick(b"{}[],:\"\\0e-\x00\xff")),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn create(role: &str, random: &mut Random) -> JsonSession {
    let mut create = json!({
        "type": "create", "atMs": 0, "role": role,
        "local": if role == "client" { participant("phone", "client") } else { participant("model", "assistant") },
        "seed": "00".repeat(32),
        "config": {
            "room": "r", "choose": random.pick(&["nobody", "first", "last", "last_heard", "ask"]),
            "prompts": true, "consentAvailable": true, "lossy": random.below(2) == 0, "streams": random.below(2) == 0,
            "times": {}, "caps": {}, "overhead": 44, "admit": ["phone"],
        },
    });
    let numbers = [0, 1, 2, 64, 15_000, 9_007_199_254_740_991_u64];
    for name in [
        "graceMs",
        "silenceMs",
        "memoryMs",
        "ownerWaitMs",
        "holdMs",
        "claimMs",
        "longestCallMs",
        "callMs",
        "streamMs",
    ] {
        if random.below(8) == 0 {
            create["config"]["times"][name] =
                random.pick(&[json!(0), json!(0.001), json!(9e12), json!(100)]).clone();
        }
    }
    for name in [
        "maxPacket",
        "maxFrame",
        "heldFrames",
        "heldBytes",
        "retransmitFrames",
        "openPerPeer",
        "openCalls",
        "callLog",
        "lateResults",
        "tableEntries",
        "tableBytes",
        "runningJobs",
        "callsPerSecond",
        "progressPerSecond",
        "count",
        "equalCalls",
        "streamBytes",
        "messageBytes",
        "openQuestions",
    ] {
        if random.below(20) == 0 {
            create["config"]["caps"][name] = json!(random.pick(&numbers));
        }
    }
    JsonSession::create(&create.to_string()).unwrap()
}

/// A session and what the other one has sent it.
struct End {
    session: JsonSession,
    name: &'static str,
    sent: Vec<Value>,
    now: f64,
}

impl End {
    /// Takes the outputs, which must be JSON, counts them by type, and answers some.
    fn take_outputs(&mut self, random: &mut Random, counts: &mut BTreeMap<String, usize>) {
        let mut answers = Vec::new();
        while let Some(text) = self.session.next_output() {
            let output: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            *counts.entry(output["type"].as_str().unwrap().to_owned()).or_default() += 1;
            let bytes = self.session.take_bytes();
            match output["type"].as_str().unwrap() {
                "transmit" => {
                    let packet = json!({
                        "type": "packet", "atMs": 0, "from": peer(self.name), "lane": output["lane"],
                        "topic": output["topic"], "bytes": BASE64.encode(bytes.unwrap()),
                    });
                    self.sent.push(packet);
                    if random.below(8) > 0 {
                        self.session.sent(self.now, output["packet"].as_u64().unwrap()).unwrap();
                    }
                }
                "execute" => {
                    if random.below(4) > 0 {
                        self.session.start(self.now, output["key"].as_u64().unwrap()).unwrap();
                    }
                    if random.below(2) == 0 {
                        answers.push(json!({"type": "settle", "atMs": self.now, "key": output["key"], "value": output["arguments"]}));
                    }
                }
                "ask" => answers.push(
                    json!({"type": "consent", "atMs": self.now, "key": output["key"], "allowed": true}),
                ),
                "select" => {
                    let identity = &output["candidates"][0]["identity"];
                    answers.push(
                        json!({"type": "select", "atMs": self.now, "key": output["key"], "identity": identity}),
                    );
                }
                _ => {}
            }
        }
        if let Some(deadline) = self.session.next_deadline() {
            assert!((0.0..9_007_199_254_741.0).contains(&deadline), "{deadline}");
        }
        for answer in answers {
            self.session.handle(&answer.to_string(), None).unwrap();
        }
    }
}

#[test]
fn changed_inputs_are_errors_or_have_an_effect_and_never_a_panic() {
    let inputs = inputs();
    let (mut outputs, mut accepted, mut malformed) = (BTreeMap::new(), 0, 0);
    for run in 0..RUNS {
        let random = &mut Random(run);
        let end = |role, name, random: &mut Random| End {
            session: create(role, random),
            name,
            sent: Vec::new(),
            now: 0.0,
        };
        let mut ends = [end("client", "phone", random), end("assistant", "model", random)];
        for (at, other, role) in [(0, "model", "assistant"), (1, "phone", "client")] {
            let joined =
                json!({"type": "participant_joined", "atMs": 0, "participant": participant(other, role)});
            ends[at].session.handle(&joined.to_string(), None).unwrap();
        }
        let offer =
            json!({"type": "offer", "atMs": 0, "tools": [tool("lamp", "never"), tool("door", "always")]});
        ends[0].session.handle(&offer.to_string(), None).unwrap();
        for _ in 0..INPUTS {
            let at = random.below(2);
            let sent = std::mem::take(&mut ends[1 - at].sent);
            let it = &mut ends[at];
            for mut packet in sent {
                packet["atMs"] = json!(it.now);
                if random.below(10) == 0 {
                    change(&mut packet, random);
                }
                let _ = it.session.handle(&packet.to_string(), None);
                it.take_outputs(random, &mut outputs);
            }
            it.now += *random.pick(&[0.0, 0.001, 1.0, 20.0, 700.0]);
            // The last ones end the session: rarely.
            let most = if random.below(40) == 0 { inputs.len() } else { inputs.len() - 3 };
            let mut input = inputs[random.below(most)].clone();
            if at == 1 && random.below(4) == 0 {
                let id = random.next() >> 12;
                input = json!({"type": "call", "atMs": 0, "id": id, "tool": random.pick(&["lamp", "door"]), "to": "phone"});
            }
            if input.get("atMs").is_some() {
                input["atMs"] = json!(it.now);
            }
            for _ in 0..random.below(3) {
                change(&mut input, random);
            }
            // Time that has gone on does not go back.
            if input.get("atMs").is_some() && random.below(50) > 0 {
                input["atMs"] = json!(it.now);
            }
            let mut text = input.to_string();
            if random.below(10) == 0 {
                text = garble(&text, random);
            }
            let beside = (random.below(20) == 0).then(|| vec![random.next() as u8; random.below(40)]);
            match it.session.handle(&text, beside) {
                Ok(Some(reply)) => {
                    let _: Value =
                        serde_json::from_str(&reply).unwrap_or_else(|error| panic!("{error}: {reply}"));
                    accepted += 1;
                }
                Ok(None) => accepted += 1,
                Err(error) => {
                    assert!(!error.message.is_empty(), "{text}");
                    malformed += 1;
                }
            }
            it.take_outputs(random, &mut outputs);
        }
    }
    assert!(accepted > 5_000 && malformed > 5_000, "{accepted} {malformed}");
    for kind in ["transmit", "execute", "ask", "abort", "progress", "result", "event"] {
        assert!(outputs.get(kind).is_some_and(|count| *count > 10), "{kind}: {outputs:?}");
    }
}

#[test]
fn changed_first_input_is_an_error_or_makes_a_session() {
    let create = json!({
        "type": "create", "atMs": 5.5, "role": "client", "local": participant("phone", "client"), "seed": "ab".repeat(32),
        "config": {
            "room": "r", "pins": [{"tool": "lamp", "owner": "phone"}], "times": {"graceMs": 100}, "caps": {"count": 3},
            "version": "me/1", "admit": ["a"], "maxPacket": 900,
        },
    });
    let random = &mut Random(1);
    let (mut created, mut malformed) = (0, 0);
    for _ in 0..5_000 {
        let mut input = create.clone();
        change(&mut input, random);
        let mut text = input.to_string();
        if random.below(8) == 0 {
            text = garble(&text, random);
        }
        match JsonSession::create(&text) {
            Ok(mut session) => {
                session.handle(r#"{"type":"timeout","atMs":9}"#, None).unwrap();
                while session.next_output().is_some() {}
                created += 1;
            }
            Err(_) => malformed += 1,
        }
    }
    assert!(created > 300 && malformed > 300, "{created} {malformed}");
}
