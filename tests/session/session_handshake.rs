//! Configurations: how a session starts, continues, changes, and what it refuses.

use toolbridge::{
    CallError, Config, Identity, Role,
    frame::{
        Acknowledgement, Configuration, ControlStop, ErrorMessage, Frame, Kind, Message, Meta,
        RegisteredTool, ToolUseResult, ToolsRegister, ToolsRegisterAck,
    },
    tools::NotOffered,
    transport::{Lane, Participant, Peer},
};

use crate::session_world::{Key, MS, SECOND, World, plain_request, receivers, request, tool, value};

fn count(world: &World, name: &str, kind: Kind) -> usize {
    world.sent(name, kind).len()
}

fn configuration(features: &[&str]) -> Message {
    let features = Some(features.iter().map(|it| (*it).to_owned()).collect());
    Message::Configuration(with!(Configuration::default(), features = features))
}

/// A toolbridge assistant, and a client that the test plays and that shows an instance.
fn shown_client(features: &[&str]) -> World {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.send("phone", &["a"], &shown(), &configuration(features));
    let tool = with!(RegisteredTool::default(), name = "t".to_owned());
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool])),
    );
    world.run(200 * MS);
    world
}

fn shown() -> Meta {
    Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true)
}

/// The played client's result for the newest request.
fn answer(world: &mut World) {
    let Some(Message::ToolUseRequest(asked)) = world.received("phone", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("no request was sent")
    };
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
    world.send("phone", &["a"], &Meta::new(), &Message::ToolUseResult(result));
    world.run(100 * MS);
}

#[test]
fn protocol_a19_new_session_takes_two_configurations_and_one_round_trip() {
    for assistant_first in [true, false] {
        let mut world = World::new();
        world.announce = MS;
        if assistant_first {
            world.assistant("a", Config::default());
            world.client("phone", Config::default(), &["t"]);
        } else {
            world.client("phone", Config::default(), &["t"]);
            world.assistant("a", Config::default());
        }
        world.run(60 * MS); // one direction takes 20 ms
        assert_eq!(world.session("a").tools().len(), 1);
        world.run(60 * SECOND);
        for name in ["a", "phone"] {
            assert_eq!(count(&world, name, Kind::CONFIGURATION), 1, "{name}");
            let to = receivers(&world.sent(name, Kind::CONFIGURATION));
            assert_eq!(to.len(), 1, "the Configuration is sent to the peer only");
        }
        assert_eq!(
            (count(&world, "phone", Kind::TOOLS_REGISTER), count(&world, "a", Kind::TOOLS_REGISTER_ACK)),
            (1, 1)
        );
    }
}

#[test]
fn protocol_a19_session_is_resumed_by_the_same_instance_under_a_new_sid() {
    for who in ["a", "phone"] {
        let mut world = World::pair(&["t"]);
        let key = world.call("a", request("t")).unwrap();
        world.run(200 * MS);
        world.leave(who);
        world.run(SECOND);
        world.rejoin(who);
        world.run(SECOND);
        // One more of each: the first frames of the new pair of sids.
        for name in ["a", "phone"] {
            let shown: Vec<_> = world
                .sent(name, Kind::CONFIGURATION)
                .iter()
                .map(|(_, frame)| frame.meta_str("bridge.instance").unwrap().to_owned())
                .collect();
            assert!(shown.len() >= 2 && shown.windows(2).all(|two| two[0] == two[1]), "{shown:?}");
        }
        assert_eq!(world.ends["phone"].jobs.len(), 1, "the job continues");
        world.finish("phone", Ok(value(1)));
        world.run(SECOND);
        assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(1));
        assert_eq!(world.session("a").tools().len(), 1);
    }
}

#[test]
fn protocol_a19_later_configuration_updates_features_and_ends_nothing() {
    let mut world = shown_client(&["tool_ack"]);
    let acknowledged = |world: &World| count(world, "a", Kind::ACKNOWLEDGEMENT);
    let before = acknowledged(&world);
    let first = world.call("a", request("t").to("phone")).unwrap();
    world.run(100 * MS);
    answer(&mut world);
    assert!(world.settled("a", first).unwrap().is_ok());
    assert_eq!(acknowledged(&world), before + 1);

    // It continues as a peer without acknowledgements: the open call is unaffected, and none follow.
    let second = world.call("a", request("t").to("phone")).unwrap();
    world.run(100 * MS);
    let greetings = count(&world, "a", Kind::CONFIGURATION);
    world.send("phone", &["a"], &shown(), &configuration(&["tool_use"]));
    world.run(100 * MS);
    assert!(world.settled("a", second).is_none());
    answer(&mut world);
    assert!(world.settled("a", second).unwrap().is_ok());
    assert_eq!(acknowledged(&world), before + 1);
    assert_eq!(
        count(&world, "a", Kind::CONFIGURATION),
        greetings,
        "a Configuration with `heard` gets no reply"
    );
}

#[test]
fn protocol_a19_switch_to_another_conversation_is_refused_and_changes_nothing() {
    let refused = |world: &World, name: &str| -> Vec<ErrorMessage> {
        let read = |message| match message {
            Message::Error(error) => error,
            other => panic!("{other:?}"),
        };
        world.received(name, Kind::ERROR).into_iter().map(read).collect()
    };
    let mut world = shown_client(&["tool_ack"]);
    let open = world.call("a", request("t").to("phone")).unwrap();
    world.run(100 * MS);
    let by_body = with!(
        Configuration::default(),
        conversation_id = Some("elsewhere".to_owned()),
        features = Some(Vec::new())
    );
    world.send("phone", &["a"], &shown(), &Message::Configuration(by_body));
    let bytes = Frame::write(9, "elsewhere", &shown(), &configuration(&[])).unwrap();
    world.send_bytes("phone", &["a"], &bytes);
    world.run(100 * MS);
    let errors = refused(&world, "phone");
    assert_eq!(errors.iter().map(|error| error.code).collect::<Vec<_>>(), [201, 201]);
    assert_eq!(world.session("a").room(), "room");
    let before = count(&world, "a", Kind::ACKNOWLEDGEMENT);
    answer(&mut world);
    assert!(world.settled("a", open).unwrap().is_ok());
    assert_eq!(count(&world, "a", Kind::ACKNOWLEDGEMENT), before + 1, "the peer's features are unchanged");
}

#[test]
fn protocol_a19_assistant_may_reply_with_a_configuration_or_an_acknowledgement() {
    let acknowledgement = Message::Acknowledgement(with!(
        Acknowledgement::default(),
        acknowledged_stanza_id = Some(1),
        success = Some(true)
    ));
    for answers in [
        vec![Message::Configuration(Configuration::default())],
        vec![acknowledgement.clone()],
        vec![Message::Configuration(Configuration::default()), acknowledgement],
        vec![],
    ] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["t"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        let sid = world.sid();
        world.play(&Participant::new("a", sid).agent(true));
        world.run(200 * MS);
        assert_eq!(world.received("a", Kind::CONFIGURATION).len(), 1, "the client opens the handshake");
        for answer in &answers {
            world.send("a", &["phone"], &Meta::new(), answer);
        }
        world.run(100 * MS);
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", "t")));
        world.run(100 * MS);
        let results = world.received("a", Kind::TOOL_USE_RESULT);
        assert_eq!(results.len(), 1, "{answers:?}");
        world.run(60 * SECOND);
        assert!(world.received("a", Kind::CONFIGURATION).len() <= 5);
        assert_eq!(world.received("a", Kind::ERROR).len(), 0);
        assert_eq!(world.count("phone", "unauthorized") + world.count("phone", "not_permitted"), 0);
    }
}

#[test]
fn protocol_a19_plain_client_that_opens_the_handshake_gets_both_replies() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let stanza = world.send("phone", &["a"], &Meta::new(), &configuration(&["tool_use"]));
    world.run(100 * MS);
    assert!(!world.received("phone", Kind::CONFIGURATION).is_empty());
    let acknowledged: Vec<_> = world
        .received("phone", Kind::ACKNOWLEDGEMENT)
        .into_iter()
        .map(|message| match message {
            Message::Acknowledgement(it) => it.acknowledged_stanza_id,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(acknowledged, [Some(stanza)]);
}

/// The lossy lane keeps no order: the answer to the early registration overtakes the assistant's Configuration.
#[test]
fn acceptance_of_the_tools_that_overtakes_the_configuration_waits_for_it() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).role(Role::Assistant));
    world.run(200 * MS);
    assert_eq!(count(&world, "phone", Kind::TOOLS_REGISTER), 1);
    let accepted = with!(ToolsRegisterAck::default(), success = true, tool_count = 1);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolsRegisterAck(accepted));
    world.run(100 * MS);
    world.send("a", &["phone"], &shown(), &configuration(&["tool_use", "tool_register"]));
    world.run(5 * SECOND);
    assert_eq!(world.count("phone", "unauthorized"), 0, "the assistant has violated nothing");
    assert_eq!(count(&world, "phone", Kind::TOOLS_REGISTER), 1, "its answer has counted");
}

/// The local Configurations were lost, and the peer says so: it must not wait for the next, which is seconds away.
#[test]
fn configuration_of_a_peer_without_the_local_one_is_answered_at_once() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(5 * SECOND); // the local ones were sent at 0, 1 and 3 s; the next is due at 7 s
    let before = count(&world, "a", Kind::CONFIGURATION);
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", false);
    world.send("phone", &["a"], &meta, &configuration(&["tool_use"]));
    world.run(50 * MS);
    assert_eq!(count(&world, "a", Kind::CONFIGURATION), before + 1);
}

/// A client that rejoins before it knows the assistant's key cannot prove that it is the same process.
#[test]
fn ended_call_is_stopped_at_a_process_that_acknowledges_its_request() {
    let mut world = shown_client(&["tool_use", "tool_register", "tool_ack"]);
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let (_, frame) = world.sent("a", Kind::TOOL_USE_REQUEST).pop().unwrap();
    let Ok(Message::ToolUseRequest(asked)) = frame.message() else { panic!("{frame:?}") };
    world.leave("phone");
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.send("phone", &["a"], &shown(), &configuration(&["tool_use", "tool_register", "tool_ack"]));
    world.run(100 * MS);
    assert_eq!(count(&world, "a", Kind::CONTROL_STOP), 0);
    let it = with!(
        Acknowledgement::default(),
        acknowledged_stanza_id = frame.stanza_id(),
        acknowledged_message_id = Some(asked.id.to_string()),
        success = Some(true)
    );
    world.send("phone", &["a"], &Meta::new(), &Message::Acknowledgement(it));
    world.run(100 * MS);
    let stops = world.received("phone", Kind::CONTROL_STOP);
    assert!(
        matches!(&stops[..], [Message::ControlStop(stop)] if stop.target_id.as_deref() == Some(asked.id.as_str())),
        "{stops:?}"
    );
}

#[test]
fn registration_before_a_late_configuration_is_kept_although_another_process_was_there_before() {
    let mut world = shown_client(&["tool_use", "tool_register", "tool_ack"]);
    world.run(100 * MS);
    let goodbye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("phone", &["a"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(goodbye));
    world.run(100 * MS);
    world.leave("phone");
    world.run(SECOND);
    world.call("a", request("t").to("phone")).unwrap();
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(2 * SECOND);
    let tool = with!(RegisteredTool::default(), name = "t".to_owned());
    let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool]));
    world.send("phone", &["a"], &Meta::new(), &offered);
    world.run(100 * MS);
    assert_eq!(world.session("a").tools().len(), 1, "it was taken for a plain one");
    let other = Meta::new().with_text("bridge.instance", "4567").with_bool("bridge.heard", true);
    world.send("phone", &["a"], &other, &configuration(&["tool_use", "tool_register", "tool_ack"]));
    world.run(100 * MS);
    assert_eq!(world.session("a").tools().len(), 1);
}

#[test]
fn waiting_request_is_sent_when_configurations_are_exchanged() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.call("a", request("bridge.echo").to("phone")).unwrap();
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.send("phone", &["a"], &shown(), &configuration(&["tool_use", "tool_ack"]));
    world.run(50 * MS);
    assert_eq!(
        world.received("phone", Kind::TOOL_USE_REQUEST).len(),
        1,
        "the request does not wait for a registration"
    );
}

fn registration() -> Message {
    Message::ToolsRegister(with!(ToolsRegister::default(), tools = Vec::new()))
}

/// The client's Configuration was lost, and the client considers the handshake complete: it repeats nothing by
/// itself.
#[test]
fn waiting_frame_requests_the_configuration_once_in_900_ms() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.stranger("stranger");
    world.run(5 * SECOND); // the assistant's were sent at 0, 1 and 3 s; the next is due at 7 s
    let before = count(&world, "a", Kind::CONFIGURATION);
    for _ in 0..10 {
        world.send("phone", &["a"], &Meta::new(), &registration());
        world.send("stranger", &["a"], &Meta::new(), &registration());
        world.run(50 * MS);
    }
    let sent = world.sent("a", Kind::CONFIGURATION);
    assert_eq!(sent.len(), before + 1);
    let (to, last) = sent.last().unwrap();
    assert!(to.iter().all(|to| to == "phone") && !last.meta_bool("bridge.heard"));
    world.run(500 * MS);
    world.send("phone", &["a"], &Meta::new(), &registration());
    world.run(50 * MS);
    assert_eq!(count(&world, "a", Kind::CONFIGURATION), before + 2);
}

/// The room does not announce the client's new sid, and the Configuration from there was lost.
#[test]
fn frame_of_a_known_client_under_an_unannounced_sid_requests_its_configuration() {
    let mut world = shown_client(&["tool_use", "tool_ack"]);
    world.run(SECOND);
    let before = count(&world, "a", Kind::CONFIGURATION);
    let ping =
        with!(Acknowledgement::default(), acknowledged_stanza_id = Some(0), notes = Some("ping".to_owned()));
    let bytes = Frame::write(0, "room", &Meta::new(), &Message::Acknowledgement(ping)).unwrap();
    for name in ["phone", "nobody"] {
        world.send_bytes_as(&Peer::new(name, "PA_unannounced"), &["a"], &bytes);
    }
    world.run(50 * MS);
    let sent = world.sent("a", Kind::CONFIGURATION);
    assert_eq!(sent.len(), before + 1);
    let (to, last) = sent.last().unwrap();
    assert!(to.iter().all(|to| to == "phone") && !last.meta_bool("bridge.heard"));
    world.run(SECOND);
    assert_eq!(
        count(&world, "a", Kind::CONFIGURATION),
        before + 2,
        "the Configuration is requested again while the frame waits"
    );
    world.run(2_800 * MS);
    assert_eq!(count(&world, "a", Kind::CONFIGURATION), before + 4, "each second");
    world.run(60 * SECOND);
    assert!(
        count(&world, "a", Kind::CONFIGURATION) <= before + 5,
        "the requests end when the frame is dropped"
    );
}

/// Its Configuration was lost, and the local one before its frame tells it nothing about that.
#[test]
fn frame_under_an_unannounced_sid_requests_a_configuration_although_one_was_just_sent() {
    let mut world = shown_client(&["tool_use", "tool_ack"]);
    world.run(SECOND);
    let unheard = shown().with_bool("bridge.heard", false);
    world.send("phone", &["a"], &unheard, &configuration(&["tool_use", "tool_ack"]));
    world.run(300 * MS);
    let before = count(&world, "a", Kind::CONFIGURATION);
    let ping =
        with!(Acknowledgement::default(), acknowledged_stanza_id = Some(0), notes = Some("ping".to_owned()));
    let bytes = Frame::write(0, "room", &Meta::new(), &Message::Acknowledgement(ping)).unwrap();
    world.send_bytes_as(&Peer::new("phone", "PA_unannounced"), &["a"], &bytes);
    for requests in 0..3 {
        world.run(850 * MS);
        assert_eq!(count(&world, "a", Kind::CONFIGURATION), before + requests);
        world.run(150 * MS);
    }
}

/// A Configuration that was sent for another reason may have arrived before the frame's sender could answer it.
#[test]
fn configuration_is_requested_while_a_frame_waits_although_another_one_was_sent() {
    let mut world = shown_client(&["tool_use", "tool_ack"]);
    world.run(SECOND);
    let before = count(&world, "a", Kind::CONFIGURATION);
    let ping =
        with!(Acknowledgement::default(), acknowledged_stanza_id = Some(0), notes = Some("ping".to_owned()));
    let bytes = Frame::write(0, "room", &Meta::new(), &Message::Acknowledgement(ping)).unwrap();
    world.send_bytes_as(&Peer::new("phone", "PA_unannounced"), &["a"], &bytes);
    world.run(930 * MS);
    let unheard = shown().with_bool("bridge.heard", false);
    world.send("phone", &["a"], &unheard, &configuration(&["tool_use", "tool_ack"]));
    world.run(200 * MS);
    assert_eq!(count(&world, "a", Kind::CONFIGURATION), before + 2, "a request and an answer");
    world.run(SECOND);
    assert_eq!(count(&world, "a", Kind::CONFIGURATION), before + 3);
}

/// Its registration shows that it is not plain: as a plain peer, it could not be sent a large request.
#[test]
fn named_participant_whose_registration_waits_has_another_second_to_shake_hands() {
    for shakes_hands in [true, false] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).role(Role::Client));
        world.call("a", request("bridge.echo").to("phone")).unwrap();
        world.run(950 * MS);
        world.send("phone", &["a"], &Meta::new(), &registration());
        world.run(900 * MS);
        assert_eq!(count(&world, "a", Kind::TOOL_USE_REQUEST), 0);
        if shakes_hands {
            world.send("phone", &["a"], &shown(), &configuration(&["tool_use", "tool_ack"]));
        }
        world.run(200 * MS);
        let asked = world.sent("a", Kind::TOOL_USE_REQUEST);
        assert!(!asked.is_empty());
        assert_eq!(asked[0].1.meta_str("bridge.to").is_some(), shakes_hands);
    }
}

/// It got the registration while it was the only assistant, and did not acknowledge it; then the client bound another
/// one.
#[test]
fn abandoned_registration_is_sent_when_its_assistant_is_bound() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    for name in ["a", "b"] {
        let sid = world.sid();
        world.play(&Participant::new(name, sid).agent(true));
        world.run(200 * MS);
    }
    assert_eq!(world.received("a", Kind::TOOLS_REGISTER).len(), 1);
    let heard_it =
        |instance: &str| Meta::new().with_text("bridge.instance", instance).with_bool("bridge.heard", true);
    let features = configuration(&["tool_use", "tool_ack", "tool_register"]);
    world.send("b", &["phone"], &heard_it("b"), &features);
    world.run(10 * SECOND);
    world.send("a", &["phone"], &heard_it("a"), &features);
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    let before = world.received("a", Kind::TOOLS_REGISTER).len();
    let goodbye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    let meta = Meta::new().with_bool("bridge.bye", true);
    world.send("b", &["phone"], &meta, &Message::ControlStop(goodbye));
    world.run(100 * MS);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert_eq!(world.received("a", Kind::TOOLS_REGISTER).len(), before + 1);
}

/// It may have accepted the tools, whatever the client knows of that.
#[test]
fn registration_that_no_longer_counts_is_withdrawn_when_another_assistant_is_bound() {
    let partial = with!(ToolsRegisterAck::default(), tool_count = 1, error = Some("u: no".to_owned()));
    for case in ["the tools change", "it was given up", "some tools were refused"] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["t"]);
        for name in ["a", "b"] {
            let sid = world.sid();
            world.play(&Participant::new(name, sid).agent(true));
            world.run(if case == "it was given up" { 60 * SECOND } else { 200 * MS });
        }
        match case {
            "the tools change" => {
                world.with("phone", |session, now| session.offer(now, vec![tool("u")])).unwrap().unwrap();
            }
            "it was given up" => {}
            _ => {
                world.send("a", &["phone"], &Meta::new(), &Message::ToolsRegisterAck(partial.clone()));
            }
        }
        world.run(100 * MS);
        let is_withdrawal = |(_, frame): &&(Identity, Frame)| frame.meta_bool("bridge.unbound");
        assert_eq!(world.ends["a"].inbox.iter().filter(is_withdrawal).count(), 0, "{case}");
        world.send("b", &["phone"], &shown(), &configuration(&["tool_use", "tool_register"]));
        world.run(100 * MS);
        assert_eq!(world.session("phone").bound().unwrap(), "b", "{case}");
        assert_eq!(world.ends["a"].inbox.iter().filter(is_withdrawal).count(), 1, "{case}");
    }
}

#[test]
fn registration_is_sent_five_times_without_a_configuration() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &["t"]);
    world.run(120 * SECOND);
    for kind in [Kind::CONFIGURATION, Kind::TOOLS_REGISTER] {
        assert_eq!(world.received("a", kind).len(), 5, "{kind}");
    }
}

#[test]
fn observer_is_shown_changed_tools_once() {
    let mut world = World::pair(&["t"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    let before = world.received("watch", Kind::TOOLS_REGISTER).len();
    world.with("phone", |session, now| session.offer(now, vec![tool("u")])).unwrap().unwrap();
    world.run(SECOND);
    assert_eq!(world.received("watch", Kind::TOOLS_REGISTER).len() - before, 1);
}

#[test]
fn client_that_does_not_register_tools_is_not_waited_for() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.send("phone", &["a"], &shown(), &configuration(&["tool_use", "tool_ack"]));
    let error = world.ask("a", request("t")).unwrap_err();
    let CallError::UnknownTool { why, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**why, NotOffered::NoSuchTool { .. }), "{why:?}");
}

#[test]
fn tools_that_were_refused_before_the_handshake_are_sent_again_after_it() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &["t"]);
    world.run(200 * MS);
    let refusal =
        with!(ToolsRegisterAck::default(), success = false, error = Some("not admitted".to_owned()));
    world.send("a", &["phone"], &Meta::new(), &Message::ToolsRegisterAck(refusal));
    world.run(100 * MS);
    let sent = |world: &World| world.received("a", Kind::TOOLS_REGISTER).len();
    assert_eq!(sent(&world), 1);
    world.with("phone", |session, now| session.offer(now, vec![tool("u")])).unwrap().unwrap();
    world.run(20 * SECOND);
    assert_eq!(sent(&world), 1, "not even when they change");
    world.send("a", &["phone"], &shown(), &configuration(&["tool_use", "tool_register"]));
    world.run(100 * MS);
    assert_eq!(sent(&world), 2);
}

/// Another process under the same sid, whose stanzas begin at 1.
fn begin_another_process(world: &mut World, name: &str, to: &str) {
    let features = configuration(&["tool_use", "tool_register", "tool_ack", "fast_lane"]);
    let other = Meta::new().with_text("bridge.instance", "4567").with_bool("bridge.heard", true);
    world.send_bytes(name, &[to], &Frame::write(1, "room", &other, &features).unwrap());
}

#[test]
fn registration_of_another_process_under_the_same_sid_is_read() {
    let mut world = shown_client(&["tool_use", "tool_register", "tool_ack"]);
    for _ in 0..3 {
        world.send("phone", &["a"], &Meta::new(), &registration());
    }
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(SECOND);
    begin_another_process(&mut world, "phone", "a");
    let tool = with!(RegisteredTool::default(), name = "u".to_owned());
    let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool]));
    world.send_bytes("phone", &["a"], &Frame::write(2, "room", &Meta::new(), &offered).unwrap());
    world.run(100 * MS);
    assert_eq!(world.session("a").tools().len(), 1);
    world.run(60 * SECOND);
    assert_eq!(world.session("a").tools().len(), 1, "it has sent no heartbeat");
}

#[test]
fn answer_of_another_process_under_the_same_sid_is_read() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let accepted =
        Message::ToolsRegisterAck(with!(ToolsRegisterAck::default(), success = true, tool_count = 1));
    let features = configuration(&["tool_use", "tool_register", "tool_ack"]);
    for message in [&features, &accepted, &accepted] {
        world.send("a", &["phone"], &shown(), message);
    }
    world.run(SECOND);
    begin_another_process(&mut world, "a", "phone");
    world.run(100 * MS);
    let sent = count(&world, "phone", Kind::TOOLS_REGISTER);
    assert_eq!(sent, 2);
    world.send_bytes("a", &["phone"], &Frame::write(-2, "room", &Meta::new(), &accepted).unwrap());
    world.run(20 * SECOND);
    assert_eq!(count(&world, "phone", Kind::TOOLS_REGISTER), sent);
}

#[test]
fn another_process_under_the_same_sid_has_a_second_to_register() {
    let mut world = shown_client(&["tool_use", "tool_register", "tool_ack"]);
    world.run(2 * SECOND);
    world.send("phone", &["a"], &Meta::new(), &Message::Heartbeat);
    world.run(SECOND);
    begin_another_process(&mut world, "phone", "a");
    world.run(100 * MS);
    let key = world.call("a", request("u").owner_wait(100 * MS)).unwrap();
    world.run(800 * MS);
    assert!(world.settled("a", key).is_none());
}

#[test]
fn fast_lane_is_used_at_once_to_another_process_under_the_same_sid() {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.send(
        "phone",
        &["a"],
        &shown(),
        &configuration(&["tool_use", "tool_register", "tool_ack", "fast_lane"]),
    );
    world.run(SECOND);
    begin_another_process(&mut world, "phone", "a");
    let offered = with!(RegisteredTool::default(), name = "t".to_owned());
    let offered = Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![offered]));
    world.send_bytes("phone", &["a"], &Frame::write(2, "room", &Meta::new(), &offered).unwrap());
    world.run(100 * MS);
    world.call("a", request("t")).unwrap();
    let asked = world.ends["a"].log.iter().rfind(|(_, _, frame)| frame.kind() == Kind::TOOL_USE_REQUEST);
    assert_eq!(asked.unwrap().1, Lane::Lossy);
}

/// What the client sent before its Configuration had arrived may be lost, also its registration.
#[test]
fn registration_is_sent_again_when_the_assistant_has_heard_the_client_at_last() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let (key, from) = (Key::of("a"), world.ends["a"].who.peer().clone());
    let configuration = configuration(&["tool_use", "tool_register"]);
    for (heard, registrations) in [(false, 1), (true, 2), (true, 2)] {
        let meta = key.shows(&world, "phone", &from, heard);
        world.send("a", &["phone"], &meta, &configuration);
        world.run(100 * MS);
        let accepted = with!(ToolsRegisterAck::default(), success = true, tool_count = 1);
        world.send("a", &["phone"], &Meta::new(), &Message::ToolsRegisterAck(accepted));
        world.run(2 * SECOND);
        assert_eq!(world.received("a", Kind::TOOLS_REGISTER).len(), registrations, "{heard}");
    }
}
