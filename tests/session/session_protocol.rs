//! The checklist of the protocol, row by row, on virtual time.

use toolbridge::{
    CallError, Config, ErrorCode, Event, Role, Tool, ToolError, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, Meta,
        RegisteredTool, ToolProgress, ToolUseRequest, ToolUseResult, ToolsRegister,
    },
    session::{CallState, Request},
    tools::{Execution, NotOffered, ProgressStatus},
    transport::Participant,
};

use crate::session_world::{MS, SECOND, World, plain_request, receivers, request, tool, value};

/// A phone with these tools, and a plain assistant that the test plays.
fn plain_assistant(tools: &[&str]) -> World {
    let mut world = World::new();
    world.client("phone", Config::default(), tools);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    world
}

/// A toolbridge assistant, and a plain client named `phone` that the test plays.
fn plain_client() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world
}

fn say_request(world: &mut World, request: ToolUseRequest) {
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(request));
}

fn results(world: &World, name: &str) -> Vec<ToolUseResult> {
    let read = |message| match message {
        Message::ToolUseResult(result) => result,
        other => panic!("not a result: {other:?}"),
    };
    world.received(name, Kind::TOOL_USE_RESULT).into_iter().map(read).collect()
}

fn errors(world: &World, name: &str) -> Vec<ErrorMessage> {
    let read = |message| match message {
        Message::Error(error) => error,
        other => panic!("not an error: {other:?}"),
    };
    world.received(name, Kind::ERROR).into_iter().map(read).collect()
}

fn code(result: &ToolUseResult) -> &str {
    result.error_code.as_ref().map_or("", ErrorCode::as_str)
}

#[test]
fn protocol_a1_results_out_of_order_settle_their_calls() {
    let mut world = World::pair(&["echo"]);
    let keys: Vec<_> = (0..40).map(|n| world.call("a", Request::new("echo", value(n))).unwrap()).collect();
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 40);
    world.ends.get_mut("phone").unwrap().jobs.reverse();
    while let Some(job) = world.ends["phone"].jobs.first().cloned() {
        world.finish("phone", Ok(job.arguments));
    }
    world.run(100 * MS);
    for (n, key) in keys.into_iter().enumerate() {
        assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(n as i32));
    }
}

#[test]
fn protocol_a6_failure_has_a_message_and_a_timeout_names_its_limit() {
    let mut world = plain_assistant(&["hang", "fail"]);
    say_request(&mut world, with!(plain_request("1", "hang"), timeout_ms = Some(1_234)));
    say_request(&mut world, plain_request("2", "none"));
    say_request(&mut world, plain_request("3", "fail"));
    world.run(100 * MS);
    let at = world.ends["phone"].jobs.iter().position(|job| job.tool.as_str() == "fail").unwrap();
    let job = world.ends.get_mut("phone").unwrap().jobs.remove(at);
    world.with("phone", |session, now| session.settle(now, job.key, Err("no such album".into())));
    world.run(2 * SECOND);
    let results = results(&world, "a");
    assert_eq!(results.len(), 3);
    assert!(
        results
            .iter()
            .all(|it| !it.success && it.error_message.as_ref().is_some_and(|text| !text.is_empty()))
    );
    let timeout = results.iter().find(|it| code(it) == "timeout").unwrap();
    assert!(timeout.error_message.as_ref().unwrap().contains("1234 ms"), "{timeout:?}");
}

#[test]
fn protocol_a7_assistant_waits_for_a_client_call_that_succeeds_or_fails() {
    let mut world = World::pair(&["good", "bad"]);
    world.handle("phone", |job| {
        let failed = || ToolError::new("too_dark", "the lamp is broken");
        Some(if job.tool.as_str() == "good" { Ok(value(1)) } else { Err(failed()) })
    });
    assert_eq!(world.ask("a", request("good")).unwrap(), value(1));
    match world.ask("a", request("bad")).unwrap_err() {
        CallError::Tool(error) => {
            assert_eq!((error.code().as_str(), error.message()), ("too_dark", "the lamp is broken"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn protocol_a8_server_call_is_shown_and_never_executed_or_answered() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["search"]);
    world.run(200 * MS);
    world.with("a", |session, now| session.offer(now, vec![tool("search_web")])).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(5))));
    let before = world.sent("phone", Kind::TOOL_USE_RESULT).len();
    assert_eq!(world.ask("a", request("search_web")).unwrap(), value(5));
    world.run(SECOND);
    assert!(world.ends["phone"].jobs.is_empty());
    assert_eq!(world.sent("phone", Kind::TOOL_USE_RESULT).len(), before);
    let server = |event: &&Event| match event {
        Event::Requested { execution, .. } | Event::Settled { execution, .. } => {
            *execution == Execution::Server
        }
        _ => false,
    };
    assert_eq!(
        world.ends["phone"].events.iter().filter(server).count(),
        2,
        "one event for the request and one for its end"
    );
    // The same for a request with execution `server` for a tool that the phone has.
    let mut world = plain_assistant(&["t"]);
    say_request(&mut world, plain_request("0", "t"));
    let server = with!(plain_request("1", "t"), execution = Ok(Execution::Server));
    world.send("a", &[], &Meta::new(), &Message::ToolUseRequest(server));
    world.run(SECOND);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
}

#[cfg(feature = "runtime")]
#[test]
fn protocol_a10_each_client_request_has_one_result() {
    let mut world = plain_assistant(&["ok", "err", "hang"]);
    world.handle("phone", |job| match job.tool.as_str() {
        "ok" => Some(Ok(value(1))),
        "err" => Some(Err(std::io::Error::other("secret").into())),
        _ => None,
    });
    let odd = |id: &str, parameters: Value| with!(plain_request(id, "ok"), parameters = parameters);
    say_request(&mut world, plain_request("fine", "ok"));
    say_request(&mut world, plain_request("thrown", "err"));
    say_request(&mut world, with!(plain_request("late", "hang"), timeout_ms = Some(100)));
    say_request(&mut world, plain_request("unknown", "none"));
    say_request(&mut world, with!(plain_request("zero", "ok"), timeout_ms = Some(0)));
    say_request(&mut world, with!(plain_request("negative", "ok"), timeout_ms = Some(-5)));
    say_request(&mut world, with!(plain_request("long", "ok"), timeout_ms = Some(600_001)));
    say_request(&mut world, odd("echoed", value(3)));
    world.run(SECOND);
    let by_id: std::collections::BTreeMap<_, _> =
        results(&world, "a").into_iter().map(|it| (it.id.to_string(), it)).collect();
    assert_eq!(results(&world, "a").len(), 8);
    let expected = [
        ("fine", ""),
        ("thrown", "execution_error"),
        ("late", "timeout"),
        ("unknown", "unknown_tool"),
        ("zero", "invalid_parameters"),
        ("negative", "invalid_parameters"),
        ("long", "invalid_parameters"),
        ("echoed", ""),
    ];
    for (id, expected) in expected {
        assert_eq!(code(&by_id[id]), expected, "{id}");
    }
    assert!(!by_id["thrown"].error_message.as_ref().unwrap().contains("secret"));
}

#[test]
fn protocol_a11_default_timeout_is_30_s_and_expiry_stops_the_job_and_drops_the_late_result() {
    let mut world = plain_assistant(&["hang"]);
    say_request(&mut world, with!(plain_request("1", "hang"), timeout_ms = None));
    world.run(SECOND);
    let job = world.ends["phone"].jobs[0].clone();
    assert_eq!(job.deadline.duration_since(world.began).as_secs(), 30);
    world.run(28 * SECOND);
    assert!(results(&world, "a").is_empty());
    world.run(2 * SECOND);
    assert_eq!(code(&results(&world, "a")[0]), "timeout");
    assert_eq!(world.ends["phone"].aborted, [job.key]);
    world.with("phone", |session, now| session.settle(now, job.key, Ok(value(1))));
    world.run(SECOND);
    assert_eq!(results(&world, "a").len(), 1, "the late result is dropped");
    // The caller's side: the same limit on its own clock; the owner's result is late.
    let mut world = World::pair(&["hang"]);
    let error = world.ask("a", request("hang")).unwrap_err();
    assert!(matches!(error, CallError::Timeout { limit } if limit == 30 * SECOND), "{error:?}");
    world.run(SECOND);
    assert_eq!(world.count("a", "late"), 1);
}

#[test]
fn protocol_a12_failed_tool_gives_a_result_and_malformed_data_an_error_message() {
    let mut world = plain_assistant(&["err"]);
    world.handle("phone", |_| Some(Err("broken".into())));
    say_request(&mut world, plain_request("1", "err"));
    say_request(&mut world, plain_request("2", "none"));
    world.run(100 * MS);
    assert_eq!((results(&world, "a").len(), errors(&world, "a").len()), (2, 0));
    // A request without a tool name.
    let body = Value::encode(&serde_json::json!({"id": "3", "execution": "client"})).unwrap();
    let mut bytes = Vec::new();
    Frame::relay(&mut bytes, -9, "room", &Meta::new(), Kind::TOOL_USE_REQUEST, body.as_bytes()).unwrap();
    world.send_bytes("a", &["phone"], &bytes);
    world.run(100 * MS);
    let errors = errors(&world, "a");
    assert_eq!((errors.len(), errors[0].code, errors[0].originating_id.as_deref()), (1, 101, Some("3")));
    // A malformed error message gets no reply: two such peers would never stop.
    let empty = Value::encode(&serde_json::json!({})).unwrap();
    Frame::relay(&mut bytes, -10, "room", &Meta::new(), Kind::ERROR, empty.as_bytes()).unwrap();
    world.run(2 * SECOND);
    world.send_bytes("a", &["phone"], &bytes);
    world.run(2 * SECOND);
    assert_eq!(world.received("a", Kind::ERROR).len(), 1);
    assert_eq!(world.count("phone", "malformed"), 2);
}

#[test]
fn protocol_a13_request_without_a_valid_execution_is_refused_and_not_run() {
    let mut world = plain_assistant(&["t"]);
    say_request(&mut world, plain_request("0", "t"));
    for (id, execution) in [("1", None), ("2", Some("everywhere"))] {
        let mut body = serde_json::json!({"id": id, "toolName": "t", "parameters": {}});
        if let Some(execution) = execution {
            body["execution"] = execution.into();
        }
        let mut bytes = Vec::new();
        let body = Value::encode(&body).unwrap();
        Frame::relay(&mut bytes, -5, "room", &Meta::new(), Kind::TOOL_USE_REQUEST, body.as_bytes()).unwrap();
        world.send_bytes("a", &["phone"], &bytes);
    }
    world.run(SECOND);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    let refused: Vec<_> =
        errors(&world, "a").into_iter().map(|it| (it.code, it.originating_id.unwrap())).collect();
    assert_eq!(refused, [(301, "1".to_owned()), (301, "2".to_owned())]);
}

#[test]
fn protocol_a18_conversation_of_another_room_is_refused() {
    let mut world = plain_assistant(&["t"]);
    say_request(&mut world, plain_request("0", "t"));
    let other = with!(plain_request("1", "t"), conversation_id = Some("elsewhere".into()));
    let bytes = Frame::write(-7, "elsewhere", &Meta::new(), &Message::ToolUseRequest(other)).unwrap();
    world.send_bytes("a", &["phone"], &bytes);
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    assert_eq!(errors(&world, "a")[0].code, 201);
    // The same for a Configuration.
    let configuration = with!(Configuration::default(), conversation_id = Some("elsewhere".into()));
    let bytes = Frame::write(-8, "elsewhere", &Meta::new(), &Message::Configuration(configuration)).unwrap();
    world.send_bytes("a", &["phone"], &bytes);
    world.run(100 * MS);
    assert_eq!(errors(&world, "a")[1].code, 201);
    assert_eq!(world.count("phone", "wrong_room"), 2);
}

#[test]
fn protocol_a24_requests_and_results_go_to_one_identity_and_count_only_from_it() {
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let to = receivers(&world.sent("a", Kind::TOOL_USE_REQUEST));
    assert_eq!(to.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["phone"]);
    // Another participant answers first: this has no effect.
    let id = world.with("a", |session, _| session.call_id(key).cloned()).unwrap().unwrap();
    let forged = with!(ToolUseResult::new(id, true), result = Some(value(666)));
    world.send("x", &["a"], &Meta::new(), &Message::ToolUseResult(forged));
    world.run(100 * MS);
    assert!(world.settled("a", key).is_none());
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    let to = receivers(&world.sent("phone", Kind::TOOL_USE_RESULT));
    assert_eq!(to.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["a"]);
    assert!(world.ends["x"].inbox.is_empty());
}

#[test]
fn protocol_a25_registration_is_acknowledged_with_its_count_and_replaces_the_previous_one() {
    let mut world = World::pair(&["one", "two"]);
    let registered = |world: &World| {
        world.ends["phone"]
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Registered { tools, refused, .. } => Some((*tools, refused.clone())),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(registered(&world), [(2, None)]);
    let schema = serde_json::json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let three = Tool::new("three".parse().unwrap(), "described").schema(schema.clone());
    world.with("phone", |session, now| session.offer(now, vec![three])).unwrap().unwrap();
    world.run(200 * MS);
    assert_eq!(registered(&world).len(), 2);
    let offers = world.session("a").tools();
    assert_eq!(offers.len(), 1);
    assert_eq!((offers[0].tool.name().as_str(), offers[0].tool.description()), ("three", "described"));
    assert_eq!(offers[0].tool.input_schema(), Some(&schema));
    assert_eq!(offers[0].owner, "phone");
    // A client that left fails its calls after the grace period, not at their timeout.
    let key = world.call("a", request("three")).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.run(4 * SECOND);
    assert!(world.settled("a", key).is_none());
    world.run(2 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { owner, .. })) if *owner == "phone"));
    assert!(world.session("a").tools().is_empty());
}

#[test]
fn plain_client_that_stops_its_heartbeat_loses_its_tools() {
    let mut world = plain_client();
    let configuration = Message::Configuration(Configuration::default());
    world.send("phone", &["a"], &Meta::new(), &configuration);
    let tools = vec![with!(RegisteredTool::default(), name = "t".into())];
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools)),
    );
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(200 * MS);
    assert_eq!(world.received("phone", Kind::CONFIGURATION).len(), 1);
    assert_eq!(world.received("phone", Kind::ACKNOWLEDGEMENT).len(), 1);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(29 * SECOND);
    assert!(world.settled("a", key).is_none());
    world.run(2 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
}

#[test]
fn frames_of_a_client_that_stops_its_heartbeat_show_that_it_is_alive() {
    let mut world = plain_client();
    let tools = vec![with!(RegisteredTool::default(), name = "t".into())];
    let registration = Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools));
    for message in [Message::Configuration(Configuration::default()), registration, Message::Heartbeat] {
        world.send("phone", &["a"], &Meta::new(), &message);
    }
    world.run(200 * MS);
    let key = world.call("a", request("t").timeout(200 * SECOND)).unwrap();
    world.run(SECOND);
    let Message::ToolUseRequest(asked) = world.received("phone", Kind::TOOL_USE_REQUEST).remove(0) else {
        panic!()
    };
    let progress = Message::ToolProgress(ToolProgress::new(asked.id, ProgressStatus::InProgress));
    for _ in 0..5 {
        world.run(20 * SECOND);
        world.send("phone", &["a"], &Meta::new(), &progress);
    }
    world.run(29 * SECOND);
    assert_eq!((world.settled("a", key).is_none(), world.session("a").tools().len()), (true, 1));
    for _ in 0..2 {
        world.run(2 * SECOND);
        assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
        assert_eq!(world.session("a").tools().len(), 0);
        world.send("phone", &["a"], &Meta::new(), &progress);
        world.run(29 * SECOND);
        assert_eq!(world.session("a").tools().len(), 1, "until it is silent again");
    }
}

#[test]
fn plain_client_gets_the_request_after_a_second_of_silence_and_its_result_counts() {
    let mut world = plain_client();
    let key = world.call("a", request("t").to("phone").timeout(10 * SECOND)).unwrap();
    world.run(1500 * MS);
    let asked = world.received("phone", Kind::TOOL_USE_REQUEST);
    let Some(Message::ToolUseRequest(asked)) = asked.first() else { panic!("no request arrived") };
    let frame =
        &world.ends["phone"].inbox.iter().find(|(_, it)| it.kind() == Kind::TOOL_USE_REQUEST).unwrap().1;
    assert_eq!(frame.meta_str("bridge.to"), None);
    let answer = with!(ToolUseResult::new(asked.id.clone(), true), result = Some(value(2)));
    world.send("phone", &["a"], &Meta::new(), &Message::ToolUseResult(answer));
    world.run(100 * MS);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(2));
}

#[test]
fn repeated_request_is_acknowledged_again_and_other_content_is_refused() {
    let mut world = plain_assistant(&["t"]);
    // It shakes hands and lists acknowledgements, by hand.
    let features = Some(vec!["tool_ack".to_owned()]);
    let configuration = Message::Configuration(with!(Configuration::default(), features = features));
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    world.send("a", &["phone"], &meta, &configuration);
    world.run(100 * MS);
    say_request(&mut world, plain_request("1", "t"));
    say_request(&mut world, plain_request("1", "t"));
    say_request(&mut world, with!(plain_request("1", "t"), parameters = value(1)));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    let acknowledged: Vec<_> = world
        .received("a", Kind::ACKNOWLEDGEMENT)
        .into_iter()
        .map(|message| match message {
            Message::Acknowledgement(Acknowledgement { acknowledged_stanza_id, .. }) => {
                acknowledged_stanza_id.unwrap()
            }
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(acknowledged, [-2, -3]);
    assert_eq!(errors(&world, "a")[0].code, 304);
    let meta = Meta::new().with_text("bridge.to", "0011223344556677");
    world.send("a", &["phone"], &meta, &Message::ToolUseRequest(plain_request("2", "t")));
    world.run(100 * MS);
    assert_eq!(errors(&world, "a")[1].code, 304, "a request to an earlier instance is refused");
    assert_eq!(world.ends["phone"].jobs.len(), 1);
}

#[test]
fn protocol_a15_result_is_recorded_and_progress_is_shown() {
    let mut world = World::pair(&["export"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    let key = world.call("a", request("export")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].clone();
    let record = |world: &World, name: &str| world.session(name).record(&job.call).cloned().unwrap();
    assert_eq!((record(&world, "a").state(), record(&world, "a").outcome), (CallState::Started, None));

    world.with("phone", |session, now| session.progress(now, job.key, "half of it".into()));
    world.run(SECOND);
    let reported = |event: &Event| {
        matches!(event, Event::Progress { key: Some(of), progress, .. }
            if *of == key && progress.message.as_deref() == Some("half of it"))
    };
    assert!(world.ends["a"].events.iter().any(reported), "the caller's application gets the progress");
    let shown = world.received("watch", Kind::TOOL_PROGRESS);
    let said =
        |it: &Message| matches!(it, Message::ToolProgress(it) if it.message.as_deref() == Some("half of it"));
    assert!(shown.iter().any(said), "the observer gets the progress too: {shown:?}");

    let result = value(7);
    world.finish("phone", Ok(result.clone()));
    world.run(100 * MS);
    for name in ["a", "phone"] {
        let record = record(&world, name);
        assert_eq!((record.state(), record.outcome), (CallState::Settled, Some(Ok(()))), "{name}");
        assert_eq!(record.result_bytes, Some(result.as_bytes().len()), "{name}");
        let ended = |event: &Event| matches!(event, Event::Settled { call, outcome: Ok(()), .. } if *call == job.call);
        assert_eq!(world.ends[name].events.iter().filter(|it| ended(it)).count(), 1, "{name}");
    }
    let shown = results(&world, "watch");
    assert_eq!((shown.len(), &shown[0].id, shown[0].result.as_ref()), (1, &job.call, Some(&result)));
}

#[test]
fn first_progress_reports_the_start_and_the_last_is_kept() {
    let mut world = World::pair(&["export"]);
    let key = world.call("a", request("export")).unwrap();
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    for n in 0..100 {
        world.with("phone", |session, now| session.progress(now, job, format!("{n} of 100").into()));
        world.run(5 * MS);
    }
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    let mut reported = Vec::new();
    for event in &world.ends["a"].events {
        if let Event::Progress { key: Some(of), progress, .. } = event {
            assert_eq!(*of, key);
            reported.push(progress.to_string());
        }
    }
    assert_eq!(reported.first().unwrap(), "in_progress");
    assert_eq!(reported.last().unwrap(), "99 of 100");
    assert!(reported.len() <= 8, "{reported:?}");
}

/// A phone, and an assistant that the test plays and that showed an instance.
fn shown_assistant(tools: &[&str]) -> World {
    let mut world = plain_assistant(tools);
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    world.send("a", &["phone"], &meta, &Message::Configuration(Configuration::default()));
    world.run(100 * MS);
    world
}

fn say_stop(world: &mut World, id: Option<&str>) {
    let stop = with!(ControlStop::default(), target_id = id.map(str::to_owned));
    world.send("a", &["phone"], &Meta::new(), &Message::ControlStop(stop));
}

#[test]
fn protocol_a21_each_stop_is_acknowledged_and_its_call_is_cancelled_once() {
    let mut world = plain_assistant(&["t"]);
    say_request(&mut world, plain_request("1", "t"));
    world.run(100 * MS);
    let job = world.ends["phone"].jobs[0].key;
    say_stop(&mut world, Some("1"));
    say_stop(&mut world, Some("1"));
    say_stop(&mut world, Some("nothing of this name"));
    world.run(100 * MS);
    let acknowledged: Vec<_> = world
        .received("a", Kind::ACKNOWLEDGEMENT)
        .into_iter()
        .map(|message| match message {
            Message::Acknowledgement(it) => (it.acknowledged_stanza_id, it.success),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(acknowledged, [-2, -3, -4].map(|stanza| (Some(stanza), Some(true))));
    assert_eq!(world.ends["phone"].aborted, [job]);
    let results = results(&world, "a");
    assert_eq!(results.len(), 1);
    assert_eq!((results[0].id.as_str(), code(&results[0])), ("1", "cancelled"));
    // The function's late outcome is discarded.
    world.with("phone", |session, now| session.settle(now, job, Ok(value(1))));
    world.run(SECOND);
    assert_eq!(world.received("a", Kind::TOOL_USE_RESULT).len(), 1);
}

#[test]
fn stop_that_overtakes_its_request_is_remembered() {
    let mut world = shown_assistant(&["t"]);
    say_stop(&mut world, Some("1"));
    say_request(&mut world, plain_request("1", "t"));
    say_request(&mut world, plain_request("2", "t"));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    assert_eq!(results(&world, "a").iter().map(code).collect::<Vec<_>>(), ["cancelled"]);
    assert_eq!(world.received("a", Kind::ACKNOWLEDGEMENT).len(), 1, "the stop is acknowledged");
    // A stop without a target stops everything.
    say_stop(&mut world, None);
    world.run(100 * MS);
    assert_eq!(results(&world, "a").iter().map(code).collect::<Vec<_>>(), ["cancelled", "cancelled"]);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

#[test]
fn forgotten_request_never_runs_again() {
    let mut world = shown_assistant(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let first =
        Frame::write(-2, "room", &Meta::new(), &Message::ToolUseRequest(plain_request("c0", "t"))).unwrap();
    for n in 0..4_097 {
        say_request(&mut world, plain_request(&format!("c{n}"), "t"));
        world.run(21 * MS);
        let end = world.ends.get_mut("phone").unwrap();
        (end.events, end.sent) = Default::default();
    }
    world.run(SECOND);
    assert_eq!((world.count("phone", "jobs"), results(&world, "a").len()), (4_097, 4_097));
    assert!(errors(&world, "a").is_empty());
    world.send_bytes("a", &["phone"], &first);
    world.run(SECOND);
    assert_eq!(errors(&world, "a")[0].code, 304);
    assert_eq!(world.count("phone", "jobs"), 4_097);
    world.run(700 * SECOND);
    world.send_bytes("a", &["phone"], &first);
    world.run(SECOND);
    assert_eq!(errors(&world, "a").len(), 2, "a forgotten request is refused too");
}

#[test]
fn new_instance_under_the_same_sid_is_accepted_after_the_goodbye_of_the_old() {
    let mut world = shown_assistant(&["t"]);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    let goodbye = Message::ControlStop(with!(ControlStop::default(), stop_type = Some("all".to_owned())));
    world.send("a", &["phone"], &Meta::new().with_bool("bridge.bye", true), &goodbye);
    say_request(&mut world, plain_request("1", "t"));
    world.run(100 * MS);
    assert!(world.session("phone").bound().is_none() && world.ends["phone"].jobs.is_empty());
    assert_eq!(world.count("phone", "after_goodbye"), 1);
    let meta = Meta::new().with_text("bridge.instance", "4567");
    world.send("a", &["phone"], &meta, &Message::Configuration(Configuration::default()));
    say_request(&mut world, plain_request("2", "t"));
    world.run(100 * MS);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert_eq!(world.ends["phone"].jobs.len(), 1);
}

#[test]
fn debug_output_of_a_session_contains_no_instance_and_no_result() {
    let mut world = World::pair(&["t"]);
    let secret = Value::encode(&serde_json::json!({"pin": "hunter2"})).unwrap();
    let key = world.call("a", Request::new("t", secret.clone())).unwrap();
    world.run(100 * MS);
    let instance =
        world.sent("phone", Kind::CONFIGURATION)[0].1.meta_str("bridge.instance").unwrap().to_owned();
    world.ends.get_mut("a").unwrap().here = false; // so that the result stays
    world.finish("phone", Err(ToolError::new("odd", "hunter2")));
    for name in ["a", "phone"] {
        let printed = format!("{:?} {:?}", world.session(name), world.ends[name].events);
        assert!(!printed.contains("hunter2") && !printed.contains(&instance), "{printed}");
    }
    assert!(world.settled("a", key).is_none());
}

#[test]
fn unrecoverable_error_of_the_assistant_ends_the_binding() {
    let mut world = plain_assistant(&["t"]);
    say_request(&mut world, plain_request("1", "t"));
    let error = |recoverable| {
        Message::Error(with!(
            ErrorMessage::default(),
            id = "e".to_owned(),
            conversation_id = "room".to_owned(),
            code = 501,
            message = "out of memory".to_owned(),
            severity = 3,
            recoverable = recoverable,
            originating_id = None
        ))
    };
    world.send("a", &["phone"], &Meta::new(), &error(true));
    world.run(100 * MS);
    assert!(world.ends["phone"].aborted.is_empty());
    world.send("a", &["phone"], &Meta::new(), &error(false));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert!(world.session("phone").bound().is_none());
    let reported = |event: &&Event| matches!(event, Event::PeerError { code: 501, .. });
    assert_eq!(world.ends["phone"].events.iter().filter(reported).count(), 2);
}

/// Reasons are for people: what takes more than 8 KiB is not kept.
#[test]
fn reasons_of_left_out_tools_are_read_up_to_8_kib() {
    for (length, is_read) in [(8_000, true), (8_200, false)] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).role(Role::Client));
        world.run(200 * MS);
        let shown = world.shows("phone", "a", "phone");
        let features = Some(["tool_use", "tool_register"].map(str::to_owned).to_vec());
        let configuration = with!(Configuration::default(), features = features);
        world.send("phone", &["a"], &shown, &Message::Configuration(configuration));
        let mut meta = Meta::new();
        meta.set("bridge.leftOut", [["large", &"x".repeat(length)]]).unwrap();
        world.send("phone", &["a"], &meta, &Message::ToolsRegister(ToolsRegister::default()));
        world.run(SECOND);
        let why = world.session("a").why_not_offered("large");
        let is_it = |why: &NotOffered| matches!(why, NotOffered::LeftOut { .. });
        let is_left_out = matches!(&why, CallError::UnknownTool { why, .. } if is_it(why));
        assert_eq!(is_left_out, is_read, "{why}");
    }
}
