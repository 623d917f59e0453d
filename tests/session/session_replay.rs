//! Unacknowledged frames are retransmitted when their peer returns, and nothing runs twice because of it.

use toolbridge::{
    CallError, CallId, Config, ConnectionState, Event, Tool, ToolOptions, Value,
    frame::{Acknowledgement, Configuration, Frame, Kind, Message, Meta},
    session::{Request, SendFailure},
    transport::{Lane, TransportEvent},
};

use crate::session_world::{Fate, MS, SECOND, World, receivers, request, sent_packet, tool, value};

/// The stanzas of the frames of a type that this participant sent.
fn stanzas(world: &World, name: &str, kind: Kind) -> Vec<i32> {
    world.sent(name, kind).iter().map(|(_, frame)| frame.stanza_id().unwrap()).collect()
}

/// Sends a request that is lost because its owner is rejoining, and lets the owner return.
fn rejoin_owner(world: &mut World) {
    world.leave("phone");
    world.run(500 * MS);
    world.rejoin("phone");
}

#[test]
fn protocol_a20_request_lost_at_a_rejoin_is_retransmitted_under_its_stanza_with_the_remaining_budget() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let key = world.call("a", request("t").timeout(9 * SECOND)).unwrap();
    rejoin_owner(&mut world);
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    assert_eq!(world.executed.len(), 1);
    let requests = world.sent("a", Kind::TOOL_USE_REQUEST);
    assert_eq!(requests.len(), 2, "the request is sent once under each pair of sids");
    assert_eq!(requests[0].1.stanza_id(), requests[1].1.stanza_id());
    let budgets: Vec<_> = requests
        .iter()
        .map(|(_, frame)| match frame.message().unwrap() {
            Message::ToolUseRequest(it) => it.timeout_ms.unwrap(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(budgets[0], 9_000);
    assert!((8_000..8_600).contains(&budgets[1]), "{budgets:?}");
    assert_eq!(world.count("a", "retransmitted"), 1);
}

#[test]
fn protocol_a20_results_of_a_disconnected_client_arrive_in_order_and_run_once() {
    let mut world = World::pair(&["t"]);
    let keys: Vec<_> = (0..5).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(100 * MS);
    world.leave("phone");
    world.run(SECOND);
    for number in 0..5 {
        world.finish("phone", Ok(value(number)));
    }
    let order: Vec<_> = world.executed.iter().map(|(_, call)| call.clone()).collect();
    world.rejoin("phone");
    world.run(SECOND);
    for (number, key) in keys.into_iter().enumerate() {
        assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(number as i32));
    }
    let answers = world.sent("phone", Kind::TOOL_USE_RESULT);
    let answered: Vec<CallId> =
        answers.iter().skip(5).map(|(_, frame)| frame.peek_id().unwrap().parse().unwrap()).collect();
    assert_eq!(answered, order, "unsent results are sent in the order of their requests");
    assert_eq!(world.executed.len(), 5);
}

#[test]
fn acknowledged_frame_is_not_retransmitted() {
    let mut world = World::pair(&["t"]);
    world.call("a", request("t")).unwrap();
    world.run(200 * MS);
    assert!(world.ends["a"].events.iter().any(|it| matches!(it, Event::Delivered { .. })));
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).len(), 1);
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    world.rejoin("a");
    world.run(SECOND);
    assert_eq!(world.sent("phone", Kind::TOOL_USE_RESULT).len(), 1);
    assert_eq!(world.count("a", "retransmitted") + world.count("phone", "retransmitted"), 0);
}

#[test]
fn result_whose_acknowledgement_was_lost_is_retransmitted_and_counts_once() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let key = world.call("a", request("t")).unwrap();
    world.run(45 * MS); // the result has arrived; its acknowledgement is in flight
    assert!(world.settled("a", key).is_some());
    world.leave("phone");
    world.run(100 * MS);
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(stanzas(&world, "phone", Kind::TOOL_USE_RESULT).len(), 2);
    assert_eq!(world.count("a", "duplicate"), 1);
    assert_eq!(world.ends["a"].settled.len(), 1);
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(
        stanzas(&world, "phone", Kind::TOOL_USE_RESULT).len(),
        2,
        "an acknowledged result is not retransmitted"
    );
}

#[test]
fn returning_instance_of_a_lost_client_gets_the_stop_of_its_call() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.leave("phone");
    world.run(7 * SECOND);
    assert!(matches!(world.settled("a", key), Some(Err(CallError::Lost { .. }))));
    assert!(world.ends["phone"].aborted.is_empty(), "the client does not know that it was disconnected");
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    // Its slot is free again.
    assert_eq!(stanzas(&world, "a", Kind::CONTROL_STOP).len(), 1);
    let caps = Config::default().caps.calls.open_per_peer;
    for _ in 0..caps {
        world.call("a", request("t")).unwrap();
    }
}

#[test]
fn lost_stop_is_retransmitted() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.ends.get_mut("phone").unwrap().here = false; // disconnected, and no one notices
    world.with("a", |session, now| session.cancel(now, key));
    world.run(100 * MS);
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(world.ends["phone"].aborted.len(), 1);
    let stops = stanzas(&world, "a", Kind::CONTROL_STOP);
    assert_eq!(stops.len(), 2);
    assert_eq!(stops[0], stops[1]);
}

#[test]
fn stopped_request_is_not_retransmitted() {
    let mut world = World::pair(&["t"]);
    world.ends.get_mut("phone").unwrap().here = false;
    let key = world.call("a", request("t")).unwrap();
    world.run(50 * MS);
    world.with("a", |session, now| session.cancel(now, key));
    world.run(50 * MS);
    world.rejoin("phone");
    world.run(SECOND);
    assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).len(), 1);
    assert!(world.executed.is_empty());
}

#[test]
fn idempotent_call_is_reissued_to_another_instance() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let may_repeat =
        || Tool::new("look".parse().unwrap(), "for a test").options(ToolOptions::default().idempotent());
    let mut key = None;
    for _ in 0..2 {
        world.leave_if_here("phone");
        world.client("phone", Config::default(), &[]);
        world.with("phone", |session, now| session.offer(now, vec![may_repeat()])).unwrap().unwrap();
        if world.executed.is_empty() {
            world.run(200 * MS);
            key = world.call("a", request("look").timeout(20 * SECOND)).ok();
            world.run(100 * MS);
        }
    }
    let key = key.unwrap();
    world.handle("phone", |_| Some(Ok(value(7))));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(7));
    let ids: Vec<_> = world.executed.iter().map(|(_, call)| call.clone()).collect();
    assert_eq!(ids.len(), 2, "the call ran once in each instance");
    assert_eq!(ids[0], ids[1], "both requests have the same id");
    let asked = stanzas(&world, "a", Kind::TOOL_USE_REQUEST);
    assert_eq!(asked.len(), 2);
    assert_ne!(asked[0], asked[1], "the second request has a new stanza");
}

#[test]
fn record_of_a_reissued_call_names_its_present_owner() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let look = || vec![tool("look").options(ToolOptions::default().idempotent())];
    world.client("phone", Config::default(), &[]);
    world.with("phone", |session, now| session.offer(now, look())).unwrap().unwrap();
    world.run(200 * MS);
    world.call("a", request("look").timeout(20 * SECOND)).unwrap();
    world.run(100 * MS);
    let owner = |world: &World| world.session("a").records().pop().unwrap().owner;
    assert_eq!(owner(&world).unwrap(), "phone");
    world.leave("phone");
    world.client("tv", Config::default(), &[]);
    world.with("tv", |session, now| session.offer(now, look())).unwrap().unwrap();
    world.client("phone", Config::default(), &[]);
    world.run(SECOND);
    assert_eq!(owner(&world).unwrap(), "tv");
}

#[test]
fn refusal_of_the_first_request_does_not_end_a_reissued_call() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let may_repeat = Tool::new("look".parse().unwrap(), "").options(ToolOptions::default().idempotent());
    let mut key = None;
    for _ in 0..2 {
        world.leave_if_here("phone");
        world.client("phone", Config::default(), &[]);
        let tools = vec![may_repeat.clone()];
        world.with("phone", |session, now| session.offer(now, tools)).unwrap().unwrap();
        if key.is_none() {
            world.run(200 * MS);
            world.ends.get_mut("phone").unwrap().here = false; // the request will reach the next process
            key = world.call("a", request("look").timeout(20 * SECOND)).ok();
        }
    }
    let key = key.unwrap();
    while world.sent("a", Kind::TOOL_USE_REQUEST).len() < 2 {
        assert!(world.step());
    }
    let refusal = world.other_instance(key);
    let peer = world.ends["phone"].who.peer().clone();
    let bytes = Frame::write(7, "room", &Meta::new(), &Message::Error(refusal)).unwrap();
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::packet(peer.clone(), Lane::Reliable, bytes))
    });
    assert!(world.settled("a", key).is_none());
    world.run(SECOND);
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
}

#[test]
fn unsent_request_is_sent_when_the_connection_is_restored_or_never_delivered() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    let interrupted = |world: &mut World| {
        world.with("a", |session, now| {
            session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting))
        });
        world.ends.get_mut("a").unwrap().here = false;
    };
    world.unsent = SendFailure::Interrupted;
    interrupted(&mut world);
    let key = world.call("a", request("t").timeout(9 * SECOND)).unwrap();
    world.run(SECOND);
    assert!(world.settled("a", key).is_none(), "the call waits for the connection");
    // Under the same sid, and under another.
    world.ends.get_mut("a").unwrap().here = true;
    world.with("a", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected))
    });
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    interrupted(&mut world);
    let key = world.call("a", request("t").timeout(9 * SECOND)).unwrap();
    world.run(SECOND);
    world.rejoin("a");
    world.run(SECOND);
    assert_eq!(*world.settled("a", key).unwrap().as_ref().unwrap(), value(1));
    interrupted(&mut world);
    let key = world.call("a", request("t").timeout(2 * SECOND)).unwrap();
    world.run(3 * SECOND);
    let Some(Err(error)) = world.settled("a", key) else { panic!("the call has no error") };
    assert!(matches!(error, CallError::NotDelivered { .. }) && !error.may_have_run(), "{error:?}");
    assert_eq!(world.executed.len(), 2);
    world.rejoin("a");
    world.run(SECOND);
    assert_eq!(world.executed.len(), 2, "an undelivered call does not run later");
    assert_eq!(world.sent("a", Kind::CONTROL_STOP).len(), 0, "an undelivered call needs no stop");
}

#[test]
fn request_refused_for_load_is_refused_again_when_the_refusal_was_lost() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let mut config = Config::default();
    config.caps.requests.calls_per_second = 1;
    world.client("phone", config, &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    world.call("a", request("t")).unwrap();
    let refused = world.call("a", request("t")).unwrap();
    world.run(30 * MS); // both were accepted; the refusal is in flight
    world.ends.get_mut("a").unwrap().here = false;
    world.run(1_500 * MS); // the second in which only one call was accepted is over
    world.rejoin("a");
    world.run(2 * SECOND);
    let Some(Err(error)) = world.settled("a", refused) else { panic!("the call has no error") };
    assert!(matches!(error, CallError::Busy { .. }) && !error.may_have_run(), "{error:?}");
    assert_eq!(world.executed.len(), 1);
}

#[test]
fn retransmission_has_a_window_and_continues_with_acknowledgements() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.frames.retransmit_frames = 3;
    world.assistant("a", config);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    world.ends.get_mut("phone").unwrap().here = false;
    let keys: Vec<_> = (0..20).map(|_| world.call("a", request("t")).unwrap()).collect();
    world.run(50 * MS);
    world.rejoin("phone");
    world.run(35 * MS); // its Configuration has arrived, no acknowledgement yet
    assert_eq!(world.count("a", "retransmitted"), 3);
    world.run(SECOND);
    assert!(keys.iter().all(|key| matches!(world.settled("a", *key), Some(Ok(_)))));
    assert_eq!(world.executed.len(), 20);
    // A frame that exceeds the whole window is still sent.
    let mut config = Config::default();
    config.caps.frames.retransmit_bytes = 10;
    let mut world = World::new();
    world.assistant("a", config);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    let key = world.call("a", request("t")).unwrap();
    rejoin_owner(&mut world);
    world.run(SECOND);
    assert!(matches!(world.settled("a", key), Some(Ok(_))));
}

#[test]
fn acknowledged_frames_leave_the_window_of_bytes() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.frames.retransmit_bytes = 2_500;
    world.assistant("a", config);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    world.ends.get_mut("phone").unwrap().here = false;
    let text = Value::from(serde_json::json!({"text": "x".repeat(1_000)}));
    for _ in 0..20 {
        world.call("a", Request::new("t", text.clone())).unwrap();
    }
    world.run(50 * MS);
    world.rejoin("phone");
    world.run(35 * MS);
    assert_eq!(world.count("a", "retransmitted"), 3, "each has more than 1,000 bytes");
    world.run(40 * MS); // a round trip
    assert_eq!(world.count("a", "retransmitted"), 6);
}

/// A late acknowledgement of the owner's earlier run carries the stanzas of frames that the present one does not have.
#[test]
fn acknowledgement_of_another_call_frees_no_place_in_the_window() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.frames.retransmit_frames = 3;
    world.assistant("a", config);
    world.client("phone", Config::default(), &["t"]);
    world.run(SECOND);
    world.ends.get_mut("phone").unwrap().here = false;
    for _ in 0..20 {
        world.call("a", request("t")).unwrap();
    }
    world.run(50 * MS);
    world.fate = Some(Box::new(|to, _, frame| match frame.kind() {
        Kind::CONFIGURATION => Fate::Arrives,
        _ if to == "a" && !names_another_call(frame) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.rejoin("phone");
    world.run(100 * MS);
    assert_eq!(world.count("a", "retransmitted"), 3);
    acknowledge_another_call(&mut world, "phone", "a");
    world.run(100 * MS);
    assert_eq!(world.count("a", "retransmitted"), 3);
}

/// The same in the other direction: a client sends results again.
#[test]
fn acknowledgement_of_another_call_frees_no_place_in_the_window_of_results() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.frames.retransmit_frames = 3;
    world.assistant("a", Config::default());
    world.client("phone", config, &["t"]);
    world.run(SECOND);
    for _ in 0..20 {
        world.call("a", request("t")).unwrap();
    }
    world.run(SECOND);
    world.ends.get_mut("a").unwrap().here = false;
    for _ in 0..20 {
        world.finish("phone", Ok(value(1)));
    }
    world.run(50 * MS);
    world.fate = Some(Box::new(|to, _, frame| match frame.kind() {
        Kind::ACKNOWLEDGEMENT if to == "phone" && !names_another_call(frame) => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.rejoin("a");
    world.run(100 * MS);
    assert_eq!(world.count("phone", "retransmitted"), 3);
    acknowledge_another_call(&mut world, "a", "phone");
    world.run(100 * MS);
    assert_eq!(world.count("phone", "retransmitted"), 3);
}

/// Its record ends, and it is sent under another stanza, so no acknowledgement would free its place.
#[test]
fn interrupted_result_leaves_the_window() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.frames.retransmit_frames = 1;
    world.assistant("a", Config::default());
    world.client("phone", config, &["t"]);
    world.run(SECOND);
    let keys = [(); 3].map(|()| world.call("a", request("t")).unwrap());
    world.run(SECOND);
    world.ends.get_mut("a").unwrap().here = false;
    for _ in keys {
        world.finish("phone", Ok(value(1)));
    }
    world.run(50 * MS);
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::TOOL_USE_RESULT => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.notes = Some(Vec::new());
    world.rejoin("a");
    world.run(50 * MS);
    assert_eq!(world.count("phone", "retransmitted"), 1);
    let packet = sent_packet(&world, "phone", Kind::TOOL_USE_RESULT);
    world.fate = None;
    world.with("phone", |session, now| {
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting));
        session.handle_send_failed(now, packet, SendFailure::Interrupted);
        session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected));
    });
    world.run(SECOND);
    assert!(keys.iter().all(|key| world.settled("a", *key).is_some_and(Result::is_ok)));
}

/// The owner has no part in it: nothing has left, and what is behind it still waits.
#[test]
fn retransmission_goes_on_after_a_request_that_found_no_room() {
    let mut world = World::new();
    let mut config = Config::default();
    config.caps.frames.retransmit_frames = 1;
    world.assistant("a", config);
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::TOOL_USE_REQUEST => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    let keys = [(); 4].map(|()| world.call("a", request("t")).unwrap());
    world.run(50 * MS);
    world.notes = Some(Vec::new());
    world.rejoin("phone");
    world.run(100 * MS);
    assert_eq!(world.count("a", "retransmitted"), 1);
    let packet = sent_packet(&world, "a", Kind::TOOL_USE_REQUEST);
    world.fate = None;
    world.with("a", |session, now| session.handle_send_failed(now, packet, SendFailure::QueueFull));
    world.run(3 * SECOND);
    assert!(keys.iter().all(|key| world.settled("a", *key).is_some_and(Result::is_ok)));
    assert_eq!(world.executed.len(), 4);
}

/// Sends acknowledgements of the first stanzas, which name a call that the receiver does not know.
fn acknowledge_another_call(world: &mut World, from: &str, to: &str) {
    for stanza in 1..=80 {
        let known = with!(
            Acknowledgement::default(),
            acknowledged_stanza_id = Some(stanza),
            acknowledged_message_id = Some("another".to_owned())
        );
        world.send(from, &[to], &Meta::new(), &Message::Acknowledgement(known));
    }
}

fn names_another_call(frame: &Frame) -> bool {
    frame.body().get("acknowledgedMessageId").is_some_and(|it| it.as_str() == Some("another"))
}

#[test]
fn sec_p2_peer_gets_only_its_own_frames_retransmitted() {
    let mut world = World::pair(&["t"]);
    world.stranger("x");
    world.run(SECOND);
    world.call("a", request("t")).unwrap();
    world.run(100 * MS);
    world.ends.get_mut("phone").unwrap().here = false;
    world.finish("phone", Ok(value(1)));
    let asks = Message::Configuration(with!(Configuration::default(), last_sequence_seen = Some(1)));
    let meta = Meta::new().with_text("bridge.instance", "00").with_bool("bridge.heard", false);
    for _ in 0..20 {
        world.send("x", &["a", "phone"], &meta, &asks);
        world.run(SECOND);
    }
    let theirs = world.ends["x"].inbox.iter().filter(|(_, frame)| {
        let kind = frame.kind();
        kind != Kind::TOOL_USE_RESULT && kind != Kind::TOOLS_REGISTER_ACK
    });
    assert_eq!(theirs.count(), 0);
    assert!(!receivers(&world.ends["phone"].sent).iter().any(|to| to == "x"));
}

#[test]
fn sec_y1_frames_of_an_earlier_session_are_refused_and_run_nothing() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("t")).unwrap();
    let earlier = world.sent("a", Kind::TOOL_USE_REQUEST).pop().unwrap().1;
    // Now: another instance of both programs. The same bytes arrive from the assistant's identity.
    let mut world = World::new();
    world.sid(); // so that the programs are others
    world.assistant("a", Config::default());
    world.client("phone", Config::default(), &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    let peer = world.ends["a"].who.peer().clone();
    let bytes = earlier.to_bytes();
    for _ in 0..5 {
        world.send_bytes_as(&peer, &["phone"], &bytes);
        world.run(100 * MS);
    }
    assert!(world.executed.is_empty());
    assert_eq!(world.count("phone", "refused"), 5);
    let errors = world.sent("phone", Kind::ERROR);
    assert!(errors.iter().all(|(_, frame)| match frame.message().unwrap() {
        Message::Error(error) => error.code == 304,
        _ => false,
    }));
}

#[test]
fn sec_r2_request_older_than_the_remembered_ones_is_refused_and_not_run() {
    let mut world = World::new();
    world.assistant("a", Config::default());
    let mut config = Config::default();
    config.caps.requests.table_entries = 16;
    world.client("phone", config, &["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.run(SECOND);
    for _ in 0..17 {
        world.ask("a", request("t")).unwrap();
        world.run(100 * MS);
    }
    let first = world.sent("a", Kind::TOOL_USE_REQUEST)[0].1.to_bytes();
    let peer = world.ends["a"].who.peer().clone();
    world.send_bytes_as(&peer, &["phone"], &first);
    world.run(100 * MS);
    assert_eq!(world.executed.len(), 17);
    assert_eq!(world.count("phone", "refused"), 1);
}

#[test]
fn replaced_instance_runs_nothing_twice_when_it_returns() {
    let mut world = World::pair(&["t"]);
    world.handle("phone", |_| Some(Ok(value(1))));
    world.ask("a", request("t")).unwrap();
    let request = world.sent("a", Kind::TOOL_USE_REQUEST).pop().unwrap().1.to_bytes();
    let (old, greeting) = {
        let end = &world.ends["a"];
        let greeting = end.sent.iter().find(|(_, frame)| frame.kind() == Kind::CONFIGURATION).unwrap();
        (end.who.clone(), greeting.1.to_bytes())
    };
    world.assistant("a", Config::default()); // another process takes the identity
    world.run(SECOND);
    // The room announces the old one late, and its frames follow.
    world.with("phone", |session, now| session.handle_event(now, TransportEvent::Joined(old.clone())));
    world.send_bytes_as(old.peer(), &["phone"], &greeting);
    world.send_bytes_as(old.peer(), &["phone"], &request);
    world.run(SECOND);
    assert_eq!(world.executed.len(), 1);
    assert_eq!(world.count("phone", "refused"), 1);
}

/// The first packet of the request may have arrived, so the call is still open.
#[test]
fn retransmitted_request_that_was_not_sent_is_sent_again() {
    for why in [SendFailure::QueueFull, SendFailure::Interrupted] {
        let mut world = World::pair(&["t"]);
        world.notes = Some(Vec::new());
        world.handle("phone", |_| Some(Ok(value(1))));
        world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
            Kind::TOOL_USE_REQUEST => Fate::IsLost,
            _ => Fate::Arrives,
        }));
        let key = world.call("a", request("t")).unwrap();
        world.run(100 * MS);
        world.rejoin("phone");
        world.run(SECOND);
        assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).len(), 2);
        world.fate = None;
        let packet = sent_packet(&world, "a", Kind::TOOL_USE_REQUEST);
        world.with("a", |session, now| {
            session.handle_send_failed(now, packet, why.clone());
            if why == SendFailure::Interrupted {
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Reconnecting));
                session.handle_event(now, TransportEvent::ConnectionState(ConnectionState::Connected));
            }
        });
        world.run(2 * SECOND);
        assert!(matches!(world.settled("a", key), Some(Ok(_))), "{why:?}");
    }
}

#[test]
fn earlier_packet_of_a_retransmitted_request_that_is_not_sent_does_not_count() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t")).unwrap();
    let first = world.packet;
    world.lossy.lose =
        Some(Box::new(|from, _, frame| from == "phone" && frame.kind() != Kind::CONFIGURATION));
    world.run(100 * MS);
    world.rejoin("phone");
    world.run(100 * MS);
    assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).len(), 2);
    world.with("a", |session, now| session.handle_send_failed(now, first, SendFailure::QueueFull));
    world.run(2 * SECOND);
    assert_eq!(world.sent("a", Kind::TOOL_USE_REQUEST).len(), 2);
    world.lossy.lose = None;
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert!(world.settled("a", key).is_some_and(Result::is_ok));
}

/// The owner has ended the call, so it needs no stop.
#[test]
fn stop_of_an_answered_call_is_not_retransmitted() {
    let mut world = World::pair(&["t"]);
    let key = world.call("a", request("t").timeout(60 * SECOND)).unwrap();
    world.run(100 * MS);
    world.fate = Some(Box::new(|_, _, frame| match frame.kind() {
        Kind::CONTROL_STOP => Fate::IsLost,
        _ => Fate::Arrives,
    }));
    world.with("a", |session, now| session.cancel(now, key));
    world.finish("phone", Ok(value(1)));
    world.run(SECOND);
    assert_eq!(world.count("a", "late"), 1);
    world.fate = None;
    world.rejoin("phone");
    world.run(3 * SECOND);
    assert_eq!(world.sent("a", Kind::CONTROL_STOP).len(), 1);
}
