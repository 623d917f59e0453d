//! Frames that arrive again, late, out of order or after a gap: the call's id identifies them, not their stanza.

use toolbridge::{
    CallError, Config, Role, Value,
    frame::{Acknowledgement, Configuration, ControlStop, Frame, Kind, Message, Meta},
    tools::Execution,
    transport::Participant,
};

use crate::session_world::{Fate, MS, SECOND, World, plain_request, request, value};

/// The same frame under another stanza.
fn under(stanza: i32, frame: &Frame) -> Vec<u8> {
    let meta =
        ["bridge.to", "traceparent"].into_iter().fold(Meta::new(), |meta, key| match frame.meta_str(key) {
            Some(text) => meta.with_text(key, text),
            None => meta,
        });
    let mut bytes = Vec::new();
    Frame::relay(&mut bytes, stanza, "room", &meta, frame.kind(), frame.body_bytes()).unwrap();
    bytes
}

/// What the two ends have run and reported.
fn activity(world: &World) -> [usize; 5] {
    let [a, phone] = [&world.ends["a"], &world.ends["phone"]];
    [
        world.executed.len(),
        phone.aborted.len(),
        a.settled.len(),
        world.session("a").open_calls(),
        world.session("phone").open_jobs(),
    ]
}

#[test]
fn protocol_a17_repeated_frames_have_no_effect_whatever_their_stanza() {
    let mut world = World::pair(&["quick", "stopped", "open"]);
    world.handle("phone", |job| (job.tool.as_str() == "quick").then(|| Ok(value(1))));
    world.call("a", request("quick")).unwrap();
    let stopped = world.call("a", request("stopped")).unwrap();
    let open = world.call("a", request("open").timeout(500 * SECOND)).unwrap();
    world.run(200 * MS);
    world.with("a", |session, now| session.cancel(now, stopped));
    world.run(200 * MS);
    let before = activity(&world);
    assert_eq!(before, [3, 1, 2, 1, 1]);

    let kinds = [Kind::TOOL_USE_REQUEST, Kind::TOOL_USE_RESULT, Kind::CONTROL_STOP, Kind::ACKNOWLEDGEMENT];
    let mut repeated = 0;
    for (from, to, sign) in [("a", "phone", -1), ("phone", "a", 1)] {
        let peer = world.ends[from].who.peer().clone();
        for kind in kinds {
            for (_, frame) in world.sent(from, kind) {
                // Unchanged, as the first, after a gap, and as the highest possible.
                let its = frame.stanza_id().unwrap();
                for stanza in [its, sign, its + sign * 1_000, sign * i32::MAX] {
                    world.send_bytes_as(&peer, &[to], &under(stanza, &frame));
                    world.run(30 * MS);
                    repeated += 1;
                }
            }
        }
    }
    assert!(repeated >= 4 * 10, "{repeated}");
    world.run(SECOND);
    assert_eq!(activity(&world), before);
    assert!(world.settled("a", open).is_none());
    let ignored = ["a", "phone"].map(|end| world.count(end, "out_of_order"));
    assert_eq!(ignored, [0, 0], "a later stanza replaces none of these frames");
    for end in ["a", "phone"] {
        assert_eq!(world.count(end, "malformed") + world.count(end, "not_permitted"), 0);
    }
    assert!(world.count("phone", "duplicate") >= 12, "each request arrived four times");

    // The following stanzas are all lower than one that arrived: they are accepted normally.
    assert_eq!(world.ask("a", request("quick")).unwrap(), value(1));
    world.ends.get_mut("phone").unwrap().jobs.retain(|job| job.tool.as_str() == "open");
    world.finish("phone", Ok(value(2)));
    world.run(SECOND);
    assert_eq!(world.settled("a", open).unwrap().as_ref().unwrap(), &value(2));
}

#[test]
fn protocol_a17_gap_between_stanzas_is_accepted() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    // Frames for other participants use stanzas too.
    world.stranger("x");
    world.run(SECOND);
    world.ask("a", request("t")).unwrap();
    for _ in 0..50 {
        let to = toolbridge::session::Destination::Peers(vec!["x".into()]);
        let body = Value::empty();
        world
            .with("a", |session, now| session.send(now, to.clone(), Kind::new(2), Meta::new(), body.clone()))
            .unwrap()
            .unwrap();
    }
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    let stanzas: Vec<_> =
        world.sent("a", Kind::TOOL_USE_REQUEST).iter().map(|(_, frame)| frame.stanza_id().unwrap()).collect();
    assert!(stanzas[0] - stanzas[1] > 50, "{stanzas:?}");
    assert_eq!(world.count("phone", "out_of_order"), 0);
}

/// Each of 64 cancelled calls has its request lost on the lossy lane, so that its stop arrives first.
fn after_64_quick_cancels() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    world.client("phone", Config::default().lossy(true), &["t"]);
    world.run(SECOND);
    world.handle("phone", |_| None);
    world.lossy.lose = Some(Box::new(|_, _, frame| frame.kind() == Kind::TOOL_USE_REQUEST));
    for _ in 0..64 {
        let key = world.call("a", request("t")).unwrap();
        world.with("a", |session, now| session.cancel(now, key));
        world.run(100 * MS);
    }
    world.lossy.lose = None;
    world.run(5 * SECOND);
    world
}

#[test]
fn call_cancelled_after_64_quick_cancels_never_starts() {
    let mut world = after_64_quick_cancels();
    world.delay = 60 * MS;
    let key = world.call("a", request("t")).unwrap();
    world.delay = 10 * MS; // its stop overtakes it
    world.with("a", |session, now| session.cancel(now, key));
    world.run(20 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    assert_eq!((world.executed.len(), world.session("phone").open_jobs()), (0, 0));
}

#[test]
fn call_after_64_quick_cancels_runs() {
    let mut world = after_64_quick_cancels();
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

#[test]
fn first_of_65_quick_cancels_never_starts_however_late_its_request() {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    world.client("phone", Config::default().lossy(true), &["t"]);
    world.run(SECOND);
    world.handle("phone", |_| None);
    world.lossy.lose = Some(Box::new(|_, _, frame| frame.kind() == Kind::TOOL_USE_REQUEST));
    for _ in 0..65 {
        let key = world.call("a", request("t")).unwrap();
        world.with("a", |session, now| session.cancel(now, key));
        world.run(100 * MS);
    }
    let requests = world.sent("a", Kind::TOOL_USE_REQUEST);
    for (_, frame) in [&requests[0], &requests[64]] {
        world.send_bytes("a", &["phone"], &frame.to_bytes());
        world.run(SECOND);
    }
    assert_eq!(world.executed.len(), 0);
}

/// A phone that offers `t`, and an assistant that the test plays and that shook hands.
fn played_assistant(config: Config) -> World {
    let mut world = World::new();
    world.client("phone", config, &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let meta = Meta::new().with_text("bridge.instance", "one").with_bool("bridge.heard", true);
    let features = ["tool_use", "tool_register", "tool_ack", "tool_cancel", "tool_claim"];
    let features = Some(features.map(String::from).to_vec());
    let configuration = with!(Configuration::default(), features = features);
    world.send("a", &["phone"], &meta, &Message::Configuration(configuration));
    world.run(200 * MS);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    world
}

fn say(world: &mut World, stanza: i32, message: &Message) {
    let bytes = Frame::write(stanza, "room", &Meta::new(), message).unwrap();
    world.send_bytes("a", &["phone"], &bytes);
    world.run(100 * MS);
}

fn either(id: &str, tool: &str) -> Message {
    Message::ToolUseRequest(with!(plain_request(id, tool), execution = Ok(Execution::Either)))
}

fn acknowledge_result(world: &mut World, stanza: i32) {
    let result = world.sent("phone", Kind::TOOL_USE_RESULT).last().unwrap().1.stanza_id();
    let received = with!(Acknowledgement::default(), acknowledged_stanza_id = result, success = Some(true));
    say(world, stanza, &Message::Acknowledgement(received));
}

fn codes(world: &World) -> Vec<String> {
    let code = |message| match message {
        Message::ToolUseResult(it) => {
            it.error_code.map_or_else(|| "success".to_owned(), |code| code.to_string())
        }
        other => panic!("{other:?}"),
    };
    world.received("a", Kind::TOOL_USE_RESULT).into_iter().map(code).collect()
}

#[test]
fn stop_of_all_calls_ends_those_that_are_claimed() {
    let mut world = played_assistant(Config::default());
    say(&mut world, -2, &either("1", "t"));
    assert!(codes(&world).is_empty() && world.executed.is_empty(), "it is claimed");
    say(&mut world, -3, &Message::ControlStop(ControlStop::default()));
    assert_eq!(codes(&world), ["cancelled"]);
    let claim = world.sent("phone", Kind::ACKNOWLEDGEMENT).iter().find_map(|(_, frame)| frame.stanza_id());
    let grant = with!(Acknowledgement::default(), acknowledged_stanza_id = claim, success = Some(true));
    say(&mut world, -4, &Message::Acknowledgement(grant));
    assert!(world.executed.is_empty());
}

#[test]
fn request_of_an_unknown_tool_is_refused_and_not_claimed() {
    let mut world = played_assistant(Config::default());
    say(&mut world, -2, &either("1", "other"));
    assert_eq!(codes(&world), ["unknown_tool"]);
}

#[test]
fn request_without_a_stanza_runs_as_long_as_no_other_was_forgotten() {
    let mut world = played_assistant(Config::default());
    let body = serde_json::json!({"id": "1", "toolName": "t", "parameters": {}, "execution": "client"});
    let frame = serde_json::json!({"type": 6, "conversationId": "room", "body": body});
    world.send_bytes("a", &["phone"], Value::encode(&frame).unwrap().as_bytes());
    world.run(100 * MS);
    assert_eq!(world.executed.len(), 1);
}

#[test]
fn request_with_another_execution_is_another_request() {
    let mut world = played_assistant(Config::default());
    say(&mut world, -2, &Message::ToolUseRequest(plain_request("1", "t")));
    say(&mut world, -3, &either("1", "t"));
    assert_eq!(world.received("a", Kind::ERROR).len(), 1);
    assert_eq!(world.executed.len(), 1);
}

/// The stop is not remembered for lack of room, so its request must count as older than what is remembered.
#[test]
fn request_whose_stop_found_no_room_does_not_run() {
    let mut config = Config::default();
    config.caps.requests.table_entries = 1;
    let mut world = played_assistant(config);
    say(&mut world, -2, &Message::ToolUseRequest(plain_request("1", "t")));
    let stop = with!(ControlStop::default(), target_id = Some("2".to_owned()));
    say(&mut world, -4, &Message::ControlStop(stop));
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    acknowledge_result(&mut world, -5);
    say(&mut world, -3, &Message::ToolUseRequest(plain_request("2", "t")));
    assert_eq!(world.executed.len(), 1);
}

#[test]
fn observer_gets_one_copy_of_a_result_that_is_sent_again() {
    let mut world = World::pair(&["t"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    world.fate = Some(Box::new(|to, from, frame| match (to, frame.kind()) {
        ("a", Kind::TOOL_USE_RESULT) if *from == "phone" => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    world.fate = None;
    world.rejoin("phone");
    world.run(2 * SECOND);
    assert!(world.settled("a", key).unwrap().is_ok());
    assert_eq!(world.received("watch", Kind::TOOL_USE_RESULT).len(), 1);
}

#[test]
fn last_record_of_an_id_that_was_used_again_is_found() {
    let mut config = Config::default();
    config.caps.calls.call_log = 1;
    let mut world = played_assistant(config);
    world.handle("phone", |_| Some(Ok(value(1))));
    for stanza in [-2, -4] {
        say(&mut world, stanza, &Message::ToolUseRequest(plain_request("1", "t")));
        acknowledge_result(&mut world, stanza - 1);
        world.run(300 * SECOND);
    }
    assert_eq!(world.executed.len(), 2, "the first was forgotten");
    assert!(world.session("phone").record(&"1".parse().unwrap()).is_some());
}

/// No rule of the tool says that its calls go on.
#[test]
fn stop_without_a_target_stops_the_call_of_a_tool_that_was_withdrawn() {
    let mut world = played_assistant(Config::default());
    say(&mut world, -2, &Message::ToolUseRequest(plain_request("1", "t")));
    world.run(SECOND);
    world.with("phone", |session, now| session.offer(now, Vec::new())).unwrap().unwrap();
    say(&mut world, -3, &Message::ControlStop(ControlStop::default()));
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}
