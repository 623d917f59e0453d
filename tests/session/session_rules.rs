//! Rules of the session that no other test covers: what is remembered of peers, calls and results, and for how long.

#![expect(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::str::FromStr as _;

use toolbridge::{
    CallError, CallId, Config, ConnectionState, Event, Role, Tool, ToolOptions, Value,
    frame::{
        Configuration, ControlStop, Frame, Kind, Message, Meta, RegisteredTool, ToolUseRequest,
        ToolUseResult, ToolsRegister, ToolsRegisterAck,
    },
    session::{CallKey, SendFailure, Session},
    tools::Execution,
    transport::{Participant, Peer, TransportEvent},
};

use crate::{
    session_unsent::refuse,
    session_world::plain_request,
    session_world::{Fate, MS, SECOND, World, request, tool, value},
};

/// A value of slightly more than this many bytes.
fn body_of(bytes: usize) -> Value {
    Value::from(serde_json::json!({"text": "x".repeat(bytes)}))
}

/// The `meta` of a Configuration of this instance, which has received the local one.
fn shown(instance: &str) -> Meta {
    Meta::new().with_text("bridge.instance", instance).with_bool("bridge.heard", true)
}

fn configuration() -> Message {
    let features = ["tool_use", "tool_register", "tool_ack", "tool_cancel"].map(String::from).to_vec();
    Message::Configuration(with!(Configuration::default(), features = Some(features)))
}

/// A phone that offers `t`, and an assistant that the test plays and that shook hands as instance `one`.
fn shown_assistant() -> World {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    world.send("a", &["phone"], &shown("one"), &configuration());
    world.run(200 * MS);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    world
}

/// A toolbridge assistant, and a client that the test plays and that has neither registered nor shaken hands.
fn silent_client() -> World {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Client));
    world.run(2 * SECOND);
    world
}

fn goodbye() -> Message {
    Message::ControlStop(with!(ControlStop::default(), stop_type = Some("all".to_owned())))
}

fn registered() -> Message {
    Message::ToolsRegisterAck(with!(
        ToolsRegisterAck::default(),
        success = true,
        tool_count = 1,
        error = None
    ))
}

fn goodbye_meta() -> Meta {
    Meta::new().with_bool("bridge.bye", true)
}

#[test]
fn unacknowledged_results_for_one_caller_stay_within_the_limit() {
    let mut config = Config::default();
    config.caps.requests.table_bytes = 4_000;
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", config, &["t"]);
    world.run(200 * MS);
    world.handle("phone", |_| Some(Ok(body_of(3_000))));
    world.fate = Some(Box::new(|to, _, frame| match frame.kind() {
        Kind::ACKNOWLEDGEMENT if to == "phone" => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    let large = |world: &World| {
        let answers = world.sent("phone", Kind::TOOL_USE_RESULT).into_iter();
        answers.filter(|(_, frame)| frame.as_bytes().len() > 3_000).count()
    };
    for _ in 0..4 {
        world.call("a", request("t")).unwrap();
        world.run(100 * MS);
    }
    assert_eq!(large(&world), 1, "a second result would exceed 4,000 B");
    world.fate = None;
    world.rejoin("a"); // acknowledges retransmitted frames
    world.run(2 * SECOND);
    world.ask("a", request("t")).unwrap();
}

#[test]
fn claimed_call_counts_its_budget_from_the_request() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let shared = tool("lookup").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![shared])).unwrap().unwrap();
    world.client("phone", Config::default(), &["lookup"]);
    world.run(200 * MS);
    // The grant takes 1.5 s longer than the claim.
    world.fate = Some(Box::new(|to, _, frame| match frame.message() {
        Ok(Message::Acknowledgement(it)) if to == "phone" && it.acknowledged_message_id.is_some() => {
            Fate::IsOvertaken(1_500 * MS)
        }
        _ => Fate::Arrives,
    }));
    let asked = world.now;
    world.call("a", request("lookup").timeout(4 * SECOND)).unwrap();
    world.run(2 * SECOND);
    let job = &world.ends["phone"].jobs[0];
    assert_eq!((job.deadline, job.limit), (asked + world.delay + 4 * SECOND, 4 * SECOND));
    world.leave("a"); // its stop never arrives, and its grace period ends later
    world.run(2_021 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

#[test]
fn stop_is_kept_as_long_as_its_owner_may_execute() {
    let mut world = World::pair(&["hang"]);
    let key = world.call("a", request("hang").timeout(300 * SECOND)).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.run(10 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    world.run(150 * SECOND); // longer than an ended call is remembered
    assert_eq!(world.session("phone").open_jobs(), 1, "the client does not know of its own absence");
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

#[test]
fn results_of_a_returned_caller_are_kept_after_its_old_deadline() {
    let mut world = World::pair(&["t"]);
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::TOOL_USE_RESULT => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    let key = world.call("a", request("t").timeout(300 * SECOND)).unwrap();
    world.run(100 * MS);
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    for _ in 0..2 {
        // The assistant is disconnected for longer than its grace period, returns, and stays for longer than results
        // wait for an absent caller.
        world.with("a", |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
        });
        world.leave("a");
        world.run(10 * SECOND);
        world.with("a", |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
        });
        world.rejoin("a");
        world.run(70 * SECOND);
        assert!(world.settled("a", key).is_none());
    }
    world.fate = None;
    world.rejoin("a");
    world.run(SECOND);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(1));
}

#[test]
fn instance_that_said_goodbye_is_ignored_for_the_rest_of_its_join() {
    let mut world = shown_assistant();
    world.send("a", &["phone"], &goodbye_meta(), &goodbye());
    world.run(100 * MS);
    assert_eq!(world.session("phone").bound(), None);
    let before = world.count("phone", "after_goodbye");
    world.send("a", &["phone"], &shown("one"), &configuration());
    world.run(100 * MS);
    assert_eq!(world.session("phone").bound(), None);
    assert_eq!(world.count("phone", "after_goodbye"), before + 1);
    // Another instance of the program in the same join is accepted.
    world.send("a", &["phone"], &shown("two"), &configuration());
    world.run(100 * MS);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
}

#[test]
fn sid_announced_again_is_present() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let phone = world.ends["phone"].who.clone();
    world.with("a", |session, now| session.handle_event(now, TransportEvent::Left(phone.peer().clone())));
    world.run(2 * SECOND);
    let heard = world.count("a", "stale_sid");
    world.with("a", |session, now| session.handle_event(now, TransportEvent::Joined(phone)));
    world.run(SECOND);
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    assert_eq!(world.count("a", "stale_sid"), heard);
}

/// A Configuration under a sid that the room has not announced moves its sender; the announced one may send
/// meanwhile.
#[test]
fn announced_sid_is_accepted_although_a_configuration_moved_its_identity() {
    let mut world = World::pair(&["t"]);
    let bytes = Frame::write(1, "room", &shown("older"), &configuration()).unwrap();
    world.send_bytes_as(&Peer::new("phone", "PA_never_announced"), &["a"], &bytes);
    world.run(100 * MS);
    // Its own Configuration again, unchanged.
    let own = world.sent("phone", Kind::CONFIGURATION)[0].1.clone();
    world.send_bytes("phone", &["a"], own.as_bytes());
    world.run(200 * MS);
    assert_eq!(world.count("a", "stale_sid"), 0);
}

#[test]
fn late_goodbye_counts_only_after_a_handshake() {
    let mut world = silent_client();
    let key = world.call("a", request("u").to("watch").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    assert_eq!(world.received("watch", Kind::TOOL_USE_REQUEST).len(), 1, "it got a plain request");
    world.leave("watch");
    world.run(100 * MS);
    world.send("watch", &["a"], &goodbye_meta(), &goodbye());
    world.run(SECOND);
    assert!(world.settled("a", key).is_none(), "the call waits for the grace period");
    assert_eq!(world.count("a", "stale_sid"), 1);
    world.run(Config::default().times.grace);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
}

#[test]
fn tombstones_are_dropped_with_their_callers_instance() {
    let say = |world: &mut World, id: &str| {
        let request = Message::ToolUseRequest(plain_request(id, "t"));
        world.send("a", &["phone"], &Meta::new(), &request);
        world.run(100 * MS);
    };
    for (instance, runs) in [("one", 0), ("two", 1)] {
        let mut world = shown_assistant();
        let stop = with!(ControlStop::default(), target_id = Some("1".to_owned()));
        world.send("a", &["phone"], &Meta::new(), &Message::ControlStop(stop));
        world.run(100 * MS);
        world.send("a", &["phone"], &shown(instance), &configuration());
        world.run(SECOND);
        say(&mut world, "1");
        assert_eq!(world.executed.len(), runs, "instance {instance}");
    }
}

#[test]
fn plain_client_that_sends_a_late_configuration_keeps_its_calls() {
    let mut world = silent_client();
    let key = world.call("a", request("u").to("watch").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    let Some(Message::ToolUseRequest(asked)) = world.received("watch", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("no request was sent")
    };
    world.send("watch", &["a"], &Meta::new(), &configuration()); // it shows no instance
    world.run(100 * MS);
    assert!(world.settled("a", key).is_none());
    let result = with!(ToolUseResult::new(asked.id, true), result = Some(value(1)));
    world.send("watch", &["a"], &Meta::new(), &Message::ToolUseResult(result));
    world.run(100 * MS);
    assert_eq!(world.settled("a", key).unwrap().as_ref().unwrap(), &value(1));
}

#[test]
fn stranger_leaves_no_trace_on_the_fast_lane() {
    let mut world = World::new();
    world.assistant("a", Config::default().lossy(true));
    world.client("phone", Config::default().lossy(true), &["t"]);
    world.stranger("eve");
    world.run(SECOND);
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    // The session's debug output contains what it knows of the peer.
    let arrivals = |world: &World| format!("{:?}", world.session("phone")).matches("Arrival {").count();
    let before = arrivals(&world);
    assert!(before > 0, "the debug output has no arrivals");
    let eve = world.ends["eve"].who.peer().clone();
    for stanza in 1..=20 {
        let request = with!(plain_request(&format!("{stanza}"), "t"), execution = Ok(Execution::Client));
        let stop = with!(ControlStop::default(), target_id = Some("1".to_owned()));
        for (stanza, message) in
            [(stanza, Message::ToolUseRequest(request)), (-stanza, Message::ControlStop(stop))]
        {
            let bytes = Frame::write(stanza, "room", &Meta::new(), &message).unwrap();
            world.send_lossy(&eve, "phone", &bytes);
        }
    }
    world.run(SECOND);
    assert!(world.count("phone", "unauthorized") >= 20);
    assert_eq!(arrivals(&world), before);
}

/// The new instance gets the request, and the transport closes before it is sent: there will be no result.
#[test]
fn reissued_call_ends_at_once_if_its_request_was_never_sent() {
    let mut world = World::new();
    let repeats = || -> Vec<Tool> { vec![tool("look").options(ToolOptions::default().idempotent())] };
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &[]);
    world.with("phone", |session, now| session.offer(now, repeats())).unwrap().unwrap();
    world.run(200 * MS);
    let key = world.call("a", request("look").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.client("phone", Config::default(), &[]);
    world.with("phone", |session, now| session.offer(now, repeats())).unwrap().unwrap();
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::TOOL_USE_REQUEST => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    for _ in 0..1_000 {
        if world.sent("a", Kind::TOOL_USE_REQUEST).len() == 2 {
            break;
        }
        assert!(world.step());
    }
    let asked = |world: &World| world.sent("a", Kind::TOOL_USE_REQUEST).len();
    assert_eq!(asked(&world), 2, "the new instance gets the request");
    for packet in (1..=world.packet).rev() {
        world.with("a", |session, now| session.handle_send_failed(now, packet, SendFailure::Closed));
    }
    let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
    assert!(matches!(error, CallError::Lost { .. }) && error.may_have_run(), "{error:?}");
}

/// The next instance of a program has no part in the calls whose stops went to the previous one.
#[test]
fn instance_after_a_goodbye_has_all_slots_and_gets_no_stops() {
    let mut config = Config::default();
    config.caps.calls.open_per_peer = 2;
    let mut world = World::new();
    world.assistant("a", config);
    world.client("phone", Config::default(), &["hang"]);
    world.run(200 * MS);
    // The stops are lost, and keep their slots.
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::CONTROL_STOP if !frame.meta_bool("bridge.bye") => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    for _ in 0..2 {
        let key = world.call("a", request("hang")).unwrap();
        world.run(100 * MS);
        world.with("a", |session, now| session.cancel(now, key));
    }
    world.run(100 * MS);
    assert!(matches!(world.call("a", request("hang")), Err(CallError::TooManyOpen { .. })));
    world.with("phone", |session, now| session.close(now));
    world.run(100 * MS);
    world.fate = None;
    world.leave("phone");
    world.client("phone", Config::default(), &["hang"]);
    world.run(SECOND);
    let stops = world.sent("a", Kind::CONTROL_STOP).len();
    for _ in 0..2 {
        world.call("a", request("hang")).unwrap();
    }
    world.run(SECOND);
    assert_eq!(world.sent("a", Kind::CONTROL_STOP).len(), stops);
    assert_eq!(world.session("phone").open_jobs(), 2);
}

/// An assistant that accepted the registration, then considered the client gone, has no record of it when they shake
/// hands.
#[test]
fn registration_that_was_answered_before_the_handshake_is_sent_again() {
    let mut world = shown_assistant();
    world.send("a", &["phone"], &Meta::new(), &registered());
    world.run(100 * MS);
    world.rejoin("phone");
    world.run(100 * MS);
    world.send("a", &["phone"], &Meta::new(), &registered());
    world.run(100 * MS);
    let sent = |world: &World| world.sent("phone", Kind::TOOLS_REGISTER).len();
    let before = sent(&world);
    world.send("a", &["phone"], &shown("one"), &configuration());
    world.run(100 * MS);
    assert_eq!(sent(&world), before + 1);
    world.send("a", &["phone"], &Meta::new(), &registered());
    world.run(20 * SECOND);
    assert_eq!(sent(&world), before + 1, "this acknowledgement counts");
}

/// A plain client with a request, and the call.
fn plain_call() -> (World, CallKey, CallId) {
    let mut world = silent_client();
    let key = world.call("a", request("u").to("watch").timeout(60 * SECOND)).unwrap();
    world.run(SECOND);
    let Some(Message::ToolUseRequest(asked)) = world.received("watch", Kind::TOOL_USE_REQUEST).pop() else {
        panic!("no request was sent")
    };
    (world, key, asked.id)
}

/// It shows no instance: under another sid it may be another program.
fn moves_to_another_sid(world: &mut World) {
    world.leave("watch");
    world.run(100 * MS);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Client));
    world.run(100 * MS);
}

#[test]
fn result_of_a_plain_client_under_another_sid_is_ignored() {
    let (mut world, key, id) = plain_call();
    moves_to_another_sid(&mut world);
    world.call("a", request("u").to("watch")).unwrap();
    world.run(1_500 * MS);
    assert_eq!(world.received("watch", Kind::TOOL_USE_REQUEST).len(), 1, "it gets a plain request again");
    let result = with!(ToolUseResult::new(id, true), result = Some(value(1)));
    world.send("watch", &["a"], &Meta::new(), &Message::ToolUseResult(result));
    world.run(100 * MS);
    assert!(world.settled("a", key).is_none());
    assert_eq!(world.count("a", "not_permitted"), 1);
}

#[test]
fn call_of_a_plain_client_is_lost_when_its_next_join_shows_a_configuration() {
    let (mut world, key, _) = plain_call();
    moves_to_another_sid(&mut world);
    world.send("watch", &["a"], &Meta::new(), &configuration()); // without an instance
    world.run(100 * MS);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
}

#[test]
fn unsent_stop_of_a_client_is_sent_when_the_connection_is_restored() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["hang"]);
    world.allow_stop("phone");
    world.run(200 * MS);
    let key = world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    let call = world.executed[0].1.clone();
    world.unsent = SendFailure::Interrupted;
    world.ends.get_mut("phone").unwrap().here = false;
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
    });
    world.with("phone", |session, now| session.ask_to_stop(now, Some(&call))).unwrap().unwrap();
    world.run(SECOND);
    assert!(world.settled("a", key).is_none());
    world.ends.get_mut("phone").unwrap().here = true;
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
    });
    world.run(100 * MS);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
}

#[test]
fn stop_of_a_client_is_not_sent_after_a_minute() {
    for (away, stops) in [(50, 1), (70, 0)] {
        let mut world = World::pair(&["t"]);
        world.leave("a");
        world.run(SECOND);
        world.with("phone", |session, now| session.ask_to_stop(now, None)).unwrap().unwrap();
        world.run(away * SECOND);
        world.rejoin("a");
        world.run(SECOND);
        assert_eq!(world.sent("phone", Kind::CONTROL_STOP).len(), stops, "after {away} s");
    }
}

#[test]
fn instance_longer_than_128_bytes_is_ignored() {
    for (length, plain) in [(128, false), (129, true)] {
        let mut world = silent_client();
        let meta = Meta::new().with_text("bridge.instance", "x".repeat(length).as_str());
        let stanza = world.send("watch", &["a"], &meta, &configuration());
        world.run(100 * MS);
        // Only a plain client's Configuration is acknowledged.
        let acknowledged = world.received("watch", Kind::ACKNOWLEDGEMENT).into_iter().any(|message| {
            matches!(message, Message::Acknowledgement(it) if it.acknowledged_stanza_id == Some(stanza))
        });
        assert_eq!(acknowledged, plain, "{length} B");
    }
}

#[test]
fn repeated_configurations_make_a_client_retransmit_once_in_900_ms() {
    let mut world = shown_assistant();
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", "t")));
    world.run(100 * MS);
    let results = |world: &World| world.received("a", Kind::TOOL_USE_RESULT).len();
    assert_eq!(results(&world), 1, "an unacknowledged result is kept");
    let heard_nothing = Meta::new().with_text("bridge.instance", "one").with_bool("bridge.heard", false);
    for _ in 0..8 {
        world.send("a", &["phone"], &heard_nothing, &configuration());
        world.run(100 * MS);
    }
    assert_eq!(results(&world), 2);
    world.run(SECOND);
    assert_eq!(results(&world), 3);
}

#[test]
fn retransmission_of_stops_and_requests_is_in_stanza_order() {
    let mut world = World::pair(&["hang"]);
    let first = world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    world.fate = Some(Box::new(|to, _, _| if to == "phone" { Fate::IsLost } else { Fate::Arrives }));
    world.with("a", |session, now| session.cancel(now, first));
    world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    world.fate = None;
    let before = world.ends["a"].sent.len();
    world.rejoin("a");
    world.run(SECOND);
    let sent = &world.ends["a"].sent[before..];
    let at = |kind: Kind| sent.iter().position(|(_, frame)| frame.kind() == kind).unwrap();
    assert!(at(Kind::CONTROL_STOP) < at(Kind::TOOL_USE_REQUEST));
}

/// A client's stop of all calls is sent again after a rejoin, because its acknowledgement was lost.
#[test]
fn repeated_stop_without_a_target_spares_calls_that_began_since() {
    let mut world = World::pair(&["hang"]);
    world.allow_stop("phone");
    world.run(SECOND);
    let stop_all = |world: &mut World| {
        world.with("phone", |session, now| session.ask_to_stop(now, None)).unwrap().unwrap();
        world.run(SECOND);
    };
    let is_cancelled =
        |world: &World, key| matches!(world.settled("a", key), Some(Err(CallError::Cancelled)));
    let first = world.call("a", request("hang")).unwrap();
    world.run(SECOND);
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("phone", Kind::ACKNOWLEDGEMENT) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    stop_all(&mut world);
    assert!(is_cancelled(&world, first));
    let second = world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    world.fate = None;
    world.rejoin("phone");
    world.run(SECOND);
    let stops = world.sent("phone", Kind::CONTROL_STOP);
    assert_eq!((stops.len(), stops[0].1.stanza_id()), (2, stops[1].1.stanza_id()), "the stop was repeated");
    assert!(world.settled("a", second).is_none());
    stop_all(&mut world);
    assert!(is_cancelled(&world, second), "another stop has its effect");
}

/// The stop has arrived and its acknowledgement was lost; then the packet that repeats it is not sent.
#[test]
fn stop_without_a_target_that_was_not_sent_again_keeps_its_stanza() {
    let mut world = World::pair(&["hang"]);
    world.notes = Some(Vec::new());
    world.allow_stop("phone");
    world.run(SECOND);
    world.fate = Some(Box::new(|to, _, frame| match (to, frame.kind()) {
        ("phone", Kind::ACKNOWLEDGEMENT) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.with("phone", |session, now| session.ask_to_stop(now, None)).unwrap().unwrap();
    world.run(SECOND);
    world.fate = None;
    let key = world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    refuse(&mut world, "phone", Kind::CONTROL_STOP, &SendFailure::QueueFull, |world| {
        world.rejoin("phone");
        world.run(300 * MS);
    });
    world.run(SECOND);
    let stops: Vec<_> = world.sent("phone", Kind::CONTROL_STOP).iter().map(|it| it.1.stanza_id()).collect();
    assert_eq!(stops, [stops[0]; 3]);
    assert!(world.settled("a", key).is_none(), "it began after the stop");
}

/// Its results would not arrive, so nothing runs.
#[test]
fn client_that_may_not_publish_data_runs_no_call() {
    for is_announced in [true, false] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        world.muted.insert("phone".to_owned());
        let who = Participant::new("phone", world.sid()).role(Role::Client).can_publish_data(!is_announced);
        let mut session = Session::client(world.now, who.clone(), Config::default().room("room"), [1; 32]);
        session.offer(world.now, vec![tool("t")]).unwrap();
        world.enter(&who, Some(session));
        world.handle("phone", |_| Some(Ok(value(1))));
        world.run(SECOND);
        let silent = world.ask("a", request("t").to("phone").timeout(3 * SECOND));
        let was_called = !world.sent("a", Kind::TOOL_USE_REQUEST).is_empty();
        if is_announced {
            assert_eq!(
                silent.unwrap_err().to_string(),
                "phone is in the room, but its token does not let it send data: grant canPublishData"
            );
            assert!(!was_called);
        } else {
            assert!(matches!(silent, Err(CallError::Timeout { .. })), "{silent:?}");
            assert!(was_called, "a silent client is called as a plain one");
        }
        assert!(world.executed.is_empty());
        assert_eq!(world.count("phone", "refused") > 0, was_called);
        // The server allows it to publish.
        world.muted.clear();
        let end = world.ends.get_mut("phone").unwrap();
        end.who = end.who.clone().can_publish_data(true);
        world.announce("phone");
        world.run(10 * SECOND);
        if !is_announced {
            // The acknowledgement of a refusal shows the client that its packets arrive again.
            assert!(!world.ask("a", request("t")).unwrap_err().may_have_run());
            world.run(SECOND);
        }
        assert!(world.ask("a", request("t")).is_ok(), "{is_announced}");
    }
}

#[test]
fn repeated_broadcast_is_reported_once() {
    let mut world = World::new();
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    let id = CallId::from_str("one").unwrap();
    let request = ToolUseRequest::new(id.clone(), "t", Value::empty(), Ok(Execution::Server));
    for _ in 0..2 {
        world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(request.clone()));
    }
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseResult(ToolUseResult::new(id, true)));
    world.run(SECOND);
    let events = &world.ends["phone"].events;
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Requested { .. })).count(), 1);
    assert_eq!(events.iter().filter(|event| matches!(event, Event::Settled { .. })).count(), 1);
}

#[test]
fn registration_that_arrives_after_a_later_one_has_no_effect() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(200 * MS);
    world.send("phone", &["a"], &Meta::new(), &configuration());
    let send = |world: &mut World, stanza: i32, name: &str, meta: &Meta| {
        let tools = (!name.is_empty()).then(|| with!(RegisteredTool::default(), name = name.to_owned()));
        let message = Message::ToolsRegister(with!(
            ToolsRegister::default(),
            tools = tools.into_iter().collect::<Vec<_>>()
        ));
        world.send_bytes("phone", &["a"], &Frame::write(stanza, "room", meta, &message).unwrap());
        world.run(SECOND);
    };
    let unbound = Meta::new().with_bool("bridge.unbound", true);
    send(&mut world, 9, "t", &Meta::new());
    send(&mut world, 8, "", &unbound);
    send(&mut world, 7, "u", &Meta::new());
    let tools = |world: &World| {
        world.session("a").tools().iter().map(|it| it.tool.name().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(tools(&world), ["t"]);
    send(&mut world, 12, "", &unbound);
    send(&mut world, 11, "t", &Meta::new());
    assert!(tools(&world).is_empty());
    assert_eq!(world.count("a", "out_of_order"), 3);
}

#[test]
fn remembered_refusal_says_nothing_of_an_assistant_that_was_bound_since() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    for name in ["b", "a"] {
        let sid = world.sid();
        world.play(&Participant::new(name, sid).agent(true));
        world.run(200 * MS);
        world.send(name, &["phone"], &shown(name), &configuration());
        world.run(200 * MS);
    }
    let refusals = |world: &World| {
        let sent = world.sent("phone", Kind::TOOL_USE_RESULT);
        sent.iter().map(|(_, frame)| frame.meta_bool("bridge.unbound")).collect::<Vec<_>>()
    };
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("one", "t")));
    world.run(200 * MS);
    assert_eq!(refusals(&world), [true]);
    world.send("b", &["phone"], &goodbye_meta(), &goodbye());
    world.run(SECOND);
    assert_eq!(world.session("phone").bound(), Some(&"a".into()));
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("one", "t")));
    world.run(200 * MS);
    assert_eq!(refusals(&world), [true, false]);
}

#[test]
fn tools_of_a_plain_run_stop_when_another_process_shows_itself() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["hang"]);
    let sid = world.sid();
    world.play(&Participant::new("a", sid).agent(true));
    world.run(200 * MS);
    let plain = Message::ToolUseRequest(plain_request("1", "hang"));
    for (stanza, meta, message) in [(-9, Meta::new(), plain), (-1, shown("one"), configuration())] {
        let bytes = Frame::write(stanza, "room", &meta, &message).unwrap();
        world.send_bytes("a", &["phone"], &bytes);
        world.run(100 * MS);
    }
    assert_eq!((world.executed.len(), world.ends["phone"].aborted.len()), (1, 1));
}

/// Without the records of their frames, nothing of the results stays.
#[test]
fn results_for_a_caller_that_does_not_return_leave_no_records() {
    let mut world = shown_assistant();
    world.send("a", &["phone"], &Meta::new(), &Message::ToolUseRequest(plain_request("1", "t")));
    world.run(100 * MS);
    world.finish("phone", Ok(value(1)));
    world.run(100 * MS);
    let has_record = |world: &World| format!("{:?}", world.session("phone")).contains("purpose: Result(");
    assert!(has_record(&world));
    world.leave("a");
    world.run(120 * SECOND);
    assert!(!has_record(&world));
}
