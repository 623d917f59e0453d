//! Attacks, row by row: attempts change counters, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use toolbridge::{
    CallError, Config, Event, Role, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, Meta,
        RegisteredTool, ToolProgress, ToolUseResult, ToolsRegister,
    },
    session::Counter,
    transport::{Lane, Participant, Peer, ROLE_ATTRIBUTE, TransportEvent, Unreadable},
};

use crate::session_world::{MS, SECOND, World, plain_request, receivers, request, tool, value};

fn forged_result(id: &str) -> Message {
    Message::ToolUseResult(with!(ToolUseResult::new(id.parse().unwrap(), true), result = Some(value(666))))
}

fn registration(names: &[&str]) -> Message {
    let tools = names.iter().map(|name| with!(RegisteredTool::default(), name = (*name).to_owned()));
    Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools.collect()))
}

fn configuration() -> Message {
    Message::Configuration(Configuration::default())
}

/// A pair with one open call and its id, and a stranger `x`.
fn under_attack() -> (World, toolbridge::session::CallKey, String) {
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    world.run(SECOND);
    let key = world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(100 * MS);
    let id = world.session("a").call_id(key).unwrap().to_string();
    (world, key, id)
}

#[test]
fn sec_i1_forged_results_acknowledgements_and_progress_are_foreign() {
    let (mut world, key, id) = under_attack();
    let progress = |events: &[Event]| events.iter().filter(|it| matches!(it, Event::Progress { .. })).count();
    let before = (world.count("a", "not_permitted"), progress(&world.ends["a"].events));
    let none = Meta::new();
    world.send("x", &["a"], &none, &forged_result(&id));
    let acknowledgement = with!(
        Acknowledgement::default(),
        acknowledged_stanza_id = Some(-2),
        acknowledged_message_id = Some(id.clone()),
        notes = Some("claim".to_owned())
    );
    world.send("x", &["a"], &none, &Message::Acknowledgement(acknowledgement));
    let done = with!(
        ToolProgress::new(id.parse().unwrap(), toolbridge::tools::ProgressStatus::Completed),
        message = Some("pay me".to_owned())
    );
    world.send("x", &["a"], &none, &Message::ToolProgress(done));
    world.run(SECOND);
    assert_eq!(world.count("a", "not_permitted"), before.0 + 3);
    assert_eq!(progress(&world.ends["a"].events), before.1);
    assert!(world.settled("a", key).is_none());
    let reported = |event: &&Event| matches!(event, Event::Violation { by: Some(by), .. } if *by == "x");
    assert_eq!(world.ends["a"].events.iter().filter(reported).count(), 1);
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
}

#[test]
fn sec_i2_only_the_bound_assistant_may_call_and_replies_to_others_are_limited() {
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    let sid = world.sid();
    world.play(&Participant::new("b", sid).agent(true)); // a second agent
    world.run(SECOND);
    let none = Meta::new();
    for n in 0..30 {
        let request = Message::ToolUseRequest(plain_request(&format!("r{n}"), "t"));
        for message in [&request, &configuration(), &registration(&["t"])] {
            let bytes = Frame::write(-1, "room", &none, message).unwrap();
            for who in ["x", "b"] {
                world.send_bytes(who, &["phone"], &bytes);
                world.send_bytes(who, &["a"], &bytes);
            }
            for hidden in [Peer::new("", "PA_hidden"), Peer::new("", "")] {
                world.send_bytes_as(&hidden, &["phone"], &bytes);
                world.send_bytes_as(&hidden, &["a"], &bytes);
            }
        }
        world.run(SECOND);
    }
    assert!(world.ends["phone"].jobs.is_empty());
    assert!(world.session("a").tools().iter().all(|offer| offer.owner == "phone"));
    assert_eq!(world.received("x", Kind::TOOL_USE_RESULT).len(), 30, "each call learns that nothing ran");
    assert_eq!(world.received("b", Kind::TOOL_USE_RESULT).len(), 30);
    assert_eq!(world.received("x", Kind::TOOLS_REGISTER_ACK).len(), 1, "the refusal is sent once a minute");
    assert_eq!(world.ends["x"].inbox.len(), 31);
    for n in 0..200 {
        let request = Message::ToolUseRequest(plain_request(&format!("s{n}"), "t"));
        for who in ["x", "b"] {
            world.send(who, &["phone"], &none, &request);
        }
    }
    world.run(SECOND);
    assert_eq!(world.received("x", Kind::TOOL_USE_RESULT).len(), 30 + 50, "50 refusals in a second");
    assert_eq!(world.received("b", Kind::TOOL_USE_RESULT).len(), 30 + 50);
    world.run(SECOND);
    for _ in 0..200 {
        world.send("b", &["phone"], &none, &Message::ToolUseRequest(plain_request("s0", "t")));
    }
    world.run(SECOND);
    assert_eq!(world.received("b", Kind::TOOL_USE_RESULT).len(), 80 + 50, "also of one that is remembered");
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert!(world.count("phone", "no_sender") >= 180);
    world.handle("phone", |_| Some(Ok(value(1))));
    assert!(world.ask("a", request("t")).is_ok());
}

#[test]
fn sec_i3_participant_that_takes_over_an_identity_inherits_nothing() {
    let (mut world, key, id) = under_attack();
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(100 * MS);
    let mine = Meta::new().with_text("bridge.instance", "another").with_bool("bridge.heard", true);
    world.send("phone", &["a"], &mine, &configuration());
    world.send("phone", &["a"], &Meta::new(), &forged_result(&id));
    world.run(100 * MS);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    assert_eq!(world.count("a", "not_permitted"), 1);
    assert!(world.session("a").tools().is_empty());
    assert!(
        world.received("phone", Kind::TOOL_USE_REQUEST).is_empty()
            && world.received("phone", Kind::CONTROL_STOP).is_empty()
    );
}

#[test]
fn sec_i4_role_that_a_participant_can_set_itself_gives_no_rights() {
    let mut world = World::pair(&["t"]);
    let sid = world.sid();
    world.play(&Participant::new("x", sid).attributes([(ROLE_ATTRIBUTE, "assistant")]));
    let sid = world.sid();
    world.play(&Participant::new("y", sid).attributes([(ROLE_ATTRIBUTE, "observer")]));
    world.run(SECOND);
    world.send("x", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", "t")));
    world.run(SECOND);
    assert!(world.ends["phone"].jobs.is_empty());
    let reported = |event: &&Event| matches!(event, Event::Violation { what: Counter::UntrustedRole, .. });
    assert_eq!(world.ends["phone"].events.iter().filter(reported).count(), 2, "each attempt is an event");
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("t")).unwrap();
    world.run(SECOND);
    assert!(world.ends["y"].inbox.is_empty());
}

#[test]
fn packets_that_cannot_be_read_are_counted_and_reported_with_what_to_do() {
    let mut world = World::pair(&["t"]);
    let kinds = [
        (Unreadable::Encrypted, Counter::Encrypted, "--e2ee-key-file"),
        (Unreadable::NotEncrypted, Counter::NotEncrypted, "`encryption`"),
        (Unreadable::Undecryptable, Counter::Undecryptable, "the same key"),
    ];
    for (why, counter, advice) in kinds {
        for _ in 0..1_000 {
            let from = Some(Peer::new("x", "PA_x"));
            world.with("a", |session, now| {
                session.handle_event(now, TransportEvent::Unreadable { from, why });
            });
        }
        world.run(SECOND);
        let all = |world: &World| {
            let times = world.ends["a"].events.iter().filter_map(|event| match event {
                Event::Violation { by: Some(by), what, times, .. } if *by == "x" && *what == counter => {
                    Some(*times)
                }
                _ => None,
            });
            times.collect::<Vec<_>>()
        };
        assert_eq!((world.session("a").stats().count(counter), all(&world)), (1_000, vec![1]), "{counter}");
        world.run(58 * SECOND);
        assert_eq!(all(&world), [1], "{counter}: the advice is repeated once a minute");
        // Reports are due every 10 s.
        world.run(12 * SECOND);
        assert_eq!(all(&world), [1, 999], "{counter}: the rest after a minute");
        assert_eq!(counter.unreadable(), Some(why));
        assert!(why.to_string().contains(advice), "{why}");
    }
    assert_eq!(Counter::Duplicate.unreadable(), None);
}

#[test]
fn sec_i5_stranger_ends_no_session_and_leaves_no_tombstone() {
    let (mut world, key, id) = under_attack();
    let none = Meta::new();
    let fatal = with!(
        ErrorMessage::default(),
        id = "e".to_owned(),
        conversation_id = "room".to_owned(),
        code = 501,
        message = "the end".to_owned(),
        severity = 3,
        recoverable = false,
        originating_id = Some(id.clone())
    );
    for to in ["a", "phone"] {
        world.send("x", &[to], &none, &Message::Error(fatal.clone()));
        let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
        world.send("x", &[to], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(bye));
    }
    for n in 0..10_000 {
        let target = if n % 2 == 0 { id.clone() } else { format!("next{n}") };
        let stop = with!(ControlStop::default(), target_id = Some(target));
        world.send("x", &["phone"], &none, &Message::ControlStop(stop.clone()));
        if n % 100 == 0 {
            world.send("x", &["a"], &none, &Message::ControlStop(stop));
            world.run(10 * MS);
        }
    }
    world.run(SECOND);
    assert!(world.ends["phone"].aborted.is_empty() && world.ends["x"].inbox.is_empty());
    assert!(world.settled("a", key).is_none());
    // A later call whose id it guessed would run nevertheless.
    let bound_request = Message::ToolUseRequest(plain_request("next1", "t"));
    let a = world.ends["a"].who.peer().clone();
    let bytes = Frame::write(-1000, "room", &none, &bound_request).unwrap();
    world.send_bytes_as(&a, &["phone"], &bytes);
    world.run(SECOND);
    assert_eq!(world.ends["phone"].jobs.len(), 2);
    let reported = |event: &&Event| matches!(event, Event::Violation { by: Some(by), .. } if *by == "x");
    assert!(
        world.ends["phone"].events.iter().filter(reported).count() <= 4,
        "violations are reported rarely"
    );
}

#[test]
fn long_names_are_cut_in_the_refusal() {
    let mut world = World::pair(&["t"]);
    let sid = world.sid();
    world.play(&Participant::new("tv", sid).role(Role::Client));
    world.run(SECOND);
    world.send("tv", &["a"], &Meta::new(), &configuration());
    let long = "x".repeat(20_000);
    world.send("tv", &["a"], &Meta::new(), &registration(&[&long, "good"]));
    world.run(SECOND);
    let answers = world.received("tv", Kind::TOOLS_REGISTER_ACK);
    let [Message::ToolsRegisterAck(answer)] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(answer.tool_count, 1);
    assert!(answer.error.as_ref().unwrap().len() < 300);
}

#[test]
fn sec_i6_taken_reserved_or_non_ascii_names_are_refused_in_the_acknowledgement() {
    let mut world = World::pair(&["t"]);
    world.with("a", |session, now| session.offer(now, vec![tool("search_web")])).unwrap().unwrap();
    let sid = world.sid();
    world.play(&Participant::new("tv", sid).role(Role::Client));
    world.run(SECOND);
    world.send("tv", &["a"], &Meta::new(), &configuration());
    let names = ["good", "search_web", "se\u{430}rch", "bridge.permission", "bridge.echo", "good"];
    world.send("tv", &["a"], &Meta::new(), &registration(&names));
    world.run(SECOND);
    let answers = world.received("tv", Kind::TOOLS_REGISTER_ACK);
    let [Message::ToolsRegisterAck(answer)] = answers.as_slice() else { panic!("{answers:?}") };
    assert!(!answer.success);
    assert_eq!(answer.tool_count, 1);
    let error = answer.error.as_ref().unwrap();
    for name in ["search_web", "bridge.permission", "bridge.echo", "good: registered twice"] {
        assert!(error.contains(name), "{error}");
    }
    let of_tv: Vec<_> = world.session("a").tools().into_iter().filter(|offer| offer.owner == "tv").collect();
    assert_eq!(of_tv.len(), 1);
    // A pinned tool is never ambiguous, whoever else registers it.
    let mut world = World::new();
    world.assistant("a", Config::default().pin("t".parse().unwrap(), "phone"));
    world.client("phone", Config::default(), &["t"]);
    world.client("tv", Config::default(), &["t"]);
    world.run(SECOND);
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

#[test]
fn sec_c5_received_schema_is_shown_and_never_compiled() {
    use serde_json::{Value as Json, json};

    // Each definition contains the next one twice: expanded, 2^24 nodes.
    let mut doubled = serde_json::Map::new();
    for n in 0..24 {
        let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
        doubled.insert(format!("d{n}"), json!({"allOf": [next, next]}));
    }
    doubled.insert("d24".to_owned(), json!(true));
    let schemas: [(&str, Json); 5] = [
        ("bomb", json!({"$ref": "#/$defs/d0", "$defs": doubled})),
        ("remote", json!({"$ref": "http://127.0.0.1:9/schema.json"})),
        ("file", json!({"$ref": "file:///etc/hostname"})),
        ("slow", json!({"properties": {"s": {"type": "string", "pattern": "(a|aa)+(?!b)c"}}})),
        ("nonsense", json!({"type": 7, "properties": [], "required": "n"})),
    ];
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(SECOND);
    world.send("phone", &["a"], &Meta::new(), &configuration());
    let tools = schemas.iter().map(|(name, schema)| {
        with!(
            RegisteredTool::default(),
            name = (*name).to_owned(),
            input_schema = Some(Value::encode(schema).unwrap())
        )
    });
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = tools.collect())),
    );
    world.run(SECOND);
    let offers = world.session("a").tools();
    assert_eq!(offers.len(), schemas.len());
    for (name, schema) in &schemas {
        let offer = offers.iter().find(|offer| offer.tool.name().as_str() == *name).unwrap();
        assert_eq!(offer.tool.input_schema(), Some(schema), "the schema is unchanged");
        // Arguments that the caller would refuse, or that take long to validate, are validated only by the owner.
        let arguments = Value::from(json!({"s": "a".repeat(5_000), "n": null}));
        world.call("a", toolbridge::session::Request::new(*name, arguments.clone())).unwrap();
        world.run(100 * MS);
        match world.received("phone", Kind::TOOL_USE_REQUEST).pop() {
            Some(Message::ToolUseRequest(asked)) => {
                assert_eq!((asked.tool_name.as_str(), &asked.parameters), (*name, &arguments));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn refused_participant_learns_what_is_missing() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    let who = Participant::new("tablet", sid); // its token has no role
    let mut session =
        toolbridge::session::Session::client(world.now, who.clone(), Config::default().room("room"), [3; 32]);
    session.offer(world.now, vec![tool("t")]).unwrap();
    world.enter(&who, Some(session));
    world.run(2 * SECOND);
    let refused = world.ends["tablet"].events.iter().find_map(|event| match event {
        Event::Registered { refused, .. } => refused.clone(),
        _ => None,
    });
    assert!(refused.unwrap().contains("toolbridge.role"));
    assert!(world.session("a").tools().is_empty());
}

#[test]
fn sec_p1_stranger_receives_nothing_of_client_calls() {
    let mut world = World::new();
    world.stranger("x");
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t", "hang"]);
    world.run(SECOND);
    world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(value(1))));
    world.ask("a", request("t")).unwrap();
    let key = world.call("a", request("hang")).unwrap();
    world.run(SECOND);
    world.with("a", |session, now| session.cancel(now, key));
    world.run(SECOND);
    world.with("phone", |session, now| session.close(now));
    world.run(SECOND);
    assert!(world.ends["x"].inbox.is_empty());
    for name in ["a", "phone"] {
        let to = receivers(&world.ends[name].sent);
        assert_eq!(to.len(), 1, "{to:?}");
        assert!(world.ends[name].sent.iter().all(|(to, _)| !to.is_empty()));
    }
}

#[test]
fn malformed_bytes_are_counted_and_answered_rarely() {
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    world.run(SECOND);
    for n in 0..100_u8 {
        for from in ["x", "phone"] {
            world.send_bytes(from, &["a"], &[n, 0xc1, n]);
        }
    }
    world.run(SECOND);
    assert_eq!(world.count("a", "malformed"), 200);
    assert!(world.ends["x"].inbox.is_empty());
    assert_eq!(world.sent("a", Kind::ERROR).len(), 1);
    world.handle("phone", |_| Some(Ok(Value::empty())));
    assert!(world.ask("a", request("t")).is_ok());
}

#[test]
fn frames_with_changed_bytes_neither_panic_nor_grow() {
    let mut world = World::pair(&["t", "u"]);
    world.with("a", |session, now| session.offer(now, vec![tool("own")])).unwrap().unwrap();
    for name in ["t", "u", "own"] {
        world.handle("a", |_| Some(Ok(value(1))));
        world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(value(1))));
        let key = world.call("a", request(name)).unwrap();
        world.run(200 * MS);
        world.with("a", |session, now| session.cancel(now, key));
        world.run(200 * MS);
    }
    let samples: Vec<(&str, Vec<u8>)> = [("a", "phone"), ("phone", "a")]
        .into_iter()
        .flat_map(|(from, to)| {
            world.ends[from].sent.iter().map(move |(_, frame)| (to, frame.as_bytes().to_vec()))
        })
        .collect();
    assert!(samples.len() > 15);
    let mut random = crate::session_world::Random(11);
    for _ in 0..10_000 {
        let (to, mut bytes) = random.pick(&samples);
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(3) {
                0 => bytes[at] = random.below(256) as u8,
                1 => drop(bytes.drain(at..(at + random.below(4) as usize).min(bytes.len()))),
                _ => bytes.insert(at, random.below(256) as u8),
            }
            if bytes.is_empty() {
                bytes.push(0xc0);
            }
        }
        let from = world.ends[if to == "a" { "phone" } else { "a" }].who.peer().clone();
        world.with(to, |session, now| {
            session.handle_event(now, TransportEvent::packet(from.clone(), Lane::Reliable, bytes))
        });
        if random.one_in(20) {
            world.run(50 * MS);
        }
    }
    assert!(world.session("phone").open_jobs() <= 64);
    world.run(700 * SECOND);
    assert_eq!((world.session("a").open_calls(), world.session("phone").open_jobs()), (0, 0));
}

#[test]
fn flood_from_a_stranger_only_counts() {
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    world.run(SECOND);
    let x = world.ends["x"].who.peer().clone();
    let none = Meta::new();
    let frames: Vec<_> = [
        Message::ToolUseRequest(plain_request("1", "t")),
        forged_result("1"),
        Message::Acknowledgement(Acknowledgement::default()),
        configuration(),
        registration(&["t"]),
    ]
    .iter()
    .map(|message| Frame::write(1, "room", &none, message).unwrap())
    .collect();
    let before = (world.count("a", "frames_out"), world.count("phone", "frames_out"));
    let size = |world: &World, name: &str| format!("{:?}", world.session(name)).len();
    let first = (size(&world, "a"), size(&world, "phone"));
    for n in 0..20_000 {
        for to in ["a", "phone"] {
            world.with(to, |session, now| {
                session.handle_event(
                    now,
                    TransportEvent::packet(x.clone(), Lane::Reliable, frames[n % frames.len()].clone()),
                )
            });
        }
    }
    let after = (world.count("a", "frames_out"), world.count("phone", "frames_out"));
    assert!(after.0 - before.0 <= 1, "one refusal of the registration is sent a minute");
    assert!(after.1 - before.1 <= 50, "50 requests are refused in a second");
    let last = (size(&world, "a"), size(&world, "phone"));
    assert!(last.0 < first.0 + 2_000 && last.1 < first.1 + 2_000, "{first:?} {last:?}");
}

#[test]
fn sec_r1_progress_is_cut_to_its_display_limit() {
    let (mut world, key, id) = under_attack();
    let large = Message::ToolProgress(with!(
        ToolProgress::new(id.parse().unwrap(), toolbridge::tools::ProgressStatus::InProgress),
        content = Some(Value::encode(&"x".repeat(60_000)).unwrap()),
        message = Some("y".repeat(60_000))
    ));
    let phone = world.ends["phone"].who.peer().clone();
    let bytes = Frame::write(1_000, "room", &Meta::new(), &large).unwrap();
    world.send_bytes_as(&phone, &["a"], &bytes);
    world.run(SECOND);
    let reported = world.ends["a"].events.iter().rev().find_map(|event| match event {
        Event::Progress { key: Some(of), progress, .. } if *of == key => Some(progress.clone()),
        _ => None,
    });
    let reported = reported.unwrap();
    assert_eq!(reported.content, None);
    assert_eq!(reported.message.unwrap().len(), 4_096);
}

#[test]
fn acknowledgement_of_another_clients_request_is_not_its_delivery() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    world.client("tablet", Config::default(), &["u"]);
    world.run(SECOND);
    world.ends.get_mut("phone").unwrap().here = false; // it receives nothing
    world.call("a", request("t")).unwrap();
    world.run(10 * MS);
    let asked = world.sent("a", Kind::TOOL_USE_REQUEST);
    let stanza = asked.last().unwrap().1.stanza_id();
    let acknowledgement = Message::Acknowledgement(with!(
        Acknowledgement::default(),
        acknowledged_stanza_id = stanza,
        success = Some(true)
    ));
    assert!(stanza.is_some());
    let tablet = world.ends["tablet"].who.peer().clone();
    let bytes = Frame::write(1_000, "room", &Meta::new(), &acknowledgement).unwrap();
    world.send_bytes_as(&tablet, &["a"], &bytes);
    world.run(100 * MS);
    assert!(!world.ends["a"].events.iter().any(|event| matches!(event, Event::Delivered { .. })));
}

#[test]
fn flood_under_new_identities_is_reported_for_256_of_them() {
    let mut world = World::pair(&["t"]);
    for n in 0..300 {
        let peer = Peer::new(format!("x{n}"), "PA_77");
        world.with("a", |session, now| {
            let packet = TransportEvent::packet(peer, Lane::Reliable, vec![0xff]);
            session.handle_event(now, packet);
        });
    }
    let reported =
        world.ends["a"].events.iter().filter(|event| matches!(event, Event::Violation { .. })).count();
    assert_eq!((reported, world.count("a", "malformed")), (256, 300));
}

#[test]
fn id_in_the_report_of_a_malformed_frame_is_cut() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(SECOND);
    let frame = serde_json::json!({"type": 6, "conversationId": "room", "stanzaId": 1, "body": {"id": "x".repeat(5_000)}});
    world.send_bytes("phone", &["a"], Value::encode(&frame).unwrap().as_bytes());
    world.run(SECOND);
    let reports = world.received("phone", Kind::ERROR);
    let [Message::Error(report)] = &reports[..] else { panic!("{reports:?}") };
    assert_eq!(report.originating_id.as_ref().map(String::len), Some(128));
    // Both ends are told what is wrong with it.
    let why = "`toolName` is missing";
    assert_eq!(report.message, format!("the frame is malformed: {why}"));
    let reasons = world.ends["a"].events.iter().filter_map(|event| match event {
        Event::Violation { what: Counter::Malformed, why, .. } => Some(why.as_deref()),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), [Some(why)]);
}
