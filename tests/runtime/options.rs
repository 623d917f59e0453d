//! Limits on other participants: the option of each, its default, and that setting it has an effect.

use std::time::Duration;

use serde_json::json;
use toolbridge::{
    Assistant, CallError, Caps, Client, Config, Event, State, Times, Tool, ToolError, Tools, Value,
    frame::{Frame, Kind, Message, Meta, ToolProgress, ToolsRegister},
    memory,
    session::{CONSENT_MARGIN, Request},
    tools::RegisterError,
    transport::{Lane, Participant, STREAM_TOPIC, StreamHeader, StreamPart, TransportEvent},
};

use crate::session_world::{MS, SECOND, World, plain_request, request, tool, value};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

#[test]
fn options_have_their_documented_defaults() {
    let caps = Caps::default();
    let sizes = [
        ("an id", caps.frames.id_bytes, 128),
        ("tools of one participant", caps.tools.count, 128),
        ("a description", caps.tools.description_bytes, 8 * KIB),
        ("a schema", caps.tools.schema_bytes, 16 * KIB),
        ("all of a registration", caps.tools.registration_bytes, 256 * KIB),
        ("a frame of an owner or assistant", caps.frames.max_frame, 16 * MIB),
        ("a frame of others", caps.frames.max_frame_of_others, 256 * KIB),
        ("streams of one sender", caps.frames.streams_per_peer, 4),
        ("all streams", caps.frames.stream_bytes, 32 * MIB),
        ("calls in one second", caps.requests.calls_per_second as usize, 50),
        ("bytes of requests by RPC in one second", caps.requests.rpc_bytes_per_second, 8 * MIB),
        ("open calls of one peer", caps.calls.open_per_peer, 64),
        ("progress in one second", caps.requests.progress_per_second as usize, 10),
        ("one progress", caps.requests.progress_bytes, 4 * KIB),
        ("frames of a replay", caps.frames.retransmit_frames, 256),
        ("bytes of a replay", caps.frames.retransmit_bytes, 4 * MIB),
        ("remembered requests of one caller", caps.requests.table_entries, 4_096),
        ("results of one caller that wait", caps.requests.table_bytes, 32 * MIB),
        ("equal calls of a turn", caps.calls.equal_calls as usize, 5),
        // Not in the wire contract, but bounded as well.
        ("prompts of one caller", caps.requests.open_prompts, 8),
        ("questions to a person", caps.requests.open_questions, 8),
        ("frames of one unannounced sender", caps.frames.held_frames, 32),
        ("frames of all unannounced senders", caps.frames.held_frames_of_all, 256),
        ("bytes of frames that wait", caps.frames.held_bytes, MIB),
        ("identities that left", caps.requests.remembered_peers, 1_024),
        ("tools that run", caps.requests.running_jobs, 64),
        ("calls that wait to run", caps.requests.waiting_jobs, 256),
        ("an error message", caps.requests.message_bytes, 4 * KIB),
        ("late results", caps.calls.late_results, 32),
        // Constants: they belong to names, to the protocol, or to the form of a result for a model.
        ("a tool's name", toolbridge::tools::MAX_TOOL_NAME, 64),
        ("an answer to a model", toolbridge::chat::MAX_CONTENT, 32 * KIB),
    ];
    for (what, size, documented) in sizes {
        assert_eq!(size, documented, "{what}");
    }
    let times = Times::default();
    let durations = [
        ("the memory of a request beyond its budget", times.memory, 60 * SECOND),
        ("the silence of a stream", times.stream_idle, 10 * SECOND),
        ("a stream as a whole", times.stream, 60 * SECOND),
        ("between two refusals of a registration", times.denial, 60 * SECOND),
        ("the end of a question before the budget's", CONSENT_MARGIN, 500 * MS),
        ("the longest budget", times.longest_call, 600 * SECOND),
        ("the budget that is not named", times.call, 30 * SECOND),
        ("the wait for an owner", times.owner_wait, 5 * SECOND),
        ("the grace", times.grace, 5 * SECOND),
        ("the wait for an announcement", times.hold, 4 * SECOND),
        ("a heartbeat's silence", times.heartbeat, 30 * SECOND),
    ];
    for (what, time, documented) in durations {
        assert_eq!(time, documented, "{what}");
    }
}

#[cfg(feature = "livekit")]
#[test]
fn token_lasts_ten_minutes_by_default() {
    assert_eq!(toolbridge::livekit::Token::TTL, 600 * SECOND);
    let key = toolbridge::livekit::AccessKey::new("devkey", "a secret of some length, for a test");
    assert_ne!(key.client("r", "a").sign().unwrap(), key.client("r", "a").ttl(60 * SECOND).sign().unwrap());
}

/// An assistant and a phone that offers `t`, with changed limits.
fn pair(change: impl Fn(&mut Config)) -> World {
    let config = || {
        let mut config = Config::default().streams(true);
        change(&mut config);
        config
    };
    let mut world = World::new();
    world.assistant("a", config());
    world.client("phone", config(), &["t"]);
    world.run(200 * MS);
    world
}

/// The outcomes of this many calls at once, one second later.
fn refused(world: &mut World, calls: usize) -> Vec<CallError> {
    let mut refused = Vec::new();
    let mut keys = Vec::new();
    for n in 0..calls {
        match world.call("a", Request::new("t", value(n as i32))) {
            Ok(key) => keys.push(key),
            Err(error) => refused.push(error),
        }
    }
    world.run(SECOND);
    for key in keys {
        let at = world.ends["a"].settled.iter().position(|(settled, _)| *settled == key);
        if let Some(Err(error)) = at.map(|at| world.ends.get_mut("a").unwrap().settled.remove(at).1) {
            refused.push(error);
        }
    }
    refused
}

#[test]
fn admission_without_a_role_can_be_set() {
    for only_roles in [false, true] {
        let config = Config::default();
        let config = if only_roles { config.admit_only_roles() } else { config };
        let mut world = World::new();
        world.assistant("a", config);
        let who = Participant::new("phone", world.sid()).can_update_metadata(false);
        let mut phone = toolbridge::session::Session::client(
            world.now,
            who.clone(),
            Config::default().room("room"),
            [1; 32],
        );
        phone.offer(world.now, vec![tool("t")]).unwrap();
        world.enter(&who, Some(phone));
        world.run(SECOND);
        assert_eq!(world.session("a").tools().is_empty(), only_roles);
    }
}

#[test]
fn call_limits_can_be_set() {
    let mut world = pair(|config| config.caps.requests.calls_per_second = 2);
    world.handle("phone", |_| Some(Ok(value(1))));
    assert!(matches!(refused(&mut world, 3)[..], [CallError::Busy { .. }]));

    let mut world = pair(|config| config.caps.calls.open_per_peer = 2);
    assert!(matches!(refused(&mut world, 3)[..], [CallError::TooManyOpen { open: 2 }]));

    let mut world = pair(|config| config.caps.calls.open_calls = 1);
    assert!(matches!(refused(&mut world, 2)[..], [CallError::TooManyOpen { open: 1 }]));

    // An unanswered request cannot be forgotten, so there is no room for more.
    let mut world = pair(|config| config.caps.requests.table_entries = 2);
    assert!(matches!(refused(&mut world, 3)[..], [CallError::Busy { .. }]));

    let mut world = pair(|config| config.caps.calls.equal_calls = 1);
    let turn = world.with("a", |session, _| session.turn()).unwrap();
    world.call("a", request("t").turn(turn)).unwrap();
    let error = world.call("a", request("t").turn(turn)).unwrap_err();
    assert!(matches!(error, CallError::TooManyEqual { limit: 1, .. }), "{error}");
}

#[test]
fn registration_limits_can_be_set() {
    let offer = |change: fn(&mut Caps), tools: Vec<Tool>| {
        let mut config = Config::default().room("room");
        change(&mut config.caps);
        let mut session = toolbridge::session::Session::client(
            World::new().now,
            Participant::new("phone", "PA_1"),
            config,
            [1; 32],
        );
        session.offer(World::new().now, tools)
    };
    let one = || {
        let tool = Tool::new("one".parse().unwrap(), "described").schema(json!({"type": "object"}));
        tool.with_title("One")
            .with_source("here")
            .with_output_schema(json!({"type": "object", "title": "One"}))
    };
    let many = offer(|caps| caps.tools.count = 1, vec![one(), tool("two")]);
    assert!(matches!(many, Err(RegisterError::TooMany { count: 2, limit: 1 })), "{many:?}");
    for (change, part) in [
        ((|caps| caps.tools.description_bytes = 3) as fn(&mut Caps), "description"),
        (|caps| caps.tools.description_bytes = 11, "title"),
        (|caps| caps.tools.description_bytes = 15, "source"),
        (|caps| caps.tools.schema_bytes = 3, "schema"),
        (|caps| caps.tools.schema_bytes = 30, "output schema"),
    ] {
        match offer(change, vec![one()]) {
            Err(RegisterError::TooLarge { part: named, .. }) => assert_eq!(named, part),
            other => panic!("{other:?}"),
        }
    }
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.tools.registration_bytes = 15;
    world.assistant("a", config);
    world.client("phone", Config::default(), &["one", "two"]); // each of 10 bytes
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 1);
}

#[test]
fn assistant_refuses_annotations_above_its_limits_and_reads_the_others() {
    let mut world = World::new();
    let mut config = Config::default();
    (config.caps.tools.description_bytes, config.caps.tools.schema_bytes) = (4, 28);
    world.assistant("a", config);
    world.client("phone", Config::default(), &[]);
    world.run(SECOND);
    let tool =
        |name: &str, title: &str| Tool::new(name.parse().unwrap(), "").with_title(title).with_source("hub");
    world.with("phone", |session, now| {
        session.offer(now, vec![tool("kept", "Kept"), tool("large", "Too large for it")]).unwrap();
    });
    world.run(SECOND);
    let offers = world.session("a").tools();
    assert_eq!(offers.iter().map(|it| &it.tool).collect::<Vec<_>>(), [&tool("kept", "Kept")]);
    let refused = world.ends["phone"].events.iter().find_map(|event| match event {
        Event::Registered { refused, tools: 1, .. } => refused.clone(),
        _ => None,
    });
    assert_eq!(refused.as_deref(), Some("large: the annotations exceed the limit of 32 bytes"));
}

#[test]
fn size_limits_of_ids_frames_and_streams_can_be_set() {
    let mut world = pair(|config| config.caps.frames.id_bytes = 4);
    let a = world.ends["a"].who.peer().clone();
    for id in ["four", "fives"] {
        let message = Message::ToolUseRequest(plain_request(id, "t"));
        let bytes = Frame::write(-90, "room", &Meta::new(), &message).unwrap();
        world.send_bytes_as(&a, &["phone"], &bytes);
    }
    world.run(SECOND);
    assert_eq!((world.ends["phone"].jobs.len(), world.count("phone", "malformed")), (1, 1));

    let mut world = pair(|config| config.caps.frames.max_frame = 20_000);
    let text = |length: usize| Value::from(json!({"text": "x".repeat(length)}));
    let error = world.call("a", Request::new("t", text(20_000))).unwrap_err();
    assert!(matches!(error, CallError::TooLarge { limit: 20_000, .. }), "{error:?}");
    assert!(world.call("a", Request::new("t", text(19_000))).is_ok());

    let header =
        |id: &str, length: u64| StreamPart::Header(StreamHeader::new(id.to_owned(), STREAM_TOPIC, length));
    let mut world = pair(|config| {
        config.caps.frames.max_frame_of_others = 1_000;
        config.caps.frames.streams_per_peer = 1;
        config.times.stream_idle = 2 * SECOND;
    });
    let phone = world.ends["phone"].who.peer().clone();
    for (part, refused) in [(header("1", 1_001), 1), (header("2", 1_000), 1), (header("3", 1_000), 2)] {
        world.send_part(&phone, &["a"], &part);
        world.run(100 * MS);
        assert_eq!(world.count("a", "stream_refused"), refused);
    }
    world.run(SECOND);
    assert_eq!(world.count("a", "stream_broken"), 0);
    world.run(2 * SECOND);
    assert_eq!(world.count("a", "stream_broken"), 1);

    let mut world = pair(|config| config.caps.frames.stream_bytes = 200); // half for one sender
    world.send_part(&phone_of(&world), &["a"], &header("1", 90));
    let chunk = StreamPart::Chunk { id: "1".into(), index: 0, bytes: vec![0; 90].into() };
    world.send_part(&phone_of(&world), &["a"], &chunk);
    world.send_part(&phone_of(&world), &["a"], &header("2", 90));
    let chunk = StreamPart::Chunk { id: "2".into(), index: 0, bytes: vec![0; 90].into() };
    world.send_part(&phone_of(&world), &["a"], &chunk);
    world.run(SECOND);
    assert_eq!(world.count("a", "stream_refused"), 1);
}

#[test]
fn size_limit_of_other_frame_types_can_be_set() {
    let mut world = pair(|config| config.caps.frames.max_frame_of_others = 300);
    let (phone, meta) = (phone_of(&world), Meta::new());
    for (size, taken) in [(100, true), (400, false)] {
        let body = Value::encode(&"x".repeat(size)).unwrap();
        let mut bytes = Vec::new();
        Frame::relay(&mut bytes, 1, "room", &meta, Kind::new(33), body.as_bytes()).unwrap();
        world.ends.get_mut("a").unwrap().events.clear();
        world.send_bytes_as(&phone, &["a"], &bytes);
        world.run(100 * MS);
        let reported = world.ends["a"].events.iter().any(|event| matches!(event, Event::Frame { .. }));
        assert_eq!(reported, taken, "{size} B");
    }
    assert_eq!(world.count("a", "frame_too_large"), 1);
}

fn phone_of(world: &World) -> toolbridge::transport::Peer {
    world.ends["phone"].who.peer().clone()
}

#[test]
fn progress_limits_can_be_set() {
    let mut world = pair(|config| {
        config.caps.requests.progress_per_second = 2;
        config.caps.requests.progress_bytes = 8;
    });
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    for n in 0..10 {
        let text = format!("{n} is longer than that");
        world.with("phone", |session, now| session.progress(now, job, text.clone().into()));
        world.run(50 * MS);
    }
    let reported: Vec<_> = world
        .sent("phone", Kind::TOOL_PROGRESS)
        .iter()
        .filter_map(|(_, frame)| match frame.message().unwrap() {
            Message::ToolProgress(ToolProgress { message, .. }) => message,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!((1..=2).contains(&reported.len()), "{reported:?}");
    assert!(reported.iter().all(|text| text.len() <= 8), "{reported:?}");
    // Twice as much is accepted from an owner that sends more, because its seconds start at other times.
    let id = world.sent("a", Kind::TOOL_USE_REQUEST)[0].1.clone();
    let id = id.peek_id().unwrap().to_owned();
    let before = world.count("a", "progress_dropped");
    for _ in 0..10 {
        let progress = Message::ToolProgress(ToolProgress::new(
            id.parse().unwrap(),
            toolbridge::tools::ProgressStatus::InProgress,
        ));
        let bytes = Frame::write(900, "room", &Meta::new(), &progress).unwrap();
        world.send_bytes_as(&phone_of(&world), &["a"], &bytes);
    }
    world.run(2 * MS + 20 * MS);
    assert!(world.count("a", "progress_dropped") - before >= 6);
}

#[test]
fn denial_interval_can_be_set() {
    for (denial, answers) in [(60 * SECOND, 1), (SECOND, 5), (Duration::ZERO, 10)] {
        let mut world = pair(|config| config.times.denial = denial);
        world.stranger("x");
        world.run(SECOND);
        for _ in 0..10 {
            let registration = Message::ToolsRegister(ToolsRegister::default());
            world.send("x", &["a"], &Meta::new(), &registration);
            world.run(500 * MS);
        }
        assert_eq!(world.received("x", Kind::TOOLS_REGISTER_ACK).len(), answers, "once in {denial:?}");
    }
}

#[test]
fn limit_of_frames_from_unannounced_senders_can_be_set() {
    for (caps, held) in [((32, 256), 40), ((2, 256), 8), ((32, 3), 3)] {
        let mut world =
            pair(|config| (config.caps.frames.held_frames, config.caps.frames.held_frames_of_all) = caps);
        let before = world.count("a", "held");
        for n in 0..40 {
            let nobody = toolbridge::transport::Peer::new(format!("nobody-{}", n % 4), format!("PA_{n}"));
            let message = Message::Heartbeat;
            let bytes = Frame::write(n + 1, "room", &Meta::new(), &message).unwrap();
            world.with("a", |session, now| {
                session.handle_event(now, TransportEvent::packet(nobody.clone(), Lane::Reliable, bytes))
            });
        }
        assert_eq!(world.count("a", "held") - before, held, "{caps:?}");
    }
}

#[test]
fn limit_of_open_prompts_can_be_set() {
    for most in [1, 8] {
        let mut world = pair(|config| {
            *config = std::mem::take(config).prompts(true);
            config.caps.requests.open_prompts = most;
        });
        let ask = || {
            let arguments = Value::from(json!({"text": "which?", "choices": [{"title": "this"}]}));
            Request::new("bridge.choose", arguments).to("phone").timeout(20 * SECOND)
        };
        for _ in 0..10 {
            world.call("a", ask()).unwrap();
        }
        world.run(SECOND);
        assert_eq!(world.ends["phone"].jobs.len(), most);
        let busy = |result: &Result<Value, CallError>| matches!(result, Err(CallError::Busy { .. }));
        assert_eq!(world.ends["a"].settled.iter().filter(|(_, result)| busy(result)).count(), 10 - most);
    }
}

#[test]
fn limit_of_remembered_peers_can_be_set() {
    let returning = |most: usize| {
        let mut world = pair(|config| config.caps.requests.remembered_peers = most);
        for n in 0..6 {
            let name = format!("guest{n}");
            world.client(&name, Config::default(), &["u"]);
            world.run(SECOND);
            world.leave(&name);
            world.run(10 * SECOND);
        }
        world.run(200 * SECOND);
        // The session's debug output contains what it knows of the peer.
        let known = format!("{:?}", world.session("a"));
        (0..6).filter(|n| known.contains(&format!("guest{n}"))).count()
    };
    assert_eq!(returning(1_024), 6);
    assert!(returning(2) <= 3);
}

async fn until_stopped(State(running): State<tokio::sync::watch::Sender<u32>>) -> Result<(), ToolError> {
    running.send_modify(|count| *count += 1);
    std::future::pending().await
}

#[tokio::test(start_paused = true)]
async fn limits_of_running_and_waiting_tools_can_be_set() {
    for (running, waiting) in [(1, 0), (2, 3), (5, 0)] {
        let room = memory::MemoryRoom::new();
        let (count, mut counted) = tokio::sync::watch::channel(0);
        let tools = Tools::with_state(count).tool("t", "", until_stopped);
        let client = Client::builder().tools(tools).configure(|config| {
            config.caps.requests.running_jobs = running;
            config.caps.requests.waiting_jobs = waiting;
        });
        let _client = client.join_over(room.client("phone")).await.unwrap();
        let assistant = Assistant::builder().join_over(room.assistant("a")).await.unwrap();
        let calls: Vec<_> =
            (0..10).map(|_| assistant.call("t", ()).timeout(Duration::from_secs(9)).start()).collect();
        let mut outcomes = (0, 0);
        for call in calls {
            match call.await {
                // One that waited until its time limit was near has no place either.
                Err(CallError::Busy { limit: Some(limit), .. }) if !limit.contains("no place to run") => {
                    outcomes.0 += 1;
                }
                Err(CallError::Timeout { .. } | CallError::Tool(_) | CallError::Busy { .. }) => {
                    outcomes.1 += 1
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(outcomes, (10 - running - waiting, running + waiting), "{running} and {waiting}");
        assert!(*counted.borrow_and_update() as usize >= running);
    }
}
