//! Whole calls between two sessions: how they start, and every way in which they can end.

use std::time::Duration;

use toolbridge::{
    CallError, Caps, Config, ErrorCode, Event, Role, Times, ToolOptions, Value,
    frame::{Configuration, ControlStop, Frame, Kind, Message, Meta, ToolUseResult},
    session::{FrameCaps, Readiness, Request, SendFailure},
    transport::{Participant, Peer, TransportEvent},
};

use crate::session_world::{MS, SECOND, World, plain_request, request, sent_packet, tool, value};

#[test]
fn call_is_sent_and_its_result_returns() {
    let mut world = World::pair(&["get_battery"]);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert_eq!(world.session("a").tools().len(), 1);
    world.handle("phone", |job| Some(Ok(job.arguments.clone())));
    let answer = world.ask("a", Request::new("get_battery", value(7))).unwrap();
    assert_eq!(answer, value(7));
    world.run(SECOND);
    assert!(world.session("a").is_drained() && world.session("phone").is_drained());
}

#[test]
fn hung_tool_is_a_timeout() {
    let mut world = World::pair(&["hang"]);
    let error = world.ask("a", request("hang").timeout(2 * SECOND)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { limit } if limit == 2 * SECOND), "{error:?}");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1, "the handler is stopped");
    assert!(world.session("phone").is_drained());
}

#[test]
fn cancelled_call_settles_at_once_and_its_handler_stops() {
    let mut world = World::pair(&["hang"]);
    let key = world.call("a", request("hang")).unwrap();
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].jobs.len(), 1);
    world.with("a", |session, now| session.cancel(now, key));
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert_eq!(world.count("a", "late"), 1, "the owner's result arrives and is counted as late");
}

#[test]
fn unknown_tool_settles_after_the_owner_wait_and_never_ran() {
    let mut world = World::pair(&["t"]);
    let began = world.now;
    let error = world.ask("a", request("none")).unwrap_err();
    assert!(matches!(&error, CallError::UnknownTool { tool, .. } if &**tool == "none"), "{error:?}");
    assert!(!error.may_have_run());
    assert_eq!(world.now.duration_since(began), Times::default().owner_wait);
    // A named owner that has registered is not waited for.
    let error = world.call("a", request("none").to("phone")).unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
}

#[test]
fn call_waits_for_a_client_that_joins() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
}

#[test]
fn two_owners_are_an_error_that_names_them_unless_one_is_named_or_pinned() {
    let mut world = World::new();
    let config = Config::default().pin("pinned".parse().unwrap(), "tv");
    world.assistant("a", config);
    world.client("phone", Config::default(), &["t", "pinned"]);
    world.client("tv", Config::default(), &["t", "pinned"]);
    world.run(SECOND);
    for name in ["phone", "tv"] {
        world.handle(name, move |_| Some(Ok(Value::encode(&serde_json::json!({"by": name})).unwrap())));
    }
    match world.call("a", request("t")).unwrap_err() {
        CallError::Ambiguous { owners, .. } => assert_eq!(owners, ["phone", "tv"]),
        other => panic!("{other:?}"),
    }
    let by = |result: Value| result.to_json()["by"].as_str().unwrap().to_owned();
    assert_eq!(by(world.ask("a", request("t").to("phone")).unwrap()), "phone");
    assert_eq!(by(world.ask("a", request("pinned")).unwrap()), "tv");
}

#[test]
fn open_call_number_65_to_one_client_is_refused() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["hang"]);
    world.run(SECOND);
    let mut keys = Vec::new();
    for n in 0..64 {
        keys.push(world.call("a", request("hang").timeout(60 * SECOND)).unwrap());
        if n % 40 == 39 {
            world.run(1100 * MS); // its owner accepts 50 in a second
        }
    }
    let error = world.call("a", request("hang")).unwrap_err();
    assert!(matches!(error, CallError::TooManyOpen { open: 64 }), "{error:?}");
    // A cancelled call keeps its slot until its owner has acknowledged it.
    world.with("a", |session, now| session.cancel(now, keys[0]));
    assert!(matches!(world.call("a", request("hang")), Err(CallError::TooManyOpen { open: 64 })));
    world.run(100 * MS);
    assert!(world.call("a", request("hang")).is_ok());
}

#[test]
fn calls_above_the_owners_rate_limit_are_busy_and_do_not_run() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let keys: Vec<_> = (0..60).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(SECOND);
    let busy = keys.iter().filter_map(|key| world.settled("a", *key)?.as_ref().err());
    let busy: Vec<String> = busy.map(ToString::to_string).collect();
    assert_eq!((busy.len(), world.count("phone", "jobs")), (10, 50));
    assert!(
        busy.iter().all(|it| it == "phone is busy: the limit is 50 calls a second; nothing ran"),
        "{busy:?}"
    );
    assert!(!CallError::Busy { owner: "phone".into(), limit: None }.may_have_run());
    world.run(SECOND);
    assert!(world.ask("a", request("t")).is_ok());
}

#[test]
fn frame_of_15_001_bytes_is_refused_with_both_numbers() {
    let mut world = World::pair(&["t"]);
    let arguments = |size: usize| Value::encode(&serde_json::json!({"x": "y".repeat(size)})).unwrap();
    let (mut size, mut error) = (14_000, None);
    while error.is_none() {
        size += 1;
        error = world.call("a", Request::new("t", arguments(size))).err();
        if error.is_none() {
            let key = world.ends["phone"].jobs.len();
            assert!(key <= 1000);
            world.run(50 * MS);
            world.finish("phone", Ok(Value::empty()));
        }
    }
    match error.unwrap() {
        CallError::TooLarge { size, limit } => assert_eq!((size, limit), (15_001, 15_000)),
        other => panic!("{other:?}"),
    }
    // A result that is too large becomes an error that says so.
    world.handle("phone", move |_| Some(Ok(arguments(20_000))));
    match world.ask("a", request("t")).unwrap_err() {
        CallError::Tool(error) => {
            assert_eq!(error.code(), ErrorCode::RESULT_TOO_LARGE);
            assert!(error.message().contains("15000") && error.message().contains("20"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn registration_above_the_limit_is_a_typed_error() {
    use toolbridge::tools::RegisterError;
    let mut world = World::pair(&["t"]);
    let long = "x".repeat(1000);
    let many: Vec<_> =
        (0..20).map(|n| toolbridge::Tool::new(format!("t{n}").parse().unwrap(), long.as_str())).collect();
    let offer =
        |world: &mut World, tools| world.with("phone", |session, now| session.offer(now, tools)).unwrap();
    let error = offer(&mut world, many).unwrap_err();
    assert!(
        matches!(error, RegisterError::RegistrationTooLarge { size, limit: 15_000 } if size > 20_000),
        "{error:?}"
    );
    let wide = toolbridge::Tool::new("t".parse().unwrap(), "x".repeat(8_193));
    let error = offer(&mut world, vec![wide]).unwrap_err();
    assert!(
        matches!(error, RegisterError::TooLarge { part: "description", size: 8_193, limit: 8_192, .. }),
        "{error:?}"
    );
    assert!(matches!(offer(&mut world, vec![tool("a"), tool("a")]), Err(RegisterError::Duplicate { .. })));
    assert!(matches!(offer(&mut world, vec![tool("bridge.x")]), Err(RegisterError::Reserved { .. })));
    let asks = tool("wipe").options(ToolOptions::destructive());
    assert!(matches!(offer(&mut world, vec![asks]), Err(RegisterError::NoConsent { .. })));
    let many = (0..129).map(|n| tool(&format!("t{n}"))).collect();
    assert!(matches!(offer(&mut world, many), Err(RegisterError::TooMany { count: 129, limit: 128 })));
    world.run(SECOND);
    assert_eq!(world.session("a").tools().len(), 1, "the previous registration remains valid");
}

#[test]
fn unsent_packet_settles_its_call_as_never_delivered() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    // The driver reports this before anything else happens.
    let packets = world.count("a", "frames_out");
    world.with("a", |session, now| session.handle_send_failed(now, packets, SendFailure::Closed));
    let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
    assert!(matches!(error, CallError::NotDelivered { .. }) && !error.may_have_run());
}

#[test]
fn two_fresh_participants_named_by_their_authors_complete_a_call_before_any_announcement() {
    let mut world = World::new();
    world.announce = 3600 * SECOND;
    world.assistant("a", Config::default().admit("phone"));
    world.ends.get_mut("a").unwrap().here = false; // the new participant's list does not have it yet
    world.client("phone", Config::default().assistant("a"), &["t"]);
    world.ends.get_mut("a").unwrap().here = true;
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    assert!(world.session("a").participants().is_empty());
    assert!(world.now.duration_since(world.began) < 3 * SECOND);
}

#[test]
fn new_participant_is_served_before_the_room_announces_it() {
    let mut world = World::new();
    world.announce = 3 * SECOND;
    world.client("phone", Config::default(), &["t"]);
    world.assistant("a", Config::default()); // the server lists the phone to it, and announces it to the phone after 3 s
    world.handle("phone", |_| Some(Ok(value(1))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(1));
    assert!(world.now.duration_since(world.began) < 4 * SECOND);
}

/// A phone that keeps few frames of `b`, an assistant that the test plays and whose join is announced so much later.
fn short_of_room(announce: Duration) -> World {
    limited(announce, |frames| frames.held_frames = 2)
}

fn limited(announce: Duration, limit: impl Fn(&mut FrameCaps)) -> World {
    let mut config = Config::default();
    limit(&mut config.caps.frames);
    let mut world = World::new();
    world.announce = announce;
    world.client("phone", config, &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let sid = world.sid();
    world.play(&Participant::new("b", sid).agent(true));
    world
}

fn say_requests(world: &mut World, calls: &[&str], meta: &Meta) {
    for call in calls {
        world.send("b", &["phone"], meta, &Message::ToolUseRequest(plain_request(call, "t")));
    }
}

fn say_configuration(world: &mut World) {
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    world.send("b", &["phone"], &meta, &Message::Configuration(Configuration::default()));
}

fn say_goodbye(world: &mut World) {
    let goodbye = with!(ControlStop::default(), stop_type = Some("all".to_owned()));
    world.send("b", &["phone"], &Meta::new().with_bool("bridge.bye", true), &Message::ControlStop(goodbye));
}

#[test]
fn goodbye_of_an_unannounced_assistant_ends_its_requests_that_wait() {
    for shows_instance in [false, true] {
        let mut world = short_of_room(3 * SECOND);
        if shows_instance {
            say_configuration(&mut world);
        }
        // They fill the space for frames of an unannounced sender.
        say_requests(&mut world, &["1", "2", "3"], &Meta::new());
        say_goodbye(&mut world);
        world.run(4 * SECOND);
        assert!(world.received("b", Kind::TOOL_USE_RESULT).is_empty(), "{shows_instance}");
        assert!(world.executed.is_empty(), "{shows_instance}");
    }
}

#[test]
fn goodbye_of_an_assistant_ends_its_requests_that_wait_for_its_configuration() {
    for says_goodbye in [false, true] {
        let mut world = short_of_room(Duration::ZERO);
        world.run(100 * MS);
        let to = world.addressed_to("phone");
        say_requests(&mut world, &["1", "2", "3"], &to);
        if says_goodbye {
            say_goodbye(&mut world);
        }
        say_configuration(&mut world);
        world.run(SECOND);
        assert_eq!(world.received("b", Kind::TOOL_USE_RESULT).len(), if says_goodbye { 0 } else { 2 });
        assert_eq!(world.count("phone", "held"), 2);
    }
}

#[test]
fn stop_of_an_unannounced_assistant_is_kept_with_the_request_that_it_ends() {
    let request = Message::ToolUseRequest(plain_request("1", "t"));
    let bytes = Frame::write(-1, "room", &Meta::new(), &request).unwrap().len();
    let by_bytes = limited(3 * SECOND, |frames| frames.held_bytes = 2 * bytes);
    for mut world in [short_of_room(3 * SECOND), by_bytes] {
        say_requests(&mut world, &["1", "2"], &Meta::new());
        let stop = with!(ControlStop::default(), target_id = Some("1".to_owned()));
        world.send("b", &["phone"], &Meta::new(), &Message::ControlStop(stop));
        world.run(4 * SECOND);
        let results = world.received("b", Kind::TOOL_USE_RESULT).into_iter().map(|it| match it {
            Message::ToolUseResult(it) => (it.id.to_string(), it.success),
            other => panic!("{other:?}"),
        });
        assert_eq!(results.collect::<Vec<_>>(), [("1".to_owned(), false), ("2".to_owned(), true)]);
        assert_eq!(world.executed, [("phone".to_owned(), "2".parse().unwrap())]);
    }
}

#[test]
fn request_of_an_unannounced_join_that_has_left_does_not_run() {
    let mut world = short_of_room(3 * SECOND);
    say_requests(&mut world, &["1"], &Meta::new());
    world.run(100 * MS);
    let who = world.ends["b"].who.peer().clone();
    world.with("phone", |session, now| session.handle_event(now, TransportEvent::Left(who)));
    world.run(4 * SECOND); // an SDK that reconnects reports it as gone, and announces it again
    assert!(world.executed.is_empty());
}

#[test]
fn first_assistant_stays_bound_and_a_second_one_is_denied() {
    let mut world = World::pair(&["t"]);
    world.assistant("b", Config::default());
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    let error = world.ask("b", request("t").to("phone").timeout(8 * SECOND)).unwrap_err();
    assert!(matches!(&error, CallError::NotBound { clients, .. } if *clients == ["phone"]), "{error:?}");
    world.handle("phone", |_| Some(Ok(value(1))));
    assert!(world.ask("a", request("t")).is_ok());
    // A third assistant joins, and the bound one leaves: two candidates are left, so none is bound, and an event says
    // so.
    world.assistant("c", Config::default());
    world.client("tv", Config::default().assistant("b"), &["t"]);
    world.run(SECOND);
    assert_eq!(world.session("tv").bound().unwrap(), "b");
    world.with("a", |session, now| session.close(now));
    world.run(SECOND);
    assert!(world.session("phone").bound().is_none());
    let two = |event: &&Event| matches!(event, Event::AmbiguousAssistant { candidates } if *candidates == ["b", "c"]);
    assert_eq!(world.ends["phone"].events.iter().filter(two).count(), 1);
    world.leave("b");
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "c");
}

#[test]
fn after_a_goodbye_another_assistant_is_bound_at_once() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.with("a", |session, now| session.close(now));
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Closed(_)))));
    world.run(50 * MS);
    assert!(world.session("phone").bound().is_none());
    assert_eq!(world.ends["phone"].aborted.len(), 1, "the job of a closed assistant is stopped");
    world.leave("a");
    world.assistant("again", Config::default());
    world.handle("phone", |_| Some(Ok(value(1))));
    let began = world.now;
    assert_eq!(world.ask("again", request("t")).unwrap(), value(1));
    assert!(world.now.duration_since(began) < SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "again");
    // The same identity again, as a terminal would run it twice in a row.
    world.with("again", |session, now| session.close(now));
    world.leave("again");
    world.assistant("again", Config::default());
    assert_eq!(world.ask("again", request("t")).unwrap(), value(1));
}

/// The text of the loss of this call.
fn lost(world: &World, key: toolbridge::session::CallKey) -> String {
    match world.settled("a", key) {
        Some(Err(error @ CallError::Lost { .. })) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn goodbye_of_a_client_loses_its_calls_at_once() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.with("phone", |session, now| session.close(now));
    world.run(50 * MS);
    assert_eq!(lost(&world, key), "phone left before it answered");
    assert!(world.session("a").tools().is_empty());
    assert!(matches!(world.ends["phone"].events.last(), Some(Event::Closed(_))));
    assert_eq!(world.session("phone").poll_timeout(), None);
}

#[test]
fn same_instance_may_return_within_the_grace_period() {
    let mut world = World::pair(&["slow"]);
    let key = world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.run(2 * SECOND);
    world.finish("phone", Ok(value(1))); // while it is away
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    // The same for the assistant.
    let key = world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    world.leave("a");
    world.run(2 * SECOND);
    world.finish("phone", Ok(value(2)));
    world.rejoin("a");
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(2));
}

#[test]
fn another_instance_of_the_owner_loses_its_calls_at_once() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.client("phone", Config::default(), &["t"]); // a new process, the same identity
    world.run(SECOND);
    assert_eq!(lost(&world, key), "phone was started again before it answered");
    world.handle("phone", |_| Some(Ok(value(3))));
    assert_eq!(world.ask("a", request("t")).unwrap(), value(3));
}

#[test]
fn call_is_lost_when_its_owner_leaves_without_a_grace_period() {
    let mut world = World::new();
    world.assistant("a", Config::default().grace(Duration::ZERO));
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.run(50 * MS);
    assert_eq!(lost(&world, key), "phone left before it answered");
}

#[test]
fn silent_owner_is_lost_long_before_the_timeout() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    world.run(10 * SECOND);
    assert!(world.settled("a", key).is_none(), "the owner still answers pings");
    assert!(world.count("a", "pings") >= 6);
    world.ends.get_mut("phone").unwrap().here = false; // a killed process: the room reports nothing yet
    world.run(7 * SECOND);
    let text = "phone is in the room, but has answered nothing for 5 s: its program may be blocked, or gone";
    assert_eq!(lost(&world, key), text);
}

#[test]
fn peer_timeouts_pause_while_the_local_participant_is_disconnected() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(toolbridge::ConnectionState::Reconnecting))
    });
    world.ends.get_mut("a").unwrap().here = false;
    world.run(20 * SECOND);
    assert!(world.settled("a", key).is_none());
    world.ends.get_mut("a").unwrap().here = true;
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(toolbridge::ConnectionState::Connected))
    });
    world.run(2 * SECOND);
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
}

#[test]
fn echo_is_answered_by_the_session_itself() {
    let mut world = World::pair(&[]);
    assert_eq!(world.ask("a", Request::new("bridge.echo", value(9)).to("phone")).unwrap(), value(9));
    assert_eq!(world.ask("a", Request::new("bridge.echo", value(8))).unwrap(), value(8));
    assert!(world.ends["phone"].jobs.is_empty());
}

#[test]
fn detached_call_continues_and_no_stop_is_sent() {
    let mut world = World::pair(&["slow"]);
    let key = world.call("a", request("slow")).unwrap();
    world.run(100 * MS);
    world.with("a", |session, now| session.detach(now, key));
    world.run(SECOND);
    assert!(world.ends["phone"].aborted.is_empty());
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert!(world.settled("a", key).is_none(), "a detached call reports no outcome");
    assert!(world.session("a").is_drained() && world.session("phone").is_drained());
    let ended = |event: &&Event| matches!(event, Event::Settled { outcome: Ok(()), .. });
    assert_eq!(
        world.ends["a"].events.iter().filter(ended).count(),
        1,
        "the outcome of a detached call is an event"
    );
}

#[test]
fn client_may_stop_calls_if_the_author_allows_it() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    let sid = world.sid();
    world.play(&Participant::new("tv", sid).role(Role::Client).allowed_to_stop(true));
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    let stop = Message::ControlStop(ControlStop::default());
    world.send("tv", &["a"], &Meta::new(), &Message::Configuration(Default::default()));
    world.send("tv", &["a"], &Meta::new(), &stop);
    world.run(100 * MS);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    assert_eq!(
        world.received("tv", Kind::ACKNOWLEDGEMENT).len(),
        2,
        "the Configuration and the stop are acknowledged"
    );
    world.run(100 * MS);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
}

#[test]
fn observer_sees_calls_and_registrations_and_takes_no_part() {
    let mut world = World::pair(&["t"]);
    let sid = world.sid();
    world.play(&Participant::new("watch", sid).role(Role::Observer));
    world.run(SECOND);
    let shown = world.received("watch", Kind::TOOLS_REGISTER);
    assert_eq!(shown.len(), 2, "the phone's registration and the assistant's empty one");
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("t")).unwrap();
    world.run(100 * MS);
    for kind in [Kind::TOOL_USE_REQUEST, Kind::TOOL_USE_RESULT, Kind::TOOL_PROGRESS] {
        assert_eq!(world.received("watch", kind).len(), 1, "{kind}");
    }
    let received = |kind| world.ends["watch"].inbox.iter().any(|(_, frame)| frame.kind() == kind);
    assert!(!received(Kind::ACKNOWLEDGEMENT) && !received(Kind::CONFIGURATION));
    assert!(world.ends["watch"].inbox.iter().all(|(_, frame)| frame.meta_str("bridge.to").is_none()));
    assert!(matches!(world.call("a", request("t").to("watch")), Err(CallError::UnknownTool { .. })));
}

#[test]
fn thousands_of_calls_with_a_plain_peer_leave_no_state() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(SECOND);
    for n in 0..5_000 {
        let key = world.call("a", request("t").to("phone")).unwrap();
        world.run(if n == 0 { 1_200 * MS } else { 25 * MS });
        let asked = world.ends.get_mut("phone").unwrap().inbox.pop().unwrap().1;
        world.ends.get_mut("phone").unwrap().inbox.clear();
        world.ends.get_mut("a").unwrap().events.clear();
        world.ends.get_mut("a").unwrap().sent.clear();
        if n % 50 == 0 {
            world.with("a", |session, now| session.cancel(now, key));
            continue;
        }
        let Message::ToolUseRequest(asked) = asked.message().unwrap() else { panic!("{asked:?}") };
        let body = serde_json::json!({"id": asked.id.as_str(), "success": true, "result": {}});
        let (mut bytes, body) = (Vec::new(), Value::encode(&body).unwrap());
        let meta = Meta::new();
        Frame::relay(&mut bytes, 1, "room", &meta, Kind::TOOL_USE_RESULT, body.as_bytes()).unwrap();
        world.send_bytes("phone", &["a"], &bytes);
        world.run(20 * MS);
        assert!(matches!(world.settled("a", key), Some(Ok(_))), "{n}");
        world.ends.get_mut("a").unwrap().settled.clear();
    }
    assert!(world.session("a").is_drained());
    world.run(120 * SECOND);
    assert_eq!(world.session("a").poll_timeout(), None, "a session that remembers nothing has no timer");
}

#[test]
fn limits_match_the_wire_contract() {
    let caps = Caps::default();
    assert_eq!(
        (caps.calls.open_per_peer, caps.requests.calls_per_second, caps.tools.count, caps.frames.id_bytes),
        (64, 50, 128, 128)
    );
    assert_eq!((caps.requests.table_entries, caps.requests.table_bytes), (4_096, 32 << 20));
}

#[test]
fn jobs_of_an_assistant_that_left_stop_after_the_grace_period() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.leave("a");
    world.run(4 * SECOND);
    assert!(world.ends["phone"].aborted.is_empty());
    world.run(2 * SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    assert!(world.session("phone").bound().is_none() && world.session("phone").is_drained());
}

#[test]
fn request_to_a_plain_peer_is_reissued_when_its_configuration_arrives_late() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(SECOND);
    world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
    world.run(1500 * MS);
    let requests = |world: &World| {
        let all =
            world.ends["phone"].inbox.iter().filter(|(_, frame)| frame.kind() == Kind::TOOL_USE_REQUEST);
        all.map(|(_, it)| (it.peek_id().unwrap().to_owned(), it.meta_str("bridge.to").is_some()))
            .collect::<Vec<_>>()
    };
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    world.send("phone", &["a"], &meta, &Message::Configuration(Default::default()));
    world.run(100 * MS);
    let asked = requests(&world);
    assert_eq!(asked.iter().map(|(_, names_instance)| *names_instance).collect::<Vec<_>>(), [false, true]);
    assert_eq!(asked[0].0, asked[1].0, "both requests have the same id");
}

/// A plain peer may have the first request already, which nothing but its answer can tell.
#[test]
fn request_that_a_plain_peer_may_have_goes_on_when_its_repetition_is_not_sent() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let sid = world.sid();
    world.play(&Participant::new("phone", sid).role(Role::Client));
    world.run(SECOND);
    let key = world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
    world.run(1500 * MS);
    world.notes = Some(Vec::new());
    let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
    world.send("phone", &["a"], &meta, &Message::Configuration(Default::default()));
    world.run(100 * MS);
    let repetition = sent_packet(&world, "a", Kind::TOOL_USE_REQUEST);
    world.with("a", |session, now| session.handle_send_failed(now, repetition, SendFailure::QueueFull));
    assert!(world.settled("a", key).is_none(), "{:?}", world.settled("a", key));
}

/// Its answer says that nothing of the call runs there.
#[test]
fn answered_call_in_the_plain_form_is_not_stopped_at_the_instances_that_appear_later() {
    for answers in [false, true] {
        let mut world = World::new();
        world.assistant("a", Config::default());
        let sid = world.sid();
        world.play(&Participant::new("phone", sid).role(Role::Client));
        world.run(SECOND);
        let key = world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
        world.run(1500 * MS);
        world.with("a", |session, now| session.cancel(now, key));
        world.run(100 * MS);
        let stops = |world: &World| world.received("phone", Kind::CONTROL_STOP).len();
        assert_eq!(stops(&world), 1);
        let [Message::ToolUseRequest(request)] = &world.received("phone", Kind::TOOL_USE_REQUEST)[..] else {
            panic!("one request")
        };
        if answers {
            let late = Message::ToolUseResult(ToolUseResult::new(request.id.clone(), true));
            world.send("phone", &["a"], &Meta::new(), &late);
            world.run(100 * MS);
        }
        let meta = Meta::new().with_text("bridge.instance", "0123").with_bool("bridge.heard", true);
        world.send("phone", &["a"], &meta, &Message::Configuration(Default::default()));
        world.run(100 * MS);
        assert_eq!(stops(&world), if answers { 1 } else { 2 });
    }
}

#[test]
fn call_of_the_assistants_own_tool_is_broadcast_at_its_visibility() {
    use toolbridge::tools::Visibility;
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.stranger("x");
    world.run(SECOND);
    let at = |name: &str, level| tool(name).options(ToolOptions::default().disclose(level));
    let tools =
        vec![at("full", Visibility::Full), at("name", Visibility::Name), at("nothing", Visibility::Nothing)];
    world.with("a", |session, now| session.offer(now, tools)).unwrap().unwrap();
    world.handle("a", |_| Some(Ok(value(2))));
    for name in ["full", "name", "nothing"] {
        assert_eq!(world.ask("a", Request::new(name, value(1))).unwrap(), value(2));
    }
    world.run(SECOND);
    let parameters: Vec<_> = world
        .received("x", Kind::TOOL_USE_REQUEST)
        .into_iter()
        .map(|message| match message {
            Message::ToolUseRequest(request) => (request.tool_name, request.parameters),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(parameters, [("full".to_owned(), value(1)), ("name".to_owned(), Value::empty())]);
    let results: Vec<_> = world
        .received("x", Kind::TOOL_USE_RESULT)
        .into_iter()
        .map(|message| match message {
            Message::ToolUseResult(result) => result.result,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(results, [Some(value(2)), None]);
}

#[test]
fn call_of_the_assistants_own_tool_can_be_cancelled_and_times_out() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.with("a", |session, now| session.offer(now, vec![tool("hang")])).unwrap().unwrap();
    let key = world.call("a", request("hang")).unwrap();
    let started = |event: &&Event| matches!(event, Event::Progress { key: Some(of), .. } if *of == key);
    assert_eq!(world.ends["a"].events.iter().filter(started).count(), 1);
    world.with("a", |session, now| session.cancel(now, key));
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Cancelled))));
    let error = world.ask("a", request("hang").timeout(SECOND)).unwrap_err();
    assert!(matches!(error, CallError::Timeout { .. }));
    assert_eq!(world.ends["a"].aborted.len(), 2);
    assert!(world.session("a").is_drained());
}

#[test]
fn tool_that_the_assistant_offers_is_withdrawn_from_clients() {
    let mut world = World::pair(&["t", "u"]);
    world.with("a", |session, now| session.offer(now, vec![tool("t")])).unwrap().unwrap();
    let offers = world.session("a").tools();
    let owners: Vec<_> = offers.iter().map(|it| (it.tool.name().as_str(), it.owner.as_str())).collect();
    assert_eq!(owners, [("t", "a"), ("u", "phone")]);
}

#[test]
fn frames_of_other_types_pass_unchanged() {
    use toolbridge::{
        frame::Meta,
        session::{Destination, SendFrameError},
    };
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    world.run(SECOND);
    let send = |world: &mut World, to, kind, body: Value| {
        world.with("a", |session, now| session.send(now, to, Kind::new(kind), Meta::new(), body)).unwrap()
    };
    let phone = || Destination::Peers(vec!["phone".into()]);
    send(&mut world, phone(), 33, value(1)).unwrap();
    send(&mut world, Destination::Room, 34, value(2)).unwrap();
    world.run(SECOND);
    let frames: Vec<_> = world.ends["phone"]
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Frame { from, frame } => {
                Some((from.identity().to_string(), frame.kind().code(), frame.body()))
            }
            _ => None,
        })
        .collect();
    assert_eq!(frames, [("a".to_owned(), 33, value(1)), ("a".to_owned(), 34, value(2))]);
    assert_eq!(world.ends["x"].inbox.len(), 1);
    assert_eq!(send(&mut world, phone(), 6, value(1)), Err(SendFrameError::Reserved { kind: 6 }));
    let nobody = Destination::Peers(Vec::new());
    assert_eq!(send(&mut world, nobody, 33, value(1)), Err(SendFrameError::NoDestination));
    let large = Value::encode(&"x".repeat(20_000)).unwrap();
    let error = send(&mut world, phone(), 33, large).unwrap_err();
    assert!(matches!(error, SendFrameError::TooLarge { size, limit: 15_000 } if size > 20_000));
}

#[test]
fn plain_client_gets_no_request_before_the_caller_is_announced() {
    let mut world = World::new();
    world.announce = 3_000 * MS;
    world.play(&Participant::new("watch", "PA_w"));
    world.assistant("a", Config::default());
    world.call("a", request("t").to("watch")).unwrap();
    world.run(2_900 * MS);
    assert!(
        world.received("watch", Kind::TOOL_USE_REQUEST).is_empty(),
        "the request would arrive without a sender"
    );
    world.run(1_100 * MS); // it might answer the Configuration, which it can read only now
    assert!(world.received("watch", Kind::TOOL_USE_REQUEST).is_empty());
    world.run(100 * MS);
    assert_eq!(world.received("watch", Kind::TOOL_USE_REQUEST).len(), 1);
}

#[test]
fn first_registration_contains_all_tools() {
    let mut world = World::new();
    world.play(&Participant::new("a", "PA_a").agent(true));
    world.client("phone", Config::default().assistant("a"), &["t"]);
    world.run(SECOND);
    let Some(Message::ToolsRegister(first)) = world.received("a", Kind::TOOLS_REGISTER).into_iter().next()
    else {
        panic!("no registration arrived");
    };
    assert_eq!(first.tools.len(), 1);
}

#[test]
fn tools_changed_before_the_acknowledgement_are_registered_again() {
    let mut world = World::new();
    world.play(&Participant::new("a", "PA_a").agent(true));
    world.client("phone", Config::default().assistant("a"), &["t"]);
    world.run(50 * MS);
    world.with("phone", |session, now| session.offer(now, vec![tool("t"), tool("u")]).unwrap());
    world.flush("phone");
    world.run(50 * MS);
    let counts: Vec<_> = world
        .received("a", Kind::TOOLS_REGISTER)
        .into_iter()
        .map(|message| match message {
            Message::ToolsRegister(register) => register.tools.len(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(counts.last(), Some(&2), "{counts:?}");
}

#[test]
fn echo_has_no_rate_limit() {
    let mut world = World::pair(&[]);
    for _ in 0..500 {
        world.ask("a", request("bridge.echo").to("phone")).unwrap();
    }
}

#[test]
fn assistant_that_left_before_its_announcement_is_unbound() {
    let mut world = World::new();
    world.client("phone", Config::default().assistant("a"), &["hang"]);
    let ghost = Peer::new("a", "PA_ghost");
    let greeting = Frame::write(-1, "room", &Meta::new(), &Message::Configuration(Configuration::default()));
    world.send_bytes_as(&ghost, &["phone"], &greeting.unwrap());
    let asked =
        Frame::write(-2, "room", &Meta::new(), &Message::ToolUseRequest(plain_request("c", "hang"))).unwrap();
    world.send_bytes_as(&ghost, &["phone"], &asked);
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    assert_eq!(world.session("phone").open_jobs(), 1);
    // 4 s until it should have been announced, and 5 s of grace period.
    world.run(9 * SECOND);
    assert_eq!(world.session("phone").open_jobs(), 0);
    assert_eq!(world.session("phone").bound(), None);
}

#[test]
fn token_without_permission_to_send_is_named_as_the_reason() {
    let mut world = World::new();
    world.assistant("a", Config::default().admit("phone"));
    world.run(MS);
    let greeting = world.count("a", "frames_out");
    world.with("a", |session, now| session.handle_send_failed(now, greeting, SendFailure::NotAllowed));
    assert!(world.ends["a"].events.iter().any(|event| matches!(event, Event::NotAllowed)));
    let error = world.ask("a", request("t")).unwrap_err();
    assert!(matches!(error, CallError::NotAllowed) && !error.may_have_run(), "{error:?}");

    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    let asked = world.count("a", "frames_out");
    world.with("a", |session, now| session.handle_send_failed(now, asked, SendFailure::NotAllowed));
    assert!(matches!(world.settled("a", key), Some(Err(CallError::NotAllowed))));
}

#[test]
fn unsent_second_request_does_not_settle_the_first() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.play(&Participant::new("phone", "PA_late"));
    world.run(SECOND);
    let key = world.call("a", request("t").to("phone").timeout(20 * SECOND)).unwrap();
    world.run(5 * SECOND);
    assert_eq!(world.received("phone", Kind::TOOL_USE_REQUEST).len(), 1, "the phone got a plain request");
    let meta = Meta::new().with_text("bridge.instance", "a-run").with_bool("bridge.heard", true);
    let greeting =
        Message::Configuration(with!(Configuration::default(), features = Some(vec!["tool_ack".to_owned()])));
    world.send("phone", &["a"], &meta, &greeting);
    while world.sent("a", Kind::TOOL_USE_REQUEST).len() < 2 {
        assert!(world.step());
    }
    let again = world.count("a", "frames_out");
    world.with("a", |session, now| session.handle_send_failed(now, again, SendFailure::Closed));
    assert!(world.settled("a", key).is_none(), "the first request may still run");
    world.run(20 * SECOND);
    assert!(world.settled("a", key).unwrap().as_ref().is_err_and(CallError::may_have_run));
}

#[test]
fn busy_local_executor_is_busy() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.with("a", |session, now| session.offer(now, vec![tool("own")])).unwrap().unwrap();
    world.begins = false; // there is no free slot, so nothing starts
    world.handle("a", |_| Some(Err(toolbridge::ToolError::new(ErrorCode::BUSY, "full"))));
    let error = world.ask("a", request("own")).unwrap_err();
    assert!(matches!(&error, CallError::Busy { owner, .. } if owner == "a"), "{error:?}");
    assert_eq!(error.to_string(), "a is busy: full; nothing ran");
}

#[test]
fn silence_limit_of_zero_does_not_loop() {
    let mut world = World::new();
    let times = || {
        let mut times = Times::default();
        (times.silence, times.hold, times.memory) = Default::default();
        times
    };
    world.assistant("a", Config::default().times(times()));
    world.client("phone", Config::default().times(times()), &["t"]);
    world.run(SECOND);
    world.call("a", request("t").timeout(SECOND)).unwrap();
    world.run(SECOND);
    assert!(world.session("a").is_drained());
}

#[test]
fn error_names_the_clients_that_are_bound_to_another_assistant() {
    let mut world = World::new();
    world.client("phone", Config::default(), &["t"]);
    world.client("tv", Config::default().assistant("a"), &["t"]);
    world.assistant("a", Config::default());
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "a");
    world.assistant("b", Config::default());
    // Named: that client. Not named: all of them. Without a wait: those known by then.
    let error = world.ask("b", request("t").to("tv")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(": tv is bound to another assistant") && !error.may_have_run(), "{text}");
    for wait in [5 * SECOND, Duration::ZERO] {
        let error = world.ask("b", request("t").owner_wait(wait)).unwrap_err();
        assert!(
            matches!(&error, CallError::NotBound { clients, tool, assistants } if **assistants == ["a"] && *clients == ["phone", "tv"] && &**tool == "t"),
            "{error:?}"
        );
        assert!(error.to_string().contains(": phone and tv are bound to another"), "{error}");
    }
    assert!(world.sent("b", Kind::TOOL_USE_REQUEST).is_empty(), "no request was sent");
    assert!(world.ends["tv"].jobs.is_empty() && world.session("tv").bound().unwrap() == "a");
    // A client that registers here is not affected.
    world.client("lamp", Config::default().assistant("b"), &["on"]);
    world.run(SECOND);
    let error = world.ask("b", request("off").to("lamp")).unwrap_err();
    assert!(matches!(error, CallError::UnknownTool { .. }), "{error:?}");
    // The other assistant leaves: the client without a named assistant binds this one within the same wait.
    world.handle("phone", |_| Some(Ok(value(1))));
    let key = world.call("b", request("t").to("phone")).unwrap();
    world.with("a", |session, now| session.close(now));
    world.run(SECOND);
    assert_eq!(world.settled("b", key).unwrap().as_ref().unwrap(), &value(1));
}

#[test]
fn declined_assistant_gets_one_reply_and_no_rights() {
    let mut world = World::new();
    world.client("tv", Config::default().assistant("a"), &["t"]);
    world.assistant("b", Config::default());
    world.run(20 * SECOND);
    let to_b = world.sent("tv", Kind::CONFIGURATION).iter().filter(|(to, _)| *to == ["b"]).count();
    assert_eq!(to_b, 1);
    assert!(
        world.sent("b", Kind::CONFIGURATION).len() <= 2,
        "the declined assistant stops repeating its Configuration"
    );
    assert!(world.sent("tv", Kind::TOOLS_REGISTER).iter().all(|(to, _)| *to != ["b"]));
    assert!(world.session("tv").bound().is_none() && world.session("b").tools().is_empty());
    // An assistant of another room gets no reply at all, nor does a stranger that does the same.
    let meta = Meta::new().with_text("bridge.instance", "0123");
    let of_other_room = Message::Configuration(Configuration::default());
    let sid = world.sid();
    world.play(&Participant::new("c", sid).agent(true));
    world.run(SECOND);
    let bytes = Frame::write(-1, "other room", &meta, &of_other_room).unwrap();
    world.send_bytes("c", &["tv"], &bytes);
    world.run(5 * SECOND);
    assert!(world.ends["c"].inbox.is_empty());
    world.stranger("x");
    world.run(SECOND);
    let its = world.sent("b", Kind::CONFIGURATION)[0].1.clone();
    world.send_bytes("x", &["tv"], its.as_bytes());
    world.run(5 * SECOND);
    assert!(world.ends["x"].inbox.is_empty());
}

#[test]
fn patience_of_the_tool_is_the_budget_of_a_caller_that_names_none() {
    let slow = |limit| tool("slow").options(ToolOptions::default().patience(limit));
    let mut world = World::new();
    world.assistant("a", Config::default());
    let mut hours = Config::default();
    hours.times.longest_call = 3_600 * SECOND;
    world.client("phone", hours, &[]);
    world.run(SECOND);
    let budget = |world: &mut World, request: Request| {
        let began = world.now;
        let error = world.ask("a", request).unwrap_err();
        assert!(matches!(error, CallError::Timeout { .. }), "{error:?}");
        world.now.duration_since(began)
    };
    for (offered, applied) in [(90 * SECOND, 90 * SECOND), (3_600 * SECOND, 600 * SECOND)] {
        world.with("phone", |session, now| session.offer(now, vec![slow(offered)])).unwrap().unwrap();
        world.run(SECOND);
        assert_eq!(budget(&mut world, request("slow")), applied);
        assert_eq!(
            budget(&mut world, request("slow").timeout(SECOND)),
            SECOND,
            "the caller's own limit counts"
        );
    }
    // The assistant's own tool. Its patience cannot exceed the assistant's maximum.
    let refused = world.with("a", |session, now| session.offer(now, vec![slow(601 * SECOND)])).unwrap();
    assert!(matches!(refused, Err(toolbridge::tools::RegisterError::Patience { .. })), "{refused:?}");
    world.with("a", |session, now| session.offer(now, vec![slow(90 * SECOND)])).unwrap().unwrap();
    assert_eq!(budget(&mut world, request("slow")), 90 * SECOND);
}

#[test]
fn patience_applies_to_a_call_that_waited_for_its_owner() {
    let mut world = World::pair(&[]);
    let began = world.now;
    let key = world.call("a", request("slow")).unwrap();
    world.run(2 * SECOND);
    let slow = tool("slow").options(ToolOptions::default().patience(90 * SECOND));
    world.with("phone", |session, now| session.offer(now, vec![slow])).unwrap().unwrap();
    world.run(80 * SECOND);
    assert!(world.settled("a", key).is_none());
    while world.settled("a", key).is_none() && world.step() {}
    assert_eq!(world.now.duration_since(began), 90 * SECOND);
}

/// The tool's own limit is shorter than the time that the call has waited for its owner.
#[test]
fn call_without_time_left_for_its_owner_is_not_sent() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.run(200 * MS);
    let key = world.call("a", request("t")).unwrap();
    world.run(3 * SECOND);
    world.client("phone", Config::default(), &[]);
    let quick = tool("t").options(ToolOptions::default().patience(2 * SECOND));
    world.with("phone", |session, now| session.offer(now, vec![quick])).unwrap().unwrap();
    world.run(SECOND);
    let outcome = world.settled("a", key).unwrap();
    assert!(
        matches!(outcome, Err(error @ CallError::NotDelivered { .. }) if !error.may_have_run()),
        "{outcome:?}"
    );
    assert!(world.executed.is_empty() && world.sent("a", Kind::TOOL_USE_REQUEST).is_empty());
}

/// A client may register with the assistant that the server announces first, and then bind the other one.
#[test]
fn assistant_that_the_client_has_not_bound_learns_it_whatever_the_order_of_their_joins() {
    let orders = [
        ["a", "b", "phone"],
        ["b", "a", "phone"],
        ["a", "phone", "b"],
        ["b", "phone", "a"],
        ["phone", "a", "b"],
        ["phone", "b", "a"],
    ];
    for (order, gap) in orders.into_iter().flat_map(|order| [0, 10, 100, 1_000].map(|gap| (order, gap))) {
        let mut world = World::new();
        for name in order {
            match name {
                "phone" => world.client("phone", Config::default(), &["t"]),
                other => world.assistant(other, Config::default()),
            }
            world.run(gap * MS);
        }
        world.handle("phone", |_| Some(Ok(value(1))));
        world.run(2 * SECOND);
        let context = format!("{order:?}, {gap} ms");
        let bound = world.session("phone").bound().unwrap().to_string();
        let other = if bound == "a" { "b" } else { "a" };
        assert_eq!(
            (world.session(&bound).tools().len(), world.session(other).tools().len()),
            (1, 0),
            "{context}"
        );
        world.with(other, |session, now| session.probe_client(now, &"phone".into()));
        world.run(100 * MS);
        assert!(matches!(world.session(other).readiness(&"phone".into()), Readiness::NotBound), "{context}");
        for call in [
            request("t"),
            request("t").to("phone"),
            request("bridge.echo"),
            request("bridge.echo").to("phone"),
        ] {
            assert!(world.ask(&bound, call.clone()).is_ok(), "{context}");
            let error = world.ask(other, call).unwrap_err();
            let CallError::NotBound { clients, assistants, .. } = &error else {
                panic!("{context}: {error:?}")
            };
            assert_eq!((&**clients, &**assistants), (&["phone".into()][..], &[bound.as_str().into()][..]));
            assert!(!error.may_have_run());
            assert!(
                error.to_string().ends_with(&format!(
                    ": phone is bound to another assistant, or to none because there are several ({bound}); close the \
                     others, or name this assistant in the client's option `assistant`"
                )),
                "{error}"
            );
        }
        // The bound one leaves: the client offers its tools to the other.
        world.with(&bound, |session, now| session.close(now));
        world.leave(&bound);
        world.run(SECOND);
        assert!(world.ask(other, request("t")).is_ok(), "{context}");
    }
}

/// The request is on its way when the client binds the other assistant.
#[test]
fn call_that_crosses_the_withdrawn_registration_is_not_bound() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    world.assistant("b", Config::default());
    while world.session("a").tools().is_empty() {
        assert!(world.step());
    }
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND);
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    assert!(world.executed.is_empty() && world.session("a").tools().is_empty());
    let Some(Err(CallError::NotBound { clients, .. })) = world.settled("a", key) else {
        panic!("it is bound")
    };
    assert_eq!(*clients, ["phone"]);
}

/// A client cannot answer before the room has announced the assistant to it, so its silence shows nothing until then.
#[test]
fn client_is_not_taken_for_a_plain_one_before_it_can_know_the_assistant() {
    for announce in [500, 1_500, 2_500, 2_960, 3_300] {
        let mut world = World::new();
        world.client("phone", Config::default(), &["t"]);
        world.run(SECOND);
        world.announce = announce * MS;
        world.assistant("a", Config::default());
        world.with("a", |session, now| session.expect_client(now, &"phone".into())).unwrap();
        let ready = |world: &World| world.session("a").readiness(&"phone".into());
        let mut waited = 0;
        let tools = loop {
            match ready(&world) {
                Readiness::Ready(tools) => break tools,
                _ => world.run(MS),
            }
            waited += 1;
            assert!(waited < 5_000, "{announce}");
        };
        assert_eq!(tools.iter().map(|tool| tool.name().as_str()).collect::<Vec<_>>(), ["t"], "{announce}");
    }
}

#[test]
fn own_tool_runs_at_the_assistant_if_the_client_that_it_asks_first_has_bound_another() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let own = tool("t").options(ToolOptions::default().prefer_client());
    world.with("a", |session, now| session.offer(now, vec![own])).unwrap().unwrap();
    world.client("phone", Config::default(), &["t"]);
    world.assistant("b", Config::default());
    world.handle("a", |_| Some(Ok(value(2))));
    let is_ready =
        |world: &World| matches!(world.session("a").readiness(&"phone".into()), Readiness::Ready(_));
    while !is_ready(&world) {
        assert!(world.step());
    }
    let key = world.call("a", request("t")).unwrap();
    world.run(SECOND); // less than the claim window
    assert_eq!(world.session("phone").bound().unwrap(), "b");
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(2));
}
