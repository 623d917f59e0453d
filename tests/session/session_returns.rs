//! Peers that return, and frames in flight from those that were there before.

use toolbridge::{
    CallError, Caps, Config, ErrorCode, Event, Role, ToolError, Value,
    frame::{
        Acknowledgement, Configuration, ControlStop, Frame, Kind, Message, Meta, RegisteredTool,
        ToolUseResult, ToolsRegister, ToolsRegisterAck,
    },
    session::SendFailure,
    tools::Execution,
    transport::{Lane, Participant, Peer, Sid, TransportEvent},
};

use crate::session_world::{Fate, MS, SECOND, World, plain_request, request, value};

/// A Configuration of this instance.
fn configuration(instance: &str) -> Vec<u8> {
    let meta = Meta::new().with_text("bridge.instance", instance);
    Frame::write(1, "room", &meta, &listed()).unwrap().to_vec()
}

fn listed() -> Message {
    let features = ["tool_use", "tool_ack", "tool_register"].map(String::from).to_vec();
    Message::Configuration(with!(Configuration::default(), features = Some(features)))
}

/// A phone with these tools, and a plain assistant that the test plays.
fn plain_assistant(tools: &[&str]) -> World {
    let mut world = World::new();
    world.client("phone", Config::default(), tools);
    plain_assistant_joins(&mut world);
    world
}

/// The assistant joins under a new sid.
fn plain_assistant_joins(world: &mut World) {
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
}

fn answers(world: &World, name: &str) -> Vec<ToolUseResult> {
    let heard = world.received(name, Kind::TOOL_USE_RESULT).into_iter();
    heard.filter_map(|it| if let Message::ToolUseResult(it) = it { Some(it) } else { None }).collect()
}

#[test]
fn late_frame_of_a_replaced_sid_moves_no_identity() {
    let mut world = World::new();
    world.assistant("a", Config::default().admit("phone"));
    let (old, new) = (Peer::new("phone", "PA_old"), Peer::new("phone", "PA_new"));
    let role = |peer: &Peer| Participant::new(peer.identity().clone(), peer.sid().clone()).role(Role::Client);
    world.with("a", |session, now| session.handle_event(now, TransportEvent::Joined(role(&old))));
    world.send_bytes_as(&old, &["a"], &configuration("one"));
    world.run(100 * MS);
    // It is killed and started again; its new Configuration arrives before the room's announcement.
    world.send_bytes_as(&new, &["a"], &configuration("two"));
    world.run(100 * MS);
    world.with("a", |session, now| session.handle_event(now, TransportEvent::Joined(role(&new))));
    world.send_bytes_as(&old, &["a"], &configuration("one"));
    world.run(100 * MS);
    world.with("a", |session, now| session.handle_event(now, TransportEvent::Left(old.clone())));
    let here = world.session("a").participants();
    assert!(here.iter().any(|who| who.peer() == &new), "{here:?}");
    assert_eq!(world.count("a", "stale_sid"), 1);
}

#[test]
fn result_waits_for_a_plain_assistant_that_returns() {
    let mut world = plain_assistant(&["t"]);
    let say = |world: &mut World, id: &str| {
        let request = Message::ToolUseRequest(plain_request(id, "t"));
        world.send("a", &["phone"], &Meta::new(), &request);
    };
    say(&mut world, "first");
    world.run(100 * MS);
    world.leave("a");
    world.run(100 * MS);
    world.finish("phone", Ok(value(1)));
    plain_assistant_joins(&mut world);
    say(&mut world, "second");
    world.run(100 * MS);
    assert_eq!(answers(&world, "a").iter().filter(|it| it.id.as_str() == "first").count(), 1);
    world.finish("phone", Ok(value(2)));
    world.run(SECOND);
    assert!(world.session("phone").is_drained());
}

#[test]
fn waiting_stop_is_handled_when_its_sender_is_plain() {
    let mut world = plain_assistant(&["hang", "t"]);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("first", "hang")));
    world.run(100 * MS);
    world.leave("a");
    plain_assistant_joins(&mut world);
    let stop = with!(ControlStop::default(), target_id = Some("first".to_owned()));
    world.send("a", &["phone"], &Meta::new(), &Message::ControlStop(stop));
    world.run(100 * MS);
    assert!(world.ends["phone"].aborted.is_empty(), "the sender is not yet known to be plain");
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("second", "t")));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

/// The assistant is disconnected for so long that the phone binds another one; a repeated request has run, and is not
/// denied as if it had not.
#[test]
fn result_for_an_assistant_is_not_denied_when_another_one_is_bound() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(50 * MS);
    let request = world.sent("a", Kind::TOOL_USE_REQUEST)[0].1.clone();
    world.assistant("b", Config::default());
    world.run(SECOND);
    world.finish("phone", Ok(value(1)));
    world.leave("a"); // before it receives the result
    world.run(8 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    world.rejoin("a");
    world.run(200 * MS);
    world.send_bytes("a", &["phone"], request.as_bytes());
    world.run(SECOND);
    let denied = world.sent("phone", Kind::TOOL_USE_RESULT).into_iter().any(|(_, frame)| {
        matches!(frame.message(), Ok(Message::ToolUseResult(it)) if it.error_code == Some(ErrorCode::PERMISSION_DENIED))
    });
    assert!(!denied);
    assert_eq!(world.executed.len(), 1);
    world.run(SECOND);
    assert!(world.session("phone").is_drained());
}

/// A late Configuration of an older process, under a sid that was never announced, moves the identity for 4 s. It
/// must not take a call with it: the announced process still runs it, and must get its stop.
#[test]
fn tool_is_stopped_although_another_instance_appeared_in_between() {
    let mut world = World::pair(&["hang"]);
    world.call("a", request("hang").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.send_bytes_as(&Peer::new("phone", "PA_never_announced"), &["a"], &configuration("older"));
    world.run(10 * SECOND);
    let settled = &world.ends["a"].settled;
    let gone = settled.is_empty() || world.ends["phone"].aborted.len() == 1;
    assert!(gone, "the call settled while its tool runs: {settled:?}");
}

/// A participant that lost its signaling gets no announcements: a peer that rejoins meanwhile is accepted for as long
/// as it replies.
#[test]
fn unannounced_rejoin_is_accepted_until_its_announcement() {
    for who in ["phone", "a"] {
        let mut world = World::pair(&["t"]);
        world.handle("phone", |_| Some(Ok(value(1))));
        world.announce = 60 * SECOND;
        world.rejoin(who);
        for wait in [1, 14, 14, 20, 30] {
            world.run(wait * SECOND);
            world.ask("a", request("t")).unwrap();
        }
        let news = |event: &&Event| matches!(event, Event::Joined(_) | Event::Left(_));
        for (name, end) in &world.ends {
            let reported = end.events.iter().filter(news).count();
            assert_eq!(reported, if name == who { 1 } else { 3 }, "{name}: {:?}", end.events);
        }
        assert!(world.count("a", "hold_expired") == 0 && world.count("phone", "hold_expired") == 0);
    }
}

/// An unannounced join of its process was short, or somebody has repeated its Configuration: the announced one goes on.
#[test]
fn announced_join_is_heard_again_after_an_unannounced_one_of_its_instance() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let announced =
        world.session("a").participants().iter().find(|it| *it.identity() == "phone").unwrap().sid().clone();
    for sid in [Sid::from("unannounced"), announced] {
        let shown = TransportEvent::packet(Peer::new("phone", sid), Lane::Reliable, configuration("one"));
        world.with("a", |session, now| session.handle_event(now, shown));
        world.run(50 * MS);
    }
    assert_eq!(world.count("a", "stale_sid"), 0);
}

/// A plain assistant shows no instance, so under another sid it is another one: no result is kept for the first.
#[test]
fn call_of_a_plain_assistant_stops_after_the_grace_period_although_its_identity_returned() {
    let mut world = plain_assistant(&["hang", "t"]);
    world.handle("phone", |job| (job.tool.as_str() == "t").then(|| Ok(value(1))));
    let first = with!(plain_request("first", "hang"), timeout_ms = Some(60_000));
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(first));
    world.run(100 * MS);
    world.leave("a");
    plain_assistant_joins(&mut world);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("second", "t")));
    world.run(4 * SECOND);
    assert!(world.ends["phone"].aborted.is_empty(), "the sender may still be the same program");
    world.run(2 * SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert_eq!(world.session("phone").open_jobs(), 0);
}

#[test]
fn participant_that_was_here_again_has_a_whole_grace_period() {
    let mut world = plain_assistant(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    for call in ["first", "second"] {
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request(call, "t")));
        world.run(SECOND);
        assert_eq!(world.session("phone").bound().unwrap(), "a");
        world.leave("a");
        if call == "first" {
            world.run(3 * SECOND);
            plain_assistant_joins(&mut world);
        }
    }
    world.run(4 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a", "5 s after it left the second time");
    world.run(2 * SECOND);
    assert_eq!(world.session("phone").bound(), None);
}

#[test]
fn retransmitted_result_still_states_that_its_tool_started() {
    let mut world = World::pair(&["t"]);
    world.lossy.lose = Some(Box::new(|from, _, frame| {
        from == "phone" && [Kind::TOOL_PROGRESS, Kind::TOOL_USE_RESULT].contains(&frame.kind())
    }));
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    // An error code that would prove, without the lost start message, that nothing ran.
    world.finish("phone", Err(ToolError::new(ErrorCode::BUSY, "the printer is busy")));
    world.run(100 * MS);
    world.lossy.lose = None;
    world.rejoin("a");
    world.run(SECOND);
    let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
    assert!(error.may_have_run(), "{error:?}");
}

/// An acknowledgement of a registration in the previous join does not apply to this one.
#[test]
fn late_acknowledgement_of_an_earlier_registration_withholds_no_tools() {
    let mut world = World::pair(&["t"]);
    let sid = world.sid();
    world.play(&Participant::new("b", sid).agent(true)); // so that no registration is sent before an assistant is bound
    world.run(SECOND);
    world.rejoin("phone");
    let answer = with!(ToolsRegisterAck::default(), success = true, tool_count = 1, error = None);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolsRegisterAck(answer));
    world.run(2 * SECOND);
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
}

/// Signaling and data are independent: the room's leave event may arrive before the goodbye.
#[test]
fn goodbye_after_the_leave_event_still_ends_the_peer_at_once() {
    let mut world = World::pair(&["hang"]);
    let call = world.call("a", request("hang").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.announce = MS;
    world.with("phone", |session, now| session.close(now));
    world.leave("phone");
    world.run(100 * MS);
    assert!(matches!(world.settled("a", call), Some(Err(CallError::Lost { .. }))));
    // In the other order, nothing of it starts any more.
    let mut world = World::pair(&["hang"]);
    world.call("a", request("hang").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.announce = MS;
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert_eq!(world.session("phone").bound(), None);
}

/// Its calls would be refused: a participant that is offered tools may call them.
#[test]
fn client_offers_no_tools_to_another_assistant_within_the_grace_period() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t")).unwrap();
    world.run(SECOND);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.leave("a"); // without a goodbye, and with an open call
    world.run(SECOND);
    world.assistant("b", Config::default());
    let call = world.call("b", request("t").owner_wait(10 * SECOND)).unwrap();
    world.run(SECOND);
    assert!(world.sent("phone", Kind::TOOLS_REGISTER).iter().all(|(to, _)| to[0] != "b"));
    assert!(world.settled("b", call).is_none(), "the call waits");
    world.run(5 * SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    assert!(world.settled("b", call).unwrap().is_ok());
}

/// The goodbye arrives after the leave. What another program under the identity shows is not lost when that grace period would
/// have ended.
#[test]
fn goodbye_after_the_leave_ends_the_grace_period() {
    let mut world = World::pair(&["t"]);
    world.announce = MS;
    world.with("a", |session, now| session.close(now));
    world.leave("a");
    world.run(2 * SECOND);
    plain_assistant_joins(&mut world);
    let shown = with!(plain_request("shown", "search"), execution = Ok(Execution::Server));
    for asked in [plain_request("first", "t"), shown] {
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(asked));
    }
    world.run(4 * SECOND);
    let ended = |event: &Event| matches!(event, Event::Settled { execution: Execution::Server, .. });
    let ended = |world: &World| world.ends["phone"].events.iter().any(ended);
    assert!(!ended(&world));
    world.leave("a");
    world.run(6 * SECOND);
    assert!(ended(&world));
}

/// It shook hands in the previous join, and leaves before it could do so in this one.
#[test]
fn goodbye_before_the_handshake_of_a_new_join_ends_the_old_one() {
    let mut world = World::pair(&["hang"]);
    world.call("a", request("hang").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.rejoin("phone");
    let bye = Meta::new().with_bool("bridge.bye", true);
    let stop = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    let peer = world.ends["a"].who.peer().clone();
    let bytes = Frame::write(-99, "room", &bye, &Message::ControlStop(stop)).unwrap();
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::packet(peer.clone(), Lane::Reliable, bytes))
    });
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

#[test]
fn call_of_a_plain_client_is_lost_after_the_grace_period_although_others_were_forgotten() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let plain = |sid: String| Participant::new("watch", sid).role(Role::Client);
    let sid = world.sid();
    world.play(&plain(sid));
    world.client("phone", Config::default(), &["t"]);
    world.run(2 * SECOND);
    let key = world.call("a", request("u").to("watch")).unwrap();
    world.run(SECOND);
    world.leave("phone");
    world.run(SECOND);
    world.leave("watch");
    world.run(Config::default().times.grace - SECOND / 2); // the phone's is over: it is forgotten
    let sid = world.sid();
    world.play(&plain(sid));
    world.run(Config::default().times.grace);
    assert!(
        matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))),
        "the call of a forgotten client does not wait"
    );
}

#[test]
fn result_with_a_nothing_ran_code_states_that_its_tool_started() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Err(ToolError::new("busy", "the tool says so"))));
    // A frame from a participant that the room does not know yet has no sender, and is dropped.
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::TOOL_PROGRESS => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    let error = world.ask("a", request("t")).unwrap_err();
    assert!(matches!(&error, CallError::Tool(it) if it.code() == ErrorCode::BUSY), "{error:?}");
    assert!(error.may_have_run());
}

/// Its Configurations arrive too late, so it is called as a plain client; then it rejoins.
#[test]
fn tool_is_stopped_although_its_client_was_treated_as_plain() {
    let mut world = World::new();
    world.fate = Some(Box::new(|_, from, frame| match (from.as_str(), frame.kind()) {
        ("phone", Kind::CONFIGURATION) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["hang"]);
    world.run(2 * SECOND);
    let key = world.call("a", request("hang").to("phone").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    world.fate = None;
    world.rejoin("phone");
    world.run(SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    assert_eq!(world.ends["phone"].aborted.len(), 1, "the tool was stopped");
}

/// A process that replaced another one starts at stanza one, and gets frames meant for the other.
#[test]
fn acknowledgement_of_another_call_has_no_effect() {
    let mut world = World::pair(&["t"]);
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::TOOL_USE_REQUEST => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.call("a", request("t")).unwrap();
    let request = world.sent("a", Kind::TOOL_USE_REQUEST)[0].1.clone();
    let delivered = |world: &mut World, named: &str| {
        let message = Message::Acknowledgement(with!(
            Acknowledgement::default(),
            acknowledged_stanza_id = request.stanza_id(),
            success = Some(true),
            acknowledged_message_id = Some(named.to_owned())
        ));
        world.send("phone", &["a"], &Meta::new(), &message);
        world.run(100 * MS);
        world.ends["a"].events.iter().any(|event| matches!(event, Event::Delivered { .. }))
    };
    assert!(!delivered(&mut world, "another"));
    assert!(delivered(&mut world, request.peek_id().unwrap()));
}

/// A transport may report a rejoin alone, without reporting that the old connection was lost.
#[test]
fn unsent_request_to_a_plain_client_is_sent_after_a_rejoin() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Client));
    world.run(5 * SECOND);
    world.call("a", request("t").to("watch").timeout(20 * SECOND)).unwrap();
    world.run(1_500 * MS);
    world.call("a", request("t").to("watch").timeout(20 * SECOND)).unwrap();
    let packet = world.packet;
    world.with("a", |session, now| session.handle_send_failed(now, packet, SendFailure::Interrupted));
    world.run(100 * MS);
    world.ends.get_mut("watch").unwrap().inbox.clear(); // the test network delivered it nevertheless
    world.rejoin("a");
    world.run(5 * SECOND);
    assert_eq!(world.received("watch", Kind::TOOL_USE_REQUEST).len(), 1);
}

#[test]
fn peer_with_a_late_goodbye_counts_as_remembered() {
    let mut config = Config::default();
    config.caps.requests.remembered_peers = 2;
    let mut world = World::new();
    world.assistant("a", config);
    for n in 0..6 {
        let name = format!("guest{n}");
        world.announce = 50 * MS;
        world.client(&name, Config::default(), &["t"]);
        world.run(SECOND);
        world.announce = MS;
        world.with(&name, |session, now| session.close(now));
        world.leave(&name);
        world.run(10 * SECOND);
    }
    // The session's debug output contains what it knows of the peer.
    let known = format!("{:?}", world.session("a"));
    assert!((0..6).filter(|n| known.contains(&format!("guest{n}"))).count() <= 3);
}

/// A phone that the test plays joins under another sid, as this instance, and offers an idempotent tool.
fn instance_joins(world: &mut World, instance: &str) {
    world.leave_if_here("phone");
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let shows = world.shows("phone", "a", instance);
    world.send("phone", &["a"], &shows, &listed());
    let tool = with!(
        RegisteredTool::default(),
        name = "look".to_owned(),
        annotations = Some(Value::encode(&std::collections::BTreeMap::from([("idempotent", true)])).unwrap())
    );
    world.send(
        "phone",
        &["a"],
        &Meta::new(),
        &Message::ToolsRegister(with!(ToolsRegister::default(), tools = vec![tool])),
    );
    world.run(200 * MS);
}

fn acknowledge(world: &mut World, stanza: i32) {
    let message =
        with!(Acknowledgement::default(), acknowledged_stanza_id = Some(stanza), success = Some(true));
    world.send("phone", &["a"], &Meta::new(), &Message::Acknowledgement(message));
    world.run(50 * MS);
}

/// The stanza of the last frame of this type that was sent to the phone.
fn last_of(world: &World, kind: Kind) -> Option<i32> {
    world.ends["phone"].inbox.iter().rev().find(|(_, frame)| frame.kind() == kind)?.1.stanza_id()
}

#[test]
fn returning_replaced_instance_gets_stops_of_ended_calls() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let key = world.call("a", request("look").timeout(60 * SECOND)).unwrap();
    world.run(50 * MS);
    let asked = last_of(&world, Kind::TOOL_USE_REQUEST).unwrap();
    acknowledge(&mut world, asked);
    instance_joins(&mut world, "two");
    assert!(last_of(&world, Kind::TOOL_USE_REQUEST).is_some(), "the request is sent to the new instance");
    world.with("a", |session, now| session.cancel(now, key));
    world.run(50 * MS);
    let stopped = last_of(&world, Kind::CONTROL_STOP).unwrap();
    acknowledge(&mut world, stopped);
    instance_joins(&mut world, "one");
    assert!(last_of(&world, Kind::CONTROL_STOP).is_some());
    instance_joins(&mut world, "three");
    assert!(last_of(&world, Kind::CONTROL_STOP).is_none(), "an instance that got no request gets no stop");
}

/// Its answer waits for its Configuration, and is read before the stop is sent.
#[test]
fn owner_that_returns_with_its_answer_gets_no_stop() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let key = world.call("a", request("look").timeout(60 * SECOND)).unwrap();
    world.run(50 * MS);
    let id = world.session("a").call_id(key).unwrap().clone();
    world.leave("phone");
    world.run(100 * MS);
    world.with("a", |session, now| session.cancel(now, key));
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let answer = with!(ToolUseResult::new(id, true), result = Some(value(1)));
    world.send("phone", &["a"], &Meta::new(), &Message::ToolUseResult(answer));
    let shows = world.shows("phone", "a", "one");
    world.send("phone", &["a"], &shows, &listed());
    world.run(SECOND);
    assert!(
        last_of(&world, Kind::ACKNOWLEDGEMENT).is_some() && last_of(&world, Kind::CONTROL_STOP).is_none()
    );
}

#[test]
fn returning_replaced_instance_gets_no_stop_of_a_call_whose_time_limit_is_over() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let key = world.call("a", request("look").timeout(5 * SECOND)).unwrap();
    world.run(50 * MS);
    instance_joins(&mut world, "two");
    world.with("a", |session, now| session.cancel(now, key));
    world.run(6 * SECOND);
    instance_joins(&mut world, "one");
    assert!(last_of(&world, Kind::CONTROL_STOP).is_none());
}

#[test]
fn returning_replaced_instance_gets_no_stop_of_a_call_reissued_to_it() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let key = world.call("a", request("look").timeout(60 * SECOND)).unwrap();
    world.run(50 * MS);
    for instance in ["two", "one"] {
        instance_joins(&mut world, instance);
        assert!(last_of(&world, Kind::TOOL_USE_REQUEST).is_some(), "the request is sent to the new instance");
    }
    assert!(last_of(&world, Kind::CONTROL_STOP).is_none());
    world.with("a", |session, now| session.cancel(now, key));
    world.run(50 * MS);
    assert!(last_of(&world, Kind::CONTROL_STOP).is_some());
}

/// Only the program itself knows whether it got the request.
#[test]
fn stop_of_a_plain_call_goes_to_each_instance_that_appears() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.call("a", request("look").to("phone").timeout(60 * SECOND)).unwrap();
    world.run(2 * SECOND);
    assert!(last_of(&world, Kind::TOOL_USE_REQUEST).is_some(), "the request is sent in the plain form");
    for instance in ["one", "two"] {
        instance_joins(&mut world, instance);
        let stopped = last_of(&world, Kind::CONTROL_STOP);
        assert!(stopped.is_some(), "{instance}");
        acknowledge(&mut world, stopped.unwrap());
    }
}

/// The refusal of the old request arrives after the acknowledgement of the new one.
#[test]
fn refusal_of_an_earlier_request_does_not_end_a_call_that_was_acknowledged() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let key = world.call("a", request("look").timeout(60 * SECOND)).unwrap();
    instance_joins(&mut world, "two");
    let asked = last_of(&world, Kind::TOOL_USE_REQUEST).unwrap();
    acknowledge(&mut world, asked);
    let refusal = world.other_instance(key);
    world.send("phone", &["a"], &Meta::new(), &Message::Error(refusal));
    world.run(50 * MS);
    assert!(world.settled("a", key).is_none());
}

/// Its first stanza is below those of the plain program: it is another instance, of which nothing is forgotten.
#[test]
fn instance_after_a_plain_assistant_may_use_lower_stanzas() {
    let mut world = plain_assistant(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let ask = |world: &mut World, stanza: i32, id: &str| {
        let message = Message::ToolUseRequest(plain_request(id, "t"));
        world.send_bytes("a", &["phone"], &Frame::write(stanza, "room", &Meta::new(), &message).unwrap());
        world.run(100 * MS);
    };
    ask(&mut world, -50, "first");
    world.leave("a");
    plain_assistant_joins(&mut world);
    let shown = configuration("one");
    world.send_bytes("a", &["phone"], &shown);
    world.run(300 * SECOND); // the first call is forgotten
    ask(&mut world, -2, "second");
    assert_eq!(world.executed.len(), 2);
}

/// Its acknowledgement is lost, and its result, which needs none, arrives: the next stop is due.
#[test]
fn stop_settled_by_its_result_does_not_block_the_next_one() {
    let mut world = World::new();
    let mut caps = Caps::default();
    caps.frames.retransmit_frames = 1;
    world.assistant("a", Config::default().caps(caps));
    world.client("phone", Config::default(), &["t"]);
    world.run(200 * MS);
    let keys = [(); 2].map(|()| world.call("a", request("t").timeout(60 * SECOND)).unwrap());
    world.run(200 * MS);
    world.leave("a");
    world.unsent = SendFailure::Interrupted;
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("phone", Kind::CONTROL_STOP) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.rejoin("a");
    world.run(SECOND);
    for key in keys {
        world.with("a", |session, now| session.cancel(now, key));
    }
    world.run(SECOND);
    assert!(world.ends["phone"].aborted.is_empty());
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("a", Kind::ACKNOWLEDGEMENT) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.leave("a");
    world.rejoin("a");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 2);
}

/// Three calls were sent to another client when their owner was replaced. Each that ends is stopped at the first
/// instance, which has returned, and no other one.
#[test]
fn each_ended_call_is_stopped_once_at_the_replaced_instance() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let calls = [(); 3].map(|()| world.call("a", request("look").timeout(60 * SECOND)).unwrap());
    world.run(50 * MS);
    world.leave("phone");
    world.run(200 * MS);
    world.client("tablet", Config::default(), &["look"]);
    world.run(200 * MS);
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let shows = world.shows("phone", "a", "two");
    world.send("phone", &["a"], &shows, &listed()); // it registers nothing
    world.run(200 * MS);
    assert_eq!(world.ends["tablet"].jobs.len(), 3, "the tablet runs the calls");
    let sid = world.sid();
    world.leave("phone");
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    let shows = world.shows("phone", "a", "one");
    world.send("phone", &["a"], &shows, &listed());
    world.run(200 * MS);
    for key in calls {
        world.finish("tablet", Ok(value(1)));
        world.run(100 * MS);
        assert!(world.settled("a", key).is_some());
    }
    assert_eq!(world.received("phone", Kind::CONTROL_STOP).len(), 3);
}

/// The packet of a stop goes to an identity, so a new process may get it before its own Configuration arrives.
#[test]
fn stop_that_another_instance_acknowledges_is_sent_to_its_own_instance_when_that_returns() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    instance_joins(&mut world, "one");
    let key = world.call("a", request("look").timeout(60 * SECOND)).unwrap();
    world.run(50 * MS);
    let asked = last_of(&world, Kind::TOOL_USE_REQUEST).unwrap();
    acknowledge(&mut world, asked);
    world.with("a", |session, now| session.cancel(now, key));
    world.run(50 * MS);
    let stopped = last_of(&world, Kind::CONTROL_STOP).unwrap();
    instance_joins(&mut world, "two");
    acknowledge(&mut world, stopped);
    instance_joins(&mut world, "one");
    let stopped = last_of(&world, Kind::CONTROL_STOP).expect("the instance that runs the call gets a stop");
    acknowledge(&mut world, stopped);
    instance_joins(&mut world, "one");
    assert!(last_of(&world, Kind::CONTROL_STOP).is_none(), "its own acknowledgement counts");
}

/// The caller got no Configuration of its owner, so it could not acknowledge the result.
#[test]
fn result_is_sent_again_when_its_caller_has_the_owners_configuration() {
    let mut world = World::new();
    world.fate = Some(Box::new(|_, from, frame| match (from.as_str(), frame.kind()) {
        ("phone", Kind::CONFIGURATION) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(2 * SECOND);
    assert_eq!(world.ask("a", request("t").to("phone")).unwrap(), value(1));
    world.run(3 * SECOND);
    assert!(!world.session("phone").is_drained(), "the result is not acknowledged");
    world.fate = None;
    let lost = world.sent("phone", Kind::CONFIGURATION)[0].1.clone();
    world.send_bytes("phone", &["a"], lost.as_bytes());
    world.run(SECOND);
    assert!(world.session("phone").is_drained());
}

/// Its goodbye arrives after the next join of its identity.
#[test]
fn goodbye_of_a_replaced_join_ends_the_calls_of_that_join() {
    let mut world = plain_assistant(&["hang"]);
    let call =
        |id: &str| Message::ToolUseRequest(with!(plain_request(id, "hang"), timeout_ms = Some(60_000)));
    let shows = world.shows("a", "phone", "one");
    world.send("a", &["phone"], &shows, &listed());
    world.send("a", &["phone"], &Meta::new(), &call("first"));
    world.run(100 * MS);
    let left = world.ends["a"].who.peer().clone();
    plain_assistant_joins(&mut world);
    let shows = world.shows("a", "phone", "one");
    world.send("a", &["phone"], &shows, &listed());
    world.send("a", &["phone"], &Meta::new(), &call("second"));
    world.run(100 * MS);
    let before = world.ends["phone"].aborted.len();
    let bye = Meta::new().with_bool("bridge.bye", true);
    let stop = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    let bytes = Frame::write(-99, "room", &bye, &Message::ControlStop(stop)).unwrap();
    world.send_bytes_as(&left, &["phone"], &bytes);
    world.run(100 * MS);
    assert_eq!((before, world.ends["phone"].aborted.len()), (0, 1));
    assert_eq!(world.session("phone").open_jobs(), 1, "the call of the new join stays");
}

#[test]
fn refusal_that_was_not_sent_before_a_goodbye_does_not_reach_the_next_process() {
    let mut world = plain_assistant(&["t"]);
    for tool in ["t", "another"] {
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", tool)));
        world.run(100 * MS);
    }
    let packet = world.packet;
    world.with("phone", |session, now| session.handle_send_failed(now, packet, SendFailure::Interrupted));
    let bye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("a", &["phone"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(bye));
    world.send_bytes("a", &["phone"], &configuration("one"));
    world.run(SECOND);
    world.outage("phone", SECOND);
    assert_eq!(world.sent("phone", Kind::ERROR).len(), 1);
}
